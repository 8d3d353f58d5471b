"""The log cache: order, precedence, what is released; and against a slow, obvious twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_blocks import at, block

from cordwood.block import BlockKind, EnvelopeFlag
from cordwood.layout.waves import StoredBlock
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.log_cache import CachedLog, EpochEnd, LogCache


def blocks_of(log: CachedLog) -> list[StoredBlock]:
    found = [log.at(index) for index in range(len(log))]
    return [each for each in found if each is not None]


def firsts(log: CachedLog) -> list[int]:
    return [each.header.first for each in blocks_of(log)]


class TestBlocks:
    @pytest.mark.parametrize("order", [(1, 4, 9), (9, 4, 1), (4, 9, 1)])
    def test_they_lie_in_lsn_order_however_they_come(self, order) -> None:
        log = CachedLog()
        assert all(log.insert(block(at(esn), count=2)) for esn in order)
        assert firsts(log) == [at(1), at(4), at(9)]
        assert log.at(3) is None

    def test_a_read_may_begin_inside_a_block(self) -> None:
        log = CachedLog()
        for first, count in ((1, 4), (5, 1), (10, 3)):
            log.insert(block(at(first), count=count))
        found = [log.index_from(at(esn)) for esn in range(14)]
        assert found == [0] * 5 + [1] + [2] * 7 + [3]

    def test_a_copy_of_the_same_range_is_kept_once(self) -> None:
        log = CachedLog()
        assert log.insert(block(at(1)))
        size = log.bytes
        assert not log.insert(block(at(1)))
        assert (len(log), log.bytes) == (1, size)

    @pytest.mark.parametrize(
        ("low", "high"),
        [
            ({"wave": 1}, {"wave": 2}),
            ({"wave": 9}, {"seal": 2}),  # what recovery wrote beats any wave
            ({"seal": 2, "wave": 9}, {"seal": 3, "wave": 1}),
            ({"seal": 2, "wave": 1}, {"seal": 2, "wave": 2}),
        ],
    )
    def test_the_higher_precedence_stays_whichever_comes_first(self, low, high) -> None:
        loser, winner = block(at(1), b"content", **low), block(at(1), b"content", **high)
        for first, second, second_kept in ((loser, winner, True), (winner, loser, False)):
            log = CachedLog()
            log.insert(block(at(9)))
            log.insert(first)
            assert log.insert(second) is second_kept
            assert log.at(0) is winner
            assert log.bytes == sum(each.wire_bytes for each in blocks_of(log))

    def test_what_overlaps_and_is_not_the_same_range_lies_beside_it(self) -> None:
        """Boundaries are settled by whoever reads: a hole may end where a block does."""
        log = CachedLog()
        hole = block(at(2), count=3, kind=BlockKind.HOLE, seal=2)
        data, bridge = block(at(4)), block(at(5), kind=BlockKind.BRIDGE, seal=2)
        for each in (bridge, hole, data):
            assert log.insert(each)
        assert not log.insert(hole)
        assert {id(each) for each in blocks_of(log)} == {id(hole), id(data), id(bridge)}
        assert log.index_from(at(4)) == 0

    @given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 3), st.integers(1, 3))))
    def test_against_a_list_that_is_sorted_each_time(self, inserts) -> None:
        log, twin = CachedLog(), {}
        for slot, count, wave in inserts:
            new = block(at(4 * slot), count=count, wave=wave)
            key = (new.header.last, new.header.first)
            wins = key not in twin or twin[key].envelope.wave < wave
            assert log.insert(new) is wins
            if wins:
                twin[key] = new
        expected = [twin[key] for key in sorted(twin)]
        assert [id(each) for each in blocks_of(log)] == [id(each) for each in expected]
        assert log.bytes == sum(each.wire_bytes for each in expected)
        for esn in range(0, 140, 3):
            from_here = [each for each in expected if each.header.last >= at(esn)]
            assert len(log) - log.index_from(at(esn)) == len(from_here)


class TestRelease:
    def test_an_envelope_s_lng_releases_what_is_below_it(self) -> None:
        log = CachedLog()
        log.insert(block(at(5), lng=at(4)))
        assert (log.released, log.lngs) == (at(4), {1: at(4)})
        log.insert(block(at(6), lng=at(3)))  # an older frame, late
        assert (log.released, log.lngs) == (at(4), {1: at(4)})

    def test_a_later_epoch_s_lng_releases_all_of_the_earlier_ones(self) -> None:
        log = CachedLog()
        log.release(at(7, epoch=1))
        log.insert(block(at(1, epoch=3), lng=at(0, epoch=3)))
        assert log.released == at(0, epoch=3)
        assert log.lngs == {1: at(7, epoch=1), 3: at(0, epoch=3)}

    def test_a_release_moves_forwards_only_and_says_whether_it_did(self) -> None:
        log = CachedLog()
        assert log.release(at(4))
        assert not log.release(at(4))
        assert not log.release(at(2))
        assert log.released == at(4)

    def test_an_older_epoch_s_late_release_is_known_to_recovery_and_moves_no_reader(self) -> None:
        log = CachedLog()
        log.release(at(0, epoch=2))
        assert not log.release(at(9, epoch=1))
        assert log.released == at(0, epoch=2)
        assert log.lngs == {2: at(0, epoch=2), 1: at(9, epoch=1)}

    def test_the_latest_append_time_is_kept_also_of_copies_that_lose(self) -> None:
        log = CachedLog()
        log.insert(block(at(1), time_us=50, wave=2))
        log.insert(block(at(1), time_us=50))
        log.insert(block(at(2), time_us=40))
        assert log.append_time_us == 50


def test_logs_are_apart() -> None:
    cache = LogCache()
    assert cache.get(1) is None
    cache.note(0, [1, 2], 0.0)
    cache.insert(block(at(1), log=1))
    cache.insert(block(at(1), log=2))
    cache.insert(block(at(2), log=2))
    assert (len(cache.log(1)), len(cache.log(2))) == (1, 2)
    assert cache.get(1) is cache.log(1)
    assert cache.bytes == sum(log.bytes for log in cache.logs.values()) > 0
    assert list(cache.logs) == [1, 2]


def held(log: CachedLog) -> list[tuple[int, int, int]]:
    """Epoch, esn and seal of each block."""
    return [
        (each.header.first >> 32, each.header.first & 0xFFFF_FFFF, each.envelope.seal_epoch)
        for each in blocks_of(log)
    ]


class TestEndedEpochs:
    def test_above_the_lng_only_what_that_recovery_wrote_stays(self) -> None:
        log = CachedLog()
        for esn in range(1, 7):
            log.insert(block(at(esn)))
        log.insert(block(at(1, epoch=2)))
        log.insert(block(at(4), seal=3))
        log.insert(block(at(5), kind=BlockKind.HOLE, seal=2))  # of a recovery that came to nothing
        log.insert(block(at(5), kind=BlockKind.BRIDGE, seal=3))
        log.close_epoch(1, EpochEnd(3, at(3)))
        assert held(log) == [(1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 3), (1, 5, 3), (2, 1, 0)]
        assert log.index_from(at(5)) == 4
        assert log.bytes == sum(each.wire_bytes for each in blocks_of(log))

    def test_what_an_attempt_left_that_was_given_up_goes_with_the_rest(self) -> None:
        log = CachedLog()
        for esn, attempt in ((4, 1), (5, 2), (6, 3)):
            log.insert(block(at(esn), seal=3, wave=attempt))
        log.close_epoch(1, EpochEnd(3, at(3), attempt=2))
        assert held(log) == [(1, 5, 3), (1, 6, 3)]
        assert not log.insert(block(at(7), seal=3, wave=1)), "it was on its way all the time"

    def test_what_a_donor_sends_into_an_epoch_that_is_over_stays(self) -> None:
        log = CachedLog()
        log.close_epoch(1, None)
        late, rebuilt = block(at(4)), block(at(5), wave=3)
        rebuilt.envelope.flags = EnvelopeFlag.REBUILT
        assert not log.insert(late)
        assert log.insert(rebuilt)
        assert held(log) == [(1, 5, 0)]

    def test_what_became_a_hole_is_dropped_though_a_donor_sends_it(self) -> None:
        log = CachedLog()
        log.close_epoch(1, EpochEnd(3, at(3)))
        rebuilt = block(at(5), wave=3)
        rebuilt.envelope.flags = EnvelopeFlag.REBUILT
        assert not log.insert(rebuilt)

    def test_an_end_that_is_told_late_changes_nothing(self) -> None:
        log = CachedLog()
        log.insert(block(at(4), seal=3, wave=2))
        log.close_epoch(1, EpochEnd(3, at(3), b"", 2))
        for late in (EpochEnd(3, at(5), b"", 1), EpochEnd(2, at(5), b"", 9)):
            log.close_epoch(1, late)
            assert log.ends[1] == EpochEnd(3, at(3), b"", 2)

    def test_blocks_that_come_after_the_end_stand_for_no_producers(self) -> None:
        log = CachedLog()
        log.close_epoch(1, EpochEnd(3, at(3), b""))
        stored = block(at(4), seal=3)
        log.insert(replace(stored, header=replace(stored.header, producer=7)))
        assert log.produced.all() == []

    def test_a_block_across_the_lng_goes_with_what_is_above(self) -> None:
        """An LNG is a block's end; such a block was never acknowledged."""
        log = CachedLog()
        log.insert(block(at(1), count=3))
        log.insert(block(at(4), count=3))
        log.close_epoch(1, EpochEnd(2, at(3)))
        assert held(log) == [(1, 1, 0)]

    @pytest.mark.parametrize(
        ("late", "kept"),
        [
            ({"esn": 4}, False),
            ({"esn": 3}, True),  # at or below the LNG it is what everyone has
            ({"esn": 4, "seal": 2}, False),  # an older recovery's
            ({"esn": 4, "seal": 3}, True),
            ({"esn": 4, "seal": 4}, True),  # a later recovery's, of the same outcome
        ],
    )
    def test_what_becomes_durable_after_the_end(self, late, kept: bool) -> None:
        log = CachedLog()
        log.close_epoch(1, EpochEnd(3, at(3)))
        new = block(at(late["esn"]), seal=late.get("seal", 0), lng=at(late["esn"]))
        assert log.insert(new) is kept
        assert len(log) == kept
        assert (log.released > 0) == kept, "what is dropped releases nothing either"

    def test_an_end_of_which_nothing_is_known_refuses_plain_stores_only(self) -> None:
        log = CachedLog()
        log.close_epoch(2, None)
        assert not log.insert(block(at(1, epoch=2)))
        assert not log.insert(block(at(1, epoch=1)))
        assert log.insert(block(at(1, epoch=2), seal=4))
        assert log.insert(block(at(1, epoch=3)))

    def test_clean_moves_as_far_as_nothing_is_left_to_purge(self) -> None:
        """Told that 4 is clean, a node that held blocks of 3, which it had missed, called that
        clean too, and served a record that had become part of a bridge."""
        log = CachedLog()
        for epoch in (1, 3, 5):
            log.insert(block(at(1, epoch=epoch)))
        log.close_epoch(1, EpochEnd(2, at(1, epoch=1)))
        assert log.clean == 1
        log.close_epoch(4, EpochEnd(5, at(0, epoch=4)))
        assert log.clean == 1, "3 is not purged yet"
        assert log.unclean_epochs(5) == [3]
        log.close_epoch(3, EpochEnd(4, at(0, epoch=3)))
        assert log.clean == 4
        assert held(log) == [(1, 1, 0), (5, 1, 0)]
        assert log.unclean_epochs(5) == []
        assert log.unclean_epochs(6) == [5]

    def test_a_node_that_is_behind_shows_what_it_knows_was_acknowledged(self) -> None:
        log = CachedLog()
        for esn in (1, 2, 3):
            log.insert(block(at(esn), lng=at(esn - 1)))
        log.release(at(3))
        assert (log.readable, log.is_behind) == (at(3), False)
        log.insert(block(at(4), lng=at(3)))
        log.insert(block(at(1, epoch=2), lng=at(0, epoch=2)))
        assert (log.readable, log.is_behind) == (at(3), True), "4 may be a hole by now"
        log.close_epoch(1, EpochEnd(2, at(2)))
        assert (log.readable, log.is_behind) == (at(0, epoch=2), False)
        assert held(log) == [(1, 1, 0), (1, 2, 0), (2, 1, 0)]

    def test_what_came_while_nothing_was_held_keeps_its_epoch_open(self) -> None:
        """Swarm seed 12130: a stalled disk held up a purge that had found nothing of epoch 2, and
        with it stores of a sequencer that did not know yet that it was replaced. Readers were
        given them."""
        log = CachedLog()
        log.release(at(2, epoch=3))
        log.insert(block(at(1, epoch=2), lng=at(0, epoch=2)))
        log.close_epoch(2, None)
        assert (log.clean, log.is_behind) == (0, True)
        assert log.readable == at(0, epoch=1)
        assert log.unclean_epochs(3) == [2]
        log.close_epoch(2, EpochEnd(3, at(0, epoch=2)))
        assert (held(log), log.clean, log.is_behind) == ([], 2, False)

    def test_one_that_shows_what_may_be_a_hole_is_caught(self) -> None:
        with planted(find_bug("never-purges")), pytest.raises(AssertionError):
            self.test_a_node_that_is_behind_shows_what_it_knows_was_acknowledged()

    def test_a_node_that_was_in_no_epoch_before_is_behind_until_it_is_told(self) -> None:
        log = CachedLog()
        log.release(at(7, epoch=4))
        assert (log.readable, log.is_behind) == (at(0, epoch=1), True)
        log.close_epoch(3, None)
        assert (log.readable, log.is_behind, log.clean) == (at(7, epoch=4), False, 3)


