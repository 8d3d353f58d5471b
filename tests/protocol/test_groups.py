"""Atomic groups in recovery: all of a group, or none of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Envelope, EnvelopeFlag
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.protocol.digest import Copy, Digest, Mend
from cordwood.protocol.groups import whole_groups

EPOCH = 3


def header(first: int, last: int, group: tuple[int, int] = (0, 0), **fields) -> BlockHeader:
    gfirst, glast = (make_lsn(EPOCH, esn) if esn else 0 for esn in group)
    return BlockHeader(
        1,
        make_lsn(EPOCH, first),
        last - first + 1,
        0,
        group_first=gfirst,
        group_last=glast,
        **fields,
    )


def esn_ranges(groups) -> set[tuple[int, int]]:
    return {(first & ESN_MAX, last & ESN_MAX) for first, last in groups}


# Blocks with their groups (none: a lone block) ► the groups that are whole.
TABLE = [
    ("a lone block", [(1, 1)], {(1, 1)}),
    ("a group of two", [(1, 2, (1, 4)), (3, 4, (1, 4))], {(1, 4)}),
    ("its first block is missing", [(3, 4, (1, 4))], set()),
    ("its last block is missing", [(1, 2, (1, 4))], set()),
    ("its middle is missing", [(1, 1, (1, 3)), (3, 3, (1, 3))], set()),
    ("a whole one behind a half one", [(1, 2, (1, 4)), (5, 6, (5, 7)), (7, 7, (5, 7))], {(5, 7)}),
    ("a lone block between", [(1, 2, (1, 4)), (5, 5), (6, 6, (6, 6))], {(5, 5), (6, 6)}),
]


@pytest.mark.parametrize(("name", "blocks", "whole"), TABLE, ids=[row[0] for row in TABLE])
def test_which_groups_are_whole(name, blocks, whole) -> None:
    assert esn_ranges(whole_groups([header(*block) for block in blocks])) == whole


def mend(lng: int, *copies: Copy[str]) -> Mend[str]:
    digest: Digest[str] = Digest(EPOCH, make_lsn(EPOCH, lng))
    digest.add(copies)
    return digest.mend()


def copy(
    first, last, group=(0, 0), *, kind=BlockKind.DATA, seal: int = 0, producer: int = 0
) -> Copy[str]:
    flags = EnvelopeFlag.BY_RECOVERY if seal else 0
    made = header(first, last, group, kind=kind, producer=producer)
    return Copy(made, Envelope((1, 2, 3), 1, seal, 0, flags), "")


def esns(mended: Mend[str]):
    kept = [(c.header.first & ESN_MAX, c.header.last & ESN_MAX) for c in mended.blocks]
    holes = [(first & ESN_MAX, last & ESN_MAX) for first, last in mended.holes]
    return kept, holes, mended.bridge & ESN_MAX


def test_a_half_group_at_the_end_lies_under_the_bridge() -> None:
    assert esns(mend(0, copy(1, 1), copy(2, 3, (2, 5)))) == ([(1, 1)], [], 2)


def test_a_half_group_before_what_is_kept_is_one_hole_with_what_is_missing() -> None:
    copies = [copy(1, 1), copy(2, 3, (2, 5)), copy(6, 6)]
    assert esns(mend(0, *copies)) == ([(1, 1), (6, 6)], [(2, 5)], 7)


def test_a_whole_group_is_kept_whichever_members_had_its_blocks() -> None:
    copies = [copy(2, 3, (2, 5)), copy(4, 5, (2, 5))]
    assert esns(mend(1, *copies)) == ([(2, 3), (4, 5)], [], 6)


def test_a_hole_of_an_earlier_recovery_over_a_part_is_the_end_of_all_of_it() -> None:
    plug = copy(4, 4, kind=BlockKind.HOLE, seal=4)
    copies = [copy(2, 3, (2, 5)), copy(4, 4, (2, 5)), copy(5, 5, (2, 5)), plug, copy(6, 6, seal=4)]
    assert esns(mend(1, *copies)) == ([(6, 6)], [(2, 5)], 7)


def test_a_producers_group_above_a_hole_is_a_hole_as_a_whole() -> None:
    copies = [copy(2, 3, (2, 5), producer=9), copy(4, 5, (2, 5), producer=9), copy(6, 6)]
    assert esns(mend(0, *copies)) == ([(6, 6)], [(1, 5)], 7)


@st.composite
def groups(draw):
    """Groups of one to four blocks, one after the other, and which of their blocks are held."""
    at, made = 1, []
    for _ in range(draw(st.integers(1, 8))):
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        group = (at, at + sum(sizes) - 1)
        for size in sizes:
            made.append((at, at + size - 1, group, draw(st.booleans()) or draw(st.booleans())))
            at += size
    return made


@given(groups())
def test_what_is_kept_is_all_of_the_groups_of_which_all_is_held(blocks) -> None:
    held = [block for block in blocks if block[3]]
    kept, holes, bridge = esns(mend(0, *(copy(a, b, group) for a, b, group, _ in held)))
    gone = {group for _, _, group, is_held in blocks if not is_held}
    assert kept == [(a, b) for a, b, group, _ in blocks if group not in gone]
    covered = sorted([*kept, *holes])
    at = 1
    for first, last in covered:
        assert first == at
        at = last + 1
    assert at == bridge


@given(groups(), st.integers(4, 9))
def test_a_second_recovery_keeps_the_same_groups(blocks, seal) -> None:
    copies = [copy(a, b, group) for a, b, group, is_held in blocks if is_held]
    first = mend(0, *copies)
    kept, holes, bridge = esns(first)
    again = [
        Copy(c.header, Envelope((1, 2, 3), 1, seal, 0, EnvelopeFlag.BY_RECOVERY), "")
        for c in first.blocks
    ]
    again += [copy(a, b, kind=BlockKind.HOLE, seal=seal) for a, b in holes]
    again.append(copy(bridge, ESN_MAX, kind=BlockKind.BRIDGE, seal=seal))
    assert esns(mend(0, *again, *copies)) == (kept, holes, bridge)
