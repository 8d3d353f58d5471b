"""When logs take in nodes that joined."""

from __future__ import annotations

import pytest
from swaps import swap_value

from cordwood.nodes import NodeId
from cordwood.protocol import nodeset_growth
from cordwood.protocol.nodeset_growth import GROW_AFTER_S, GROW_LOGS, NodesetGrowth

ALL = tuple(map(NodeId, (1, 2, 3)))
NEW = (*ALL, NodeId(4))


class Growing:
    """A rule that has known three nodes for long, and logs on these."""

    def __init__(self, logs: int = 3) -> None:
        self.rule = NodesetGrowth()
        self.nodesets = dict.fromkeys(range(1, logs + 1), ALL)
        self.now_s = 1000.0
        self.asked = 0
        assert self.due(ALL) == frozenset()
        assert self.due(ALL, after_s=GROW_AFTER_S) == frozenset()

    def due(self, able: tuple[NodeId, ...], *, after_s: float = 0.0) -> frozenset[int]:
        self.now_s += after_s

        def nodesets() -> dict[int, tuple[NodeId, ...]]:
            self.asked += 1
            return self.nodesets

        return self.rule.due(self.now_s, able, nodesets)


def test_a_node_that_joins_is_taken_in_once_it_has_been_there_for_long() -> None:
    growing = Growing()
    assert growing.due(NEW) == frozenset()
    assert growing.due(NEW, after_s=GROW_AFTER_S - 1) == frozenset()
    assert growing.due(NEW, after_s=1) == {1, 2, 3}
    growing.rule.on_looked_at(frozenset({1, 2, 3}))
    assert growing.due(NEW, after_s=1000) == frozenset()


def test_what_was_not_looked_at_is_due_again() -> None:
    growing = Growing()
    growing.due(NEW)
    due = growing.due(NEW, after_s=GROW_AFTER_S)
    assert growing.due(NEW) == due == {1, 2, 3}


def test_a_node_that_goes_and_comes_begins_anew() -> None:
    growing = Growing()
    growing.due(NEW)
    assert growing.due(ALL, after_s=GROW_AFTER_S - 1) == frozenset()
    assert growing.due(NEW, after_s=1) == frozenset()
    assert growing.due(NEW, after_s=GROW_AFTER_S) == {1, 2, 3}


def test_logs_that_have_the_node_are_not_due() -> None:
    growing = Growing()
    growing.nodesets[2] = NEW
    growing.due(NEW)
    assert growing.due(NEW, after_s=GROW_AFTER_S) == {1, 3}


def test_a_node_that_goes_makes_nothing_due() -> None:
    growing = Growing()
    asked = growing.asked
    assert growing.due(ALL[:2], after_s=1000) == frozenset()
    assert growing.asked == asked


def test_many_logs_are_a_few_at_a_time() -> None:
    growing = Growing(logs=2 * GROW_LOGS + 1)
    growing.due(NEW)
    growing.now_s += GROW_AFTER_S
    sizes = []
    while due := growing.due(NEW, after_s=5):
        sizes.append(len(due))
        growing.rule.on_looked_at(due)
    assert sizes == [GROW_LOGS, GROW_LOGS, 1]


@pytest.mark.parametrize("after_s", [0.0, 3.0])
def test_a_first_look_makes_no_log_move_that_has_all_nodes(
    after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: nodeset_growth.GROW_AFTER_S, after_s)
    rule = NodesetGrowth()
    for now_s in (0.0, after_s):
        assert rule.due(now_s, ALL, lambda: {1: ALL}) == frozenset()
