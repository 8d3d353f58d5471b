"""S18: trim points only rise, are durable, and never pass requested trims or retention.

Retention compares append times, from the sequencers' clocks, with the node's own clock. Both are
the run's clock as long as no fault moves one. A record was appended after its client called.

S15 and S2 check that nothing above a trim point is deleted: copies must exist, and records must be
delivered, wherever no trim was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import DiskLost
from cordwood.sim.history import Event, FaultStruck, NodeDumped, NodeStarted
from cordwood.sim.position_events import NodeTrimmed, RetentionTrims, TrimAnswered, TrimAsked

DAMAGE = frozenset({"rot", "zeroed", "lost_write", "misdirected_write"})
"""Faults that destroy durable data of a node, including trim points in its WAL: its next start may
have an earlier trim point. The other nodes still tell readers the right one."""

RECORD_BYTES = 64
"""The most bytes that a key, headers and a timestamp add to a record's payload."""

CLOCKS = frozenset({"clock_step", "clock_drift"})
"""Faults after which the clocks of nodes differ from the run's clock."""


def check_trims(evidence: Evidence) -> list[Violation]:
    """S18: a trim point never falls, is durable, and does not pass requested trims or retention.

    Retention trims no record that is younger than its log's time, and leaves at least the log's
    bytes.
    """
    points: dict[tuple[int, int], tuple[int, Event]] = {}
    damaged: set[int] = set()
    # The places of requested trims, and of starts on a damaged disk: an answer of a node from
    # before its start, to a client that still waited for other nodes, is not judged.
    asked: dict[tuple[str, int, int], int] = {}
    lost_at: dict[int, int] = {}
    clocks_move = any(e.kind in CLOCKS for e in evidence.events if isinstance(e, FaultStruck))
    found: list[Violation] = []
    for at, event in enumerate(evidence.events):
        match event:
            case NodeTrimmed(_, node, log, lsn):
                found += _moved(evidence, points, at, event, (node, log), lsn)
            case NodeDumped(_, node, _, log, _, trim, _):
                found += _moved(evidence, points, at, event, (node, log), trim)
            case FaultStruck(_, kind, nodes) if kind in DAMAGE:
                damaged.update(nodes)
            case DiskLost(_, node):
                # It begins anew, and learns the trim point from the next trim.
                lost_at[node] = at
                points = {place: known for place, known in points.items() if place[0] != node}
            case NodeStarted(_, node) if node in damaged:
                damaged.discard(node)
                lost_at[node] = at
                points = {place: known for place, known in points.items() if place[0] != node}
            case RetentionTrims(_, _, _, _, "time") if not clocks_move:
                found += _too_young(evidence, event)
            case RetentionTrims(_, _, _, _, "space"):
                found += _too_few_left(evidence, event)
            case TrimAsked(_, client, log, lsn):
                asked[client, log, lsn] = at
            case TrimAnswered(_, client, log, lsn, nodes):
                asked_at = asked.get((client, log, lsn), 0)
                for node in nodes:
                    if lost_at.get(node, -1) > asked_at:
                        continue
                    known = points.get((node, log))
                    if known is None or known[0] < lsn:
                        points[node, log] = (lsn, event)
            case _:
                pass
    return found


def _too_young(evidence: Evidence, event: RetentionTrims) -> Iterator[Violation]:
    """The first record that a node trims by time although the log's retention still keeps it."""
    keeps_from_us = event.time_us - event.backlog_us
    for ack in evidence.acks_within(event.log, 0, event.lsn):
        called = ack.append.invoked
        if called.time_us > keeps_from_us and ack.append.end is not None:
            text = f"node {event.node} trims {ack.payload.id} before {event.backlog_us} us passed"
            yield Violation("S18", text, event.log, ack.lsn, (called, ack.append.end, event))
            return


def _too_few_left(evidence: Evidence, event: RetentionTrims) -> Iterator[Violation]:
    """Find a trim by size that leaves fewer bytes than the log's retention.

    All records that may be above the trim point count: acknowledged records, delivered records, and
    calls of unknown outcome.
    """
    left: dict[str | None, int] = {}
    for append in evidence.appends:
        called = append.invoked
        if called.log != event.log or called.time_us > event.time_us:
            continue
        lsns: Sequence[int] = append.lsns or [event.lsn + 1] * len(called.payloads)
        for lsn, payload in zip(lsns, called.payloads, strict=True):
            if lsn > event.lsn:
                left[payload.id] = payload.length + RECORD_BYTES
    for read in evidence.reads:
        if read.log == event.log:
            for _, record in read.records():
                if record.lsn > event.lsn:
                    left[record.payload.id] = record.payload.length + RECORD_BYTES
    size = sum(left.values())
    if size < event.backlog_bytes:
        text = (
            f"node {event.node} trims up to {format_lsn(event.lsn)} and leaves {size} bytes, "
            f"but the log keeps {event.backlog_bytes}"
        )
        yield Violation("S18", text, event.log, event.lsn, (event,))


def _moved(
    evidence: Evidence,
    points: dict[tuple[int, int], tuple[int, Event]],
    at: int,
    event: NodeTrimmed | NodeDumped,
    place: tuple[int, int],
    lsn: int,
) -> Iterator[Violation]:
    """A node's trim point of a log is `lsn` now."""
    node, log = place
    before = points.get(place)
    if before is not None and lsn < before[0]:
        text = f"node {node}'s trim point fell from {format_lsn(before[0])} to {format_lsn(lsn)}"
        yield Violation("S18", text, log, lsn, (before[1], event))
    asked = evidence.trim_asked(log, at)
    if lsn > asked:
        wanted = f"up to {format_lsn(asked)}" if asked else "nothing"
        text = f"node {node} trimmed up to {format_lsn(lsn)}; clients asked for {wanted}"
        yield Violation("S18", text, log, lsn, (event,))
    points[place] = (lsn, event)
