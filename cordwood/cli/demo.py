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
        typer.Option("--dir", metavar="DIR", help="Where to work.", show_default="a new directory"),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave the cluster's data, too. The Parquet stays either way."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Decides which storage node is killed.")] = 1,
) -> None:
    """A cluster, real input, a node and then the sequencer's killed, Spark, and every check."""
    from cordwood.demo import command

    raise typer.Exit(command.demo(list(inputs or ()), directory, keep, seed))
