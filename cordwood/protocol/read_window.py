"""Limits how far nodes send ahead of one reader: a window of LSNs, and a credit of bytes by node.

*The window* `[low, high]` is the same for all nodes. It moves when `threshold` of it is used up
(LogDevice's `client_read_flow_control_threshold`). Its length is the number of records of recent
size that fit into two credits, between LSNS_MIN and LSNS_MAX.

*The credit* is the bytes that a node may have sent and the reader has not consumed. With each move
of the window the stream reserves the credit again from the budget that all streams of the client
share (`protocol.read_budget`): twice as much as before if the window lasted less than QUICK_S, half
as much if it lasted longer than SLOW_S.

Source: docs/sources/logdevice.md 2.11; docs/design.md §2.
"""

from __future__ import annotations

import math

from cordwood.lsn import LSN_MAX
from cordwood.protocol.read_budget import ReadBudget

LSNS_MIN = 1024
LSNS_MAX = 1 << 20
"""Bounds of the LSN window: LogDevice's default is 512 records; nodes here send blocks."""

CREDIT_BYTES_MIN = 64 << 10
"""A node's least credit, however many streams there are: a few dozen records of a kilobyte, so that
a stream makes progress with each round trip."""

CREDIT_BYTES_FIRST = 512 << 10
"""A stream's credit for each node at first, and at the tail: a hundred streams of five nodes fit
into the budget. When each stream asked for the maximum at once, the first few readers exhausted the
budget. Later readers got four blocks each and drifted apart, so no send could be shared."""

QUICK_S = 0.05
SLOW_S = 0.2
"""A round trip on a busy machine takes some milliseconds; a window should last for many trips."""

MEAN_FIRST_BYTES = 256.0
"""The assumed record size before the first block: small, so that the first window is not too
short."""

MEAN_WEIGHT = 0.05
"""The weight of one block in the average: about twenty blocks decide."""


class ReadWindow:
    """See the module.

    Attributes:
        low, high: the window; `high` never falls, because nodes cannot take a send back.
        due: the window moves when all LSNs below this were given out.
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
            bytes_max: the largest credit of a node.
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
        """A new block came; its record size goes into the average."""
        self._mean_bytes += MEAN_WEIGHT * (size / records - self._mean_bytes)

    def move(self, upto: int, nodes: int, now: float) -> bool:
        """Move to `upto`, the first LSN not given out, if enough of the window is used up; whether
        nodes may send further now."""
        # When records become larger, the new end may lie below `high`: use the old window up first.
        if upto < self.due or self._end(upto) <= self.high:
            return False
        self._adapt(now)
        self._reserve(nodes)
        high = self._end(upto)
        # Nodes were told of the old end and may have sent up to it: it never falls.
        if high <= self.high:
            return False
        self._set(upto, high)
        return True

    def restart(self, upto: int) -> None:
        """All nodes start again at `upto`, the first LSN not given out."""
        self._set(upto, max(self.high, self._end(upto)))

    def close(self) -> None:
        """Give back the reserved bytes. Safe to call twice."""
        self._budget.give_back(self._reserved)
        self._reserved = 0

    def _set(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.due = low + math.ceil((high - low) * self._threshold)

    def _end(self, upto: int) -> int:
        """The end of a window that begins at `upto`."""
        fitting = int(2 * self.credit / max(1.0, self._mean_bytes))
        return min(LSN_MAX, upto + max(LSNS_MIN, min(LSNS_MAX, fitting)))

    def _adapt(self, now: float) -> None:
        """Raise or lower the wanted credit, by how long the last window lasted."""
        took_s, self._moved_at = now - self._moved_at, now
        # A window that is used up quickly was too small for the round trip. A window that lasts
        # long holds memory for nothing.
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
    """One node's grant and use since it was last asked to send; all in bytes.

    Attributes:
        granted: the total that the node may send.
        received: the total that the node has sent.
        held: the part of `received` that is here and not consumed.
    """

    __slots__ = ("granted", "held", "received")

    def __init__(self, granted: int) -> None:
        self.granted = granted
        self.received = self.held = 0

    def on_received(self, size: int) -> None:
        """The node sent `size` bytes, wanted or not."""
        self.received += size

    def on_kept(self, size: int) -> None:
        """`size` bytes from the node wait for the reader."""
        self.held += size

    def on_consumed(self, size: int) -> None:
        """The reader took `size` bytes."""
        # Trap: a node that came back starts at 0, but the reader may still take its earlier blocks.
        self.held = max(0, self.held - size)

    def grant(self, credit: int) -> int | None:
        """The new total that the node may send; None if the change is not worth a message."""
        limit = self.received - self.held + credit
        # Number: a message goes out when a quarter of the credit is used up.
        if limit - self.granted < credit // 4:
            return None
        self.granted = limit
        return limit
