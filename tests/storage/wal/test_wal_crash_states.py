"""The WAL started from every state that a crash can leave, and crashed again while it starts."""

from __future__ import annotations

import logging

import pytest

from cordwood.sim.crash_states.explorer import Effort, Found, explore
from cordwood.sim.crash_states.planted import CRASH_BUGS, CrashBug, search
from cordwood.sim.crash_states.wal_subject import (
    Acknowledged,
    Appended,
    Back,
    ClosedWell,
    Formatted,
    Recovered,
    TrimAsked,
    Trimmed,
    WalPromises,
    WalSubject,
)
from cordwood.storage.wal.delta_wal import WalRecovery

SEEDS = range(12)
SEEDS_TO_CATCH = 12
"""A seed is 300 states: a bug that hides for longer is not under test."""

BUGS = [each for each in CRASH_BUGS if each.subject.name == "wal"]


@pytest.fixture(scope="module")
def found() -> Found:
    """What was met on the way over all seeds."""
    found = Found()
    for seed in SEEDS:
        found.add(explore(WalSubject(), seed))
    return found


@pytest.mark.slow
def test_every_state_is_recovered_from_and_holds_what_was_promised(found: Found):
    """Also those of crashes during recoveries and shortly after, two deep."""
    assert found.counts[0].states > 900
    assert found.counts[1].states > 500
    assert found.counts[2].states > 100


@pytest.mark.parametrize(
    "rarity",
    [
        "records across the ring's end",
        "the window grew",
        "the ring was full",
        "holes were passed",
        "holes were told",
        "closed well",
        "cut off",
        "a record not acknowledged came back",
        "one not acknowledged did not",
        "a trim not answered was kept",
        "a trim not answered was lost",
    ],
)
def test_the_states_were_of_every_kind(found: Found, rarity: str):
    assert found.probes[rarity] > 0


def test_a_short_life_is_gone_through_with_every_fate_of_every_write():
    effort = Effort(steps=(4, 0, 0), per_point=(4000, 0, 0), share=(0.0, 0.0, 0.0))
    count = explore(WalSubject(), 3, effort).counts[0]
    assert count.whole_points == count.points
    assert count.combinations > 300
    assert count.states > 50  # a header is 128 bytes of its 4 KiB: most tears leave equal bytes


def test_one_seed_is_one_exploration():
    one, other = (explore(WalSubject(), 5) for _ in range(2))
    assert one.counts == other.counts
    assert one.probes == other.probes


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[each.bug.name for each in BUGS])
def test_a_planted_bug_is_caught(bug: CrashBug, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    assert "wal seed" in search(bug, SEEDS_TO_CATCH)


class TestPromises:
    """The judge, on histories made by hand."""

    def judge(self, promises: WalPromises, *found: tuple[int, bytes], **facts: object) -> str:
        recovery = WalRecovery(
            records=len(found),
            bytes=0,
            was_graceful=bool(facts.get("graceful")),
            holes=(),
            damage=facts.get("damage", ()),  # type: ignore[arg-type]
            resume=0,
            incarnation=1,
        )
        return promises.judge(found, recovery)

    def after(self, *facts: object) -> WalPromises:
        return WalPromises().after(facts)

    def test_what_was_acknowledged_must_be_there_and_what_was_not_may(self):
        promises = self.after(Appended(0, b"a"), Appended(41, b"b"), Acknowledged(0))
        assert self.judge(promises, (0, b"a")) == ""
        assert self.judge(promises, (0, b"a"), (41, b"b")) == ""
        assert "lost" in self.judge(promises, (41, b"b"))
        assert "lost" in self.judge(promises, (0, b"x"))
        assert "never appended" in self.judge(promises, (0, b"a"), (41, b"x"))
        assert "never appended" in self.judge(promises, (0, b"a"), (99, b"b"))

    def test_a_trim_may_take_effect_once_asked_for_and_must_once_it_returned(self):
        asked = self.after(Appended(0, b"a"), Acknowledged(0), TrimAsked(0))
        assert self.judge(asked) == ""
        assert self.judge(asked, (0, b"a")) == ""
        trimmed = asked.after([Trimmed(0)])
        assert "trimmed" in self.judge(trimmed, (0, b"a"))

    def test_what_came_back_stays_and_what_did_not_is_gone(self):
        promises = self.after(
            Appended(0, b"a"), Appended(41, b"b"), Back(41, b"b"), Recovered(trim=-1)
        )
        assert self.judge(promises, (41, b"b")) == ""
        assert "lost" in self.judge(promises)
        assert "never appended" in self.judge(promises, (0, b"a"), (41, b"b"))

    def test_the_order_the_count_and_damage_are_looked_at(self):
        promises = self.after(Appended(0, b""), Appended(40, b""))
        assert "out of order" in self.judge(promises, (40, b""), (0, b""))
        assert "damage" in self.judge(promises, damage=((0, 40),))

    def test_a_wal_that_was_closed_must_say_so(self):
        promises = self.after(Formatted(), ClosedWell())
        assert self.judge(promises, graceful=True) == ""
        assert "closed well" in self.judge(promises)
