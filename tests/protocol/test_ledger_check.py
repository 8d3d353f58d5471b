"""What a check of a ledger looks at, and what it makes of the nodes' answers."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping
from cordwood.protocol.ledger_check import MISSING_MAX, Copy, begun, nodes_of, parts

W, A, D, S = Copy.WHOLE, Copy.ABSENT, Copy.DAMAGED, Copy.SILENT

CLOSED = LedgerMetadata(
    7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)), Fragment(50, (1, 4, 3))),
    state=LedgerState.CLOSED, last=99, length=1,
)  # fmt: skip
OPEN = LedgerMetadata(7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)),))


@pytest.mark.parametrize(
    ("told", "is_whole", "short", "lost", "unread", "fills"),
    [
        ((W, W, W), True, 0, 0, 0, []),
        ((W, W, A), False, 1, 0, 0, [3]),
        ((D, W, A), False, 1, 0, 0, [1, 3]),
        # A silent node may have its copy.
        ((W, W, S), True, 0, 0, 0, []),
        ((W, A, S), False, 1, 0, 0, [2]),
        ((S, S, S), False, 0, 0, 1, []),
        ((A, A, S), False, 1, 0, 1, []),
        ((A, A, A), False, 1, 1, 0, []),
        ((A, D, A), False, 1, 1, 0, []),
    ],
)
def test_an_entry_of_a_closed_ledger(
    told: tuple[Copy, ...], is_whole: bool, short: int, lost: int, unread: int, fills: list[int]
) -> None:
    check = begun(CLOSED, 99)
    assert check.add(5, dict(zip((1, 2, 3), told, strict=True))) == fills
    assert (check.is_whole, check.short, check.lost, check.unread) == (
        is_whole, short, lost, unread,
    )  # fmt: skip
    assert check.first_short == (5 if short else None)
    assert check.first_lost == (5 if lost else None)
    assert check.copies == told.count(W)
    assert check.damaged == told.count(D)


@pytest.mark.parametrize(
    ("told", "elsewhere", "is_missing"),
    [
        ((W, W, W), False, False),
        # The silent node may never have got it, and the mark of the ledger stays for it.
        ((W, W, S), False, True),
        ((W, W, A), False, True),
        ((S, S, S), False, True),
        # A mark that went now would forget the node with the only copy.
        ((S, S, S), True, True),
        ((A, A, A), True, True),
    ],
)
def test_an_entry_with_fewer_whole_copies_than_wanted_is_missing(
    told: tuple[Copy, ...], elsewhere: bool, is_missing: bool
) -> None:
    check = begun(CLOSED, 99)
    check.add(5, dict(zip((1, 2, 3), told, strict=True)), elsewhere=elsewhere)
    assert check.missing == ([5] if is_missing else [])
    assert check.lost == 0
    assert check.unread == (not elsewhere and S in told and W not in told)


def test_a_check_names_the_first_of_the_missing_entries() -> None:
    check = begun(CLOSED, 99)
    for entry in range(MISSING_MAX + 9):
        check.add(entry, {1: A, 2: W, 3: W})
    assert check.missing == [*range(MISSING_MAX)]


@pytest.mark.parametrize(
    ("told", "is_whole"),
    [((W, W, A), True), ((W, S, A), True), ((W, A, A), False), ((A, A, A), False)],
)
def test_an_entry_of_an_open_ledger_needs_what_acknowledged_it_and_is_not_filled(
    told: tuple[Copy, ...], is_whole: bool
) -> None:
    """Its writer may still be sending the others."""
    check = begun(OPEN, 9)
    assert check.add(5, dict(zip((1, 2, 3), told, strict=True))) == []
    assert check.is_whole is is_whole


@pytest.mark.parametrize(
    ("entry", "told", "is_whole", "fills"),
    [
        (5, (W, W, A), False, [3]),
        (5, (W, W, S), True, []),
        (50, (W, W, A), True, []),
        (50, (W, A, A), False, []),
    ],
)
def test_an_older_fragment_of_an_open_ledger_needs_all_copies_and_is_filled(
    entry: int, told: tuple[Copy, ...], is_whole: bool, fills: list[int]
) -> None:
    two = LedgerMetadata(7, OPEN.striping, (*OPEN.fragments, Fragment(50, (1, 2, 4))))
    check = begun(two, 60)
    assert check.add(entry, dict(zip((1, 2, 3), told, strict=True))) == fills
    assert check.is_whole is is_whole


def test_all_entries_are_looked_at_by_fragment() -> None:
    first, second = parts(CLOSED, 99, 1.0, random.Random(1))
    assert (first.nodes, list(first.entries)) == ((1, 2, 3), list(range(50)))
    assert (second.nodes, list(second.entries)) == ((1, 4, 3), list(range(50, 100)))


def test_a_sample_has_the_ends_of_each_fragment_and_a_share_of_the_rest() -> None:
    for part in parts(CLOSED, 99, 0.0, random.Random(1)):
        low = 0 if part.nodes[1] == 2 else 50
        assert part.entries == [low, low + 1, low + 2, low + 47, low + 48, low + 49]
    for part in parts(CLOSED, 99, 0.5, random.Random(1)):
        assert part.entries == sorted({*part.entries})
        assert 6 < len(part.entries) <= 6 + 22


@pytest.mark.parametrize("count", [1, 5, 6, 7, 8, 9, 50])
def test_the_turns_look_at_each_entry_between_the_ends_once(count: int) -> None:
    one = replace(CLOSED, fragments=CLOSED.fragments[:1], last=count - 1)
    ends, between = set[int](), list[int]()
    for turn in range(4):
        first, *rest = parts(one, count - 1, 0.0, random.Random(1), (turn, 4))
        ends.update(first.entries)
        between += [entry for part in rest for entry in part.entries]
    assert sorted([*ends, *between]) == [*range(count)]


@pytest.mark.parametrize(("last", "counts"), [(-1, []), (0, [1]), (49, [50]), (50, [50, 1])])
def test_what_is_behind_the_end_is_not_looked_at(last: int, counts: list[int]) -> None:
    found = list(parts(CLOSED, last, 1.0, random.Random(1)))
    assert [len(part.entries) for part in found] == counts


def test_the_nodes_of_an_entry_are_those_of_its_write_set() -> None:
    striped = LedgerMetadata(7, Striping(4, 2, 2), (Fragment(0, (9, 8, 7, 6)),))
    (part,) = parts(striped, 9, 1.0, random.Random(1))
    assert [nodes_of(part, striped, entry) for entry in (0, 3, 5)] == [[9, 8], [6, 9], [8, 7]]
