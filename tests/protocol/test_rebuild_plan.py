"""What a donor makes anew and where: tables, and hypothesis against every possible copyset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_pictures import nodes, nodeset

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import replay
from cordwood.protocol.rebuild_plan import (
    Held,
    Known,
    Losses,
    Move,
    Stuck,
    after_asking,
    in_order,
    is_certain,
    plan_move,
    with_awaited,
)
from cordwood.rebuilding import IsRebuilt, NeedsRebuild, RebuildingSet, TimeRange

SIX = "1 2 3 4 5 6"
THREE_RACKS = "a:1 a:2 b:3 b:4 c:5 c:6"
REGIONS = "x.a:1 x.b:2 y.c:3 y.d:4 z.e:5"
"""Rack a of region x, where the scopes in between are left out."""


def held(copyset: str | Iterable[int], *, time_us: int = 50, partition: int = 1) -> Held:
    members = map(int, copyset.split()) if isinstance(copyset, str) else copyset
    return Held(7, (3 << 32) + 1, (3 << 32) + 4, time_us, 1000, partition, tuple(members))


def losses(text: str, count: int = 6) -> Losses:
    """What is lost, as `rebuilding` has it."""
    return Losses.of(rebuilding(text, count))


def rebuilding(text: str, count: int = 6) -> RebuildingSet:
    """`3 4d 5r10-20 6e`: lost, drained, lost its blocks of times 10 to 20, empty by now."""
    every = tuple(range(1, count + 1))
    found, lsn = RebuildingSet(), 0
    for word in text.split():
        lsn, node = lsn + 1, int(word[0])
        ranges: tuple[TimeRange, ...] = ()
        if "r" in word:
            first, _, last = word[2:].partition("-")
            ranges = (TimeRange(int(first), int(last)),)
        drain = word.endswith("d")
        event = NeedsRebuild(node, every, drain, ranges, forced=True)
        found = replay([(lsn, event)], found)
        entry = found.entry(node)
        for donor in entry.donors if word.endswith("e") and entry else ():
            lsn += 1
            found = replay([(lsn, IsRebuilt(node, donor, found.version))], found)
    return found


def plan(
    copyset: str,
    me: int,
    lost: str,
    *,
    members: str = SIX,
    copies: dict[str, int] | None = None,
    available: str = SIX,
    seed: int = 1,
) -> Move | Stuck | None:
    replication = Replication.across(copies or {"node": 3})
    return plan_move(
        held(copyset), me, losses(lost), nodeset(members), replication, nodes(available),
        random.Random(seed),
    )  # fmt: skip


def spoken(found: Move | Stuck | None) -> str:
    """`4+ 2 5 | amends 5`: the copyset, `+` behind those that are stored, and who is amended."""
    if found is None:
        return "-"
    if isinstance(found, Stuck):
        return f"stuck for {found.wanted}"
    copyset = " ".join(f"{node}{'+' * (node in found.stores)}" for node in found.copyset)
    amends = " ".join(map(str, found.amends))
    return f"{copyset} | {amends}" if found.changes else copyset


class TestDonor:
    @pytest.mark.parametrize(
        ("copyset", "lost", "donor"),
        [
            ("1 2 3", "1", 2),
            ("1 2 3", "1 2", 3),
            ("1 2 3", "1 2 3", None),
            ("1 2 3", "4", 1),
            # A drained node has its blocks, and gives in its turn.
            ("1 2 3", "1d", 1),
            ("1 2 3", "2d", 1),
            ("1 2 3", "1 2d", 2),
            # One that is empty has none.
            ("1 2 3", "1e", 2),
            # One that lost a range gives all but that.
            ("1 2 3", "1r40-60", 2),
            ("1 2 3", "1r60-70", 1),
            ("1 2 3", "1r40-60 2r50-50", 3),
        ],
    )
    def test_it_is_the_first_that_has_the_block(
        self, copyset: str, lost: str, donor: int | None
    ) -> None:
        assert losses(lost).donor(held(copyset)) == donor


class TestEndsWithTooFewCopies:
    """A recovery stored them while other nodes were lost, so no envelope names these."""

    @pytest.mark.parametrize(
        ("copyset", "lost", "members", "copies", "names"),
        [
            ("1 2", "3", "1 2 3", 3, "1 2 3"),
            ("1 2", "3 4", SIX, 3, "1 2 3 4"),
            ("1", "2 3", "1 2 3", 3, "1 2 3"),
            ("1 2 4", "3", SIX, 3, "1 2 4"),  # it has its copies
            ("1 2", "", SIX, 3, "1 2"),
            ("1 2", "3e", SIX, 3, "1 2"),  # readers do not wait for an empty node
            ("1 2", "3d", SIX, 3, "1 2"),  # a drained node has its data
            ("1 2", "6", "1 2 3", 3, "1 2"),  # of another nodeset
            ("1 2", "3", "1 2 3", 4, "1 2"),  # the nodeset never had a place
            ("1 6", "3", "1 2 3", 3, "1 6"),  # the nodeset is not that of the block
        ],
    )
    def test_they_name_the_lost_nodes_of_their_nodeset(
        self, copyset: str, lost: str, members: str, copies: int, names: str
    ) -> None:
        found = with_awaited(
            held(copyset), losses(lost), nodeset(members), Replication.across({"node": copies})
        )
        assert found == held(names)

    def test_copies_in_too_few_racks_are_too_few(self) -> None:
        over_two = Replication.across({"node": 2, "rack": 2})
        found = with_awaited(held("1 2"), losses("3"), nodeset(THREE_RACKS), over_two)
        assert found == held("1 2 3")
        assert with_awaited(held("1 4"), losses("3"), nodeset(THREE_RACKS), over_two) == held("1 4")

    def test_they_get_their_copies_where_there_is_a_place(self) -> None:
        args = nodeset("1 2 3 4"), Replication.across({"node": 3})
        block = with_awaited(held("1 2"), losses("3"), *args)
        for available, said in (("1 2", "stuck for 1"), ("1 2 4", "1 2 4+ | 2")):
            found = plan_move(block, 1, losses("3"), *args, nodes(available), random.Random(1))
            assert spoken(found) == said

    def test_the_next_node_gives_them_if_their_donor_was_done_before(self) -> None:
        block, lost = held("1 2 3"), losses("3")
        assert [n for n in (1, 2, 3) if lost.gives_awaited(block, n)] == [1]
        done = Losses.of(replay([(9, IsRebuilt(3, 1, 1))], rebuilding("3")))
        assert 1 not in done.giving
        assert [n for n in (1, 2, 3) if done.gives_awaited(block, n)] == [2]

    def test_a_node_that_joined_after_the_loss_gives_them_only_if_it_has_other_work(self) -> None:
        known = rebuilding("3")
        block, joined = held("7 1 3"), replay([(9, NeedsRebuild(2, (1, 2, 7), forced=True))], known)
        for lost, giver in ((known, 1), (joined, 7)):
            losses_now = Losses.of(lost)
            assert [n for n in (7, 1, 3) if losses_now.gives_awaited(block, n)] == [giver]


class TestNodesThatLostRecords:
    """Node 1 is unsure: it lost records, and envelopes still name it."""

    UNSURE = replace(losses("3"), unsure=frozenset({1}))
    LACKS = replace(UNSURE, lacking=frozenset({1}))

    def test_who_may_be_the_donor_looks_at_the_block(self):
        assert self.UNSURE.donor(held("1 2 3")) == 1
        givers = [node for node in (1, 2, 3) if self.UNSURE.may_give(held("1 2 3"), node)]
        assert givers == [1, 2]
        assert not self.UNSURE.may_give(held("2 1 3"), 1)
        assert self.UNSURE.doubts(held("1 2 3"), 2) == {1}
        assert self.UNSURE.doubts(held("1 2 3"), 1) == set()
        assert self.UNSURE.doubts(held("2 3 4"), 2) == set()

    def test_a_member_before_another_may_have_let_go_of_the_block(self):
        """Node 3 is lost; nobody is unsure."""
        known = losses("3")
        assert known.in_doubt(held("1 2 3"), 2) == (1,)
        assert known.in_doubt(held("3 1 4 2"), 2) == (1, 4)
        # It gives the block anyway, does not have it, or nobody has to give it.
        assert known.in_doubt(held("1 2 3"), 1) == ()
        assert known.in_doubt(held("3 2 1"), 2) == ()
        assert known.in_doubt(held("1 2 3"), 3) == ()
        assert known.in_doubt(held("1 2 3"), 5) == ()
        assert known.in_doubt(held("1 2 4"), 2) == ()
        assert losses("2d").in_doubt(held("1 2"), 2) == (1,)
        assert losses("1d").in_doubt(held("1 2"), 2) == (1,)

    def test_one_that_lacks_it_is_replaced_like_a_lost_one_and_may_take_it_again(self):
        block = held("1 2 3")
        assert self.LACKS.donor(block) == 2
        some = random.Random(1)
        args = nodeset(SIX), Replication.across({"node": 3})
        assert plan_move(block, 2, self.UNSURE, *args, nodes(SIX), some) is None
        moved = plan_move(block, 2, self.LACKS, *args, nodes(SIX), some)
        assert isinstance(moved, Move)
        assert moved.changes
        assert len(moved.stores) == 2
        assert 3 not in moved.copyset
        few = plan_move(block, 2, self.LACKS, *args, nodes("1 2 3 4"), some)
        assert isinstance(few, Move)
        assert set(few.stores) == {1, 4}

    def test_a_drained_one_that_lacks_it_gives_nothing(self):
        leaves = replace(losses("1d"), unsure=frozenset({1}), lacking=frozenset({1}))
        assert leaves.donor(held("1 2 3")) == 2


class TestMoves:
    @pytest.mark.parametrize(
        ("copyset", "me", "lost", "available", "said"),
        [
            ("1 2 3", 1, "4", SIX, "-"),
            ("1 2 3", 2, "3", SIX, "-"),
            # The new node stands where the lost one stood.
            ("1 2 3", 1, "3", "1 2 4", "1 2 4+ | 2"),
            ("1 2 3", 2, "1", "2 3 4", "4+ 2 3 | 3"),
            ("1 2 3", 3, "1 2", "3 4 5", "4+ 5+ 3 |  or 5+ 4+ 3 | "),
            # No place: the block stays as it is.
            ("1 2 3", 1, "3", "1 2", "stuck for 1"),
            ("1 2 3", 1, "3 4", "1 2 4", "stuck for 1"),
            ("1 2 3", 1, "2 3", "1 4", "stuck for 2"),
            # A node that is down, and of which nothing is said, has its copy: it is waited for.
            ("1 2 3", 1, "3", "1 4", "1 2 4+ | 2"),
            # Drained: it gives, and gets an envelope that does not name it.
            ("1 2 3", 1, "1d", "1 2 3 4", "4+ 2 3 | 2 3"),
            ("1 2 3", 1, "2d", "1 2 3 4", "1 4+ 3 | 3"),
            ("1 2 3", 2, "1 2d", "2 3 4 5", "4+ 5+ 3 | 3 or 5+ 4+ 3 | 3"),
            # Four copies are there where three are asked for: the envelope alone.
            ("1 2 3 4", 1, "4", SIX, "1 2 3 | 2 3"),
            # A range: the node that lost it gets its own copy back.
            ("1 2 3", 1, "3r40-60", SIX, "1 2 3+"),
            ("1 2 3", 1, "3r60-70", SIX, "-"),
            ("1 2 3", 2, "1r40-60", SIX, "1+ 2 3"),
            ("1 2 3", 1, "3r40-60", "1 2 4", "1 2 4+ | 2"),
            # The rest comes when that is done.
            ("1 2 3", 1, "3r40-60 2", "1 3 4", "1 2 3+"),
        ],
    )
    def test_three_copies_of_six_nodes(
        self, copyset: str, me: int, lost: str, available: str, said: str
    ) -> None:
        found = plan(copyset, me, lost, available=available)
        assert spoken(found) in said.split(" or ")

    @pytest.mark.parametrize(
        ("copyset", "me", "lost", "available", "said"),
        [
            # Two racks of three: where both kept copies are in one, the third must be elsewhere.
            ("1 2 3", 1, "3", "1 2 5", "1 2 5+ | 2"),
            ("1 2 3", 1, "3", "1 2 4", "1 2 4+ | 2"),
            ("1 3 4", 3, "1", "2 3 4", "2+ 3 4 | 4"),
            ("1 3 2", 1, "3", "1 2", "stuck for 1"),
            ("1 3 5", 1, "5", "1 2 3", "1 3 2+ | 3"),
        ],
    )
    def test_over_two_racks(
        self, copyset: str, me: int, lost: str, available: str, said: str
    ) -> None:
        found = plan(
            copyset, me, lost, members=THREE_RACKS, copies={"node": 3, "rack": 2},
            available=available,
        )  # fmt: skip
        assert spoken(found) == said

    def test_two_kept_in_one_rack_never_get_a_third_in_it(self) -> None:
        three = "a:1 a:2 b:3 a:4 b:5"
        for seed in range(50):
            found = plan(
                "1 2 3", 1, "3", members=three, copies={"node": 3, "rack": 2},
                available="1 2 4 5", seed=seed,
            )  # fmt: skip
            assert spoken(found) == "1 2 5+ | 2"

    def test_over_regions(self) -> None:
        rule = {"node": 3, "rack": 3, "region": 2}
        found = plan("1 2 3", 1, "3", members=REGIONS, copies=rule, available="1 2 4 5")
        assert spoken(found) in ("1 2 4+ | 2", "1 2 5+ | 2")
        stuck = plan("1 3 4", 3, "1", members="x.a:1 x.a:2 y.c:3 y.d:4 y.e:5", copies=rule,
                     available="3 4 5")  # fmt: skip
        assert spoken(stuck) == "stuck for 1"

    def test_a_node_without_weight_takes_a_copy_where_no_other_can(self) -> None:
        heavy = nodeset(SIX)
        light = Nodeset(
            tuple(
                Member(m.node, m.address, weight=0.0 if m.node == 4 else 1.0) for m in heavy.members
            )
        )
        for available, taker in (("1 2 4", 4), ("1 2 4 5", 5)):
            found = plan_move(
                held("1 2 3"), 1, losses("3"), light, Replication(3), nodes(available),
                random.Random(3),
            )  # fmt: skip
            assert isinstance(found, Move)
            assert found.stores == (taker,)

    def test_a_read_only_node_takes_none(self) -> None:
        members = (*nodeset("1 2 3").members, Member(NodeId(4), "h:4", read_only=True))
        found = plan_move(
            held("1 2 3"), 1, losses("3"), Nodeset(members), Replication(3), nodes("1 2 4"),
            random.Random(3),
        )  # fmt: skip
        assert spoken(found) == "stuck for 1"

    @pytest.mark.parametrize(
        ("lost", "known", "wave", "stores", "amends"),
        [
            # A new envelope is above all that its nodes know.
            ("3", {1: 2, 2: 2}, 3, (4,), (2,)),
            ("3", {1: 2, 2: 5}, 6, (4,), (2,)),
            ("3", {1: 2, 2: 2, 4: 7}, 8, (4,), (2,)),
            ("3", {1: 2, 2: 2, 5: 9}, 3, (4,), (2,)),
            # A copy that goes back is as the others are …
            ("3r40-60", {1: 2, 2: 2}, 2, (3,), ()),
            ("3r40-60", {1: 2, 2: 2, 3: 1}, 2, (3,), ()),
            # … and is not sent twice.
            ("3r40-60", {1: 2, 2: 2, 3: 2}, 2, (), ()),
            ("3r40-60", {1: 2, 2: 2, 3: 4}, 2, (), ()),
        ],
    )
    def test_the_wave_is_above_what_the_nodes_know(
        self,
        lost: str,
        known: dict[int, int],
        wave: int,
        stores: tuple[int, ...],
        amends: tuple[int, ...],
    ) -> None:
        block = held("1 2 3")._replace(wave=2)
        found = plan_move(
            block, 1, losses(lost), nodeset(SIX), Replication(3), nodes("1 2 3 4"),
            random.Random(1),
        )  # fmt: skip
        assert isinstance(found, Move)
        told = {node: Known(each, block.copyset) for node, each in known.items()}
        move, given = after_asking(found, told)
        assert (given, move.stores, move.amends) == (wave, stores, amends)
        assert (move.changes, move.copyset) == (wave > 2, found.copyset)

    @pytest.mark.parametrize(("left", "wave"), [(1, 2), (2, 3), (4, 5)])
    def test_a_copy_of_an_unfinished_move_is_written_over(self, left: int, wave: int) -> None:
        block = held("1 2 3")._replace(wave=2)
        found = plan_move(
            block, 1, losses("3r40-60"), nodeset(SIX), Replication(3), nodes(SIX), random.Random(1)
        )
        assert isinstance(found, Move)
        move, given = after_asking(found, {3: Known(left, (5, 2, 3))})
        assert (given, move.stores, move.amends, move.changes) == (wave, (3,), (), False)

    def test_what_is_there_again_is_kept_as_any_other(self) -> None:
        found = plan_move(
            held("1 2 3"), 1, losses("3r40-60 2"), nodeset(SIX), Replication(3), nodes("1 3 4"),
            random.Random(1), has_again=frozenset({3}),
        )  # fmt: skip
        assert spoken(found) == "1 4+ 3 | 3"

    def test_they_go_from_new_to_old(self) -> None:
        blocks = [
            Held(log, last, last, 0, 1, partition, (1,))
            for partition, log, last in ((1, 1, 9), (3, 2, 8), (3, 1, 9), (2, 1, 1), (3, 1, 7))
        ]
        assert [(each.partition, each.log, each.last) for each in in_order(blocks)] == [
            (3, 1, 7), (3, 1, 9), (3, 2, 8), (2, 1, 1), (1, 1, 9),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "copies", "lost", "certain"),
    [
        (SIX, {"node": 3}, "", True),
        (SIX, {"node": 3}, "1 2", True),
        (SIX, {"node": 3}, "1 2 3", False),
        (SIX, {"node": 3}, "1 2 3d", True),
        (SIX, {"node": 3}, "1 2 3e", True),
        (SIX, {"node": 3}, "1 2 3r5-9", False),
        # No copyset lies in one rack.
        (THREE_RACKS, {"node": 2, "rack": 2}, "1 2", True),
        (THREE_RACKS, {"node": 2, "rack": 2}, "1 3", False),
    ],
)
def test_a_donor_is_sure_where_no_copyset_lies_on_nodes_that_lack_data(
    members: str, copies: dict[str, int], lost: str, certain: bool
) -> None:
    rule = Replication.across(copies)
    assert is_certain(rebuilding(lost), nodeset(members), rule) is certain


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Nodeset, Replication, Losses, frozenset[NodeId], int]:
    """A nodeset with locations, a rule that it can keep or not, and lost nodes of any kind."""
    racks = draw(
        st.lists(
            st.sampled_from(["", "a", "b", "x.a", "x.b", "y.a", "y.d"]), min_size=2, max_size=7
        )
    )
    members = tuple(
        Member(NodeId(n), "", rack, weight=draw(st.sampled_from([0.0, 1.0, 3.0])))
        for n, rack in enumerate(racks, 1)
    )
    copies = draw(st.integers(1, min(3, len(members))))
    counts = draw(
        st.dictionaries(st.sampled_from(["rack", "row", "region"]), st.integers(1, copies))
    )
    rule = Replication.across({**counts, "node": copies})
    kinds = draw(
        st.lists(st.sampled_from(["", "", "", "{}", "{}d", "{}e", "{}r40-60"]), min_size=len(racks),
                 max_size=len(racks))
    )  # fmt: skip
    said = " ".join(kind.format(n) for n, kind in enumerate(kinds, 1) if kind)
    available = draw(st.sets(st.sampled_from([member.node for member in members])))
    return Nodeset(members), rule, losses(said, len(members)), frozenset(available), copies


def is_copyset(some: Iterable[int], found: Nodeset, rule: Replication) -> bool:
    """Whether nodes keep the rule, slow and obvious."""
    members = [found[NodeId(node)] for node in some]
    return all(
        len({member.domain(scope) for member in members}) >= count
        for scope, count in rule.by_scope.items()
    )


@given(worlds(), st.data())
def test_every_block_gets_its_copies_from_one_donor(
    world: tuple[Nodeset, Replication, Losses, frozenset[NodeId], int], data: st.DataObject
) -> None:
    every, rule, lost, available, copies = world
    possible = [
        c for c in itertools.permutations(every.nodes, copies) if is_copyset(c, every, rule)
    ]
    if not possible:
        return
    block = held(data.draw(st.sampled_from(possible)))
    seed = data.draw(st.integers(0, 99))
    has = {n for n in block.copyset if n not in lost.missing(block)}
    gives = has | (lost.leaving & set(block.copyset))
    found = {
        me: plan_move(block, me, lost, every, rule, available, random.Random(seed))
        for me in every.nodes
    }
    moves = {me: each for me, each in found.items() if each is not None}
    if len(has) == copies or not gives:
        assert moves == {}, "nothing is rebuilt that has all its copies, or none"
        return
    assert len(moves) == 1, "one donor"
    ((donor, move),) = moves.items()
    assert donor in gives
    takers = [n for n in every.nodes if n in available and n not in lost.barred and n not in has]
    able = any(
        is_copyset({*has, *some}, every, rule)
        for some in itertools.combinations(takers, copies - len(has))
    )
    back = {n for n in block.copyset if n not in has | lost.barred and n in available}
    if back:
        assert isinstance(move, Move)
        assert (set(move.stores), move.copyset, move.changes) == (back, block.copyset, False)
        move = plan_move(
            block, donor, lost, every, rule, available, random.Random(seed),
            has_again=frozenset(back),
        )  # fmt: skip
        has |= back
        gives = gives | back
        if move is None:
            assert len(has) == copies
            return
    assert isinstance(move, Move) is able, "it is stuck only where no node could take a copy"
    if isinstance(move, Stuck):
        return
    assert len(set(move.copyset)) == len(move.copyset) == copies, "no node twice"
    assert is_copyset(move.copyset, every, rule)
    assert has <= set(move.copyset)
    assert set(move.stores) == set(move.copyset) - has
    assert set(move.stores) <= set(takers)
    assert not lost.barred & set(move.copyset)
    if move.changes:
        assert {*move.amends} == has - {donor}, "every other envelope is told"
    else:
        assert move.amends == ()
        assert move.copyset == block.copyset
    # Once it is done nothing is left to do, by any of the nodes of the new copyset.
    after = block._replace(copyset=move.copyset, append_time_us=99)
    for me in move.copyset:
        again = plan_move(after, me, lost, every, rule, available, random.Random(seed))
        assert again is None
