"""Payloads of the read path: READ, READING, BLOCKS, HEADS, SHARED, GAPS, WINDOW and STOP.

All little-endian. A stream carries one log from one node to one reader. The client chooses its
number, which is unique in the connection.

READ, 72 bytes, two lists and a token::

    offset width field
    0      4     stream
    4      4     flags: 1 digest, 2 single copy, 4 heads only, 8 keys, 16 quiet
    8      8     log
    16     8     from
    24     8     until
    32     8     window high
    40     8     bytes: the total that the node may send on this stream before a WINDOW
                 raises it
    48     4     version: of the request; READING gives it back
    52     1     shuffle: how copysets are put in order, see `protocol.single_copy`
    53     1     copies: members of a copyset that hold the block for certain, 0 for all
    54     2     nodes known to be down
    56     8     seed
    64     2     bytes of the region, 0 without local delivery
    66     2     bytes of the read token, 0 without
    68     4     key bits of the keys that are wanted, see `layout.key_bits`; 0 without
                 the flag for keys
    72     4 ea  the nodes known to be down, ascending
    ...          the region, UTF-8
    ...          the read token, UTF-8, for logs that ask for one

A digest asks for unreleased blocks too, and is allowed only up to a sealed epoch; it takes
whole blocks with any keys. Without the flag for single copies a node sends all it
holds, and the fields from 52 to 68 are 0.

READING, 32 bytes: `u32 stream, u32 status, u64 released, u64 trim, u32 version, u32 reserved 0`;
see ReadStatus. Frames that the node sent before READING belong to an older version of the request.

BLOCKS: `u32 stream, u32 blocks, u64 next, u64 released, u64 trim`, then the blocks. The node has
sent all records that it holds in `[from, next)`. The other records of that range are not on this
node (LogDevice's NO_RECORDS gap), and records up to `trim` were trimmed. A frame without blocks
moves `next` only. Past trimmed records it moves regardless of the window and the released LSN.

HEADS: as BLOCKS, but without the bodies of the blocks. It is for readers that want no payloads.

SHARED: as BLOCKS, for several streams of a client that stand at one place; the first field is
how many, and their numbers (`u32` each) follow after the blocks. So the part common to all clients
comes first, and its checksum is computed once.

GAPS: `u32 stream, u32 gaps`, then per gap 24 bytes: `u64 first, u64 last, u32 reason, u32
reserved 0`; see NodeGap. It goes ahead of the BLOCKS frame that moves `next` past them.

WINDOW, 24 bytes: `u32 stream, u32 reserved 0, u64 window high, u64 bytes`.

STOP, 8 bytes: `u32 stream, u32 reserved 0`.

Source: docs/design.md §2 ("a node that ships [a, b] moves its marker to b+1");
docs/sources/logdevice.md 2.10.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from cordwood.errors import Malformed
from cordwood.layout.waves import StoredBlock, read_blocks
from cordwood.log_attributes import TOKEN_BYTES_MAX
from cordwood.lsn import LSN_MAX

_READ = struct.Struct("<IIQQQQQIBBHQHHI")
_READING = struct.Struct("<IIQQII")
_BLOCKS = struct.Struct("<IIQQQ")
BLOCKS_HEAD_BYTES = _BLOCKS.size
_WINDOW = struct.Struct("<IIQQ")
_STOP = struct.Struct("<II")
_GAPS = struct.Struct("<II")
_GAP = struct.Struct("<QQII")

SHARERS_MAX = 4096
"""The streams of one frame; more streams need another frame."""

GAPS_MAX = 65_536
"""Gaps in one frame: more than the number of blocks that a node looks at for one frame."""

KNOWN_DOWN_MAX = 1024
"""Nodes in one list: several times the largest nodeset."""

REGION_BYTES_MAX = 255
"""A location's length, as the members' messages bound it."""


class ReadFlag(enum.IntFlag):
    """Bits of a READ."""

    DIGEST = 1
    SINGLE_COPY = 2
    HEADS = 4
    KEYS = 8
    QUIET = 16


class NodeGap(enum.IntEnum):
    """The reason why a node sends no block of a range in which it may hold blocks."""

    CHECKSUM_FAIL = 1
    """The node's blocks there fail their checksums, so they are unknown."""
    FILTERED = 2
    """The node holds blocks for the whole range, and none with a wanted key."""
    TIERED = 3
    """Main storage holds all of the range, durably; this node let go of it."""


@dataclass(frozen=True, slots=True)
class GapRange:
    """One gap of a GAPS payload: `[first, last]`."""

    first: int
    last: int
    reason: NodeGap


_READ_FLAGS = int(sum(ReadFlag))


