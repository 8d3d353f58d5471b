"""Measures all cells of each peer: one peer's servers at a time, in several turns.

A turn starts every peer anew and does a share of the repeats. So the medians of one peer come from
more than one part of the run. A peer's failure is reported, and the run continues with the next
peer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from benchmarks.peers.machine import probe
from benchmarks.peers.peer import Peer, Session, Variant
from benchmarks.peers.results import (
    TAIL_NAME,
    Cell,
    Results,
    System,
    append_name,
    catch_up_name,
)
from benchmarks.peers.workload import (
    FILL_IN_FLIGHT,
    IN_FLIGHT,
    SIZES,
    TAIL_RATE,
    TAIL_SIZE,
    AppendLoad,
    TailLoad,
)
from cordwood.errors import CordwoodError

Say = Callable[[str], None]

MIB = 1 << 20
WARM_UP_IN_FLIGHT = 64
WARM_UP_SIZES = (100, 1024)
TAIL_WARM_UP_S = 0.5

APPENDS_SHARE = 0.6
"""The part of a system's time for appends. The reads take a third as long, and the start takes some
time."""

VARIANT_TIMEOUT_S = 900.0
"""The deadline of one turn of one variant; each call in it has a shorter deadline."""

PREFIX = ".cordwood-bench-peers-"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run.

    Attributes:
        repeats: of each cell, over all turns.
        turns: the number of starts of each peer, at most the number of repeats.
        seconds: of each append.
        bytes_max: of each append, which bounds the disk.
        fill_bytes, fill_seconds: the bounds of the records that are appended for the reads. A slow
            system needs its seconds, or the read measures only its first answer.
        tail_seconds: of records offered at the tail, after TAIL_WARM_UP_S.
        minutes: the longest run; a system that is too slow for its share has fewer repeats.
        sizes, in_flight: of records; of appends.
    """

    repeats: int = 5
    turns: int = 2
    seconds: float = 1.0
    bytes_max: int = 256 * MIB
    fill_bytes: int = 128 * MIB
    fill_seconds: float = 2.0
    tail_seconds: float = 1.5
    minutes: float = 25.0
    sizes: Sequence[int] = SIZES
    in_flight: Sequence[int] = IN_FLIGHT

    def repeats_of(self, turn: int) -> int:
        """The repeats of a turn, counted from 0. If they do not divide evenly, the first turns have
        one more."""
        return (self.repeats - turn + self.turns - 1) // self.turns


