"""`cordwood chaos --minutes`: chaos runs one after another, each shown, judged and kept.

A long run is divided into chaos runs of some minutes, each on a fresh cluster and with the next
seed, because a history is judged as a whole and in memory.

Source: docs/sources/reliability.md §6 ("nightly-size 60 min").
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console

from cordwood.chaos.capabilities import lacking, left_out
from cordwood.chaos.chaos_run import LOGS_DIRECTORY, Progress, Ran, play_chaos
from cordwood.chaos.own_cluster import run_against
from cordwood.chaos.plan import KINDS, Need
from cordwood.chaos.view import figures, shown, table
from cordwood.errors import BadSetting

PLAIN_COLUMNS = 120
"""Width of the table without a terminal."""

CHAOS_MINUTES_MAX = 5.0
"""Some twenty thousand records, and ten times as many deliveries."""


def run_chaos(
    directory: str,
    *,
    seed: int,
    minutes: float,
    kinds: Sequence[str],
    bounds: bool,
    as_json: bool,
) -> int:
    """Play one run after another for this long; 1 if a promise was broken.

    Args:
        directory: for fresh clusters and histories.
        kinds: names of faults to draw from; empty for all possible faults.
        bounds: whether a missed bound is a failure, too.
    Raises:
        BadSetting: an unknown kind.
        Unreachable: a cluster did not start.
    """
    if unknown := [name for name in kinds if name not in KINDS]:
        raise BadSetting(f"no fault is called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    console = Console(stderr=True)
    lacks = lacking(directory)
    for text in left_out(lacks):
        console.print(text, highlight=False, soft_wrap=True)
    runs = max(1, math.ceil(minutes / CHAOS_MINUTES_MAX))
    wanted = kinds or tuple(KINDS)
    broken = False
    for number in range(runs):
        ran = _one(directory, seed + number, 60 * minutes / runs, wanted, lacks, console)
        path = f"{directory}/chaos-{ran.seed}.jsonl"
        ran.save(path)
        _tell(ran, path, as_json=as_json)
        broken |= _is_broken(ran, bounds=bounds)
    return int(broken)


def run_chaos_on(
    url: str,
    directory: str,
    *,
    seed: int,
    minutes: float,
    command: str,
    bounds: bool,
    as_json: bool,
) -> int:
    """Put load on an existing cluster and strike it with a command; 1 if a promise was broken.

    Args:
        directory: where the history is left.
        command: see `own_cluster`; "" for no faults.
    Raises:
        BadSetting, Unreachable: see `own_cluster.run_against`.
    """
    console = Console(stderr=True)
    progress = Progress(60 * minutes, stage="connecting")

    async def play() -> Ran:
        async with shown(progress, console):
            return await run_against(
                url, seed=seed, seconds=60 * minutes, command=command, progress=progress
            )

    ran = asyncio.run(play())
    path = f"{directory}/chaos-{seed}.jsonl"
    ran.save(path)
    _tell(ran, path, as_json=as_json)
    return int(_is_broken(ran, bounds=bounds))


def _one(
    directory: str,
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    lacks: dict[Need, str],
    console: Console,
) -> Ran:
    below = tempfile.mkdtemp(prefix=".cordwood-chaos-", dir=directory)
    progress = Progress(seconds)

    async def play() -> Ran:
        async with shown(progress, console):
            return await play_chaos(
                below, seed=seed, seconds=seconds, lacks=lacks, kinds=tuple(kinds),
                progress=progress,
            )  # fmt: skip

    kept = f"{directory}/chaos-{seed}-logs"
    shutil.rmtree(kept, ignore_errors=True)
    os.mkdir(f"{below}/{LOGS_DIRECTORY}")
    try:
        with _clients_log(f"{below}/{LOGS_DIRECTORY}/clients.log"):
            ran = asyncio.run(play())
        if ran.problems or ran.missed:
            shutil.move(f"{below}/{LOGS_DIRECTORY}", kept)
            console.print(f"what the nodes said is in {kept}", highlight=False, soft_wrap=True)
        return ran
    finally:
        shutil.rmtree(below, ignore_errors=True)


def _is_broken(ran: Ran, *, bounds: bool) -> bool:
    return bool(ran.problems or (bounds and ran.missed))


@contextmanager
def _clients_log(path: str) -> Iterator[None]:
    """Send the clients' log lines to a file: each reset would be a line on the screen."""
    logger = logging.getLogger("cordwood")
    to_file = logging.FileHandler(path)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.propagate
    logger.addHandler(to_file)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(to_file)
        to_file.close()


def _tell(ran: Ran, path: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_fields(ran, path)))
        return
    console = Console(width=None if sys.stdout.isatty() else PLAIN_COLUMNS)
    console.print(table(ran))
    for text in (*figures(ran), *ran.problems, *ran.missed):
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    console.print(f"the history is in {path}: cordwood verify {path}", soft_wrap=True)


def as_fields(ran: Ran, path: str) -> dict[str, Any]:
    """A run for programs."""
    outcome = ran.outcome
    return {
        "seed": ran.seed,
        "seconds": ran.seconds,
        "faults": sum(each.faults for each in outcome.kinds),
        "kinds": [asdict(each) for each in outcome.kinds],
        "append_stall_s": outcome.append_stall_s,
        "read_stall_s": outcome.read_stall_s,
        "proxied": {harm: asdict(told) for harm, told in ran.proxied.items()},
        "members": dict(ran.members),
        "acked": outcome.verdict.acked,
        "lost": len(outcome.lost),
        "false_losses": outcome.false_losses,
        "checked": list(outcome.verdict.checked),
        "problems": list(ran.problems),
        "missed": list(ran.missed),
        "history": path,
    }
