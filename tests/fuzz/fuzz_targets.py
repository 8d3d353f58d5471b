"""What is fuzzed: every decoder of bytes or text that come from outside.

A target takes bytes and lets through what is Cordwood's own (`CordwoodError`); anything
else that is raised is a defect, since it would take down more than a connection, a record
or a command. Where a checksum stands in front of a decoder, the target writes the right one
first: a fuzzer does not guess CRCs, and whoever means harm does not have to. What was
decoded is looked at as its users do, and where it can be written again, it must read the same.

Source: docs/sources/reliability.md §1, §7; docs/design.md §11 ("a decoder bounds what it will
inflate").
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from crc32c import crc32c

from cordwood.block import Codec
from cordwood.errors import CordwoodError
from cordwood.layout import engine_record, logs_db, message, reading, wal_batch, wal_block, waves
from cordwood.layout.block_header import HEADER_BYTES, unpack_envelope, unpack_header
from cordwood.layout.body import open_body, parse_body
from cordwood.layout.compression import inflate
from cordwood.layout.frame import FrameParser, frame
from cordwood.layout.gossip import pack_gossip, read_gossip
from cordwood.layout.hello import pack_hello, unpack_hello
from cordwood.layout.limits import BODY_BYTES_MAX
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.tokens import TOKENS_MAX, read_tokens
from cordwood.log_attributes import parse_attributes
from cordwood.lsn import parse_lsn
from cordwood.metadata import consumers, epoch_store, log_entries, log_tree, membership
from cordwood.metadata.stored_value import read_stored
from cordwood.metadata.where import parse_zookeeper
from cordwood.sim.history import from_jsonl
from cordwood.spark.ledger_options import are_of_ledgers, parse_ledger_options
from cordwood.spark.offsets import parse_offset
from cordwood.spark.options import parse_options
from cordwood.spark.pipeline.spec import parse_pipeline
from cordwood.spark.places import parse_places, parse_times

Target = Callable[[bytes], object]

DECODERS: dict[str, Target] = {}
"""By name, as written below; `corpus/NAME.hex` holds what each begins with."""

TARGETS: dict[str, Target] = {}
"""The same; what is Cordwood's own they may raise."""

INFLATED_MAX = 1 << 16
"""Bytes that a fuzzed body may claim to have: what lies above is the same code, slower."""

_ENVELOPE_BYTES = 24
_COPIES_AT = 3
"""Of an envelope, beside 4 bytes a copy; see `layout.block_header`."""


def target(decode: Target) -> Target:
    """Take a function as a target."""

    def check(data: bytes) -> None:
        with suppress(CordwoodError):
            decode(data)

    DECODERS[decode.__name__] = decode
    TARGETS[decode.__name__] = check
    return decode


def _resealed(data: bytes, covered: int, seed: int = 0) -> bytes:
    """`data` with the CRC32C of its first `covered` bytes put right behind them."""
    if len(data) < covered + 4:
        return data
    return data[:covered] + struct.pack("<I", crc32c(data[:covered], seed)) + data[covered + 4 :]


# Frames.


@target
def frames(data: bytes) -> None:
    """A stream that begins with a greeting; the first byte says where it is cut in two."""
    parser = FrameParser()
    cut = data[0] if data else 0
    parser.feed(data[1 : 1 + cut])
    parser.greeted = True
    for part in (b"", data[1 + cut :]):
        parser.feed(part)


@target
def framed(data: bytes) -> None:
    """Payloads behind headers with the right checksum: a kind, then as much as comes."""
    parser = FrameParser()
    parser.greeted = True
    kind = data[0] if data else 0
    for each in parser.feed(b"".join(map(bytes, frame(kind, 1, data[1:])))):
        assert (each.kind, bytes(each.payload)) == (kind, data[1:])


@target
def hello(data: bytes) -> None:
    """A greeting."""
    assert pack_hello(unpack_hello(data)) == data


@target
def append(data: bytes) -> None:
    """An APPEND payload."""
    entries = waves.read_append(memoryview(data))
    again = [waves.append_head(len(entries))]
    for entry in entries:
        again += (waves.append_entry(entry), *map(bytes, entry.bodies))
    assert b"".join(again) == data


def _sealed_blocks(data: bytes, at: int) -> bytes:
    """Blocks from `at` on with right CRCs over their headers and envelopes, as far as they go."""
    whole = bytearray(data)
    while at + HEADER_BYTES <= len(whole):
        whole[at : at + HEADER_BYTES] = _resealed(
            bytes(whole[at : at + HEADER_BYTES]), HEADER_BYTES - 4
        )
        try:
            header = unpack_header(whole, at)
            start = at + HEADER_BYTES
            size = _ENVELOPE_BYTES + 4 * whole[start + _COPIES_AT]
            whole[start : start + size] = _resealed(bytes(whole[start : start + size]), size - 4)
            _, at = unpack_envelope(whole, start)
        except (CordwoodError, IndexError):
            break
        at += header.stored_bytes
    return bytes(whole)


