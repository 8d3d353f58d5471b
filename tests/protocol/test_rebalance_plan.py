"""What a rebalance moves: shares that even out, blocks that are chosen alike on all nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from node_pictures import nodeset

from cordwood.nodes import Member, NodeId, Replication
from cordwood.protocol.event_log import Verdict, apply, gives, replay
from cordwood.protocol.rebalance_plan import Group, chosen, plan_given, plan_shares
from cordwood.protocol.rebalance_plan import gives as gives_block
from cordwood.protocol.rebuild_plan import Held, Losses
from cordwood.rebuilding import (
    PARTS,
    Gave,
    IsRebuilt,
    NeedsRebuild,
    Rebalance,
    RebuildEvent,
    RebuildingSet,
    Transfer,
)

FIVE = (1, 2, 3, 4, 5)
MEMBERS = {NodeId(node): Member(NodeId(node), "") for node in FIVE}


def block(number: int, copyset: tuple[int, ...] = (1, 2, 3)) -> Held:
    lsn = (3 << 32) + number
    return Held(7, lsn, lsn, 0, 1000, 0, copyset)


def held(*sizes: int, nodes: tuple[int, ...] = FIVE) -> dict[int, list[Group]]:
    return {n: [Group(nodes, 3, size)] for n, size in zip(FIVE, sizes, strict=True)}


def after(held_: dict[int, list[Group]], shares: tuple[Transfer, ...]) -> dict[int, int]:
    found = {node: groups[0].bytes for node, groups in held_.items()}
    for each in shares:
        size = held_[each.source][0].bytes * each.parts // PARTS
        found[each.source] -= size
        found[each.target] += size
    return found


def test_an_empty_node_gets_what_others_have_over_their_share() -> None:
    sizes = held(750, 750, 750, 750, 0)
    shares = plan_shares(sizes, MEMBERS)
    assert {(each.source, each.target) for each in shares} == {(n, 5) for n in (1, 2, 3, 4)}
    assert all(590 <= size <= 610 for size in after(sizes, shares).values())
    assert plan_shares(sizes, MEMBERS, targets=[4]) == ()


def test_weights_count_and_small_differences_do_not() -> None:
    assert plan_shares(held(1000, 1010, 990, 1000, 1000), MEMBERS) == ()
    double = {**MEMBERS, NodeId(5): replace(MEMBERS[NodeId(5)], weight=2.0)}
    sizes = held(600, 600, 600, 600, 600)
    assert 950 < after(sizes, plan_shares(sizes, double))[5] <= 1000
    # More than each block once it cannot have.
    heavy = {**MEMBERS, NodeId(5): replace(MEMBERS[NodeId(5)], weight=99.0)}
    assert after(sizes, plan_shares(sizes, heavy))[5] <= 1000


def test_a_node_outside_the_old_nodesets_gets_nothing() -> None:
    assert plan_shares(held(750, 750, 750, 750, 0, nodes=(1, 2, 3, 4)), MEMBERS) == ()


def test_a_node_that_does_not_say_what_it_holds_takes_no_part() -> None:
    sizes = held(750, 750, 750, 750, 0)
    del sizes[1]
    shares = plan_shares(sizes, MEMBERS)
    assert {each.source for each in shares} == {2, 3, 4}


@given(st.lists(st.integers(0, 10_000), min_size=5, max_size=5))
def test_nobody_gives_more_than_it_has_over_or_gets_more_than_it_lacks(sizes: list[int]) -> None:
    before = held(*sizes)
    shares = plan_shares(before, MEMBERS)
    assert not {each.source for each in shares} & {each.target for each in shares}
    found = after(before, shares)
    mean = sum(sizes) / 5
    for node, size in zip(FIVE, sizes, strict=True):
        assert min(size, mean) - 10 <= found[node] <= max(size, mean) + 10


def test_blocks_are_chosen_by_their_place_and_none_twice() -> None:
    shares = (Transfer(1, 4, PARTS // 4), Transfer(2, 5, PARTS // 2))
    found = Counter(chosen(block(number), shares) for number in range(1, 4001))
    assert 850 < found[shares[0]] < 1150
    assert 1800 < found[shares[1]] < 2200
    number = next(n for n in range(1, 99) if chosen(block(n), shares) == shares[0])
    assert chosen(block(number, (4, 2, 3)), shares) is None, "it was given"
    assert chosen(block(number, (1, 4, 3)), shares) is None, "the target has it"


def test_every_source_gives_its_part_where_all_give_more_than_one_whole() -> None:
    """Five full and five empty nodes: two sources gave half of their blocks, and three nothing."""
    nodes = tuple(range(1, 11))
    members = {NodeId(node): Member(NodeId(node), "") for node in nodes}
    copysets = [(*three,) for three in permutations(range(1, 6), 3)] * 100
    blocks = [block(number, copyset) for number, copyset in enumerate(copysets, 1)]
    sizes = {
        node: [Group(nodes, 3, sum(node in each.copyset for each in blocks))] for node in nodes
    }
    shares = plan_shares(sizes, members)
    assert sum(each.parts for each in shares) > 2 * PARTS
    given: Counter[int] = Counter()
    for each in blocks:
        here = each
        while (share := chosen(here, shares)) is not None:
            given[share.source] += 1
            left = tuple(share.target if n == share.source else n for n in here.copyset)
            here = here._replace(copyset=left)
    for source in range(1, 6):
        assert 0.9 < given[source] / (sizes[source][0].bytes / 2) < 1.1


def test_only_its_source_gives_a_block_and_only_one_that_lacks_no_copies() -> None:
    shares = (Transfer(1, 4, PARTS),)
    well = Losses(1, frozenset(), frozenset(), (), frozenset(), shares=shares)
    assert gives_block(well, block(1), 1) == shares[0]
    assert gives_block(well, block(1), 2) is None
    lost = replace(well, gone=frozenset({3}), barred=frozenset({3}))
    assert gives_block(lost, block(1), 1) is None


def test_a_given_block_stays_spread_and_in_its_nodeset() -> None:
    share, three = Transfer(1, 4, PARTS), Replication(3)
    move = plan_given(block(1), share, nodeset("1 2 3 4"), three)
    assert move is not None
    assert (move.copyset, move.stores, move.amends) == ((4, 2, 3), (4,), (2, 3))
    assert plan_given(block(1), share, nodeset("1 2 3 5"), three) is None
    racks = Replication.across({"node": 3, "rack": 3})
    assert plan_given(block(1), share, nodeset("a:1 b:2 c:3 a:4"), racks) is not None
    assert plan_given(block(1), share, nodeset("a:1 b:2 c:3 b:4"), racks) is None


def play(*events: RebuildEvent) -> RebuildingSet:
    return replay(enumerate(events, 1))


def said(before: RebuildingSet, event: RebuildEvent) -> Verdict:
    return apply(before, before.through + 1, event).verdict


TWO = (Transfer(1, 4, 5), Transfer(2, 5, 5))


def test_a_rebalance_is_over_when_all_that_give_have_given() -> None:
    begun = play(Rebalance(TWO))
    assert [gives(begun, node) for node in (1, 2, 3)] == [True, True, False]
    assert said(begun, Rebalance(TWO)) is Verdict.UNCHANGED
    assert said(begun, Rebalance(TWO[:1])) is Verdict.BUSY
    assert said(begun, Gave(3, 1)) is Verdict.UNKNOWN_NODE
    assert said(begun, Gave(1, 9)) is Verdict.STALE
    half = play(Rebalance(TWO), Gave(1, 1, 3, 300))
    assert said(half, Gave(1, 1)) is Verdict.UNCHANGED
    assert half.rebalancing is not None
    assert half.rebalancing.left == (2,)
    over = play(Rebalance(TWO), Gave(1, 1, 3, 300), Gave(2, 1))
    assert said(over, Rebalance(())) is Verdict.UNCHANGED
    assert said(over, Rebalance(TWO)) is Verdict.TAKEN


def test_a_node_that_is_lost_or_drained_neither_gives_nor_gets() -> None:
    for drain in (False, True):
        found = play(Rebalance(TWO), NeedsRebuild(4, FIVE, drain)).rebalancing
        assert found is not None
        assert (found.shares, found.left) == (TWO[1:], (1, 2)), "1 ends what it noted"
        gone = play(Rebalance(TWO), NeedsRebuild(1, FIVE, drain)).rebalancing
        assert gone is not None
        assert (gone.shares, gone.left) == (TWO[1:], (2,))


def test_none_begins_while_a_node_is_rebuilt_and_a_stop_lets_donors_end_their_moves() -> None:
    lost = play(NeedsRebuild(3, FIVE))
    assert said(lost, Rebalance(TWO)) is Verdict.BUSY
    empty = play(NeedsRebuild(3, FIVE), *(IsRebuilt(3, n, 1) for n in (1, 2, 4, 5)))
    assert said(empty, Rebalance(TWO)) is Verdict.TAKEN
    stopped = play(Rebalance(TWO), Rebalance(()))
    assert stopped.version == 2, "donors look anew"
    assert stopped.rebalancing is not None
    assert (stopped.rebalancing.shares, stopped.rebalancing.left) == ((), (1, 2))
    assert said(stopped, Rebalance(())) is Verdict.UNCHANGED
