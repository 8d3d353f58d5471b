"""Keys and values of LogsDB's tables: one of all metadata, and one for each partition.

Keys are big-endian, so that keys sort as the values in them. A partition holds::

    "i" u64 log, u64 last, u64 first, u8 kind, u8 by recovery, u32 seal epoch, u32 wave
        ► header and envelope, as they travel: all that a reader filters by
    "b" u64 log, u64 last, u64 first
        ► the body as stored; none for holes and bridges

The index stands apart, so that skipping a block reads no body, and an amend rewrites some hundred
bytes. Blocks go by their last LSN, because a read may begin inside one. Every copy keeps a key of
its own, in the order of precedence. A reader takes the last of these keys. So a reader never takes
a copy before that copy is written. Copies of one block have the same body, so they share it.

The metadata table holds::

    "v" ► u32 version, u32 node
    "o" ► i64 offset of the WAL up to which all of it is in these tables
    "p" u64 partition ► i64 start: blocks from this append time on (µs) go here;
        i64 made at (µs, wall clock), u64 bytes and u64 files so far
    "d" u64 log, u64 partition ► the log's part of a partition: u64 first, u64 last,
        u64 blocks, u64 bytes, i64 first and i64 last append time
    "e" u64 partition, u64 log ► u64 last: the same from the partition's side, for its drop
    "w" ► ranges that the WAL lost: u64 start, u64 stop of each range of its offsets
    "a" ► i64 offset of the WAL: an acceptance of losses came there last
    "c" ► ranges as under "w": damage that the WAL showed at that acceptance, and may show still.
        Without this row, an older version accepted all losses below the offset under "a"
    "n" ► ranges as under "w": those for which logs were sealed anew and ledgers fenced
    "g" ► of each log that this node has and the log tree lacks: u64 log, i64 first missed at
        (µs, wall clock)
    "l" u64 log ► the log's state, see `LogState`: fixed part and lists as laid out there
    "s", "x", "y" ► of scrubbing, see `scrub_rows`

Source: docs/design.md §5 (copyset index, per-log directory, per-epoch metadata beside the
partitions); docs/sources/logdevice.md 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.errors import Malformed
from cordwood.layout.block_header import HEADER_BYTES, unpack_envelope, unpack_header
from cordwood.layout.waves import StoredBlock

VERSION = 6
"""2: with what producers wrote. 3: with nodesets. 4: with what a log's parts answer for.
5: an end has its recovery's attempt. 6: with the tier point."""

META_TABLE = "meta"

ORIGIN_KEY = b"v"
OFFSET_KEY = b"o"
LOST_KEY = b"w"
ACCEPTED_KEY = b"a"
ACCEPTED_RANGES_KEY = b"c"
NOTED_KEY = b"n"
MISSING_KEY = b"g"

_INDEX = struct.Struct(">cQQQBBII")
_BODY = struct.Struct(">cQQQ")
_ONE = struct.Struct(">cQ")
_TWO = struct.Struct(">cQQ")
_ORIGIN = struct.Struct("<II")
_OFFSET = struct.Struct("<q")
_LOST = struct.Struct("<QQ")
_LAST = struct.Struct("<Q")
_MISSING = struct.Struct("<Qq")
_PARTITION = struct.Struct("<qqQQ")
_ENTRY = struct.Struct("<QQQQqqQ")
_STATE = struct.Struct("<IIQQqQQQQIIIII")
_NODES = struct.Struct("<II")
_PRODUCED = struct.Struct("<II")
_LNG = struct.Struct("<IQ")
_END = struct.Struct("<IIQI")
_EPOCH = struct.Struct("<I")


