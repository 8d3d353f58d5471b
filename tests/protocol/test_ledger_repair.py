"""Which copies a repair makes, and with which changes of other clients it goes on."""

from __future__ import annotations

import pytest

from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping
from cordwood.protocol.ledger_repair import (
    LostPlace,
    ended,
    entries_of,
    fragment_of,
    is_finished,
    is_named,
    is_only_claimed,
    lost_places,
    may_go_on,
    may_join,
)
from cordwood.quorum.ensemble import write_set

OPEN = LedgerMetadata(
    7, Striping(3, 3, 2),
    (Fragment(0, (1, 2, 3)), Fragment(10, (1, 2, 4)), Fragment(20, (1, 5, 4))),
)  # fmt: skip
"""An open ledger of three fragments."""

FIRST = LostPlace(0, 9, 1, 2)
"""Node 2 in the first fragment."""


def is_two(node: int) -> bool:
    return node == 2


class TestPlaces:
    def test_the_newest_fragment_counts_only_once_the_ledger_is_closed(self) -> None:
        assert lost_places(OPEN, lambda node: node == 1) == [
            LostPlace(0, 9, 0, 1), LostPlace(10, 19, 0, 1),
        ]  # fmt: skip
        assert lost_places(OPEN, lambda node: node == 5) == []
        assert lost_places(OPEN.recovering(), lambda node: node == 5) == []
        closed = OPEN.closed(24, 9)
        assert lost_places(closed, lambda node: node == 5) == [LostPlace(20, 24, 1, 5)]

    def test_a_ledger_of_one_fragment_has_none_while_it_is_open(self) -> None:
        one = LedgerMetadata(7, Striping(1, 1, 1), (Fragment(0, (1,)),))
        assert lost_places(one, lambda node: True) == []
        assert lost_places(one.closed(-1, 0), lambda node: True) == [LostPlace(0, -1, 0, 1)]

    def test_no_entry_of_the_next_fragment_is_copied(self) -> None:
        assert list(entries_of(FIRST, Striping(3, 3, 2))) == list(range(10))
        assert list(entries_of(FIRST, Striping(3, 1, 1))) == [1, 4, 7]
        assert list(entries_of(LostPlace(21, 20, 0, 1), Striping(3, 3, 2))) == []

    @pytest.mark.parametrize("first", [0, 1, 5, 2**63 - 30])
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 29])
    @pytest.mark.parametrize("striping", [Striping(1, 1, 1), Striping(3, 2, 2), Striping(5, 3, 2)])
    def test_the_entries_of_a_place_are_those_that_its_write_sets_name(
        self, first: int, count: int, striping: Striping
    ) -> None:
        for place in range(striping.ensemble):
            found = entries_of(LostPlace(first, first + count - 1, place, 1), striping)
            every = range(first, first + count)
            wanted = [each for each in every if place in write_set(each, striping)]
            assert ([*found], len(found), found[1:3]) == (wanted, len(wanted), wanted[1:3])

    def test_a_fragment_of_many_entries_costs_no_list_of_them(self) -> None:
        found = entries_of(LostPlace(0, 10**15 - 1, 1, 2), Striping(3, 2, 2))
        assert found[10**14 : 10**14 + 3] == [15 * 10**13, 15 * 10**13 + 1, 15 * 10**13 + 3]


JOINING = OPEN.with_joining(9)
MOVED = JOINING.with_ensemble(30, (1, 5, 6))


@pytest.mark.parametrize(
    ("found", "is_allowed"),
    [
        (JOINING, True),
        # The writer began another fragment, or replaced its newest one.
        (MOVED, True),
        (JOINING.with_ensemble(20, (1, 5, 6)), True),
        (JOINING.with_joining(8), True),
        # Another node of the fragment was repaired.
        (JOINING.with_node(0, 0, 8), True),
        # A recovery keeps repairs of older fragments.
        (JOINING.recovering(), True),
        # The end lets no node join any more.
        (JOINING.closed(24, 9), False),
        (JOINING.closed(24, 9).with_joining(9), False),
        (OPEN, False),
        # Another repair replaced the lost node, with another node or with this one.
        (JOINING.with_node(0, 1, 8), False),
        (JOINING.with_node(0, 1, 9), False),
        # The node is a member in another place by now.
        (JOINING.with_node(0, 2, 9), False),
    ],
)
def test_a_repair_goes_on_with_the_changes_of_others(
    found: LedgerMetadata, is_allowed: bool
) -> None:
    assert may_go_on(found, FIRST, 9) is is_allowed


