"""Every world of seal and recovery that is small enough, walked from end to end."""

from __future__ import annotations

import itertools
import random

import pytest
import small_scope
from folded_scope import Folding, Walked, walk_unfolded
from small_scope import NODES, Broken, start, steps
from swaps import swap

from cordwood.protocol.digest import Digest
from cordwood.protocol.seal import SealTable, SealTally
from cordwood.sim.planted import find_bug, planted


@pytest.fixture(autouse=True)
def rules_are_asked_anew():
    small_scope.forget()
    yield
    small_scope.forget()


@pytest.fixture(scope="module")
def largest() -> tuple[Folding, Walked]:
    """Three blocks, two recoveries at once, walked whole."""
    small_scope.forget()
    folding = Folding(blocks=3, recoveries=2)
    return folding, folding.walk()


@pytest.mark.slow
def test_three_blocks_and_two_recoveries_at_once_lose_nothing_and_end_in_one_way(
    largest: tuple[Folding, Walked],
):
    _, walked = largest
    assert (walked.worlds, walked.ended) == (301_735, 32_126)


@pytest.mark.slow
def test_an_epoch_of_three_blocks_ends_in_every_way_that_it_may(largest: tuple[Folding, Walked]):
    """Whatever the two do; a walk that missed one would have gone too short a way."""
    subsets = [set(kept) for n in range(4) for kept in itertools.combinations((1, 2, 3), n)]
    assert largest[1].ends == {(tuple(kept), max(kept, default=0) + 1) for kept in subsets}


@pytest.mark.slow
def test_any_way_through_the_unfolded_worlds_stays_within_the_folded_ones(
    largest: tuple[Folding, Walked],
):
    """All of them are too many to hold them against each other."""
    folding, walked = largest
    draw, met = random.Random(1), set()
    for _ in range(3_000):
        world = start(blocks=3, recoveries=2)
        while after := list(steps(world)):
            world = draw.choice(after)
            met.add(folding.packed(folding.fold(world)))
    assert len(met) > 5_000
    assert met <= walked.seen


@pytest.mark.slow
@pytest.mark.parametrize("places", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)])
def test_no_choice_of_copysets_loses_a_block(places):
    """Up to the names of the nodes there is one more, which `largest` is."""
    assert Folding(blocks=3, recoveries=2, places=places).walk().ended > 10_000


@pytest.mark.slow
def test_three_recoveries_at_once_end_the_epoch_in_one_way():
    walked = Folding(blocks=1, recoveries=3).walk()
    assert (walked.worlds, walked.ended) == (512_553, 93_732)


def test_a_recovery_that_is_tried_again_loses_nothing_and_ends_the_epoch_in_one_way():
    walked = Folding(blocks=2, recoveries=1, attempts=2).walk()
    assert (walked.worlds, walked.ended) == (26_415, 1_426)


@pytest.mark.slow
def test_three_attempts_end_the_epoch_in_one_way():
    walked = Folding(blocks=1, recoveries=1, attempts=3).walk()
    assert (walked.worlds, walked.ended) == (105_471, 5_206)


@pytest.mark.slow
def test_a_recovery_that_is_tried_again_beside_another_ends_the_epoch_in_one_way():
    """What the first attempt sent may come while the other one recovers, or after."""
    walked = Folding(blocks=1, recoveries=2, attempts=2).walk()
    assert (walked.worlds, walked.ended) == (241_230, 29_907)


WORLDS = [
    ((1, 1, 1), 1_008, 139),
    ((2, 1, 1), 10_864, 964),
    ((1, 1, 3), 21_168, 1_672),
    pytest.param((3, 1, 1), 126_000, 4_468, marks=pytest.mark.slow),
    pytest.param((2, 1, 2), 308_000, 13_343, marks=pytest.mark.slow),
    pytest.param((1, 2, 1), 219_147, 7_456, marks=pytest.mark.slow),
    pytest.param((1, 1, 1, (0, 1, 2), 2), 146_631, 3_472, marks=pytest.mark.slow),
]
"""Blocks, recoveries and waves, and some copysets and attempts; how many worlds there are, and how
many folded ones."""


@pytest.mark.slow
@pytest.mark.parametrize(("size", "worlds", "folded"), WORLDS)
def test_the_folded_search_reaches_what_the_whole_one_reaches(size, worlds, folded):
    folding = Folding(*size)
    walked = folding.walk()
    assert walked.worlds == folded
    assert walk_unfolded(folding) == (worlds, walked.seen, walked.ends)


