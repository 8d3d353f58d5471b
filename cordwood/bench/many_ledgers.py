"""The cost of a million ledgers: listing them by page, and making one more.

The metadata store is one SQLite file, filled by one transaction: a million separate creations would
take a quarter of an hour, and are not measured.

Source: docs/protocol/ledgers.md ("Metadata").
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from time import perf_counter

from msgspec.structs import replace

from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.ledger_metadata import ledger_key, pack_ledger
from cordwood.layout.message_ledgers import LEDGERS_MAX
from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.nodes import NodeId

FEW = 1_000
"""Number of ledgers in the reference store."""

MADE = 200
"""Ledgers that are made in one repeat."""

Say = Callable[[str], None]


async def bench_many_ledgers(count: int, *, directory: str, repeats: int, say: Say) -> list[Figure]:
    """List `count` ledgers by page and make some more, beside a store of FEW ledgers.

    Args:
        directory: for the two files, which are removed at the end.
    Raises:
        CordwoodError: the metadata store failed.
        OSError: the directory cannot be used.
    """
    parameters: dict[str, int | float | str] = {"ledgers": count, "page": LEDGERS_MAX}
    with tempfile.TemporaryDirectory(prefix=".cordwood-bench-", dir=directory) as below:
        async with (
            real_host() as host,
            _filled(os.path.join(below, "many"), host, count) as many,
            _filled(os.path.join(below, "few"), host, FEW) as few,
        ):
            say(f"{count:,} ledgers are there")
            listed = [await _listed(many, few, count) for _ in range(repeats)]
            peak = await _peak_of(many)
            made = [
                Sample(await _rate_of_creations(many), await _rate_of_creations(few))
                for _ in range(repeats)
            ]
    return [
        make_figure(
            "ledger_pages_of_many", "ids/s", listed,
            reference_is=f"the page of a store with {FEW:,} ledgers",
            parameters={**parameters, "peak_kib": peak >> 10},
        ),
        make_figure(
            "ledger_create_beside_many", "ledgers/s", made,
            reference_is=f"creations, one after the other, in a store with {FEW:,} ledgers",
            parameters=parameters,
        ),
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _filled(path: str, host: Host, count: int) -> AsyncIterator[LedgerMetadataStore]:
    """A metadata store with ledgers 0 to `count` - 1, all closed."""
    metadata = SqliteMetadata(path, host)
    store = LedgerMetadataStore(metadata)
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    found = await store.create(0, LedgerMetadata(0, Striping(3, 3, 2), (Fragment(0, nodes),)))
    closed = replace(found.metadata, state=LedgerState.CLOSED, last=99, length=9_900)
    with sqlite3.connect(path) as database:
        database.executemany(
            "INSERT INTO entry VALUES (?, ?, 1)",
            (
                (f"ledgers/{ledger_key(at)}", pack_ledger(replace(closed, ledger=at)))
                for at in range(1, count)
            ),
        )
        database.execute("INSERT INTO entry VALUES ('ledger-ids', ?, 1)", (b"%d" % count,))
    database.close()
    try:
        yield store
    finally:
        await metadata.close()


async def _listed(many: LedgerMetadataStore, few: LedgerMetadataStore, count: int) -> Sample:
    """One listing of all."""
    began = perf_counter()
    await few.page(-1, LEDGERS_MAX)
    reference = min(FEW, LEDGERS_MAX) / (perf_counter() - began)
    after, ids, pages = -1, 0, []
    began = before = perf_counter()
    while page := await many.page(after, LEDGERS_MAX):
        ids += len(page)
        after = page[-1]
        now = perf_counter()
        pages.append(now - before)
        before = now
    seconds = perf_counter() - began
    assert ids >= count, "a listing by page has every ledger"
    pages.sort()
    return Sample(ids / seconds, reference, percentile_ms(pages, 0.5), percentile_ms(pages, 0.99))


async def _peak_of(many: LedgerMetadataStore) -> int:
    """The most bytes that Python held for a listing. Counting slows the listing, so it is a
    separate run."""
    tracemalloc.start()
    try:
        after = -1
        while page := await many.page(after, LEDGERS_MAX):
            after = page[-1]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def _rate_of_creations(store: LedgerMetadataStore) -> float:
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    new = LedgerMetadata(0, Striping(3, 3, 2), (Fragment(0, nodes),))
    began = perf_counter()
    for _ in range(MADE):
        await store.create(-1, new)
    return MADE / (perf_counter() - began)
