"""Payloads of the write path: APPEND, APPENDED, STORE, STORED, RELEASE.

All little-endian.

APPEND, client to sequencer: `u32 entries, u32 reserved 0`, then per entry 64
bytes and the body as stored::

    offset width field
    0      8     log
    8      8     token: the client's number for this block on this connection
    16     4     records
    20     1     codec
    21     1     flags: 1 activate here, the log's own node did not answer; 2 afresh,
                 the client knows what became of all it sent before to this log here;
                 4 conditional, the expected tail follows these 64 bytes; 16 fenced, the
                 client's fencing token (u64) follows then; 32 late, it may have been sent
                 before, so long ago that the log has forgotten its producer; 8 an atomic
                 group: after all of that come its blocks, as in `layout.append_group`;
                 records and body bytes here are the group's, codec, CRCs and body
                 bytes uncompressed are 0
    22     2     reserved, 0
    24     8     producer id, 0 for none
    32     4     producer epoch
    36     4     key bits: which keys there are, see `layout.key_bits`; 0 if not told
    40     8     producer sequence of the first record
    48     4     body bytes as stored
    52     4     body bytes uncompressed
    56     4     CRC32C of the stored body
    60     4     CRC32C of the uncompressed body

APPENDED, sequencer to client: pairs of `u64 token, u64 first lsn`.

STORE, to a storage node: `u32 blocks, u32 flags, u64 seal epoch` (0 from a
sequencer, the recovering epoch from recovery), then per block its header, its
envelope and its body; a sequencer's may have none, which asks how long a store takes. The
frame's request number counts up by one on each
connection, and the node keeps the payload as one WAL record. Flags: 1 *amends*: the blocks, at
least one, come without bodies, for the node holds each with another envelope, which the new
envelope replaces. If the node does not hold one of the blocks, it refuses the whole frame.

STORED, back: `u64 wave` (all STORE frames up to this number are settled: blocks
that were not refused are on stable storage), `u32 refusals, u32 room` (units of 4 KiB that
the node's WAL takes in first waves, as of now), then per refusal 24 bytes: `u64 wave,
u64 log, u8 reason, 3 reserved, u32 epoch or node`. A STORED that settles nothing new may be sent
to tell of room that came back.

RELEASE, sequencer to storage node: pairs of `u64 log, u64 lsn`.

Source: docs/design.md §4; docs/sources/hotpath.md, "Recommended design".
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cordwood.block import BlockHeader, Buffer, Codec, Envelope
from cordwood.errors import Malformed
from cordwood.layout.append_group import GroupPart, pack_group, read_group
from cordwood.layout.block_header import HEADER_BYTES, unpack_envelope, unpack_header
from cordwood.layout.key_bits import KNOWN as KEYS_KNOWN
from cordwood.layout.limits import BLOCK_RECORDS_MAX, BODY_BYTES_MAX
from cordwood.lsn import EPOCH_MAX, LSN_MAX, LogId

_APPEND_HEAD = struct.Struct("<II")
_ENTRY = struct.Struct("<QQIBBHQIIQIIII")
ENTRY_BYTES = _ENTRY.size
_STORE_HEAD = struct.Struct("<IIQ")
STORE_HEAD_BYTES = _STORE_HEAD.size
_STORED_HEAD = struct.Struct("<QII")
_REFUSAL = struct.Struct("<QQB3xI")
_PAIR = struct.Struct("<QQ")

ENTRIES_MAX = 65_536
"""The most entries, blocks or refusals in one frame: far more than arrive in one tick."""

SPACE_UNIT_BYTES = 4096
"""A STORED frame tells free space in units of this size: the blocks that a WAL writes."""

_CODECS = frozenset(int(codec) for codec in Codec)


class AppendFlag(enum.IntEnum):
    """Bits of an append entry; see `block.EnvelopeFlag` for why they are plain numbers."""

    ACTIVATE_HERE = 1
    AFRESH = 2
    CONDITIONAL = 4
    GROUP = 8
    FENCED = 16
    LATE = 32


_FLAGS = int(sum(AppendFlag))

_AMENDS = 1
"""The flag of a STORE frame."""

_STORE_FLAGS_AT = 4
_TAIL = struct.Struct("<Q")


class Refusal(enum.IntEnum):
    """Why a storage node did not take a run of blocks."""

    SEALED = 1
    """The epoch is sealed, by the epoch given."""
    FULL = 2
    """The WAL is full."""
    FAILED = 3
    """The WAL failed for good."""
    CORRUPT = 4
    """The blocks arrived damaged."""
    NO_SPACE = 5
    """The WAL is full, and the disk has no space to flush it to."""
    NOT_HELD = 6
    """An amend of a block that the node does not hold intact. The node needs the body too."""
    REBUILDING = 7
    """The copyset names a node whose data is being rebuilt, the node given."""
    LET_GO = 8
    """A donor's copy of a block of which the node let go, because main storage held it."""


