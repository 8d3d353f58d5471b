"""What rotted in a WAL is lost for good: no flush, trim or restart makes it absent."""

from __future__ import annotations

import pytest
from made_blocks import (
    LIMITS,
    OWNER,
    PATH,
    Made,
    at,
    flush,
    open_engine,
    packed,
    restart,
    run,
    turns,
)
from scenarios import as_scenario
from swaps import swap

from cordwood.errors import Retryable
from cordwood.layout.log_questions import AskExtent
from cordwood.layout.logs_db import ACCEPTED_KEY, META_TABLE, pack_lost, pack_offset, read_lost
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_search import LogSearch
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_errors import WalFailed

BIG = bytes(5_000)
"""A block of two of the WAL's units, so that its neighbours have others."""


async def with_rot(records: int = 3, rotten: int = 1) -> Made:
    """A storage engine that was closed after so many records, one of which has rotted since."""
    made = await Made.new()
    for number in range(1, records + 1):
        made.store(packed(at(number), BIG))
        await turns()
    offset, _ = made.disk.file.history[2 + rotten]
    await made.engine.wal.close()
    made.disk.files[PATH].stable[offset + 4500] ^= 1
    await made.open()
    return made


async def store_one(made: Made, number: int) -> None:
    settled = made.store(packed(at(number), BIG))
    await turns()
    assert settled == [()]


LOST = ((8192, 16384),)

HEADERS_BYTES = 8192
"""Of the WAL's file, before its ring."""


async def rot(made: Made, record: int) -> None:
    """Stop, and start anew with a rotten record: the first of the WAL is record 0, and each is
    as large as `BIG` needs."""
    await made.engine.wal.close()
    made.disk.files[PATH].stable[HEADERS_BYTES + 8192 * record + 4500] ^= 1
    await made.open()


async def rot_where_a_loss_was_accepted() -> str:
    """What a node says of a rotten record at offsets where it had accepted another loss, before
    its WAL lost its end."""
    made = await Made.new()
    empty = bytes(made.disk.files[PATH].stable)
    for number in (1, 2, 3):
        await store_one(made, number)
    await rot(made, 1)
    assert made.engine.logs.lost == LOST
    await made.engine.accept_loss()
    await made.engine.wal.close()
    made.disk.files[PATH].stable[:] = empty
    await made.open()
    for number in (1, 2, 3):
        await store_one(made, number)
    await rot(made, 1)
    recovery = made.engine.wal.recovery
    assert recovery is not None
    assert recovery.damage == LOST
    return made.engine.damage


class TestRestarts:
    @as_scenario(run)
    async def test_the_verdict_outlives_the_wal_that_showed_it(self) -> None:
        made = await with_rot()
        assert made.engine.logs.lost == LOST
        await store_one(made, 4)
        await flush(made, trims=True)
        for life in range(3):
            await restart(made)
            recovery = made.engine.wal.recovery
            assert recovery is not None
            assert recovery.damage == (), "the WAL knows nothing of it any more"
            assert (made.engine.logs.lost, "(8192, 16384)" in made.engine.damage) == (
                LOST,
                True,
            )
            with pytest.raises(Retryable, match="does not know what it holds"):
                await LogSearch(made.engine).extent(AskExtent(5, at(9)))
            assert not (await made.engine.seal(6, 2 + life, 1)).is_sure
            await store_one(made, 5 + life)
            await flush(made, trims=True)

    def test_a_node_that_forgets_it_is_caught(self) -> None:
        async def scenario() -> None:
            made = await with_rot()
            await store_one(made, 4)
            await flush(made, trims=True)
            await restart(made)
            assert made.engine.damage == "", "it answers as one that knows"

        with planted(find_bug("damage-forgotten")):
            run(scenario)

    @as_scenario(run)
    async def test_without_a_flush_the_wal_shows_it_again(self) -> None:
        made = await with_rot()
        for _ in range(2):
            await restart(made)
            assert made.engine.logs.lost == LOST

    @as_scenario(run)
    async def test_a_crash_between_flush_and_trim_tells_it_once(self) -> None:
        made = await with_rot()
        await store_one(made, 4)
        await flush(made, evicts=False)
        for _ in range(2):
            await restart(made)
            recovery = made.engine.wal.recovery
            assert recovery is not None
            assert (recovery.damage, made.engine.logs.lost) == (LOST, LOST)

    @as_scenario(run)
    async def test_a_flush_that_fails_trims_nothing_and_the_wal_shows_it_again(self) -> None:
        made = await with_rot()
        await store_one(made, 4)
        batch = made.engine.cut()
        assert batch is not None
        await made.engine.logs.tables.close()
        with pytest.raises(TablesFailed):
            await made.engine.logs.flush(batch.blocks, batch.states, batch.offset, 0)
        await restart(made)
        assert made.engine.logs.lost == LOST

    @as_scenario(run)
    async def test_what_another_start_loses_comes_on_top(self) -> None:
        made = await with_rot()
        await store_one(made, 4)
        await flush(made, trims=True)
        places = len(made.disk.file.history)
        await store_one(made, 5)
        offset, _ = made.disk.file.history[places]
        await made.engine.wal.close()
        made.disk.files[PATH].stable[offset + 4500] ^= 1
        await made.open()
        assert len(made.engine.logs.lost) == 2
        assert made.engine.logs.lost[:1] == LOST


