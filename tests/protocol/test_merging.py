"""Merges: what is replaced is what was read, once, and the tree stays one."""

from __future__ import annotations

import pytest
from grown_manifest import FIRST, Grown, entry
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.errors import BadSetting, Fenced, ObjectChanged
from cordwood.protocol.manifest import (
    FANOUT,
    in_order,
    is_dead_object,
    is_dead_page,
    take_turn,
    trim,
)
from cordwood.protocol.merging import (
    TURN_US_MAX,
    check_merging,
    end_merging,
    end_overdue,
    merge_fence,
    replace,
    take_merging,
    touched,
)
from cordwood.tiered import MERGED, Entry, PageRef


def merged_of(run: list[Entry], number: int) -> Entry:
    first, last = run[0], run[-1]
    return first._replace(
        last=last.last, fence=MERGED | number, name=f"m{first.first}-{last.last}-{number}",
        rows=sum(e.rows for e in run), bytes=sum(e.bytes for e in run),
        append_last_us=last.append_last_us,
        time_min_us=min(e.time_min_us for e in run), time_max_us=max(e.time_max_us for e in run),
    )  # fmt: skip


class Merged(Grown):
    """A manifest in which runs give way."""

    reads = 0

    def take(self, until_us: int = 1000) -> int:
        self.head = take_merging(self.head, "m", until_us)
        return self.head.merging.number

    def hold(self, items, first: int, last: int) -> dict:
        held = {}
        for ref in touched(items, first, last):
            held[ref] = self.pages[ref]
            held |= self.hold(self.pages[ref].items, first, last)
        return held

    def merge(self, start: int, stop: int, now_us: int = 50, run=None, number: int = 0) -> Entry:
        """Replace the entries `[start, stop)`; only pages that were read are looked at."""
        run = run or self.twin[start:stop]
        number = number or self.head.merging.number
        new = merged_of(run, number)
        held = self.hold(in_order(self.head), new.first, new.last)
        self.reads, self.sealed = len(held), 0
        self.head = replace(self.head, run, new, number, held.__getitem__, self.seal, now_us)
        new = new._replace(replaced_us=now_us)
        self.twin[start:stop] = [new]
        return new


class TestReplacing:
    @pytest.mark.parametrize(
        ("count", "start", "stop"),
        [
            (10, 0, 10),  # all of them, in the head
            (10, 3, 5),
            (10, 9, 10),  # one alone: of several logs, into its log's own
            (FANOUT + 5, 0, FANOUT + 5),  # a page and the head
            (FANOUT + 5, FANOUT - 1, FANOUT + 1),  # the last of a page, the first of the head
            (3 * FANOUT, 10, 20),  # within a page
            (3 * FANOUT, 10, 3 * FANOUT - 1),  # through pages
            (3 * FANOUT, FANOUT, 2 * FANOUT),  # a page as a whole
            (FANOUT**2 + 70, 5, FANOUT**2 + 69),  # through all levels
            (FANOUT**2 + 70, FANOUT**2 - 1, FANOUT**2 + 70),
        ],
    )
    def test_the_run_gives_way_and_all_else_stays(self, count, start, stop):
        grown = Merged(count)
        grown.take()
        new = grown.merge(start, stop)
        grown.check()
        assert grown.all() == grown.twin
        for lsn in (new.first, new.first + 11, new.last):
            if lsn <= new.last:
                assert grown.find(lsn) == new
        grown.add(10)
        grown.check()
        assert grown.all() == grown.twin

    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(1, 400),
        st.lists(st.tuples(st.floats(0, 1), st.integers(1, 200), st.integers(0, 90)), max_size=8),
        st.floats(0, 1),
    )
    def test_merges_uploads_and_trims_in_any_order(self, count, steps, cut):
        grown = Merged(count)
        for at, size, more in steps:
            grown.take()
            start = int(at * (len(grown.twin) - 1))
            grown.merge(start, min(start + size, len(grown.twin)))
            for _ in range(more):
                grown.add(3)
            grown.check()
            assert grown.all() == grown.twin
        start = FIRST + int(cut * (grown.head.end - FIRST))
        grown.head = trim(grown.head, start, 9)
        grown.twin = [each for each in grown.twin if each.last >= start]
        grown.check()
        assert [each for each in grown.all() if each.last >= start] == grown.twin
        grown.add(5)
        if len(grown.twin) > 2 and not steps:
            grown.take()
            grown.merge(0, 2)
            grown.check()

    def test_the_cost_does_not_grow_with_the_manifest(self):
        for count in (FANOUT**2 + 5, 20 * FANOUT**2 + 70):
            grown = Merged(count)
            grown.take()
            grown.merge(FANOUT * 3 + 7, FANOUT * 3 + 27)
            assert grown.reads <= 4
            assert grown.sealed <= 3

    def test_pages_of_few_entries_become_fewer(self):
        """64 pages, each merged into one entry, end as one page."""
        grown = Merged(FANOUT**2 - 1)
        grown.take()
        for page in range(FANOUT - 1):
            grown.merge(page, page + FANOUT)
        grown.check()
        refs = [item for item in in_order(grown.head) if isinstance(item, PageRef)]
        assert len(refs) == 1
        assert refs[0].objects == FANOUT - 1
        assert grown.all() == grown.twin


