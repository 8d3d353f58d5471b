"""Ensembles are of distinct nodes, and of neighbours in different racks where there are any."""

from __future__ import annotations

import random

import pytest

from cordwood.nodes import Member, NodeId
from cordwood.quorum.ensemble_choice import choose_ensemble


def members(*racks: str, weights: dict[int, float] | None = None) -> dict[NodeId, Member]:
    return {
        NodeId(number): Member(NodeId(number), "", rack, weight=(weights or {}).get(number, 1.0))
        for number, rack in enumerate(racks, start=1)
    }


@pytest.mark.parametrize("seed", range(30))
def test_an_ensemble_has_each_node_once(seed: int) -> None:
    able = members("a", "a", "b", "b")
    chosen = choose_ensemble(able, (), 4, random.Random(seed))
    assert chosen is not None
    assert sorted(chosen) == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(30))
def test_neighbours_on_the_ring_are_in_different_racks(seed: int) -> None:
    able = members("a", "a", "b", "b", "c", "c")
    chosen = choose_ensemble(able, (), 3, random.Random(seed))
    assert chosen is not None
    assert len({able[node].location for node in chosen}) == 3


def test_a_spare_node_is_of_another_rack_than_those_that_stay() -> None:
    able = members("a", "a", "b")
    stay = [Member(NodeId(9), "", "a")]
    assert {choose_ensemble(able, stay, 1, random.Random(seed)) for seed in range(20)} == {(3,)}


def test_one_rack_is_better_than_no_ensemble() -> None:
    assert choose_ensemble(members("a", "a"), (), 2, random.Random(1)) is not None


def test_too_few_nodes_are_none() -> None:
    assert choose_ensemble(members("a", "b"), (), 3, random.Random(1)) is None
