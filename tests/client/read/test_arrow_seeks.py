"""Calls in the middle of a loop that stop a log or go on elsewhere: between two batches, or from
the callback of `deliver`."""

from __future__ import annotations

import pytest
from cluster_at_hand import ClusterAtHand, at, simulate
from scenarios import as_scenario

from cordwood.block import Gap, Record
from cordwood.client.read.reader import Reader, ReaderBatches
from cordwood.client.store import Store
from cordwood.errors import Closed

BLOCKS, ROWS = 12, 5000
"""Each block is a batch of its own, and a log has several of them in a turn once its window has
grown."""

BEFORE = 4
"""Batches until then."""


async def filled(store: Store, *logs: str) -> Reader:
    """A reader of these logs to their ends; the values of each log count up from 1."""
    for log in logs:
        for block in range(BLOCKS):
            first = block * ROWS + 1
            await store.append_many(log, [b"%d" % n for n in range(first, first + ROWS)])
    return await store.reader(*logs, until=at(BLOCKS * ROWS), gaps=False)


async def begun(reader: Reader) -> tuple[str, ReaderBatches]:
    """Batches in the middle of a turn, and the log of this turn."""
    batches = ReaderBatches(reader, ["value"])
    taken = [await values(batches) for _ in range(BEFORE * len(reader.logs))]
    return taken[-1][0], batches


async def values(batches: ReaderBatches) -> tuple[str, list[int]]:
    """The next batch."""
    log, batch = await anext(batches)
    assert not isinstance(batch, Gap)
    return log, [int(each) for each in batch.column("value").to_pylist()]


class TestCallsBetweenBatches:
    @as_scenario(simulate)
    async def test_the_batch_after_a_seek_begins_at_the_new_position(
        self, cluster: ClusterAtHand
    ) -> None:
        """The rest of the log's turn came first: records that were sought past."""
        async with cluster.client() as store:
            reader = await filled(store, "log")
            _, batches = await begun(reader)
            await reader.seek("log", at(11 * ROWS + 1))
            assert (await values(batches))[1][0] == 11 * ROWS + 1

    @as_scenario(simulate)
    async def test_a_log_that_is_started_anew_gives_batches_from_there(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            reader = await filled(store, "log")
            _, batches = await begun(reader)
            await reader.start("log", at(2 * ROWS + 1), at(BLOCKS * ROWS))
            assert (await values(batches))[1][0] == 2 * ROWS + 1

    @as_scenario(simulate)
    async def test_a_stopped_log_gives_no_more_batches(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            reader = await filled(store, "a", "b")
            log, batches = await begun(reader)
            reader.stop(log)
            assert {name async for name, _ in batches} == {"a", "b"} - {log}

    @as_scenario(simulate)
    async def test_a_closed_reader_gives_no_more_batches(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            reader = await filled(store, "log")
            _, batches = await begun(reader)
            reader.close()
            with pytest.raises(Closed):
                await anext(batches)


class TestCallsOfACallback:
    @pytest.mark.parametrize("answer", [True, False])
    @as_scenario(simulate)
    async def test_it_may_seek_and_stop_the_log_of_its_record(
        self, cluster: ClusterAtHand, *, answer: bool
    ) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % n for n in range(1, 10)])
            reader = await store.reader("log", until=at(9), gaps=False)
            given: list[bytes] = []

            async def accept(log: str, item: Record | Gap) -> bool:
                assert isinstance(item, Record)
                given.append(item.value)
                if item.value == b"2":
                    await reader.seek(log, at(7))
                    return answer
                if item.value == b"8":
                    reader.stop(log)
                    return answer
                return True

            await reader.deliver(accept)
            assert given == [b"1", b"2", b"7", b"8"]