class TestOnce:
    def test_what_is_replaced_is_what_was_read(self):
        grown = Merged(10)
        grown.take()
        run = grown.twin[2:6]
        grown.merge(2, 6)
        before = grown.head
        for others in (run, run[1:], [*run[:2], run[2]._replace(name="x"), run[3]]):
            with pytest.raises(ObjectChanged):
                grown.merge(0, 0, run=list(others))
        assert grown.head == before

    def test_a_trim_or_another_merge_of_a_part_ends_it(self):
        grown = Merged(20)
        grown.take()
        run = grown.twin[2:6]
        trimmed = trim(grown.head, run[1].first, 5)
        grown.merge(5, 8)
        with pytest.raises(ObjectChanged):
            grown.merge(0, 0, run=run)
        grown.head = trimmed
        with pytest.raises(ObjectChanged):
            grown.merge(0, 0, run=run)

    def test_an_object_that_is_trimmed_in_part_is_merged_as_a_whole(self):
        grown = Merged(20)
        grown.head = trim(grown.head, grown.twin[3].first + 4, 5)
        grown.twin = grown.twin[3:]
        grown.take()
        grown.merge(0, 4)
        grown.check()

    @pytest.mark.parametrize(
        "change",
        [{"rows": 3}, {"bytes": 3}, {"fence": MERGED | 9}, {"fence": 1}, {"append_first_us": -9},
         {"append_last_us": 10**6}],
    )  # fmt: skip
    def test_an_entry_that_does_not_hold_the_same_is_refused(self, change):
        grown = Merged(10)
        number = grown.take()
        new = merged_of(grown.twin[2:4], number)._replace(**change)
        with pytest.raises(BadSetting, match="does not hold"):
            replace(grown.head, grown.twin[2:4], new, number, {}.__getitem__, grown.seal, 1)
        with pytest.raises(BadSetting):
            replace(grown.head, [], new, number, {}.__getitem__, grown.seal, 1)


