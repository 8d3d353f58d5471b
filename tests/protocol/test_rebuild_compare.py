"""What a donor makes of what other nodes say of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.rebuild_compare import (
    Finding,
    Has,
    Word,
    compare,
    held_in_common,
    is_overtaken,
    let_go,
    precedence_of,
    rank_of,
    whole_without,
)
from cordwood.protocol.rebuild_plan import Held, Known, Losses

LOSSES = Losses(9, frozenset({3}), frozenset(), (), frozenset({3}))
BLOCK = Held(1, 5, 8, 0, 100, 0, (1, 2, 3), 2)
"""Node 1 holds it on nodes 1, 2 and 3, of which 3 is lost."""

SAME = Word(Has.YES, 2, (1, 2, 3))
OTHER = Word(Has.YES, 4, (2, 4, 5))


@given(st.booleans(), st.integers(0, 2**31), st.integers(1, 2**32 - 1))
def test_a_rank_is_a_precedence_as_a_number(by_recovery, seal, wave) -> None:
    assert precedence_of(rank_of(by_recovery, seal, wave)) == (by_recovery, seal, wave)


@given(*[st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 9))] * 2)
def test_ranks_stand_in_the_order_of_precedence(one, other) -> None:
    assert (rank_of(*one) < rank_of(*other)) == (one < other)


@pytest.mark.parametrize(
    ("words", "finding"),
    [
        ({2: SAME}, Finding.MOVE),
        ({}, Finding.ASK_AGAIN),
        ({2: Word(Has.NO)}, Finding.LEFT_OVER),
        ({2: OTHER}, Finding.LEFT_OVER),
        ({2: Word(Has.YES, 4, (1, 2, 4))}, Finding.TAKE),
        ({2: Word(Has.YES, 2, (1, 2, 4))}, Finding.TAKE),  # of one rank, the copysets decide
        ({2: Word(Has.UNSURE)}, Finding.MOVE),
        ({2: Word(Has.TRIMMED)}, Finding.TRIMMED),
    ],
)
def test_findings(words: dict[int, Word], finding: Finding) -> None:
    assert compare(BLOCK, 1, LOSSES, words).finding is finding


def test_a_node_that_let_go_is_past_a_block_that_main_storage_lost() -> None:
    words = {2: SAME, 4: Word(Has.LET_GO), 5: Word(Has.NO)}
    assert let_go(words, is_in_main_storage=True) is None
    found = let_go(words, is_in_main_storage=False)
    assert found is not None
    assert found.past == {4}
    assert found.words.keys() == {2, 5}
    known = let_go({2: SAME}, is_in_main_storage=True)
    assert known is not None
    assert not known.past


def test_the_word_of_a_node_that_lost_records_says_nothing_against_a_copy() -> None:
    lacking = replace(LOSSES, unsure=frozenset({2}), lacking=frozenset({2}))
    assert compare(BLOCK, 1, lacking, {2: Word(Has.NO)}).finding is Finding.MOVE


def test_a_member_that_knows_that_it_lacks_a_block_may_show_that_the_copy_is_left_over() -> None:
    absent = replace(LOSSES, lacking=frozenset({2}), absent=frozenset({2}))
    assert compare(BLOCK, 1, absent, {2: Word(Has.NO)}).finding is Finding.LEFT_OVER


def test_a_block_without_a_whole_copyset_is_all_its_holders() -> None:
    """A donor on node 3 moved it to node 5, and then to node 4, and was lost before it told all."""
    words = {2: Word(Has.YES, 3, (3, 1, 5)), 5: Word(Has.YES, 5, (3, 4, 5)), 4: Word(Has.NO)}
    common = held_in_common(BLOCK, 1, LOSSES, words)
    assert common is not None
    assert common.copyset == (3, 1, 2, 5)
    assert LOSSES.donor(common) == 1
    assert held_in_common(BLOCK, 1, LOSSES, {**words, 4: Word(Has.UNSURE)}) is None
    assert held_in_common(BLOCK, 1, LOSSES, {**words, 4: Word(Has.TRIMMED)}) is None


def test_what_is_taken_and_who_is_silent() -> None:
    later = Word(Has.YES, 4, (1, 2, 4))
    assert compare(BLOCK, 1, LOSSES, {2: later}).known == Known(4, (1, 2, 4))
    assert compare(BLOCK, 1, LOSSES, {}).silent == (2,)


def test_a_lost_node_is_not_asked_and_one_that_leaves_is() -> None:
    leaving = Losses(9, frozenset(), frozenset({3}), (), frozenset({3}))
    assert compare(BLOCK, 1, leaving, {2: SAME}).silent == (3,)


def test_a_note_is_overtaken_by_a_later_envelope_of_its_own_nodes() -> None:
    assert not is_overtaken(BLOCK, {2: SAME})
    assert is_overtaken(BLOCK, {2: OTHER})
    assert not is_overtaken(BLOCK, {4: OTHER})
    assert not is_overtaken(BLOCK, {2: Word(Has.NO, 4, (2, 4, 5))})


def test_a_copyset_is_whole_where_all_its_nodes_have_the_block() -> None:
    words = {2: OTHER, 4: OTHER, 5: OTHER}
    assert whole_without(1, words) == Known(4, (2, 4, 5))
    assert whole_without(2, words) is None
    assert whole_without(1, {2: OTHER, 4: OTHER}) is None
    assert whole_without(1, {**words, 5: Word(Has.NO)}) is None
