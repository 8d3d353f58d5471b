"""A donor's moves under way: the order of their steps, how many at once, and how fast.

A move has four steps. Each step begins when the step before is durable on every node:

1. the new nodes store the block;
2. the donor notes the new copyset in its own envelope, and that other nodes are still to be told;
3. the other nodes that hold the block get the new envelope;
4. the donor removes its note.

Step 1 comes first because an envelope must not name a node that never had the block. Step 2 is
needed for a donor that learns of another rebuilding set between steps 1 and 3. Without the note it
might plan again by the old copyset, and leave behind a node that knows the new one. With the note
it finishes the move that it began. (`tests/protocol/rebuild_world.py` finds that history.) If a
move ends before step 2, no envelope names the new copy. Its holder drops it when it finds another
copyset whole.

Partitions go from the newest to the oldest. A partition is done only when the scan has been through
it and every move of it has ended.

Source: docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from cordwood.nodes import NodeId
from cordwood.protocol.rebuild_plan import Held, Move
from cordwood.protocol.write_pace import TokenBucket

BLOCK_COST_BYTES = 16 << 10
"""The least cost of a block in the pace: its envelopes are written on each of its nodes. Moving one
block of 200 B took 1.0 ms of a core over all nodes, and one of 256 KiB took 6.9 ms: by time alone a
block costs as much as 40 KiB. With a third of that, a donor at the lowest pace still moves 32 small
blocks a second."""

BURST_S = 0.1
"""Seconds of the rate that may be used at once; see `write_pace`."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Bounds of the moves under way.

    Attributes:
        moves_max, bytes_max: at once; a single move may exceed `bytes_max`.
        bytes_s: the pace, in bytes of bodies sent; 0 is as fast as the nodes take them.
    """

    moves_max: int = 200
    bytes_max: int = 100 << 20
    bytes_s: float = 0.0


class Step(enum.Enum):
    """A move's present step; see the module."""

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
        bytes_done: bytes of bodies in the moves that are done.
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

    def turn(self, bytes_s: float, now: float) -> None:
        """Another pace from now on; 0 is as fast as the nodes take them."""
        if not bytes_s:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(bytes_s, bytes_s * BURST_S, now)
        else:
            self._bucket.turn(bytes_s, bytes_s * BURST_S, now)

    def wait_s(self, now: float) -> float | None:
        """Seconds until the pace lets the next move begin, 0 for at once; None if the window is
        full and a move has to end first."""
        is_full = len(self._flights) >= self._limits.moves_max
        # Compared before the move, so that one block that exceeds the bound still moves.
        if is_full or self._bytes >= self._limits.bytes_max:
            return None
        return self._bucket.debt_s(now) if self._bucket is not None else 0.0

    def begin(self, move: Move, now: float, noted: bool = False) -> Step:
        """A move begins; `wait_s` was 0.

        Args:
            noted: the donor's envelope says that the donor began this move before.
        """
        key = _key(move.block)
        assert key not in self._flights, "a block is moved once at a time"
        sent = move.block.stored_bytes * len(move.stores)
        if self._bucket is not None:
            self._bucket.spend(now, max(BLOCK_COST_BYTES, sent))
        flight = _Flight(move, Step.STORE, set(move.stores))
        if noted:
            # The copies are durable: the note was written after them.
            flight = _Flight(move, Step.AMEND, set(move.amends))
        self._flights[key] = flight
        self._bytes += move.block.stored_bytes
        return self._go_on(flight)

    def nodes_of(self, block: Held) -> tuple[NodeId, ...]:
        """The nodes for which the move's present step still waits, in node order."""
        return tuple(sorted(self._flights[_key(block)].waits))

    def on_durable(self, block: Held, node: NodeId) -> Step | None:
        """The present step is durable on a node; the step that begins now, or None."""
        flight = self._flights.get(_key(block))
        if flight is None or node not in flight.waits:
            return None
        flight.waits.discard(node)
        return None if flight.waits else self._next(flight)

    def on_own(self, block: Held) -> Step:
        """The donor's own envelope for the present step is durable."""
        flight = self._flights[_key(block)]
        assert flight.step in (Step.NOTE, Step.OWN), "the donor's own envelope has its turn"
        return self._next(flight)

    def on_failed(self, block: Held) -> None:
        """A node went away or refused: the move ends, and the partition is not done."""
        flight = self._flights.pop(_key(block), None)
        if flight is not None:
            self._bytes -= block.stored_bytes
            # The progress must not pass this partition: the move is not done.
            self._failed.add(block.partition)

    def on_stuck(self, block: Held) -> None:
        """No node can take this block now."""
        self._failed.add(block.partition)

    def on_scanned(self, partition: int) -> None:
        """The scan has been through a partition and all newer partitions."""
        assert self._scanned is None or partition < self._scanned, "new to old"
        self._scanned = partition

    @property
    def reached(self) -> int | None:
        """The oldest partition that is done together with all newer partitions; None for none."""
        if self._scanned is None:
            return None
        open_at = [flight.move.block.partition for flight in self._flights.values()]
        newest = max([*open_at, *self._failed], default=None)
        if newest is None or newest < self._scanned:
            return self._scanned
        return newest + 1

    @property
    def failed(self) -> tuple[int, ...]:
        """Partitions that have to be scanned again, newest first."""
        return tuple(sorted(self._failed, reverse=True))

    def _next(self, flight: _Flight) -> Step:
        flight.step = Step(flight.step.value + 1)
        flight.waits = set(flight.move.amends) if flight.step is Step.AMEND else set()
        return self._go_on(flight)

    def _go_on(self, flight: _Flight) -> Step:
        """Skip steps that have nothing to do."""
        move = flight.move
        if flight.step is Step.STORE and not flight.waits:
            flight.step = Step.NOTE
        if flight.step is Step.NOTE and not move.changes:
            # A copy went back under the old envelope, so no envelope is amended.
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
