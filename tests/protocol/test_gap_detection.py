"""The read buffer: records and gaps tile the range, and a loss is never guessed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Gap, GapKind
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.protocol.gap_detection import Delivery, ReadBuffer

NODES = (1, 2, 3)


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


def drain(reader: ReadBuffer[Item]) -> list[str]:
    said = []
    while (taken := reader.take(NODES)) is not None:
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


def test_a_loss_needs_every_member() -> None:
    reader = buffer()
    reader.on_block(block(1, 5, 5))
    for node in (1, 2):
        reader.on_marker(node, make_lsn(1, 6))
    assert drain(reader) == []
    reader.on_marker(3, make_lsn(1, 4))
    assert drain(reader) == ["data_loss e1n1..e1n3"]
    reader.on_marker(3, make_lsn(1, 6))
    assert drain(reader) == ["data_loss e1n4..e1n4", "e1n5..e1n5"]


@pytest.mark.parametrize("event", ["gone", "reconnected", "damaged"])
def test_a_node_that_may_still_hold_it_forbids_a_loss(event: str) -> None:
    reader = buffer()
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    if event == "gone":
        reader.on_gone(2)
    elif event == "reconnected":
        reader.on_connected(2)
    else:
        reader.on_damaged(2, make_lsn(1, 1))
        reader.on_marker(2, make_lsn(1, 20))
    assert drain(reader) == []


def test_without_the_nodeset_no_loss_is_concluded() -> None:
    reader = buffer()
    for node in NODES:
        reader.on_marker(node, make_lsn(1, 9))
    assert reader.take(()) is None


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
        while (taken := reader.take(NODES)) is not None:
            given_out.append(taken)
    expected = int(start)
    for taken in given_out:
        assert taken.first == expected
        assert not (isinstance(taken, Gap) and taken.kind == GapKind.DATA_LOSS)
        expected = taken.last + 1
    assert reader.is_done, "each block is on a speaking node, so nothing may stall"
    assert isinstance(chance, random.Random)