def test_rules_do_not_know_nodes_by_name(largest: tuple[Folding, Walked]):
    """What the folds rely on, for every argument that they are asked with."""
    for count in range(len(NODES) + 1):
        heard = map(frozenset, itertools.combinations(NODES, count))
        assert len({small_scope.is_enough(each) for each in heard}) == 1
    for told in itertools.product((-1, 0, 1, 2), repeat=len(NODES)):
        orders = itertools.permutations(told)
        assert len({small_scope.consensus_lng(each) for each in orders}) == 1
    folding, _ = largest
    courses = [each for each in folding.course.things if each.read]
    digests = {((each.seal, each.attempt), each.lng, each.read) for each in courses}
    assert len(digests) > 100
    for place, lng, read in digests:
        shown = [folding.shown.things[each] for each in read]
        orders = itertools.permutations([*shown, *[None] * (len(NODES) - len(shown))])
        assert len({small_scope.decide(place, lng, each) for each in orders}) == 1


def seals_are_not_obeyed(monkeypatch: pytest.MonkeyPatch):
    swap(monkeypatch, SealTable.admits, lambda self, *_: True)


def lng_too_high(monkeypatch: pytest.MonkeyPatch):
    right = SealTally.lng
    swap(monkeypatch, SealTally.lng, lambda self, epoch: min(right(self, epoch) + 1, (1 << 32) + 2))


def last_copy_unseen(monkeypatch: pytest.MonkeyPatch):
    right = Digest.add
    swap(
        monkeypatch,
        Digest.add,
        lambda self, copies: right(self, sorted(copies, key=lambda c: c.header.first)[:-1]),
    )


def is_found(size: tuple[int, int], match: str | None = None, attempts: int = 1) -> None:
    """By both searches."""
    with pytest.raises(Broken, match=match):
        small_scope.walk(start(*size, attempts=attempts))
    with pytest.raises(Broken, match=match):
        Folding(*size, attempts=attempts).walk()


@pytest.mark.parametrize(
    "plant",
    [seals_are_not_obeyed, lng_too_high, last_copy_unseen],
    ids=lambda plant: plant.__name__,
)
def test_a_rule_that_is_wrong_is_found_out(plant, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    is_found((2, 1))


@pytest.mark.parametrize(
    "bug",
    ["lng-too-high", "digest-drops-last", "bridge-too-low", "hole-over-record", "seal-not-obeyed"],
)
def test_a_bug_that_is_planted_is_found_out(bug: str):
    with planted(find_bug(bug)):
        is_found((2, 1))


def test_a_seal_that_recoveries_do_not_name_is_found_out(monkeypatch: pytest.MonkeyPatch):
    """One that was overtaken stores on, and a node shows another end than the one that counts."""
    swap(monkeypatch, small_scope.in_time, lambda outcome, end: outcome)
    with planted(find_bug("seal-unnamed")):
        is_found((1, 2), "shows")


def test_a_node_that_knows_the_end_makes_up_for_a_seal_that_is_not_named():
    """So it takes two wrong rules to break a promise here; each makes up for the other."""
    with planted(find_bug("seal-unnamed")):
        assert Folding(blocks=2, recoveries=2).walk().ended > 1_000


def test_a_seal_that_is_named_makes_up_for_a_node_that_forgot_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    swap(monkeypatch, small_scope.in_time, lambda outcome, end: outcome)
    assert Folding(blocks=2, recoveries=2).walk().worlds == 56_667


def attempts_share_a_place(monkeypatch: pytest.MonkeyPatch):
    """What the next attempt of a recovery stores and tells counts as much as the one before."""
    swap(monkeypatch, small_scope.place_of, lambda mine: (mine.seal, 1))


def late_copies_are_taken(monkeypatch: pytest.MonkeyPatch):
    """A node that knows the end takes what a given-up attempt sent before."""
    swap(monkeypatch, small_scope.in_time, lambda outcome, end: outcome)


@pytest.mark.parametrize(
    "plant", [attempts_share_a_place, late_copies_are_taken], ids=lambda plant: plant.__name__
)
def test_attempts_of_which_an_earlier_one_counts_are_found_out(
    plant, monkeypatch: pytest.MonkeyPatch
):
    plant(monkeypatch)
    is_found((1, 1), "shows", attempts=2)


def test_copies_of_a_given_up_attempt_that_count_are_found_out():
    with planted(find_bug("failed-attempt-counts")):
        is_found((1, 1), "shows", attempts=2)


def test_without_a_second_attempt_nobody_sees_that_attempts_share_a_place(
    monkeypatch: pytest.MonkeyPatch,
):
    """So it is the step that gives an attempt up which finds that."""
    attempts_share_a_place(monkeypatch)
    assert Folding(blocks=2, recoveries=2).walk().worlds == 56_667
