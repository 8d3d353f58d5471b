"""A donor's moves: the order of writes, bounds, pace, and what counts as dealt with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.rebuild_flow import BLOCK_COST_BYTES, FlowLimits, RebuildFlow, Step
from cordwood.protocol.rebuild_plan import Held, Move

KIB = 1 << 10


def move(
    last: int = 4, partition: int = 5, stores: str = "4", amends: str = "2", *,
    size: int = 1000, changes: bool = True,
) -> Move:  # fmt: skip
    block = Held(7, last, last, 50, size, partition, (1, 2, 3))

    def nodes(text: str) -> tuple[NodeId, ...]:
        return tuple(NodeId(int(number)) for number in text.split())

    return Move(block, nodes("1 2 4"), nodes(stores), nodes(amends), changes)


def flow(limits: FlowLimits | None = None) -> RebuildFlow:
    return RebuildFlow(limits or FlowLimits(), 0.0)


class TestOrder:
    def test_stores_then_a_note_then_the_others_envelopes_then_its_own(self) -> None:
        found, it = flow(), move(stores="4 5", amends="2 3")
        assert found.begin(it, 0.0) is Step.STORE
        assert found.nodes_of(it.block) == (4, 5)
        assert found.on_durable(it.block, NodeId(5)) is None
        assert found.on_durable(it.block, NodeId(5)) is None, "twice is once"
        assert found.on_durable(it.block, NodeId(2)) is None, "an amend is not asked for yet"
        assert found.on_durable(it.block, NodeId(4)) is Step.NOTE
        assert found.nodes_of(it.block) == ()
        assert found.on_own(it.block) is Step.AMEND
        assert found.nodes_of(it.block) == (2, 3)
        assert found.on_durable(it.block, NodeId(4)) is None
        assert found.on_durable(it.block, NodeId(2)) is None
        assert found.on_durable(it.block, NodeId(3)) is Step.OWN
        assert found.on_own(it.block) is Step.DONE
        assert (len(found), found.bytes_done) == (0, 2000)

    @pytest.mark.parametrize(
        ("stores", "amends", "changes", "steps"),
        [
            ("4", "", True, [Step.STORE, Step.NOTE, Step.OWN, Step.DONE]),
            ("", "2", True, [Step.NOTE, Step.AMEND, Step.OWN, Step.DONE]),
            ("", "", True, [Step.NOTE, Step.OWN, Step.DONE]),
            # A range: the copy goes back to where it was, and no envelope changes.
            ("3", "", False, [Step.STORE, Step.DONE]),
        ],
    )
    def test_steps_in_which_nothing_is_to_do_are_passed_over(
        self, stores: str, amends: str, changes: bool, steps: list[Step]
    ) -> None:
        found, it = flow(), move(stores=stores, amends=amends, changes=changes)
        taken = [found.begin(it, 0.0)]
        while taken[-1] is not Step.DONE:
            if taken[-1] in (Step.NOTE, Step.OWN):
                taken.append(found.on_own(it.block))
            else:
                for node in found.nodes_of(it.block):
                    if (step := found.on_durable(it.block, node)) is not None:
                        taken.append(step)
        assert taken == steps
        assert len(found) == 0

    def test_its_own_envelope_is_never_first(self) -> None:
        found, it = flow(), move()
        found.begin(it, 0.0)
        with pytest.raises(AssertionError, match="has its turn"):
            found.on_own(it.block)

    def test_a_move_that_was_noted_goes_on_with_the_others_envelopes(self) -> None:
        found, it = flow(), move(stores="", amends="2 3")
        assert found.begin(it, 0.0, noted=True) is Step.AMEND
        assert found.nodes_of(it.block) == (2, 3)
        alone = move(9, stores="", amends="")
        assert found.begin(alone, 0.0, noted=True) is Step.OWN
        assert found.on_own(alone.block) is Step.DONE


class TestBounds:
    def test_so_many_at_once(self) -> None:
        found = flow(FlowLimits(moves_max=2))
        for last in (1, 2):
            assert found.wait_s(0.0) == 0.0
            found.begin(move(last), 0.0)
        assert found.wait_s(0.0) is None
        found.on_failed(move(1).block)
        assert found.wait_s(0.0) == 0.0

    def test_so_many_bytes_at_once_or_one_that_is_larger(self) -> None:
        found = flow(FlowLimits(bytes_max=1500))
        found.begin(move(1, size=9000), 0.0)
        assert found.wait_s(0.0) is None
        found.on_failed(move(1, size=9000).block)
        found.begin(move(2), 0.0)
        found.begin(move(3), 0.0)
        assert found.wait_s(0.0) is None

    def test_the_pace_counts_what_is_sent(self) -> None:
        found = flow(FlowLimits(bytes_s=100 * KIB))
        found.begin(move(1, stores="4 5", size=100 * KIB), 0.0)
        # A tenth of a second is spent ahead.
        assert found.wait_s(0.0) == pytest.approx(1.9)
        assert found.wait_s(1.0) == pytest.approx(0.9)
        assert found.wait_s(1.95) == 0.0

    def test_a_block_costs_something_where_no_body_is_sent(self) -> None:
        found = flow(FlowLimits(bytes_s=100 * KIB))
        begun = 0
        while found.wait_s(0.0) == 0.0:
            begun += 1
            found.begin(move(begun, stores="", amends="2", size=1), 0.0)
        assert begun == 100 * KIB * 0.1 // BLOCK_COST_BYTES + 1


class TestReached:
    def test_a_partition_counts_when_all_of_it_has_come_to_its_end(self) -> None:
        found = flow()
        assert found.reached is None
        first, second = move(1, 5), move(2, 3)
        found.begin(first, 0.0)
        found.on_scanned(5)
        assert found.reached == 6, "what is younger than partition 5 has nothing to do"
        found.begin(second, 0.0)
        found.on_scanned(3)
        assert found.reached == 6
        finish(found, first)
        assert found.reached == 4
        finish(found, second)
        assert found.reached == 3

    def test_one_that_failed_or_has_no_place_is_not_dealt_with(self) -> None:
        found = flow()
        first = move(1, 5)
        found.begin(first, 0.0)
        found.on_failed(first.block)
        found.on_stuck(move(2, 4).block)
        found.on_scanned(3)
        assert (found.reached, found.failed) == (6, (5, 4))

    def test_an_answer_that_comes_after_a_failure_changes_nothing(self) -> None:
        found, it = flow(), move()
        found.begin(it, 0.0)
        found.on_failed(it.block)
        assert found.on_durable(it.block, NodeId(4)) is None
        assert len(found) == 0

    def test_partitions_come_new_to_old(self) -> None:
        found = flow()
        found.on_scanned(3)
        with pytest.raises(AssertionError, match="new to old"):
            found.on_scanned(4)


def finish(found: RebuildFlow, it: Move) -> None:
    """All nodes answer."""
    for node in it.stores:
        found.on_durable(it.block, node)
    found.on_own(it.block)
    for node in it.amends:
        found.on_durable(it.block, node)
    found.on_own(it.block)


ANSWERS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6), st.booleans()), max_size=60)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), ANSWERS)
def test_no_envelope_is_written_before_what_it_promises(
    partitions: list[int], answers: list[tuple[int, int, bool]]
) -> None:
    """A twin that has a set of what is durable where; answers come in any order, and some fail."""
    found = flow()
    moves = [move(last, p, "4 5", "2 3") for last, p in enumerate(sorted(partitions)[::-1])]
    stored: list[set[int]] = [set() for _ in moves]
    over: list[bool | None] = [None] * len(moves)
    for it in moves:
        found.begin(it, 0.0)
    found.on_scanned(0)
    for at, node, works in answers:
        if at >= len(moves) or over[at] is not None:
            continue
        it = moves[at]
        if not works:
            found.on_failed(it.block)
            over[at] = False
            continue
        if node not in found.nodes_of(it.block):
            continue
        # Whoever is sent an amend is sent it when all new copies are durable.
        assert node in it.stores or {4, 5} <= stored[at]
        stored[at].add(node)
        step = found.on_durable(it.block, NodeId(node))
        if step is Step.NOTE:
            assert stored[at] == {4, 5}
            found.on_own(it.block)
        elif step is Step.OWN:
            assert stored[at] == {2, 3, 4, 5}
            found.on_own(it.block)
            over[at] = True
    left = [it.block.partition for it, is_over in zip(moves, over, strict=True) if not is_over]
    assert found.reached == (max(left) + 1 if left else 0)
    assert len(found) == sum(is_over is None for is_over in over)