def test_a_named_node_is_known() -> None:
    assert fragment_of(MOVED, FIRST) == Fragment(0, (1, 2, 3))
    assert not is_named(MOVED, FIRST, 9)
    named = MOVED.with_node(0, 1, 9)
    assert named.fragments[0] == Fragment(0, (1, 9, 3))
    assert named.fragments[1:] == MOVED.fragments[1:]
    assert fragment_of(named, FIRST) is None
    assert is_named(named, FIRST, 9)
    # What was the newest fragment is settled after the next change.
    assert fragment_of(OPEN, LostPlace(20, 29, 1, 5)) is None
    assert fragment_of(MOVED, LostPlace(20, 29, 1, 5)) == Fragment(20, (1, 5, 4))


def test_no_node_joins_for_a_place_that_another_repair_changed() -> None:
    assert may_join(OPEN, FIRST, 9)
    assert not may_join(OPEN.with_node(0, 1, 8), FIRST, 9)
    assert not may_join(OPEN.with_node(0, 2, 9), FIRST, 9)
    assert not may_join(OPEN.closed(24, 9), FIRST, 9)


def test_only_attempts_at_an_upload_come_between_in_a_closed_ledger() -> None:
    closed = OPEN.closed(24, 9).with_joining(9)
    claimed = closed.tiering(5)
    for before in (closed, claimed):
        assert is_only_claimed(before, before)
        assert is_only_claimed(before, closed.tiering(6))
        assert not is_only_claimed(before, claimed.tiered(7, 1))
        assert not is_only_claimed(before, claimed.joined())
        assert not is_only_claimed(before, claimed.with_node(0, 1, 8))
    assert may_go_on(claimed, FIRST, 9, was_closed=True)
    assert not may_go_on(claimed, FIRST, 9)
    assert not may_go_on(claimed.joined(), FIRST, 9, was_closed=True)


class TestEnd:
    def test_a_lost_node_that_another_repair_named_is_not_filled(self) -> None:
        named = OPEN.with_node(0, 0, 9)
        assert is_finished(OPEN, named, set(), lambda node: node == 8)
        assert not is_finished(OPEN, named, set(), lambda node: node == 9)
        # The repair filled that place itself, and the node counts as lost still.
        assert is_finished(OPEN, named, {LostPlace(0, 9, 0, 9)}, lambda node: node == 9)

    def test_fragments_that_were_settled_after_the_beginning_do_not_count(self) -> None:
        assert lost_places(MOVED, lambda node: node == 5) == [LostPlace(20, 29, 1, 5)]
        assert is_finished(OPEN, MOVED, set(), lambda node: node == 5)

    def test_an_open_ledger_keeps_the_nodes_of_other_repairs(self) -> None:
        joining = OPEN.with_joining(9).with_joining(8).with_joining(2)
        assert ended(joining, {9}, is_two, was_closed=False).joining == (8,)

    def test_a_recovery_keeps_all_nodes_until_its_end(self) -> None:
        joining = OPEN.recovering().with_joining(9)
        assert ended(joining, {9}, is_two, was_closed=False) == joining

    def test_a_ledger_that_was_closed_meanwhile_keeps_the_nodes_of_a_later_repair(self) -> None:
        later = OPEN.closed(24, 9).with_joining(9)
        assert later.state is LedgerState.CLOSED
        assert ended(later, {9}, is_two, was_closed=False) == later
        assert ended(later, {8}, is_two, was_closed=True).joining == ()
