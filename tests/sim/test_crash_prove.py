"""Crash states of whole nodes, sweeps within a budget, and the stories they tell."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cordwood.sim.crash_states.explorer import Effort, Found, PromiseBroken, explore
from cordwood.sim.crash_states.node_subject import NodeSubject
from cordwood.sim.crash_states.planted import CRASH_BUGS, CrashBug, search
from cordwood.sim.crash_states.prove import PROBES, Swept, run_seed, sweep
from cordwood.sim.planted import planted

SEEDS = (1, 4)
"""Short ones that meet every kind of state; `make prove` goes on from any."""

SEEDS_TO_CATCH = 4
BUGS = [each for each in CRASH_BUGS if each.subject.name == "node"]


@pytest.fixture(scope="module")
def found() -> Found:
    """What was met on the way over all seeds."""
    found = Found()
    for seed in SEEDS:
        found.add(explore(NodeSubject(), seed))
    return found


class TestNodes:
    @pytest.mark.slow
    def test_a_node_starts_from_every_state_and_has_what_it_stored(self, found: Found):
        assert found.counts[0].states > 250
        assert found.counts[1].states > 60

    @pytest.mark.parametrize(
        "rarity",
        [
            "a first start",
            "a WAL without an identity",
            "a start wrote its claim and made none",
            "a start had claimed the node",
            "how far the WAL had come was noted",
        ],
    )
    def test_the_states_were_of_every_kind(self, found: Found, rarity: str):
        assert found.probes[rarity] > 0

    @pytest.mark.parametrize("bug", BUGS, ids=[each.bug.name for each in BUGS])
    def test_a_planted_bug_is_caught(self, bug: CrashBug, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.CRITICAL)
        assert "node seed" in search(bug, SEEDS_TO_CATCH)


class TestSweeps:
    @pytest.mark.slow
    def test_a_sweep_ends_when_it_has_enough_and_says_what_it_saw(self):
        swept = sweep(60.0, 0, states_max=500)
        assert swept.problem == ""
        assert 500 <= swept.states < 5000
        assert set(swept.found) <= {"wal", "engine", "node", "staging"}
        assert f"{swept.states:,} crash states in" in swept.report()

    @pytest.mark.slow
    def test_it_ends_in_time(self):
        swept = sweep(0.0, 2)
        assert list(swept.found) == ["node"]  # one seed always runs, or nothing would be proved
        assert len(swept.missed()) > 5
        assert f"never happened: {swept.missed()[0]}" in swept.report()

    def test_a_broken_promise_ends_it_with_a_story_that_a_seed_tells_again(
        self, caplog: pytest.LogCaptureFixture
    ):
        caplog.set_level(logging.CRITICAL)
        bug = next(each.bug for each in CRASH_BUGS if each.bug.name == "trim-before-durable")
        with planted(bug):
            swept = sweep(60.0, 0)
            assert "trimmed, and back" in swept.problem
            assert "crash after event" in swept.report()
            seed = int(swept.problem.split()[1].rstrip(":"))
            with pytest.raises(PromiseBroken) as again:
                run_seed(seed)
        assert swept.problem.endswith(str(again.value))

    def test_a_life_that_hangs_is_a_broken_promise(self):
        class Hanging(NodeSubject):
            async def live(self, life: object, promised: object) -> None:
                await asyncio.Event().wait()

        with pytest.raises(PromiseBroken, match="TimeoutError"):
            explore(Hanging(), 1, Effort())

    def test_every_probe_of_a_sweep_is_named_once(self):
        assert len(set(PROBES)) == len(PROBES)
        assert Swept().missed() == list(PROBES)
