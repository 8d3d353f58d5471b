"""The content of a slot: S1 unique slot, S3 no phantom, S4 no aborted read.

Each defect has one name. A payload that no client sent breaks S3 alone, two readers that differ
break S5, and a reader that differs from its earlier read breaks S8. S1 compares acknowledgements,
the disks, and every reader with acknowledgements and disks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from cordwood.lsn import EVENT_LOG, format_lsn
from cordwood.sim.checkers.disk import Copy, DiskRange
from cordwood.sim.checkers.evidence import Evidence, Read
from cordwood.sim.checkers.tried_again import check_first_tries
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import AppendFailed, Event

Known: TypeAlias = dict[int, tuple[str | None, Event]]
"""The known record at an LSN: the payload's id, and the event that proves it."""


def check_unique_slot(evidence: Evidence) -> list[Violation]:
    """S1: a slot holds one outcome in every ack, on every disk and for every reader."""
    found: list[Violation] = []
    known: dict[int, Known] = {}
    for log in evidence.logs:
        known[log] = {}
        found.extend(_acks(evidence, log, known[log]))
        if log in evidence.disks:
            for piece in evidence.disks[log].ranges:
                found.extend(_disk_range(evidence, log, piece, known[log]))
    for read in evidence.reads:
        for _, record in read.records():
            stands, witness = known[read.log].get(record.lsn, (record.payload.id, record))
            if stands != record.payload.id and evidence.is_genuine(read.log, record.payload):
                text = f"reader {read.reader} got {record.payload.id} in the place of {stands}"
                found.append(Violation("S1", text, read.log, record.lsn, (witness, record)))
    return found


def _acks(evidence: Evidence, log: int, known: Known) -> Iterator[Violation]:
    for ack in evidence.acks.get(log, ()):
        event: Event = ack.append.end or ack.append.invoked
        stands, earlier = known.setdefault(ack.lsn, (ack.payload.id, event))
        if stands != ack.payload.id:
            text = f"acknowledged for both {stands} and {ack.payload.id}"
            yield Violation("S1", text, log, ack.lsn, (earlier, event))


def _disk_range(
    evidence: Evidence, log: int, piece: DiskRange, known: Known
) -> Iterator[Violation]:
    """Compare the copies of a range with one another and with `known`; add their records to it.

    All data copies must agree, because recovery only copies. A hole or a bridge beats data of older
    seal epochs, and must not meet data of its own seal epoch.
    """
    clash = _clash(piece)
    if clash is not None:
        text = f"{_says(clash[0])}, but {_says(clash[1])}"
        yield Violation("S1", text, log, piece.first, (clash[0].dump, clash[1].dump))
    elif piece.holds_data:
        yield from _data(evidence, log, piece, known)
    elif not piece.winners[0].is_bridge:  # S13 judges acks at or above a bridge
        for ack in evidence.acks_within(log, piece.first, piece.last):
            text = f"acknowledged for {ack.payload.id}, but {_says(piece.winners[0])}"
            witness = known[ack.lsn][1]
            yield Violation("S1", text, log, ack.lsn, (witness, piece.winners[0].dump))


def _data(evidence: Evidence, log: int, piece: DiskRange, known: Known) -> Iterator[Violation]:
    copy = next(copy for copy in piece.copies if copy.is_data)
    if not copy.slots.payloads:
        return
    for lsn in range(piece.first, piece.last + 1):
        payload = copy.payload_at(lsn)
        if payload is None or not evidence.is_genuine(log, payload):
            continue
        stands, earlier = known.setdefault(lsn, (payload.id, copy.dump))
        if stands != payload.id:
            text = f"acknowledged for {stands}, but node {copy.dump.node} holds {payload.id}"
            yield Violation("S1", text, log, lsn, (earlier, copy.dump))


def _clash(piece: DiskRange) -> tuple[Copy, Copy] | None:
    """Two copies of a range that contradict each other, None if there are none."""
    data = [copy for copy in piece.copies if copy.is_data]
    for other in data[1:]:
        if not _same_block(data[0], other):
            return data[0], other
    plugs = [copy for copy in piece.winners if not copy.is_data]
    if plugs and piece.holds_data:
        return plugs[0], next(copy for copy in piece.winners if copy.is_data)
    return None


