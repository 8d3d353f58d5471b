"""The read buffer: records and gaps tile the range, and a loss is never guessed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swaps import swap_value

from cordwood.block import BlockHeader, BlockKind, Gap, GapKind
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol import gap_detection
from cordwood.protocol.gap_detection import Delivery, Judge, ReadBuffer
from cordwood.quorum.authority import Authority
from cordwood.quorum.f_majority import weigh_replies

NODES = (1, 2, 3)
FIVE = Nodeset(tuple(Member(NodeId(n), "") for n in range(1, 6)))
THREE = Nodeset(FIVE.members[:3])


def by(nodeset: Nodeset, copies: int = 2, **statuses: Authority) -> Judge:
    """What members of a nodeset amount to; `n5=...` gives node 5 a status."""
    marked = {NodeId(int(name[1:])): status for name, status in statuses.items()}
    return lambda heard: weigh_replies(heard, nodeset, Replication(copies), marked)


@dataclass(frozen=True)
class Item:
    header: BlockHeader


def block(epoch: int, first: int, last: int, kind: BlockKind = BlockKind.DATA) -> Item:
    return Item(BlockHeader(1, make_lsn(epoch, first), last - first + 1, 0, kind=kind))


def bridge(epoch: int, first: int) -> Item:
    return block(epoch, first, ESN_MAX, BlockKind.BRIDGE)


def buffer(start: int = make_lsn(1, 1), until: int = make_lsn(9, 0)) -> ReadBuffer[Item]:
    return ReadBuffer(start, until)


def words(taken: Delivery[Item] | Gap | None) -> str:
    if taken is None:
        return "wait"
    if isinstance(taken, Gap):
        return f"{taken.kind.value} {taken.first}..{taken.last}"
    return f"{Lsn(taken.first)}..{Lsn(taken.last)}"


def drain(
    reader: ReadBuffer[Item],
    judge: Judge | None = by(THREE),  # noqa: B008
    grace_over: bool = False,
) -> list[str]:
    said = []
    while (taken := reader.take(judge, grace_over=grace_over)) is not None:
        said.append(words(taken))
    return said


def test_copies_are_dropped_and_order_is_restored() -> None:
    reader = buffer()
    assert reader.on_block(block(1, 3, 4))
    assert drain(reader) == []
    assert reader.on_block(block(1, 1, 2))
    assert not reader.on_block(block(1, 1, 2))
    assert drain(reader) == ["e1n1..e1n2", "e1n3..e1n4"]
    assert not reader.on_block(block(1, 3, 4)), "given out already"


def test_a_read_may_begin_and_end_inside_a_block() -> None:
    reader = buffer(make_lsn(1, 3), make_lsn(1, 7))
    reader.on_block(block(1, 1, 5))
    reader.on_block(block(1, 6, 10))
    assert drain(reader) == ["e1n3..e1n5", "e1n6..e1n7"]
    assert reader.is_done


def test_a_bridge_leads_over_the_slot_that_nobody_issues() -> None:
    reader = buffer()
    reader.on_block(block(1, 1, 2))
    reader.on_block(bridge(1, 3))
    reader.on_block(block(2, 1, 1))
    assert drain(reader) == ["e1n1..e1n2", "bridge e1n3..e2n0", "e2n1..e2n1"]


def test_positions_before_the_first_record_are_a_bridge() -> None:
    reader = buffer(0)
    reader.on_block(block(1, 1, 1))
    assert drain(reader) == ["bridge e0n0..e1n0", "e1n1..e1n1"]


def test_a_hole_plug_is_a_hole() -> None:
    reader = buffer()
    reader.on_block(block(1, 1, 3, BlockKind.HOLE))
    assert drain(reader) == ["hole e1n1..e1n3"]


def test_the_window_of_five_slots_42_to_46() -> None:
    """The seed's example: copies of 42 to 44 came, so these are given out in order, each once;
    the window slides to 45, and what came of 46 waits for it."""
    reader = buffer(make_lsn(1, 42))
    arrivals = [(1, 42), (3, 43), (2, 42), (5, 44), (4, 46), (3, 42), (1, 44), (5, 46)]
    given_out: list[str] = []
    for node, esn in arrivals:
        reader.on_block(block(1, esn, esn))
        reader.on_marker(node, make_lsn(1, esn + 1))
        given_out += drain(reader, by(FIVE, 3))
    assert given_out == [f"e1n{n}..e1n{n}" for n in (42, 43, 44)]
    assert reader.next == make_lsn(1, 45), "asks for 45 to 49 now"
    reader.on_block(block(1, 45, 45))
    assert drain(reader, by(FIVE, 3)) == ["e1n45..e1n45", "e1n46..e1n46"]


def test_record_52_with_five_nodes_and_three_copies() -> None:
    """The seed's example: N3 and N5 are past 52, and it may lie on N1, N2 and N4. When N1 sends
    54 it does not, for nodes send in order, and two nodes cannot hold three copies: lost."""
    reader, judge = buffer(make_lsn(1, 52)), by(FIVE, 3)
    reader.on_block(block(1, 53, 53))
    for node in (3, 5):
        reader.on_marker(node, make_lsn(1, 54))
    for node in (1, 2, 4):
        reader.on_marker(node, make_lsn(1, 52))
    assert drain(reader, judge, grace_over=True) == []
    reader.on_block(block(1, 54, 54))
    reader.on_marker(1, make_lsn(1, 55))
    assert drain(reader, judge) == [], "nodes 2 and 4 have their data: they get their time"
    assert reader.wants_grace
    assert drain(reader, judge, grace_over=True) == [
        "data_loss e1n52..e1n52", "e1n53..e1n53", "e1n54..e1n54",
    ]  # fmt: skip


def test_a_loss_that_all_agree_on_is_told_at_once_as_far_as_they_do() -> None:
    reader, judge = buffer(), by(THREE, 3)
    reader.on_block(block(1, 5, 5))
    for node in (1, 2):
        reader.on_marker(node, make_lsn(1, 6))
    assert drain(reader, judge) == []
    reader.on_marker(3, make_lsn(1, 4))
    assert drain(reader, judge) == ["data_loss e1n1..e1n3"]
    reader.on_marker(3, make_lsn(1, 6))
    assert drain(reader, judge) == ["data_loss e1n4..e1n4", "e1n5..e1n5"]


GONE, EMPTY, AWAY = (
    Authority.UNDER_REPLICATED, Authority.AUTHORITATIVE_EMPTY, Authority.UNAVAILABLE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "passed", "grace_over", "said"),
    [
        ({}, (1, 2), True, "wait"),
        ({}, (1, 2, 3), False, "wait"),
        ({}, (1, 2, 3), True, "data_loss"),
        ({}, (1, 2, 3, 4, 5), False, "data_loss"),
        ({"n4": EMPTY, "n5": EMPTY}, (1,), True, "data_loss"),
        ({"n4": EMPTY, "n5": EMPTY}, (1, 2, 3), False, "data_loss"),
        ({"n3": GONE, "n4": GONE, "n5": GONE}, (1,), True, "wait"),
        ({"n3": GONE, "n4": GONE, "n5": GONE}, (1, 2), False, "data_loss"),
        ({"n3": AWAY, "n4": AWAY, "n5": AWAY}, (1, 2), True, "wait"),
        ({"n4": AWAY, "n5": AWAY}, (1, 2, 3), False, "wait"),
        ({"n4": AWAY, "n5": AWAY}, (1, 2, 3), True, "data_loss"),
    ],
)
def test_who_must_have_spoken_before_a_loss(statuses, passed, grace_over: bool, said: str) -> None:
    """Three copies on five nodes, by what became of them."""
    reader = buffer()
    for node in passed:
        reader.on_marker(node, make_lsn(1, 9))
    taken = reader.take(by(FIVE, 3, **statuses), grace_over=grace_over)
    assert words(taken).split()[0] == said
    assert reader.wants_grace == (said == "wait" and len(passed) == 3)


@pytest.mark.parametrize("event", ["gone", "reconnected", "bad"])
def test_a_node_that_may_still_hold_it_forbids_a_loss(event: str) -> None:
    reader = buffer()
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    if event == "gone":
        reader.on_gone(2)
    elif event == "reconnected":
        reader.on_connected(2)
    else:
        reader.on_bad_copy(2, make_lsn(1, 1), make_lsn(1, 1))
        reader.on_marker(2, make_lsn(1, 20))
    assert drain(reader, by(THREE, 1), grace_over=True) == []


UR = {2, 3}


@pytest.mark.parametrize(
    ("copies", "passed", "grace_over", "said"),
    [
        (3, (1, 2, 3, 4, 5), False, "data_loss"),  # three that are intact meet every copyset
        (3, (1, 4, 5), False, "wait"),  # they do; but 2 and 3 may have it
        (3, (1, 4, 5), True, "data_loss"),
        (2, (1, 2, 3, 4, 5), False, "wait"),  # all have spoken, two of them of what is left
        (2, (1, 2, 3, 4, 5), True, "data_loss"),
        (2, (1, 2, 3, 4), True, "wait"),  # 5 is intact and was not heard
        (2, (1, 4, 5), True, "wait"),  # 2 and 3 send what they have, and have not come so far
        (2, (1, 2, 4, 5), True, "wait"),
    ],
)
def test_nodes_that_know_that_they_lost_records(
    copies: int, passed, grace_over: bool, said: str
) -> None:
    """Five nodes; 2 and 3 are damaged. They make no f-majority, and when all others have
    spoken and so have they, nobody is left who could have it."""
    reader = buffer()
    for node in UR:
        reader.on_damaged(node)
    for node in passed:
        reader.on_marker(node, make_lsn(1, 9))
    taken = reader.take(by(FIVE, copies), grace_over=grace_over)
    assert words(taken).split()[0] == said


def test_a_node_that_is_whole_again_counts_again() -> None:
    reader = buffer()
    reader.on_damaged(2)
    reader.on_connected(2)
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    assert drain(reader, by(THREE, 1)) == ["data_loss e1n1..e1n8"]


def test_what_is_left_out_is_one_gap_as_far_as_it_goes() -> None:
    reader = buffer()
    for first, last in ((1, 2), (3, 6), (5, 8), (3, 6), (12, 13)):
        reader.on_left_out(make_lsn(1, first), make_lsn(1, last))
    reader.on_block(block(1, 9, 11))
    reader.on_left_out(make_lsn(1, 2), make_lsn(1, 4))
    assert drain(reader) == ["filtered e1n1..e1n8", "e1n9..e1n11", "filtered e1n12..e1n13"]
    reader.on_left_out(make_lsn(1, 1), make_lsn(1, 13))
    assert drain(reader) == []


def test_what_is_left_out_is_cut_where_the_reader_begins_and_ends() -> None:
    reader = buffer(make_lsn(1, 4), make_lsn(1, 6))
    reader.on_left_out(make_lsn(1, 1), make_lsn(1, 9))
    assert drain(reader) == ["filtered e1n4..e1n6"]
    assert reader.is_done


def test_a_damaged_copy_says_nothing_of_the_records_around_it() -> None:
    reader, judge = buffer(), by(THREE, 1)
    reader.on_bad_copy(2, make_lsn(1, 4), make_lsn(1, 5))
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    assert drain(reader, judge) == ["data_loss e1n1..e1n3"]
    reader.on_block(block(1, 4, 5))
    assert drain(reader, judge) == ["e1n4..e1n5", "data_loss e1n6..e1n8"]


def test_a_node_with_too_many_damaged_copies_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: gap_detection.BAD_RANGES_MAX, 3)
    reader = buffer()
    for esn in range(100, 104):
        reader.on_bad_copy(2, make_lsn(1, esn), make_lsn(1, esn))
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    assert drain(reader, by(THREE, 1)) == []


def test_without_a_judge_no_loss_is_concluded() -> None:
    reader = buffer()
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    assert reader.take(None, grace_over=True) is None


def test_who_is_behind_and_whether_anything_is_owed() -> None:
    reader = buffer()
    assert not reader.is_overdue
    assert not reader.is_passed_by(NODES)
    reader.on_marker(1, make_lsn(1, 1))
    assert not reader.is_overdue
    reader.on_marker(2, make_lsn(1, 2))
    assert reader.is_overdue
    assert reader.behind(NODES) == [1, 3]
    assert reader.is_passed_by([2])
    assert not reader.is_passed_by([])
    reader.on_block(block(1, 1, 1))
    assert not reader.is_overdue
    assert not reader.is_passed_by([2])


def test_a_rewind_forgets_what_was_sent_and_said() -> None:
    reader = buffer()
    reader.on_block(block(1, 5, 5))
    reader.on_bad_copy(1, make_lsn(1, 1), make_lsn(1, 1))
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 6))
    reader.rewind()
    assert drain(reader) == []
    assert not reader.is_overdue
    assert reader.on_block(block(1, 5, 5)), "it is no copy of anything"


def test_a_log_that_is_gone_gives_out_what_is_here_and_one_gap() -> None:
    reader = buffer(until=make_lsn(7, 3))
    reader.on_block(block(1, 1, 2))
    reader.on_over(GapKind.NOT_IN_CONFIG)
    assert drain(reader, None) == ["e1n1..e1n2", "not_in_config e1n3..e7n3"]
    assert reader.is_done


def test_a_loss_stays_inside_its_epoch() -> None:
    reader = buffer()
    for node in NODES:
        reader.on_marker(node, make_lsn(2, 5))
    assert drain(reader)[0] == f"data_loss e1n1..e1n{ESN_MAX}"


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("dddh")), min_size=0, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
)
def test_any_arrival_order_from_any_copies_gives_one_tiling(runs, chance, skip) -> None:
    """Three nodes hold each block twice; one node may be silent; the answer is the log."""
    log: list[Item] = []
    at = 1
    for count, what in runs:
        kind = BlockKind.DATA if what == "d" else BlockKind.HOLE
        log.append(block(1, at, at + count - 1, kind))
        at += count
    log.append(bridge(1, at))
    start = make_lsn(1, 1 + min(skip, at - 1))
    held: dict[int, list[Item]] = {node: [] for node in NODES}
    for item in log:
        for node in chance.sample(NODES, 2):
            held[node].append(item)
    speaking = [node for node in NODES if node != skip]
    reader = ReadBuffer[Item](start, make_lsn(2, 0))
    given_out: list[Delivery[Item] | Gap] = []
    cursors = dict.fromkeys(speaking, 0)
    while any(cursors[node] < len(held[node]) for node in speaking):
        node = chance.choice([n for n in speaking if cursors[n] < len(held[n])])
        item = held[node][cursors[node]]
        cursors[node] += 1
        reader.on_block(item)
        reader.on_marker(node, item.header.last + 1)
        while (taken := reader.take(by(THREE))) is not None:
            given_out.append(taken)
    expected = int(start)
    for taken in given_out:
        assert taken.first == expected
        assert not (isinstance(taken, Gap) and taken.kind == GapKind.DATA_LOSS)
        expected = taken.last + 1
    assert reader.is_done, "each block is on a speaking node, so nothing may stall"
    assert isinstance(chance, random.Random)


class TestTrim:
    def test_one_gap_up_to_the_trim_point_and_what_is_here_of_it_goes(self) -> None:
        reader = buffer()
        for first in (1, 3, 5, 7):
            reader.on_block(block(1, first, first + 1))
        assert drain(reader)[:1] == ["e1n1..e1n2"]
        reader = buffer()
        for first in (1, 3, 5, 7):
            reader.on_block(block(1, first, first + 1))
        assert reader.on_trim(make_lsn(1, 5))
        assert drain(reader) == ["trim e1n1..e1n5", "e1n6..e1n6", "e1n7..e1n8"]
        assert [item.header.first & ESN_MAX for item in reader.take_passed()] == [1, 3]
        assert reader.take_passed() == []

    def test_it_runs_over_ends_of_epochs_and_is_cut_at_until(self) -> None:
        reader = buffer(until=make_lsn(3, 4))
        reader.on_trim(make_lsn(5, 2))
        assert drain(reader) == ["trim e1n1..e3n4"]
        assert reader.is_done

    def test_one_below_next_says_nothing(self) -> None:
        reader = buffer(make_lsn(2, 7))
        assert not reader.on_trim(make_lsn(2, 6))
        assert drain(reader) == []

    def test_silence_below_it_is_no_loss_and_a_rewind_does_not_forget_it(self) -> None:
        reader = buffer()
        reader.on_trim(make_lsn(1, 9))
        reader.rewind()
        for node in NODES:
            reader.on_marker(NodeId(node), make_lsn(1, 12))
        assert drain(reader) == ["trim e1n1..e1n9", "data_loss e1n10..e1n11"]


@pytest.mark.parametrize(
    ("last", "markers", "here", "end"),
    [
        (make_lsn(1, 8), (9, 20), 0, make_lsn(1, 8)),  # the whole range
        (make_lsn(1, 8), (6, 20), 0, make_lsn(1, 5)),  # as far as both have come
        (make_lsn(1, 8), (9, 20), 4, make_lsn(1, 3)),  # before the block that is here
        (make_lsn(2, 8), (make_lsn(2, 9), make_lsn(2, 9)), 0, make_lsn(1, ESN_MAX)),  # of its epoch
    ],
)
def test_where_a_loss_in_main_storage_ends(
    last: int, markers: tuple[int, int], here: int, end: int
) -> None:
    reader = buffer()
    for node, marker in zip((1, 2), markers, strict=True):
        reader.on_marker(NodeId(node), marker if marker > ESN_MAX else make_lsn(1, marker))
    if here:
        reader.on_block(block(1, here, here))
    assert reader.lost_up_to(last, [NodeId(1), NodeId(2)]) == end
