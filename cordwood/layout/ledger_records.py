"""A storage node's records of ledgers: in its WAL after the byte of kind, and in LogsDB.

In the WAL, little-endian::

    LEDGER_ENTRIES  u64 ledger, 20 key, u32 count, then the entries: see `layout.entry_run`
    LEDGER_STATE    u32 count, then each ledger: u64 ledger, 20 key, u8 flags, i64 LAC

A state record only adds: flags are joined, the LAC rises, and a known key stays.

LogsDB's table of ledgers, with big-endian numbers in keys so that keys sort::

    "s" u64 ledger             ► 20 key, u8 flags, i64 LAC, i64 the highest entry held
    "e" u64 ledger, u64 entry  ► i64 LAC, u64 length, the body

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.block import Buffer
from cordwood.errors import Malformed
from cordwood.layout.ledger_entry import BODY_BYTES_MAX, KEY_BYTES
from cordwood.ledger import ENTRY_MAX, LEDGER_MAX, NO_ENTRY

LEDGERS_TABLE = "ledgers"

STATES = (b"s", b"t")
"""The key range [start, stop) of all states."""

ENTRIES_MAX = 4096
"""Entries of one record."""

STATES_MAX = 4096

_HEAD = struct.Struct("<Q20sI")
_ENTRY = struct.Struct("<QqQI")
_COUNT = struct.Struct("<I")
_STATE = struct.Struct("<Q20sBq")
_ROW = struct.Struct("<20sBqq")
_VALUE = struct.Struct("<qQ")
_STATE_KEY = struct.Struct(">cQ")
_ENTRY_KEY = struct.Struct(">cQQ")


class LedgerFlag(enum.IntFlag):
    """Permanent states of a ledger on a node."""

    FENCED = 1
    """Its writer stores nothing here any more."""
    GONE = 2
    """It was deleted: nothing of it is kept, and nothing is taken."""
    LIMBO = 4
    """Records were lost here, perhaps of this ledger: missing entries are unknown."""
    TIERED = 8
    """Main storage has it: nothing of it is kept, and nothing is taken."""

    @property
    def is_empty(self) -> bool:
        """Whether the node keeps no entries of the ledger and takes none."""
        return bool(self & (LedgerFlag.GONE | LedgerFlag.TIERED))


class KeptEntry(NamedTuple):
    """An entry as a node keeps it."""

    entry: int
    lac: int
    length: int
    body: Buffer


class LedgerEntries(NamedTuple):
    """Entries of one ledger were stored.

    Attributes:
        packed: the same entries as they came, see `layout.entry_run`; empty if they did not come
            packed.
    """

    ledger: int
    key: bytes
    entries: tuple[KeptEntry, ...]
    packed: memoryview = memoryview(b"")


class LedgerChange(NamedTuple):
    """A change of one ledger's state: the key, the flags that are set, and the LAC."""

    ledger: int
    key: bytes
    flags: LedgerFlag = LedgerFlag(0)
    lac: int = NO_ENTRY


class LedgerChanges(NamedTuple):
    """Changes of the states of some ledgers, which take effect together."""

    changes: tuple[LedgerChange, ...]


class LedgerRow(NamedTuple):
    """The state of a ledger in LogsDB."""

    key: bytes
    flags: LedgerFlag
    lac: int
    last: int


LedgerRecord = LedgerEntries | LedgerChanges


def pack_entries(
    kind: int, ledger: int, key: bytes, count: int, packed: Buffer
) -> tuple[Buffer, Buffer]:
    """A LEDGER_ENTRIES record, in parts.

    Args:
        packed: the entries, see `layout.entry_run`.
    """
    return bytes([kind]) + _HEAD.pack(ledger, key, count), packed


def read_entries(data: memoryview) -> LedgerEntries:
    """A LEDGER_ENTRIES record; bodies point into it.

    Raises:
        Malformed: it is none.
    """
    if len(data) < _HEAD.size:
        raise Malformed("entries of a ledger are cut short")
    ledger, key, count = _HEAD.unpack_from(data)
    if ledger > LEDGER_MAX:
        raise Malformed(f"no ledger has the number {ledger}")
    packed = data[_HEAD.size :]
    return LedgerEntries(ledger, key, unpack_entries(packed, count), packed)


def unpack_entries(packed: memoryview, count: int) -> tuple[KeptEntry, ...]:
    """The entries of an `AddEntries` or of a record; bodies point into it.

    Raises:
        Malformed: there are fewer.
    """
    at = count * _ENTRY.size
    if not 1 <= count <= ENTRIES_MAX or len(packed) < at:
        raise Malformed(f"{count} entries of a ledger are none that a node keeps")
    found = []
    for entry, lac, length, size in _ENTRY.iter_unpack(packed[:at]):
        if not _is_entry(entry, lac, length) or size > BODY_BYTES_MAX or at + size > len(packed):
            raise Malformed(f"entry {entry} of a ledger is out of range")
        start, at = at, at + size
        found.append(KeptEntry(entry, lac, length, packed[start:at]))
    if at != len(packed):
        raise Malformed("entries of a ledger have bytes too many")
    return tuple(found)


