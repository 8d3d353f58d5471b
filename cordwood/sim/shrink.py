"""Fewer faults that still break the same promise: delta debugging over a plan.

A plan that found a bug has twenty faults, and two of them matter. Each fault draws from a stream of
its own, so leaving one out leaves the others as they were. The run after it differs, of course, so
a smaller plan may break the promise in another way. That is just as good: the aim is the shortest
story.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input"
(TSE 2002), the ddmin algorithm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cordwood.sim.sweep import SeedTask, options_of, report_task

TRIES_MAX = 200
"""Runs spent on one seed: ddmin on thirty faults takes sixty to a hundred."""


@dataclass(frozen=True, slots=True)
class Step:
    """One smaller plan that was tried.

    Attributes:
        faults: the numbers kept, from 1.
        breaks: whether the promise was still broken.
    """

    faults: tuple[int, ...]
    breaks: bool


def shrink(
    task: SeedTask, invariant: str, breaks: Callable[[SeedTask], bool] | None = None
) -> Iterator[Step]:
    """Try smaller and smaller plans. The last step that breaks the promise is the smallest plan
    found.

    Args:
        task: a run that breaks `invariant`.
        breaks: whether a task breaks the promise; None runs the task to find out.
    """

    def look(candidate: SeedTask) -> bool:
        return invariant in report_task(candidate).invariants

    judge = breaks or look
    kept = task.faults
    if kept is None:
        kept = tuple(range(1, len(options_of(task).drawn_plan(task.seed)) + 1))
    parts, tries = 2, 0
    while kept and tries < TRIES_MAX:
        for candidate in _candidates(kept, parts):
            tries += 1
            broken = judge(dataclasses.replace(task, faults=candidate))
            yield Step(candidate, broken)
            if broken:
                kept, parts = candidate, max(parts - 1, 2)
                break
            if tries >= TRIES_MAX:
                return
        else:
            if parts >= len(kept):
                return
            parts = min(parts * 2, len(kept))


def _candidates(kept: tuple[int, ...], parts: int) -> Iterator[tuple[int, ...]]:
    """Plans to try: no faults at all; each part alone; all parts except one."""
    pieces = list(_cut(kept, parts))
    if parts == 2:
        yield ()
    if len(pieces) > 1:
        yield from pieces
        for at in range(len(pieces) if len(pieces) > 2 else 0):
            yield _joined(pieces[:at] + pieces[at + 1 :])


def _cut(kept: tuple[int, ...], parts: int) -> Iterator[tuple[int, ...]]:
    size, more = divmod(len(kept), parts)
    start = 0
    for at in range(parts):
        stop = start + size + (at < more)
        if stop > start:
            yield kept[start:stop]
        start = stop


def _joined(pieces: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(number for piece in pieces for number in piece)
