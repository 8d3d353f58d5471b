"""Decides which blocks a node with a damaged WAL restores, and when it knows its copies again.

The node does not know which records were lost. They may be of any log, and may be envelopes, ends
of epochs and trims as well as blocks. So the node goes through all logs. A log is healed once

- the *bound* is known: the highest LSN that had been given out at some time after the node's start.
  Records with higher LSNs were sent to the node later, and are not lost;
- all records up to the bound are settled and may be read here: they are released, and lower epochs
  are known to be over. Until then a block may be in flight that this node confirmed and then lost;
- all blocks up to the bound whose envelopes name this node are stored again, and no other node can
  have more of them (`protocol.repair_plan`).

A node that was in no nodeset of a log has lost nothing of it. Once every log is healed, the node
knows its copies again.

The range is a range of LSNs, and not of times as in LogDevice: a donor may have stored old blocks
here, and sequencers' clocks differ.

Source: docs/sources/logdevice.md 2.9 (mini-rebuilding); docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PAUSE_FIRST_S = 0.25
PAUSE_MAX_S = 5.0
"""Before a log is tried again; the pause doubles with each try. Most wait for a release, which
comes within a second; a node that is away is looked for every few seconds."""


class HealTurn(NamedTuple):
    """Why a log is not healed, "" if it is; and when it is tried again."""

    waits: str
    due_s: float = 0.0
    pause_s: float = 0.0


class HealBook:
    """Which logs are healed, and which is due.

    Args:
        logs: all logs that there were when the node started.
    """

    def __init__(self, logs: Iterable[int]) -> None:
        self._left: dict[int, HealTurn] = {log: HealTurn("not looked at yet") for log in logs}
        self._bounds: dict[int, int] = {}
        self.logs = len(self._left)

    @property
    def is_healed(self) -> bool:
        """Whether nothing is left."""
        return not self._left

    @property
    def left(self) -> Mapping[int, HealTurn]:
        """The logs that are not healed."""
        return self._left

    def due(self, now: float) -> list[int]:
        """The logs to be tried now."""
        return [log for log, turn in self._left.items() if turn.due_s <= now]

    def next_s(self, now: float) -> float:
        """Seconds until a log is due."""
        return max(0.0, min((turn.due_s for turn in self._left.values()), default=now) - now)

    def bound(self, log: int) -> int | None:
        """See the module; None while it is not known."""
        return self._bounds.get(log)

    def on_numbered(self, log: int, numbered: int) -> None:
        """A sequencer that rules said how far it had numbered. The first answer counts: later
        answers are only higher, and a log that never rests would never be healed."""
        self._bounds.setdefault(log, numbered)

    def on_healed(self, log: int) -> None:
        """A log has all that this node should hold of it."""
        self._left.pop(log, None)

    def on_waits(self, log: int, why: str, now: float) -> None:
        """A log has to be tried again, after a pause that doubles."""
        pause_s = self._left[log].pause_s
        pause_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2 * pause_s))
        self._left[log] = HealTurn(why, now + pause_s, pause_s)

    @property
    def waits(self) -> str:
        """Why some log is not healed, "" for no reason."""
        tried = [(log, turn) for log, turn in sorted(self._left.items()) if turn.pause_s]
        return f"log {tried[0][0]}: {tried[0][1].waits}" if tried else ""


def is_settled(bound: int, readable: int) -> bool:
    """Whether all up to `bound` is settled, where this node may read up to `readable`.

    An epoch in which nothing was numbered yet, `(E, 0)`, asks for all epochs below it.
    """
    return readable >= bound
