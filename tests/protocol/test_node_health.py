"""Which nodes are picked for new copies after they were slow, full, failed or gone."""

from __future__ import annotations

from cordwood.nodes import NodeId
from cordwood.protocol.node_health import FULL_S, SLOW_S, NodeHealth

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
UP = (ONE, TWO, THREE)


def test_nothing_speaks_against_a_node_that_nothing_is_known_of() -> None:
    health = NodeHealth()
    assert health.pick_from(UP, 0.0) == set(UP)


def test_a_slow_or_full_node_is_left_out_for_a_while() -> None:
    health = NodeHealth()
    health.on_slow(TWO, 10.0)
    health.on_full(THREE, 20.0)
    assert health.pick_from(UP, 10.0 + SLOW_S - 0.01) == {ONE}
    assert health.pick_from(UP, 20.0 + FULL_S - 0.01) == {ONE, TWO}
    assert health.pick_from(UP, 20.0 + FULL_S) == set(UP)


def test_a_failed_node_is_not_picked_until_it_connects_anew() -> None:
    health = NodeHealth()
    health.on_failed(ONE)
    health.on_full(TWO, 0.0)
    assert health.pick_from(UP, 1e9) == {TWO, THREE}
    for node in (ONE, TWO):
        health.on_up(node)
    assert health.pick_from(UP, 0.0) == set(UP)


def test_only_nodes_that_are_up_are_picked() -> None:
    assert NodeHealth().pick_from([TWO], 0.0) == {TWO}
