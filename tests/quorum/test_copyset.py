"""Copysets: the rule is never broken, none is missed, and weights are kept."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import SCOPES, Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_lose, can_replicate, choose_copyset

DRAWS = 6_000
"""Enough for a tolerance of 4 standard deviations to be about 2.5 % of a share."""


def nodeset(*members: tuple[int, str, float]) -> Nodeset:
    return Nodeset(tuple(Member(NodeId(n), "", rack, weight=weight) for n, rack, weight in members))


THREE_RACKS = nodeset((1, "a", 1), (2, "a", 1), (3, "b", 1), (4, "b", 1), (5, "c", 1))


def draws(members: Nodeset, wanted: Replication, available=None, seed: int = 1):
    chance = random.Random(seed)
    usable = frozenset(members.nodes) if available is None else available
    return [choose_copyset(members, wanted, usable, chance) for _ in range(DRAWS)]


PLACES = ["", "a", "b", "x.r.a", "x.r.b", "x.s.a", "y.r.a", "y.s.b", "z.x.c.r.a", "z.y.c.r.a"]
"""Racks alone, under rows, and whole locations: domains of every scope, and none."""


@st.composite
def replications(draw, most: int):
    """Any scopes at once, wider ones with more domains than narrower ones too."""
    copies = draw(st.integers(1, most))
    counts = draw(st.dictionaries(st.sampled_from(SCOPES[1:]), st.integers(1, copies)))
    return Replication.across({**counts, "node": copies})


@st.composite
def situations(draw):
    count = draw(st.integers(1, 6))
    weights = st.one_of(st.just(0.0), st.floats(0.01, 100))
    members = Nodeset(
        tuple(
            Member(NodeId(n), "", draw(st.sampled_from(PLACES)), weight=draw(weights))
            for n in range(1, count + 1)
        )
    )
    wanted = draw(replications(count))
    available = draw(st.frozensets(st.integers(1, count + 1).map(NodeId)))
    return members, wanted, available


@given(situations(), st.integers(0, 2**32))
def test_a_copyset_keeps_the_rule_and_is_found_if_there_is_one(situation, seed):
    members, wanted, available = situation
    chosen = choose_copyset(members, wanted, available, random.Random(seed))
    usable = [n for n in members.nodes if n in available and members[n].weight > 0]

    def spans(nodes) -> bool:
        return all(
            len({members[node].domain(scope) for node in nodes}) >= count
            for scope, count in wanted.by_scope.items()
        )

    if chosen is None:
        assert not any(map(spans, itertools.combinations(usable, wanted.copies)))
        return
    assert len(chosen) == len(set(chosen)) == wanted.copies
    assert set(chosen) <= set(usable)
    assert spans(chosen)


class Extreme:
    """A stream of chance stuck at one end."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize("value", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range_of_chance_pick_members_too(value):
    uneven = nodeset((1, "a", 0.1), (2, "b", 0.2), (3, "c", 0.7), (4, "c", 1e-9))
    chosen = choose_copyset(uneven, Replication(4, 3), frozenset(uneven.nodes), Extreme(value))
    assert chosen is not None
    assert sorted(chosen) == [1, 2, 3, 4]


def test_one_seed_gives_one_sequence_however_the_members_were_listed():
    listed = Nodeset(tuple(reversed(THREE_RACKS.members)))
    wanted = Replication(3, 2)
    assert draws(THREE_RACKS, wanted) == draws(listed, wanted, frozenset({5, 4, 3, 2, 1}))
    assert draws(THREE_RACKS, wanted) != draws(THREE_RACKS, wanted, seed=2)


def test_an_impossible_choice_draws_nothing():
    chance = random.Random(1)
    before = chance.getstate()
    assert choose_copyset(THREE_RACKS, Replication(3, 2), frozenset({1, 2}), chance) is None
    assert choose_copyset(THREE_RACKS, Replication(2, 2), frozenset({1, 2}), chance) is None
    assert chance.getstate() == before


def test_equal_nodes_get_equal_shares_and_every_copyset_is_used():
    members = nodeset(*((n, f"r{n}", 1) for n in range(1, 6)))
    chosen = draws(members, Replication(3))
    counts = Counter(node for copyset in chosen for node in copyset)
    assert all(abs(count / DRAWS - 3 / 5) < 0.025 for count in counts.values())
    assert len({frozenset(copyset) for copyset in chosen}) == 10


def test_single_copies_follow_the_weights():
    members = nodeset((1, "a", 1), (2, "a", 2), (3, "b", 5), (4, "c", 0))
    counts = Counter(copyset[0] for copyset in draws(members, Replication(1)))
    assert counts[NodeId(4)] == 0
    for node, share in ((1, 1 / 8), (2, 2 / 8), (3, 5 / 8)):
        assert abs(counts[NodeId(node)] / DRAWS - share) < 0.025


TWO_REGIONS = nodeset(
    *((n, f"west.d.c.r.rack{n % 3}", 1) for n in range(1, 7)), (7, "east.d.c.r.rack1", 1)
)


def test_copies_span_regions_and_racks_at_once():
    wanted = Replication.across({"node": 4, "rack": 3, "region": 2})
    for copyset in draws(TWO_REGIONS, wanted):
        assert copyset is not None
        assert NodeId(7) in copyset
        assert len({TWO_REGIONS[node].location for node in copyset}) >= 3
    assert choose_copyset(TWO_REGIONS, wanted, frozenset(range(1, 7)), random.Random(1)) is None


def test_a_rack_with_fewer_nodes_is_not_starved_of_the_spread():
    """Two copies over two of three racks: every pair of racks is used."""
    pairs = Counter(
        tuple(sorted(THREE_RACKS[node].location for node in copyset))
        for copyset in draws(THREE_RACKS, Replication(2, 2))
    )
    assert set(pairs) == {("a", "b"), ("a", "c"), ("b", "c")}
    # Drawn by hand: a then b or b then a, 2 · 2/5 · 2/3.
    assert abs(pairs["a", "b"] / DRAWS - 8 / 15) < 0.03


@given(situations(), st.integers(0, 6))
def test_what_may_be_lost_leaves_a_copyset_whoever_it_is(situation, lost):
    members, wanted, _ = situation
    every = frozenset(members.nodes)
    lost = min(lost, len(every))
    rests = [every - {*away} for away in itertools.combinations(sorted(every), lost)]
    slow = all(can_replicate(rest, members, wanted) for rest in rests)
    assert can_lose(lost, members, wanted) is slow