class TestAccepted:
    """An operator says that nobody is to wait for it any more."""

    @pytest.mark.parametrize("is_flushed", [False, True])
    @as_scenario(run)
    async def test_the_node_knows_again_whatever_its_wal_still_shows(
        self, *, is_flushed: bool
    ) -> None:
        made = await with_rot()
        if is_flushed:
            await store_one(made, 4)
            await flush(made, trims=True)
            await restart(made)
        await made.engine.accept_loss()
        for _ in range(2):
            assert (made.engine.logs.lost, made.engine.damage) == ((), "")
            await LogSearch(made.engine).extent(AskExtent(5, at(9)))
            await restart(made)
        await store_one(made, 5)
        await flush(made, trims=True)
        await restart(made)
        assert made.engine.damage == ""

    def test_an_acceptance_in_memory_only_is_caught(self) -> None:
        async def scenario() -> None:
            made = await with_rot()
            await made.engine.accept_loss()
            assert made.engine.damage == ""
            await restart(made)
            assert made.engine.damage != "", "the loss is there again"

        with planted(find_bug("acceptance-unwritten")):
            run(scenario)

    @as_scenario(run)
    async def test_what_is_lost_after_that_is_unknown_as_before(self) -> None:
        made = await with_rot()
        await made.engine.accept_loss()
        places = len(made.disk.file.history)
        await store_one(made, 4)
        offset, _ = made.disk.file.history[places]
        await made.engine.wal.close()
        made.disk.files[PATH].stable[offset + 4500] ^= 1
        await made.open()
        assert len(made.engine.logs.lost) == 1
        assert made.engine.logs.lost != LOST

    @pytest.mark.parametrize("rotten", [1, 3], ids=["beside it", "apart from it"])
    @as_scenario(run)
    async def test_what_rots_later_of_the_records_before_it_is_unknown(
        self, *, rotten: int
    ) -> None:
        made = await with_rot(records=4, rotten=2)
        await made.engine.accept_loss()
        await restart(made)
        await rot(made, rotten)
        (lost,) = made.engine.logs.lost
        assert lost == (8192 * rotten, 8192 * rotten + 8192)
        assert made.engine.damage
        await made.engine.accept_loss()
        await restart(made)
        assert (made.engine.logs.lost, made.engine.damage) == ((), ""), "both were accepted"

    def test_an_acceptance_of_all_records_below_is_caught(self) -> None:
        async def scenario() -> None:
            made = await with_rot(records=4, rotten=2)
            await made.engine.accept_loss()
            await rot(made, 3)
            assert made.engine.damage == "", "it counts as absent"

        with planted(find_bug("acceptance-of-all-below")):
            run(scenario)

    @as_scenario(run)
    async def test_what_came_to_its_place_after_the_wal_lost_its_end_is_unknown(self) -> None:
        assert await rot_where_a_loss_was_accepted()

    def test_an_acceptance_that_outlives_its_end_is_caught(self) -> None:
        async def scenario() -> None:
            assert not await rot_where_a_loss_was_accepted()

        with planted(find_bug("acceptance-outlives-its-end")):
            run(scenario)

    @as_scenario(run)
    async def test_the_word_of_an_older_version_stands(self) -> None:
        made = await with_rot()
        recovery = made.engine.wal.recovery
        assert recovery is not None
        row = (ACCEPTED_KEY, pack_offset(recovery.resume))
        await made.engine.logs.tables.write(META_TABLE, [row])
        await made.engine.logs.tables.flush(META_TABLE)
        await restart(made)
        assert (made.engine.damage, made.engine.logs.has_lost) == ("", True)

    @as_scenario(run)
    async def test_where_it_cannot_be_written_nothing_changes(self) -> None:
        made = await with_rot()
        await made.engine.logs.tables.close()
        with pytest.raises(TablesFailed):
            await made.engine.accept_loss()
        assert (made.engine.logs.lost, made.engine.damage != "") == (LOST, True)

    @as_scenario(run)
    async def test_a_node_that_lost_nothing_accepts_nothing(self) -> None:
        made = await Made.new()
        await store_one(made, 1)
        await made.engine.accept_loss()
        offset, _ = made.disk.file.history[-1]
        await made.engine.wal.close()
        made.disk.files[PATH].stable[offset + 4500] ^= 1
        await made.open()
        assert len(made.engine.logs.lost) == 1, "a word from before says nothing of it"


