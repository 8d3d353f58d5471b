"""A hash over everything that a simulation did, in order.

Entries are gathered as numbers and hashed many at a time, because hashing each alone would cost as
much as the callback itself.

Source: S2's meta-test and FoundationDB's unseed (docs/sources/reliability.md §4).
"""

from __future__ import annotations

import array
import hashlib
import sys
import zlib
from collections.abc import Callable


class Trace:
    """The running hash of one simulation.

    Attributes:
        append: adds a number that a double holds exactly, or a time in s. The loop calls it at each
            step.
        numbers: by qualified name, the number of a known callback.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        # Doubles hold virtual times and whole numbers below 2**53 alike.
        self._entries = array.array("d")
        self.append = self._entries.append
        self.numbers: dict[str | None, int] = {}

    def number_of(self, callback: Callable[..., object]) -> int:
        """The number for a callback that belongs to no task, made from its name."""
        name = getattr(callback, "__qualname__", None) or type(callback).__name__
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = zlib.crc32(name.encode())
        return number

    def note(self, value: int) -> None:
        """Add a fact of the simulated machine, such as a checksum of delivered bytes.

        Args:
            value: 0 to 2**53 - 1.
        """
        self.append(value)

    def flush(self) -> None:
        """Hash the gathered entries. Called often, so that their list stays short."""
        if sys.byteorder == "big":
            self._entries.byteswap()
        self._hash.update(self._entries)
        del self._entries[:]

    def hexdigest(self) -> str:
        """The hash so far, 32 hex digits."""
        self.flush()
        return self._hash.hexdigest()
