"""Prints the output of `cordwood wal dump`: lines for people, or one JSON object in each line for
programs.

Only that verb loads this module, so it imports freely.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from cordwood.block import BlockKind
from cordwood.cli.wording import bytes_words
from cordwood.errors import CordwoodError
from cordwood.host.read_only_file import ReadOnlyFile
from cordwood.layout.engine_record import (
    AmendRecord,
    CleanRecord,
    EngineRecord,
    NodesetsRecord,
    ProducedRecord,
    SealRecord,
    StoreRecord,
    TierRecord,
    TrimRecord,
    read_engine_record,
)
from cordwood.layout.ledger_records import LedgerChanges, LedgerEntries
from cordwood.layout.nodesets import read_nodesets
from cordwood.layout.produced import read_produced
from cordwood.layout.staged import PinRecord, PlaceRecord, StageRecord, UnstageRecord
from cordwood.layout.wal_batch import read_batch
from cordwood.layout.wal_block import WalHeader, WalKind, unpack_holes
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import format_lsn
from cordwood.storage.wal.wal_inspect import DATA_KINDS, NothingThere, Seen, SeenRecord, WalView
from cordwood.storage.wal.wal_recovery import records_of

BLOCKS_SHOWN = 4
"""The most blocks of one record that a line names. JSON has all of them."""


async def dump_wal(file: ReadOnlyFile, name: str, start: int | None, as_json: bool) -> None:
    """Print the slots, every record from `start` or the scan point on, and a sum.

    Raises:
        Corrupt, Rejected, OSError: see `WalView`.
    """
    view = await WalView.open(file, name)
    write = sys.stdout.write
    for number, slot in enumerate(view.slots):
        counts = slot is view.header
        write(_slot_json(number, slot, counts) if as_json else _slot_line(number, slot, counts))
    records = size = 0
    async for seen in view.records(start):
        write(_seen_json(seen) if as_json else _seen_line(seen))
        if isinstance(seen, SeenRecord):
            held = records_of(seen.record, seen.body)
            if held is not None:
                records += len(held)
                size += held.bytes
            elif seen.record.kind is WalKind.DATA:  # damaged
                records += 1
                size += seen.record.length
    unreadable = len(file.unreadable)
    if as_json:
        total = {"records": records, "bytes": size, "unreadable_blocks": unreadable}
        write(json.dumps(total) + "\n")
        return
    write(f"{records:,} records, {bytes_words(size)}{unreadable_words(unreadable)}\n")


def _slot_line(number: int, slot: WalHeader | Exception, counts: bool) -> str:
    if isinstance(slot, Exception):
        return f"slot {number}: {slot}\n"
    fields = {"sequence": slot.sequence, "owner": f"node {slot.owner}", "epoch": slot.epoch}
    for name in ("capacity", "trim", "scan", "durable", "resume", "window", "incarnation"):
        fields[name] = getattr(slot, name)
    text = ", ".join(f"{name} {value}" for name, value in fields.items())
    end = "closed" if slot.graceful else "not closed (in use, or cut off)"
    return f"slot {number}{' (counts)' if counts else ''}: {text}, {end}\n"


def _slot_json(number: int, slot: WalHeader | Exception, counts: bool) -> str:
    if isinstance(slot, Exception):
        return json.dumps({"slot": number, "problem": str(slot)}) + "\n"
    return json.dumps({"slot": number, "counts": counts, **header_json(slot)}) + "\n"


def header_json(header: WalHeader) -> dict[str, Any]:
    """The fields of a header without the salt: a person with the salt can make false records."""
    fields = dataclasses.asdict(header)
    del fields["salt"]
    return fields


def _seen_line(seen: Seen) -> str:
    if isinstance(seen, NothingThere):
        return f"{seen.start:>14}  no record up to {seen.stop}\n"
    record = seen.record
    state = " trimmed" if record.kind in DATA_KINDS and not seen.is_live else ""
    return (
        f"{record.offset:>14}  at {seen.position:<12} {record.length:>9} B  "
        f"{record.kind.name.lower()}{state}  {_held_words(seen)}\n"
    )


def _seen_json(seen: Seen) -> str:
    if isinstance(seen, NothingThere):
        return json.dumps({"nothing_from": seen.start, "to": seen.stop}) + "\n"
    record = seen.record
    return json.dumps({
        "offset": record.offset,
        "position": seen.position,
        "length": record.length,
        "kind": record.kind.name.lower(),
        "live": seen.is_live,
        "body": "damaged" if seen.body is None else "ok",
        "durable": record.durable,
        "incarnation": record.incarnation,
        "last_of_block": record.is_last,
        **_held_json(seen),
    }) + "\n"  # fmt: skip


def _held(seen: SeenRecord) -> EngineRecord | list[tuple[int, int]] | str:
    """A record's contents, or why they are unknown."""
    if seen.body is None:
        return "DAMAGED: the checksum of its body does not match"
    if seen.record.kind is WalKind.PADDING:
        return "the rest of this lap is skipped"
    try:
        if seen.record.kind is WalKind.BATCH:
            return f"a batch of {len(read_batch(seen.body, 0))} records"
        if seen.record.kind is WalKind.RESUME:
            return unpack_holes(seen.body)
        return read_engine_record(memoryview(seen.body))
    except CordwoodError as error:
        return f"not a node's record ({error})"


