"""What is fuzzed beside `fuzz_targets`: rows, files and options that came later.

Source: docs/sources/reliability.md §1, §7.
"""

from __future__ import annotations

import atexit
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import fuzz_objects  # noqa: F401 (it adds to TARGETS)
import msgspec
import numpy as np
from crc32c import crc32c
from fuzz_targets import target

from cordwood.block import BlockHeader, BlockKind, Codec
from cordwood.client.admin.position_calls import to_lsn
from cordwood.client.publish.staging import StagedRef
from cordwood.errors import CordwoodError
from cordwood.layout import ledger_records, logs_db, staged, wal_block, wal_run
from cordwood.layout.append_group import pack_group, read_group
from cordwood.layout.arrow import COLUMNS, COLUMNS_ON_REQUEST, body_to_batch
from cordwood.layout.body import parse_body
from cordwood.layout.entry_run import (
    bodies_of,
    columns_of,
    heads_of,
    is_run,
    pack_run,
)
from cordwood.layout.frame import FrameParser, frame
from cordwood.layout.json_text import read_json
from cordwood.layout.ledger_entry import EntrySeal
from cordwood.layout.ledger_metadata import (
    ledger_key,
    pack_ledger,
    read_ledger,
    read_ledger_key,
)
from cordwood.layout.nodesets import pack_nodesets, read_nodesets
from cordwood.layout.rebuild_events import (
    Base,
    pack_base,
    pack_event,
    pack_set,
    read_base,
    read_event,
    read_record,
    read_set,
)
from cordwood.layout.scrub_rows import damage_key, read_damage_key, read_progress, read_why
from cordwood.ledger import DigestKind
from cordwood.local_cluster import ClusterShape
from cordwood.metadata import (
    event_log,
    joins,
    lease,
    ledger_marks,
    log_numbers,
    main_storage,
    maintenance,
    publications,
)
from cordwood.protocol.event_log import apply
from cordwood.rebuilding import RebuildingSet, Unrecoverable
from cordwood.spark.checkpoint import Checkpoint
from cordwood.spark.java import parse_java_version
from cordwood.spark.rest_source import Rest
from cordwood.spark.sink_options import parse_sink_options
from cordwood.storage.data_directory import Incarnations
from cordwood.storage.identity import Identity, check_identity
from cordwood.write_budget import parse_budget

_SALT = 7
"""Of the WAL that records are looked for in."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@target
def pieces(data: bytes) -> None:
    """A frame that comes in steps, put in place as it comes; bytes say its kind and the step."""
    if len(data) < 2:
        return
    parser = FrameParser()
    parser.greeted = True
    payload, step = data[2:], 1 + data[1]
    wire = b"".join(map(bytes, frame(data[0], 1, payload)))
    got, at = [], 0
    while at < len(wire):
        room = parser.receive_into()
        if room is None:
            got += parser.feed(wire[at : at + step])
            at += step
            continue
        count = min(step, len(room), len(wire) - at)
        room[:count] = wire[at : at + count]
        got += parser.placed(count)
        at += count
    for each in got:
        assert bytes(each.payload) == payload


@target
def nodesets(data: bytes) -> None:
    """A log's nodesets, as a node keeps them."""
    found = read_nodesets(data)
    assert read_nodesets(pack_nodesets(found)) == found
    for each in found:
        with suppress(CordwoodError):
            each.replication.copies  # noqa: B018


@target
def rebuild_events(data: bytes) -> None:
    """Events of the event log and sets under a right sum; the head's second byte says which."""
    resealed = data[:4] + struct.pack("<I", crc32c(data[8:], crc32c(data[:4]))) + data[8:]
    if data[1:2] == b"\x02":
        found = read_set(resealed)
        assert read_set(pack_set(found)) == found == read_record(resealed)
        assert read_base(pack_base(Base(found, found.through))) == Base(found, found.through)
        for lsn in (found.through, found.through + 1):
            after = apply(found, lsn, Unrecoverable(1)).after
            assert read_set(pack_set(after)) == after
    else:
        event = read_event(resealed)
        assert read_event(pack_event(event)) == event == read_record(resealed)
        after = apply(RebuildingSet(), 1, event).after
        assert read_set(pack_set(after)) == after