class TestBegun:
    def test_a_log_that_a_node_never_heard_of_has_none(self) -> None:
        assert (CachedLog().recorded, CachedLog().begun) == (0, 0)

    @pytest.mark.parametrize(
        "change",
        [
            lambda log: log.insert(block(at(1, epoch=4))),
            lambda log: log.release(at(0, epoch=4)),
            lambda log: log.close_epoch(4, EpochEnd(5, at(0, epoch=4))),
            lambda log: log.close_epoch(4, None),
            lambda log: log.trim_to(at(7, epoch=4)),
            lambda log: log.tier_to(at(7, epoch=4)),
        ],
        ids=["block", "release", "end", "over", "trim", "tier"],
    )
    def test_whatever_follows_from_records_counts(
        self, change: Callable[[CachedLog], object]
    ) -> None:
        log = CachedLog()
        log.insert(block(at(1, epoch=2)))
        change(log)
        assert (log.recorded, log.begun) == (4, 4)
        after = CachedLog(log.state(seal=0))
        assert (after.recorded, after.begun) == (4, 4), "after a start, too"

    def test_it_does_not_fall_when_the_records_are_trimmed(self) -> None:
        log = CachedLog()
        log.insert(block(at(1, epoch=4)))
        log.trim_to(at(1, epoch=4))
        assert (len(log), log.recorded) == (0, 4)

    def test_told_nodesets_are_of_an_epoch_that_began_and_are_no_records(self) -> None:
        log = CachedLog()
        log.tell_nodesets(4, b"")
        assert (log.recorded, log.begun) == (0, 4)
