"""A bound on bytes that several threads share: a thread that finds it full waits."""

from __future__ import annotations

from cordwood.host.waits import Condition


class ByteShare:
    """Bytes that wait for a gate, or were taken from it; made for one use.

    Attributes:
        is_taken: they count at the gate, until they are given back.
    """

    __slots__ = ("is_taken", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_taken = False


class ByteGate:
    """See the module.

    Attributes:
        bytes: taken now.
        waiters: calls that wait for bytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.waiters = 0
        self._bytes_max = bytes_max
        self._changed = Condition()

    def take(self, share: ByteShare, timeout_s: float) -> bool:
        """Take bytes as soon as fewer than the bound are taken; False if none were in time.

        The last caller may exceed the bound: items larger than the bound must get through too.
        """
        with self._changed:
            self.waiters += 1
            try:
                if not self._changed.wait_for(lambda: self.bytes < self._bytes_max, timeout_s):
                    return False
            finally:
                self.waiters -= 1
            # No call in between: an error of a signal handler comes before both or after both.
            self.bytes += share.size
            share.is_taken = True
            return True

    def give_back(self, share: ByteShare) -> None:
        """Bytes that were taken are free again. Safe to call twice."""
        with self._changed:
            if share.is_taken:
                self.bytes -= share.size
                share.is_taken = False
                self._changed.notify_all()
