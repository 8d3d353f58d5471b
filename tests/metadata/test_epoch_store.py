"""The epoch store: every epoch has one taker, clean never goes back, no nodeset is forgotten."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_play import run_patiently
from scenarios import as_scenario, awaited_by
from swaps import swap_value

from cordwood.errors import (
    BadSetting,
    Fenced,
    Malformed,
    OutcomeUnknown,
    Rejected,
    UnknownLog,
    Unreachable,
)
from cordwood.lsn import EPOCH_MAX, make_lsn
from cordwood.metadata import epoch_store
from cordwood.metadata.change import UNKNOWN_MAX
from cordwood.metadata.epoch_store import (
    BEGUN_MAX,
    HISTORY_MAX,
    NODE_MAX,
    NODESET_NODES_MAX,
    Begun,
    Configuration,
    EpochRecord,
    EpochStore,
    NodesetSince,
    Wanted,
)
from cordwood.metadata.memory import MemoryMetadata
from cordwood.metadata.store import VALUE_BYTES_MAX, MetadataStore
from cordwood.nodes import COPIES_MAX, LOCATION_CHARS_MAX, Member, NodeId, Replication

LOG = 7
THREE = (NodeId(1), NodeId(2), NodeId(3))
FOUR = (*THREE, NodeId(4))


async def put(store: MemoryMetadata, record: EpochRecord) -> None:
    found = await store.get(f"epochs/{LOG}")
    value = msgspec.json.encode(record)
    assert await store.compare_and_set(f"epochs/{LOG}", value, found.version if found else 0)


class TestCreating:
    @as_scenario("play")
    async def test_a_new_record(self, store) -> None:
        epochs = EpochStore(store)
        assert await epochs.read(LOG) is None
        record = await epochs.create(LOG, (NodeId(3), NodeId(1), NodeId(2)), Replication(3, 2))
        assert record == EpochRecord(1, 0, 0, (NodesetSince(1, (1, 2, 3), 3, 2),))
        assert await epochs.read(LOG) == record
        assert await epochs.read(LOG + 1) is None

    @as_scenario("play")
    async def test_the_first_caller_decides(self, store) -> None:
        epochs = EpochStore(store)
        first = await epochs.create(LOG, THREE, Replication(3))
        await epochs.take_epoch(LOG)
        again = await epochs.create(LOG, FOUR, Replication(2))
        assert again.history == first.history
        assert again.next_epoch == 2

    @pytest.mark.parametrize(
        ("nodes", "replication"),
        [
            ((1, 2), Replication(3)),
            ((1, 1, 2), Replication(2)),
            ((0, 1), Replication(1)),
            ((NODE_MAX + 1,), Replication(1)),
            ((), Replication(1)),
            (range(1, NODESET_NODES_MAX + 2), Replication(1)),
        ],
    )
    @as_scenario(awaited_by(run_patiently))
    async def test_what_is_no_nodeset(self, *, memory: MemoryMetadata, nodes, replication) -> None:
        with pytest.raises(BadSetting):
            await EpochStore(memory).create(LOG, tuple(map(NodeId, nodes)), replication)
        assert await EpochStore(memory).read(LOG) is None


class TestTakingEpochs:
    @as_scenario("play")
    async def test_epochs_count_from_one_and_the_record_is_the_one_stored(self, store) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        for wanted in (1, 2, 3):
            epoch, record = await epochs.take_epoch(LOG, owner=9)
            assert epoch == wanted
            assert record == await epochs.read(LOG)
            assert (record.next_epoch, record.owner) == (wanted + 1, 9)

    @as_scenario("play")
    async def test_racers_get_epochs_of_their_own(self, store) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        taken = await asyncio.gather(*(epochs.take_epoch(LOG) for _ in range(12)))
        assert sorted(epoch for epoch, _ in taken) == list(range(1, 13))
        assert all(record.next_epoch == epoch + 1 for epoch, record in taken)

    @as_scenario(awaited_by(run_patiently))
    async def test_two_round_trips_when_nobody_races(self, *, memory: MemoryMetadata) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        memory.delay_s = (1.0, 1.0)
        start_s = asyncio.get_running_loop().time()
        await epochs.take_epoch(LOG)
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(2.0)

    @pytest.mark.parametrize("seed", range(40))
    @as_scenario(awaited_by(run_patiently))
    async def test_no_epoch_has_two_takers_however_answers_are_lost(self, *, seed) -> None:
        """Lost writes are done, done late (after the retry read the record), or never done."""
        chance = random.Random(seed)
        data = MemoryMetadata(chance).data
        await EpochStore(MemoryMetadata(chance, data)).create(LOG, THREE, Replication(3))

        async def sequencer() -> list[int]:
            store = MemoryMetadata(chance, data)
            store.answer_loss = 0.4
            taken = []
            for _ in range(6):
                try:
                    taken.append((await EpochStore(store).take_epoch(LOG))[0])
                except Unreachable:
                    continue
            return taken

        each = await asyncio.gather(*(sequencer() for _ in range(4)))
        taken = [epoch for one in each for epoch in one]
        assert len(taken) == len(set(taken))
        assert all(one == sorted(one) for one in each)
        record = await EpochStore(MemoryMetadata(chance, data)).read(LOG)
        assert record is not None
        assert record.next_epoch > max(taken)

    @as_scenario(awaited_by(run_patiently))
    async def test_a_log_that_nobody_made(self, *, memory: MemoryMetadata) -> None:
        with pytest.raises(UnknownLog):
            await EpochStore(memory).take_epoch(LOG)
        with pytest.raises(UnknownLog):
            await EpochStore(memory).set_clean(LOG, 1, 0)

    @as_scenario(awaited_by(run_patiently))
    async def test_the_last_epoch_is_handed_out_and_none_after_it(
        self, *, memory: MemoryMetadata
    ) -> None:
        since = (NodesetSince(1, THREE, 3, 1),)
        await put(memory, EpochRecord(EPOCH_MAX, 0, 0, since))
        epoch, record = await EpochStore(memory).take_epoch(LOG)
        assert epoch == EPOCH_MAX
        assert record.configuration(EPOCH_MAX) == (THREE, Replication(3))
        for _ in range(2):
            with pytest.raises(Rejected, match="used up"):
                await EpochStore(memory).take_epoch(LOG)
        assert await EpochStore(memory).read(LOG) == record

    @as_scenario(awaited_by(run_patiently))
    async def test_a_token_leaves_the_last_epoch_to_a_sequencer(
        self, *, memory: MemoryMetadata
    ) -> None:
        """One that took it would leave a log that nobody ever rules again."""
        epochs, since = EpochStore(memory), (NodesetSince(1, THREE, 3, 1),)
        await put(memory, EpochRecord(EPOCH_MAX - 1, 0, 0, since))
        await epochs.raise_token(LOG, 1, "first")
        with pytest.raises(Rejected, match="used up"):
            await epochs.raise_token(LOG, 2, "second")
        epoch, record = await epochs.take_epoch(LOG)
        assert (epoch, record.token) == (EPOCH_MAX, 1)

    @pytest.mark.parametrize("by", [4, 9])
    @as_scenario(awaited_by(run_patiently))
    async def test_one_that_recovered_others_is_not_taken_again(
        self, *, memory: MemoryMetadata, by: int
    ) -> None:
        """An older copy, in which a sequencer of before noted its recovery."""
        epochs, since = EpochStore(memory), (NodesetSince(1, THREE, 3, 1),)
        await put(memory, EpochRecord(4, 1, 0, since))
        await epochs.set_clean(LOG, 3, make_lsn(3, 1), by=(by, 1))
        assert [(await epochs.take_epoch(LOG))[0] for _ in range(2)] == [by + 1, by + 2]


class TestConfiguration:
    @as_scenario("play")
    async def test_a_change_holds_from_its_epoch_on(self, store) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        await epochs.take_epoch(LOG)
        await epochs.take_epoch(LOG, nodes=FOUR)
        await epochs.take_epoch(LOG)
        _, record = await epochs.take_epoch(LOG, replication=Replication(2, 2))
        three, four = (THREE, Replication(3)), (FOUR, Replication(3))
        used = [record.configuration(epoch) for epoch in range(1, record.next_epoch)]
        assert used == [three, four, four, (FOUR, Replication(2, 2))]
        assert [entry.since for entry in record.history] == [1, 2, 4]

    @as_scenario(awaited_by(run_patiently))
    async def test_an_epoch_that_was_not_handed_out_has_none(
        self, *, memory: MemoryMetadata
    ) -> None:
        epochs = EpochStore(memory)
        record = await epochs.create(LOG, THREE, Replication(3))
        with pytest.raises(BadSetting):
            record.configuration(1)
        _, record = await epochs.take_epoch(LOG)
        assert record.configuration(1) == (THREE, Replication(3))
        for epoch in (-1, 0, 2):
            with pytest.raises(BadSetting):
                record.configuration(epoch)

    @as_scenario(awaited_by(run_patiently))
    async def test_what_was_never_used_leaves_no_trace(self, *, memory: MemoryMetadata) -> None:
        """The first taker may change what the maker wrote: epoch 1 had no other nodeset."""
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        _, record = await epochs.take_epoch(LOG, nodes=FOUR)
        assert record.history == (NodesetSince(1, FOUR, 3, 1),)

    @as_scenario(awaited_by(run_patiently))
    async def test_the_same_nodes_again_are_no_change(self, *, memory: MemoryMetadata) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        await epochs.take_epoch(LOG)
        _, record = await epochs.take_epoch(LOG, nodes=THREE[::-1], replication=Replication(3))
        assert len(record.history) == 1

    @as_scenario(awaited_by(run_patiently))
    async def test_a_bad_change_takes_no_epoch(self, *, memory: MemoryMetadata) -> None:
        epochs = EpochStore(memory)
        record = await epochs.create(LOG, THREE, Replication(3))
        with pytest.raises(BadSetting):
            await epochs.take_epoch(LOG, nodes=(NodeId(1),))
        with pytest.raises(BadSetting):
            await epochs.take_epoch(LOG, replication=Replication(4))
        assert await epochs.read(LOG) == record

    @as_scenario("play")
    async def test_where_nodes_stand_is_kept_for_each_epoch(self, store: MetadataStore) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE[::-1], Replication(3), ("c", "b", "a"))
        await epochs.take_epoch(LOG)
        moved = Configuration(THREE, Replication(3), ("a", "b", "b"))

        async def configure() -> Wanted:
            return lambda record: moved

        _, record = await epochs.take_epoch(LOG, configure=configure)
        _, again = await epochs.take_epoch(LOG, configure=configure)
        assert again.history == record.history
        assert [each.locations for each in record.history] == [("a", "b", "c"), ("a", "b", "b")]
        here = {n: Member(n, "h:1", "elsewhere", weight=0.5) for n in THREE}
        for epoch, places in ((1, ("a", "b", "c")), (2, ("a", "b", "b"))):
            nodeset = record.entry(epoch).nodeset(here)
            assert nodeset.locations == places
            assert [each.weight for each in nodeset.members] == [0.5] * 3
        nowhere = record.entry(1).nodeset({})
        assert [each.address for each in nowhere.members] == [""] * 3

    @as_scenario(awaited_by(run_patiently))
    async def test_a_history_of_long_locations_is_full_before_the_store_is(
        self, *, memory: MemoryMetadata
    ) -> None:
        nodes = tuple(NodeId(NODE_MAX - n) for n in range(NODESET_NODES_MAX))[::-1]
        epochs = EpochStore(memory)
        places = [f"{n:0{LOCATION_CHARS_MAX}}" for n in range(len(nodes))]
        await epochs.create(LOG, nodes, Replication(3), places)
        turns = iter(range(HISTORY_MAX))

        async def configure() -> Wanted:
            moved = Configuration(nodes, Replication(3), (*places[1:], str(next(turns))))
            return lambda record: moved

        record = await epochs.read(LOG)
        while record is not None and record.has_room:
            _, record = await epochs.take_epoch(LOG, configure=configure)
        assert len(msgspec.json.encode(record)) < VALUE_BYTES_MAX
        with pytest.raises(Rejected, match="nodesets"):
            await epochs.take_epoch(LOG, configure=configure)
        await epochs.take_epoch(LOG)

    @as_scenario(awaited_by(run_patiently))
    async def test_a_record_at_every_limit_fits_the_store_and_changes_no_more(
        self, *, memory: MemoryMetadata
    ) -> None:
        nodes = tuple(NodeId(NODE_MAX - n) for n in range(NODESET_NODES_MAX))
        first = EPOCH_MAX - 1 - HISTORY_MAX
        history = tuple(
            NodesetSince(first + n, nodes[::-1], COPIES_MAX, COPIES_MAX) for n in range(HISTORY_MAX)
        )
        tail = int(make_lsn(first, 1))
        record = EpochRecord(EPOCH_MAX - 1, first, tail, history, owner=NODE_MAX)
        assert len(msgspec.json.encode(record)) < VALUE_BYTES_MAX
        await put(memory, record)
        epochs = EpochStore(memory)
        with pytest.raises(Rejected, match="nodesets"):
            await epochs.take_epoch(LOG, nodes=THREE, replication=Replication(3))
        epoch, _ = await epochs.take_epoch(LOG)
        assert epoch == EPOCH_MAX - 1


class TestClean:
    @as_scenario("play")
    async def test_it_rises_and_never_falls(self, store) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        for _ in range(4):
            await epochs.take_epoch(LOG)
        second = await epochs.set_clean(LOG, 2, make_lsn(2, 9))
        assert (second.clean_epoch, second.clean_tail) == (2, make_lsn(2, 9))
        for epoch, tail in ((1, make_lsn(1, 5)), (2, make_lsn(2, 8)), (2, make_lsn(2, 10))):
            assert await epochs.set_clean(LOG, epoch, tail) == second
        third = await epochs.set_clean(LOG, 3, make_lsn(3, 0))
        assert (third.clean_epoch, third.clean_tail) == (3, make_lsn(3, 0))
        assert await epochs.read(LOG) == third

    @as_scenario(awaited_by(run_patiently))
    async def test_the_time_of_the_last_record_rises_and_never_falls(
        self, *, memory: MemoryMetadata
    ) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        for _ in range(4):
            await epochs.take_epoch(LOG)
        for epoch, time_us, known in ((1, 70, 70), (2, 50, 70), (3, 90, 90), (3, 99, 90)):
            record = await epochs.set_clean(LOG, epoch, make_lsn(1, 4), time_us)
            assert record.clean_time_us == known

    @as_scenario(awaited_by(run_patiently))
    async def test_a_run_of_empty_epochs_may_keep_the_old_tail(
        self, *, memory: MemoryMetadata
    ) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        for _ in range(3):
            await epochs.take_epoch(LOG)
        await epochs.set_clean(LOG, 1, make_lsn(1, 4))
        record = await epochs.set_clean(LOG, 2, make_lsn(1, 4))
        assert (record.clean_epoch, record.clean_tail) == (2, make_lsn(1, 4))

    @pytest.mark.parametrize(
        ("epoch", "tail"),
        [
            (3, make_lsn(2, 1)),  # epoch 3 was not handed out
            (2, make_lsn(3, 1)),  # ends in an epoch above it
            (2, make_lsn(1, 3)),  # ends before epoch 1 did
            (2, 0),
        ],
    )
    @as_scenario(awaited_by(run_patiently))
    async def test_what_cannot_be(self, *, memory: MemoryMetadata, epoch: int, tail) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        await epochs.take_epoch(LOG)
        await epochs.take_epoch(LOG)
        before = await epochs.set_clean(LOG, 1, make_lsn(1, 4))
        with pytest.raises(BadSetting):
            await epochs.set_clean(LOG, epoch, tail)
        assert await epochs.read(LOG) == before

    @settings(max_examples=40)
    @given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**32))
    def test_racing_recoveries_leave_the_highest(self, cleaned, seed):
        async def main() -> None:
            store = MemoryMetadata(random.Random(seed))
            epochs = EpochStore(store)
            await epochs.create(LOG, THREE, Replication(3))
            for _ in range(10):
                await epochs.take_epoch(LOG)
            store.answer_loss = 0.2
            told = await asyncio.gather(
                *(epochs.set_clean(LOG, epoch, make_lsn(epoch, epoch)) for epoch in cleaned),
                return_exceptions=True,
            )
            store.answer_loss = 0.0
            record = await epochs.read(LOG)
            assert record is not None
            for epoch, answer in zip(cleaned, told, strict=True):
                if isinstance(answer, BaseException):
                    assert isinstance(answer, Unreachable)
                else:
                    assert epoch <= answer.clean_epoch <= record.clean_epoch
            if record.clean_epoch:
                assert record.clean_tail == make_lsn(record.clean_epoch, record.clean_epoch)

        run_patiently(main())

    @as_scenario(awaited_by(run_patiently))
    async def test_taking_and_cleaning_at_once_loses_neither(
        self, *, memory: MemoryMetadata
    ) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        await epochs.take_epoch(LOG)
        takes = [epochs.take_epoch(LOG) for _ in range(4)]
        await asyncio.gather(*takes, epochs.set_clean(LOG, 1, make_lsn(1, 2)))
        record = await epochs.read(LOG)
        assert record is not None
        assert (record.next_epoch, record.clean_epoch) == (6, 1)


class TestForeignRecords:
    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"{}",
            b"not json",
            b'{"next_epoch":0,"clean_epoch":0,"clean_tail":0,"history":[]}',
            b'{"next_epoch":2,"clean_epoch":0,"clean_tail":0,"history":'
            b'[{"since":1,"nodes":[1],"copies":1,"racks":1}],"from_the_future":1}',
        ],
    )
    @as_scenario(awaited_by(run_patiently))
    async def test_what_cannot_be_read_is_never_written_over(
        self, *, memory: MemoryMetadata, value: bytes
    ) -> None:
        await memory.compare_and_set(f"epochs/{LOG}", value, 0)
        epochs = EpochStore(memory)
        with pytest.raises(Malformed):
            await epochs.read(LOG)
        with pytest.raises(Malformed):
            await epochs.create(LOG, THREE, Replication(3))
        with pytest.raises(Malformed):
            await epochs.take_epoch(LOG)
        with pytest.raises(Malformed):
            await epochs.set_clean(LOG, 1, 0)
        found = await memory.get(f"epochs/{LOG}")
        assert found is not None
        assert found.value == value


class Unsure(MemoryMetadata):
    """Writes what it is given, and some times does not say so."""

    unsure = 0

    async def compare_and_set(self, key: str, value: bytes, version: int) -> bool:
        done = await super().compare_and_set(key, value, version)
        if self.unsure:
            self.unsure -= 1
            raise OutcomeUnknown("it went away")
        return done


@pytest.mark.parametrize("unsure", [1, UNKNOWN_MAX])
@as_scenario(awaited_by(run_patiently))
async def test_one_that_took_an_epoch_unawares_asks_the_node_before_it_to_finish(
    *, unsure: int
) -> None:
    """It was told that it had been the node before itself, and nobody was asked."""
    store = Unsure(random.Random(1))
    epochs = EpochStore(store)
    await epochs.create(LOG, THREE, Replication(3))
    await epochs.take_epoch(LOG, owner=1)
    store.unsure = unsure
    if unsure == UNKNOWN_MAX:
        with pytest.raises(Unreachable):
            await epochs.take_epoch(LOG, owner=2)
    epoch, record = await epochs.take_epoch(LOG, owner=2)
    assert (epoch, record.owner, record.owner_before) == (2 + unsure, 2, 1)
    _, record = await epochs.take_epoch(LOG, owner=2)
    assert record.owner_before == 2


@as_scenario(awaited_by(run_patiently))
async def test_unsure_writes_of_logs_that_went_elsewhere_take_no_place_for_good() -> None:
    """A node that lost its metadata store with many logs remembered nothing of later ones."""
    store = Unsure(random.Random(1))
    epochs = EpochStore(store)
    with pytest.MonkeyPatch.context() as patched:
        swap_value(patched, lambda: epoch_store.UNSURE_MAX, 2)
        for log in range(LOG, LOG + 3):
            await epochs.create(log, THREE, Replication(3))
            await epochs.take_epoch(log, owner=1)
            store.unsure = UNKNOWN_MAX
            with pytest.raises(Unreachable):
                await epochs.take_epoch(log, owner=2)
        found = [(await epochs.take_epoch(log, owner=2))[1] for log in range(LOG, LOG + 3)]
    assert [each.owner_before for each in found] == [2, 1, 1]


class TestWhereEpochsBegan:
    @as_scenario("play")
    async def test_each_is_kept_until_all_below_it_is_clean_and_bounds_what_is_below(
        self, store
    ) -> None:
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        for _ in range(6):
            await epochs.take_epoch(LOG)
        assert (await epochs.note_begun(LOG, 1, 50)).begun == ()
        await epochs.note_begun(LOG, 3, 900)
        await epochs.note_begun(LOG, 4, 600)
        await epochs.note_begun(LOG, 5, 700)
        record = await epochs.note_begun(LOG, 6, 800)
        expected = Begun(4, 600), Begun(5, 700), Begun(6, 800)
        assert record.begun == expected, "epoch 3 began later than 4"
        assert [record.latest_us(e) for e in range(1, 7)] == [600] * 3 + [700, 800, None]
        assert (await epochs.note_begun(LOG, 6, 800)) == record
        record = await epochs.set_clean(LOG, 3, 0)
        assert record.begun == expected[1:]
        with pytest.raises(BadSetting):
            await epochs.note_begun(LOG, 7, 1)

    @as_scenario("play")
    async def test_none_begins_below_one_that_has_sealed(self, store) -> None:
        """The recovery of the higher one went by what was recorded then, and may have told nodes
        how an epoch ended; whoever recovers next must come to the same end."""
        epochs = EpochStore(store)
        await epochs.create(LOG, THREE, Replication(3))
        for _ in range(4):
            await epochs.take_epoch(LOG)
        record = await epochs.note_begun(LOG, 3, None)
        assert (record.sealed, record.begun) == (3, ())
        with pytest.raises(Fenced) as refused:
            await epochs.note_begun(LOG, 2, 700)
        assert refused.value.epoch == 3
        assert await epochs.read(LOG) == record
        assert (await epochs.note_begun(LOG, 4, 700)).begun == (Begun(4, 700),)

    @as_scenario(awaited_by(run_patiently))
    async def test_past_the_bound_the_newest_but_one_goes(self, *, memory: MemoryMetadata) -> None:
        epochs = EpochStore(memory)
        await epochs.create(LOG, THREE, Replication(3))
        for epoch in range(1, BEGUN_MAX + 10):
            await epochs.take_epoch(LOG)
            record = await epochs.note_begun(LOG, epoch, epoch)
        assert len(record.begun) == BEGUN_MAX
        assert [each.epoch for each in record.begun[:3]] == [2, 3, 4]
        assert record.begun[-1].epoch == BEGUN_MAX + 9
        times = [each.time_us for each in record.begun]
        assert times == sorted(times)
