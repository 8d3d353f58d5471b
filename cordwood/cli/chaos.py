"""`cordwood chaos`: real processes, broken in every way this machine can, under load."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import tempfile
from typing import Annotated

import typer

from cordwood.cli.proof import need_testing
from cordwood.cli.target import JsonOption


def chaos(
    seed: Annotated[
        int, typer.Option("--seed", help="Decides the faults: which, when and on which nodes.")
    ] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", min=0.01, help="Minutes during which faults are caused.", show_default="5"
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option("--kinds", help="Only these faults, separated by commas.", show_default="all"),
    ] = "",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Strike one node at a time, at most this many times, and measure each outage.",
            show_default="no rounds",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            metavar="URL",
            help="Load and judge this cluster, not a fresh one.",
            show_default="a fresh one",
        ),
    ] = None,
    strike: Annotated[
        str,
        typer.Option(
            "--strike",
            metavar="COMMAND",
            show_default="no faults",
            help="With --cluster: called as `COMMAND strike NODE`, then `COMMAND ease NODE`.",
        ),
    ] = "",
    directory: Annotated[
        str, typer.Option("--dir", help="Directory for a fresh cluster and the history.")
    ] = ".",
    bounds: Annotated[
        bool, typer.Option(help="Fail also if something took longer than promised.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Start 5 nodes and a load, break what can be broken, and check what clients saw.

    Nodes are killed, stopped, cut off, split, slowed down, filled up, and lose their power; packets
    and frames are lost, late, doubled and damaged; clocks jump. The command names the faults
    that this machine cannot produce, and leaves them out: most faults need root. It never causes
    more faults at once than the promises allow. The seed decides the plan of faults. The history
    is left for `cordwood verify`.

    With --rounds, one node is struck at a time, and each outage is measured and judged. With
    --cluster, a cluster of your own gets the load, and faults by a command of yours.

    Exit code 1 if a promise was broken or, but for --no-bounds, something took too long.
    """
    need_testing("cordwood chaos")
    if rounds is not None:
        _play_rounds(seed, rounds, minutes, directory, bounds=bounds, as_json=as_json)
        return
    from cordwood.chaos.command import run_chaos, run_chaos_on
    from cordwood.cli.target import find_target
    from cordwood.errors import BadSetting

    lasts = MINUTES if minutes is None else minutes
    if strike and cluster is None:
        raise BadSetting("--strike is for a cluster of your own: name it with --cluster")
    if cluster is not None:
        url = find_target(cluster).url
        code = run_chaos_on(
            url, directory, seed=seed, minutes=lasts, command=strike, bounds=bounds, as_json=as_json
        )
    else:
        wanted = [name.strip() for name in kinds.split(",") if name.strip()]
        code = run_chaos(
            directory, seed=seed, minutes=lasts, kinds=wanted, bounds=bounds, as_json=as_json
        )
    raise typer.Exit(code)


MINUTES = 5.0


def _play_rounds(
    seed: int, rounds: int, minutes: float | None, directory: str, *, bounds: bool, as_json: bool
) -> None:
    from cordwood.chaos.failover import (
        BOUNDS_S,
        Report,
        drawn_here,
        median_and_p99,
        run_failover,
    )

    def say(text: str) -> None:
        typer.echo(text, err=True)

    drawn = drawn_here(say)
    below = tempfile.mkdtemp(prefix=".cordwood-chaos-", dir=directory)

    async def play() -> Report:
        return await run_failover(
            below,
            seed=seed,
            rounds=rounds,
            budget_s=float("inf") if minutes is None else 60 * minutes,
            kinds=drawn,
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
