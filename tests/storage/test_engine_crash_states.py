"""A storage engine opened from every state that a crash can leave: stores, seals and ends hold."""

from __future__ import annotations

import logging

import pytest

from cordwood.sim.crash_states.engine_promises import (
    Copy,
    End,
    EndAnswered,
    EndAsked,
    EnginePromises,
    Opened,
    Refused,
    SealAnswered,
    SealAsked,
    Sent,
    Stored,
    new_copy,
)
from cordwood.sim.crash_states.engine_subject import EngineSubject
from cordwood.sim.crash_states.explorer import Found, explore
from cordwood.sim.crash_states.planted import CRASH_BUGS, CrashBug, search

SEEDS = (*range(7), 14, 15)
"""The last two meet the rarest state: the end of an epoch below the node's own LNG."""

SEEDS_TO_CATCH = 8
BUGS = [each for each in CRASH_BUGS if each.subject.name == "engine"]

E2 = 2 << 32
A, B = Copy(1, E2 + 1, 0, b"a"), Copy(1, E2 + 9, 0, b"b")


@pytest.fixture(scope="module")
def found() -> Found:
    """What was met on the way over all seeds."""
    found = Found()
    for seed in SEEDS:
        found.add(explore(EngineSubject(), seed))
    return found


@pytest.mark.slow
def test_every_state_is_opened_and_holds_what_was_promised(found: Found):
    assert found.counts[0].states > 500
    assert found.counts[1].states > 200


@pytest.mark.parametrize(
    "rarity",
    [
        "a store not settled came back",
        "a store not settled did not",
        "a store was refused: sealed",
        "a store was refused: full",
        "a seal was answered after stores in flight",
        "a seal held",
        "a seal not answered held",
        "an amend was stored",
        "an amend came back",
        "a store was refused: not_held",
        "an end was answered",
        "an end was told below the node's own LNG",
        "an end not answered held",
        "a partition was dropped",
        "a partition was cut",
        "rot in LogsDB was told",
        "rot in metadata was told",
    ],
)
def test_the_states_were_of_every_kind(found: Found, rarity: str):
    assert found.probes[rarity] > 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[each.bug.name for each in BUGS])
def test_a_planted_bug_is_caught(bug: CrashBug, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    assert "engine seed" in search(bug, SEEDS_TO_CATCH)


class TestPromises:
    """The judge, on histories made by hand."""

    def judge(self, facts: list[object], *copies: Copy, seal: int = 0, ends: int = 0) -> str:
        found = Opened(
            frozenset(copies),
            ((1, seal), (2, 0)),
            frozenset({End(1, 2, 3, E2 + 5)} if ends else ()),
        )
        return EnginePromises().after(facts).judge(found)

    def test_what_was_settled_must_be_visible_and_what_was_sent_may(self):
        facts = [Sent(frozenset({A, B})), Stored(frozenset({A}))]
        assert self.judge(facts, A) == ""
        assert self.judge(facts, A, B) == ""
        assert "lost" in self.judge(facts, B)
        assert "never taken" in self.judge(facts, A, Copy(1, E2 + 1, 0, b"other bytes"))

    def test_what_was_refused_must_not_be(self):
        facts = [Sent(frozenset({A})), Refused(frozenset({A}))]
        assert self.judge(facts) == ""
        assert "never taken" in self.judge(facts, A)

    def test_a_seal_holds_once_answered_and_may_from_when_it_was_asked_for(self):
        asked: list[object] = [SealAsked(1, 3)]
        assert self.judge(asked) == self.judge(asked, seal=3) == ""
        assert "sealed without a request" in self.judge(asked, seal=4)
        assert "forgotten" in self.judge([*asked, SealAnswered(1, 3)], seal=2)

    def test_an_end_drops_what_does_not_count(self):
        end = End(1, 2, 3, E2 + 5)
        facts: list[object] = [
            Sent(frozenset({A, B})),
            Stored(frozenset({A, B})),
            SealAsked(1, 3),
            EndAsked(end),
        ]
        assert self.judge(facts, A, B) == self.judge(facts, A, ends=1) == ""
        assert "lost" in self.judge(facts, B)  # at or below the LNG
        answered = [*facts, EndAnswered(end, frozenset({A, B}))]
        assert self.judge(answered, A, ends=1) == ""
        assert "dropped" in self.judge(answered, A, B, ends=1)
        assert "end was forgotten" in self.judge(answered, A)

    def test_an_amend_stands_for_what_it_amends_and_not_the_other_way_round(self):
        old = new_copy(1, E2 + 1, b"body")
        new = old.amended(3, 2)
        sent: list[object] = [Sent(frozenset({old})), Stored(frozenset({old}))]
        sent.append(Sent(frozenset({new})))
        assert self.judge(sent, old) == self.judge(sent, new) == ""
        assert "lost" in self.judge(sent)
        stored = [*sent, Stored(frozenset({new}))]
        assert self.judge(stored, new) == ""
        assert "lost" in self.judge(stored, old)
        other = new_copy(1, E2 + 1, b"BODY").amended(3, 2)
        assert "lost" in self.judge(stored, other)
