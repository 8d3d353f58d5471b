"""Where things lie in a log on one node: what does not count is not found."""

from __future__ import annotations

import pytest
from made_blocks import Made, at, block, flush, packed, run, turns
from scenarios import as_scenario

from cordwood.block import BlockHeader, BlockKind
from cordwood.errors import Retryable
from cordwood.layout.engine_record import STORE_KIND
from cordwood.layout.log_questions import AskExtent, AskTime
from cordwood.layout.waves import store_head
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.log_search import LogSearch

LOG = 5
ALL = at(9, 2)


async def left_over_in_logs_db() -> Made:
    """Epoch 1 ended behind its second record, and a third one of it lies in LogsDB still.

    A sequencer that was replaced stored it on this node, cut off with it, later than others
    wrote the first records of epoch 2. The node has purged since.
    """
    made = await Made.new()
    for lsn, time_us in ((at(1), 10), (at(2), 20), (at(3), 90)):
        made.store(packed(lsn, time_us=time_us, lng=at(1)))
    await turns()
    await flush(made)
    await made.engine.purge(LOG, 1, seal=2, lng=at(2))
    made.store(packed(at(5, 2), time_us=95, lng=at(4, 2)))
    await turns()
    return made


class TestWhatDoesNotCount:
    @as_scenario(run)
    async def test_is_not_found_by_time(self) -> None:
        """Seed 1195987578: the least of the answers was the LSN of such a block, too early."""
        made = await left_over_in_logs_db()
        reply = await LogSearch(made.engine).find_time(AskTime(LOG, 50, ALL, True))
        assert (reply.before, reply.at) == (at(2), at(5, 2))

    @as_scenario(run)
    async def test_is_not_the_end_of_the_log(self) -> None:
        made = await left_over_in_logs_db()
        reply = await LogSearch(made.engine).extent(AskExtent(LOG, at(4, 2)))
        assert (reply.first, reply.last, reply.last_us) == (at(1), at(2), 20)

    @as_scenario(run)
    async def test_a_copy_that_recovery_kept_is_found_behind_one_that_does_not_count(self) -> None:
        made = await left_over_in_logs_db()
        # A recovery of epoch 1 once more, under a higher seal, kept the third record after all.
        await made.engine.seal(LOG, 3, 0)
        settled = made.store(packed(at(3), time_us=90, seal=3), seal=3)
        await turns()
        assert settled == [()]
        await flush(made)
        reply = await LogSearch(made.engine).find_time(AskTime(LOG, 50, ALL, True))
        assert (reply.before, reply.at) == (at(2), at(3))


@as_scenario(run)
async def test_who_slept_through_a_recovery_does_not_answer_for_its_epoch() -> None:
    """Seed 14000529: a sequencer that hung wrote on as it woke, above the end of its epoch, and its
    node was asked before it heard that this epoch was over. That readers are in the next one says
    it."""
    made = await Made.new()
    for lsn, time_us in ((at(1), 10), (at(2), 20), (at(3), 90)):
        made.store(packed(lsn, time_us=time_us, lng=at(1)))
    await turns()
    search = LogSearch(made.engine)
    assert (await search.find_time(AskTime(LOG, 50, at(3), True))).at == at(3)
    for ask in (
        search.find_time(AskTime(LOG, 50, at(1, 2), True)),
        search.extent(AskExtent(LOG, at(1, 2))),
    ):
        with pytest.raises(Retryable, match="has still to learn"):
            await ask
    await made.engine.purge(LOG, 1, seal=2, lng=at(2))
    assert (await search.find_time(AskTime(LOG, 50, at(1, 2), True))).at == 0


@as_scenario(run)
async def test_a_bridge_that_does_not_count_says_nothing_of_the_time() -> None:
    """Another recovery kept the third record, which other nodes hold. Where this node alone
    answered, reading began behind that record."""
    made = await Made.new()
    for lsn, time_us in ((at(1), 10), (at(2), 20)):
        made.store(packed(lsn, time_us=time_us, lng=at(1)))
    await made.engine.seal(LOG, 2, 0)
    made.store(packed(at(3), kind=BlockKind.BRIDGE, time_us=20, seal=2), seal=2)
    await turns()
    await flush(made)
    await made.engine.purge(LOG, 1, seal=3, lng=at(2))
    reply = await LogSearch(made.engine).find_time(AskTime(LOG, 50, ALL, True))
    assert (reply.before, reply.at) == (at(2), 0)


@as_scenario(run)
async def test_what_recovery_stores_late_is_not_the_last_record() -> None:
    """Records of epoch 2 were flushed while epoch 1 was recovered. Its end came to the cache then,
    and every node named it as the last record of the log."""
    made = await Made.new()
    made.store(packed(at(1), time_us=10))
    made.store(packed(at(2, 2), time_us=30))
    await turns()
    await flush(made)
    await made.engine.seal(LOG, 2, 0)
    made.store(packed(at(1), time_us=10, seal=2), seal=2)
    await turns()
    await made.engine.purge(LOG, 1, seal=2, lng=at(0))
    reply = await LogSearch(made.engine).extent(AskExtent(LOG, at(4, 2)))
    assert (reply.first, reply.last, reply.last_us) == (at(1), at(2, 2), 30)


