"""Scrubbing's rows in LogsDB's metadata table: its progress, and its findings.

Little-endian, except that keys sort in the order of the things that they name::

    "s" ► u64 passes ended, i64 the present one began (µs, wall clock), u64 partition, u64 log:
        the first part that it has not looked at, u64 bytes it has read
    "x" u64 partition, u64 log, u64 first, u64 last ► why, in UTF-8: this copy of that range
        is damaged
    "y" u64 partition, u64 log, u64 first, u64 last ► nothing: the blocks of the damaged range
        of that name are stored again elsewhere. An older version does not look at these rows,
        and takes the range for damaged as before.

Source: docs/design.md §5; `storage.scrub.scrub`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cordwood.errors import Malformed

PROGRESS_KEY = b"s"
DAMAGES = (b"x", b"y")
"""The key range [start, stop) of all damage."""
MENDED = (b"y", b"z")
"""The key range [start, stop) of all mended ranges."""

WHY_BYTES_MAX = 200
"""The most bytes of a reason. RocksDB's error about a bad block names file and place in less."""

_PROGRESS = struct.Struct("<QqQQQ")
_DAMAGE = struct.Struct(">cQQQQ")


class Progress(NamedTuple):
    """How far scrubbing has come; see the layout above."""

    passes: int = 0
    began_us: int = 0
    partition: int = 0
    log: int = 0
    bytes: int = 0


class DamagedRange(NamedTuple):
    """A range `[first, last]` of a log with untrusted copies in one partition."""

    partition: int
    log: int
    first: int
    last: int


def pack_progress(progress: Progress) -> bytes:
    """The value under PROGRESS_KEY."""
    return _PROGRESS.pack(*progress)


def read_progress(value: bytes) -> Progress:
    """The value under PROGRESS_KEY.

    Raises:
        Malformed: of another length.
    """
    if len(value) != _PROGRESS.size:
        raise Malformed(f"LogsDB holds {len(value)} bytes that are no progress of a scrub")
    return Progress(*_PROGRESS.unpack(value))


def damage_key(damaged: DamagedRange) -> bytes:
    """The key of a damaged range."""
    return _DAMAGE.pack(DAMAGES[0], *damaged)


def mended_key(damaged: DamagedRange) -> bytes:
    """The key that says that a damaged range was mended."""
    return _DAMAGE.pack(MENDED[0], *damaged)


def read_damage_key(key: bytes) -> DamagedRange:
    """The damaged range that a key of either kind names.

    Raises:
        Malformed: it is none.
    """
    if len(key) != _DAMAGE.size:
        raise Malformed(f"LogsDB holds {key!r}, which is no key of damage")
    return DamagedRange(*_DAMAGE.unpack(key)[1:])


def pack_why(why: str) -> bytes:
    """A reason, cut to the stored length."""
    return why.encode()[:WHY_BYTES_MAX]


def read_why(value: bytes) -> str:
    """A reason."""
    return value.decode(errors="replace")
