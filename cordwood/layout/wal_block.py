"""The bytes of the ring WAL: its two header slots, its records, and their places.

A WAL file (or device) is two header slots and a ring::

    0        4,096  header slot 0: sequence numbers 0, 2, 4, …
    4,096    4,096  header slot 1: sequence numbers 1, 3, 5, …
    8,192    ring   capacity - 8,192 bytes, a multiple of 4,096

Records are found by *logical offset*, which only grows; the place of a logical offset on disk is
`8192 + offset mod ring`. A *block* is the unit of one write: records back to back, with start and
length at multiples of 4,096 (the rest is zeros), never across the ring's end. If the space before
the ring's end is too short for the next block, one padding record covers it. So a reader knows that
this space is skipped and need not guess.

Header slot, 128 bytes, little-endian, zeros up to 4,096 (it fits one 512 B
sector, the least that a disk writes whole)::

      0  8  magic "CordWAL\\0"
      8  2  version = 1
     10  1  shutdown: 0 graceful (nothing was written after this header), 1 not
     11  1  reserved = 0
     12  4  owner: node id, 1 or more
     16  8  sequence number: of two good slots the higher one counts, no clock does
     24  8  epoch given when it was formatted (the owner's incarnation then)
     32  8  capacity in bytes, slots and ring, a multiple of 4,096
     40  8  trim offset, signed: records at or below it are dead; -1 for none
     48  8  scan offset: where recovery starts, a place where a record starts
     56  8  durable offset: records below it were on stable storage
     64  8  resume offset: where the present incarnation started to write
     72  8  window: bytes that may be written past the last durable offset
     80  4  incarnation: grows by one with each start, 0 before the first
     84  4  salt: see below
     88 36  reserved = 0
    124  4  CRC32C of bytes [0, 124)

Record header, 40 bytes, little-endian, the body right after it::

      0  4  magic "CWR1"; a changed layout takes another
      4  1  kind (WalKind)
      5  1  flags: 1 = last record of its block
      6  2  reserved = 0
      8  4  length of the body in bytes, at most WAL_BODY_BYTES_MAX
     12  4  CRC32C of the body; 0 for padding, whose body is the bytes that were there
     16  8  logical offset of this header
     24  8  durable offset when the block was sealed: all below was on stable storage
     32  4  incarnation that wrote it
     36  4  CRC32C of bytes [0, 36), begun from the salt

The fields' reasons: The offset rejects remains of an older lap. The salt rejects records of another
WAL, and payloads that imitate a record. The incarnation rejects a torn block of an earlier run at
an offset that was given out again. The last-of-block flag says where the next record must start, so
that a lost record is never taken for a block's zero tail. The durable offset distinguishes a hole
that a crash left (never acknowledged) from damage to acknowledged records.

Bodies of kind RESUME: pairs of u64 `start, stop`, the holes `[start, stop)` that
a recovery found and went past. Those of kind BATCH are in `layout.wal_batch`.

Source: docs/design.md §5; docs/sources/s3stream.md (a), "Layout" and "Traps" 1, 3, 4, 9.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.layout.limits import BODY_BYTES_MAX

WAL_UNIT_BYTES = 4096
"""Unit of place and length of every block and slot: a page, and 512 B and 4 KiB sectors."""

WAL_SLOTS = 2
WAL_RING_START = WAL_SLOTS * WAL_UNIT_BYTES
WAL_HEADER_BYTES = 128
WAL_RECORD_HEADER_BYTES = 40

WAL_BODY_BYTES_MAX = BODY_BYTES_MAX + (1 << 20)
"""A Cordwood block at its hard limit, and space for its header, envelope and wave."""

WAL_RING_BYTES_MIN = 64 << 10
"""Sixteen blocks. In a smaller ring, padding and the reserve would leave no space for records."""

WAL_CAPACITY_MAX = 1 << 46
"""64 TiB. No WAL is so large, so a header with a larger capacity is damaged."""

_WAL_MAGIC = b"CordWAL\0"
_WAL_VERSION = 1
_WAL_HEADER = struct.Struct("<8sHBBIQQQqQQQQII36x")
_RECORD_MAGIC = b"CWR1"
_RECORD = struct.Struct("<4sBBHIIQQI")
_RECORD_AND_CRC = struct.Struct("<4sBBHIIQQII")
_CRC = struct.Struct("<I")
_HOLE = struct.Struct("<QQ")
_FLAG_LAST = 1
_OFFSET_MAX = (1 << 63) - 1
assert _WAL_HEADER.size == WAL_HEADER_BYTES - 4
assert _RECORD.size == WAL_RECORD_HEADER_BYTES - 4
assert _RECORD_AND_CRC.size == WAL_RECORD_HEADER_BYTES


class WalKind(enum.IntEnum):
    """The kind of a record in the ring."""

    DATA = 0
    PADDING = 1
    """The rest of this lap is skipped; its body was not written."""
    RESUME = 2
    """A recovery passed these holes: the writes in them never happened."""
    BATCH = 3
    """Many data records under one header; see `layout.wal_batch`."""


@dataclass(frozen=True, slots=True)
class WalHeader:
    """One header slot; the fields are those of the module's table."""

    owner: int
    capacity: int
    epoch: int = 0
    sequence: int = 0
    graceful: bool = False
    trim: int = -1
    scan: int = 0
    durable: int = 0
    resume: int = 0
    window: int = 0
    incarnation: int = 0
    salt: int = 0

    @property
    def ring(self) -> int:
        """Bytes of the ring."""
        return self.capacity - WAL_RING_START


