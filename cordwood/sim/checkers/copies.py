"""S15: at the end of a run, every released slot has its copies, in enough racks.

All slots up to the highest place that was acknowledged, delivered, released or (with its bridge)
recovered count as released. A node that left no dump holds nothing. Records that some node has
trimmed need no copies any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from cordwood.block import GapKind
from cordwood.lsn import ESN_MAX, format_lsn, make_lsn
from cordwood.sim.checkers.disk import Copy, Disk, DiskRange
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.spread import asked_for, asked_of, lacking
from cordwood.sim.checkers.unseen import unseen_losses
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import GapDelivered, RunStarted
from cordwood.sim.operator_events import LossAccepted


def check_copies(evidence: Evidence) -> list[Violation]:
    """S15: R intact copies of records and of plugs, over as many racks as the log wants.

    S15 does not hold for a run that may destroy more than its replication survives, or that loses
    nodes for ever: nothing rebuilds their copies there. A node whose loss an operator accepted may
    have lost one copy of any record: it counts as a holder. So does a node that the copyset of a
    copy names, if the loss of its copy left no trace (seed 63000212).
    """
    if evidence.run.beyond_tolerance or evidence.lost_at is not None:
        return []
    return [
        violation
        for log, disk in sorted(evidence.disks.items())
        for violation in _short(evidence, log, disk)
    ]


def _short(evidence: Evidence, log: int, disk: Disk) -> Iterator[Violation]:
    """One violation for each run of neighbouring ranges that lack the same copies."""
    run: list[int] = []
    reason = ""
    trim = evidence.trim_held(log)
    asked = asked_of(evidence, log, len(evidence.events))
    accepted = {e.node for _, e in evidence.of(LossAccepted) if isinstance(e, LossAccepted)}
    unseen = unseen_losses(evidence)
    for lsn, is_record in sorted(_places(evidence, log, disk).items()):
        if lsn <= trim:
            continue
        racks = evidence.racks_then(log, lsn >> 32)
        piece = disk.at(lsn)
        named = {node for copy in piece.winners for node in copy.slots.copyset} if piece else set()
        excused = (accepted | (unseen & named)) & racks.keys()
        now = _lack(asked, piece, is_record, racks, excused)
        if run and now != reason:
            yield _lacks(evidence, asked, log, run, reason)
            run = []
        reason = now
        if now:
            run.append(lsn)
    if run:
        yield _lacks(evidence, asked, log, run, reason)


def _lacks(
    evidence: Evidence, asked: RunStarted, log: int, lsns: list[int], reason: str
) -> Violation:
    more = f" from here to {format_lsn(lsns[-1])}" if lsns[1:] else ""
    wanted = asked_for(asked)
    return Violation("S15", f"{reason}{more}; {wanted}", log, lsns[0], evidence.disks[log].dumps)


def _places(evidence: Evidence, log: int, disk: Disk) -> dict[int, bool]:
    """Released places to check, and whether a record should be there.

    The copies are the same in a whole range on disk, so its first LSN is enough. Records that no
    disk holds are found from acknowledgements and deliveries.
    """
    places = {ack.lsn: True for ack in evidence.acks.get(log, ())}
    highest = max(places, default=0)
    for read in evidence.reads:
        if read.log == log:
            places.update((record.lsn, True) for _, record in read.records())
            for _, gap in read.gaps():
                for lsn in _plugs(disk, gap):
                    places.setdefault(lsn, False)
            highest = max(highest, read.passed)
    if log in evidence.releases:
        highest = max(highest, evidence.releases[log].highest(len(evidence.events)))
    if log in evidence.stores:
        clean = evidence.stores[log].last_clean(len(evidence.events))
        highest = max(highest, make_lsn(clean, ESN_MAX) if clean else 0)
    trim = evidence.trim_held(log)
    for piece in disk.within(0, highest):
        # Of a block that was trimmed in part, the part above the trim point is checked.
        places.setdefault(max(piece.first, min(trim + 1, piece.last)), piece.holds_data)
    return places


def _plugs(disk: Disk, gap: GapDelivered) -> Iterator[int]:
    """Places inside a gap that a hole or a bridge must explain; (E, 0) needs no plug."""
    first = max(gap.first, make_lsn(gap.first >> 32, 1))
    if gap.kind not in (GapKind.HOLE, GapKind.BRIDGE) or not first >> 32 or first > gap.last:
        return
    yield first
    if gap.kind is GapKind.HOLE:
        for piece in disk.within(first, gap.last):
            if piece.last < gap.last:
                yield piece.last + 1


def _lack(
    asked: RunStarted,
    piece: DiskRange | None,
    is_record: bool,
    racks: Mapping[int, str],
    excused: Set[int],
) -> str:
    """The missing copies at a place, in words; empty if none is missing.

    The racks of the record's own epoch count: copies do not move when a node moves. If a plug is on
    disk and a record was delivered, S1 and S7 report it.
    """
    copies: list[Copy] = []
    if piece is not None:
        if piece.holds_data != is_record:
            return ""
        copies = [copy for copy in piece.copies if copy.is_data == is_record]
    nodes = {copy.dump.node for copy in copies}
    spread = {racks.get(copy.dump.node, copy.dump.rack) for copy in copies}
    if nodes:
        nodes |= excused
        spread |= {racks[node] for node in excused}
    return lacking(asked, nodes, spread)
