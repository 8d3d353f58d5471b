"""`cordwood sim`: the cluster under a seeded loop in virtual time.

Source: docs/design.md §10; docs/simulator.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.proof import need_testing
from cordwood.cli.target import JsonOption
from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from cordwood.sim.sweep import SeedTask

app = typer.Typer(help="Simulate the cluster, with everything that can go wrong.",
                  no_args_is_help=True)  # fmt: skip

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Seeds that run at the same time.", show_default="one a core"
    ),
]
DemoOption = Annotated[bool, typer.Option("--demo", help="The demo's cluster for every seed.")]
BeyondOption = Annotated[
    bool,
    typer.Option(
        "--beyond", help="Faults may destroy more than the copies survive; losses must be told."
    ),
]
TierOption = Annotated[
    bool, typer.Option("--tier", help="Logs are tiered into an object store that misbehaves.")
]
BugOption = Annotated[str, typer.Option("--bug", metavar="NAME", help="Plant this bug.")]
FaultsOption = Annotated[
    str | None,
    typer.Option("--faults", metavar="1,4,7", help="Keep only these faults of the plan."),
]


@app.callback()
def _begin() -> None:
    need_testing("cordwood sim")


SeedArgument = Annotated[int, typer.Argument(help="The seed.", metavar="SEED")]


@app.command()
def run(
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Stop after this many seeds.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The first seed.", show_default="by chance")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.001,
            help="Stop after this many minutes of real time.",
            show_default="1, where no number of seeds is given",
        ),
    ] = None,
    jobs: JobsOption = None,
    demo: DemoOption = False,
    beyond: BeyondOption = False,
    tier: TierOption = False,
    bug: BugOption = "",
    require_probes: Annotated[
        bool,
        typer.Option("--require-probes", help="Fail if some rare branch was never reached."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run seeds: crashes, partitions, bad disks, then check every promise.

    One seed gives one run, to the last byte. The exit code is 1 if a promise broke.
    """
    from cordwood.sim import command

    raise typer.Exit(
        command.run(
            seeds,
            seed,
            minutes,
            jobs or os.cpu_count() or 1,
            as_json,
            task=_task(0, demo, beyond, bug, tier=tier),
            require_probes=require_probes,
        )
    )


@app.command()
def replay(
    seed: SeedArgument,
    until: Annotated[
        float | None,
        typer.Option("--until", metavar="T", help="Tell nothing after T simulated seconds."),
    ] = None,
    trace: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="LSN|eN",
            help="Tell only the story of one record (an LSN) or of one epoch (eN).",
        ),
    ] = "",
    log: Annotated[int | None, typer.Option("--log", help="Only this log, by its number.")] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show what nodes and clients log.")] = False,
    demo: DemoOption = False,
    beyond: BeyondOption = False,
    tier: TierOption = False,
    bug: BugOption = "",
    faults: FaultsOption = None,
    history: Annotated[
        str,
        typer.Option(
            "--history",
            metavar="FILE",
            help="Write the run's history to this file, for `cordwood verify`.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run one seed again and tell what happened, in words."""
    from cordwood.sim import command

    task = _task(seed, demo, beyond, bug, faults, tier=tier)
    raise typer.Exit(
        command.replay(
            task, until_s=until, trace=trace, log=log, logs=logs, history=history, as_json=as_json
        )
    )


@app.command()
def shrink(
    seed: SeedArgument,
    invariant: Annotated[
        str,
        typer.Option(
            "--invariant",
            metavar="S2",
            help="The promise that has to break, too, with fewer faults.",
            show_default="the first broken",
        ),
    ] = "",
    demo: DemoOption = False,
    beyond: BeyondOption = False,
    tier: TierOption = False,
    bug: BugOption = "",
    faults: FaultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find fewer faults that still break the same promise."""
    from cordwood.sim import command

    task = _task(seed, demo, beyond, bug, faults, tier=tier)
    raise typer.Exit(command.shrink(task, invariant, as_json=as_json))


@app.command()
def bugs(
    bug: Annotated[
        str, typer.Option("--bug", metavar="NAME", help="One bug.", show_default="all")
    ] = "",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Seeds within which it must be caught.")
    ] = 200,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of docs/simulator.md.")
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            "--known", metavar="FILE", help="A file with that table: its seeds are tried first."
        ),
    ] = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plant known bugs, and demand that the checkers catch each."""
    from cordwood.sim import command

    cores = jobs or os.cpu_count() or 1
    raise typer.Exit(command.bugs(bug, seeds, cores, as_json, as_markdown, known))


def _task(
    seed: int,
    demo: bool,
    beyond: bool,
    bug: str = "",
    faults: str | None = None,
    *,
    tier: bool = False,
) -> SeedTask:
    from cordwood.sim.sweep import SeedTask, Shape

    if demo + beyond + tier > 1:
        raise BadSetting("--demo, --beyond and --tier are shapes of a run: give one of them")
    shapes = ((demo, Shape.DEMO), (beyond, Shape.BEYOND), (tier, Shape.TIER))
    shape = next((shape for is_asked, shape in shapes if is_asked), Shape.SWARM)
    return SeedTask(seed, shape, bug, _numbers(faults))


def _numbers(faults: str | None) -> tuple[int, ...] | None:
    if faults is None:
        return None
    if faults == "none":
        return ()
    try:
        return tuple(int(number) for number in faults.split(","))
    except ValueError:
        raise BadSetting(f"--faults {faults}: write numbers with commas, or none") from None
