"""The block: records appended together, the unit of everything below the client.

A block is a run of consecutive LSNs `[first, last]` of one epoch of one log. It
has an immutable header, a mutable envelope and a body that only clients open.
Hole plugs and bridges are blocks without a body.

Source: docs/design.md §2.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cordwood.lsn import LogId, Lsn

Buffer = bytes | bytearray | memoryview
"""Bytes that are passed on without a copy."""


class BlockKind(enum.IntEnum):
    """The kind of a block."""

    DATA = 0
    HOLE = 1
    """Recovery's mark: nothing was acknowledged at these LSNs."""
    BRIDGE = 2
    """Recovery's mark: the epoch ends here; covers up to the epoch's ESN_MAX."""


class Codec(enum.IntEnum):
    """How a body is compressed as a whole."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


class GapKind(enum.Enum):
    """Why a range has no records."""

    BRIDGE = "bridge"
    """An epoch ended here; concluded only from a bridge record."""
    HOLE = "hole"
    """Never acknowledged; plugged by recovery."""
    TRIM = "trim"
    DATA_LOSS = "data_loss"
    """Acknowledged once, and no intact copy is left."""
    ACCESS = "access"
    """This reader may not read it; nothing follows."""
    NOT_IN_CONFIG = "not_in_config"
    """The log was deleted; nothing follows."""
    FILTERED = "filtered"
    """Records are there, and none that the reader asked for."""


class EnvelopeFlag(enum.IntEnum):
    """Bits of an envelope. They are plain numbers because `&` of an IntFlag is a Python call, ten
    times as slow, and a node checks the bits of each block many times."""

    BY_RECOVERY = 1
    """Written by log recovery, so it beats a sequencer's copy."""
    DRAINED = 2
    """The copy counts for nothing: a copyset without its node is whole."""
    REBUILT = 4
    """Written by a donor that knew the block to be settled, so its epoch may have ended."""
    MOVING = 8
    """On a donor's own copy: the new copies are durable, and other nodes are still to be
    informed."""


class HeaderFlag(enum.IntEnum):
    """Bits of a header; see EnvelopeFlag."""

    CONDITIONAL = 1
    """Appended on condition that the tail was where its client expected it."""


# Not frozen, although nothing changes them: a node makes one of each for every block that it
# receives, and frozen dataclasses take three times as long to make.
@dataclass(slots=True, unsafe_hash=True)
class BlockHeader:
    """What never changes about a block.

    Attributes:
        log: the log's number.
        first: LSN of its first record.
        count: records (or LSNs, for a hole or bridge), at least 1.
        append_time_us: the sequencer's clock, µs since 1970 UTC, never falling along a log.
        kind: data, hole or bridge.
        codec: how the body is compressed.
        producer: producer id, 0 for none; then its epoch and the sequence of the first record.
        group_first, group_last: the atomic group `[first, last]`, a lone block's own range.
        stored_bytes, raw_bytes: body as stored, and uncompressed.
        stored_crc, raw_crc: CRC32C of the same two.
        flags: bits of HeaderFlag.
        key_bits: which keys its records have, see `layout.key_bits`; 0 if unknown.
    """

    log: LogId
    first: int
    count: int
    append_time_us: int
    kind: BlockKind = BlockKind.DATA
    codec: Codec = Codec.NONE
    producer: int = 0
    producer_epoch: int = 0
    producer_sequence: int = 0
    group_first: int = 0
    group_last: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    stored_crc: int = 0
    raw_crc: int = 0
    flags: int = 0
    key_bits: int = 0

    @property
    def last(self) -> int:
        """LSN of the last record."""
        return self.first + self.count - 1

    @property
    def group(self) -> tuple[int, int]:
        """First and last LSN of its atomic group; its own of a lone block."""
        return self.group_first or self.first, self.group_last or self.last

    @property
    def depends(self) -> bool:
        """Whether it may stand only where all before it stands (docs/design.md §3)."""
        return bool(self.producer or self.flags & HeaderFlag.CONDITIONAL)

    def uncompressed(self) -> BlockHeader:
        """The header of the same block with its body uncompressed.

        A reader of main storage makes one for each block: this takes 3 µs, and
        `dataclasses.replace` 15.
        """
        return BlockHeader(
            self.log, self.first, self.count, self.append_time_us, self.kind, Codec.NONE,
            self.producer, self.producer_epoch, self.producer_sequence, self.group_first,
            self.group_last, self.raw_bytes, self.raw_bytes, self.raw_crc, self.raw_crc,
            self.flags, self.key_bits,
        )  # fmt: skip

    @property
    def place(self) -> ProducedBlock:
        """Where its producer's block stands: all of its group, as one."""
        group_first, group_last = self.group
        sequence = self.producer_sequence - (self.first - group_first)
        return ProducedBlock(
            sequence, group_last - group_first + 1, group_first, self.append_time_us
        )


@dataclass(slots=True, unsafe_hash=True)
class Envelope:
    """What recovery and rebuilding may rewrite about a block.

    Attributes:
        copyset: nodes that hold this block, in the order chosen.
        wave: 1 for the first try to store it, more for each retry. A recovery's copies have the
            number of the recovery's attempt here, which rises within one seal.
        seal_epoch: epoch of the recovery that wrote it, 0 if a sequencer did.
        lng: last known good of the epoch when it was sent: all up to it is fully stored.
        flags: bits of EnvelopeFlag.
    """

    copyset: tuple[int, ...]
    wave: int = 1
    seal_epoch: int = 0
    lng: int = 0
    flags: int = 0

    @property
    def precedence(self) -> tuple[bool, int, int]:
        """Order among copies of one range; the highest counts (docs/design.md §2)."""
        return (bool(self.flags & EnvelopeFlag.BY_RECOVERY), self.seal_epoch, self.wave)


@dataclass(frozen=True, slots=True)
class ProducedBlock:
    """Where a producer's block (or group) stands.

    Attributes:
        sequence: of its first record.
        count: records.
        first: LSN of its first record.
        time_us: its append time; 0 if unknown.
    """

    sequence: int
    count: int
    first: int
    time_us: int = 0


@dataclass(frozen=True, slots=True)
class Produced:
    """The remembered state of one producer: its epoch, and its last places, oldest first."""

    producer: int
    epoch: int
    places: tuple[ProducedBlock, ...]

    @property
    def next_sequence(self) -> int:
        """The sequence that its next block has."""
        return self.places[-1].sequence + self.places[-1].count

    @property
    def last_first(self) -> int:
        """LSN of the first record of its last block."""
        return self.places[-1].first

    @property
    def last_us(self) -> int:
        """Append time of its last block."""
        return self.places[-1].time_us


@dataclass(frozen=True, slots=True)
class Block:
    """A header, an envelope and the body as stored (possibly compressed)."""

    header: BlockHeader
    envelope: Envelope
    body: Buffer


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as a reader gets it.

    A struct of msgspec, because a reader makes millions of them: made in C in a tenth of the time
    of a frozen dataclass, and not looked at by the garbage collector, as nothing in it leads back
    to it. `msgspec.structs.replace` makes a changed copy.

    Attributes:
        lsn: its place in the log.
        value: the payload.
        key: optional key.
        timestamp_us: the record's own time, µs since 1970 UTC.
        headers: name and value pairs, in the order given.
        append_time_us: when the sequencer took its block, µs since 1970 UTC.
    """

    lsn: Lsn
    value: bytes
    key: bytes | None = None
    timestamp_us: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    append_time_us: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A range `[first, last]`, both ends included, that has no records, and why."""

    first: Lsn
    last: Lsn
    kind: GapKind
