"""What is marked of ledgers that name lost nodes, how marks merge, and what a worker does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cordwood.ledger import Fragment, LedgerMetadata, Striping
from cordwood.protocol.ledger_autorecovery import (
    AGAIN_MAX_S,
    AGAIN_S,
    GAPS_MAX,
    GRACE_US,
    Mark,
    Retries,
    SeenMarks,
    Step,
    mark_of,
    may_fill_more,
    may_finish,
    may_refill,
    merged,
    nodes_to_ask,
    step,
    step_without_end,
    with_gaps,
    with_missing,
)

OPEN = LedgerMetadata(7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)), Fragment(10, (1, 2, 4))))
IN_RECOVERY = OPEN.recovering()
CLOSED = OPEN.closed(20, 100)


class TestMarks:
    def test_a_ledger_that_names_no_lost_node_is_not_marked(self) -> None:
        assert mark_of(OPEN, {5, 6}, 0) is None

    def test_every_fragment_counts_and_the_last_one_of_an_open_ledger_is_noted(self) -> None:
        assert mark_of(OPEN, {3, 5}, 9) == Mark(7, (3,), 9)
        assert mark_of(OPEN, {4, 3}, 9) == Mark(7, (3, 4), 9, 10)
        assert mark_of(IN_RECOVERY, {4}, 9) == Mark(7, (4,), 9, 10)
        assert mark_of(CLOSED, {4}, 9) == Mark(7, (4,), 9)

    def test_a_drained_node_counts_but_for_the_last_fragment_of_an_open_ledger(self) -> None:
        assert mark_of(OPEN, set(), 9, {3}) == Mark(7, (3,), 9)
        assert mark_of(OPEN, set(), 9, {4}) is None
        assert mark_of(OPEN, set(), 9, {1, 4}) == Mark(7, (1,), 9)
        assert mark_of(OPEN, {4}, 9, {3}) == Mark(7, (3, 4), 9, 10)
        assert mark_of(OPEN.with_joining(5), set(), 9, {5}) == Mark(7, (5,), 9)
        assert mark_of(IN_RECOVERY, set(), 9, {4}) == Mark(7, (4,), 9)
        assert mark_of(CLOSED, set(), 9, {4}) == Mark(7, (4,), 9)
        # Its writer goes on, and is not shut out.
        assert step(OPEN, Mark(7, (1,), 9), 9 + GRACE_US) is Step.REPAIR_OLDER

    def test_a_fragment_without_entries_counts(self) -> None:
        empty = replace(OPEN, fragments=(*OPEN.fragments, Fragment(21, (1, 2, 9)))).closed(20, 100)
        assert mark_of(empty, {9}, 0) == Mark(7, (9,), 0)

    def test_a_node_that_gets_copies_counts_before_it_is_named(self) -> None:
        joining = CLOSED.with_joining(9)
        assert mark_of(joining, {9}, 5) == Mark(7, (9,), 5)
        assert step(joining, Mark(7, (9,), 5), 6) is Step.REPAIR
        assert step(joining.joined(), Mark(7, (9,), 5), 6) is Step.DONE
        recovered = IN_RECOVERY.with_joining(9)
        assert mark_of(recovered, {9}, 5) == Mark(7, (9,), 5)
        assert step(recovered, Mark(7, (9,), 5), 5 + GRACE_US) is Step.RECOVER

    def test_marks_merge_and_the_grace_begins_anew_only_for_what_is_new(self) -> None:
        first = Mark(7, (3,), 100)
        assert merged(None, first) == first
        assert merged(first, Mark(7, (3,), 900)) == first
        assert merged(first, Mark(7, (1,), 900)) == Mark(7, (1, 3), 900)
        assert merged(Mark(7, (1, 3), 100, 10), Mark(7, (3,), 900)) == Mark(7, (1, 3), 100, 10)
        assert merged(first, Mark(7, (3,), 900, 10)) == Mark(7, (3,), 900, 10)


class TestSteps:
    def test_a_closed_ledger_is_repaired_at_once(self) -> None:
        assert step(CLOSED, Mark(7, (3,), 0), 1) is Step.REPAIR

    def test_nothing_is_left_where_no_fragment_names_the_nodes_or_the_ledger_is_gone(self) -> None:
        assert step(CLOSED, Mark(7, (8, 9), 0), 1) is Step.DONE
        assert step(None, Mark(7, (3,), 0), 1) is Step.DONE

    def test_an_open_ledger_has_its_grace(self) -> None:
        mark = mark_of(OPEN, {4}, 100)
        assert mark is not None
        assert step(OPEN, mark, 100 + GRACE_US - 1) is Step.WAIT
        assert step(OPEN, mark, 100 + GRACE_US) is Step.RECOVER

    def test_a_writer_that_went_on_elsewhere_is_left_alone(self) -> None:
        mark = mark_of(OPEN, {4}, 0)
        assert mark is not None
        moved = OPEN.with_ensemble(15, (1, 2, 5))
        assert step(moved, mark, 10 * GRACE_US) is Step.REPAIR_OLDER
        repaired = moved.with_node(10, 2, 6)
        assert step(repaired, mark, 10 * GRACE_US) is Step.DONE
        replaced = OPEN.with_ensemble(10, (1, 2, 5))
        assert step(replaced, mark, 10 * GRACE_US) is Step.DONE

    def test_older_fragments_of_an_open_ledger_are_repaired_at_once(self) -> None:
        assert step(OPEN, Mark(7, (3,), 0), 1) is Step.REPAIR_OLDER
        assert step(OPEN.with_joining(9), Mark(7, (9,), 0), 1) is Step.REPAIR_OLDER
        # The newest fragment names a lost node, too: a writer without entries is shut out first.
        both = mark_of(OPEN, {3, 4}, 0)
        assert both is not None
        assert step(OPEN, both, GRACE_US - 1) is Step.WAIT
        assert step(OPEN, both, GRACE_US) is Step.RECOVER

    def test_a_fragment_that_was_begun_on_a_node_that_is_back_is_left_alone(self) -> None:
        mark = mark_of(OPEN, {4}, 0)
        assert mark is not None
        back = OPEN.with_ensemble(15, (1, 2, 5)).with_ensemble(30, (1, 2, 4))
        assert step(back, mark, 10 * GRACE_US) is Step.REPAIR_OLDER
        repaired = back.with_node(10, 2, 6)
        assert step(repaired, mark, 10 * GRACE_US) is Step.WAIT

    def test_a_writer_that_a_member_refuses_is_not_waited_for(self) -> None:
        mark = mark_of(OPEN, {4}, 0)
        assert mark is not None
        assert nodes_to_ask(OPEN, mark) == frozenset()
        # The writer replaced another node, and names node 4 once more.
        late = OPEN.with_ensemble(30, (1, 5, 4))
        assert nodes_to_ask(late, mark) == {4}
        assert step(late, mark, GRACE_US - 1, {4}) is Step.WAIT
        assert step(late, mark, GRACE_US, {4}) is Step.RECOVER
        assert step(late, mark, GRACE_US, {1}) is Step.REPAIR_OLDER
        for ended in (late.recovering(), late.closed(40, 1), None):
            assert nodes_to_ask(ended, mark) == frozenset()


class TestPassedOver:
    """Entries that a repair passed over keep the mark, and those that it does not name as well."""

    MARK = Mark(7, (), 9, gaps=(1, 2), strays=(4, 5))

    def test_a_mark_says_that_there_are_more_than_it_names(self) -> None:
        assert with_gaps(self.MARK, [3], [6]) == Mark(7, (), 9, -1, (1, 2, 3), (4, 5, 6))
        many = with_gaps(self.MARK, range(300), [])
        assert (many.gaps, many.has_more) == (tuple(range(GAPS_MAX)), True)
        assert with_gaps(many, [], []).has_more
        assert merged(many, Mark(7, (3,), 10)) == many._replace(nodes=(3,), since_us=10)
        assert step(CLOSED, many._replace(gaps=()), 10) is Step.FILL

    def test_all_entries_are_looked_at_if_there_are_more(self) -> None:
        more = self.MARK._replace(has_more=True)
        assert not may_fill_more(self.MARK.has_more, 5, [])
        assert may_fill_more(more.has_more, 0, [])
        assert may_fill_more(more.has_more, 1, [2])
        assert not may_fill_more(more.has_more, 0, [2])

    def test_nodes_without_the_entries_leave_the_mark_if_it_names_all(self) -> None:
        left = with_missing(self.MARK, [2], {4}, of_all=False)
        assert left == Mark(7, (), 9, -1, (2,), (5,))
        more = self.MARK._replace(has_more=True)
        kept = with_missing(more, [2], {4}, of_all=False)
        assert (kept.gaps, kept.strays, kept.has_more) == ((2,), (4, 5), True)
        assert with_missing(more, [2], {4}, of_all=True) == left
        many = with_missing(more, range(GAPS_MAX + 1), {4}, of_all=True)
        assert (len(many.gaps), many.strays, many.has_more) == (GAPS_MAX, (4, 5), True)


class TestClocks:
    """The time of a mark is of the node that added it, whose clock may be wrong."""

    AHEAD = Mark(7, (4,), 86_400_000_000, 10)

    def test_a_mark_from_a_clock_ahead_is_over_once_it_was_seen_for_the_grace(self) -> None:
        assert step(OPEN, self.AHEAD, GRACE_US) is Step.WAIT
        assert step(OPEN, self.AHEAD, GRACE_US, seen_us=GRACE_US - 1) is Step.WAIT
        assert step(OPEN, self.AHEAD, GRACE_US, seen_us=GRACE_US) is Step.RECOVER
        assert step(IN_RECOVERY, self.AHEAD, GRACE_US, seen_us=GRACE_US) is Step.RECOVER

    def test_a_mark_is_seen_from_the_first_look_and_anew_once_it_changes(self) -> None:
        seen = SeenMarks()
        assert seen.seen_us(self.AHEAD, 100.0) == 0
        assert seen.seen_us(self.AHEAD, 130.5) == 30_500_000
        grown = Mark(7, (3, 4), self.AHEAD.since_us, 10)
        assert seen.seen_us(grown, 131.0) == 0
        assert seen.seen_us(grown, 132.0) == 1_000_000

    def test_marks_that_are_gone_are_forgotten(self) -> None:
        seen = SeenMarks()
        seen.seen_us(self.AHEAD, 100.0)
        seen.keep({8})
        assert seen.seen_us(self.AHEAD, 130.0) == 0


class TestOlderFragments:
    """When the mark of an open ledger goes, and which nodes are filled in their own places."""

    THREE = Mark(7, (3,), 0)
    REPAIRED = OPEN.with_node(0, 2, 6)

    def test_a_mark_goes_once_nothing_names_its_nodes(self) -> None:
        assert may_finish(OPEN, self.REPAIRED, self.THREE)
        assert may_finish(OPEN, None, self.THREE)
        # Node 3 was filled in its own place.
        assert may_finish(OPEN, OPEN, self.THREE)

    @pytest.mark.parametrize(
        "after",
        [
            # The newest fragment names it, or what was the newest one, or it joins.
            REPAIRED.with_ensemble(30, (1, 2, 3)),
            REPAIRED.with_ensemble(10, (1, 2, 3)).with_ensemble(30, (1, 2, 4)),
            REPAIRED.with_ensemble(30, (1, 2, 3)).closed(40, 1),
            REPAIRED.with_joining(3),
            # Perhaps no one else ends the recovery.
            REPAIRED.recovering(),
        ],
    )
    def test_a_mark_stays_while_what_was_not_repaired_names_its_nodes(
        self, after: LedgerMetadata
    ) -> None:
        assert not may_finish(OPEN, after, self.THREE)

    def test_a_node_is_filled_in_its_place_only_if_its_mark_can_go_then(self) -> None:
        assert may_refill(OPEN, self.THREE)
        assert not may_refill(OPEN, Mark(7, (3, 4), 0))
        assert may_refill(CLOSED, Mark(7, (3, 4), 0))
        assert not may_refill(IN_RECOVERY, self.THREE)

    def test_a_recovery_that_nobody_ends_is_ended(self) -> None:
        assert step(IN_RECOVERY, Mark(7, (3,), 0), GRACE_US - 1) is Step.WAIT
        assert step(IN_RECOVERY, Mark(7, (3,), 0), GRACE_US) is Step.RECOVER
        # Also once nothing of it names the lost node any more.
        repaired = self.REPAIRED.recovering()
        assert step(repaired, Mark(7, (3,), 0), GRACE_US) is Step.RECOVER
        assert step(repaired.closed(20, 100), Mark(7, (3,), 0), GRACE_US) is Step.DONE

    def test_older_fragments_are_repaired_while_a_recovery_fails(self) -> None:
        both = Mark(7, (3, 4), 0, 10)
        assert step_without_end(IN_RECOVERY, both) is Step.REPAIR_OLDER
        assert step_without_end(IN_RECOVERY, Mark(7, (4,), 0, 10)) is Step.WAIT
        assert step_without_end(self.REPAIRED.recovering(), both) is Step.WAIT
        # Another client closed it, or deleted it.
        assert step_without_end(CLOSED, both) is Step.WAIT
        assert step_without_end(None, both) is Step.WAIT


class TestRetries:
    def test_pauses_double_up_to_a_bound_and_end_with_the_mark(self) -> None:
        retries, now = Retries(), 0.0
        assert retries.is_due(7, now)
        pauses = []
        for _ in range(9):
            retries.failed(7, now)
            pause = next(p for p in range(1, 400) if retries.is_due(7, now + p))
            pauses.append(pause)
            now += pause
        assert pauses[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
        assert pauses[-1] == AGAIN_MAX_S
        retries.failed(7, now)
        assert not retries.is_due(7, now)
        retries.keep({8})
        assert retries.is_due(7, now)
