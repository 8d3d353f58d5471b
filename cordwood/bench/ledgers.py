"""How fast one client writes, reads, makes and recovers ledgers, beside its appends to a log.

E 3, Qw 3, Qa 2, as most users of BookKeeper have them. The reference of adds is a log of the same
cluster, which stores three copies of each record and waits for all of them.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections import deque
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

from cordwood import aio
from cordwood.bench.append_loops import AppendRun, Limit, append_singles
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.place import bench_place
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.settings import MIB

LOG = "bench/ledgers"

DEPTHS = (1, 16, 256, 2048)
SIZES = (100, 1024)

SECONDS = 1.0
"""Length of each repeat of adds, as in the comparison with other systems."""

READ_BYTES = 64 * MIB
"""What each reader reads: from memory, as after a fail-over. Half a second and less for each."""

READ_ENTRIES_MAX = 200_000
READ_SIZES = (100, 1024, 64 << 10)
STRIPED_SIZE = 1024

UNREAD_ENTRIES = 10_000
MADE = 200
"""Ledgers that are made and closed in one repeat."""

MADE_AT_ONCE = 16

E3: Any = {"ensemble": 3, "write": 3, "ack": 2}
STRIPED: Any = {"ensemble": 3, "write": 2, "ack": 2}


class Part(enum.StrEnum):
    """A part of the measurement."""

    ADDS = "adds"
    READS = "reads"
    MADE = "made"
    RECOVERY = "recovery"


Say = Callable[[str], None]


async def bench_ledgers(
    *,
    url: str | None,
    directory: str,
    nodes: int,
    repeats: int,
    say: Say,
    parts: Collection[Part] = tuple(Part),
) -> list[Figure]:
    """The figures of some parts, on one cluster.

    Args:
        url: a running cluster; None starts one.
        directory, nodes: of a fresh cluster.
    Raises:
        CordwoodError: the cluster did not start, or an entry was not stored.
    """
    async with (
        bench_place(url, directory, nodes=nodes, blocks=1000, block_bytes=MIB) as place,
        aio.connect(place.url) as store,
    ):
        figures: list[Figure] = []

        def add(figure: Figure) -> None:
            figures.append(figure)
            say(f"{figure.name}: {figure.value:g} {figure.unit}")

        if Part.ADDS in parts:
            for size in SIZES:
                for depth in DEPTHS:
                    add(await _adds(store, size, depth, repeats))
        if Part.READS in parts:
            for size in READ_SIZES:
                add(await _reads(store, f"ledger_read_{size}B", size, E3, repeats))
            name = f"ledger_read_striped_{STRIPED_SIZE}B"
            add(await _reads(store, name, STRIPED_SIZE, STRIPED, repeats))
        if Part.MADE in parts:
            add(await _made(store, repeats))
        if Part.RECOVERY in parts:
            add(await _recovery(store, place.url, repeats))
        return figures


async def _adds(store: Store, size: int, depth: int, repeats: int) -> Figure:
    payload = os.urandom(size)
    await store.append(LOG, payload)
    log = await store.open_log(LOG)
    samples = []
    for repeat in range(repeats + 1):
        beside = await append_singles([log], payload, depth, Limit(10_000_000, SECONDS / 2))
        run = await _add(store, payload, depth)
        ordered = sorted(run.latencies_s)
        if repeat:  # the first one warms up
            samples.append(
                Sample(
                    run.records / run.seconds, beside.records / beside.seconds,
                    percentile_ms(ordered, 0.5), percentile_ms(ordered, 0.99),
                )
            )  # fmt: skip
    return make_figure(
        f"ledger_add_{size}B_{depth}_in_flight", "entries/s", samples,
        reference_is="appends to a log of this cluster", parameters=_parameters(store, size),
    )  # fmt: skip


async def _add(store: Store, payload: bytes, depth: int) -> AppendRun:
    """Keep this many entries in flight in one ledger."""
    limits = WriterLimits(entries_max=max(4 * depth, 1000))
    async with await store.ledgers.create(**E3, limits=limits) as made:
        window: deque[tuple[asyncio.Future[int], float]] = deque()
        latencies: list[float] = []
        began = now = perf_counter()
        while True:
            if now - began < SECONDS:
                while len(window) < depth:
                    await made.wait_room()
                    window.append((made.append_nowait(payload), now))
            if not window:
                return AppendRun(now - began, len(latencies), latencies)
            await window[0][0]
            now = perf_counter()
            while window and window[0][0].done():
                future, submitted = window.popleft()
                future.result()
                latencies.append(now - submitted)


async def _reads(store: Store, name: str, size: int, shape: Any, repeats: int) -> Figure:
    """Read a whole ledger whose entries nodes have in memory; each entry differs."""
    entries = min(READ_ENTRIES_MAX, READ_BYTES // size)
    async with await store.ledgers.create(**shape) as made:
        for first in range(0, entries, 1000):
            some = min(1000, entries - first)
            await made.append_many([os.urandom(size) for _ in range(some)])
    samples = []
    for repeat in range(repeats + 1):
        opened = await store.ledgers.open(made.ledger_id)
        began, count = perf_counter(), 0
        async for batch in opened.batches():
            count += len(batch)
        assert count == entries
        if repeat:  # the first one warms up
            samples.append(Sample(count / (perf_counter() - began), None))
    await store.ledgers.delete(made.ledger_id)
    return make_figure(
        name, "entries/s", samples, reference_is="none",
        parameters={**_parameters(store, size), **shape, "entries": entries},
    )  # fmt: skip


async def _made(store: Store, repeats: int) -> Figure:
    samples = []
    for _ in range(repeats):
        at_once = asyncio.Semaphore(MADE_AT_ONCE)

        async def make(turns: asyncio.Semaphore = at_once) -> None:
            async with turns:
                made = await store.ledgers.create(**E3)
                await made.close()

        began = perf_counter()
        await asyncio.gather(*(make() for _ in range(MADE)))
        samples.append(Sample(MADE / (perf_counter() - began), None))
    return make_figure(
        "ledger_create_close", "ledgers/s", samples, reference_is="none",
        parameters={**_parameters(store, 0), "at_once": MADE_AT_ONCE},
    )  # fmt: skip


async def _recovery(store: Store, url: str, repeats: int) -> Figure:
    """Recover a ledger whose writer died, with entries that no node knows to be confirmed."""
    samples = []
    for _ in range(repeats):
        async with aio.connect(url) as writer:
            made = await writer.ledgers.create(
                **E3, limits=WriterLimits(entries_max=2 * UNREAD_ENTRIES)
            )
            await _add_at_once(made)
            made.abandon()
        began = perf_counter()
        found = await store.ledgers.recover(made.ledger_id)
        assert found.last == UNREAD_ENTRIES - 1
        samples.append(Sample((perf_counter() - began) * 1000, None))
    return make_figure(
        "ledger_recovery_of_10000_unread", "ms", samples, reference_is="none",
        parameters=_parameters(store, 100),
    )  # fmt: skip


async def _add_at_once(made: WritableLedger) -> None:
    """Add all entries before the first answer, so that each entry carries a LAC of -1."""
    payload = os.urandom(100)
    added = [made.append_nowait(payload) for _ in range(UNREAD_ENTRIES)]
    await asyncio.gather(*added)


def _parameters(store: Store, size: int) -> dict[str, int | float | str]:
    return {
        "size": size, "ensemble": 3, "write": 3, "ack": 2,
        "nodes": len(store.members), "cores": os.cpu_count() or 0,
    }  # fmt: skip
