"""What a node stores again of a range that rotted, by what other nodes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.block import BlockHeader, Envelope, EnvelopeFlag
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.repair_plan import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    HeldCopy,
    Past,
    RepairPlan,
    RepairTurns,
    Said,
    part_to_plan,
    plan_repair,
)

ME = NodeId(1)
FIVE = Nodeset(tuple(Member(NodeId(n), "") for n in range(1, 6)))
E = 1 << 32
KNOWN = BlockHeader(7, E + 10, 5, 0, stored_bytes=3, stored_crc=9)


def copy(first: int, count: int = 5, *, nodes: tuple[int, ...] = (1, 2, 3), wave: int = 1,
         flags: int = 0, crc: int = 9) -> HeldCopy:  # fmt: skip
    header = BlockHeader(7, E + first, count, 0, stored_bytes=3, stored_crc=crc)
    return HeldCopy(header, Envelope(nodes, wave, 0, 0, flags))


def plan(
    said: dict[int, Said], *, known: BlockHeader | None = None, mine: tuple[HeldCopy, ...] = (),
    statuses: dict[NodeId, Authority] | None = None,
) -> RepairPlan:  # fmt: skip
    by_node = {NodeId(node): each for node, each in said.items()}
    epochs = [(FIVE, Replication(3))]
    return plan_repair(E + 10, E + 20, ME, by_node, mine, epochs, statuses or {}, known)


def places(found: RepairPlan) -> list[int]:
    return [take.copy.header.first - E for take in found.takes]


NOTHING = Said(())


def test_an_f_majority_says_what_a_range_held() -> None:
    found = plan({2: Said([copy(10)]), 3: Said([copy(10), copy(15)]), 4: Said([copy(15)])})
    assert places(found) == [10, 15]
    assert [take.holders for take in found.takes] == [(2, 3), (3, 4)]
    assert found.is_whole
    assert not found.waits


@pytest.mark.parametrize("unsure", [Said([copy(10)], is_sure=False), None])
def test_too_few_that_know_all_they_hold_leave_it_damaged_and_give_what_they_have(unsure) -> None:
    said = {2: Said([copy(10)]), 3: NOTHING, 4: unsure}
    found = plan({node: each for node, each in said.items() if each is not None})
    assert places(found) == [10]
    assert not found.is_whole
    assert "nodes [4, 5]" in found.waits


def test_a_node_that_was_rebuilt_elsewhere_is_not_waited_for() -> None:
    empty = {NodeId(5): Authority.AUTHORITATIVE_EMPTY}
    assert plan({2: NOTHING, 3: NOTHING}, statuses=empty).is_whole
    assert not plan({2: NOTHING, 3: NOTHING}).is_whole


def test_this_node_counts_as_silent() -> None:
    assert not plan({1: NOTHING, 2: NOTHING, 3: NOTHING} | {4: Said((), is_sure=False)}).is_whole


def test_the_latest_envelope_says_whether_this_node_needs_the_block() -> None:
    old, moved = copy(10), copy(10, nodes=(2, 3, 4), wave=2)
    found = plan({2: Said([old]), 3: Said([moved]), 4: Said([moved])})
    assert places(found) == []
    assert found.is_whole
    back = copy(10, nodes=(1, 3, 4), wave=3)
    found = plan({2: Said([old]), 3: Said([back]), 4: Said([moved])})
    assert [take.copy.envelope.wave for take in found.takes] == [3]
    assert found.takes[0].holders == (2, 3, 4)


def test_a_later_envelope_that_no_node_of_the_earlier_copyset_has_is_of_no_move() -> None:
    old, begun = copy(10), copy(10, nodes=(2, 3, 4), wave=3)
    found = plan({2: Said([old]), 3: Said([old]), 4: Said([begun])})
    assert [take.copy.envelope.copyset for take in found.takes] == [(1, 2, 3)]
    assert found.takes[0].holders == (2, 3, 4)
    assert places(plan({2: Said([old]), 3: NOTHING, 4: Said([begun])}, mine=(old,))) == []


def test_a_copy_that_was_set_aside_counts_for_nothing() -> None:
    aside = copy(10, flags=EnvelopeFlag.DRAINED)
    found = plan({2: Said([aside]), 3: NOTHING, 4: NOTHING})
    assert (places(found), found.is_whole) == ([], True)


def test_a_good_copy_is_kept_unless_its_envelope_is_old() -> None:
    said = {2: Said([copy(10, wave=2)]), 3: NOTHING, 4: NOTHING}
    assert places(plan(said, mine=(copy(10, wave=2),))) == []
    assert places(plan(said, mine=(copy(10, wave=3),))) == []
    assert places(plan(said, mine=(copy(10, wave=1),))) == [10]


def test_one_holder_is_enough_for_a_block_that_is_known() -> None:
    found = plan({2: Said([copy(10)], is_sure=False)}, known=KNOWN)
    assert places(found) == [10]
    assert found.is_whole


def test_a_block_that_is_known_and_not_found_is_waited_for() -> None:
    found = plan({2: NOTHING, 3: NOTHING, 4: NOTHING, 5: NOTHING}, known=KNOWN)
    assert not found.is_whole
    assert "[2, 3, 4, 5]" in found.waits


def test_another_block_is_not_taken_for_the_known_one() -> None:
    found = plan({2: Said([copy(10, crc=8)])}, known=KNOWN)
    assert (places(found), found.is_whole) == ([], False)
    assert plan(
        {2: Said([copy(10)])}, known=KNOWN, mine=(HeldCopy(KNOWN, Envelope((1,))),)
    ).is_whole


def test_holders_have_the_very_block() -> None:
    found = plan({2: Said([copy(10, wave=2)]), 3: Said([copy(10, crc=8)]), 4: NOTHING})
    assert [take.holders for take in found.takes] == [(2,)]


def test_what_is_trimmed_elsewhere_stays_damaged_and_is_not_taken() -> None:
    trimmed = Said((), gone=E + 14)
    found = plan({2: trimmed, 3: Said([copy(10), copy(15)]), 4: NOTHING})
    assert places(found) == [15]
    assert (found.start, found.is_whole) == (E + 15, True)
    found = plan({2: replace_gone(trimmed, E + 20), 3: Said([copy(10)]), 4: NOTHING})
    assert (places(found), found.is_whole) == ([], False)
    assert "trimmed" in found.waits


def test_a_node_that_let_go_does_not_know_whether_a_range_is_whole() -> None:
    let_go = Said((), let_go=E + 20)
    found = plan({2: let_go, 3: Said([copy(10)]), 4: NOTHING})
    assert (found.start, places(found), found.is_whole) == (E + 10, [10], False)
    assert "nodes [2, 5]" in found.waits
    assert plan({2: let_go, 3: Said([copy(10)])}, known=KNOWN).is_whole
    below = Said((), let_go=E + 9)
    assert plan({2: below, 3: Said([copy(10)]), 4: NOTHING}).is_whole


LET_GO = Said((), let_go=E + 20)


@pytest.mark.parametrize(
    ("said", "gone", "whole"),
    [
        ({2: LET_GO, 3: NOTHING, 4: NOTHING}, (), {Past.SURE}),  # node 5 may have the only copy
        ({2: LET_GO, 3: NOTHING, 4: NOTHING, 5: NOTHING}, (), {Past.SURE, Past.EMPTY, Past.SILENT}),
        ({2: LET_GO, 3: LET_GO, 4: NOTHING, 5: NOTHING}, (), {Past.SURE, Past.EMPTY}),
        ({2: LET_GO, 3: LET_GO, 4: LET_GO, 5: LET_GO}, (), {Past.SURE, Past.EMPTY}),
        ({2: LET_GO, 3: LET_GO, 4: NOTHING}, (5,), {Past.SURE, Past.EMPTY}),
        ({2: LET_GO, 3: NOTHING, 4: NOTHING, 5: Said((), is_sure=False)}, (), {Past.SURE}),
        ({2: NOTHING, 3: NOTHING, 4: NOTHING}, (), {Past.SURE, Past.EMPTY, Past.SILENT}),
        ({2: LET_GO, 3: NOTHING}, (), set()),
        ({2: LET_GO}, (4, 5), set()),
    ],
)
def test_nodes_that_let_go_count_by_what_main_storage_has(
    said: dict[int, Said], gone: tuple[int, ...], whole: set[Past]
) -> None:
    by_node = {NodeId(node): each for node, each in said.items()}
    statuses = {NodeId(node): Authority.UNDER_REPLICATED for node in gone}
    found = {
        past
        for past in Past
        if plan_repair(
            E + 10, E + 20, ME, by_node, (), [(FIVE, Replication(3))], statuses, past=past
        ).is_whole
    }
    assert found == whole


def replace_gone(said: Said, gone: int) -> Said:
    return said._replace(gone=gone)


def test_a_part_that_all_nodes_spoke_of_is_planned_first() -> None:
    def part(*said: Said) -> tuple[int, int]:
        by_node = {NodeId(node): each for node, each in enumerate(said, start=2)}
        return part_to_plan(E + 10, E + 20, by_node)

    short, whole = Said((), upto=E + 12), Said((), upto=E + 20)
    assert part() == part(NOTHING, whole) == (E + 10, E + 20)
    assert part(whole, short, NOTHING) == (E + 10, E + 12)
    assert part(short, replace_gone(whole, E + 11)) == (E + 10, E + 12)
    first, last = part(short, replace_gone(whole, E + 14))
    assert (first, last < first) == (E + 15, True), "the rest is asked for anew"
    assert part(whole, Said((), let_go=E + 14)) == (E + 10, E + 14)
    assert part(whole, Said((), let_go=E + 20)) == (E + 10, E + 20)
    assert part(short, replace_gone(whole, E + 20)) == (E + 10, E + 20), "all of it is trimmed"


def test_what_lies_outside_of_the_range_is_left_alone() -> None:
    found = plan({2: Said([copy(1), copy(30)]), 3: NOTHING, 4: NOTHING})
    assert places(found) == []


def test_every_epoch_of_the_range_wants_its_f_majority() -> None:
    four = Nodeset(FIVE.members[:4])
    said = {NodeId(2): NOTHING, NodeId(3): NOTHING}
    epochs = [(four, Replication(3)), (FIVE, Replication(3))]
    assert plan_repair(E, 2 * E, ME, said, (), epochs[:1], {}).is_whole
    assert not plan_repair(E, 2 * E, ME, said, (), epochs, {}).is_whole


def test_racks_count() -> None:
    racks = tuple(replace(each, location=f"r{each.node % 2}") for each in FIVE.members)
    epochs = [(Nodeset(racks), Replication(3, 2))]
    said = {NodeId(2): NOTHING, NodeId(4): NOTHING}
    assert plan_repair(E, E + 9, ME, said, (), epochs, {}).is_whole


def test_turns_grow_apart_and_what_is_gone_is_forgotten() -> None:
    turns, now = RepairTurns(), 100.0
    assert turns.due(["a", "b"], now) == ["a", "b"]
    pauses = []
    for _ in range(9):
        turns.on_failed("a", now)
        pause = turns.next_s(now)
        assert pause is not None
        pauses.append(pause)
        assert turns.due(["a", "b"], now + pause - 0.5) == ["b"]
        now += pause
        assert turns.due(["a"], now) == ["a"]
    assert pauses[0] == PAUSE_FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    turns.on_failed("a", now)
    assert turns.due(["b"], now) == ["b"]
    assert turns.next_s(now) is None
    turns.on_failed("b", now)
    turns.forget("b")
    assert turns.next_s(now) is None