class TestTurns:
    def test_an_earlier_turn_replaces_no_more_and_uploads_are_left_alone(self):
        grown = Merged(10)
        first = grown.take()
        second = grown.take()
        assert (first, second, grown.head.fence, grown.head.end) == (1, 2, 1, FIRST + 100)
        assert merge_fence(grown.head) == MERGED | 2
        with pytest.raises(Fenced, match="turn 1 at merging is over; there is 2 of 'm'"):
            grown.merge(0, 3, number=first)
        grown.merge(0, 3)
        grown.add(5)

    def test_a_turn_is_ended_by_its_holder_or_once_it_is_overdue(self):
        grown = Merged(3)
        number = grown.take(until_us=1000)
        head = grown.head
        assert end_overdue(head, 1000) is head
        assert end_merging(head, number + 1) is head
        for ended in (end_merging(head, number), end_overdue(head, 1001)):
            assert ended.merging.number == number + 1
            assert ended.version == head.version + 1
            for each in (number, number + 1):
                with pytest.raises(Fenced):
                    check_merging(ended, each)
            assert end_overdue(ended, 10**9) is ended
            assert end_merging(ended, number + 1) is ended
            assert take_merging(ended, "n", 1).merging.number == number + 2

    def test_a_turn_from_a_clock_that_was_ahead_is_overdue(self):
        """Its holder is dead: nobody would merge or collect until its clock's time."""
        now_us = 1_800_000_000_000_000
        grown = Merged(3)
        number = grown.take(until_us=now_us + TURN_US_MAX)
        assert end_overdue(grown.head, now_us) is grown.head
        with pytest.raises(Fenced, match="'m' has the turn 1"):
            take_merging(grown.head, "n", now_us, now_us)
        number = grown.take(until_us=now_us + TURN_US_MAX + 1)
        assert end_overdue(grown.head, now_us).merging.number == number + 1
        assert take_merging(grown.head, "n", now_us, now_us).merging.holder == "n"

    @pytest.mark.parametrize(
        ("holder", "waits_us", "waits"),
        [("n", 0, False), ("n", 1, True), ("n", 1000, True), ("n", 1001, False), ("m", 5, False)],
    )
    def test_a_holder_may_wait_for_the_turn_of_another_one(
        self, holder: str, waits_us: int, waits: bool
    ):
        grown = Merged(3)
        grown.take(until_us=1000)
        if waits:
            with pytest.raises(Fenced, match="'m' has the turn 1"):
                take_merging(grown.head, holder, 2000, waits_us)
            free = end_merging(grown.head, 1)
            assert take_merging(free, holder, 2000, waits_us).merging.holder == holder
        else:
            assert take_merging(grown.head, holder, 2000, waits_us).merging.number == 2


class TestTheDead:
    @pytest.mark.parametrize(
        ("number", "named", "dead"),
        [
            (1, False, True),  # an earlier turn's
            (1, True, False),  # committed
            (2, False, False),  # of the turn in force: perhaps on its way, wherever it lies
            (2, True, False),
        ],
    )
    def test_what_a_merge_put_is_dead_once_its_turn_is_over(
        self, number: int, named: bool, dead: bool
    ):
        grown = Merged(10)
        grown.take()
        grown.take()
        grown.head = take_turn(grown.head, 9, "b")
        run = grown.twin[2:4]
        found = entry(run[0].first, run[1].last, name="it" if named else "other")
        fence = MERGED | number
        assert is_dead_object(grown.head, found, "it", run[1].last, fence) is dead
        assert is_dead_object(end_merging(grown.head, 2), found, "it", run[1].last, fence) is (
            not named
        )

    def test_what_it_replaced_is_dead_at_once_and_its_time_is_told(self):
        grown = Merged(10)
        grown.take()
        gone = grown.twin[2]
        new = grown.merge(2, 4, now_us=77)
        found = grown.find(gone.last)
        assert is_dead_object(grown.head, found, gone.name, gone.last, gone.fence)
        assert not is_dead_object(grown.head, found, new.name, new.last, new.fence)
        assert found is not None
        assert found.replaced_us == 77

    def test_pages_of_a_merge(self):
        grown = Merged(2 * FANOUT)
        grown.take()
        old = in_order(grown.head)[0]
        grown.merge(2, 4)
        new = in_order(grown.head)[0]
        assert isinstance(old, PageRef)
        assert isinstance(new, PageRef)
        fenced = new._replace(fence=MERGED | 1)
        assert not is_dead_page(grown.head, old, fenced)
        assert is_dead_page(end_merging(grown.head, 1), old, fenced)
        assert not is_dead_page(end_merging(grown.head, 1), fenced, fenced)
        assert is_dead_page(take_turn(grown.head, 2, "b"), fenced, old)