@as_scenario(run)
async def test_what_a_flush_had_taken_before_it_rotted_is_not_lost() -> None:
    made = await Made.new()
    for number in (1, 2, 3):
        await store_one(made, number)
    offset, _ = made.disk.file.history[3]
    await flush(made, evicts=False)
    await made.engine.wal.close()
    made.disk.files[PATH].stable[offset + 4500] ^= 1
    await made.open()
    recovery = made.engine.wal.recovery
    assert recovery is not None
    assert recovery.damage == LOST
    assert (made.engine.logs.lost, made.engine.damage) == ((), "")


def test_the_row_of_lost_ranges_reads_back() -> None:
    assert read_lost(pack_lost(((0, 4096), (8192, 1 << 50)))) == ((0, 4096), (8192, 1 << 50))
    assert read_lost(pack_lost(())) == ()


class TestPromised:
    """What the metadata store knows to have been durable is held against the end of the WAL."""

    @pytest.mark.parametrize(("beyond", "is_lost"), [(-1, False), (0, True), (4096, True)])
    def test_a_wal_that_ends_at_the_promised_record_has_lost_it(
        self, beyond: int, is_lost: bool
    ) -> None:
        async def scenario() -> None:
            made = await Made.new()
            made.store(packed(at(1), BIG))
            await turns()
            await made.engine.wal.close()
            # Writing goes on here, so that this is the offset of the first record that is gone.
            resume = (await reopened(made, -1)).wal.recovery.resume
            engine = await reopened(made, resume + beyond)
            assert engine.has_lost is is_lost
            assert bool(engine.damage) is is_lost

        async def reopened(made: Made, promised: int) -> StorageEngine:
            wal = await Wal.open(made.disk, PATH, owner=OWNER, limits=LIMITS)
            engine = await open_engine(made.disk, wal, promised=promised)
            await wal.close()
            return engine

        run(scenario)


async def with_lost_writes(count: int = 3) -> Made:
    """An engine whose blocks are in LogsDB; the disk lost all that the WAL wrote since the start,
    the trim in its header too, and had said that it was durable."""
    made = await Made.new()
    before = bytes(made.disk.files[PATH].stable)
    for number in range(1, count + 1):
        await store_one(made, number)
    await flush(made, trims=True)
    await made.engine.wal.close()
    made.disk.files[PATH].stable[:] = before
    return made


class TestLostWrites:
    """Tier seed 9610332: such a node refused to start for ever."""

    @as_scenario(run)
    async def test_the_node_starts_and_says_that_it_lost_records(self) -> None:
        made = await with_lost_writes()
        await made.open()
        (lost,) = made.engine.logs.lost
        assert lost[0] <= made.engine.logs.offset < lost[1]
        assert str(lost) in made.engine.damage
        for life in range(3):
            await store_one(made, 4 + life)
            await restart(made)
            # What came behind it is in the WAL, at places that LogsDB does not have.
            assert made.held()[-1:] == [packed(at(4 + life), BIG)]
            assert made.engine.logs.lost == (lost,)
            await flush(made, trims=True)

    def test_a_crash_amid_it_begins_it_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def dies(self: Wal, start: int) -> None:
            raise WalFailed("the process ends here")

        async def scenario() -> None:
            made = await with_lost_writes()
            with monkeypatch.context() as patch:
                swap(patch, Wal.go_on_at, dies)
                with pytest.raises(WalFailed):
                    await made.open()
            await made.open()
            assert made.engine.damage
            await store_one(made, 4)
            await restart(made)
            assert made.held() == [packed(at(4), BIG)]
            assert made.engine.damage

        run(scenario)

    def test_a_wal_that_goes_on_at_its_end_is_caught(self) -> None:
        async def scenario() -> None:
            made = await with_lost_writes()
            await made.open()
            await store_one(made, 4)
            await restart(made)
            assert made.held() == [], "the record passed for one that LogsDB has"

        with planted(find_bug("lost-writes-passed-over")):
            run(scenario)
