"""Payloads of the read path: READ, READING, BLOCKS, WINDOW, STOP.

All little-endian. A stream is one reader's pull on one log at one node; its
number is the client's and belongs to the connection.

READ, 48 bytes: `u32 stream, u32 flags, u64 log, u64 from, u64 until,
u64 window high, u64 bytes`. Flag 1 is a digest: unreleased blocks too, allowed
only up to a sealed epoch. `bytes` is the total that the node may send on this
stream before a WINDOW raises it.

READING, 16 bytes: `u32 stream, u32 status, u64 released`; see ReadStatus.

BLOCKS: `u32 stream, u32 blocks, u64 next, u64 released`, then the blocks. The
node has sent all it holds in `[from, next)`; the rest of what that range covers
is not on this node. A frame without blocks moves `next` only.

WINDOW, 24 bytes: `u32 stream, u32 reserved 0, u64 window high, u64 bytes`.

STOP, 8 bytes: `u32 stream, u32 reserved 0`.

Source: design.md §2 ("a node that ships [a, b] moves its marker to b+1");
LogDevice digest 2.10.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from cordwood.errors import Malformed
from cordwood.layout.waves import StoredBlock, read_blocks
from cordwood.lsn import LSN_MAX

_READ = struct.Struct("<IIQQQQQ")
_READING = struct.Struct("<IIQ")
_BLOCKS = struct.Struct("<IIQQ")
BLOCKS_HEAD_BYTES = _BLOCKS.size
_WINDOW = struct.Struct("<IIQQ")
_STOP = struct.Struct("<II")


class ReadStatus(enum.IntEnum):
    """How a node takes a READ."""

    OK = 0
    NOT_SEALED = 1
    """A digest was asked for, and the tail may still move; no stream was started."""
    DAMAGED = 2
    """The node lost records that were durable, so what it does not send is unknown, not
    absent. It sends what it has; a digest was not started."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a reader asks of one node; the fields are READ's."""

    stream: int
    log: int
    start: int
    until: int
    window_high: int
    bytes_limit: int
    digest: bool = False


@dataclass(frozen=True, slots=True)
class BlocksHead:
    """What goes before the blocks of a BLOCKS payload."""

    stream: int
    blocks: int
    next: int
    released: int


def pack_read(request: ReadRequest) -> bytes:
    """A READ payload."""
    return _READ.pack(
        request.stream,
        int(request.digest),
        request.log,
        request.start,
        request.until,
        request.window_high,
        request.bytes_limit,
    )


def read_read(payload: memoryview) -> ReadRequest:
    """A READ payload, checked.

    Raises:
        Malformed: wrong length, unknown flags, or numbers that are no LSNs.
    """
    if len(payload) != _READ.size:
        raise Malformed("a READ frame has the wrong length")
    stream, flags, log, start, until, high, limit = _READ.unpack(payload)
    if flags > 1 or max(start, until, high) > LSN_MAX or not 1 <= log < 1 << 62:
        raise Malformed("a READ frame has a field out of its range")
    return ReadRequest(stream, log, start, until, high, limit, bool(flags))


def pack_reading(stream: int, status: ReadStatus, released: int) -> bytes:
    """A READING payload."""
    return _READING.pack(stream, status, released)


def read_reading(payload: memoryview) -> tuple[int, ReadStatus, int]:
    """Stream, status and last released LSN.

    Raises:
        Malformed: wrong length, a status that is not known, or no LSN.
    """
    if len(payload) != _READING.size:
        raise Malformed("a READING frame has the wrong length")
    stream, status, released = _READING.unpack(payload)
    if status >= len(ReadStatus) or released > LSN_MAX:
        raise Malformed(f"a READING frame gives status {status}, released {released}")
    return stream, ReadStatus(status), released


def blocks_head(head: BlocksHead) -> bytes:
    """What goes before the blocks of a BLOCKS payload."""
    return _BLOCKS.pack(head.stream, head.blocks, head.next, head.released)


def read_blocks_frame(payload: memoryview) -> tuple[BlocksHead, list[StoredBlock]]:
    """A BLOCKS payload.

    Raises:
        Malformed, ChecksumMismatch: see `waves.read_blocks`.
    """
    if len(payload) < BLOCKS_HEAD_BYTES:
        raise Malformed("a BLOCKS frame is too short")
    stream, count, upto, released = _BLOCKS.unpack_from(payload)
    if upto > LSN_MAX + 1 or released > LSN_MAX:
        raise Malformed("a BLOCKS frame holds a number that is no LSN")
    head = BlocksHead(stream, count, upto, released)
    return head, read_blocks(payload, BLOCKS_HEAD_BYTES, count)


def pack_window(stream: int, high: int, bytes_limit: int) -> bytes:
    """A WINDOW payload."""
    return _WINDOW.pack(stream, 0, high, bytes_limit)


def read_window(payload: memoryview) -> tuple[int, int, int]:
    """Stream, window high, bytes allowed in all.

    Raises:
        Malformed: wrong length, set reserved bits, or no LSN.
    """
    if len(payload) != _WINDOW.size:
        raise Malformed("a WINDOW frame has the wrong length")
    stream, reserved, high, limit = _WINDOW.unpack(payload)
    if reserved or high > LSN_MAX:
        raise Malformed("a WINDOW frame has a field out of its range")
    return stream, high, limit


def pack_stop(stream: int) -> bytes:
    """A STOP payload."""
    return _STOP.pack(stream, 0)


def read_stop(payload: memoryview) -> int:
    """The stream to stop.

    Raises:
        Malformed: wrong length or set reserved bits.
    """
    if len(payload) != _STOP.size:
        raise Malformed("a STOP frame has the wrong length")
    stream: int
    stream, reserved = _STOP.unpack(payload)
    if reserved:
        raise Malformed("a STOP frame sets bits that this version keeps at 0")
    return stream