class ReadStatus(enum.IntEnum):
    """A node's answer to a READ."""

    OK = 0
    NOT_SEALED = 1
    """A digest was asked for, and the tail may still move; no stream was started."""
    DAMAGED = 2
    """The node lost durable records, so records that it does not send are unknown, not absent. It
    sends its remaining records; a digest was not started."""
    ACCESS = 3
    """The log demands another read token, or a read token at all; no stream was started, or the
    running stream has ended."""
    FULL = 4
    """This connection already has as many streams as a node takes, so the stream was not
    started."""


@dataclass(frozen=True, slots=True)
class OneCopy:
    """Single-copy delivery as asked of a node; see `protocol.single_copy.CopyFilter`."""

    shuffle: int = 0
    copies: int = 0
    seed: int = 0
    known_down: tuple[int, ...] = ()
    region: str = ""
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A reader's request to one node; the fields are READ's.

    Attributes:
        one_copy: how single copies are chosen; None asks for all of the node's blocks.
        heads_only: bodies are left out.
        keys: bits of the wanted keys; None wants all records.
        token: for a log that asks for a read token; never shown.
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
    heads_only: bool = False
    keys: int | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class BlocksHead:
    """What goes before the blocks of a BLOCKS payload."""

    stream: int
    blocks: int
    next: int
    released: int
    trim: int = 0


def pack_read(request: ReadRequest) -> bytes:
    """A READ payload."""
    one = request.one_copy
    flags = ReadFlag.DIGEST if request.digest else ReadFlag(0)
    if one is not None:
        flags |= ReadFlag.SINGLE_COPY | (ReadFlag.QUIET if one.quiet else 0)
    if request.heads_only:
        flags |= ReadFlag.HEADS
    if request.keys is not None:
        flags |= ReadFlag.KEYS
    chosen = one or OneCopy()
    region, token = chosen.region.encode(), request.token.encode()
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
        len(token),
        request.keys or 0,
    )
    return head + struct.pack(f"<{len(chosen.known_down)}I", *chosen.known_down) + region + token


def read_read(payload: memoryview) -> ReadRequest:
    """A READ payload, checked.

    Raises:
        Malformed: wrong length, unknown flags, numbers that are no LSNs, a list of nodes
            that is too long or out of order, or a token that is too long.
    """
    if len(payload) < _READ.size:
        raise Malformed("a READ frame has the wrong length")
    (
        stream, flags, log, start, until, high, limit, version,
        shuffle, copies, downs, seed, region_bytes, token_bytes, key_bits,
    ) = _READ.unpack_from(payload)  # fmt: skip
    if len(payload) != _READ.size + 4 * downs + region_bytes + token_bytes:
        raise Malformed("a READ frame has the wrong length")
    if flags > _READ_FLAGS or max(start, until, high) > LSN_MAX or not 1 <= log < 1 << 62:
        raise Malformed("a READ frame has a field out of its range")
    if downs > KNOWN_DOWN_MAX or region_bytes > REGION_BYTES_MAX:
        raise Malformed("a READ frame has a field out of its range")
    if token_bytes > TOKEN_BYTES_MAX:
        raise Malformed(f"a READ frame gives a token of {token_bytes} bytes")
    region_end = len(payload) - token_bytes
    token = _text(payload[region_end:], "token")
    keys = key_bits if flags & ReadFlag.KEYS else None
    heads_only = bool(flags & ReadFlag.HEADS)
    if key_bits and keys is None:
        raise Malformed("a READ frame gives key bits and asks for all keys")
    one_copy = None
    if flags & ReadFlag.SINGLE_COPY:
        is_quiet = bool(flags & ReadFlag.QUIET)
        one_copy = _one_copy(payload[:region_end], shuffle, copies, downs, seed, is_quiet=is_quiet)
    elif shuffle or copies or downs or seed or region_bytes or flags & ReadFlag.QUIET:
        raise Malformed("a READ frame asks for all copies and says which one")
    digest = bool(flags & ReadFlag.DIGEST)
    if digest and (heads_only or keys is not None):
        raise Malformed("a READ frame asks for a digest with blocks left out")
    return ReadRequest(
        stream, log, start, until, high, limit, digest, version, one_copy, heads_only, keys,
        token,
    )  # fmt: skip


def _one_copy(
    payload: memoryview, shuffle: int, copies: int, downs: int, seed: int, *, is_quiet: bool
) -> OneCopy:
    """Read the lists after the fixed fields. The caller checked their lengths."""
    if shuffle > 2:
        raise Malformed(f"a READ frame asks for shuffle {shuffle}")
    end = _READ.size + 4 * downs
    known_down = struct.unpack(f"<{downs}I", payload[_READ.size : end])
    if any(low >= high for low, high in itertools.pairwise(known_down)):
        raise Malformed("a READ frame lists nodes out of order")
    region = _text(payload[end:], "region")
    return OneCopy(shuffle, copies, seed, known_down, region, is_quiet)