@dataclass(slots=True)
class AppendEntry:
    """One block, or one atomic group, as a client sends it; fields as laid out above.

    Attributes:
        parts: the blocks of a group; empty for a lone block.
        fencing: the client's fencing token, 0 for none.
    """

    log: LogId
    token: int
    count: int
    codec: int
    flags: int
    reserved: int
    producer: int
    producer_epoch: int
    key_bits: int
    producer_sequence: int
    stored_bytes: int
    raw_bytes: int
    stored_crc: int
    raw_crc: int
    body: Buffer = b""
    expected_tail: int = 0
    parts: tuple[GroupPart, ...] = ()
    fencing: int = 0

    @property
    def bodies(self) -> list[Buffer]:
        """The bodies, which follow `append_entry` in the payload."""
        return [part.body for part in self.parts] if self.parts else [self.body]

    @property
    def needs_recovery(self) -> bool:
        """Whether the append has to wait until every lower epoch is recovered (docs/design.md
        §3)."""
        return bool(self.producer or self.flags & AppendFlag.CONDITIONAL)


def append_head(entries: int) -> bytes:
    """The bytes before the entries of an APPEND payload."""
    return _APPEND_HEAD.pack(entries, 0)


def append_entry(entry: AppendEntry) -> bytes:
    """The bytes before an entry's bodies: 64 bytes, then the expected tail, the fencing token and
    the group, if the entry has them."""
    fixed = _ENTRY.pack(
        entry.log,
        entry.token,
        entry.count,
        entry.codec,
        entry.flags,
        0,
        entry.producer,
        entry.producer_epoch,
        entry.key_bits,
        entry.producer_sequence,
        entry.stored_bytes,
        entry.raw_bytes,
        entry.stored_crc,
        entry.raw_crc,
    )
    if entry.flags & AppendFlag.CONDITIONAL:
        fixed += _TAIL.pack(entry.expected_tail)
    if entry.flags & AppendFlag.FENCED:
        fixed += _TAIL.pack(entry.fencing)
    return fixed + pack_group(entry.parts) if entry.flags & AppendFlag.GROUP else fixed


def read_append(payload: memoryview) -> list[AppendEntry]:
    """Cut an APPEND payload; bodies point into it.

    Raises:
        Malformed: short, too many entries, or a field out of its range.
    """
    end = len(payload)
    if end < _APPEND_HEAD.size:
        raise Malformed("an APPEND frame is too short for its count")
    count, reserved = _APPEND_HEAD.unpack_from(payload)
    at = _APPEND_HEAD.size
    if reserved or not 1 <= count <= ENTRIES_MAX or count * ENTRY_BYTES > end - at:
        raise Malformed(f"an APPEND frame of {end} bytes claims {count} entries")
    entries: list[AppendEntry] = []
    for _ in range(count):
        if end - at < ENTRY_BYTES:
            raise Malformed("an APPEND frame ends inside an entry")
        entry = AppendEntry(*_ENTRY.unpack_from(payload, at))
        at += ENTRY_BYTES
        stored = entry.stored_bytes
        if entry.reserved or entry.flags > _FLAGS or entry.codec not in _CODECS:
            raise Malformed("an APPEND entry sets bits that this version keeps at 0")
        if not 1 <= entry.log < 1 << 62:
            raise Malformed("an APPEND entry has a field out of its range")
        if entry.flags & AppendFlag.CONDITIONAL:
            entry.expected_tail, at = _read_number(payload, at)
        if entry.flags & AppendFlag.FENCED:
            entry.fencing, at = _read_number(payload, at)
        if entry.flags & AppendFlag.GROUP:
            at = _read_parts(entry, payload, at)
            entries.append(entry)
            continue
        if not 1 <= entry.count <= BLOCK_RECORDS_MAX:
            raise Malformed("an APPEND entry has a field out of its range")
        # Trap: a block with an illegal header must not get LSNs. Every storage node would refuse
        # the sequencer's frame, and the sequencer would send it for ever.
        if entry.key_bits and not entry.key_bits & KEYS_KNOWN:
            raise Malformed("an APPEND entry has key bits that do not say that they are known")
        if stored > BODY_BYTES_MAX or entry.raw_bytes > BODY_BYTES_MAX:
            raise Malformed(f"an APPEND entry claims a body of over {BODY_BYTES_MAX} bytes")
        if stored > end - at:
            raise Malformed("an APPEND entry claims more body than its frame has")
        entry.body = payload[at : at + stored]
        entries.append(entry)
        at += stored
    if at != end:
        raise Malformed("an APPEND frame is longer than its entries")
    return entries