class IndexKey(NamedTuple):
    """The fields of an index key."""

    log: int
    last: int
    first: int
    kind: int
    by_recovery: int
    seal_epoch: int
    wave: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Log, last and first LSN. Copies with an equal place are copies of the same block, and
        only one of them counts."""
        return (self.last, self.first, self.kind)


def index_key(block: StoredBlock) -> bytes:
    """The index key of one copy of a block."""
    header, (by_recovery, seal_epoch, wave) = block.header, block.envelope.precedence
    return _INDEX.pack(
        b"i", header.log, header.last, header.first, header.kind, by_recovery, seal_epoch, wave
    )


def read_index_key(key: bytes) -> IndexKey:
    """The contents of an index key.

    Raises:
        Malformed: it is none.
    """
    if len(key) != _INDEX.size or key[:1] != b"i":
        raise Malformed(f"LogsDB holds {key!r}, which is no index key")
    return IndexKey(*_INDEX.unpack(key)[1:])


def index_start(log: int, lsn: int) -> bytes:
    """A key at or before the index key of each block of `log` that ends at or after `lsn`."""
    return _TWO.pack(b"i", log, lsn)


def index_stop(log: int) -> bytes:
    """The least key after all index keys of `log`."""
    return _ONE.pack(b"i", log + 1)


def log_ranges(log: int) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """The key ranges [start, stop) of a log in a partition: its index entries, then its bodies."""
    bodies = _ONE.pack(b"b", log), _ONE.pack(b"b", log + 1)
    return (index_start(log, 0), index_stop(log)), bodies


def body_key(log: int, last: int, first: int) -> bytes:
    """The key of a block's body."""
    return _BODY.pack(b"b", log, last, first)


def read_body_key(key: bytes) -> tuple[int, int]:
    """Last and first LSN of the block that has its body under a key.

    Raises:
        Malformed: it is not a body's key.
    """
    _, _, last, first = _read(_BODY, key, "the key of a body")
    return last, first


def read_place(key: bytes) -> tuple[int, int, int]:
    """Log, last and first LSN of the block to which a key of a partition, of either kind, belongs.

    Raises:
        Malformed: it is none.
    """
    if key[:1] == b"i":
        named = read_index_key(key)
        return named.log, named.last, named.first
    _, log, last, first = _read(_BODY, key, "the key of a body")
    return int(log), int(last), int(first)


def read_head(wire: bytes) -> StoredBlock:
    """A block from its index entry, its body still to come.

    Raises:
        Malformed, ChecksumMismatch: as its header and envelope say.
    """
    header = unpack_header(wire)
    envelope, stop = unpack_envelope(wire, HEADER_BYTES)
    if stop != len(wire):
        raise Malformed(f"LogsDB holds an index entry of {len(wire)} bytes at lsn {header.first}")
    return StoredBlock(header, envelope, wire, b"")


def pack_origin(node: int) -> bytes:
    """The value under ORIGIN_KEY: this version, and the owner of the tables."""
    return _ORIGIN.pack(VERSION, node)


def read_origin(value: bytes) -> int:
    """The node that owns the tables.

    Raises:
        Malformed: of another length or version.
    """
    if len(value) != _ORIGIN.size or _ORIGIN.unpack(value)[0] != VERSION:
        raise Malformed("this LogsDB has a format that this version does not know")
    return int(_ORIGIN.unpack(value)[1])


def pack_offset(offset: int) -> bytes:
    """The value under OFFSET_KEY."""
    return _OFFSET.pack(offset)


def read_offset(value: bytes) -> int:
    """The value under OFFSET_KEY.

    Raises:
        Malformed: of another length.
    """
    return int(_read(_OFFSET, value, "an offset")[0])


def pack_lost(ranges: Sequence[tuple[int, int]]) -> bytes:
    """The value under LOST_KEY, ACCEPTED_RANGES_KEY or NOTED_KEY."""
    return b"".join(_LOST.pack(*each) for each in ranges)


def read_lost(value: bytes) -> tuple[tuple[int, int], ...]:
    """The value under LOST_KEY, ACCEPTED_RANGES_KEY or NOTED_KEY.

    Raises:
        Malformed: no number of whole ranges.
    """
    if len(value) % _LOST.size:
        raise Malformed(f"LogsDB holds {len(value)} bytes that are no list of losses")
    return tuple((start, stop) for start, stop in _LOST.iter_unpack(value))


def pack_missing(since_us: Mapping[int, int]) -> bytes:
    """The value under MISSING_KEY: by log, the time (µs, wall clock) since when it is missing."""
    return b"".join(_MISSING.pack(*each) for each in sorted(since_us.items()))


def read_missing(value: bytes) -> dict[int, int]:
    """The value under MISSING_KEY.

    Raises:
        Malformed: no number of whole entries.
    """
    if len(value) % _MISSING.size:
        raise Malformed(f"LogsDB holds {len(value)} bytes that are no list of missing logs")
    return dict(_MISSING.iter_unpack(value))


