"""The story of a run, of one record or of one epoch, in words, told from its history.

Source: docs/simulator.md, "From a red seed to a fix" (follow the record).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cordwood.decisions import Story
from cordwood.errors import BadSetting
from cordwood.lsn import ESN_MAX, format_lsn, make_lsn, parse_lsn
from cordwood.sim.checkers.disk import Copy
from cordwood.sim.checkers.evidence import Append, Evidence, Read
from cordwood.sim.history import (
    AppendFailed,
    AppendOk,
    AppendUnknown,
    CleanEpochSet,
    EpochTaken,
    Event,
    FaultEased,
    FaultsHealed,
    FaultStruck,
    GapDelivered,
    NodeStarted,
    RecordDelivered,
    SlotKind,
)

AROUND_S = 2.0
"""The story tells of faults that struck this long before an event, or during it."""

Line = tuple[int, str]
"""A time in µs, and a line of the story."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The record or epoch of a story.

    Attributes:
        epoch: the epoch, or that of the record.
        lsn: the record's LSN; None for the whole epoch.
    """

    epoch: int
    lsn: int | None = None

    @property
    def first(self) -> int:
        """The first LSN of the record or epoch."""
        return make_lsn(self.epoch, 1) if self.lsn is None else self.lsn

    @property
    def last(self) -> int:
        """The last LSN of the record or epoch."""
        return make_lsn(self.epoch, ESN_MAX) if self.lsn is None else self.lsn


def parse_trace(text: str) -> Trace:
    """Read `e7` (an epoch), `e7n123` or a plain number (a record).

    Raises:
        BadSetting: it is none of these.
    """
    if text[:1] == "e" and text[1:].isdigit():
        return Trace(int(text[1:]))
    try:
        lsn = int(parse_lsn(text))
    except ValueError as error:
        raise BadSetting(f"{text!r} is neither an epoch (e7) nor a record (e7n123)") from error
    return Trace(lsn >> 32, lsn)


def timeline(history: Sequence[Event], until_us: int | None = None) -> list[str]:
    """The events of the cluster, one line each: faults, starts, epochs, healing."""
    lines: list[Line] = []
    for event in history:
        match event:
            case FaultStruck():
                lines.append((event.time_us, f"FAULT {_fault(event)}"))
            case FaultEased():
                lines.append((event.time_us, f"over: {_fault(event)}"))
            case NodeStarted():
                lines.append((event.time_us, f"node {event.node} runs"))
            case EpochTaken():
                text = f"log {event.log}: node {event.node} takes epoch {event.epoch}"
                lines.append((event.time_us, text))
            case CleanEpochSet():
                tail = format_lsn(event.tail)
                text = f"log {event.log}: epoch {event.epoch} is recovered, its end is {tail}"
                lines.append((event.time_us, text))
            case FaultsHealed():
                lines.append((event.time_us, "every fault is taken back"))
            case _:
                pass
    return _told(lines, until_us)


def tell(
    history: Sequence[Event],
    trace: Trace,
    log: int | None = None,
    until_us: int | None = None,
    decided: Story | None = None,
) -> list[str]:
    """The story of a record or an epoch, in every log that has it, or in one.

    Args:
        decided: decisions of nodes and clients in the run, if they were kept.
    """
    evidence = Evidence(history)
    told: list[str] = []
    for each in evidence.logs if log is None else [log]:
        if trace.lsn is None:
            lines = list(_epoch(evidence, each, trace.epoch))
            title = f"epoch {trace.epoch} of log {each}"
        else:
            lines = list(_record(evidence, each, trace.lsn))
            title = f"{format_lsn(trace.lsn)} of log {each}"
        if lines and decided is not None:
            lines += decided.of(each, trace.first, trace.last)
        if lines:
            told += [title, *_told(lines, until_us)]
    return told or [f"nothing in this history is about {_name(trace)}"]


def _told(lines: list[Line], until_us: int | None) -> list[str]:
    kept = [line for line in lines if until_us is None or line[0] <= until_us]
    return [f"{at_us / 1e6:11.6f} s  {text}" for at_us, text in sorted(kept, key=lambda x: x[0])]


def _name(trace: Trace) -> str:
    return f"epoch {trace.epoch}" if trace.lsn is None else format_lsn(trace.lsn)


def _fault(event: FaultStruck | FaultEased) -> str:
    nodes = ", ".join(f"node {node}" for node in event.nodes)
    return " ".join(part for part in (event.kind.replace("_", " "), nodes, event.text) if part)


# ---- one record ----


def _record(evidence: Evidence, log: int, lsn: int) -> Iterator[Line]:
    ids = _ids_at(evidence, log, lsn)
    first_us, last_us = [], []
    for name in ids:
        found = evidence.origins.get(name)
        if found is not None and found[0].invoked.log == log:
            append, index = found
            first_us.append(append.invoked.time_us)
            last_us.append(evidence.time_of(append.end_at))
            yield from _append(append, index, lsn)
    for read in evidence.reads:
        if read.log == log:
            yield from _read(read, lsn)
    yield from _copies(evidence, log, lsn)
    if first_us:
        yield from _faults_between(evidence, min(first_us), max(last_us))
        yield from _epoch_events(evidence, log, lsn >> 32)


def _ids_at(evidence: Evidence, log: int, lsn: int) -> list[str]:
    """All payloads that were ever seen at a place."""
    ids = [ack.payload.id for ack in evidence.acks_within(log, lsn, lsn)]
    for read in evidence.reads:
        if read.log == log:
            ids += [record.payload.id for _, record in read.records() if record.lsn == lsn]
    piece = evidence.disks[log].at(lsn) if log in evidence.disks else None
    for copy in piece.copies if piece is not None else ():
        mark = copy.payload_at(lsn) if copy.is_data else None
        ids.append(mark.id if mark is not None else None)
    return list(dict.fromkeys(name for name in ids if name is not None))


def _append(append: Append, index: int, lsn: int) -> Iterator[Line]:
    call = append.invoked
    of = f", record {index + 1} of {len(call.payloads)}" if len(call.payloads) > 1 else ""
    size = call.payloads[index].length
    name = call.payloads[index].id
    yield call.time_us, f"{call.client} appends {name} ({size} bytes{of}; call {call.op})"
    end = append.end
    if isinstance(end, AppendOk):
        took_ms = (end.time_us - call.time_us) / 1e3
        place = end.lsns[index]
        where = "" if place == lsn else f", BUT AT {format_lsn(place)}"
        yield end.time_us, f"{call.client} is told that it is stored{where}, {took_ms:.1f} ms later"
    elif isinstance(end, AppendFailed):
        yield end.time_us, f"{call.client} is told that NOTHING WAS STORED ({end.error})"
    elif isinstance(end, AppendUnknown):
        yield end.time_us, f"{call.client} is told that the outcome is unknown ({end.error})"


def _read(read: Read, lsn: int) -> Iterator[Line]:
    for _, item in read.items:
        if isinstance(item, RecordDelivered):
            if item.lsn == lsn:
                yield item.time_us, f"{read.reader} is given {item.payload.id}"
        elif item.first <= lsn <= item.last:
            yield item.time_us, f"{read.reader} is given {_gap(item)}"


def _gap(gap: GapDelivered) -> str:
    return f"a {gap.kind.value}, {format_lsn(gap.first)} to {format_lsn(gap.last)}"


def _copies(evidence: Evidence, log: int, lsn: int) -> Iterator[Line]:
    piece = evidence.disks[log].at(lsn) if log in evidence.disks else None
    if piece is None:
        if log in evidence.disks:
            yield evidence.end_us, "at the end no node holds an intact copy"
        return
    for copy in piece.copies:
        yield evidence.end_us, f"at the end {_copy(copy)}"


def _copy(copy: Copy) -> str:
    slots = copy.slots
    what = {SlotKind.DATA: "a copy", SlotKind.HOLE: "a hole", SlotKind.BRIDGE: "a bridge"}
    by = f"by recovery with seal {slots.seal_epoch}" if slots.seal_epoch else f"wave {slots.wave}"
    run = f"{format_lsn(slots.first)} to {format_lsn(slots.last)}"
    return f"node {copy.dump.node} ({copy.dump.rack}) holds {what[slots.kind]}, {run}, {by}"


def _faults_between(evidence: Evidence, first_us: int, last_us: int) -> Iterator[Line]:
    """Faults that struck from a little before the beginning until the end, and faults that still
    went on."""
    margin_us = round(AROUND_S * 1e6)
    open_faults: dict[tuple[str, tuple[int, ...], str], FaultStruck] = {}
    for event in evidence.events:
        if event.time_us > last_us:
            break
        if isinstance(event, FaultStruck):
            open_faults[event.kind, event.nodes, event.text] = event
            if event.time_us >= first_us - margin_us:
                yield event.time_us, f"FAULT {_fault(event)}"
        elif isinstance(event, FaultEased):
            open_faults.pop((event.kind, event.nodes, event.text), None)
            if event.time_us >= first_us - margin_us:
                yield event.time_us, f"over: {_fault(event)}"
        elif isinstance(event, NodeStarted) and event.time_us >= first_us - margin_us:
            yield event.time_us, f"node {event.node} runs"
    for event in open_faults.values():
        if event.time_us < first_us - margin_us:
            yield event.time_us, f"FAULT {_fault(event)}, and it goes on"


# ---- one epoch ----


def _epoch_events(evidence: Evidence, log: int, epoch: int) -> Iterator[Line]:
    store = evidence.stores.get(log)
    if store is None:
        return
    for _, taken in store.taken:
        if taken.epoch in (epoch, epoch + 1):
            yield taken.time_us, f"node {taken.node} takes epoch {taken.epoch}"
    for _, clean in store.cleaned:
        if clean.epoch == epoch:
            text = f"epoch {epoch} is recovered: its last record is {format_lsn(clean.tail)}"
            yield clean.time_us, text


def _epoch(evidence: Evidence, log: int, epoch: int) -> Iterator[Line]:
    first, last = make_lsn(epoch, 1), make_lsn(epoch, ESN_MAX)
    lines = list(_epoch_events(evidence, log, epoch))
    if not lines and not evidence.acks_within(log, first, last):
        return
    yield from lines
    acks = evidence.acks_within(log, first, last)
    if acks:
        ends = sorted(evidence.time_of(ack.append.end_at) for ack in acks)
        yield ends[0], f"the first record of epoch {epoch} is acknowledged"
        text = f"the last is: {len(acks)} in all, up to {format_lsn(acks[-1].lsn)}"
        yield ends[-1], text
    yield from _readers_of(evidence, log, first, last)
    yield from _plugs(evidence, log, first, last)
    times = [at_us for at_us, _ in lines]
    if times:
        yield from _faults_between(evidence, min(times), max(times))


def _readers_of(evidence: Evidence, log: int, first: int, last: int) -> Iterator[Line]:
    for read in evidence.reads:
        if read.log != log:
            continue
        given = [record for _, record in read.records() if first <= record.lsn <= last]
        if given:
            span = f"{format_lsn(given[0].lsn)} to {format_lsn(given[-1].lsn)}"
            yield given[0].time_us, f"{read.reader} is given {len(given)} of its records, {span}"
        for _, gap in read.gaps():
            if gap.first <= last and gap.last >= first:
                yield gap.time_us, f"{read.reader} is given {_gap(gap)}"


def _plugs(evidence: Evidence, log: int, first: int, last: int) -> Iterator[Line]:
    disk = evidence.disks.get(log)
    for piece in disk.within(first, last) if disk is not None else ():
        for copy in piece.winners:
            if not copy.is_data and copy.slots.first == piece.first:
                yield evidence.end_us, f"at the end {_copy(copy)}"
