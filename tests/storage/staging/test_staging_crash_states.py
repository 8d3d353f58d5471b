"""What is staged, opened from every state that a crash can leave."""

from __future__ import annotations

import logging

import pytest

from cordwood.sim.crash_states.explorer import Found, explore
from cordwood.sim.crash_states.planted import CRASH_BUGS, CrashBug, search
from cordwood.sim.crash_states.staging_subject import (
    Answered,
    Asked,
    FoundStaged,
    StagingPromises,
    StagingSubject,
)

SEEDS = range(4)
SEEDS_TO_CATCH = 8
BUGS = [each for each in CRASH_BUGS if each.subject.name == "staging"]

A, B = b"a" * 16, b"b" * 16
STAGED, PINNED = (b"body", 0, 0), (b"body", 1, 0)


@pytest.fixture(scope="module")
def found() -> Found:
    """What was met on the way over all seeds."""
    found = Found()
    for seed in SEEDS:
        found.add(explore(StagingSubject(), seed))
    return found


@pytest.mark.slow
def test_every_state_is_opened_and_holds_what_was_promised(found: Found):
    assert found.counts[0].states > 500
    assert found.counts[1].states > 100


@pytest.mark.parametrize(
    "rarity",
    [
        "a staged block came back",
        "a pin came back",
        "a changed copyset came back",
        "LogsDB held staged blocks",
        "an operation on a staged block was in doubt",
    ],
)
def test_the_states_were_of_every_kind(found: Found, rarity: str):
    assert found.probes[rarity] > 0


@pytest.mark.parametrize("bug", BUGS, ids=[each.bug.name for each in BUGS])
def test_a_planted_bug_is_caught(bug: CrashBug, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    assert "staging seed" in search(bug, SEEDS_TO_CATCH)


def test_what_was_asked_and_not_answered_may_be_done_or_not():
    promised = StagingPromises().after([Asked(A, STAGED)])
    assert promised.judge({}) == ""
    assert promised.judge({A: STAGED}) == ""
    assert "pinned by 1" in promised.judge({A: PINNED})
    assert "62" * 16 in promised.judge({B: STAGED})


def test_what_was_answered_or_found_is_so():
    promised = StagingPromises().after([Asked(A, STAGED), Answered(A, STAGED), Asked(A, PINNED)])
    assert promised.judge({A: STAGED}) == promised.judge({A: PINNED}) == ""
    assert "not there" in promised.judge({})
    assert "it is" not in promised.after([FoundStaged(((A, PINNED),))]).judge({A: PINNED})
    assert promised.after([FoundStaged(())]).judge({A: STAGED})
