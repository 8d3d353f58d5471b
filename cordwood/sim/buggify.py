"""Rare behaviour that is legal, made common: `buggify("name")` in the simulator's own code.

Each name is active in a quarter of the runs, and fires there in a quarter of the
times it is asked. It changes only what a machine, a network or a user may do any day (a slow file,
a refused dial, a process that dies young). So it is part of the simulator alone, and production
code pays nothing for it.

Source: FoundationDB's BUGGIFY (docs/sources/reliability.md §1).
"""

from __future__ import annotations

import random
from collections import Counter

from cordwood.sim.streams import stream

ACTIVE_SHARE = 0.25
FIRE_SHARE = 0.25


class Buggify:
    """See the module.

    Attributes:
        fired: how often each name fired.
        is_on: whether anything fires; off once the run heals.
    """

    def __init__(self, seed: int, *, is_on: bool = True) -> None:
        self.fired: Counter[str] = Counter()
        self.is_on = is_on
        self._seed = seed
        self._points: dict[str, tuple[bool, random.Random]] = {}

    def __call__(self, name: str) -> bool:
        """Whether the rare thing called `name` happens now."""
        if not self.is_on:
            return False
        point = self._points.get(name)
        if point is None:
            # Each point has its own stream, so that a new point does not change the others.
            chance = stream(self._seed, "buggify", name)
            point = self._points[name] = (chance.random() < ACTIVE_SHARE, chance)
        active, chance = point
        if not active or chance.random() >= FIRE_SHARE:
            return False
        self.fired[name] += 1
        return True

    def chance(self, name: str) -> random.Random:
        """The point's own stream of chance, which says how much of the rare thing happens."""
        return self._points[name][1]
