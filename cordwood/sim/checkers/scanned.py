"""O2: a scan of a node's copies, as an audit makes it, tells what the node's disk holds. O3: after
a loss was accepted, scans do not report it any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.lsn import OLDEST, format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import DumpedSlots, NodeDumped
from cordwood.sim.operator_events import LossAccepted, NodeScanned
from cordwood.sim.scrub_events import NodeScrubbed

Place = tuple[int, int, str, int, int]
"""The range of a copy, its kind, and its rank: its recovery's epoch and its wave."""


def check_scanned(evidence: Evidence) -> list[Violation]:
    """O2: a scan tells all copies of a node as they are, or that the node lost records.

    Dumps are made after the last scan, when nothing is stored any more. Copies that were trimmed by
    then are not checked.
    """
    scans = {(e.node, e.log): e for _, e in evidence.of(NodeScanned) if isinstance(e, NodeScanned)}
    dumps = {(e.node, e.log): e for _, e in evidence.of(NodeDumped) if isinstance(e, NodeDumped)}
    found: list[Violation] = []
    for place, scan in scans.items():
        if place in dumps:
            found += _compare(scan, dumps[place])
    for _, event in evidence.of(NodeScrubbed):
        scanned = isinstance(event, NodeScrubbed) and scans.get((event.node, event.log))
        if isinstance(event, NodeScrubbed) and scanned and not scanned.is_damaged:
            damaged = set(event.damaged) - set(event.mended)
            lost = [each for each in sorted(damaged) if each[0] < scanned.stop]
            if lost:
                text = f"node {event.node} lost {format_lsn(lost[0][0])}, but did not say so"
                found.append(Violation("O2", text, event.log, lost[0][0], (scanned, event)))
    return found


def check_accepted(evidence: Evidence) -> list[Violation]:
    """O3: a node whose loss was accepted knows all its copies, except for later rot."""
    rotten = {
        (e.node, e.log)
        for _, e in evidence.of(NodeScrubbed)
        if isinstance(e, NodeScrubbed) and set(e.damaged) - set(e.mended)
    }
    accepted: dict[int, LossAccepted] = {}
    found: list[Violation] = []
    for _, event in evidence.of(LossAccepted, NodeScanned):
        if isinstance(event, LossAccepted):
            accepted[event.node] = event
        elif isinstance(event, NodeScanned) and event.is_damaged:
            if event.node not in accepted or (event.node, event.log) in rotten:
                continue
            text = f"node {event.node} still reports a loss that was accepted"
            found.append(Violation("O3", text, event.log, 0, (accepted[event.node], event)))
    return found


def _compare(scan: NodeScanned, dump: NodeDumped) -> Iterator[Violation]:
    """At most one violation of each kind."""
    told = {_place(slots): slots for slots in scan.slots if slots.last > dump.gone}
    held = {_place(slots): slots for slots in dump.slots if slots.last > dump.gone}
    wanted = {
        place: slots
        for place, slots in held.items()
        if slots.first < scan.stop and slots.last >= OLDEST
    }
    missing = next((wanted[place] for place in wanted if place not in told), None)
    if missing is not None and not scan.is_damaged:
        yield _wrong(scan, dump, missing, "holds a copy that its scan leaves out")
    more = next((told[place] for place in told if place not in held), None)
    if more is not None:
        yield _wrong(scan, dump, more, "lacks a copy that its scan names")
    for place, slots in told.items():
        here = held.get(place)
        if here is not None and (slots.crc, slots.intact) != (here.crc, here.intact):
            yield _wrong(scan, dump, slots, "holds another copy than its scan gives")
            return


def _place(slots: DumpedSlots) -> Place:
    return slots.first, slots.last, slots.kind.value, slots.seal_epoch, slots.wave


def _wrong(scan: NodeScanned, dump: NodeDumped, slots: DumpedSlots, how: str) -> Violation:
    text = f"node {scan.node} {how}: {slots.kind.value} at {format_lsn(slots.first)}"
    return Violation("O2", text, scan.log, slots.first, (scan, dump))
