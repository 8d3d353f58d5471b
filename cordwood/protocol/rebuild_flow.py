"""A donor's moves on their way: in which order each is written, how many at once, how fast.

A move goes through four steps, and each begins when the one before is durable on every node:

1. the block is stored on the nodes that are new to it;
2. the donor notes in its own envelope the new copyset, and that the others are still to be told;
3. the other nodes that have the block get the new envelope;
4. the donor's note goes.

An envelope that names a node which never had the block would be a lie, so 1 comes before all.
Without 2, a donor that learns of another rebuilding set between 1 and 3 might plan anew by the
copyset of old and leave behind a node that was told of the new one; with it, it goes on with what
it began. (`tests/protocol/rebuild_world.py` finds that history.) A copy of a move that ended before
2 is named by nobody: its holder drops it where another copyset is whole.

Partitions go from the newest to the oldest, and a partition counts as dealt with only when the
scan has been through it and every move of it has come to its end.

Source: docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from cordwood.nodes import NodeId
from cordwood.protocol.rebuild_plan import Held, Move
from cordwood.protocol.write_pace import TokenBucket

BLOCK_COST_BYTES = 1024
"""A block costs at least so much of the pace: its envelopes are written on each of its nodes."""

BURST_S = 0.1
"""As `write_pace` has it."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Bounds of what is on its way.

    Attributes:
        moves_max, bytes_max: at once; one move may go over the bytes if it is alone.
        bytes_s: the pace, of bodies sent; 0 is as fast as the nodes take it.
    """

    moves_max: int = 200
    bytes_max: int = 100 << 20
    bytes_s: float = 0.0


class Step(enum.Enum):
    """What is under way for a move; see the module."""

    STORE = 1
    NOTE = 2
    AMEND = 3
    OWN = 4
    DONE = 5


@dataclass(slots=True)
class _Flight:
    move: Move
    step: Step
    waits: set[NodeId] = field(default_factory=set)


class RebuildFlow:
    """See the module. A method that begins a step returns it; the caller then sends to
    `nodes_of`, or to itself for `Step.NOTE` and `Step.OWN`.

    Attributes:
        bytes_done: of bodies of the moves that came to their end.
    """

    def __init__(self, limits: FlowLimits, now: float) -> None:
        self.bytes_done = 0
        self._limits = limits
        self._bucket: TokenBucket | None = None
        if limits.bytes_s:
            self._bucket = TokenBucket(limits.bytes_s, limits.bytes_s * BURST_S, now)
        self._flights: dict[tuple[int, int, int], _Flight] = {}
        self._bytes = 0
        self._scanned: int | None = None
        self._failed: set[int] = set()

    def __len__(self) -> int:
        return len(self._flights)

    def wait_s(self, now: float) -> float | None:
        """Seconds until the pace lets the next move begin, 0 for at once; None where the window
        is full, so that a move has to end first."""
        is_full = len(self._flights) >= self._limits.moves_max
        if is_full or self._bytes >= self._limits.bytes_max:
            return None
        return self._bucket.debt_s(now) if self._bucket is not None else 0.0

    def begin(self, move: Move, now: float, noted: bool = False) -> Step:
        """A move begins; `wait_s` was 0.

        Args:
            noted: it goes on with what the donor's envelope says that it began.
        """
        key = _key(move.block)
        assert key not in self._flights, "a block is moved once at a time"
        sent = move.block.stored_bytes * len(move.stores)
        if self._bucket is not None:
            self._bucket.spend(now, max(BLOCK_COST_BYTES, sent))
        flight = _Flight(move, Step.STORE, set(move.stores))
        if noted:
            flight = _Flight(move, Step.AMEND, set(move.amends))
        self._flights[key] = flight
        self._bytes += move.block.stored_bytes
        return self._go_on(flight)

    def nodes_of(self, block: Held) -> tuple[NodeId, ...]:
        """The nodes that the move's present step still waits for, in node order."""
        return tuple(sorted(self._flights[_key(block)].waits))

    def on_durable(self, block: Held, node: NodeId) -> Step | None:
        """A node has it durably, for the present step; the step that begins now, if one does."""
        flight = self._flights.get(_key(block))
        if flight is None or node not in flight.waits:
            return None
        flight.waits.discard(node)
        return None if flight.waits else self._next(flight)

    def on_own(self, block: Held) -> Step:
        """The donor's own envelope is durable, as the present step wants it."""
        flight = self._flights[_key(block)]
        assert flight.step in (Step.NOTE, Step.OWN), "the donor's own envelope has its turn"
        return self._next(flight)

    def on_failed(self, block: Held) -> None:
        """A node went away or refused: the block stays as it is, and its partition is not done."""
        flight = self._flights.pop(_key(block), None)
        if flight is not None:
            self._bytes -= block.stored_bytes
            self._failed.add(block.partition)

    def on_stuck(self, block: Held) -> None:
        """A block for which there is no place now."""
        self._failed.add(block.partition)

    def on_scanned(self, partition: int) -> None:
        """The scan has been through a partition, and through all that are newer."""
        assert self._scanned is None or partition < self._scanned, "new to old"
        self._scanned = partition

    @property
    def reached(self) -> int | None:
        """The oldest partition of which, with all newer ones, nothing is left to do; None where
        that holds of none yet."""
        if self._scanned is None:
            return None
        open_at = [flight.move.block.partition for flight in self._flights.values()]
        newest = max([*open_at, *self._failed], default=None)
        if newest is None or newest < self._scanned:
            return self._scanned
        return newest + 1

    @property
    def failed(self) -> tuple[int, ...]:
        """Partitions that have to be looked at again, newest first."""
        return tuple(sorted(self._failed, reverse=True))

    def _next(self, flight: _Flight) -> Step:
        flight.step = Step(flight.step.value + 1)
        flight.waits = set(flight.move.amends) if flight.step is Step.AMEND else set()
        return self._go_on(flight)

    def _go_on(self, flight: _Flight) -> Step:
        """Pass over steps in which there is nothing to do."""
        move = flight.move
        if flight.step is Step.STORE and not flight.waits:
            flight.step = Step.NOTE
        if flight.step is Step.NOTE and not move.changes:
            flight.step = Step.DONE
        if flight.step is Step.AMEND and not flight.waits:
            flight.step = Step.OWN
        if flight.step is Step.DONE:
            del self._flights[_key(move.block)]
            self._bytes -= move.block.stored_bytes
            self.bytes_done += move.block.stored_bytes * len(move.stores)
        return flight.step


def _key(block: Held) -> tuple[int, int, int]:
    return block.log, block.last, block.first
