"""Payloads of the read path: READ, READING, BLOCKS, WINDOW, STOP.

All little-endian. A stream is one reader's pull on one log at one node; its
number is the client's and belongs to the connection.

READ, 72 bytes and two lists::

    offset width field
    0      4     stream
    4      4     flags: 1 digest, 2 single copy
    8      8     log
    16     8     from
    24     8     until
    32     8     window high
    40     8     bytes: the total that the node may send on this stream before a WINDOW
                 raises it
    48     4     version: of what is asked for; READING gives it back
    52     1     shuffle: how copysets are put in order, see `protocol.single_copy`
    53     1     copies: members of a copyset that hold the block for certain, 0 for all
    54     2     nodes known to be down
    56     8     seed
    64     2     bytes of the region, 0 without local delivery
    66     6     reserved, 0
    72     4 ea  the nodes known to be down, ascending
    ...          the region, UTF-8

A digest asks for unreleased blocks too, and is allowed only up to a sealed epoch. Without
the flag for single copies a node sends all it holds, and the fields from 52 on are 0.

READING, 24 bytes: `u32 stream, u32 status, u64 released, u32 version, u32 reserved 0`; see
ReadStatus. What a node sent before it belongs to an older version.

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
import itertools
import struct
from dataclasses import dataclass

from cordwood.errors import Malformed
from cordwood.layout.waves import StoredBlock, read_blocks
from cordwood.lsn import LSN_MAX

_READ = struct.Struct("<IIQQQQQIBBHQHHI")
_READING = struct.Struct("<IIQII")
_BLOCKS = struct.Struct("<IIQQ")
BLOCKS_HEAD_BYTES = _BLOCKS.size
_WINDOW = struct.Struct("<IIQQ")
_STOP = struct.Struct("<II")

KNOWN_DOWN_MAX = 1024
"""Nodes in one list: several times the largest nodeset."""

REGION_BYTES_MAX = 255
"""A location's length, as the members' messages bound it."""


class ReadFlag(enum.IntFlag):
    """Bits of a READ."""

    DIGEST = 1
    SINGLE_COPY = 2


class ReadStatus(enum.IntEnum):
    """How a node takes a READ."""

    OK = 0
    NOT_SEALED = 1
    """A digest was asked for, and the tail may still move; no stream was started."""
    DAMAGED = 2
    """The node lost records that were durable, so what it does not send is unknown, not
    absent. It sends what it has; a digest was not started."""


@dataclass(frozen=True, slots=True)
class OneCopy:
    """Single-copy delivery as asked of a node; see `protocol.single_copy.CopyFilter`."""

    shuffle: int = 0
    copies: int = 0
    seed: int = 0
    known_down: tuple[int, ...] = ()
    region: str = ""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a reader asks of one node; the fields are READ's.

    Attributes:
        one_copy: how single copies are chosen; None asks for all that the node holds.
    """

    stream: int
    log: int
    start: int
    until: int
    window_high: int
    bytes_limit: int
    digest: bool = False
    version: int = 0
    one_copy: OneCopy | None = None


@dataclass(frozen=True, slots=True)
class BlocksHead:
    """What goes before the blocks of a BLOCKS payload."""

    stream: int
    blocks: int
    next: int
    released: int


def pack_read(request: ReadRequest) -> bytes:
    """A READ payload."""
    one = request.one_copy
    flags = ReadFlag.DIGEST if request.digest else ReadFlag(0)
    if one is not None:
        flags |= ReadFlag.SINGLE_COPY
    chosen = one or OneCopy()
    region = chosen.region.encode()
    head = _READ.pack(
        request.stream,
        flags,
        request.log,
        request.start,
        request.until,
        request.window_high,
        request.bytes_limit,
        request.version,
        chosen.shuffle,
        chosen.copies,
        len(chosen.known_down),
        chosen.seed,
        len(region),
        0,
        0,
    )
    return head + struct.pack(f"<{len(chosen.known_down)}I", *chosen.known_down) + region


def read_read(payload: memoryview) -> ReadRequest:
    """A READ payload, checked.

    Raises:
        Malformed: wrong length, unknown flags, numbers that are no LSNs, or a list of nodes
            that is too long or out of order.
    """
    if len(payload) < _READ.size:
        raise Malformed("a READ frame has the wrong length")
    (
        stream, flags, log, start, until, high, limit, version,
        shuffle, copies, downs, seed, region_bytes, reserved, reserved2,
    ) = _READ.unpack_from(payload)  # fmt: skip
    if len(payload) != _READ.size + 4 * downs + region_bytes:
        raise Malformed("a READ frame has the wrong length")
    if flags > 3 or max(start, until, high) > LSN_MAX or not 1 <= log < 1 << 62:
        raise Malformed("a READ frame has a field out of its range")
    if reserved or reserved2 or downs > KNOWN_DOWN_MAX or region_bytes > REGION_BYTES_MAX:
        raise Malformed("a READ frame has a field out of its range")
    one_copy = None
    if flags & ReadFlag.SINGLE_COPY:
        one_copy = _one_copy(payload, shuffle, copies, downs, seed)
    elif shuffle or copies or downs or seed or region_bytes:
        raise Malformed("a READ frame asks for all copies and says which one")
    digest = bool(flags & ReadFlag.DIGEST)
    return ReadRequest(stream, log, start, until, high, limit, digest, version, one_copy)


def _one_copy(payload: memoryview, shuffle: int, copies: int, downs: int, seed: int) -> OneCopy:
    """The lists after the fixed fields, whose lengths were checked."""
    if shuffle > 2:
        raise Malformed(f"a READ frame asks for shuffle {shuffle}")
    end = _READ.size + 4 * downs
    known_down = struct.unpack(f"<{downs}I", payload[_READ.size : end])
    if any(low >= high for low, high in itertools.pairwise(known_down)):
        raise Malformed("a READ frame lists nodes out of order")
    try:
        region = str(payload[end:], "utf-8")
    except UnicodeDecodeError:
        raise Malformed("a READ frame gives a region that is no text") from None
    return OneCopy(shuffle, copies, seed, known_down, region)


def pack_reading(stream: int, status: ReadStatus, released: int, version: int = 0) -> bytes:
    """A READING payload."""
    return _READING.pack(stream, status, released, version, 0)


def read_reading(payload: memoryview) -> tuple[int, ReadStatus, int, int]:
    """Stream, status, last released LSN and version.

    Raises:
        Malformed: wrong length, a status that is not known, or no LSN.
    """
    if len(payload) != _READING.size:
        raise Malformed("a READING frame has the wrong length")
    stream, status, released, version, reserved = _READING.unpack(payload)
    if status >= len(ReadStatus) or released > LSN_MAX or reserved:
        raise Malformed(f"a READING frame gives status {status}, released {released}")
    return stream, ReadStatus(status), released, version


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
