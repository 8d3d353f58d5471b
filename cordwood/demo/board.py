"""The state of the demo: its steps, and the figures that change while it works.

State only. `demo.screen` draws it; the steps themselves know nothing of a terminal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


class StepState(enum.Enum):
    """The state of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        title: the step, as an order.
        note: its result, in figures.
        began_s, seconds: on the board's clock; for a running step, the time so far.
    """

    title: str
    state: StepState = StepState.WAITING
    note: str = ""
    began_s: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Moving:
    """Figures that change many times a second.

    Attributes:
        done, wanted: of the source's units; 0 wanted before the ingest.
        records, bytes: acknowledged.
        ingest_s: seconds since the first append, 0 before it.
        lag: records that the tail is behind.
        nodes: whether each node runs, by number.
    """

    done: int = 0
    wanted: int = 0
    records: int = 0
    bytes: int = 0
    ingest_s: float = 0.0
    lag: int = 0
    nodes: dict[int, bool] = field(default_factory=dict)


class Board:
    """See the module.

    Attributes:
        moving: called to get the present figures.
    """

    def __init__(self, titles: Sequence[str], now: Callable[[], float]) -> None:
        self.steps = [Step(title) for title in titles]
        self.moving: Callable[[], Moving] = Moving
        self._now = now
        self._told: list[Callable[[Step], None]] = []

    def tell(self, listener: Callable[[Step], None]) -> None:
        """Call `listener` with each step that begins or ends."""
        self._told.append(listener)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run a step; set its note inside."""
        step = next(each for each in self.steps if each.title == title)
        step.state, step.began_s = StepState.RUNNING, self._now()
        self._changed(step)
        try:
            yield step
        except BaseException:
            step.state = StepState.FAILED
            raise
        else:
            step.state = StepState.DONE
        finally:
            step.seconds = self._now() - step.began_s
            self._changed(step)

    def so_far(self, step: Step) -> float:
        """Seconds that a step took, or takes until now."""
        return self._now() - step.began_s if step.state is StepState.RUNNING else step.seconds

    def _changed(self, step: Step) -> None:
        for listener in self._told:
            listener(step)
