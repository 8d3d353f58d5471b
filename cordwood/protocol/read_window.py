"""How far nodes may send ahead of one reader: in LSNs by a window, in bytes by each node's credit.

*The window* `[low, high]` is the same for all nodes. It moves once `threshold` of it was used up
(LogDevice's `client_read_flow_control_threshold`), and is as long as what two credits hold of
records of the size that came of late, between LSNS_MIN and LSNS_MAX.

*The credit* is what each node may have sent that the reader has not consumed. With each move of
the window the stream reserves it anew from what all streams of the client share
(`protocol.read_budget`): twice as much as before where the window lasted less than QUICK_S,
half where it took longer than SLOW_S. A node is told of more once a quarter was used up.

Pure: times and LSNs in, what to tell nodes out. Source: docs/sources/logdevice.md 2.11;
docs/design.md §2.
"""

from __future__ import annotations

import math

from cordwood.lsn import LSN_MAX
from cordwood.protocol.read_budget import ReadBudget

LSNS_MIN = 1024
LSNS_MAX = 1 << 20
"""Bounds of the LSN window: LogDevice's default is 512 records, ours are blocks."""

CREDIT_BYTES_MIN = 64 << 10
"""What each node may send ahead however many streams there are: a few dozen records of a
kilobyte, so that a stream makes progress with each round trip."""

CREDIT_BYTES_FIRST = 512 << 10
"""What a stream asks for at first, and at the tail: a hundred streams of five nodes fit into the
budget with it. When each asked for all at once the first few had it, and those behind them four
blocks: no two of a hundred readers stood at one place any more, and each block went to each of
them by itself."""

QUICK_S = 0.05
SLOW_S = 0.2
"""A round trip on a busy machine takes some milliseconds, and a window should last for many."""

MEAN_FIRST_BYTES = 256.0
"""A record's size before any came: small, so that the first window is not too short."""

MEAN_WEIGHT = 0.05
"""What a block counts in the average: twenty blocks or so decide."""


class ReadWindow:
    """See the module.

    Attributes:
        low, high: the window; `high` never falls, for nodes know no smaller one.
        due: once all below this was given out it moves.
        credit: bytes that each node may be ahead.
    """

    def __init__(
        self,
        first: int,
        nodes: int,
        budget: ReadBudget,
        now: float,
        *,
        bytes_max: int,
        threshold: float,
    ) -> None:
        """
        Args:
            first: the first LSN that is read.
            bytes_max: what a node may be ahead at most.
            threshold: part of a window after which it moves, above 0 and below 1.
        """
        self._budget = budget
        self._bytes_max = bytes_max
        self._threshold = threshold
        self._wanted = min(bytes_max, CREDIT_BYTES_FIRST)
        self._reserved = 0
        self._mean_bytes = MEAN_FIRST_BYTES
        self._moved_at = now
        self.credit = 0
        self._reserve(nodes)
        self._set(first, min(LSN_MAX, first + LSNS_MIN))

    def on_block(self, size: int, records: int) -> None:
        """A block came that is not here yet: so large are records now."""
        self._mean_bytes += MEAN_WEIGHT * (size / records - self._mean_bytes)

    def move(self, upto: int, nodes: int, now: float) -> bool:
        """Move to `upto`, the first LSN not given out, if enough was used up; whether nodes may
        send further now. Where records have become larger, what nodes were let send of smaller
        ones is used up first."""
        if upto < self.due or self._end(upto) <= self.high:
            return False
        self._adapt(now)
        self._reserve(nodes)
        high = self._end(upto)
        if high <= self.high:
            return False
        self._set(upto, high)
        return True

    def restart(self, upto: int) -> None:
        """All nodes start over at `upto`, the first LSN not given out."""
        self._set(upto, max(self.high, self._end(upto)))

    def close(self) -> None:
        """Give back what was reserved. Safe to call twice."""
        self._budget.give_back(self._reserved)
        self._reserved = 0

    def _set(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.due = low + math.ceil((high - low) * self._threshold)

    def _end(self, upto: int) -> int:
        """Where a window from `upto` on would end."""
        fitting = int(2 * self.credit / max(1.0, self._mean_bytes))
        return min(LSN_MAX, upto + max(LSNS_MIN, min(LSNS_MAX, fitting)))

    def _adapt(self, now: float) -> None:
        """Want more, or less, by how long the window lasted that is over now."""
        took_s, self._moved_at = now - self._moved_at, now
        if took_s < QUICK_S:
            self._wanted = min(self._bytes_max, self._wanted * 2)
        elif took_s > SLOW_S:
            first = min(self._bytes_max, CREDIT_BYTES_FIRST)
            self._wanted = max(first, self._wanted // 2)

    def _reserve(self, nodes: int) -> None:
        self._budget.give_back(self._reserved)
        wanted = self._wanted * nodes
        self._reserved = self._budget.take(wanted, min(wanted, CREDIT_BYTES_MIN * nodes))
        self.credit = self._reserved // nodes


class Credit:
    """What one node has sent of what it may, since it was asked last; all in bytes.

    Attributes:
        granted: what the node was told that it may send in all.
        received: what it sent.
        held: what of that is here and not consumed.
    """

    __slots__ = ("granted", "held", "received")

    def __init__(self, granted: int) -> None:
        self.granted = granted
        self.received = self.held = 0

    def on_received(self, size: int) -> None:
        """It sent so much, wanted or not."""
        self.received += size

    def on_kept(self, size: int) -> None:
        """So much of what it sent waits for the reader."""
        self.held += size

    def on_consumed(self, size: int) -> None:
        """The reader took so much. A node that came back started from nothing, so what it had
        sent before may be counted off only down to zero."""
        self.held = max(0, self.held - size)

    def grant(self, credit: int) -> int | None:
        """What it may send in all from now on, None where that is not worth a message."""
        limit = self.received - self.held + credit
        if limit - self.granted < credit // 4:
            return None
        self.granted = limit
        return limit
