"""A bound on bytes that several threads share: who finds it full waits."""

from __future__ import annotations

from cordwood.host.waits import Condition


class ByteGate:
    """See the module.

    Attributes:
        bytes: taken now.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._changed = Condition()

    def take(self, size: int, timeout_s: float) -> bool:
        """Take `size` bytes as soon as fewer than the bound are taken; False if none were in time.

        The last one in may pass the bound: what is larger than it must get through too.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.bytes < self._bytes_max, timeout_s):
                return False
            self.bytes += size
            return True

    def give_back(self, size: int) -> None:
        """`size` bytes are free again."""
        with self._changed:
            self.bytes -= size
            self._changed.notify_all()
