"""The search for planted bugs: the next seed, the test whether a bug is caught, and the report.

Source: docs/sources/reliability.md §6: a checker that has never caught anything proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cordwood.sim.planted.bug import PlantedBug
from cordwood.sim.run import CODE
from cordwood.sim.sweep import SeedReport, SeedTask


class BugSearch:
    """One bug, and the progress of its seeds.

    Args:
        seeds: number of seeds, from 1, within which it must be caught.
        by_scene: whether the test that plants it must catch it; then no seed is run.
        known: the seed that caught it last, which is tried before all others; 0 for none.

    Attributes:
        tried: seeds that have run.
    """

    def __init__(
        self, bug: PlantedBug, seeds: int, *, by_scene: bool = False, known: int = 0
    ) -> None:
        self.bug = bug
        self.caught: SeedReport | None = None
        self.tried = 0
        self.is_running = False
        self._by_scene = by_scene
        first = [known] if 1 <= known <= seeds else []
        self._left = iter([*first, *(seed for seed in range(1, seeds + 1) if seed not in first)])
        self._seeds = seeds

    def next_task(self) -> SeedTask | None:
        """The bug's next seed: one seed at a time, so that the report names the first seed that catches it."""
        if self.is_running or self.is_over:
            return None
        self.is_running = True
        return SeedTask(next(self._left), bug=self.bug.name)

    @property
    def is_caught(self) -> bool:
        """Whether a seed caught it, or a scene catches it."""
        return self._by_scene or self.caught is not None

    @property
    def is_over(self) -> bool:
        """Whether it was caught, or all its seeds have run."""
        return self.is_caught or self.tried >= self._seeds

    @property
    def words(self) -> str:
        """The result, in one line."""
        if self.caught is None:
            return f"{self.bug.name}: NOT CAUGHT in {self.tried} seeds"
        return (
            f"{self.bug.name}: seed {self.caught.task.seed}, by {', '.join(self.caught.invariants)}"
        )

    def on_report(self, report: SeedReport | None) -> None:
        """A seed ended; None if its run was lost, as on a busy machine: this proves nothing.

        A run that only failed with an error of the code proves nothing either: a bug that no longer
        fits the function it replaces would be "caught" by the first call.
        """
        self.is_running = False
        self.tried += 1
        if report is not None and set(report.invariants) - {CODE}:
            self.caught = report

    def plain(self) -> dict[str, Any]:
        """The result, for programs."""
        caught = self.caught
        return {
            "bug": self.bug.name,
            "story": self.bug.story,
            "caught": self.is_caught,
            "scene": self.bug.scene if self._by_scene else "",
            "seed": caught.task.seed if caught else None,
            "invariants": list(caught.invariants) if caught else [],
            "tried": self.tried,
        }


def next_search(searches: Iterable[BugSearch]) -> SeedTask | None:
    """The next seed of the first bug that waits for one."""
    for search in searches:
        task = search.next_task()
        if task is not None:
            return task
    return None


def known_seeds(table: str) -> dict[str, int]:
    """The seeds of a table that `bugs_markdown` made, by bug. Other lines do not count."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9]{1,6}) \| .+ \|$", table, re.MULTILINE)
    return {name: int(seed) for name, seed in rows}


def bugs_table(searches: Iterable[BugSearch]) -> Table:
    """The progress of all searches, for people."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("bug", "left"), ("seed", "right"), ("caught by", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("what it does")
    for search in searches:
        if search.caught is not None:
            seed, by = str(search.caught.task.seed), ", ".join(search.caught.invariants)
        elif search.is_caught:
            seed, by = "scene", search.bug.scene
        elif search.is_running or not search.tried:
            seed, by = f"{search.tried}…", ""
        else:
            seed, by = "-", f"NOT CAUGHT in {search.tried} seeds"
        table.add_row(search.bug.name, seed, Text(by), search.bug.story)
    return table


def bugs_markdown(told: Iterable[Mapping[str, Any]]) -> str:
    """The table of docs/simulator.md, from what `BugSearch.plain` tells of each bug."""
    lines = ["| bug | seed | by |", "|---|---|---|"]
    for each in told:
        if each["scene"]:
            seed, by = "scene", f"`{each['scene']}`"
        elif each["caught"]:
            seed, by = str(each["seed"]), ", ".join(each["invariants"])
        else:
            seed, by = "-", f"not caught in {each['tried']} seeds"
        lines.append(f"| `{each['bug']}` | {seed} | {by} |")
    return "\n".join(lines)
