"""`cordwood nodes undrain`: what it orders, by what it found out about the node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cordwood.cli import rebuild
from cordwood.errors import Rejected
from cordwood.ledger import Fragment, LedgerMetadata, Striping
from cordwood.rebuilding import LostNode


class Cluster:
    """A store whose node 3 is drained."""

    def __init__(self, *, is_empty: bool) -> None:
        self.ledgers = None
        self.orders: list[tuple[int, str, bool]] = []
        self._lost = (LostNode(3, 7, relocates=True, drain=True, is_empty=is_empty),)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def rebuilding(self, *, donors: bool) -> SimpleNamespace:
        return SimpleNamespace(lost=self._lost)

    def say_rebuild(self, node: int, order: str, *, unless_empty: bool) -> None:
        self.orders.append((node, order, unless_empty))


@pytest.mark.parametrize(
    ("is_empty", "ledgers", "force", "unless_empty"),
    [
        # It may be empty when the order arrives, and nobody looked for its ledgers.
        (False, 5, False, True),
        (True, 0, False, False),
        (True, 5, True, False),
        (False, 5, True, False),
        (True, 5, False, None),
    ],
)
def test_a_node_that_becomes_empty_meanwhile_is_not_undrained(
    monkeypatch: pytest.MonkeyPatch,
    is_empty: bool,
    ledgers: int,
    force: bool,
    unless_empty: bool | None,
) -> None:
    cluster = Cluster(is_empty=is_empty)

    def count(_ledgers: Any, nodes: list[int]) -> dict[int, int]:
        return dict.fromkeys(nodes, ledgers)

    monkeypatch.setattr(rebuild, "open_store", lambda _where: cluster)
    monkeypatch.setattr(rebuild, "count_ledgers", count)
    if unless_empty is None:
        with pytest.raises(Rejected, match="5 ledgers name it"):
            rebuild.undrain(3, force=force)
        assert not cluster.orders
        return
    rebuild.undrain(3, force=force)
    assert cluster.orders == [(3, "undrain", unless_empty)]


class RepairedMeanwhile:
    """Ledger 7 names node 3 alone. A repair marks it, and then names node 4, between two calls."""

    def __init__(self) -> None:
        self._marked = False

    def list(self) -> list[int]:
        return [7]

    def _repair(self) -> None:
        self._marked = True

    def metadata(self, ledger: int) -> LedgerMetadata:
        self._repair()
        fragment = Fragment(0, (4,))
        return LedgerMetadata(ledger, Striping(1, 1, 1), (fragment,))

    def under_replicated(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(ledger=7, nodes=(3,))] if self._marked else []


def test_a_ledger_that_is_repaired_during_the_count_counts() -> None:
    """Marks were read first: the count was 0, and the node with the only copy could go."""
    assert rebuild.count_ledgers(cast(Any, RepairedMeanwhile()), [3]) == {3: 1}
