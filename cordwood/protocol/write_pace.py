"""When the next write may go to a disk whose owner pays for so many a second.

A cloud volume has a budget: operations a second and bytes a second, whichever is
used up first. A writer that asks for more is not refused, it is queued below, where
nothing can gather what waits into fewer, larger writes. So the writer holds itself
back, and what waits for it fills blocks meanwhile.

Each budget is a bucket of tokens. A write may start while no bucket is in debt, and
then takes what it costs, into debt if need be: so a write larger than a bucket is
possible, and what must not wait (a header) may be charged afterwards. Over any stretch of
time the sum is at most that of the budget, one burst, and the one write that began before
the debt; headers come on top, and are paid back before the next block.

Time is an argument, in seconds on any clock that does not go back.

Source: docs/sources/s3stream.md (a), "Write pump" (M25's buckets).
"""

from __future__ import annotations

from cordwood.write_budget import OPERATION_BYTES_MAX, WriteBudget

BURST_S = 0.1
"""So much of a budget may be spent at once, as S3Stream has it: a quiet tenth of a second
is made up for, a quiet minute is not."""

DEBT_S_MIN = 1e-6
"""A smaller debt is none: whoever waits for it finds rounding's rest of it for ever."""


class TokenBucket:
    """Tokens that come at `rate` a second up to `burst`; begins full."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def debt_s(self, now: float) -> float:
        """Seconds until it is out of debt, 0 if it is not in debt."""
        self._refill(now)
        debt_s = -self._tokens / self._rate
        return debt_s if debt_s > DEBT_S_MIN else 0.0

    def spend(self, now: float, tokens: float) -> None:
        """Take `tokens`, into debt if need be."""
        self._refill(now)
        self._tokens -= tokens

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now


class WritePace:
    """Holds one disk's writes to a budget.

    Args:
        budget: what may be asked for.
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