@as_scenario(run)
async def test_the_first_record_may_stand_behind_many_bridges_in_logs_db() -> None:
    """A read of LogsDB ended at the bridges of epochs without a record, and the cache was searched
    to its end: a record there was named, and not the first one behind the bridges."""
    made = await Made.new()
    for epoch in range(1, 70):
        made.store(packed(at(1, epoch), kind=BlockKind.BRIDGE, time_us=10))
    made.store(packed(at(1, 70), time_us=20))
    await turns()
    await flush(made)
    made.store(packed(at(2, 70), time_us=30, lng=at(1, 70)))
    await turns()
    await made.engine.purge(LOG, 69, seal=0, lng=0)
    held = made.engine.cache.log(LOG)
    for epoch in held.unclean_epochs(70):
        await made.engine.purge(LOG, epoch, seal=epoch + 1, lng=at(1, epoch))
    reply = await LogSearch(made.engine).extent(AskExtent(LOG, at(2, 70)))
    assert (reply.first, reply.last) == (at(1, 70), at(2, 70))


class StoredMeanwhile(LogSearch):
    """A block of an epoch that was recovered without this node is stored amid a question."""

    def __init__(self, made: Made) -> None:
        super().__init__(made.engine)
        self._made = made

    async def _first_record(self, log: int, start: int, until: int) -> BlockHeader | None:
        found = await super()._first_record(log, start, until)
        self._made.store(packed(at(1, 2), time_us=30, lng=at(0, 2)))
        await turns()
        return found


@as_scenario(run)
async def test_what_is_stored_amid_a_question_is_no_end_of_the_log() -> None:
    """Seed 9800245: an extent told a record that was never acknowledged, and that the log's
    recovery had ended the epoch before."""
    made = await Made.new()
    made.store(packed(at(1), time_us=10, lng=at(0)), packed(at(2), time_us=20, lng=at(1)))
    await turns()
    await made.engine.purge(LOG, 1, seal=2, lng=at(2))
    asked = AskExtent(LOG, at(0, 4))
    assert (await LogSearch(made.engine).extent(asked)).last == at(2)
    with pytest.raises(Retryable, match="still to learn"):
        await StoredMeanwhile(made).extent(asked)


async def without_a_partition(number: int) -> Made:
    """Three records in three partitions; one partition is gone from the disk."""
    made = await Made.new(storage=StorageSettings(recent_bytes=0, partition_files=1))
    for esn in (1, 2, 3):
        made.store(packed(at(esn), time_us=10 * esn, lng=at(esn - 1)))
        await turns()
        await flush(made)
    await made.engine.purge(LOG, 1, seal=2, lng=at(3))
    await made.engine.wal.close()
    lost = f"logsdb/p{number:010}."
    for path in [path for path in made.disk.small if path.startswith(lost)]:
        del made.disk.small[path]
    await made.open()
    return made


class TestAPartitionThatIsLost:
    """The empty table in its place told that no record was there: where the other copies' node was
    down, reading by time began behind acknowledged records, and the answer was called exact."""

    @as_scenario(run)
    async def test_has_a_record_of_that_time_for_all_this_node_knows(self) -> None:
        made = await without_a_partition(2)
        search = LogSearch(made.engine)
        for time_us in (11, 20, 21, 30):
            with pytest.raises(Retryable, match="cannot read log 5 at"):
                await search.find_time(AskTime(LOG, time_us, ALL, True))
        # What it knows all the same: the place lies elsewhere.
        reply = await search.find_time(AskTime(LOG, 5, ALL, True))
        assert (reply.before, reply.at) == (0, at(1))
        reply = await search.find_time(AskTime(LOG, 31, ALL, True))
        assert (reply.before, reply.at) == (at(3), 0)

    @as_scenario(run)
    async def test_may_hold_the_last_record(self) -> None:
        made = await without_a_partition(3)
        with pytest.raises(Retryable, match="cannot read log 5 at"):
            await LogSearch(made.engine).extent(AskExtent(LOG, ALL))
        made = await without_a_partition(2)
        reply = await LogSearch(made.engine).extent(AskExtent(LOG, ALL))
        assert (reply.first, reply.last) == (at(1), at(3))

    @as_scenario(run)
    async def test_costs_nothing_once_it_is_mended(self) -> None:
        made = await without_a_partition(3)
        again = block(at(3), time_us=30)
        parts = [STORE_KIND, store_head(1), again.wire, again.body]
        made.engine.append_store(0, parts, [again], (), lambda refused: None, by_recovery=False)
        await turns()
        damages = made.engine.logs.damages
        for damaged in damages.of_log(LOG):
            assert await made.engine.logs.note_mended(damaged, damaged.first)
        search = LogSearch(made.engine)
        reply = await search.find_time(AskTime(LOG, 25, ALL, True))
        assert (reply.before, reply.at) == (at(2), at(3))
        assert (await search.extent(AskExtent(LOG, ALL))).last == at(3)

    def test_shows_the_planted_bug(self) -> None:
        with planted(find_bug("rot-found-empty")), pytest.raises(pytest.fail.Exception):
            self.test_may_hold_the_last_record()