def pack_changes(kind: int, record: LedgerChanges) -> bytes:
    """A LEDGER_STATE record."""
    states = (_STATE.pack(each.ledger, each.key, each.flags, each.lac) for each in record.changes)
    return bytes([kind]) + _COUNT.pack(len(record.changes)) + b"".join(states)


def read_changes(data: memoryview) -> LedgerChanges:
    """A LEDGER_STATE record.

    Raises:
        Malformed: it is none.
    """
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
    if not 1 <= count <= STATES_MAX or len(data) != _COUNT.size + count * _STATE.size:
        raise Malformed("the states of ledgers have the wrong length")
    found = []
    for ledger, key, flags, lac in _STATE.iter_unpack(data[_COUNT.size :]):
        if ledger > LEDGER_MAX or not _is_state(flags, lac):
            raise Malformed(f"the state of ledger {ledger} is out of range")
        found.append(LedgerChange(ledger, key, LedgerFlag(flags), lac))
    return LedgerChanges(tuple(found))


def state_row_key(ledger: int) -> bytes:
    """The key of a ledger's state in LogsDB."""
    return _STATE_KEY.pack(b"s", ledger)


def read_state_row_key(key: bytes) -> int:
    """The ledger that a key is of.

    Raises:
        Malformed: it is not a key of a ledger's state.
    """
    if len(key) != _STATE_KEY.size or key[:1] != b"s":
        raise Malformed("LogsDB holds a state of no ledger")
    return int(_STATE_KEY.unpack(key)[1])


def entry_row_key(ledger: int, entry: int) -> bytes:
    """The key of an entry in LogsDB."""
    return _ENTRY_KEY.pack(b"e", ledger, entry)


def read_entry_row_key(key: bytes) -> tuple[int, int]:
    """The ledger and the entry that a key is of.

    Raises:
        Malformed: it is not a key of an entry.
    """
    if len(key) != _ENTRY_KEY.size or key[:1] != b"e":
        raise Malformed("LogsDB holds an entry of no ledger")
    _, ledger, entry = _ENTRY_KEY.unpack(key)
    return ledger, entry


def entry_range(ledger: int) -> tuple[bytes, bytes]:
    """The key range [start, stop) of a ledger's entries in LogsDB."""
    return _STATE_KEY.pack(b"e", ledger), _STATE_KEY.pack(b"e", ledger + 1)


def pack_state_row(row: LedgerRow) -> bytes:
    """The value of a ledger's state."""
    return _ROW.pack(row.key, row.flags, row.lac, row.last)


def read_state_row(value: bytes) -> LedgerRow:
    """A ledger's state from LogsDB.

    Raises:
        Malformed: it is none.
    """
    if len(value) != _ROW.size:
        raise Malformed("LogsDB holds the state of a ledger that is cut short")
    key, flags, lac, last = _ROW.unpack(value)
    if not _is_state(flags, lac) or last < NO_ENTRY:
        raise Malformed("LogsDB holds the state of a ledger that is out of range")
    return LedgerRow(key, LedgerFlag(flags), lac, last)


def pack_entry_row(kept: KeptEntry) -> bytes:
    """The value of an entry."""
    return _VALUE.pack(kept.lac, kept.length) + bytes(kept.body)


def read_entry_row(entry: int, value: bytes) -> KeptEntry:
    """An entry from LogsDB.

    Raises:
        Malformed: it is none.
    """
    if len(value) < _VALUE.size:
        raise Malformed("LogsDB holds an entry that is cut short")
    lac, length = _VALUE.unpack_from(value)
    if not _is_entry(entry, lac, length):
        raise Malformed("LogsDB holds an entry that is out of range")
    return KeptEntry(entry, lac, length, memoryview(value)[_VALUE.size :])


def entries_bytes(entries: Sequence[KeptEntry]) -> int:
    """Bytes that entries take in memory and on the disk, about."""
    return sum(_ENTRY.size + len(each.body) for each in entries)


def _is_entry(entry: int, lac: int, length: int) -> bool:
    return 0 <= entry <= ENTRY_MAX and NO_ENTRY <= lac < entry and length <= ENTRY_MAX


def _is_state(flags: int, lac: int) -> bool:
    return 0 <= flags < 16 and lac >= NO_ENTRY


assert KEY_BYTES == 20, "the layouts above say so"
