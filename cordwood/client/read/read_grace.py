"""The time that a reader waits for silent nodes before it reports a loss.

Source: docs/sources/logdevice.md 2.11 (`grace-counter-limit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cordwood.nodes import NodeId

GRACE_S = 5.0
"""The time that a reader waits for silent nodes before it reports a loss.

LogDevice waits 100 ms. But a released record was stored on a whole copyset, or plugged. If an
f-majority is without it, one of these nodes has lost it without knowing. That is so rare that the
wait costs nothing. A reported loss is final, and a node restarts in seconds.
"""

GRACE_MISSES_MAX = 2
"""Grace periods in a row that a node may miss before it gets none (LogDevice's
`grace-counter-limit`): a range of many losses is not waited through one by one."""


class Grace:
    """The grace period of one reader.

    Attributes:
        ends: the end of the present period; None outside a period.
    """

    def __init__(self) -> None:
        self.ends: float | None = None
        self._misses: dict[NodeId, int] = {}
        self._is_counted = False

    def begin(self, now: float) -> None:
        """A loss could be reported: give silent nodes their period."""
        if self.ends is None:
            self.ends = now + GRACE_S
            self._is_counted = False

    def end(self) -> None:
        """Nothing is waited for."""
        self.ends = None

    def on_heard(self, node: NodeId) -> None:
        """`node` sends."""
        self._misses.pop(node, None)

    def is_waived(self, silent: Sequence[NodeId]) -> bool:
        """Whether all silent nodes missed too many periods to get another."""
        misses = self._misses
        return bool(silent) and all(misses.get(node, 0) > GRACE_MISSES_MAX for node in silent)

    def is_over(self, silent: Iterable[NodeId], now: float) -> bool:
        """Whether the present period is over; then silent nodes have missed it."""
        if self.ends is None or now < self.ends:
            return False
        if not self._is_counted:
            self._is_counted = True
            for node in silent:
                self._misses[node] = self._misses.get(node, 0) + 1
        return True