def _held_words(seen: SeenRecord) -> str:
    match _held(seen):
        case StoreRecord(seal_epoch, blocks):
            by = f"recovery of epoch {seal_epoch} stores" if seal_epoch else "store of"
            return f"{by} {_blocks_words(blocks)}"
        case AmendRecord(seal_epoch, blocks):
            by = f"recovery of epoch {seal_epoch} amends" if seal_epoch else "amend of"
            return f"{by} {_blocks_words(blocks)}"
        case SealRecord(log, epoch):
            return f"log {log} is sealed by epoch {epoch}"
        case CleanRecord(log, epoch, seal, lng, _, attempt):
            by = f"sealed by {seal}, attempt {attempt}"
            held = f"{by}, up to {format_lsn(lng)}" if seal else "nothing of it held"
            return f"log {log}: epoch {epoch} is over ({held})"
        case TrimRecord(log, lsn):
            return f"log {log} is trimmed up to {format_lsn(lsn)}"
        case TierRecord(log, lsn):
            return f"log {log} is in main storage up to {format_lsn(lsn)}"
        case StageRecord(head, _):
            size = f"{head.records} records, {head.stored_bytes} bytes"
            return f"log {head.log}: staged {head.stage.hex()}, {size}"
        case PinRecord(query, attempt, stages):
            return f"attempt {attempt} of {query!r} pins {len(stages)} staged blocks"
        case UnstageRecord(stages):
            return f"{len(stages)} staged blocks are gone"
        case PlaceRecord(stage, members, moves):
            return f"staged {stage.hex()} is on nodes {members} (change {moves})"
        case NodesetsRecord(log, epoch, packed):
            nodes = read_nodesets(packed)[-1].nodes
            return f"log {log} is spread over nodes {nodes} as of epoch {epoch}"
        case ProducedRecord(log, epoch, _, packed):
            some = {each.producer for each in read_produced(packed)}
            return f"log {log}: {len(some)} producers wrote into epoch {epoch}"
        case LedgerEntries(ledger, _, entries, _):
            return f"ledger {ledger}: {len(entries)} entries from {entries[0].entry} on"
        case LedgerChanges(changes):
            return "; ".join(
                f"ledger {each.ledger}: {each.flags!r}, LAC {each.lac}" for each in changes
            )
        case str() as words:
            return words
        case holes:
            return "never happened: " + ", ".join(f"[{low}, {high})" for low, high in holes)


def _blocks_words(blocks: list[StoredBlock]) -> str:
    named = "; ".join(_block_words(block) for block in blocks[:BLOCKS_SHOWN])
    more = f"; and {len(blocks) - BLOCKS_SHOWN} more" if len(blocks) > BLOCKS_SHOWN else ""
    return f"{named}{more}"


def _block_words(block: StoredBlock) -> str:
    header = block.header
    kind = "" if header.kind is BlockKind.DATA else f" {header.kind.name.lower()}"
    return (
        f"log {header.log}{kind} [{format_lsn(header.first)}, {format_lsn(header.last)}] "
        f"wave {block.envelope.wave}"
    )


def _held_json(seen: SeenRecord) -> dict[str, Any]:
    match _held(seen):
        case StoreRecord(seal_epoch, blocks):
            return {"store": [_block_json(block) for block in blocks], "seal_epoch": seal_epoch}
        case AmendRecord(seal_epoch, blocks):
            return {"amend": [_block_json(block) for block in blocks], "seal_epoch": seal_epoch}
        case SealRecord(log, epoch):
            return {"seal": {"log": log, "epoch": epoch}}
        case CleanRecord(log, epoch, seal, lng, _, attempt):
            end = {"seal": seal, "attempt": attempt, "lng": format_lsn(lng)}
            return {"clean": {"log": log, "epoch": epoch, **end}}
        case TrimRecord(log, lsn):
            return {"trim": {"log": log, "lsn": format_lsn(lsn)}}
        case TierRecord(log, lsn):
            return {"tier": {"log": log, "lsn": format_lsn(lsn)}}
        case StageRecord(head, _):
            return {"stage": {"log": head.log, "id": head.stage.hex(), "records": head.records}}
        case PinRecord(query, attempt, stages):
            ids = [stage.hex() for stage in stages]
            return {"pin": {"query": query, "attempt": attempt, "ids": ids}}
        case UnstageRecord(stages):
            return {"unstage": [stage.hex() for stage in stages]}
        case PlaceRecord(stage, nodes, moves):
            return {"place": {"id": stage.hex(), "nodes": [*nodes], "moves": moves}}
        case NodesetsRecord(log, epoch, packed):
            history = [{"since": n.since, "nodes": n.nodes} for n in read_nodesets(packed)]
            return {"nodesets": {"log": log, "epoch": epoch, "history": history}}
        case ProducedRecord(log, epoch, _, packed):
            producers = sorted({each.producer for each in read_produced(packed)})
            return {"produced": {"log": log, "epoch": epoch, "producers": producers}}
        case LedgerEntries(ledger, _, entries, _):
            return {"entries": {"ledger": ledger, "entries": [each.entry for each in entries]}}
        case LedgerChanges(changes):
            states = [
                {"ledger": each.ledger, "flags": int(each.flags), "lac": each.lac}
                for each in changes
            ]
            return {"ledgers": states}
        case str() as words:
            return {"note": words}
        case holes:
            return {"holes": holes}


def _block_json(block: StoredBlock) -> dict[str, Any]:
    header, envelope = block.header, block.envelope
    return {
        "log": header.log,
        "kind": header.kind.name.lower(),
        "first": format_lsn(header.first),
        "last": format_lsn(header.last),
        "bytes": header.stored_bytes,
        "append_time_us": header.append_time_us,
        "copyset": list(envelope.copyset),
        "wave": envelope.wave,
        "seal": envelope.seal_epoch,
    }


def unreadable_words(blocks: int) -> str:
    """The number of unreadable blocks in words; "" if all blocks could be read."""
    return f"; {blocks} blocks of 4 KiB could not be read" if blocks else ""