def _same_block(one: Copy, other: Copy) -> bool:
    if (one.slots.first, one.slots.last) != (other.slots.first, other.slots.last):
        return False
    if one.slots.payloads and other.slots.payloads:
        return one.slots.payloads == other.slots.payloads
    return one.slots.crc == other.slots.crc


def _says(copy: Copy) -> str:
    slots = copy.slots
    ids = ", ".join(str(payload.id) for payload in slots.payloads[:3])
    span = f"{format_lsn(slots.first)} to {format_lsn(slots.last)}"
    return f"node {copy.dump.node} holds {slots.kind.value} {span} ({ids or hex(slots.crc)})"


def check_no_phantom(evidence: Evidence) -> list[Violation]:
    """S3: every record that is delivered, or intact on a disk, was sent to that log by a client.

    A read without payloads reports a record only where there is one.
    """
    found: list[Violation] = []
    for read in evidence.reads:
        if read.started.heads:
            found.extend(_headless(evidence, read))
            continue
        for _, record in read.records():
            if not evidence.is_genuine(read.log, record.payload):
                text = f"reader {read.reader} got {record.payload}, which no client sent"
                found.append(Violation("S3", text, read.log, record.lsn, (record,)))
    for log, disk in sorted(evidence.disks.items()):
        if log == EVENT_LOG:
            continue  # nodes write it, and `sim.disk_losses` compares their sets
        for dump in disk.dumps:
            for slots in dump.slots:
                for index, payload in enumerate(slots.payloads if slots.intact else ()):
                    if not evidence.is_genuine(log, payload):
                        text = f"node {dump.node} holds {payload}, which no client sent"
                        found.append(Violation("S3", text, log, slots.first + index, (dump,)))
    return found


def _headless(evidence: Evidence, read: Read) -> Iterator[Violation]:
    """Find records reported without a payload, where none was acknowledged and no node holds one.

    A record that some node has trimmed may be on no node.
    """
    disk = evidence.disks.get(read.log)
    trim = evidence.trim_held(read.log)
    # Records on nodes that were lost for ever were there and are not now (seed 12297).
    is_gone = evidence.may_lose(len(evidence.events))
    for _, record in read.records():
        if disk is None or record.lsn <= trim or is_gone:
            continue
        piece = disk.at(record.lsn)
        is_held = piece is not None and piece.holds_data
        if not is_held and not evidence.acks_within(read.log, record.lsn, record.lsn):
            text = f"reader {read.reader} got a record that no node holds"
            yield Violation("S3", text, read.log, record.lsn, (read.started, record))


def check_no_aborted_read(evidence: Evidence) -> list[Violation]:
    """S4: a failed append is not stored and never delivered, and no record has two places in a log.

    A payload is acknowledged at one place. So an append of unknown outcome, or a store that was
    tried twice, shows as a second place at some reader.
    """
    found = list(check_first_tries(evidence.events))
    places: dict[str | None, tuple[int, Event]] = {}
    for log in evidence.logs:
        for ack in evidence.acks.get(log, ()):
            places[ack.payload.id] = (ack.lsn, ack.append.end or ack.append.invoked)
    for read in evidence.reads:
        for _, record in read.records():
            payload = record.payload
            if not evidence.is_genuine(read.log, payload):
                continue
            end = evidence.origins[payload.id or ""][0].end
            if isinstance(end, AppendFailed):
                text = f"reader {read.reader} got {payload.id}, whose append failed ({end.error})"
                found.append(Violation("S4", text, read.log, record.lsn, (end, record)))
            lsn, witness = places.setdefault(payload.id, (record.lsn, record))
            if lsn != record.lsn:
                text = f"reader {read.reader} got {payload.id}, which is also at {format_lsn(lsn)}"
                found.append(Violation("S4", text, read.log, record.lsn, (witness, record)))
    return found
