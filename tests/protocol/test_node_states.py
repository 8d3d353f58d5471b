"""Which nodes are picked for new copies after they were slow, full, failed or gone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.node_states import (
    FULL_S,
    NO_SPACE_S,
    PROBE_S,
    REBUILDING_S,
    SLOW_MAX_S,
    SLOW_S,
    NodeState,
    NodeStates,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
UP = (ONE, TWO, THREE)
TICK_S = 0.1


def test_nothing_speaks_against_a_node_that_nothing_is_known_of() -> None:
    assert NodeStates().pick_from(UP, 0.0) == set(UP)


def test_only_nodes_that_are_up_are_picked() -> None:
    assert NodeStates().pick_from([TWO], 0.0) == {TWO}


def test_a_full_node_is_left_out_for_a_while() -> None:
    states = NodeStates()
    states.on_full(TWO, 20.0)
    states.on_no_space(THREE, 20.0)
    assert states.state(TWO, 20.0) is NodeState.OVERLOADED
    assert states.pick_from(UP, 20.0 + FULL_S - 0.01) == {ONE}
    assert states.pick_from(UP, 20.0 + FULL_S) == {ONE, TWO}
    assert states.state(THREE, 20.0 + FULL_S) is NodeState.NO_SPACE
    assert states.pick_from(UP, 20.0 + NO_SPACE_S) == set(UP)


def test_a_full_node_that_tells_of_room_is_picked_at_once() -> None:
    states = NodeStates()
    for node, on_refused in ((ONE, states.on_full), (TWO, states.on_no_space)):
        on_refused(node, 0.0)
        states.on_space(node)
    states.on_failed(THREE)
    states.on_space(THREE)
    assert states.pick_from(UP, 0.0) == {ONE, TWO}


def test_a_failed_node_is_not_picked_until_it_connects_anew() -> None:
    states = NodeStates()
    states.on_failed(ONE)
    states.on_full(TWO, 0.0)
    states.on_slow(THREE, 0.0)
    assert states.pick_from(UP, 1e9) == {TWO}
    assert states.state(ONE, 1e9) is NodeState.DISABLED
    for node in UP:
        states.on_up(node)
    assert states.pick_from(UP, 0.0) == set(UP)


def test_whom_the_failure_detector_suspects_is_not_picked() -> None:
    states = NodeStates()
    states.set_silent(frozenset({TWO}))
    assert states.state(TWO, 0.0) is NodeState.SUSPECTED
    assert states.pick_from(UP, 0.0) == {ONE, THREE}
    states.set_silent(frozenset())
    assert states.pick_from(UP, 0.0) == set(UP)


class TestGraylist:
    def test_a_slow_node_is_probed_before_it_is_picked(self) -> None:
        states = NodeStates()
        states.on_slow(TWO, 10.0)
        assert states.due_probes(UP, 10.0 + SLOW_S - 0.01) == ()
        assert states.state(TWO, 10.0 + SLOW_S) is NodeState.PROBING
        assert states.pick_from(UP, 1e9) == {ONE, THREE}
        assert states.due_probes(UP, 12.0) == (TWO,)
        assert states.due_probes(UP, 12.1) == ()
        states.on_probed(TWO, True, 12.2)
        assert states.pick_from(UP, 12.2) == set(UP)

    def test_a_probe_that_took_far_longer_than_others_take_is_no_good_sign(self) -> None:
        """Swarm seed 12224: 12 ms where the others take half of one, and a stall a second on."""
        states = NodeStates()
        states.on_slow(TWO, 0.0)
        assert states.due_probes(UP, SLOW_S) == (TWO,)
        states.on_probed(TWO, True, SLOW_S + 0.012, 0.01)
        assert states.pick_from(UP, SLOW_S + 0.02) == {ONE, THREE}
        assert states.due_probes(UP, 3 * SLOW_S + 0.02) == (TWO,)
        states.on_probed(TWO, True, 3 * SLOW_S + 0.025, 0.01)
        assert states.pick_from(UP, 3 * SLOW_S + 0.025) == set(UP)

    def test_a_node_that_is_down_is_not_probed(self) -> None:
        states = NodeStates()
        states.on_slow(TWO, 0.0)
        assert states.due_probes([ONE, THREE], 100.0) == ()
        assert states.due_probes(UP, 100.0) == (TWO,)

    @pytest.mark.parametrize("answer", ["never", "late", "lost"])
    def test_a_probe_that_fails_makes_it_longer_each_time(self, answer: str) -> None:
        states = NodeStates()
        states.on_slow(TWO, 0.0)
        now, lengths, sent = 0.0, [], 0.0
        while len(lengths) < 8:
            now += TICK_S
            if states.due_probes(UP, now):
                lengths.append(now - sent)
                sent = now
                if answer == "lost":
                    states.on_probed(TWO, False, now)
                elif answer == "late":
                    states.on_probed(TWO, True, now + PROBE_S)
        assert lengths[0] == pytest.approx(SLOW_S, abs=2 * TICK_S)
        assert all(later > earlier * 1.3 for earlier, later in itertools.pairwise(lengths[:5]))
        assert lengths[-1] <= SLOW_MAX_S + PROBE_S + 2 * TICK_S

    def test_one_stall_that_makes_many_waves_late_counts_once(self) -> None:
        states = NodeStates()
        for at in range(10):
            states.on_slow(TWO, at / 10)
        assert states.due_probes(UP, SLOW_S) == (TWO,)

    def test_slow_again_soon_is_longer_and_after_long_it_is_not(self) -> None:
        states = NodeStates()
        states.on_slow(TWO, 0.0)
        assert states.due_probes(UP, 2.0)
        states.on_probed(TWO, True, 2.0)
        states.on_slow(TWO, 3.0)
        assert states.state(TWO, 3.0 + 2 * SLOW_S - 0.01) is NodeState.SLOW
        assert states.due_probes(UP, 3.0 + 2 * SLOW_S)
        states.on_probed(TWO, True, 7.0)
        states.on_slow(TWO, 8.0 + SLOW_MAX_S)
        assert states.state(TWO, 8.0 + SLOW_MAX_S + SLOW_S) is NodeState.PROBING

    def test_a_wave_that_nobody_answered_speaks_against_none(self) -> None:
        states = NodeStates()
        states.on_timed_out([ONE, TWO], [ONE, TWO], 0.0)
        assert states.pick_from(UP, 0.0) == set(UP)
        states.on_timed_out([ONE], [ONE, TWO], 0.0)
        assert states.pick_from(UP, 0.0) == {TWO, THREE}
        states.on_timed_out([THREE], [THREE], 0.0)
        assert states.pick_from(UP, 0.0) == {TWO}


EVENTS = st.tuples(
    st.sampled_from(["slow", "full", "no space", "room", "up", "probe ok", "probe lost", "tick"]),
    st.sampled_from(UP),
    st.floats(0.0, 5.0),
)


@given(st.lists(EVENTS, max_size=60))
def test_a_node_that_does_well_is_always_picked_again(events: list[tuple[str, NodeId, float]]):
    """Whatever happened: with probes answered, all are back within the longest stay."""
    states, now = NodeStates(), 0.0
    acts = {
        "slow": lambda n: states.on_slow(n, now),
        "full": lambda n: states.on_full(n, now),
        "no space": lambda n: states.on_no_space(n, now),
        "room": states.on_space,
        "up": states.on_up,
        "probe ok": lambda n: states.on_probed(n, True, now),
        "probe lost": lambda n: states.on_probed(n, False, now),
        "tick": lambda n: states.due_probes(UP, now),
    }
    for what, node, later in events:
        now += later
        acts[what](node)
        assert states.pick_from(UP, now) <= set(UP)
    for _ in range(3):
        now += SLOW_MAX_S + PROBE_S
        for node in states.due_probes(UP, now):
            states.on_probed(node, True, now)
    assert states.pick_from(UP, now) == set(UP)


def test_a_node_that_a_member_called_rebuilt_is_left_out_as_long_as_log_device_does() -> None:
    states = NodeStates()
    states.on_rebuilding(TWO, 20.0)
    states.on_space(TWO)
    assert states.state(TWO, 20.0 + REBUILDING_S - 0.01) is NodeState.REBUILDING
    assert states.pick_from(UP, 20.0) == {ONE, THREE}
    assert states.pick_from(UP, 20.0 + REBUILDING_S) == set(UP)
    states.on_rebuilding(TWO, 60.0)
    states.on_up(TWO)
    assert states.pick_from(UP, 60.0) == set(UP)


def test_a_node_that_is_said_to_be_rebuilt_is_left_out_while_that_is_so() -> None:
    states = NodeStates()
    states.set_rebuilding(frozenset({THREE}))
    states.on_up(THREE)
    assert states.state(THREE, 1e9) is NodeState.REBUILDING
    assert states.pick_from(UP, 1e9) == {ONE, TWO}
    states.set_rebuilding(frozenset())
    assert states.pick_from(UP, 0.0) == set(UP)
