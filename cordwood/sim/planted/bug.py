"""A planted bug, and how it is put into the code and taken out again.

Planting replaces functions for the length of a block. Production code has no seam for
it, and a bug whose function is gone fails to plant, loudly.

Source: docs/sources/reliability.md §1 (etcd re-finds its old bugs), §6.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import as_drawn

Make = Callable[[Any], Any]
"""From the right function to the wrong one."""

Plant = Callable[[], Sequence[tuple[Any, str, Any]]]
"""Gives (class or module, attribute, the bug's function) for each replacement."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One bug.

    Attributes:
        name: as people ask for it.
        story: what it does, in words.
        plant: what to replace by what.
        scenario: from a seed's draw to what makes the bug act, see `sim.planted.scenarios`.
        scene: the test that catches it, where no seed does what it needs; "" for seeds.
    """

    name: str
    story: str
    plant: Plant
    scenario: Callable[[RunOptions], RunOptions] = as_drawn
    scene: str = ""


def changed(changes: Mapping[str, Make]) -> Plant:
    """Replacements by place: `module:function` or `module:Class.method`, below `cordwood`."""

    def plant() -> list[tuple[Any, str, Any]]:
        found = [(*find_place(place), make) for place, make in changes.items()]
        return [(owner, name, make(owner.__dict__[name])) for owner, name, make in found]

    return plant


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    """The bug is in the code for the length of the block."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, wrong in bug.plant():
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, wrong)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def find_place(place: str) -> tuple[Any, str]:
    """The module or class that `place` names, and the function's name in it."""
    module_name, _, path = place.partition(":")
    owner: Any = importlib.import_module(f"cordwood.{module_name}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    assert name in owner.__dict__, f"there is no {place} any more"
    return owner, name


def instead(wrong: Any) -> Make:
    """A change that does not need the right function."""
    return lambda right: wrong