@target
def ledger_metadata(data: bytes) -> None:
    """A ledger's metadata under a right sum, or its key: a byte says which."""
    which, rest = data[:1], data[1:]
    if which == b"k":
        text = rest.decode("latin-1")
        assert ledger_key(read_ledger_key(text)) == text
        return
    resealed = rest[:4] + struct.pack("<I", crc32c(rest[8:], crc32c(rest[:4]))) + rest[8:]
    found = read_ledger(resealed)
    assert read_ledger(pack_ledger(found)) == found
    assert len(found.nodes_at(max(found.last, 0))) == found.striping.ensemble


@target
def staging(data: bytes) -> None:
    """STAGE, PIN, PLACE and UNSTAGE records and a staged block's row: a byte says which."""
    which, rest = data[:1], memoryview(data[1:])
    if which == b"S":
        stage = staged.read_stage(rest)
        again = staged.pack_stage_head(stage.head) + bytes(stage.body)
        assert staged.read_stage(memoryview(again)) == stage
    elif which == b"P":
        pin = staged.read_pin(rest)
        assert staged.read_pin(memoryview(staged.pack_pin(pin))) == pin
    elif which == b"L":
        place = staged.read_place(rest)
        assert staged.read_place(memoryview(staged.pack_place(place))) == place
    elif which == b"R":
        row = staged.read_row(bytes(rest))
        assert staged.read_row(staged.pack_row(*row)) == row
    else:
        gone = staged.read_unstage(rest)
        assert staged.pack_unstage(gone) == rest


@target
def groups(data: bytes) -> None:
    """A group of an APPEND frame."""
    parts, stop = read_group(memoryview(data), 0)
    again = pack_group(parts) + b"".join(bytes(part.body) for part in parts)
    assert again == data[:stop]


@target
def scrub_rows(data: bytes) -> None:
    """What scrubbing keeps, and what else LogsDB has in rows of its own: a byte says which."""
    which, rest = data[:1], data[1:]
    if which == b"p":
        read_progress(rest)
    elif which == b"d":
        assert damage_key(read_damage_key(rest)) == b"x" + rest[1:]
    elif which == b"w":
        read_why(rest).encode()
    elif which == b"l":
        assert logs_db.pack_lost(logs_db.read_lost(rest)) == rest
    elif which == b"g":
        missing = logs_db.read_missing(rest)
        assert logs_db.read_missing(logs_db.pack_missing(missing)) == missing
    else:
        logs_db.read_place(rest)


@target
def wal_runs(data: bytes) -> None:
    """Records back to back, as a start reads them; the CRC of each header is put right first."""
    size = wal_block.WAL_RECORD_HEADER_BYTES
    whole = bytearray(data)
    for at in wal_run.data_starts(memoryview(bytes(whole)), 0, 0):
        summed = bytes(whole[at : at + size - 4])
        whole[at + size - 4 : at + size] = struct.pack("<I", crc32c(summed, _SALT))
    view = memoryview(bytes(whole))
    starts = np.array(wal_run.data_starts(view, 0, 0), np.int64)
    if not len(starts):
        return
    headers, intact = wal_run.RunReader(_SALT).headers(view, starts)
    one_by_one = [wal_block.unpack_wal_record(view, at, _SALT) for at in starts.tolist()]
    assert all(found is not None for found in one_by_one[:intact])
    good = starts[:intact] + size
    stops = good + headers["length"][:intact].astype(np.int64)
    wal_run.intact_bodies(view, good, stops, headers["body_crc"][:intact])


_HEADER = BlockHeader(
    log=1, first=1 << 32, count=1, kind=BlockKind.DATA, codec=Codec.NONE, append_time_us=1
)


@target
def arrow(data: bytes) -> None:
    """A body as Arrow columns; what a JVM is handed must be valid to the last byte."""
    found = parse_body(data)
    header = replace(_HEADER, count=found.count)
    batch = body_to_batch(header, found, "/a", columns=(*COLUMNS, *COLUMNS_ON_REQUEST))
    batch.validate(full=True)
    assert batch.num_rows == found.count


@target
def records_of_metadata(data: bytes) -> None:
    """Values of the metadata store beside `metadata`: every decoder is tried."""
    decoders: tuple[Callable[[], object], ...] = (
        lambda: publications._decode("q", data),
        lambda: event_log._followed_since("event-log-followers/1", data),
        lambda: lease._decode("/lease", data),
        lambda: ledger_marks._read("ledger-marks/7", data, 7),
        lambda: read_json(data, log_numbers._Counter, "the counter of logs"),
        lambda: maintenance.read_requests(data),
        lambda: main_storage._decode(data),
        lambda: read_json(data, joins._Joined, "a note of a node that joined"),
    )
    for decode in decoders:
        with suppress(CordwoodError):
            decode()


