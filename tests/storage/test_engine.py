"""The storage engine: durable before visible, seals in order, refusals whole, replay exact."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from made_blocks import LOG, OWNER, PATH, Made, at, flush, open_engine, packed, payload, run, turns
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.block import BlockKind, Produced, ProducedBlock
from cordwood.errors import Corrupt, Fenced, Malformed, Overloaded, Rejected, Retryable
from cordwood.layout.message import SealReply
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.waves import Refusal, StoreRefusal
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.engine import SEAL_TIMEOUT_S, StorageEngine
from cordwood.storage.log_cache import EpochEnd
from cordwood.storage.space.free_space import LATER_SHARE, RECOVERY_SHARE, RETRY_SHARE
from cordwood.storage.wal.delta_wal import Wal, WalLimits

BIG = bytes(20_000)

CRAMPED = StorageSettings(cache_bytes=64 << 10, flush_bytes=4096, recent_bytes=0)
"""A cache that is full long before the WAL."""


def sealed_by(epoch: int, log: int = LOG, wave: int = 1) -> StoreRefusal:
    return StoreRefusal(wave, log, Refusal.SEALED, epoch)


def refused(reason: Refusal, log: int = LOG, wave: int = 1) -> StoreRefusal:
    return StoreRefusal(wave, log, reason)


class TestStore:
    @as_scenario(run)
    async def test_it_is_visible_when_it_is_durable_and_not_before(self) -> None:
        made = await Made.new(by_hand=True)
        settled = made.store(packed(at(1), lng=at(0)), packed(at(2), lng=at(0)))
        await turns()
        assert (settled, made.held(), made.told) == ([], [], [])
        assert len(made.disk.file.pending) == 1
        made.disk.file.end_all()
        await turns()
        assert settled == [()]
        assert made.held() == [packed(at(1), lng=at(0)), packed(at(2), lng=at(0))]
        assert made.engine.stored_blocks == 2
        assert made.told == [LOG], "once for both: the release moved to (1, 0)"

    @as_scenario(run)
    async def test_a_later_write_that_ends_first_makes_nothing_visible(self) -> None:
        made = await Made.new(by_hand=True)
        first = made.store(packed(at(1), BIG))
        await turns()
        second = made.store(packed(at(2), BIG), wave=2)
        await turns()
        early, late = made.disk.file.pending
        made.disk.file.end(late)
        await turns()
        assert (first, second, made.held()) == ([], [], [])
        made.disk.file.end(early)
        await turns()
        assert (first, second, len(made.held())) == ([()], [()], 2)

    @as_scenario(run)
    async def test_blocks_of_several_logs_in_one_frame_are_stored_together(self) -> None:
        made = await Made.new()
        settled = made.store(packed(at(1), log=7), packed(at(1), log=8), packed(at(2), log=7))
        await turns()
        assert settled == [()]
        assert [len(made.held(log)) for log in (7, 8)] == [2, 1]

    @as_scenario(run)
    async def test_a_frame_that_cannot_be_read_changes_nothing(self) -> None:
        made = await Made.new()
        used = made.engine.wal.used_bytes
        bad = bytearray(payload(packed(at(1)), packed(at(2))))
        bad[-120] ^= 1  # the second block's header
        with pytest.raises(Corrupt):
            made.engine.store(1, memoryview(bytes(bad)), lambda _: pytest.fail("settled"))
        await turns()
        assert (made.held(), made.engine.wal.used_bytes) == ([], used)

    @as_scenario(run)
    async def test_a_damaged_body_is_refused_and_the_blocks_beside_it_are_kept(self) -> None:
        made = await Made.new()
        damaged = packed(at(1), b"what was sent")[:-1] + b"!"
        settled = made.store(damaged, packed(at(1), log=9), wave=4)
        await turns()
        assert settled == [(refused(Refusal.CORRUPT, wave=4),)]
        assert (made.held(), made.held(9)) == ([], [packed(at(1), log=9)])
        await made.engine.wal.close()
        await made.open()
        assert (made.held(), made.held(9)) == ([], [packed(at(1), log=9)])


class TestSeal:
    @as_scenario(run)
    async def test_stores_ahead_of_it_are_visible_before_it_is_answered(self) -> None:
        made = await Made.new(by_hand=True)
        ahead = made.store(packed(at(3), BIG, lng=at(2), time_us=77))
        await turns()
        sealing = asyncio.create_task(made.engine.seal(LOG, 2, 0))
        await turns()
        store, mark = made.disk.file.pending
        made.disk.file.end(mark)
        await turns()
        assert not sealing.done()
        made.disk.file.end(store)
        await turns()
        assert ahead == [()]
        assert len(made.held()) == 1
        assert await sealing == SealReply({1: at(2)}, 77, begun=1)

    @as_scenario(run)
    async def test_stores_behind_it_are_refused_at_once_although_it_is_not_durable_yet(
        self,
    ) -> None:
        made = await Made.new(by_hand=True)
        sealing = asyncio.create_task(made.engine.seal(LOG, 2, 0))
        await turns()
        behind = made.store(packed(at(3)))
        assert behind == [(sealed_by(2),)], "settled in the same turn"
        other = made.store(packed(at(3), log=6))
        newer = made.store(packed(at(1, epoch=2)))
        made.disk.file.end_all()
        await turns()
        made.disk.file.end_all()
        await turns()
        assert sealing.done()
        assert (other, newer) == ([()], [()])
        assert made.held() == [packed(at(1, epoch=2))]

    @as_scenario(run)
    async def test_a_frame_of_which_a_part_is_sealed_stores_the_rest_and_nothing_else(self) -> None:
        made = await Made.new()
        await made.engine.seal(7, 4, 0)
        blocks = [packed(at(1), log=7), packed(at(1), log=8), packed(at(2), log=7)]
        settled = made.store(*blocks, wave=3)
        await turns()
        assert settled == [(sealed_by(4, log=7, wave=3),)]
        assert (made.held(7), made.held(8)) == ([], [blocks[1]])
        await made.crash(random.Random(1))
        assert (made.held(7), made.held(8)) == ([], [blocks[1]])

    @pytest.mark.parametrize("seal", [1, 2, 4, 5])
    @as_scenario(run)
    async def test_recovery_stores_under_exactly_its_own_seal(self, *, seal: int) -> None:
        made = await Made.new()
        await made.engine.seal(LOG, 3, 0)
        settled = made.store(packed(at(1), seal=seal), seal=seal)
        assert settled == [(sealed_by(3),)]
        settled = made.store(packed(at(1), seal=3), seal=3)
        await turns()
        assert settled == [()]
        assert made.held() == [packed(at(1), seal=3)]

    @as_scenario(run)
    async def test_a_lower_seal_is_fenced_and_the_same_one_is_answered_again(self) -> None:
        made = await Made.new()
        await made.engine.seal(LOG, 5, 0)
        used = made.engine.wal.used_bytes
        with pytest.raises(Fenced, match="sealed by epoch 5, which is above 4") as fenced:
            await made.engine.seal(LOG, 4, 0)
        assert fenced.value.epoch == 5
        assert await made.engine.seal(LOG, 5, 3) == SealReply({}, 0)
        assert made.engine.wal.used_bytes == used, "nothing is written for either"
        assert made.engine.sealed(LOG) == 5
        assert made.engine.sealed(LOG + 1) == 0

    @as_scenario(run)
    async def test_it_tells_the_lng_of_each_epoch_between_clean_and_its_own(self) -> None:
        made = await Made.new()
        made.store(packed(at(9, epoch=2), lng=at(8, epoch=2)))
        made.store(packed(at(1, epoch=4), lng=at(0, epoch=4)))
        await turns()
        made.engine.release(LOG, at(6, epoch=4))
        reply = await made.engine.seal(LOG, 6, 1)
        assert reply.lngs == {2: at(8, epoch=2), 4: at(6, epoch=4)}

    @as_scenario(run)
    async def test_it_tells_of_records_of_its_own_epoch_after_a_flush_and_a_start_too(self) -> None:
        made = await Made.new()
        assert (await made.engine.seal(LOG, 2, 0)).begun == 0, "a seal begins no epoch"
        assert (await made.engine.seal(LOG, 2, 0)).begun == 0
        made.store(packed(at(1, epoch=2)))
        await turns()
        assert (await made.engine.seal(LOG, 2, 0)).begun == 2
        await made.crash(random.Random(1))
        assert (await made.engine.seal(LOG, 2, 0)).begun == 2
        await flush(made)
        assert made.held() == []
        await made.crash(random.Random(1))
        assert (await made.engine.seal(LOG, 2, 0)).begun == 2
        with pytest.raises(Fenced, match="epoch 2 began before") as fenced:
            made.engine.check_unrecorded(LOG, 1)
        assert fenced.value.epoch == 2
        made.engine.check_unrecorded(LOG, 3)
        made.engine.check_unrecorded(LOG + 1, 1)

    @as_scenario(run)
    async def test_a_disk_that_stalls_ends_the_seal_in_time_and_keeps_it(self) -> None:
        made = await Made.new(by_hand=True)
        now = asyncio.get_running_loop().time
        asked_at = now()
        with pytest.raises(Overloaded, match="was not durable after 10 s; retry"):
            await made.engine.seal(LOG, 2, 0)
        assert now() - asked_at == pytest.approx(SEAL_TIMEOUT_S)
        assert made.store(packed(at(1))) == [(sealed_by(2),)]
        made.disk.file.end_all()
        await turns()
        assert made.engine.failed == ""

    @as_scenario(run)
    async def test_a_recovery_that_is_tried_for_ever_does_not_fill_the_ring(self) -> None:
        """Each try wrote its seal and its clean again, 4 KiB each on an idle node."""
        made = await Made.new(ring=64 << 10)
        for _ in range(3):
            for _ in range(100):
                await made.engine.seal(LOG, 5, 3)
                await made.engine.clean(LOG, 4, EpochEnd(5, at(0, epoch=4)))
            assert made.engine.wal.used_bytes <= 3 * 4096
            await made.crash(random.Random(1))
        await made.engine.seal(LOG, 6, 3)
        await made.engine.clean(LOG, 4, EpochEnd(6, at(0, epoch=4)))
        await made.crash(random.Random(1))
        assert made.engine.sealed(LOG) == 6
        assert made.engine.cache.log(LOG).ends == {4: EpochEnd(6, at(0, epoch=4))}

    @as_scenario(run)
    async def test_a_seal_that_is_not_durable_yet_is_not_taken_for_one_that_is(self) -> None:
        made = await Made.new(by_hand=True)
        first = asyncio.create_task(made.engine.seal(LOG, 2, 0))
        await turns()
        second = asyncio.create_task(made.engine.seal(LOG, 2, 0))
        await turns()
        assert not first.done()
        assert not second.done()
        while made.disk.file.pending:
            made.disk.file.end_all()
            await turns()
        assert await first == await second == SealReply({}, 0)


class TestClean:
    @as_scenario(run)
    async def test_it_is_kept_and_never_goes_back(self) -> None:
        made = await Made.new()
        await made.engine.seal(LOG, 5, 0)
        await made.engine.clean(LOG, 3, EpochEnd(5, at(0, epoch=3)))
        await made.engine.clean(LOG, 2, EpochEnd(5, at(0, epoch=2)))
        assert made.engine.cache.log(LOG).clean == 3
        await made.crash(random.Random(1))
        assert made.engine.cache.log(LOG).clean == 3

    @as_scenario(run)
    async def test_a_recovery_that_was_overtaken_cleans_nothing(self) -> None:
        made = await Made.new()
        await made.engine.seal(LOG, 6, 0)
        with pytest.raises(Fenced) as fenced:
            await made.engine.clean(LOG, 3, EpochEnd(5, at(0, epoch=3)))
        assert fenced.value.epoch == 6
        assert made.engine.cache.log(LOG).clean == 0

    @pytest.mark.parametrize("crashes", [False, True])
    @as_scenario(run)
    async def test_a_clean_of_a_recovery_that_is_over_is_refused(self, *, crashes: bool) -> None:
        """Epoch 2 slept before it told the nodes how epoch 1 ended. Epoch 3 recovered that epoch
        otherwise and released, and this node took no part in that."""
        made = await Made.new()
        made.store(*(packed(at(esn)) for esn in (1, 2, 3)))
        await turns()
        await made.engine.seal(LOG, 2, 0)
        late = EpochEnd(2, at(1))
        made.engine.release(LOG, at(0, epoch=3))
        if crashes:
            await made.engine.purge(LOG, 2, 0, 0)
            await made.crash(random.Random(1))
            made.engine.release(LOG, at(0, epoch=3))
        with pytest.raises(Fenced, match="the recovery by epoch 2 is over") as fenced:
            await made.engine.clean(LOG, 1, late)
        assert fenced.value.epoch == 3
        assert made.engine.unclean_epochs(LOG)[0] == [1], "it asks a peer how the epoch ended"
        assert len(made.held()) == 3
        await made.engine.purge(LOG, 1, 3, at(3))
        assert len(made.held()) == 3

    def test_a_taken_clean_of_a_recovery_that_is_over_is_caught(self) -> None:
        with (
            planted(find_bug("outdated-recovery-cleans")),
            pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
        ):
            self.test_a_clean_of_a_recovery_that_is_over_is_refused(crashes=False)

    @as_scenario(run)
    async def test_a_clean_that_was_carried_out_is_answered_again_after_the_release(self) -> None:
        made = await Made.new()
        end = EpochEnd(3, at(1), attempt=2)
        await made.engine.seal(LOG, 3, 0)
        await made.engine.clean(LOG, 1, end)
        made.engine.release(LOG, at(0, epoch=3))
        used = made.engine.wal.used_bytes
        await made.engine.clean(LOG, 1, end)
        assert made.engine.wal.used_bytes == used
        with pytest.raises(Fenced) as fenced:  # an earlier attempt, with another outcome
            await made.engine.clean(LOG, 1, EpochEnd(3, at(2), attempt=1))
        assert fenced.value.epoch == 3

    @as_scenario(run)
    async def test_what_producers_wrote_is_told_to_the_recovery_after_one_that_came_no_further(
        self,
    ) -> None:
        """Swarm seed 7169. A recovery told this node how epoch 1 ended, and died. The next one
        began with epoch 1 again and asked this node alone what producers had written there."""
        made = await Made.new()
        lower = Produced(7, 0, (ProducedBlock(0, 4, 9),))
        written = Produced(7, 0, (*lower.places, ProducedBlock(4, 2, at(1, epoch=1))))
        await made.engine.seal(LOG, 3, 0)
        await made.engine.clean(LOG, 1, EpochEnd(3, at(2), pack_produced([written])))
        told = (await made.engine.seal(LOG, 4, 0)).produced
        assert read_produced(told[1]) == (Produced(7, 0, written.places[1:]),)
        await made.crash(random.Random(1))
        assert (await made.engine.seal(LOG, 5, 0)).produced == told


class TestPurge:
    @as_scenario(run)
    async def test_a_node_that_missed_a_recovery_drops_what_did_not_count_and_says_how_it_ended(
        self,
    ) -> None:
        made = await Made.new()
        for esn in (1, 2, 3):
            made.store(packed(at(esn), lng=at(esn - 1)), wave=esn)
        await turns()
        made.engine.release(LOG, at(0, epoch=4))
        assert made.engine.unclean_epochs(LOG) == ([1], 3)
        made.told.clear()
        await made.engine.purge(LOG, 1, 3, at(2))
        await made.engine.purge(LOG, 3, 0, 0)
        assert made.held() == [packed(at(esn), lng=at(esn - 1)) for esn in (1, 2)]
        assert made.engine.unclean_epochs(LOG) == ([], 3)
        assert made.told == [LOG, LOG], "readers may go on"
        before = state(made.engine)
        await made.crash(random.Random(1))
        assert made.held() == [packed(at(esn), lng=at(esn - 1)) for esn in (1, 2)]
        assert made.engine.cache.log(LOG).clean == 3
        assert made.engine.cache.log(LOG).ends == {1: EpochEnd(3, at(2))}
        assert before != {}

    @as_scenario(run)
    async def test_stores_into_an_epoch_that_is_over_are_refused_although_it_was_never_sealed(
        self,
    ) -> None:
        made = await Made.new()
        await made.engine.purge(LOG, 3, 0, 0)
        assert made.store(packed(at(9, epoch=3)), wave=7) == [(sealed_by(4, wave=7),)]
        assert made.store(packed(at(9, epoch=1))) == [(sealed_by(4),)]
        assert made.engine.sealed(LOG) == 0
        later = made.store(packed(at(1, epoch=4)))
        await turns()
        assert later == [()]

    @pytest.mark.parametrize(
        ("seal", "crashes"),
        [(2, False), (3, False), (2, True)],
        ids=["outdated", "earlier attempt", "outdated, after a crash"],
    )
    @as_scenario(run)
    async def test_what_a_recovery_stores_late_is_refused_if_the_recovery_is_over(
        self, *, seal: int, crashes: bool
    ) -> None:
        """The recovery under `seal` slept between its digest and its mend. Epoch 3 recovered the
        same epoch otherwise, without this node, and released. A bridge taken here would hide an
        acknowledged record from readers that hear this node and one more."""
        made = await Made.new()
        await made.engine.seal(LOG, seal, 0)
        made.engine.release(LOG, at(0, epoch=3))
        assert made.engine.unclean_epochs(LOG) == ([], 2), "it asks no peer how they ended"
        await made.engine.purge(LOG, 2, 0, 0)
        if crashes:
            await made.crash(random.Random(1))
            assert made.engine.cache.log(LOG).released == 0, "the WAL has no release"
        bridge = packed(at(4), kind=BlockKind.BRIDGE, seal=seal)
        assert made.store(bridge, seal=seal) == [(sealed_by(3),)]
        await turns()
        assert made.held() == []

    @as_scenario(run)
    async def test_a_recovery_stores_again_in_an_epoch_that_its_first_attempt_ended(self) -> None:
        made = await Made.new()
        made.engine.release(LOG, at(0, epoch=2))
        await made.engine.seal(LOG, 3, 0)
        await made.engine.clean(LOG, 2, EpochEnd(3, at(0, epoch=2)))
        assert made.engine.cache.log(LOG).clean == 2
        bridge = packed(at(1, epoch=2), kind=BlockKind.BRIDGE, seal=3, wave=2)
        settled = made.store(bridge, seal=3, wave=2)
        await turns()
        assert (settled, made.held()) == ([()], [bridge])

    def test_taken_stores_of_an_outdated_recovery_are_caught(self) -> None:
        with planted(find_bug("outdated-recovery-stores")), pytest.raises(AssertionError):
            self.test_what_a_recovery_stores_late_is_refused_if_the_recovery_is_over(
                seal=2, crashes=False
            )

    @as_scenario(run)
    async def test_a_store_ahead_of_the_end_in_the_wal_is_judged_by_it_and_replay_agrees(
        self,
    ) -> None:
        made = await Made.new(by_hand=True)
        made.store(packed(at(5), BIG))
        await turns()
        cleaning = asyncio.create_task(made.engine.clean(LOG, 1, EpochEnd(3, at(2))))
        await turns()
        behind = made.store(packed(at(6), seal=3, kind=BlockKind.BRIDGE), seal=3)
        while made.disk.file.pending:
            made.disk.file.end_all()
            await turns()
        await cleaning
        assert made.held() == []
        assert behind == [(sealed_by(0),)], "nobody sealed with 3 here"
        await made.crash(random.Random(1))
        assert made.held() == []


async def fill(made: Made, *, wave: int, seal: int = 0, size: int = 20_000) -> tuple[int, int]:
    """Store until refused; blocks stored, and the ring's bytes used then."""
    count = made.engine.stored_blocks
    while True:
        settled = made.store(
            packed(at(1000 * wave + count, epoch=1 if not seal else 2), bytes(size), wave=wave),
            seal=seal,
        )
        await turns()
        if settled != [()]:
            assert settled == [(refused(Refusal.FULL),)]
            return made.engine.stored_blocks, made.engine.wal.used_bytes
        count += 1


