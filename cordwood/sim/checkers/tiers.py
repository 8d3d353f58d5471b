"""S19: both tiers hold the same records of a log.

Main storage holds each acknowledged record of its range once, at its LSN, with its payload, and no
other record. No node let go of a block that no manifest names. S2, S5 and S18 check the records of
readers, from either tier.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import NodeDumped, SlotKind, TierDumped


def check_tiers(evidence: Evidence) -> list[Violation]:
    """S19: both tiers hold the same records; no node let go of a block that no manifest names."""
    found: list[Violation] = []
    ends: dict[int, int] = {}
    for at, event in evidence.of(TierDumped):
        assert isinstance(event, TierDumped)
        ends[event.log] = event.end
        if event.why:
            text = f"main storage cannot be read: {event.why}"
            found.append(Violation("S19", text, event.log, event.start, (event,)))
        else:
            found.extend(_held(evidence, event, at))
    if ends or any(isinstance(e, NodeDumped) and e.tier for _, e in evidence.of(NodeDumped)):
        for _, event in evidence.of(NodeDumped):
            assert isinstance(event, NodeDumped)
            if event.tier >= max(1, ends.get(event.log, 0)):
                text = (
                    f"node {event.node} deleted its copies up to {format_lsn(event.tier)}, but "
                    f"main storage ends at {format_lsn(ends.get(event.log, 0))}"
                )
                found.append(Violation("S19", text, event.log, event.tier, (event,)))
    return found


def _held(evidence: Evidence, event: TierDumped, at: int) -> Iterator[Violation]:
    """Every acknowledged record is at its place, and there is no other record."""
    held: dict[int, str | None] = {}
    for slots in event.slots:
        if slots.kind is not SlotKind.DATA:
            continue
        for offset, payload in enumerate(slots.payloads):
            lsn = slots.first + offset
            if lsn in held:
                text = f"main storage holds {format_lsn(lsn)} twice"
                yield Violation("S19", text, event.log, lsn, (event,))
            held[lsn] = payload.id
            if not evidence.is_genuine(event.log, payload):
                text = f"main storage holds {payload.id}, which no client sent"
                yield Violation("S19", text, event.log, lsn, (event,))
    first = max(event.start, evidence.trim_asked(event.log, at) + 1)
    for ack in evidence.acks_within(event.log, first, event.end - 1):
        if held.get(ack.lsn) != ack.payload.id:
            told = held.get(ack.lsn) or "nothing"
            text = f"{ack.payload.id} was acknowledged, but main storage holds {told} there"
            witness = ack.append.end or ack.append.invoked
            yield Violation("S19", text, event.log, ack.lsn, (witness, event))