_KINDS = tuple(WalKind)
_new_tuple = tuple.__new__


class WalRecord(NamedTuple):
    """One record header; the fields are those of the module's table.

    It is a tuple, because a start makes a WalRecord for each record of the ring. That takes 2 µs; a
    frozen dataclass would take 3 µs.
    """

    kind: WalKind
    length: int
    body_crc: int
    offset: int
    durable: int
    incarnation: int
    is_last: bool

    @property
    def stop(self) -> int:
        """Logical offset of the byte after the body."""
        return self.offset + WAL_RECORD_HEADER_BYTES + self.length


def align_up(offset: int) -> int:
    """The first multiple of WAL_UNIT_BYTES at or after `offset`."""
    return -(-offset // WAL_UNIT_BYTES) * WAL_UNIT_BYTES


def align_down(offset: int) -> int:
    """The last multiple of WAL_UNIT_BYTES at or before `offset`."""
    return offset - offset % WAL_UNIT_BYTES


def wal_position(offset: int, ring: int) -> int:
    """The position of logical `offset` in a file whose ring has `ring` bytes."""
    return WAL_RING_START + offset % ring


def check_wal_capacity(capacity: int) -> None:
    """Refuse a size that no WAL can have.

    Raises:
        BadSetting: not a multiple of WAL_UNIT_BYTES, or too small or too large.
    """
    least = WAL_RING_START + WAL_RING_BYTES_MIN
    if capacity % WAL_UNIT_BYTES or not least <= capacity <= WAL_CAPACITY_MAX:
        raise BadSetting(
            f"a WAL of {capacity} bytes: it takes a multiple of {WAL_UNIT_BYTES}, "
            f"from {least} to {WAL_CAPACITY_MAX}"
        )


def pack_wal_header(header: WalHeader) -> bytes:
    """One header slot, WAL_HEADER_BYTES long; the rest of the slot is zeros."""
    fixed = _WAL_HEADER.pack(
        _WAL_MAGIC,
        _WAL_VERSION,
        not header.graceful,
        0,
        header.owner,
        header.sequence,
        header.epoch,
        header.capacity,
        header.trim,
        header.scan,
        header.durable,
        header.resume,
        header.window,
        header.incarnation,
        header.salt,
    )
    return fixed + _CRC.pack(crc32c(fixed))


def unpack_wal_header(slot: Buffer) -> WalHeader:
    """Read one header slot, of which the first WAL_HEADER_BYTES count.

    Raises:
        Malformed: too short, another magic or version, or fields that contradict.
        ChecksumMismatch: the bytes differ from the written ones.
    """
    if len(slot) < WAL_HEADER_BYTES:
        raise Malformed(f"a WAL header of {len(slot)} bytes; it has {WAL_HEADER_BYTES}")
    fixed = bytes(slot[: WAL_HEADER_BYTES - 4])
    if fixed[:8] != _WAL_MAGIC:
        raise Malformed("no WAL header: the magic is another")
    if crc32c(fixed) != _CRC.unpack_from(slot, WAL_HEADER_BYTES - 4)[0]:
        raise ChecksumMismatch("a WAL header's checksum does not match")
    _, version, shutdown, _, owner, sequence, epoch, *rest = _WAL_HEADER.unpack(fixed)
    if version != _WAL_VERSION:
        raise Malformed(f"a WAL of version {version}; this release reads {_WAL_VERSION}")
    capacity, trim, scan, durable, resume, window, incarnation, salt = rest
    header = WalHeader(
        owner,
        capacity,
        epoch,
        sequence,
        shutdown == 0,
        trim,
        scan,
        durable,
        resume,
        window,
        incarnation,
        salt,
    )
    _check_header(header)
    return header


def _check_header(header: WalHeader) -> None:
    """Refuse values that pass the checksum but that no Cordwood writer makes."""
    try:
        check_wal_capacity(header.capacity)
    except BadSetting as error:
        raise Malformed(f"a WAL header: {error}") from error
    offsets = (header.trim, header.scan, header.durable, header.resume)
    if not header.owner or min(offsets) < -1 or max(offsets) > _OFFSET_MAX:
        raise Malformed("a WAL header has a field out of its range")
    if not WAL_UNIT_BYTES <= header.window <= header.ring or header.window % WAL_UNIT_BYTES:
        raise Malformed(f"a WAL header has a window of {header.window} bytes")


def pack_wal_record(record: WalRecord, salt: int) -> bytes:
    """A record header, WAL_RECORD_HEADER_BYTES long; the body goes right after it."""
    kind, length, body_crc, offset, durable, incarnation, is_last = record
    flags = _FLAG_LAST if is_last else 0
    fixed = _RECORD.pack(
        _RECORD_MAGIC, kind, flags, 0, length, body_crc, offset, durable, incarnation
    )
    return fixed + _CRC.pack(crc32c(fixed, salt))


Unplaced = tuple[int, int, int, Sequence[Buffer]]
"""A record before its block is written: kind, length, CRC of the body, and the body's parts."""


def pack_wal_block(
    start: int, records: Sequence[Unplaced], *, durable: int, incarnation: int, salt: int
) -> list[Buffer]:
    """The bytes of one write at logical offset `start`: headers and bodies, in order.

    One loop, because it runs once for each record: see `pack_wal_record` for the bytes.
    """
    pack, pack_crc = _RECORD.pack, _CRC.pack
    parts: list[Buffer] = []
    offset = start
    left = len(records)
    for kind, length, body_crc, body in records:
        left -= 1
        flags = 0 if left else _FLAG_LAST
        fixed = pack(_RECORD_MAGIC, kind, flags, 0, length, body_crc, offset, durable, incarnation)
        parts.append(fixed + pack_crc(crc32c(fixed, salt)))
        parts += body
        offset += WAL_RECORD_HEADER_BYTES + length
    return parts


def unpack_wal_record(data: Buffer, at: int, salt: int) -> WalRecord | None:
    """Read a record header at `data[at:]`; None if no intact header of this WAL is there.

    Recovery calls this function for places with any content. So None is a normal answer and not an
    error. The caller compares the header's offset with the expected offset.
    """
    if at < 0 or at + WAL_RECORD_HEADER_BYTES > len(data):
        return None
    magic, kind, flags, reserved, length, body_crc, offset, durable, incarnation, crc = (
        _RECORD_AND_CRC.unpack_from(data, at)
    )
    if magic != _RECORD_MAGIC or crc32c(data[at : at + _RECORD.size], salt) != crc:
        return None
    if kind >= len(_KINDS) or flags > _FLAG_LAST or reserved:
        return None
    stop = offset + WAL_RECORD_HEADER_BYTES + length
    if stop > _OFFSET_MAX or durable > offset:
        return None
    if stop % WAL_UNIT_BYTES if kind == WalKind.PADDING else length > WAL_BODY_BYTES_MAX:
        return None
    fields = (_KINDS[kind], length, body_crc, offset, durable, incarnation, flags == _FLAG_LAST)
    return _new_tuple(WalRecord, fields)


def body_checksum(parts: Sequence[Buffer]) -> int:
    """CRC32C of `parts` back to back, without joining them."""
    if len(parts) == 1:
        return int(crc32c(parts[0]))
    checksum: int = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return checksum


def pack_holes(holes: Sequence[tuple[int, int]]) -> bytes:
    """The body of a RESUME record: the holes `[start, stop)` that recovery went past."""
    return b"".join(_HOLE.pack(start, stop) for start, stop in holes)


def unpack_holes(body: Buffer) -> list[tuple[int, int]]:
    """The holes of a RESUME record's body.

    Raises:
        Malformed: not pairs, or an empty range.
    """
    if len(body) % _HOLE.size:
        raise Malformed(f"a WAL resume record of {len(body)} bytes")
    holes: list[tuple[int, int]] = list(_HOLE.iter_unpack(body))
    if any(start >= stop for start, stop in holes):
        raise Malformed("a WAL resume record with an empty hole")
    return holes