class TestFull:
    @as_scenario(run)
    async def test_first_waves_stop_early_second_waves_and_recovery_go_on_and_a_seal_still_fits(
        self,
    ) -> None:
        made = await Made.new()
        capacity = made.engine.wal.capacity_bytes
        first, used = await fill(made, wave=1)
        assert used == pytest.approx(capacity * (1 - RETRY_SHARE), abs=50_000)
        second, used = await fill(made, wave=2)
        assert second > first
        assert used > capacity * 0.9
        await made.engine.seal(LOG, 2, 0)
        third, _ = await fill(made, wave=3, seal=2, size=1000)
        assert third > second
        before = made.held()
        made.engine.release(LOG, at(1))
        await made.crash(random.Random(1))
        assert made.held() == before
        assert made.engine.sealed(LOG) == 2

    @as_scenario(run)
    async def test_no_wave_and_no_recovery_grows_the_cache_past_its_bound(self) -> None:
        made = await Made.new(storage=CRAMPED)
        engine, size = made.engine, CRAMPED.cache_bytes
        for wave, seal, share in ((1, 0, 0.0), (2, 0, LATER_SHARE), (3, 2, RECOVERY_SHARE)):
            if seal:
                await engine.seal(LOG, seal, 0)
            await fill(made, wave=wave, seal=seal, size=2000)
            assert size * (1 + share) - 2500 < engine.cache.bytes <= size * (1 + share)
        assert engine.cache.bytes <= engine.cache_bytes_max
        assert engine.wal.used_bytes < engine.wal.capacity_bytes / 2, "it is not the WAL"

    def test_without_the_bound_it_grows(self) -> None:
        async def scenario() -> None:
            made = await Made.new(storage=CRAMPED)
            await fill(made, wave=2, size=2000)
            assert made.engine.cache.bytes > 4 * CRAMPED.cache_bytes

        with planted(find_bug("cache-without-bound")):
            run(scenario)

    @as_scenario(run)
    async def test_what_is_on_its_way_counts(self) -> None:
        made = await Made.new(by_hand=True, storage=CRAMPED)
        frames = [made.store(packed(at(n), bytes(9000), wave=2), wave=n) for n in range(1, 21)]
        taken = [settled for settled in frames if not settled]
        assert len(taken) < 9
        assert [(refused(Refusal.FULL, wave=20),)] == frames[-1]
        while made.disk.file.pending:
            made.disk.file.end_all()
            await turns()
        assert made.engine.cache.bytes <= CRAMPED.cache_bytes * (1 + LATER_SHARE)

    @as_scenario(run)
    async def test_an_empty_cache_takes_a_frame_that_is_larger_than_all_of_it(self) -> None:
        made = await Made.new(storage=CRAMPED)
        settled = made.store(packed(at(1), bytes(100_000), wave=2), wave=1)
        await turns()
        assert settled == [()]
        assert made.engine.cache.bytes <= made.engine.cache_bytes_max

    @as_scenario(run)
    async def test_a_flush_lets_recovery_go_on(self) -> None:
        made = await Made.new(storage=CRAMPED)
        await made.engine.seal(LOG, 2, 0)
        await fill(made, wave=1, seal=2, size=2000)
        await flush(made)
        settled = made.store(packed(at(1, epoch=2), BIG), seal=2)
        await turns()
        assert settled == [()]

    @as_scenario(run)
    async def test_nothing_is_half_stored(self) -> None:
        """All blocks of a refused frame are refused, in memory and after a restart."""
        made = await Made.new()
        await fill(made, wave=2)
        before, used = made.held(), made.engine.wal.used_bytes
        frame = [packed(at(5000 + n), BIG, wave=2, log=n % 2 + LOG) for n in range(6)]
        settled = made.store(*frame, wave=9)
        assert settled == [(refused(Refusal.FULL, wave=9), refused(Refusal.FULL, LOG + 1, wave=9))]
        assert (made.held(), made.engine.wal.used_bytes) == (before, used)
        await made.crash(random.Random(1))
        assert made.held() == before

    @as_scenario(run)
    async def test_a_seal_that_finds_no_room_is_overloaded(self) -> None:
        made = await Made.new(ring=64 << 10, limits=WalLimits(reserve_bytes=4096))

        async def seal_until_full() -> None:
            for epoch in range(2, 100):
                await made.engine.seal(LOG, epoch, 0)

        with pytest.raises(Overloaded, match="is full"):
            await seal_until_full()
        assert made.engine.failed == ""

    @as_scenario(run)
    async def test_a_frame_that_no_wal_of_this_size_could_take_fails_nobody(self) -> None:
        """It used to poison the node, and so one frame stopped every node of a copyset."""
        made = await Made.new(ring=256 << 10)
        settled = made.store(packed(at(1), bytes(200 << 10)))
        await turns()
        assert settled == [(refused(Refusal.FULL),)]
        assert made.engine.failed == ""
        assert made.store(packed(at(1), b"small")) == []
        await turns()
        assert len(made.held()) == 1