class PartitionRow(NamedTuple):
    """A partition's row; the fields are those of the layout above."""

    start_us: int
    made_us: int
    bytes: int
    files: int


def partition_key(number: int) -> bytes:
    """The key of a partition's row."""
    return _ONE.pack(b"p", number)


PARTITIONS = (b"p", b"q")
"""The key range [start, stop) of all partitions' rows."""


def read_partition_key(key: bytes) -> int:
    """The partition that a row is of.

    Raises:
        Malformed: it is none.
    """
    return int(_read(_ONE, key, "a partition's key")[1])


def pack_partition(row: PartitionRow) -> bytes:
    """A partition's row."""
    return _PARTITION.pack(*row)


def read_partition(value: bytes) -> PartitionRow:
    """A partition's row.

    Raises:
        Malformed: of another length.
    """
    return PartitionRow(*_read(_PARTITION, value, "a partition"))


class DirectoryEntry(NamedTuple):
    """One log's part of one partition.

    Attributes:
        first, last: the lowest first LSN and the highest last LSN of its blocks.
        blocks, bytes: the stored copies; each copy of a block counts.
        first_us, last_us: the lowest and the highest append time.
        payload: the bytes of its blocks' bodies that this node counts. Over all nodes, each block
            is counted once at most (`storage.space.payload_count`).
    """

    first: int
    last: int
    blocks: int
    bytes: int
    first_us: int
    last_us: int
    payload: int = 0

    def joined(self, other: DirectoryEntry) -> DirectoryEntry:
        """The entry for the blocks of both entries."""
        return DirectoryEntry(
            min(self.first, other.first),
            max(self.last, other.last),
            self.blocks + other.blocks,
            self.bytes + other.bytes,
            min(self.first_us, other.first_us),
            max(self.last_us, other.last_us),
            self.payload + other.payload,
        )


def directory_key(log: int, partition: int) -> bytes:
    """The key of a directory entry."""
    return _TWO.pack(b"d", log, partition)


def directory_range(log: int) -> tuple[bytes, bytes]:
    """The key range [start, stop) of a log's directory."""
    return _ONE.pack(b"d", log), _ONE.pack(b"d", log + 1)


def read_directory_key(key: bytes) -> tuple[int, int]:
    """Log and partition of a directory entry.

    Raises:
        Malformed: it is none.
    """
    _, log, partition = _read(_TWO, key, "a directory key")
    return int(log), int(partition)


def member_key(partition: int, log: int) -> bytes:
    """The key of the row that notes a log's part of a partition."""
    return _TWO.pack(b"e", partition, log)


def member_range(partition: int) -> tuple[bytes, bytes]:
    """The key range [start, stop) of a partition's logs."""
    return _ONE.pack(b"e", partition), _ONE.pack(b"e", partition + 1)


def read_member_key(key: bytes) -> tuple[int, int]:
    """Partition and log of a row's key.

    Raises:
        Malformed: it is none.
    """
    _, partition, log = _read(_TWO, key, "a partition's log")
    return int(partition), int(log)


def pack_last(last: int) -> bytes:
    """The highest LSN that a log has in a partition."""
    return _LAST.pack(last)


def pack_entry(entry: DirectoryEntry) -> bytes:
    """A directory entry."""
    return _ENTRY.pack(*entry)


def read_entry(value: bytes) -> DirectoryEntry:
    """A directory entry.

    Raises:
        Malformed: of another length.
    """
    return DirectoryEntry(*_read(_ENTRY, value, "a directory entry"))


Packed = bytes
"""Packed by `layout.produced`."""


