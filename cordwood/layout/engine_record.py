"""A storage node's WAL record: one byte of kind, then::

    STORE  the payload of a STORE frame with bodies, as it came
    AMEND  the payload of a STORE frame without bodies: the bodies are in STORE records before it,
           or were flushed out of the WAL
    SEAL   u64 log, u32 epoch
    CLEAN  u64 log, u32 epoch, u32 seal, u64 lng, u32 attempt: the epoch is over; above the
           LNG only blocks that this attempt stored under this seal count, and the rest is
           dropped here. Seal 0: nothing of it was held. To the record's end: the log's
           producers as of the epoch's end, see `layout.produced`.
    TRIM   u64 log, u64 lsn, u64 released: all of the log up to the LSN may go; all up to
           `released`, not below it and the end of a block, was released then
    TIER   u64 log, u64 lsn, u64 released: all of the log up to the LSN is in main storage and may
           leave this node; `released` as of TRIM
    STAGE, PIN, UNSTAGE, PLACE: of staged blocks, see `layout.staged`
    LEDGER_ENTRIES, LEDGER_STATE: of ledgers, see `layout.ledger_records`
    NODES  u64 log, u32 epoch, and to the record's end which nodes may hold the records of
           every epoch up to that one, see `layout.nodesets`
    PRODUCED  u64 log, u32 epoch, i64 append time in us: as another node knows it, no record of the
           log is younger than this; and to the record's end what producers wrote into that epoch,
           see `layout.produced`

Little-endian. The WAL's own record header around it has the checksum.

Source: docs/design.md §5; docs/sources/logdevice.md 2.7, 2.13.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from cordwood.errors import Malformed
from cordwood.layout.ledger_records import LedgerRecord, read_changes, read_entries
from cordwood.layout.nodesets import read_nodesets
from cordwood.layout.produced import read_produced
from cordwood.layout.staged import (
    PinRecord,
    PlaceRecord,
    StageRecord,
    UnstageRecord,
    read_pin,
    read_place,
    read_stage,
    read_unstage,
)
from cordwood.layout.waves import StoredBlock, read_amend, read_store

_SEAL = struct.Struct("<BQI")
_CLEAN = struct.Struct("<BQIIQI")
_TRIM = struct.Struct("<BQQQ")
_NODES = struct.Struct("<BQI")
_PRODUCED = struct.Struct("<BQIq")


class RecordKind(enum.IntEnum):
    """First byte of a WAL record."""

    STORE = 1
    SEAL = 2
    CLEAN = 3
    TRIM = 4
    STAGE = 5
    PIN = 6
    UNSTAGE = 7
    NODES = 8
    AMEND = 9
    LEDGER_ENTRIES = 10
    LEDGER_STATE = 11
    TIER = 12
    PLACE = 13
    PRODUCED = 14


STORE_KIND = bytes([RecordKind.STORE])
"""The byte of kind before the payload of a STORE frame."""

AMEND_KIND = bytes([RecordKind.AMEND])
"""The byte of kind before the payload of a STORE frame without bodies."""


class StoreRecord(NamedTuple):
    """Blocks that were stored; `seal_epoch` is 0 from a sequencer."""

    seal_epoch: int
    blocks: list[StoredBlock]


class AmendRecord(NamedTuple):
    """Blocks that were held already and got another envelope; their bodies are empty."""

    seal_epoch: int
    blocks: list[StoredBlock]


class SealRecord(NamedTuple):
    """A log was sealed: the node refuses stores of epochs below `epoch`."""

    log: int
    epoch: int


class CleanRecord(NamedTuple):
    """`epoch` is over. The module's docstring explains `seal`, `lng` and `attempt`."""

    log: int
    epoch: int
    seal: int
    lng: int
    produced: bytes = b""
    attempt: int = 1


class TrimRecord(NamedTuple):
    """All of `log` up to `lsn`, it included, may go; all up to `released` was released.

    From `released` a node that dropped blocks knows that all their copies were stored. So a
    recovery does not take their absence for holes.
    """

    log: int
    lsn: int
    released: int


class TierRecord(NamedTuple):
    """All of `log` up to `lsn`, it included, is in main storage; `released` as of `TrimRecord`.

    Readers get these records from main storage. They do not count as trimmed.
    """

    log: int
    lsn: int
    released: int


