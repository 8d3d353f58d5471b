"""Which entries are looked at while the mark of a ledger stays."""

from __future__ import annotations

from cordwood.ledger import Fragment, LedgerMetadata, Striping
from cordwood.protocol.ledger_autorecovery import Mark
from cordwood.protocol.ledger_check import MISSING_MAX
from cordwood.protocol.ledger_fills import ALL, Fills, Look, Seen, back_in_place

OPEN = LedgerMetadata(7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)), Fragment(10, (1, 2, 4))))
MARK = Mark(7, (3, 4), 0, gaps=(1, 2))
NOBODY: frozenset[int] = frozenset()
FIRST = Seen(5, NOBODY, last=9)


class TestBack:
    def test_nodes_that_a_repair_may_not_fill_are_filled_beside_it(self) -> None:
        recovered = OPEN.recovering()
        assert back_in_place(recovered, MARK, {1, 2, 3, 4}) == {3}
        assert back_in_place(OPEN, MARK, {1, 2, 3, 4}) == {3}
        # It is away still, or it is filled in its own place by the repair.
        assert back_in_place(recovered, MARK, {1, 2, 4}) == NOBODY
        assert back_in_place(OPEN, Mark(7, (3,), 0), {1, 2, 3, 4}) == NOBODY
        assert back_in_place(recovered.closed(20, 100), MARK, {1, 2, 3, 4}) == NOBODY


class TestLooks:
    def test_gaps_are_looked_at_until_all_have_their_copies(self) -> None:
        fills = Fills()
        assert fills.look(MARK, FIRST) == Look((1, 2))
        fills.note(MARK, FIRST, [2], has_more=False)
        assert fills.look(MARK, FIRST) == Look((2,))
        fills.note(MARK, FIRST, [], has_more=False)
        assert fills.look(MARK, FIRST).is_empty
        assert fills.look(MARK, FIRST._replace(version=6)) == Look((1, 2))

    def test_all_are_looked_at_once_for_each_return_and_version(self) -> None:
        fills, seen = Fills(), FIRST._replace(back=frozenset({3}))
        assert fills.look(MARK, seen) is ALL
        assert not ALL.is_empty
        fills.note(MARK, seen, [9], has_more=False)
        assert fills.look(MARK, seen) == Look((9,))
        # It lost its disk once more, more entries are settled, or another node is back.
        assert fills.look(MARK, seen._replace(last=20)) is ALL
        assert fills.look(MARK, seen._replace(version=6)) is ALL
        assert fills.look(MARK, seen._replace(back=frozenset({3, 4}))) is ALL
        assert fills.look(MARK._replace(has_more=True), FIRST._replace(version=7)) is ALL

    def test_all_are_looked_at_again_if_more_may_lack_copies(self) -> None:
        fills = Fills()
        fills.note(MARK, FIRST, range(MISSING_MAX), has_more=False)
        assert fills.look(MARK, FIRST).has_more
        fills.note(MARK, FIRST, [1, 2], has_more=False)
        assert fills.look(MARK, FIRST) == Look((1, 2), has_more=False)

    def test_marks_that_are_gone_are_forgotten(self) -> None:
        fills = Fills()
        fills.note(MARK, FIRST, [], has_more=False)
        fills.keep({7})
        assert fills.look(MARK, FIRST).is_empty
        fills.keep({8})
        assert fills.look(MARK, FIRST) == Look((1, 2))