class TestFailed:
    @as_scenario(run)
    async def test_a_failed_wal_refuses_everything_from_then_on(self) -> None:
        made = await Made.new(by_hand=True)
        kept = made.store(packed(at(1)))
        await turns()
        made.disk.file.end_all()
        await turns()
        lost = made.store(packed(at(2)), packed(at(1), log=9), wave=2)
        sealing = asyncio.create_task(made.engine.seal(LOG + 2, 3, 0))
        await turns()
        for write in list(made.disk.file.pending):
            made.disk.file.end(write, OSError(errno.EIO, "the disk is gone"))
        await turns()
        assert kept == [()]
        failed = Refusal.FAILED
        assert lost == [(refused(failed, wave=2), refused(failed, 9, wave=2))]
        with pytest.raises(Retryable, match="WAL failed"):
            await sealing
        assert "the disk is gone" in made.engine.failed
        assert made.store(packed(at(3)), wave=3) == [(refused(failed, wave=3),)]
        with pytest.raises(Retryable, match="the disk is gone"):
            await made.engine.seal(LOG, 3, 0)
        with pytest.raises(Retryable, match="the disk is gone"):
            await made.engine.clean(LOG, 1, EpochEnd(3, at(0)))
        assert made.held() == [packed(at(1))], "what was durable can still be read"


