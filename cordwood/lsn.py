"""Epochs, esns and the log sequence number that orders every record.

An LSN is `epoch << 32 | esn`. The epoch has 31 bits, so an LSN is a
non-negative int64 and sorts the same in Python, Spark and Arrow. The first esn
is 1: `(E, 0)` is never a record's, but it is a legal position to read from.
Two esns at the top are kept: a sequencer issues at most `ESN_MAX - 1`, so that
a bridge always finds a place.

Hot loops use plain integers; `Lsn` is what callers are given.

Source: docs/design.md §2; LogDevice, "include/types.h".
"""

from __future__ import annotations

import re
from typing import NewType

from cordwood.errors import BadSetting

LogId = NewType("LogId", int)
"""A log's number, 1 to 2**62 - 1; never used as a file name."""

NO_LOG = LogId(0)
"""The number of no log, where a value is about a node alone."""

EVENT_LOG = LogId((1 << 62) - 1)
"""The internal log of who is lost, drained, rebuilt and back (docs/protocol/event-log.md). It has
no name, and the counter of logs stops below it."""

Epoch = NewType("Epoch", int)
"""One sequencer's ownership of one log, 1 to EPOCH_MAX; 0 is before the first."""

Esn = NewType("Esn", int)
"""A record's number inside its epoch, 1 to ESN_ISSUED_MAX."""

EPOCH_MAX = (1 << 31) - 1
ESN_MAX = (1 << 32) - 1
ESN_ISSUED_MAX = ESN_MAX - 1
LSN_MAX = (EPOCH_MAX << 32) | ESN_MAX

_WRITTEN = re.compile(r"e(\d{1,10})n(\d{1,10})\Z")


class Lsn(int):
    """A log sequence number: an `int` that prints as `e7n123`."""

    __slots__ = ()

    @property
    def epoch(self) -> Epoch:
        """The epoch, 0 to EPOCH_MAX."""
        return Epoch(self >> 32)

    @property
    def esn(self) -> Esn:
        """The number inside the epoch, 0 to ESN_MAX."""
        return Esn(self & ESN_MAX)

    def __str__(self) -> str:
        return f"e{self >> 32}n{self & ESN_MAX}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if not spec or spec[-1] == "s" else format(int(self), spec)


OLDEST = Lsn((1 << 32) | 1)
"""The first LSN that any log can hold."""


def make_lsn(epoch: int, esn: int) -> Lsn:
    """Join an epoch and an esn.

    Raises:
        BadSetting: either is out of its range.
    """
    if not (0 <= epoch <= EPOCH_MAX and 0 <= esn <= ESN_MAX):
        raise BadSetting(
            f"e{epoch}n{esn} is no LSN: epochs are 0 to {EPOCH_MAX}, esns 0 to {ESN_MAX}"
        )
    return Lsn(epoch << 32 | esn)


def parse_lsn(text: str) -> Lsn:
    """Read `e7n123` or a decimal integer.

    Raises:
        BadSetting: the text is neither, or out of range.
    """
    match = _WRITTEN.match(text)
    if match:
        return make_lsn(int(match[1]), int(match[2]))
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= LSN_MAX:
        return Lsn(int(text))
    raise BadSetting(f"{text!r} is no LSN: write e7n123, or a decimal number up to {LSN_MAX}")


def format_lsn(lsn: int) -> str:
    """Write an LSN as people do: `e7n123`."""
    return f"e{lsn >> 32}n{lsn & ESN_MAX}"