def _read_number(payload: memoryview, at: int) -> tuple[int, int]:
    """A tail or a fencing token, and the offset after it."""
    if len(payload) - at < _TAIL.size:
        raise Malformed("an APPEND frame ends inside an entry")
    (number,) = _TAIL.unpack_from(payload, at)
    if number > LSN_MAX:
        raise Malformed("an APPEND entry has a number that is no LSN and no fencing token")
    return number, at + _TAIL.size


def _read_parts(entry: AppendEntry, payload: memoryview, at: int) -> int:
    """Read an entry's group, and return the offset after it."""
    entry.parts, at = read_group(payload, at)
    if entry.codec or entry.raw_bytes or entry.stored_crc or entry.raw_crc:
        raise Malformed("a group sets what only its blocks have")
    if entry.count != sum(part.records for part in entry.parts) or entry.stored_bytes != sum(
        part.stored_bytes for part in entry.parts
    ):
        raise Malformed("a group is not the sum of its blocks")
    return at


def pack_pairs(numbers: Sequence[int]) -> bytes:
    """APPENDED and RELEASE: `numbers` is token, lsn, token, lsn, …."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def read_pairs(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Pairs of an APPENDED or RELEASE payload.

    Raises:
        Malformed: not a whole number of pairs, or a second half that is no LSN.
    """
    if len(payload) % _PAIR.size:
        raise Malformed("a list of pairs has a broken end")
    pairs = list(_PAIR.iter_unpack(payload))
    if any(lsn > LSN_MAX for _, lsn in pairs):
        raise Malformed("a list of pairs holds a number that is no LSN")
    return iter(pairs)


def store_head(blocks: int, seal_epoch: int = 0, *, amends: bool = False) -> bytes:
    """The bytes before the blocks of a STORE payload; with `amends` the blocks have no bodies."""
    return _STORE_HEAD.pack(blocks, _AMENDS if amends else 0, seal_epoch)


def amend_of(parts: Sequence[Buffer]) -> list[Buffer]:
    """A STORE payload without its bodies. `parts` is a STORE payload with them: its head, and then
    for each block header and envelope in one part, and the body in the next."""
    blocks, _, seal_epoch = _STORE_HEAD.unpack(parts[0])
    assert len(parts) == 1 + 2 * blocks, "two parts a block"
    return [store_head(blocks, seal_epoch, amends=True), *parts[1::2]]


def store_blocks(head: Buffer) -> int:
    """The number of blocks that follow a `store_head` without a seal epoch."""
    blocks, flags, seal_epoch = _STORE_HEAD.unpack(head)
    assert not seal_epoch, "what recovery stores is not joined with what a sequencer does"
    assert not flags, "amends are a frame of their own"
    return int(blocks)


@dataclass(slots=True)
class StoredBlock:
    """A block as a node keeps it: fields to act on, bytes to pass on.

    Attributes:
        header, envelope: the same as in the bytes.
        wire: header and envelope bytes back to back, as they travel.
        body: the body as stored.
    """

    header: BlockHeader
    envelope: Envelope
    wire: Buffer
    body: Buffer

    @property
    def wire_bytes(self) -> int:
        """Bytes this block takes in a frame."""
        return len(self.wire) + len(self.body)


class AmendedBlock(StoredBlock):
    """A copy of a block of which only header and envelope were stored.

    Its body is that of an earlier copy, which the same node holds durably.
    """

    __slots__ = ()


