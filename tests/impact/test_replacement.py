"""The steps by which a node gets a new directory: each follows from what the cluster says."""

from __future__ import annotations

import pytest

from cordwood.impact.replacement import ReplaceStep, next_step
from cordwood.rebuilding import LostNode

DRAINED = LostNode(3, 7, relocates=True, drain=True, is_empty=True)
EMPTY = LostNode(3, 7, is_empty=True)


@pytest.mark.parametrize(
    ("entry", "is_up", "is_placed", "ledgers", "step"),
    [
        (None, True, False, 0, ReplaceStep.DRAIN),
        (None, False, False, 0, ReplaceStep.LOST),
        (LostNode(3, 7, relocates=True, drain=True), True, False, 0, ReplaceStep.WAIT),
        (LostNode(3, 7), False, False, 0, ReplaceStep.WAIT),
        (LostNode(3, 7), True, False, 0, ReplaceStep.WAIT),
        (DRAINED, True, False, 2, ReplaceStep.LEDGERS),
        (EMPTY, False, False, 1, ReplaceStep.LEDGERS),
        (DRAINED, True, False, 0, ReplaceStep.LEAVE),
        (EMPTY, True, False, 0, ReplaceStep.PLACE),
        (EMPTY, False, False, 0, ReplaceStep.PLACE),
        # It is in its place. Nothing is drained again, wherever the last try was stopped.
        (DRAINED, False, True, 0, ReplaceStep.LEAVE),
        (EMPTY, False, True, 5, ReplaceStep.JOIN),
        (EMPTY, True, True, 0, ReplaceStep.JOIN),
        (None, False, True, 0, ReplaceStep.JOIN),
        (None, True, True, 0, ReplaceStep.DONE),
    ],
)
def test_next_step(
    entry: LostNode | None, is_up: bool, is_placed: bool, ledgers: int, step: ReplaceStep
) -> None:
    assert next_step(entry, is_up=is_up, is_placed=is_placed, ledgers=ledgers) is step


@pytest.mark.parametrize(
    ("entry", "is_up", "step"),
    [
        (None, True, ReplaceStep.DONE),
        (None, False, ReplaceStep.JOIN),
        (EMPTY, False, ReplaceStep.PLACE),
        (DRAINED, True, ReplaceStep.LEAVE),
    ],
)
def test_a_node_that_came_back_while_it_was_placed_is_in_its_place(
    entry: LostNode | None, is_up: bool, step: ReplaceStep
) -> None:
    found = next_step(entry, is_up=is_up, is_placed=False, ledgers=0, is_begun=True)
    assert found is step
