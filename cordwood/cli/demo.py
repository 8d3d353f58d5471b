"""`cordwood demo`: the main job, to watch."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Files to ingest line by line, - for standard input. "
            "Without any: 336,776 flights of 2013.",
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--dir", metavar="DIR", help="The directory to work in.", show_default="a new directory"
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the cluster's data too. The Parquet files stay in any case."
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Decides which storage node is killed.")] = 1,
) -> None:
    """Run a cluster on real input, kill two nodes, query it with Spark, and check everything."""
    from cordwood.demo import command

    raise typer.Exit(command.demo(list(inputs or ()), directory, keep, seed))
