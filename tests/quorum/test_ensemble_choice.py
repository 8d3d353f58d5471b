"""Ensembles are of distinct nodes, and every window lies in two racks where that can be."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from cordwood.errors import BadSetting
from cordwood.nodes import Member, NodeId
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement, choose_ensemble, windows_in_one

ENFORCED = Placement(is_enforced=True)


def members(*racks: str, weights: dict[int, float] | None = None) -> dict[NodeId, Member]:
    return {
        NodeId(number): Member(NodeId(number), "", rack, weight=(weights or {}).get(number, 1.0))
        for number, rack in enumerate(racks, start=1)
    }


def chosen(able, kept, write, placement=ANYWHERE, seed: int = 1):
    return choose_ensemble(able, kept, write, random.Random(seed), placement)


def new(able, count, write, placement=ANYWHERE, seed: int = 1):
    return chosen(able, [None] * count, write, placement, seed)


@pytest.mark.parametrize("seed", range(30))
def test_an_ensemble_has_each_node_once(seed: int) -> None:
    assert sorted(new(members("a", "a", "b", "b"), 4, 2, seed=seed)) == [1, 2, 3, 4]


def _is_possible(racks: tuple[str, ...], count: int, write: int) -> bool:
    """Whether some ring has no window in one rack: all of them are tried."""
    able = members(*racks)
    rings = itertools.permutations(able.values(), count)
    return any(not windows_in_one(ring, write) for ring in rings)


@pytest.mark.parametrize(
    "racks", [r for n in (3, 4, 5, 6) for r in itertools.combinations_with_replacement("abc", n)]
)
def test_an_enforced_rule_finds_an_ensemble_exactly_if_there_is_one(racks) -> None:
    able = members(*racks)
    for count in (2, 3, min(5, len(racks))):
        for write in range(2, count + 1):
            found = new(able, count, write, ENFORCED, seed=len(racks))
            assert (found is not None) == _is_possible(racks, count, write)
            soft = new(able, count, write)
            for ring in (found, soft) if found else ():
                assert windows_in_one([able[node] for node in ring], write) == 0
            assert soft is not None


@pytest.mark.parametrize("seed", range(30))
def test_neighbours_are_in_different_racks_where_there_are_racks(seed: int) -> None:
    able = members("a", "a", "b", "b", "c", "c")
    ring = new(able, 3, 3, seed=seed)
    assert len({able[node].location for node in ring}) == 3


def test_a_copy_alone_has_no_rule() -> None:
    assert new(members("a", "a"), 2, 1, ENFORCED) is not None
    assert windows_in_one([*members("a", "a").values()], 1) == 0


def test_a_spare_node_is_of_another_rack_than_those_that_stay() -> None:
    able = members("a", "a", "b")
    stay = Member(NodeId(9), "", "a")
    assert {chosen(able, [stay, None], 2, seed=seed) for seed in range(20)} == {(9, 3)}


def test_a_spare_node_goes_by_the_windows_of_its_place() -> None:
    """Three windows of two: the new node lies between racks a and b."""
    kept = [Member(NodeId(8), "", "a"), None, Member(NodeId(9), "", "b")]
    assert chosen(members("a", "b"), kept, 2, ENFORCED) is None
    assert chosen(members("a", "b", "c"), kept, 2, ENFORCED) == (8, 3, 9)
    # With windows of three, each has both racks already.
    assert chosen(members("a"), kept, 3, ENFORCED) == (8, 1, 9)


def test_a_spare_may_mend_a_ring_that_broke_the_rule() -> None:
    kept = [Member(NodeId(8), "", "a"), Member(NodeId(9), "", "a"), None]
    assert chosen(members("a", "b"), kept, 3) == (8, 9, 2)


def test_what_stays_broken_elsewhere_is_not_held_against_a_spare() -> None:
    kept = [*members("a", "a", "b").values(), None]
    able = {NodeId(9): Member(NodeId(9), "", "c")}
    assert chosen(able, kept, 2, ENFORCED) == (1, 2, 3, 9)


@pytest.mark.parametrize("scope", ["region", "dc", "row"])
def test_wider_domains_count_by_what_a_location_names(scope: str) -> None:
    able = members("r1.d.c.w.k1", "r1.d.c.w.k2", "r2.e.f.x.k1")
    for seed in range(20):
        ring = new(able, 2, 2, Placement(scope, is_enforced=True), seed)
        assert 3 in ring
    assert new(members("r1.d.c.w.k1", "r1.d.c.w.k2"), 2, 2, Placement(scope, True)) is None


def test_one_rack_is_better_than_no_ensemble_unless_it_is_enforced() -> None:
    assert new(members("a", "a"), 2, 2) is not None
    assert new(members("a", "a"), 2, 2, ENFORCED) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_first_place_of_a_new_ring_is_near_if_there_is_a_node(seed: int) -> None:
    able = members("a", "b", "c", "a")
    assert new(able, 3, 3, Placement(local="a"), seed)[0] in (1, 4)
    assert new(able, 3, 3, Placement(local="z"), seed) is not None


def test_heavier_nodes_are_drawn_more_often() -> None:
    able = members("a", "b", "c", weights={1: 10.0})
    first = Counter(node for seed in range(300) for node in new(able, 1, 1, seed=seed))
    assert first[1] > 200


def test_nodes_with_fuller_disks_are_drawn_less_often() -> None:
    able = members("a", "b")
    able[NodeId(1)] = replace(able[NodeId(1)], fill=3)
    first = Counter(node for seed in range(900) for node in new(able, 1, 1, seed=seed))
    assert 50 < first[1] < 150, "one in nine"


def test_too_few_nodes_are_none() -> None:
    assert new(members("a", "b"), 3, 2) is None


def test_a_large_ring_is_filled_in_time() -> None:
    assert new(members(*["a"] * 100, *["b"] * 100), 200, 2, ENFORCED) is not None


def test_there_are_no_other_scopes() -> None:
    with pytest.raises(BadSetting):
        Placement("shelf")
    with pytest.raises(BadSetting):
        Placement("node")
