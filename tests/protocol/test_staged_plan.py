"""Which staged blocks a donor makes anew, and where."""

from __future__ import annotations

import random

import pytest

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.staged_plan import (
    StagedAt,
    StagedMove,
    StagedStuck,
    lacks_copies,
    plan_staged,
)

NODES = range(1, 7)
HERE = StagedAt(0, (1, 2, 3))


def plan(
    me: int,
    *,
    gone: set[int] = set(),  # noqa: B006 - never changed
    leaving: set[int] = set(),  # noqa: B006
    told: dict[int, StagedAt | None],
    up: set[int] | None = None,
    here: StagedAt = HERE,
) -> StagedMove | StagedAt | StagedStuck:
    nodeset = Nodeset(tuple(Member(NodeId(node), "", location=f"r{node}") for node in NODES))
    available = {NodeId(node) for node in (up if up is not None else NODES)} - gone - {NodeId(me)}
    return plan_staged(
        here, me, gone, gone | leaving, told, nodeset, Replication(3, 2), available,
        random.Random(1),
    )  # fmt: skip


def test_the_first_holder_that_has_its_data_makes_the_copies_anew() -> None:
    assert lacks_copies(HERE, {3})
    assert not lacks_copies(HERE, {4})
    found = plan(2, gone={1}, told={3: HERE})
    assert isinstance(found, StagedMove)
    assert found.to.moves == 1
    assert found.to.nodes[:2] == (2, 3)
    assert found.stores == found.to.nodes[2:]
    assert set(found.stores) <= {4, 5, 6}
    assert found.tells == (3,)
    assert plan(3, gone={1}, told={2: HERE}) is StagedStuck.NOT_MINE


def test_a_node_that_leaves_gives_its_own_copy_and_is_told_to_drop_it() -> None:
    found = plan(1, leaving={1}, told={2: HERE, 3: HERE})
    assert isinstance(found, StagedMove)
    assert 1 not in found.to.nodes
    assert found.tells == (2, 3)
    other = plan(1, leaving={2}, told={2: HERE, 3: HERE})
    assert isinstance(other, StagedMove)
    assert 2 not in other.to.nodes
    assert other.tells == (2, 3)


def test_a_newer_copyset_is_taken_and_nothing_is_moved() -> None:
    """The donor that made it died before it noted that itself."""
    newer = StagedAt(2, (2, 4, 5))
    assert plan(1, gone={3}, told={2: newer}) == newer


def test_a_member_that_does_not_hold_the_block_counts_as_lost_of_it() -> None:
    found = plan(2, gone={3}, told={1: None})
    assert isinstance(found, StagedMove)
    assert found.to.nodes[0] == 2
    assert len(found.stores) == 2


@pytest.mark.parametrize("up", [set(), {2, 3}])
def test_a_block_without_a_place_stays_where_it_is(up: set[int]) -> None:
    assert plan(1, gone={3}, told={2: HERE}, up=up) is StagedStuck.NO_PLACE
