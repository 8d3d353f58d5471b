"""The stored form of a key in ZooKeeper, and the judgement of a write with unknown outcome.

ZooKeeper compares the number of writes to a path since it was made. So a path that was removed and
made again could pass for the old path. Hence no path is ever removed: a deleted key leaves a mark,
and a path that only leads to others is empty. So a path's `data_version` stands for one content for
ever, and so does its zxid::

    offset  bytes
    0       1      VALUE or DELETED
    1       16     nonce of the write
    17      ...    the value

Source: docs/design.md §6 ("a compare-and-set of unknown outcome is settled by its nonce").
"""

from __future__ import annotations

import enum

from cordwood.errors import Malformed

NONCE_BYTES = 16

VALUE = b"\x01"
DELETED = b"\x00"

MAKE = -1
"""In place of a data version: the path has to be created."""

_HEAD_BYTES = 1 + NONCE_BYTES


def pack_stored(value: bytes | None, nonce: bytes) -> bytes:
    """The stored form of a value; None is deleted."""
    return (DELETED if value is None else VALUE) + nonce + (value or b"")


def read_stored(key: str, data: bytes) -> bytes | None:
    """The value of a stored form, None for none.

    Raises:
        Malformed: nothing of ours.
    """
    if not data or (data[:1] == DELETED and len(data) == _HEAD_BYTES):
        return None
    if data[:1] != VALUE or len(data) < _HEAD_BYTES:
        raise Malformed(f"{key} in ZooKeeper is no value of ours: was it written by hand?")
    return data[_HEAD_BYTES:]


class Verdict(enum.Enum):
    """Outcomes of a write with a lost answer."""

    DONE = "it was done"
    NOT_DONE = "it was not done, and will not be"
    UNKNOWN = "it was not done, or was replaced since"


def settle(nonce: bytes, expected: int, found: tuple[bytes, int] | None) -> Verdict:
    """Judge a lost write by a later read, on a newer connection of its session or of its client's
    next session.

    This read comes after the write, if the write happened at all: a server drops a session's older
    connection when it accepts a newer connection, and an ended session writes nothing more.

    Args:
        nonce: the write's own.
        expected: the data version that it expected, or MAKE.
        found: the path's data and data version now, None if it is not there.
    """
    if found is None:
        # No path is ever removed.
        return Verdict.NOT_DONE
    data, data_version = found
    if data[1:_HEAD_BYTES] == nonce:
        return Verdict.DONE
    # Version `expected + 1` is the write that came next, and it has another's nonce.
    return Verdict.NOT_DONE if data_version <= expected + 1 else Verdict.UNKNOWN
