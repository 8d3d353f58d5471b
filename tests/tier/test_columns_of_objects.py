"""A reader of columns takes objects as rows: it gets what the reader of blocks gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pytest
from cluster_at_hand import ClusterAtHand, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from made_objects import Made
from scenarios import as_scenario
from test_tier_cluster import STORAGE, TIER, TIERED, write
from test_tier_history import on_history, read_all, reader_of, seen, small_groups, wanted

from cordwood.block import Gap, Record
from cordwood.client.read import arrow_batches
from cordwood.client.read.arrow_batches import BatchGatherer
from cordwood.client.read.tier_read import held_block
from cordwood.host.seams import Host
from cordwood.layout.arrow import COLUMNS, COLUMNS_ON_REQUEST
from cordwood.layout.object_rows import RowBlock
from cordwood.protocol.gap_detection import Delivery
from cordwood.sim.object_store import Bucket
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.block_cache import BlockCache
from cordwood.tier.history import HistoryBlock, HistoryReader

__all__ = ["small_groups"]

EVERY = (*COLUMNS, *COLUMNS_ON_REQUEST)


def delivered(item: HistoryBlock) -> Delivery:
    return Delivery(held_block(item), item.first, item.last)


async def tables(
    reader: HistoryReader, columns: Sequence[str] = EVERY, keys: frozenset[bytes] | None = None
) -> tuple[list[Gap | list[dict]], int]:
    """The rows between gaps, and the number of batches. `given` must follow the rows."""
    gatherer = BatchGatherer(columns, keys)
    found: list[Gap | list[dict]] = [[]]
    batches = 0

    def take(batch: pa.RecordBatch) -> None:
        nonlocal batches
        batches += 1
        batch.validate(full=True)
        rows = found[-1]
        assert isinstance(rows, list)
        rows += batch.to_pylist()
        if "lsn" in columns and keys is None:
            assert gatherer.given == batch["lsn"][-1].as_py() + 1, "rows not given count as given"

    for item in await read_all(reader):
        if isinstance(item, Gap):
            for batch in gatherer.finish():
                take(batch)
            found += [item, []]
        else:
            assert isinstance(item, HistoryBlock)
            for batch in gatherer.add("/now", delivered(item)):
                take(batch)
    for batch in gatherer.finish():
        take(batch)
    return found, batches


def rows_are_what_blocks_are(
    start: int, count: int, rows_max: int = 8192, bytes_max: int = 4 << 20
) -> None:
    async def act(made: Made, bucket: Bucket, host: Host) -> None:
        first = made.first + start
        until = min(first + count, made.next - 1)
        as_blocks, _ = await tables(reader_of(bucket, host, first, until))
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(arrow_batches, "ROWS_MAX", rows_max)
            changed.setattr(arrow_batches, "BATCH_BYTES", bytes_max)
            as_rows, _ = await tables(reader_of(bucket, host, first, until, as_rows=True))
        assert as_rows == as_blocks

    on_history(act)


@pytest.mark.parametrize("start", [0, 1, 7, 200])
@pytest.mark.parametrize("count", [0, 5, 100, 10**12])
def test_they_get_the_same(start: int, count: int) -> None:
    rows_are_what_blocks_are(start, count)


@pytest.mark.slow
@given(rows_max=st.integers(1, 60), bytes_max=st.integers(1, 2000))
@settings(max_examples=10, deadline=None)
def test_batches_of_any_size_hold_all(rows_max: int, bytes_max: int) -> None:
    rows_are_what_blocks_are(0, 10**12, rows_max, bytes_max)


@pytest.mark.parametrize("bug", ["run-not-cut", "run-counts-as-given"])
def test_a_run_that_is_cut_wrongly_shows(bug: str) -> None:
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        rows_are_what_blocks_are(7, 400, rows_max=10)


@as_scenario(on_history)
async def test_rows_are_chosen_by_key(made: Made, bucket: Bucket, host: Host) -> None:
    found, _ = await tables(
        reader_of(bucket, host, made.first, as_rows=True), ("lsn",), frozenset({b"none"})
    )
    assert not any(rows for rows in found if isinstance(rows, list))


@as_scenario(on_history)
async def test_small_blocks_are_cut_together(made: Made, bucket: Bucket, host: Host) -> None:
    found, batches = await tables(reader_of(bucket, host, made.first, as_rows=True))
    between = sum(bool(rows) for rows in found if isinstance(rows, list))
    assert between <= batches < 2 * between, "a batch for each stretch between gaps"


@as_scenario(on_history)
async def test_a_body_is_made_if_somebody_asks(made: Made, bucket: Bucket, host: Host) -> None:
    cache = BlockCache(1 << 20)
    for _ in range(2):
        as_rows = await read_all(reader_of(bucket, host, made.first, as_rows=True, cache=cache))
        as_blocks = await read_all(reader_of(bucket, host, made.first, cache=cache))
        assert seen(as_rows) == seen(as_blocks) == wanted(made, made.first, made.next - 1)
        for mine, theirs in zip(as_rows, as_blocks, strict=True):
            if isinstance(mine, HistoryBlock):
                assert isinstance(theirs, HistoryBlock)
                assert isinstance(mine.body, RowBlock)
                assert not isinstance(theirs.body, RowBlock)
                assert bytes(mine.raw) == bytes(theirs.raw)
    assert cache.hits >= 20


@as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
async def test_a_client_changes_between_columns_and_records(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        written = await write(store, "log", 60)
        await asyncio.sleep(20)
        assert min(node.engine.gone_of(1) for node in cluster.running.values()) > 0
        written += await write(store, "log", 10)
        found: list[bytes] = []
        async with store.read("log", until="tail") as reading:
            async for batch in reading.arrow(("value",)):
                assert isinstance(batch, pa.RecordBatch)
                found += batch["value"].to_pylist()
                break
            assert reading.wants_columns
            async for item in reading:
                found += [item.value] if isinstance(item, Record) else []
                if len(found) >= 40:
                    break
            place = reading.next_lsn
        assert found == written[: len(found)]
        assert 40 <= len(found) < 60
        # What a loop works on does not count as dealt with.
        async with store.read("log", place, until="tail") as reading:
            batches = [batch async for batch in reading.arrow(("lsn", "value"))]
        rest = [
            each
            for b in batches
            if isinstance(b, pa.RecordBatch)
            for each in b["value"].to_pylist()
        ]
        assert rest == written[len(found) - 1 :]
