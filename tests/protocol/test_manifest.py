"""Manifests: they grow in even steps, tell every LSN once, and let go of what is dead alone."""

from __future__ import annotations

import pytest
from grown_manifest import FIRST, Grown, entry
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.errors import BadSetting, Fenced, Malformed
from cordwood.protocol.manifest import (
    FANOUT,
    TRIMS_KEPT,
    append,
    check_head,
    check_page,
    check_turn,
    find_append_time,
    find_from,
    in_order,
    is_dead_object,
    is_dead_page,
    take_turn,
    tile,
    totals,
    trim,
    trimmed_at_us,
)
from cordwood.tiered import Head, Page, PageRef


class TestGrowing:
    @pytest.mark.parametrize(
        "count", [0, 1, FANOUT - 1, FANOUT, FANOUT + 1, FANOUT**2 - 1, FANOUT**2, FANOUT**2 + 70]
    )
    def test_every_entry_is_found_and_none_twice(self, count):
        grown = Grown(count)
        grown.check()
        assert grown.all() == grown.twin
        for each in grown.twin[:: max(1, count // 50)]:
            for lsn in (each.first, each.last - 3, each.last):
                assert grown.find(lsn) == each
        assert grown.find(FIRST - 1) is None
        assert grown.find(grown.head.end) is None
        assert totals(in_order(grown.head)).objects == count
        assert totals(in_order(grown.head)).stored == 1000 * count

    @pytest.mark.parametrize("commits", [270_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
    def test_many_commits_seal_as_many_pages_as_they_must_and_the_head_stays_small(
        self, commits: int
    ):
        """Most commits write the head alone, whatever the number; its items are bounded."""
        grown = Grown()
        sizes: dict[int, int] = {}
        for number in range(1, commits + 1):
            before = grown.sealed
            head = grown.head
            new = entry(head.end, head.end)
            grown.head = append(head, new, 1, grown.seal)
            assert grown.sealed - before <= 4
            if number % 9999 == 0:
                grown.pages.clear()
                sizes[number] = len(in_order(grown.head))
        assert grown.sealed == sum(commits // FANOUT**level for level in (1, 2, 3))
        assert max(sizes.values()) <= 4 * (FANOUT - 1)
        assert len(grown.head.levels) == 4
        assert totals(in_order(grown.head)).objects == commits

    def test_what_does_not_follow_is_refused(self):
        grown = Grown(3)
        end = grown.head.end
        for first, last in ((end - 1, end + 5), (end + 1, end + 5), (end, end - 1), (FIRST, end)):
            with pytest.raises(BadSetting, match="comes next"):
                append(grown.head, entry(first, last), 1, grown.seal)
        with pytest.raises(BadSetting, match="of turn 2 in turn 1"):
            append(grown.head, entry(end, end, fence=2), 1, grown.seal)


class TestTurns:
    def test_an_earlier_turn_commits_no_more(self):
        grown = Grown(3)
        later = take_turn(grown.head, 5, "b")
        assert (later.fence, later.holder, later.version) == (5, "b", grown.head.version + 1)
        with pytest.raises(Fenced, match="'b' has 5"):
            append(later, entry(later.end, later.end), 1, grown.seal)
        append(later, entry(later.end, later.end, fence=5), 5, grown.seal)

    @pytest.mark.parametrize("fence", [0, 4, 5])
    def test_a_turn_is_higher_than_those_before_it(self, fence: int):
        head = take_turn(Grown(1).head, 5, "b")
        with pytest.raises(Fenced):
            take_turn(head, fence, "c")
        with pytest.raises(Fenced):
            check_turn(head, 6)


class TestTrims:
    @settings(max_examples=60)
    @given(
        st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=300),
        st.lists(st.floats(0, 1), max_size=4),
    )
    def test_what_is_trimmed_leaves_and_the_rest_is_found(self, steps, cuts):
        grown = Grown()
        for span, _ in steps:
            grown.add(span)
        start = FIRST
        for cut in cuts:
            at = FIRST + int(cut * (grown.head.end - FIRST))
            grown.head = trim(grown.head, at, 1)
            start = max(start, at)
            assert grown.head.start == start
            grown.check()
            kept = [each for each in grown.all() if each.last >= start]
            assert kept == [each for each in grown.twin if each.last >= start]
            for each in kept:
                assert grown.find(each.last) == each
            grown.add(5)

    def test_a_trim_goes_up_and_not_past_the_end(self):
        grown = Grown(10)
        head = trim(grown.head, FIRST + 50, 1)
        assert trim(head, FIRST + 50, 2) is head
        assert trim(head, FIRST + 3, 2) is head
        whole = trim(head, grown.head.end + 1000, 3)
        assert (whole.start, in_order(whole)) == (grown.head.end, ())
        check_head(whole)
        again = append(whole, entry(whole.end, whole.end), 1, grown.seal)
        check_head(again)

    def test_when_something_was_let_go_of_is_told_late_and_never_early(self):
        grown = Grown(40)
        head = grown.head
        for number in range(1, 30):
            head = trim(head, FIRST + 10 * number, 1000 * number)
            assert len(head.trims) <= TRIMS_KEPT
        for number in range(1, 30):
            at_us = trimmed_at_us(head, FIRST + 10 * number - 1)
            assert at_us is not None
            assert at_us >= 1000 * number
        assert trimmed_at_us(head, FIRST + 10 * 29 - 1) == 29_000
        assert trimmed_at_us(head, FIRST + 10 * 29) is None


class TestSearching:
    def test_the_first_entry_from_a_time_on(self):
        grown = Grown(FANOUT - 1)
        items = in_order(grown.head)
        for each in grown.twin:
            assert find_append_time(items, each.append_last_us) == each
            assert find_append_time(items, each.append_first_us) == each
        assert find_append_time(items, -100) == grown.twin[0]
        assert find_append_time(items, 10**9) is None
        assert find_append_time((), 0) is None

    def test_the_first_that_reaches_an_lsn(self):
        items = in_order(Grown(20).head)
        found = [find_from(items, FIRST + at) for at in (-1, 0, 9, 10, 199, 200)]
        assert found == [0, 0, 0, 1, 19, 20]


class TestTheDead:
    """Of an object [20, 29] of turn 3; the manifest is of turn 5, and holds [0, 50)."""

    HEAD = Head(7, 9, 5, "b", FIRST, FIRST + 50, ((),), ())

    @pytest.mark.parametrize(
        ("first", "last", "fence", "found", "dead"),
        [
            (20, 29, 3, "it", False),  # committed
            (20, 29, 5, "it", False),
            (20, 29, 3, None, True),  # an earlier turn's, never committed
            (20, 29, 3, "other", True),  # another was committed in its place
            (20, 29, 5, "other", True),  # of this turn, and the end went past it
            (50, 59, 5, None, False),  # on its way
            (50, 59, 6, None, False),  # on its way in a turn that began since
            (50, 59, 4, None, True),  # its turn is over
            (45, 59, 5, None, False),  # cannot be committed, and reaches behind the end: waits
        ],
    )
    def test_an_object_is_dead_once_it_can_never_be_committed(
        self, first: int, last: int, fence: int, found: str | None, dead: bool
    ):
        at = {"it": entry(FIRST + first, FIRST + last, name="it"),
              "other": entry(FIRST + 15, FIRST + 40, name="other"), None: None}[found]  # fmt: skip
        assert is_dead_object(self.HEAD, at, "it", FIRST + last, fence) is dead

    def test_a_page_is_dead_once_it_is_no_part_and_its_turn_is_over(self):
        grown = Grown(FANOUT + 5)
        ref = in_order(grown.head)[0]
        assert isinstance(ref, PageRef)
        assert not is_dead_page(grown.head, ref, ref)
        other = ref._replace(crc=99)
        assert not is_dead_page(grown.head, ref, other)  # of this turn: perhaps on its way
        later = take_turn(grown.head, 2, "b")
        assert is_dead_page(later, ref, other)
        assert not is_dead_page(later, ref, ref)
        trimmed = trim(grown.head, ref.last + 1, 1)
        assert is_dead_page(trimmed, None, ref)


class TestTiling:
    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ([], []),
            ([(0, 9), (10, 19)], [(0, 9), (10, 19)]),
            ([(10, 19), (0, 9)], [(0, 9), (10, 19)]),
            ([(0, 9), (0, 19), (10, 19)], [(0, 19)]),
            ([(0, 9), (5, 19)], [(0, 9), (10, 19)]),
            ([(0, 9), (2, 5), (3, 30), (10, 12)], [(0, 9), (10, 30)]),
            ([(0, 9), (20, 29)], [(0, 9), (20, 29)]),
            ([(0, 4), (2, 9), (20, 29), (22, 40)], [(0, 4), (5, 9), (20, 29), (30, 40)]),
            # Those that were committed, and not the larger one of an uploader that was overtaken.
            ([(0, 4), (0, 7), (5, 9), (10, 30)], [(0, 4), (5, 9), (10, 30)]),
        ],
    )
    def test_few_and_large_ones_that_do_not_overlap(self, found, expected):
        chosen = list(tile([entry(FIRST + a, FIRST + b) for a, b in found]))
        assert [(each.first - FIRST, each.last - FIRST) for each in chosen] == expected

    def test_what_is_below_the_start_is_left_out(self):
        found = [entry(FIRST + a, FIRST + a + 9) for a in (0, 10, 20)]
        chosen = list(tile(found, FIRST + 15))
        assert [(each.first - FIRST, each.last - FIRST) for each in chosen] == [(15, 19), (20, 29)]
        assert [each.payload for each in chosen] == [0, 4000], "of a part it is not known"

    @settings(max_examples=200)
    @given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
    def test_all_that_is_told_anywhere_is_told_once(self, spans):
        found = [entry(FIRST + a, FIRST + a + size) for a, size in spans]
        chosen = list(tile(found))
        told = [lsn for each in chosen for lsn in range(each.first, each.last + 1)]
        assert told == sorted({lsn for e in found for lsn in range(e.first, e.last + 1)})
        assert len(chosen) <= len(found)


class TestWhatIsNoManifest:
    CHANGES = (
        lambda head: {"levels": ()},
        lambda head: {"levels": ((),)},
        lambda head: {"start": 0},
        lambda head: {"start": head.end + 1},
        lambda head: {"start": head.start - 1},
        lambda head: {"end": head.end + 1},
        lambda head: {"levels": (head.levels[0][1:], *head.levels[1:])},
        lambda head: {"levels": (head.levels[0][::-1], *head.levels[1:])},
        lambda head: {"levels": (head.levels[1], head.levels[0])},
        lambda head: {"levels": (head.levels[0] * 20, *head.levels[1:])},
        lambda head: {"levels": head.levels + ((),) * 20},
    )

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_head_is_refused(self, change):
        head = Grown(FANOUT + 5).head
        check_head(head)
        with pytest.raises(Malformed):
            check_head(head._replace(**change(head)))

    def test_a_page_is_refused_for_another(self):
        grown = Grown(FANOUT * 2)
        (one, page), (other, _) = grown.pages.items()
        with pytest.raises(Malformed):
            check_page(page, other)
        with pytest.raises(Malformed):
            check_page(Page(1, page.items), one._replace(level=1))
        with pytest.raises(Malformed):
            check_page(Page(0, page.items[1:]), one)
        with pytest.raises(Malformed):
            check_page(Page(0, ()), one)
        with pytest.raises(Malformed):
            check_page(page, one._replace(rows=1))
