"""`cordwood chaos`: real processes, killed and stopped under load."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import tempfile
from typing import Annotated

import typer

from cordwood.cli.target import JsonOption


def chaos(
    seed: Annotated[int, typer.Option("--seed", help="Decides who is struck, how and when.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="At most.")] = 50,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.0, help="Start no round later.", show_default="no limit"),
    ] = None,
    directory: Annotated[str, typer.Option("--dir", help="Where a fresh cluster may lie.")] = ".",
    bounds: Annotated[
        bool, typer.Option(help="Fail if appends stood still for longer than promised.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Strike nodes, the sequencer's or another, again and again; check what clients saw.

    Nodes are killed with -9, stopped with SIGSTOP, cut off from all others (this takes root and
    network namespaces), and have slow disks (this takes strace).

    Exit code 1 if a promise was broken or appends stood still for too long; the history is
    then left beside the cluster's directory for `cordwood verify`.
    """
    from cordwood.chaos.failover import (
        BOUNDS_S,
        Report,
        drawn_here,
        median_and_p99,
        run_failover,
    )

    def say(text: str) -> None:
        typer.echo(text, err=True)

    kinds = drawn_here(say)
    below = tempfile.mkdtemp(prefix=".cordwood-chaos-", dir=directory)

    async def play() -> Report:
        return await run_failover(
            below,
            seed=seed,
            rounds=rounds,
            budget_s=float("inf") if minutes is None else 60 * minutes,
            kinds=kinds,
            say=say,
        )

    try:
        report = asyncio.run(play())
    finally:
        shutil.rmtree(below, ignore_errors=True)
    figures = {
        kind: dict(zip(("median_s", "p99_s"), median_and_p99(outages), strict=True))
        for kind in BOUNDS_S
        if (outages := report.outages_s(kind))
    }
    if as_json:
        told = [dataclasses.asdict(each) for each in report.rounds]
        fields = {"seed": seed, "rounds": told, "acked": report.acked, "outages": figures}
        fields |= {"problems": list(report.problems), "missed": list(report.missed)}
        typer.echo(json.dumps(fields))
    else:
        for kind, figure in figures.items():
            count = len(report.outages_s(kind))
            typer.echo(
                f"{kind}: {count} rounds, no acks for {figure['median_s']:.2f} s at the median, "
                f"{figure['p99_s']:.2f} s at p99"
            )
        typer.echo(f"{report.acked:,} records acknowledged; {len(report.problems)} problems")
        for problem in (*report.problems, *report.missed):
            typer.echo(problem)
    if report.problems or (bounds and report.missed):
        path = f"{directory}/chaos-{seed}.jsonl"
        report.save(path)
        typer.echo(f"the history is in {path}: `cordwood verify {path}`", err=True)
        raise typer.Exit(1)
