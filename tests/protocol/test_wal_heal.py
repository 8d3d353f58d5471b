"""Which logs a node that lost records of its WAL has healed, and when it tries again."""

from __future__ import annotations

import pytest

from cordwood.protocol.wal_heal import HealBook, is_settled


def test_nothing_is_lost_of_no_logs() -> None:
    assert HealBook(()).is_healed


def test_a_node_knows_what_it_holds_when_every_log_is_healed() -> None:
    book = HealBook([7, 8])
    assert book.due(0.0) == [7, 8]
    book.on_healed(7)
    assert (book.is_healed, sorted(book.left)) == (False, [8])
    book.on_healed(8)
    assert book.is_healed
    assert book.logs == 2


def test_a_log_that_waits_is_tried_again_after_pauses_that_double() -> None:
    book = HealBook([7])
    now = 0.0
    for pause_s in (0.25, 0.5, 1, 2, 4, 5, 5):
        book.on_waits(7, "node 3 is away", now)
        assert book.due(now + pause_s - 0.01) == []
        assert book.next_s(now) == pause_s
        assert book.due(now + pause_s) == [7]
        now += pause_s
    assert book.waits == "log 7: node 3 is away"


def test_the_first_word_of_what_was_numbered_is_the_bound() -> None:
    book = HealBook([7])
    assert book.bound(7) is None
    book.on_numbered(7, 20)
    book.on_numbered(7, 30)
    assert book.bound(7) == 20


@pytest.mark.parametrize(
    ("bound", "readable", "settled"),
    [
        (5 << 32 | 9, 5 << 32 | 8, False),
        (5 << 32 | 9, 5 << 32 | 9, True),
        (5 << 32 | 9, 6 << 32, True),
        (6 << 32, 5 << 32 | 9, False),
        (6 << 32, 6 << 32, True),
    ],
)
def test_all_is_settled_up_to_what_this_node_may_read(
    bound: int, readable: int, settled: bool
) -> None:
    assert is_settled(bound, readable) is settled