async def measure(
    peers: Sequence[Peer],
    plan: Plan,
    results: Results,
    directory: str,
    say: Say,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Run the plan and put its figures into `results.systems`.

    Args:
        directory: an absolute path, on the disk that is measured.
        keep: called after each turn of a peer.
    Raises:
        OSError: the directory cannot be used.
    """
    ready: list[Peer] = []
    for peer in peers:
        why = await _prepare(peer, say)
        version = peer.version() if not why else ""
        results.systems += [_system(variant, version, why) for variant in peer.variants]
        if why:
            say(f"{peer.name}: skipped: {why}")
        else:
            ready.append(peer)
    variants = max(1, sum(len(peer.variants) for peer in ready))
    for turn in range(plan.turns):
        for number, peer in enumerate(ready, 1):
            say(f"turn {turn + 1} of {plan.turns}, {number} of {len(ready)}: {peer.name} starts")
            share_s = plan.minutes * 60 / plan.turns / variants
            await _turn(peer, plan, plan.repeats_of(turn), share_s, results, directory, say)
            keep()


async def _prepare(peer: Peer, say: Say) -> str:
    """The reason why a peer cannot run here, "" if it can."""
    if why := peer.missing():
        return why
    try:
        await peer.prepare()
    except (CordwoodError, OSError) as error:
        return str(error)
    return ""


def _system(variant: Variant, version: str, skipped: str) -> System:
    return System(
        variant.name, variant.title, version, variant.servers, variant.copies, variant.synced,
        variant.durability, variant.client, variant.notes, skipped,
    )  # fmt: skip


async def _turn(
    peer: Peer, plan: Plan, repeats: int, share_s: float, results: Results, directory: str,
    say: Say,
) -> None:  # fmt: skip
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    reading = asdict(await asyncio.to_thread(probe, below))
    systems = [system for each in peer.variants if (system := results.system(each.name))]
    try:
        async with peer.running(below) as running:
            for variant, system in zip(peer.variants, systems, strict=True):
                system.probes.append(reading)
                try:
                    async with (
                        asyncio.timeout(VARIANT_TIMEOUT_S),
                        running.session(variant) as session,
                    ):
                        await _variant(peer, session, system, plan, repeats, share_s, say)
                except (CordwoodError, OSError, ExceptionGroup) as error:
                    system.skipped = _reason(error)
                    say(f"{system.name}: {system.skipped}")
    except (CordwoodError, OSError, ExceptionGroup) as error:
        for system in systems:
            system.skipped = system.skipped or _reason(error)
        say(f"{peer.name}: {_reason(error)}")
    finally:
        await asyncio.to_thread(shutil.rmtree, below, ignore_errors=True)


def _reason(error: Exception) -> str:
    """The text of a peer's error; an error of this program is raised again."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CordwoodError | OSError):
        return str(error) or type(error).__name__
    raise error


async def _variant(
    peer: Peer, session: Session, system: System, plan: Plan, repeats: int, share_s: float,
    say: Say,
) -> None:  # fmt: skip
    began = perf_counter()
    for size in WARM_UP_SIZES:
        seconds = peer.warm_up_s / len(WARM_UP_SIZES)
        await session.append(AppendLoad(size, WARM_UP_IN_FLIGHT, seconds, plan.bytes_max))
    for repeat in range(repeats):
        if repeat and perf_counter() - began > share_s * APPENDS_SHARE:
            say(f"{system.name}: too slow for {repeats} repeats in {share_s:.0f} s")
            repeats = repeat
            break
        for size in plan.sizes:
            await session.fresh()
            for in_flight in plan.in_flight:
                await _append(session, system, AppendLoad(
                    size, in_flight, plan.seconds, plan.bytes_max
                ))  # fmt: skip
        say(f"{system.name}: appends {repeat + 1} of {repeats}")
    for size in plan.sizes:
        await _catch_up(session, system, size, plan, repeats)
    say(f"{system.name}: reads")
    load = TailLoad(TAIL_SIZE, TAIL_RATE, plan.tail_seconds + TAIL_WARM_UP_S, TAIL_WARM_UP_S)
    for _ in range(repeats):
        await session.fresh()
        lag = await session.tail(load)
        cell = _cell(system, TAIL_NAME, "ms")
        cell.values.append(lag.p50_ms)
        cell.p50_ms.append(lag.p50_ms)
        cell.p99_ms.append(lag.p99_ms)
    say(f"{system.name}: tail")


async def _append(session: Session, system: System, load: AppendLoad) -> None:
    run = await session.append(load)
    cell = _cell(system, append_name(load.size, load.in_flight), "records/s")
    cell.values.append(run.rate)
    cell.p50_ms.append(run.p50_ms)
    cell.p99_ms.append(run.p99_ms)


async def _catch_up(session: Session, system: System, size: int, plan: Plan, repeats: int) -> None:
    load = AppendLoad(size, FILL_IN_FLIGHT[size], plan.fill_seconds, plan.fill_bytes)
    count = 0
    for repeat in range(repeats):
        if repeat == 0 or session.reads_consume:
            await session.fresh()
            count = (await session.append(load)).records
            if not session.reads_consume:
                await session.read(size, count)  # reads are warmed up too
        seconds = await session.read(size, count)
        _cell(system, catch_up_name(size), "records/s").values.append(count / seconds)


def _cell(system: System, name: str, unit: str) -> Cell:
    return system.cells.setdefault(name, Cell(name, unit))


def free_bytes(directory: str) -> int:
    """Free bytes on the measured disk."""
    return shutil.disk_usage(os.path.abspath(directory)).free