class TestTrim:
    @as_scenario(run)
    async def test_what_ends_at_or_below_it_goes_and_stays_away(self) -> None:
        made = await Made.new()
        blocks = [packed(at(1), count=2), packed(at(3), count=2), packed(at(5))]
        made.store(*blocks)
        await turns()
        await made.engine.trim(LOG, at(3), at(4))
        assert made.held() == blocks[1:], "a block goes when its last LSN is trimmed"
        await made.engine.trim(LOG, at(1), at(4))
        assert made.engine.cache.log(LOG).trim == at(3), "it never falls"
        await made.open()
        held = made.engine.cache.log(LOG)
        assert (held.trim, held.released, held.lngs[1]) == (at(3), at(4), at(4))
        assert made.held() == blocks[1:]

    @as_scenario(run)
    async def test_a_store_below_it_succeeds_and_stores_nothing(self) -> None:
        made = await Made.new()
        await made.engine.trim(LOG, at(2), at(2))
        used = made.engine.wal.used_bytes
        assert made.store(packed(at(1)), packed(at(2))) == [()]
        assert (made.held(), made.engine.wal.used_bytes) == ([], used)
        settled = made.store(packed(at(2)), packed(at(3)), wave=2)
        await turns()
        assert (settled, made.held()) == ([()], [packed(at(3))])
        await made.open()
        assert made.held() == [packed(at(3))]

    @as_scenario(run)
    async def test_what_is_not_released_cannot_be_trimmed(self) -> None:
        made = await Made.new()
        with pytest.raises(Rejected, match="released up to e1n4"):
            await made.engine.trim(LOG, at(5), at(4))
        assert made.engine.cache.log(LOG).trim == 0

    @as_scenario(run)
    async def test_an_epoch_that_is_all_trimmed_has_not_to_be_purged(self) -> None:
        made = await Made.new()
        made.store(packed(at(1)), packed(at(1, epoch=3)))
        await turns()
        made.engine.release(LOG, at(9, epoch=5))
        assert made.engine.unclean_epochs(LOG) == ([1, 3], 4)
        await made.engine.trim(LOG, at(4, epoch=2), at(9, epoch=5))
        assert made.engine.unclean_epochs(LOG) == ([3], 4)


