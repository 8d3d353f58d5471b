"""A hash over everything that a simulation did, in order.

Entries are gathered as numbers and hashed many at a time, because hashing each
alone would cost as much as the callback it stands for.

Source: S2's meta-test and FoundationDB's unseed (reliability digest, §4).
"""

from __future__ import annotations

import array
import hashlib
import sys
import zlib
from collections.abc import Callable

from cordwood.sim.task import SimTask


class Trace:
    """The running hash of one simulation."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        # Doubles hold virtual times and whole numbers below 2**53 alike.
        self._entries = array.array("d")
        self._append = self._entries.append
        self._name_numbers: dict[str, int] = {}

    def step(self, now: float, process_number: int, callback: Callable[..., object]) -> None:
        """Add one callback about to run: a task by its number, a function by its name."""
        append = self._append
        append(now)
        owner = getattr(callback, "__self__", None)
        if type(owner) is SimTask:
            number = owner.number
        else:
            # Half of all steps, each a few names: found here without a call.
            name = getattr(callback, "__qualname__", None)
            found = self._name_numbers.get(name) if name else None
            number = self._number_of(callback) if found is None else found
        append(process_number ^ number)

    def note(self, value: int) -> None:
        """Add a fact of the simulated machine, such as a checksum of delivered bytes.

        Args:
            value: 0 to 2**53 - 1.
        """
        self._append(value)

    def flush(self) -> None:
        """Hash what was gathered. Called every so often, so that it stays small."""
        if sys.byteorder == "big":
            self._entries.byteswap()
        self._hash.update(self._entries)
        del self._entries[:]

    def hexdigest(self) -> str:
        """The hash so far, 32 hex digits."""
        self.flush()
        return self._hash.hexdigest()

    def _number_of(self, callback: Callable[..., object]) -> int:
        name = getattr(callback, "__qualname__", None) or type(callback).__name__
        number = self._name_numbers.get(name)
        if number is None:
            number = self._name_numbers[name] = zlib.crc32(name.encode())
        return number
