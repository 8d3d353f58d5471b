"""Paces the writes to a disk with a budget of operations and bytes a second.

A cloud volume has two budgets: operations a second and bytes a second. The budget that is used up
first limits it. The volume does not refuse more writes; it queues them. There they cannot be joined
into fewer, larger writes. So the writer waits instead, and the records that wait fill blocks.

Each budget is a bucket of tokens. A write may start while no bucket is in debt. It then takes its
cost, into debt if necessary. So a write larger than a bucket is possible, and a write that must not
wait (a header) may be charged afterwards. Over any time the sum is at most the budget, one burst,
and the one write that began before the debt. Headers come on top, and are paid back before the next
block.

Time is an argument, in seconds on any clock that does not go back.

Source: docs/sources/s3stream.md (a), "Write pump" (M25's buckets).
"""

from __future__ import annotations

from cordwood.write_budget import OPERATION_BYTES_MAX, WriteBudget

BURST_S = 0.1
"""The part of a budget that may be spent at once, as in S3Stream: a writer makes up for a quiet
tenth of a second, not for a quiet minute."""

DEBT_S_MIN = 1e-6
"""A smaller debt counts as none: because of rounding, a writer could wait for its rest for ever."""


class TokenBucket:
    """Tokens that come at `rate` a second, up to `burst`. A new bucket is full."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def debt_s(self, now: float) -> float:
        """Seconds until the bucket is out of debt; 0 if it is not in debt."""
        self._refill(now)
        debt_s = -self._tokens / self._rate
        return debt_s if debt_s > DEBT_S_MIN else 0.0

    def spend(self, now: float, tokens: float) -> None:
        """Take `tokens`, into debt if necessary."""
        self._refill(now)
        self._tokens -= tokens

    def turn(self, rate: float, burst: float, now: float) -> None:
        """Another rate and burst from now on."""
        self._refill(now)
        self._rate, self._burst = rate, burst
        self._tokens = min(self._tokens, burst)

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now


class WritePace:
    """Holds one disk's writes to a budget.

    Args:
        budget: operations and bytes a second.
        now: the time.
    """

    def __init__(self, budget: WriteBudget, now: float) -> None:
        self._operations = self._bytes = None
        if budget.operations_per_s is not None:
            rate = budget.operations_per_s
            self._operations = TokenBucket(rate, max(1.0, rate * BURST_S), now)
        if budget.bytes_per_s is not None:
            self._bytes = TokenBucket(budget.bytes_per_s, budget.bytes_per_s * BURST_S, now)

    def wait_s(self, now: float) -> float:
        """Seconds until the next write may start, 0 for at once."""
        return max(
            self._operations.debt_s(now) if self._operations else 0.0,
            self._bytes.debt_s(now) if self._bytes else 0.0,
        )

    def on_write(self, now: float, length: int) -> None:
        """A write of `length` bytes starts."""
        if self._operations:
            self._operations.spend(now, max(1, -(-length // OPERATION_BYTES_MAX)))
        if self._bytes:
            self._bytes.spend(now, length)