StagingRecord = StageRecord | PinRecord | UnstageRecord | PlaceRecord


class NodesetsRecord(NamedTuple):
    """The nodes that may hold each epoch's records, complete up to `epoch`."""

    log: int
    epoch: int
    packed: bytes


class ProducedRecord(NamedTuple):
    """The producers' blocks in `epoch`, and the latest append time. This node need not hold these
    blocks."""

    log: int
    epoch: int
    append_time_us: int
    produced: bytes


EngineRecord = (
    StoreRecord | AmendRecord | SealRecord | CleanRecord | TrimRecord | TierRecord | NodesetsRecord
    | ProducedRecord | StagingRecord | LedgerRecord
)  # fmt: skip


def pack_seal(record: SealRecord) -> bytes:
    """A SEAL record."""
    return _SEAL.pack(RecordKind.SEAL, *record)


def pack_clean(record: CleanRecord) -> bytes:
    """A CLEAN record."""
    return _CLEAN.pack(RecordKind.CLEAN, *record[:4], record.attempt) + record.produced


def pack_trim(record: TrimRecord) -> bytes:
    """A TRIM record."""
    return _TRIM.pack(RecordKind.TRIM, *record)


def pack_tier(record: TierRecord) -> bytes:
    """A TIER record."""
    return _TRIM.pack(RecordKind.TIER, *record)


def pack_nodes(record: NodesetsRecord) -> bytes:
    """A NODES record."""
    return _NODES.pack(RecordKind.NODES, record.log, record.epoch) + record.packed


def pack_produced_record(record: ProducedRecord) -> bytes:
    """A PRODUCED record."""
    return _PRODUCED.pack(RecordKind.PRODUCED, *record[:3]) + record.produced


def read_engine_record(body: memoryview) -> EngineRecord:
    """The contents of a WAL record; blocks point into it, and their bodies' checksums are not
    checked.

    Raises:
        Malformed, ChecksumMismatch: the record is not Cordwood's.
    """
    kind = body[0] if body else 0
    if kind == RecordKind.STORE:
        return StoreRecord(*read_store(body[1:]))
    if kind == RecordKind.AMEND:
        return AmendRecord(*read_amend(body[1:]))
    if kind == RecordKind.SEAL and len(body) == _SEAL.size:
        return SealRecord(*_SEAL.unpack(body)[1:])
    if kind == RecordKind.CLEAN and len(body) >= _CLEAN.size:
        produced = bytes(body[_CLEAN.size :])
        read_produced(produced)
        _, log, epoch, seal, lng, attempt = _CLEAN.unpack_from(body)
        return CleanRecord(log, epoch, seal, lng, produced, attempt)
    if kind == RecordKind.TRIM and len(body) == _TRIM.size:
        return TrimRecord(*_TRIM.unpack(body)[1:])
    if kind == RecordKind.TIER and len(body) == _TRIM.size:
        return TierRecord(*_TRIM.unpack(body)[1:])
    if kind == RecordKind.STAGE:
        return read_stage(body[1:])
    if kind == RecordKind.PIN:
        return read_pin(body[1:])
    if kind == RecordKind.UNSTAGE:
        return read_unstage(body[1:])
    if kind == RecordKind.PLACE:
        return read_place(body[1:])
    if kind == RecordKind.LEDGER_ENTRIES:
        return read_entries(body[1:])
    if kind == RecordKind.LEDGER_STATE:
        return read_changes(body[1:])
    if kind == RecordKind.NODES and len(body) > _NODES.size:
        packed = bytes(body[_NODES.size :])
        read_nodesets(packed)
        _, log, epoch = _NODES.unpack_from(body)
        return NodesetsRecord(log, epoch, packed)
    if kind == RecordKind.PRODUCED and len(body) >= _PRODUCED.size:
        produced = bytes(body[_PRODUCED.size :])
        read_produced(produced)
        _, log, epoch, append_time_us = _PRODUCED.unpack_from(body)
        return ProducedRecord(log, epoch, append_time_us, produced)
    raise Malformed(
        f"the WAL holds a record of kind {kind} with {len(body)} bytes, which this "
        "version does not know: was it written by a newer one?"
    )