def _open_bodies(blocks: Sequence[waves.StoredBlock]) -> None:
    """Read each block's records, as a client does; their CRCs stand for nothing here."""
    for block in blocks:
        if block.header.raw_bytes <= INFLATED_MAX:
            with suppress(CordwoodError):
                body = open_body(block.header, block.body, verify=False)
                assert len(body.records(block.header.first, 0)) == block.header.count


@target
def store(data: bytes) -> None:
    """A STORE payload, its headers and envelopes with the right CRCs."""
    if waves.is_amend(memoryview(data)):
        _amend(data)
        return
    sealed = _sealed_blocks(data, waves.STORE_HEAD_BYTES)
    seal_epoch, found = waves.read_store(memoryview(sealed))
    again = [waves.store_head(len(found), seal_epoch)]
    for block in found:
        again += (bytes(block.wire), bytes(block.body))
    assert b"".join(again) == sealed
    _open_bodies(found)


def _amend(data: bytes) -> None:
    """One without bodies; its CRCs as they come."""
    seal_epoch, heads = waves.read_amend(memoryview(data))
    wires = [bytes(head.wire) for head in heads]
    assert waves.store_head(len(heads), seal_epoch, amends=True) + b"".join(wires) == data
    parts = [waves.store_head(len(heads), seal_epoch)]
    for wire in wires:
        parts += (wire, b"body")
    assert b"".join(waves.amend_of(parts)) == data


@target
def blocks(data: bytes) -> None:
    """A BLOCKS payload, likewise."""
    sealed = _sealed_blocks(data, reading.BLOCKS_HEAD_BYTES)
    _open_bodies(reading.read_blocks_frame(memoryview(sealed))[1])


@target
def raw_frames(data: bytes) -> None:
    """The same two, a HEADS and a SHARED payload, their CRCs as they come."""
    for read in (
        waves.read_store,
        waves.read_amend,
        reading.read_blocks_frame,
        reading.read_heads_frame,
        reading.read_shared_frame,
    ):
        with suppress(CordwoodError):
            read(memoryview(data))


@target
def stored(data: bytes) -> None:
    """A STORED payload."""
    wave, refusals = waves.read_stored(memoryview(data))
    assert waves.read_stored(memoryview(waves.pack_stored(wave, refusals))) == (wave, refusals)
    assert waves.stored_space(memoryview(data)) >= 0


@target
def pairs(data: bytes) -> None:
    """An APPENDED or RELEASE payload."""
    numbers = [number for pair in waves.read_pairs(memoryview(data)) for number in pair]
    assert waves.pack_pairs(numbers) == data


@target
def read(data: bytes) -> None:
    """A READ payload."""
    assert reading.pack_read(reading.read_read(memoryview(data))) == data


@target
def stream_control(data: bytes) -> None:
    """READING, WINDOW, STOP and GAPS payloads: a byte says which."""
    which, rest = data[:1], memoryview(data[1:])
    if which == b"R":
        assert reading.pack_reading(*reading.read_reading(rest)) == rest
    elif which == b"G":
        assert reading.pack_gaps(*reading.read_gaps(rest)) == rest
    elif which == b"W":
        assert reading.pack_window(*reading.read_window(rest)) == rest
    else:
        assert reading.pack_stop(reading.read_stop(rest)) == rest


@target
def gossip(data: bytes) -> None:
    """A GOSSIP payload."""
    assert pack_gossip(read_gossip(memoryview(data))) == data


@target
def tokens(data: bytes) -> None:
    """A TOKENS payload."""
    assert len(read_tokens(memoryview(data))) <= TOKENS_MAX


@target
def control(data: bytes) -> None:
    """CALL, REPLY, FAULT and APPEND_FAULTS payloads: every decoder is tried."""
    for decode in (message.read_call, message.read_reply):
        with suppress(CordwoodError):
            found = decode(data)
            assert decode(message.pack(found)) == found
    with suppress(CordwoodError):
        message.to_error(message.read_fault(data))
    for each in message.read_append_faults(data):
        message.to_error(each.fault)


# Bodies.


@target
def body(data: bytes) -> None:
    """An uncompressed body, and its records."""
    found = parse_body(data)
    for record in found.records(1 << 32, 0):
        str(record.value), str(record.headers), str(record.key)


@target
def compressed(data: bytes) -> None:
    """A compressed body: a codec, the size that its header claims, the stream."""
    if len(data) < 3:
        return
    codec = (Codec.ZSTD, Codec.LZ4)[data[0] & 1]
    claimed = int.from_bytes(data[1:3], "little")
    assert len(inflate(data[3:], codec, claimed)) == claimed <= BODY_BYTES_MAX


# Disk.