def _text(payload: memoryview, what: str) -> str:
    try:
        return str(payload, "utf-8")
    except UnicodeDecodeError:
        raise Malformed(f"a READ frame gives a {what} that is no text") from None


def pack_reading(
    stream: int, status: ReadStatus, released: int, version: int = 0, trim: int = 0
) -> bytes:
    """A READING payload."""
    return _READING.pack(stream, status, released, trim, version, 0)


def read_reading(payload: memoryview) -> tuple[int, ReadStatus, int, int, int]:
    """Stream, status, last released LSN, version and trim point.

    Raises:
        Malformed: wrong length, a status that is not known, or no LSN.
    """
    if len(payload) != _READING.size:
        raise Malformed("a READING frame has the wrong length")
    stream, status, released, trim, version, reserved = _READING.unpack(payload)
    if status >= len(ReadStatus) or max(released, trim) > LSN_MAX or reserved:
        raise Malformed(f"a READING frame gives status {status}, released {released}")
    return stream, ReadStatus(status), released, version, trim


def blocks_head(head: BlocksHead) -> bytes:
    """What goes before the blocks of a BLOCKS payload."""
    return _BLOCKS.pack(head.stream, head.blocks, head.next, head.released, head.trim)


def read_blocks_frame(payload: memoryview) -> tuple[BlocksHead, list[StoredBlock]]:
    """A BLOCKS payload.

    Raises:
        Malformed, ChecksumMismatch: see `waves.read_blocks`.
    """
    head, at = _blocks_head(payload)
    return head, read_blocks(payload, at, head.blocks)


def _blocks_head(payload: memoryview) -> tuple[BlocksHead, int]:
    """The head before the blocks, and the offset at which the blocks begin."""
    if len(payload) < BLOCKS_HEAD_BYTES:
        raise Malformed("a BLOCKS frame is too short")
    stream, count, upto, released, trim = _BLOCKS.unpack_from(payload)
    if upto > LSN_MAX + 1 or released > LSN_MAX or trim > LSN_MAX:
        raise Malformed("a BLOCKS frame holds a number that is no LSN")
    return BlocksHead(stream, count, upto, released, trim), BLOCKS_HEAD_BYTES


def read_heads_frame(payload: memoryview) -> tuple[BlocksHead, list[StoredBlock]]:
    """A HEADS payload.

    Raises:
        Malformed, ChecksumMismatch: see `waves.read_blocks`.
    """
    head, at = _blocks_head(payload)
    return head, read_blocks(payload, at, head.blocks, heads_only=True)


def shared_head(streams: int, head: BlocksHead) -> bytes:
    """The bytes before the blocks of a SHARED payload; `head.stream` is ignored."""
    return _BLOCKS.pack(streams, head.blocks, head.next, head.released, head.trim)


def shared_streams(streams: Sequence[int]) -> bytes:
    """The bytes after the blocks of a SHARED payload."""
    return struct.pack(f"<{len(streams)}I", *streams)


def read_shared_frame(
    payload: memoryview,
) -> tuple[tuple[int, ...], BlocksHead, list[StoredBlock]]:
    """The contents of a SHARED payload: its streams, and the head and blocks for each of them.

    Raises:
        Malformed, ChecksumMismatch: see `waves.read_blocks`; or no stream, or too many.
    """
    head, at = _blocks_head(payload)
    streams = head.stream
    end = len(payload) - 4 * streams
    if not 1 <= streams <= SHARERS_MAX or end < at:
        raise Malformed(f"a SHARED frame of {len(payload)} bytes is for {streams} streams")
    numbers = struct.unpack_from(f"<{streams}I", payload, end)
    return numbers, head, read_blocks(payload[:end], at, head.blocks)


def pack_gaps(stream: int, gaps: Sequence[GapRange]) -> bytes:
    """A GAPS payload."""
    return _GAPS.pack(stream, len(gaps)) + b"".join(
        _GAP.pack(each.first, each.last, each.reason, 0) for each in gaps
    )


def read_gaps(payload: memoryview) -> tuple[int, list[GapRange]]:
    """Stream and gaps.

    Raises:
        Malformed: wrong length, a reason that is not known, or numbers that are no range.
    """
    if len(payload) < _GAPS.size:
        raise Malformed("a GAPS frame is too short")
    stream, count = _GAPS.unpack_from(payload)
    if not 1 <= count <= GAPS_MAX or len(payload) != _GAPS.size + count * _GAP.size:
        raise Malformed("a GAPS frame has the wrong length for its gaps")
    gaps: list[GapRange] = []
    for first, last, reason, reserved in _GAP.iter_unpack(payload[_GAPS.size :]):
        if not first <= last <= LSN_MAX or not 1 <= reason <= len(NodeGap) or reserved:
            raise Malformed(f"a GAPS frame gives reason {reason} from {first} to {last}")
        gaps.append(GapRange(first, last, NodeGap(reason)))
    return stream, gaps


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