def read_blocks(
    payload: memoryview, at: int, count: int, *, heads_only: bool = False
) -> list[StoredBlock]:
    """Cut `count` blocks that fill `payload` from `at` to its end.

    Args:
        heads_only: headers and envelopes follow one another, and bodies are left empty.
    Raises:
        Malformed, ChecksumMismatch: as the headers and envelopes say, or the
            payload does not end where the blocks do. Bodies are not summed here.
    """
    end = len(payload)
    if count > ENTRIES_MAX or count * HEADER_BYTES > end - at:
        raise Malformed(f"a frame of {end} bytes claims {count} blocks")
    blocks: list[StoredBlock] = []
    for _ in range(count):
        header = unpack_header(payload, at)
        envelope, body_at = unpack_envelope(payload, at + HEADER_BYTES)
        stop = body_at if heads_only else body_at + header.stored_bytes
        if stop > end:
            raise Malformed("a block claims more body than its frame has")
        blocks.append(StoredBlock(header, envelope, payload[at:body_at], payload[body_at:stop]))
        at = stop
    if at != end:
        raise Malformed("a frame is longer than its blocks")
    return blocks


def read_store(payload: memoryview) -> tuple[int, list[StoredBlock]]:
    """The seal epoch and the blocks of a STORE payload that has bodies.

    Raises:
        Malformed, ChecksumMismatch: see `read_blocks`.
    """
    if len(payload) < STORE_HEAD_BYTES:
        raise Malformed("a STORE frame is too short for its count")
    count, flags, seal_epoch = _STORE_HEAD.unpack_from(payload)
    if flags or (seal_epoch and not count) or seal_epoch > EPOCH_MAX:
        raise Malformed("a STORE frame has a field out of its range")
    return seal_epoch, read_blocks(payload, STORE_HEAD_BYTES, count)


def is_amend(payload: memoryview) -> bool:
    """Whether a STORE payload is for `read_amend` and not for `read_store`."""
    return len(payload) > _STORE_FLAGS_AT and payload[_STORE_FLAGS_AT] == _AMENDS


def read_amend(payload: memoryview) -> tuple[int, list[StoredBlock]]:
    """The seal epoch and the blocks of a STORE payload that amends; their bodies are empty.

    Raises:
        Malformed, ChecksumMismatch: see `read_blocks`.
    """
    if len(payload) < STORE_HEAD_BYTES:
        raise Malformed("a STORE frame is too short for its count")
    count, flags, seal_epoch = _STORE_HEAD.unpack_from(payload)
    if flags != _AMENDS or not count or seal_epoch > EPOCH_MAX:
        raise Malformed("a STORE frame that amends has a field out of its range")
    return seal_epoch, read_blocks(payload, STORE_HEAD_BYTES, count, heads_only=True)


@dataclass(frozen=True, slots=True)
class StoreRefusal:
    """A run of blocks of `log` in STORE frame `wave` that was not taken.

    Attributes:
        epoch: the sealing epoch, for SEALED; the node, for REBUILDING; else 0.
    """

    wave: int
    log: int
    reason: Refusal
    epoch: int = 0


def pack_stored(wave: int, refusals: Sequence[StoreRefusal], free_bytes: int = 0) -> bytes:
    """A STORED payload."""
    room = min(free_bytes // SPACE_UNIT_BYTES, 0xFFFF_FFFF)
    head = _STORED_HEAD.pack(wave, len(refusals), room)
    if not refusals:
        return head
    return head + b"".join(
        _REFUSAL.pack(each.wave, each.log, each.reason, each.epoch) for each in refusals
    )


def read_stored(payload: memoryview) -> tuple[int, list[StoreRefusal]]:
    """The settled wave, and the refusals.

    Raises:
        Malformed: short, long, or a reason that is not known.
    """
    if len(payload) < _STORED_HEAD.size:
        raise Malformed("a STORED frame is too short")
    wave, count, _ = _STORED_HEAD.unpack_from(payload)
    if len(payload) != _STORED_HEAD.size + count * _REFUSAL.size:
        raise Malformed("a STORED frame has the wrong length for its refusals")
    refusals: list[StoreRefusal] = []
    for refused, log, reason, epoch in _REFUSAL.iter_unpack(payload[_STORED_HEAD.size :]):
        if not 1 <= reason <= len(Refusal):
            raise Malformed(f"a STORED frame gives reason {reason}")
        refusals.append(StoreRefusal(refused, log, Refusal(reason), epoch))
    return wave, refusals


def stored_space(payload: memoryview) -> int:
    """The free space in bytes that a STORED payload tells. `read_stored` must have checked the
    payload."""
    room: int = _STORED_HEAD.unpack_from(payload)[2]
    return room * SPACE_UNIT_BYTES
