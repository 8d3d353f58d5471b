"""S7: a gap says why there are no records, and the reason is true.

No event in a history tells of the removal of logs, so nothing can justify a gap of that kind. For
ACCESS gaps see `rights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cordwood.block import GapKind
from cordwood.lsn import EPOCH_MAX, format_lsn, make_lsn
from cordwood.sim.checkers.evidence import Evidence, Read
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import Event, GapDelivered, PayloadMark


def check_gaps_are_true(evidence: Evidence) -> list[Violation]:
    """S7: every gap's kind agrees with the epoch store, the acks and the disks."""
    found: list[Violation] = []
    judges: dict[GapKind, Callable[[Evidence, Read, int, GapDelivered], Iterator[Violation]]] = {
        GapKind.BRIDGE: _bridge,
        GapKind.HOLE: _hole,
        GapKind.DATA_LOSS: _data_loss,
        GapKind.TRIM: _trim,
        GapKind.FILTERED: _filtered,
        GapKind.ACCESS: lambda evidence, read, at, gap: iter(()),
    }
    for read in evidence.reads:
        for at, gap in read.gaps():
            found.extend(judges.get(gap.kind, _groundless)(evidence, read, at, gap))
        if read.started.keys:
            found.extend(_unwanted(evidence, read))
    return found


def _bridge(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    """A bridge covers only recovered epochs, and each of them only after its recovered end.

    A gap may run over several epochs. The never-issued slot (E, 0) at its end says nothing about
    epoch E. Epochs that were never handed out have no end.
    """
    store = evidence.stores.get(read.log)
    if store is None:
        return
    ahead = store.highest_taken(at)
    if gap.last > make_lsn(min(ahead + 1, EPOCH_MAX), 0):
        yield _false(read, gap, f"no sequencer had an epoch above {ahead} yet")
    for epoch in store.epochs_within(gap.first >> 32, gap.last >> 32):
        start = max(gap.first, make_lsn(epoch, 1))
        if start > gap.last:
            continue
        tail = store.tail(epoch)
        if epoch > store.last_clean(at):
            yield _false(read, gap, f"epoch {epoch} was not recovered yet")
        elif tail is not None and start <= tail:
            text = f"epoch {epoch} ends at {format_lsn(tail)}"
            yield _false(read, gap, text, store.tails[epoch])


def _hole(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    """A hole is in one recovered epoch, where no record was acknowledged or is held."""
    store = evidence.stores.get(read.log)
    epoch = gap.first >> 32
    if gap.last >> 32 != epoch:
        yield _false(read, gap, "it passes the end of an epoch")
    elif store is not None and epoch > store.last_clean(at):
        yield _false(read, gap, f"epoch {epoch} was not recovered yet")
    for ack in evidence.acks_within(read.log, gap.first, gap.last)[:1]:
        text = f"{ack.payload.id} was acknowledged at {format_lsn(ack.lsn)}"
        yield _false(read, gap, text, ack.append.end or ack.append.invoked)
    yield from _held(evidence, read, gap)


def _data_loss(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    """A data loss is reported only where faults or lost nodes may have caused it, and only if it is
    true."""
    if not evidence.may_lose(at):
        yield _false(read, gap, "the copies survive the faults of this run")
    else:
        yield from _held(evidence, read, gap)


def _trim(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    """A trim covers only LSNs that a client or retention asked to trim."""
    asked = evidence.trim_asked(read.log, at)
    if not asked:
        yield from _groundless(evidence, read, at, gap)
    elif gap.last > asked:
        yield _false(read, gap, f"clients asked to trim only to {format_lsn(asked)}")


def _filtered(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    """A filtered gap hides no requested record, and covers only released LSNs."""
    if not read.started.keys:
        yield from _groundless(evidence, read, at, gap)
        return
    releases, store = evidence.releases.get(read.log), evidence.stores.get(read.log)
    clean = store.last_clean(at) if store is not None else 0
    if releases is not None and gap.last > releases.highest(at) and gap.last >> 32 > clean:
        yield _false(read, gap, "a part of it was not released yet")
    for lsn, payload, witness in _records_within(evidence, read.log, gap.first, gap.last):
        key = evidence.key_of(payload)
        if key in read.started.keys:
            text = f"{payload.id} at {format_lsn(lsn)} has key {key}"
            yield _false(read, gap, text, witness)
            return


def _records_within(
    evidence: Evidence, log: int, first: int, last: int
) -> Iterator[tuple[int, PayloadMark, Event]]:
    """The known records in `[first, last]`: acknowledged, or held by some node."""
    for ack in evidence.acks_within(log, first, last):
        yield ack.lsn, ack.payload, ack.append.end or ack.append.invoked
    disk = evidence.disks.get(log)
    for piece in disk.within(first, last) if disk is not None else ():
        if piece.holds_data:
            copy = next(copy for copy in piece.copies if copy.is_data)
            for lsn in range(max(piece.first, first), min(piece.last, last) + 1):
                payload = copy.payload_at(lsn)
                if payload is not None:
                    yield lsn, payload, copy.dump


def _unwanted(evidence: Evidence, read: Read) -> Iterator[Violation]:
    """The first record that a reader was given although it had asked for other keys."""
    for _, record in read.records():
        key = evidence.key_of(record.payload)
        if key is not None and key not in read.started.keys:
            text = f"reader {read.reader} asked for {', '.join(read.started.keys)}, got key {key!r}"
            yield Violation("S7", text, read.log, record.lsn, (read.started, record))
            return


def _held(evidence: Evidence, read: Read, gap: GapDelivered) -> Iterator[Violation]:
    disk = evidence.disks.get(read.log)
    for piece in disk.within(gap.first, gap.last) if disk is not None else ():
        if piece.holds_data:
            place = format_lsn(max(piece.first, gap.first))
            dump = piece.winners[0].dump
            yield _false(read, gap, f"node {dump.node} holds an intact copy of {place}", dump)
            return


def _groundless(evidence: Evidence, read: Read, at: int, gap: GapDelivered) -> Iterator[Violation]:
    yield _false(read, gap, "the history has no reason for it")


def _false(read: Read, gap: GapDelivered, why: str, *witnesses: Event) -> Violation:
    span = f"{format_lsn(gap.first)} to {format_lsn(gap.last)}"
    text = f"reader {read.reader} was told {gap.kind.value} for {span}, but {why}"
    return Violation("S7", text, read.log, gap.first, (*witnesses, gap))
