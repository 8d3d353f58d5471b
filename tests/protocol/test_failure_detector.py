"""The failure detector, told as what nodes hear of one another."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.failure_detector import (
    TOLD_MIN,
    DetectorLimits,
    FailureDetector,
    NodeState,
    Word,
)

LIMITS = DetectorLimits(suspect_ticks=3, dead_ticks=6)
ALIVE, SUSPECT, DEAD = NodeState.ALIVE, NodeState.SUSPECT, NodeState.DEAD


def detector(node: int = 1, others: int = 3) -> FailureDetector:
    """Node 1 of a few, told often enough to count."""
    made = FailureDetector(node, 1, LIMITS)
    made.want(dict.fromkeys(range(1, others + 1), 1))
    for _ in range(TOLD_MIN):
        made.on_words([])
    return made


def ticks(made: FailureDetector, count: int) -> None:
    for _ in range(count):
        made.tick()


@pytest.mark.parametrize(
    ("silence", "state"), [(0, ALIVE), (3, ALIVE), (4, SUSPECT), (6, SUSPECT), (7, DEAD)]
)
def test_silence_makes_suspect_then_dead(silence: int, state):
    made = detector()
    ticks(made, silence)
    assert made.state(2) is state


def test_word_of_mouth_keeps_a_node_alive_that_is_not_heard_itself():
    made = detector()
    for _ in range(20):
        made.tick()
        made.on_words([Word(3, 1, 1)])
    assert made.state(2) is DEAD
    assert made.state(3) is ALIVE


def test_an_older_word_changes_nothing():
    made = detector()
    made.on_words([Word(2, 50, 1)])
    assert made.state(2) is ALIVE


def test_a_new_life_is_heard_of_and_an_old_one_no_more():
    made = detector()
    ticks(made, 10)
    made.on_words([Word(2, 0, 2)])
    assert made.state(2) is ALIVE
    ticks(made, 10)
    made.on_words([Word(2, 0, 1)])
    assert made.state(2) is DEAD


def test_who_leaves_is_dead_at_once_whoever_tells_and_until_the_next_life():
    made, leaver = detector(), detector(node=2)
    leaver.leave()
    made.on_words(leaver.words())
    assert made.state(2) is DEAD
    made.on_words([Word(2, 0, 1)])
    assert made.state(2) is DEAD
    made.on_words([Word(2, 0, 2)])
    assert made.state(2) is ALIVE


def test_a_node_that_just_started_trusts_no_silence_before_it_was_told_something():
    made = FailureDetector(1, 1, LIMITS)
    made.want({2: 1, 3: 1})
    ticks(made, LIMITS.dead_ticks)
    assert made.state(2) is ALIVE
    assert not made.is_isolated
    made.tick()  # nobody has told anything for as long as it takes
    assert made.state(2) is DEAD
    assert made.is_isolated


def test_isolated_is_who_has_others_and_hears_none_of_them():
    made = detector()
    ticks(made, 7)
    assert made.is_isolated
    made.on_words([Word(3, 0, 1)])
    assert not made.is_isolated
    alone = detector(others=1)
    ticks(alone, 100)
    assert not alone.is_isolated


def test_who_is_left_of_a_cluster_that_was_given_up_is_not_isolated():
    """Seed 9000071. One copy, two of three nodes lost for good and said to be: the third saw
    nobody any more, so it sequenced nothing, and there was nobody else to."""
    made = detector()
    ticks(made, 7)
    members = dict.fromkeys(range(1, 4), 1)
    made.want(members, given_up={2})
    assert made.is_isolated  # node 3 may live, and have taken over
    made.want(members, given_up={2, 3})
    assert not made.is_isolated
    assert made.state(2) is DEAD
    made.want(members)
    assert made.is_isolated


def test_members_that_go_are_forgotten_and_strangers_never_kept():
    made = detector()
    made.on_words([Word(9, 0, 1)])
    assert {word.node for word in made.words()} == {1, 2, 3}
    made.want({1: 1, 2: 1})
    assert {word.node for word in made.words()} == {1, 2}


@given(st.integers(0, 2**32), st.integers(3, 8))
def test_word_gets_round_and_everybody_agrees(seed, count):
    """Ticks in turn, one random listener each; then one goes, and all call it dead in time."""
    chance = random.Random(seed)
    limits = DetectorLimits()
    all_nodes = list(range(1, count + 1))
    views = {node: FailureDetector(node, 1, limits) for node in all_nodes}
    for view in views.values():
        view.want(dict.fromkeys(all_nodes, 1))
    gone: set[int] = set()

    def play(rounds: int) -> None:
        for _ in range(rounds):
            for node in all_nodes:
                if node not in gone:
                    told = views[node].tick()
                    listener = chance.choice([each for each in all_nodes if each != node])
                    if listener not in gone:
                        views[listener].on_words(told)

    play(50)
    assert all(not views[node].nodes(DEAD) for node in all_nodes)
    gone.add(1)
    play(2 * limits.dead_ticks)
    assert all(views[node].nodes(DEAD) == {1} for node in all_nodes[1:])
