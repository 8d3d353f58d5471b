"""Which entries are looked at while the mark of a ledger stays."""

from __future__ import annotations

from cordwood.ledger import Fragment, LedgerMetadata, Striping
from cordwood.protocol.ledger_autorecovery import Mark
from cordwood.protocol.ledger_check import MISSING_MAX
from cordwood.protocol.ledger_fills import ALL, Fills, Look, back_in_place

OPEN = LedgerMetadata(7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)), Fragment(10, (1, 2, 4))))
MARK = Mark(7, (3, 4), 0, gaps=(1, 2))
NOBODY: frozenset[int] = frozenset()


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
        assert fills.look(MARK, 5, NOBODY) == Look((1, 2))
        fills.note(MARK, 5, NOBODY, [2], has_more=False)
        assert fills.look(MARK, 5, NOBODY) == Look((2,))
        fills.note(MARK, 5, NOBODY, [], has_more=False)
        assert fills.look(MARK, 5, NOBODY).is_empty
        assert fills.look(MARK, 6, NOBODY) == Look((1, 2))

    def test_all_are_looked_at_once_for_each_return_and_version(self) -> None:
        fills, back = Fills(), frozenset({3})
        assert fills.look(MARK, 5, back) is ALL
        assert not ALL.is_empty
        fills.note(MARK, 5, back, [9], has_more=False)
        assert fills.look(MARK, 5, back) == Look((9,))
        # It lost its disk once more, or another node is back.
        assert fills.look(MARK, 6, back) is ALL
        assert fills.look(MARK, 5, frozenset({3, 4})) is ALL
        assert fills.look(MARK._replace(has_more=True), 7, NOBODY) is ALL

    def test_all_are_looked_at_again_if_more_may_lack_copies(self) -> None:
        fills = Fills()
        fills.note(MARK, 5, NOBODY, range(MISSING_MAX), has_more=False)
        assert fills.look(MARK, 5, NOBODY).has_more
        fills.note(MARK, 5, NOBODY, [1, 2], has_more=False)
        assert fills.look(MARK, 5, NOBODY) == Look((1, 2), has_more=False)

    def test_marks_that_are_gone_are_forgotten(self) -> None:
        fills = Fills()
        fills.note(MARK, 5, NOBODY, [], has_more=False)
        fills.keep({7})
        assert fills.look(MARK, 5, NOBODY).is_empty
        fills.keep({8})
        assert fills.look(MARK, 5, NOBODY) == Look((1, 2))