@target
def wal_header(data: bytes) -> None:
    """A slot of the WAL's header, with the right CRC."""
    sealed = _resealed(data, wal_block.WAL_HEADER_BYTES - 4)
    header = wal_block.unpack_wal_header(sealed)
    assert wal_block.unpack_wal_header(wal_block.pack_wal_header(header)) == header


@target
def wal_records(data: bytes) -> None:
    """Bytes that recovery looks for records in, at every place, CRCs put right in the first."""
    salt = 7
    size = wal_block.WAL_RECORD_HEADER_BYTES
    sealed = _resealed(data, size - 4, salt)
    for at in range(len(sealed)):
        found = wal_block.unpack_wal_record(sealed, at, salt)
        if found is not None:
            assert wal_block.pack_wal_record(found, salt) == sealed[at : at + size]


@target
def wal_holes(data: bytes) -> None:
    """The body of a WAL's RESUME record."""
    assert wal_block.pack_holes(wal_block.unpack_holes(data)) == data


@target
def wal_batches(data: bytes) -> None:
    """The body of a WAL's BATCH record."""
    bodies = [body for _, body in wal_batch.read_batch(data, 80)]
    lengths = np.array([len(body) for body in bodies], np.int64)
    assert b"".join(wal_batch.pack_batch(bodies, lengths)) == data


@target
def engine_records(data: bytes) -> None:
    """The body of a WAL record of a storage engine."""
    store_at = 1 + waves.STORE_HEAD_BYTES
    sealed = _sealed_blocks(data, store_at) if data[:1] == b"\x01" else data
    engine_record.read_engine_record(memoryview(sealed))


@target
def producers(data: bytes) -> None:
    """What is kept of producers."""
    found = read_produced(data)
    assert read_produced(pack_produced(found)) == found


_ROWS: tuple[Callable[[bytes], Any], ...] = (
    logs_db.read_index_key, logs_db.read_body_key, logs_db.read_origin, logs_db.read_offset,
    logs_db.read_partition_key, logs_db.read_partition, logs_db.read_directory_key,
    logs_db.read_member_key, logs_db.read_entry, logs_db.read_state_key,
)  # fmt: skip


@target
def logs_db_rows(data: bytes) -> None:
    """Keys and values of LogsDB: a byte says of which kind."""
    if data:
        _ROWS[data[0] % len(_ROWS)](data[1:])


@target
def logs_db_states(data: bytes) -> None:
    """The state that LogsDB keeps of a log."""
    state = logs_db.read_state(data)
    assert logs_db.read_state(logs_db.pack_state(state)) == state


@target
def logs_db_heads(data: bytes) -> None:
    """A block's entry in LogsDB's index, with the right CRCs."""
    logs_db.read_head(_sealed_blocks(data, 0))


# Metadata.


@target
def metadata(data: bytes) -> None:
    """Values of the metadata store: every decoder is tried."""
    decoders: tuple[Callable[[], object], ...] = (
        lambda: epoch_store._decode(1, data),
        lambda: membership._decode(1, data),
        lambda: membership._decode_cluster(data),
        lambda: membership._node_of(data.decode("utf-8", "replace")),
        lambda: consumers.read_group("name", data),
        *(
            lambda kind=kind: log_entries.decode(data, kind, "a log")
            for kind in (log_entries.LogEntry, log_entries.NameEntry, log_tree.Directories)
        ),
        lambda: read_stored("/key", data),
    )
    for decode in decoders:
        with suppress(CordwoodError):
            decode()


# Text that people write.


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@target
def lsn(data: bytes) -> None:
    """An LSN as people write it."""
    found = parse_lsn(_text(data))
    assert parse_lsn(str(found)) == found


@target
def attributes(data: bytes) -> None:
    """Attributes of logs as people write them, a line each."""
    parse_attributes(_text(data).splitlines())


@target
def zookeeper(data: bytes) -> None:
    """Where the metadata store is."""
    parse_zookeeper(_text(data))


@target
def pipeline(data: bytes) -> None:
    """A pipeline.yaml."""
    parse_pipeline(_text(data), "pipeline.yaml")


@target
def history(data: bytes) -> None:
    """A history for `cordwood verify`."""
    from_jsonl(data)


@target
def spark_options(data: bytes) -> None:
    """Options of the Spark source, `name=value` a line."""
    given = dict(line.partition("=")[::2] for line in _text(data).splitlines())
    (parse_ledger_options if are_of_ledgers(given) else parse_options)(given)


@target
def spark_places(data: bytes) -> None:
    """Offsets and times of the Spark source."""
    for parse, option in (
        (parse_places, "startingOffsets"),
        (parse_times, "startingTimestamp"),
        (parse_times, "startingOffsetsByTimestamp"),
    ):
        with suppress(CordwoodError):
            parse(option, _text(data), "earliest")


@target
def spark_offsets(data: bytes) -> None:
    """An offset in a checkpoint, which Spark has read as JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        offset = parse_offset(value)
        assert parse_offset(offset.to_json()) == offset