class LogState(NamedTuple):
    """All that a node knows of a log, except its blocks.

    Fixed part, 80 bytes: u32 seal, u32 clean, u64 released, u64 trim, i64 append time,
    u64 last, u64 blocks, u64 bytes, u64 tier, then u32 counts of the lists that follow: LNGs
    (u32 epoch, u64 lsn), ends (u32 epoch, u32 seal, u64 lng, u32 attempt), closed and held
    (u32 epoch), and produced (u32 epoch, u32 length, bytes of `layout.produced`). Behind
    them u32 epoch, u32 length and bytes of `layout.nodesets`.

    Attributes:
        seal: the epoch that sealed it, durably; 0 for none.
        clean: last epoch known to be recovered.
        released: last LSN that readers may see, as far as the node knew.
        trim: all up to it was trimmed.
        append_time_us: the latest seen.
        last, blocks, bytes: the highest LSN in LogsDB, and how much is there.
        tier: all records up to this LSN are in main storage, and the node may have let go of them;
            0 for none.
        lngs: LNG by epoch.
        ends: of finished epochs: epoch, the recovery's seal, LNG, attempt.
        closed: finished epochs above `clean`.
        held: epochs above `clean` with blocks here.
        produced: of finished epochs, the known producers at the end; of other epochs, the
            producers' blocks.
        nodesets: which nodes may hold which epochs, and the epoch up to which this is complete.
    """

    seal: int = 0
    clean: int = 0
    released: int = 0
    trim: int = 0
    append_time_us: int = 0
    last: int = 0
    blocks: int = 0
    bytes: int = 0
    tier: int = 0
    lngs: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int, int, int], ...] = ()
    closed: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    produced: tuple[tuple[int, Packed], ...] = ()
    nodesets: tuple[int, Packed] = (0, b"")


def state_key(log: int) -> bytes:
    """The key of a log's state."""
    return _ONE.pack(b"l", log)


STATES = (b"l", b"m")
"""The key range [start, stop) of all logs' states."""


def read_state_key(key: bytes) -> int:
    """The log that a state is of.

    Raises:
        Malformed: it is none.
    """
    return int(_read(_ONE, key, "a log's key")[1])


def pack_state(state: LogState) -> bytes:
    """A log's state."""
    lists = (state.lngs, state.ends, state.closed, state.held, state.produced)
    parts = [_STATE.pack(*state[:9], *map(len, lists))]
    parts += [_LNG.pack(*each) for each in state.lngs]
    parts += [_END.pack(*each) for each in state.ends]
    parts += [_EPOCH.pack(each) for each in (*state.closed, *state.held)]
    for epoch, packed in state.produced:
        parts += (_PRODUCED.pack(epoch, len(packed)), packed)
    epoch, packed = state.nodesets
    parts += (_NODES.pack(epoch, len(packed)), packed)
    return b"".join(parts)


_UNFILLED = "LogsDB holds a log's state whose lists do not fill it"


def read_state(value: bytes) -> LogState:
    """A log's state.

    Raises:
        Malformed: its lists do not fill it, or tell of one epoch twice.
    """
    if len(value) < _STATE.size:
        raise Malformed("LogsDB holds a log's state that is too short")
    fixed = _STATE.unpack_from(value)
    lngs, ends, closed, held, produced = fixed[9:]
    ends_at = _STATE.size + lngs * _LNG.size
    epochs_at = ends_at + ends * _END.size
    produced_at = epochs_at + (closed + held) * _EPOCH.size
    if produced_at > len(value):
        raise Malformed(_UNFILLED)
    epochs = tuple(epoch for (epoch,) in _EPOCH.iter_unpack(value[epochs_at:produced_at]))
    lists = (
        tuple(_LNG.iter_unpack(value[_STATE.size : ends_at])),
        tuple(_END.iter_unpack(value[ends_at:epochs_at])),
        epochs[:closed],
        epochs[closed:],
    )
    return LogState._make((*fixed[:9], *lists, *_read_packed(value, produced_at, produced)))


def _read_packed(
    value: bytes, at: int, count: int
) -> tuple[tuple[tuple[int, bytes], ...], tuple[int, bytes]]:
    """The producers, and the nodesets, which fill the rest of a state."""
    found: list[tuple[int, bytes]] = []
    for _ in range(count):
        if len(value) - at < _PRODUCED.size:
            raise Malformed(_UNFILLED)
        epoch, length = _PRODUCED.unpack_from(value, at)
        at += _PRODUCED.size + length
        found.append((epoch, value[at - length : at]))
    if len(value) - at < _NODES.size:
        raise Malformed(_UNFILLED)
    epoch, length = _NODES.unpack_from(value, at)
    at += _NODES.size
    if at + length != len(value):
        raise Malformed(_UNFILLED)
    if len({told for told, _ in found}) < len(found):
        raise Malformed("LogsDB holds a log's state that tells of one epoch's producers twice")
    return tuple(found), (epoch, value[at:])


def _read(layout: struct.Struct, value: bytes, what: str) -> tuple[Any, ...]:
    if len(value) != layout.size:
        raise Malformed(f"LogsDB holds {len(value)} bytes that are no {what}")
    return layout.unpack(value)