@target
def identity(data: bytes) -> None:
    """The files by which a directory is known: every decoder is tried."""
    for kind in (Incarnations, ClusterShape):
        with suppress(CordwoodError):
            read_json(data, kind, "a file")
    check_identity(data, Identity("a", 1, 4096), "identity")


@target
def sink_options(data: bytes) -> None:
    """Options of the Spark sink, `name=value` a line."""
    parse_sink_options(dict(line.partition("=")[::2] for line in _text(data).splitlines()))


@target
def short_text(data: bytes) -> None:
    """A write budget and what `java -version` prints."""
    with suppress(CordwoodError):
        parse_budget(_text(data))
    parse_java_version(_text(data))


@target
def staged_refs(data: bytes) -> None:
    """What refers to something staged, which Spark's tasks hand over as JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    found = StagedRef.from_json(value)
    assert StagedRef.from_json(msgspec.json.decode(msgspec.json.encode(found.to_json()))) == found


@target
def spark_rest(data: bytes) -> None:
    """The ranges that `scan_logs` leaves to the source, which an option of Spark hands over."""
    found = Rest.of_json(_text(data))
    assert Rest.of_json(found.to_json()) == found


@target
def checkpoints(data: bytes) -> None:
    """Spark's checkpoint of a query: its `metadata`, and what a batch reads."""
    folder = _checkpoint_folder()
    for file in ("metadata", "offsets/0"):
        (folder / file).write_bytes(data)
    checkpoint = Checkpoint(folder)
    for read in (checkpoint.query, lambda: checkpoint.end_of(0)):
        with suppress(CordwoodError):
            read()


@cache
def _checkpoint_folder() -> Path:
    kept = TemporaryDirectory(prefix="cordwood-fuzz-")
    atexit.register(kept.cleanup)
    folder = Path(kept.name)
    (folder / "offsets").mkdir()
    return folder


@target
def positions(data: bytes) -> None:
    """A position that a caller of another process names, as a number or as text."""
    text = _text(data)
    with suppress(CordwoodError):
        to_lsn(text)
    to_lsn(int.from_bytes(data, "little", signed=True))


@target
def ledger_rows(data: bytes) -> None:
    """What LogsDB has of a ledger, and an entry as a client reads it; the first byte says which."""
    rest = data[1:]
    match data[:1]:
        case b"s":
            row = ledger_records.read_state_row(rest)
            assert ledger_records.pack_state_row(row) == rest
        case b"e":
            kept = ledger_records.read_entry_row(1 << 40, rest)
            assert ledger_records.pack_entry_row(kept) == rest
        case b"k":
            ledger, entry = ledger_records.read_entry_row_key(rest)
            assert ledger_records.entry_row_key(ledger, entry) == rest
        case b"l":
            ledger = ledger_records.read_state_row_key(rest)
            assert ledger_records.state_row_key(ledger) == rest
        case _:
            for kind in DigestKind:
                with suppress(CordwoodError):
                    EntrySeal(1, kind, b"testPasswd").read(0, -1, 3, rest)


@target
def entry_runs(data: bytes) -> None:
    """A run of a ledger's entries as a node sends it, of each or of each third one; the first byte
    tells their number."""
    if not data:
        return
    count, packed = data[0] or 1, memoryview(data)[1:]
    step = next((step for step in (1, 3) if is_run(packed, 0, count, step)), 0)
    if not step:
        return
    heads = [*heads_of(packed, count)]
    assert [head[0] for head in heads] == [*range(0, count * step, step)]
    assert [each.item() for each in columns_of(packed, count)] == heads
    assert sum(head[3] for head in heads) == len(bodies_of(packed, count))
    assert pack_run(heads, [bodies_of(packed, count)]) == packed
    for kind in DigestKind:
        seal = EntrySeal(1, kind, b"testPasswd")
        payloads, lengths = seal.read_run(packed, count)
        assert (payloads, lengths) == seal._read_each(packed, count)
        assert len(payloads) == len(lengths) <= count