class TestReplay:
    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("graceful", [True, False])
    @as_scenario(run)
    async def test_it_gives_the_state_that_was(self, *, seed: int, graceful: bool) -> None:
        made = await Made.new()
        chance = random.Random(seed)
        for wave in range(60):
            await act(made, chance, wave)
        before = state(made.engine)
        if graceful:
            await made.engine.wal.close()
            await made.open()
        else:
            await made.crash(chance)
        assert state(made.engine) == before
        await act(made, chance, 60)
        after = state(made.engine)
        await made.crash(chance)
        assert state(made.engine) == after

    @pytest.mark.parametrize("seed", range(12))
    @as_scenario(run)
    async def test_after_a_crash_all_that_was_settled_is_there_and_nothing_that_was_not_sent(
        self, *, seed: int
    ) -> None:
        made = await Made.new(by_hand=True)
        chance = random.Random(seed)
        sent, acked = [], []
        for number in range(1, 30):
            block = packed(at(number), chance.randbytes(chance.randrange(1, 9000)))
            sent.append(block)
            acked.append(made.store(block))
            await turns()
            while made.disk.file.pending and chance.random() < 0.6:
                made.disk.file.end(chance.choice(made.disk.file.pending))
                await turns()
        must = [block for block, settled in zip(sent, acked, strict=True) if settled]
        await made.crash(chance)
        assert set(must) <= set(made.held()) <= set(sent)
        assert made.held() == [block for block in sent if block in set(made.held())]

    @as_scenario(run)
    async def test_a_record_of_another_kind_is_refused_by_name(self) -> None:
        for record in (b"", b"\x63what", b"\x02short", b"\x03" + bytes(13)):
            disk = MemoryDisk()
            await Wal.format(disk, PATH, 1 << 20, owner=OWNER)
            wal = await Wal.open(disk, PATH, owner=OWNER)
            assert [item async for item in wal.recover()] == []
            _, durable = wal.append([record])
            await durable
            await wal.close()
            wal = await Wal.open(disk, PATH, owner=OWNER)
            with pytest.raises(Malformed, match="was it written by a newer one"):
                await open_engine(disk, wal)

    def test_lost_durable_records_are_told_and_the_rest_is_there(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            made = await Made.new()
            for number in range(1, 6):
                made.store(packed(at(number), BIG))
                await turns()
            await made.engine.wal.close()
            offset, _ = made.disk.file.history[2]
            made.disk.file.stable[offset + 9000] ^= 1
            await made.open()
            assert "cannot be read any more" in made.engine.damage
            assert len(made.held()) == 4
            assert made.engine.failed == ""

        run(scenario)
        assert "this node's silence proves nothing" in caplog.text


async def act(made: Made, chance: random.Random, wave: int) -> None:
    """One change to the storage engine, of any kind, done to its end."""
    log, epoch = chance.randint(1, 3), chance.randint(1, 5)
    what = chance.random()
    try:
        if what < 0.15:
            await made.engine.seal(log, epoch, 0)
        elif what < 0.25:
            await made.engine.clean(log, epoch, EpochEnd(5, at(chance.randint(0, 40), epoch)))
        else:
            seal = epoch + 1 if what < 0.35 else 0
            kind = chance.choice(list(BlockKind)) if seal else BlockKind.DATA
            blocks = [
                packed(
                    at(chance.randint(1, 40), epoch), chance.randbytes(chance.randrange(3000)),
                    log=chance.randint(1, 3), wave=chance.randint(1, 3), seal=seal, kind=kind,
                    lng=at(chance.randint(0, 40), epoch), time_us=chance.randrange(10**15),
                )
                for _ in range(chance.randint(1, 3))
            ]  # fmt: skip
            made.store(*blocks, wave=wave, seal=seal)
    except Fenced:
        return
    await turns()


def state(engine: StorageEngine) -> object:
    """All that a storage engine knows, but for the releases that only memory holds."""
    return {
        log: (
            [(bytes(b.wire), bytes(b.body)) for n in range(len(held)) if (b := held.at(n))],
            held.released, held.clean, held.lngs, held.append_time_us, held.bytes,
            engine.sealed(log),
        )
        for log, held in sorted(engine.cache.logs.items())
    }  # fmt: skip
