"""The WAL against a plain list, under crashes that keep, lose and tear what was in flight."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from wal_driver import WalDriver

RING_UNITS = (16, 17, 24, 40)


class WalMachine(RuleBasedStateMachine):
    """Appends, writes ending in any order, trims, resets, crashes, also in recovery, closes."""

    driver: WalDriver

    @initialize(units=st.sampled_from(RING_UNITS), seed=st.integers(0, 1 << 30))
    def format(self, units: int, seed: int) -> None:
        self.driver = WalDriver(units * 4096, seed)

    @rule(size=st.integers(0, 24_000), reserve_ok=st.booleans(), nested=st.booleans())
    def append(self, size: int, reserve_ok: bool, nested: bool) -> None:
        size = min(size, self.driver.wal.record_bytes_max)
        self.driver.append(size, reserve_ok=reserve_ok, nested=nested)

    @rule(sizes=st.lists(st.integers(0, 2000), max_size=40), reserve_ok=st.booleans())
    def append_many(self, sizes: list[int], reserve_ok: bool) -> None:
        self.driver.append_many(sizes, reserve_ok=reserve_ok)

    @rule()
    def turn(self) -> None:
        self.driver.turn()

    @rule(index=st.integers(0, 7))
    def end_write(self, index: int) -> None:
        self.driver.end_write(index)

    @rule()
    def settle(self) -> None:
        self.driver.settle()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.driver.trim(share)

    @rule()
    def crash(self) -> None:
        self.driver.crash()

    @rule(taken=st.integers(0, 6), in_resume=st.booleans())
    def crash_in_recovery(self, taken: int, in_resume: bool) -> None:
        self.driver.crash_in_recovery(taken, in_resume=in_resume)

    @rule()
    def restart_gracefully(self) -> None:
        self.driver.restart_gracefully()

    @rule()
    def reset(self) -> None:
        self.driver.reset()

    @rule()
    def reset_unread(self) -> None:
        self.driver.reset_unread()

    @invariant()
    def room_is_accounted_for(self) -> None:
        if hasattr(self, "driver"):
            wal = self.driver.wal
            assert 0 <= wal.used_bytes <= wal.capacity_bytes - 8192

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()


TestWalMachine = WalMachine.TestCase
TestWalMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def one_life(seed: int, steps: int) -> int:
    """A seeded mix of all that can happen; how many recoveries were checked."""
    chance = random.Random(seed)
    driver = WalDriver(chance.choice(RING_UNITS) * 4096, seed)
    for _ in range(steps):
        draw = chance.random()
        if draw < 0.1:
            sizes = [chance.choice((0, 30, 300)) for _ in range(chance.choice((1, 3, 40)))]
            driver.append_many(sizes, reserve_ok=draw < 0.02)
        elif draw < 0.45:
            size = chance.choice((0, 30, 300, 4000, 4056, 9000, 20_000))
            size = min(size, driver.wal.record_bytes_max)
            fits = driver.append(size, nested=draw < 0.15, reserve_ok=draw < 0.2)
            if not fits:
                driver.trim(chance.random())
        elif draw < 0.6:
            driver.turn()
        elif draw < 0.8:
            driver.end_write(chance.randrange(8))
        elif draw < 0.83:
            driver.settle()
        elif draw < 0.88:
            driver.trim(chance.random())
        elif draw < 0.96:
            driver.crash()
        elif draw < 0.98:
            driver.crash_in_recovery(chance.randrange(6), in_resume=chance.random() < 0.5)
        elif draw < 0.985:
            driver.reset()
        elif draw < 0.99:
            driver.reset_unread()
        else:
            driver.restart_gracefully()
    driver.crash()
    driver.close()
    return driver.recoveries


@pytest.mark.parametrize("first_seed", range(0, 60, 15))
def test_seeded_lives(first_seed: int) -> None:
    recoveries = sum(one_life(seed, 200) for seed in range(first_seed, first_seed + 15))
    assert recoveries > 200
