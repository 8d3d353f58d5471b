"""L4: at the end, other nodes hold the data of lost disks, copies that rotted in LogsDB are good
again in their place, and envelopes are true.

S15 counts the copies. L4 checks that every node that the envelope of a block names has the block.
Readers use the envelope to know which node sends, and donors use it to find the missing copy.
Losses of a WAL are repaired like rot, so L4 holds for every run within tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.unseen import unseen_losses
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import (
    CopiesMended,
    DisksReplaced,
    EventSetsDiffer,
    LedgersLacking,
    OlderFragmentsLacking,
    RebalanceOver,
    StaleServed,
    UploadsLeft,
    WordsLeft,
)
from cordwood.sim.history import DumpedSlots, NodeDumped


def check_rebuilt(evidence: Evidence) -> list[Violation]:
    """L4: no data stays lost, and each block and entry is where it should be."""
    for _, event in evidence.of(WordsLeft):
        assert isinstance(event, WordsLeft), "as asked for"
        text = f"nodes {list(event.nodes)} are up, but the statuses of their data remain"
        return [Violation("L4", text, 0, 0, (event,))]
    for _, event in evidence.of(UploadsLeft):
        assert isinstance(event, UploadsLeft), "as asked for"
        text = (
            f"main storage lacks records of logs {list(event.logs)}, and ledgers "
            f"{list(event.ledgers)}, although a node reaches it"
        )
        return [Violation("L4", text, 0, 0, (event,))]
    for _, event in evidence.of(RebalanceOver):
        assert isinstance(event, RebalanceOver), "as asked for"
        if event.waits:
            text = f"nodes {list(event.waits)} did not move their part of a rebalance"
            return [Violation("L4", text, 0, 0, (event,))]
    stale = [event for _, event in evidence.of(StaleServed)]
    if stale:
        text = "a node serves copies that rebuilding moved to other nodes"
        return [Violation("L4", text, 0, 0, (stale[0],))]
    for _, event in evidence.of(EventSetsDiffer):
        assert isinstance(event, EventSetsDiffer), "as asked for"
        text = f"nodes {list(event.nodes)} built different sets from the same events"
        return [Violation("L4", text, 0, 0, (event,))]
    ends = [event for _, event in evidence.of(DisksReplaced, CopiesMended)]
    if not ends:
        return []
    found = []
    for event in ends:
        if isinstance(event, DisksReplaced) and event.waits:
            text = f"nodes {list(event.waits)} are still lost, long after the faults ended"
            found.append(Violation("L4", text, 0, 0, (event,)))
        if isinstance(event, CopiesMended) and event.waits:
            text = f"nodes {list(event.waits)} have rotten or lost copies, long after the faults"
            found.append(Violation("L4", text, 0, 0, (event,)))
    return [*found, *_lacking_ledgers(evidence), *_false_envelopes(evidence)]


def _lacking_ledgers(evidence: Evidence) -> Iterator[Violation]:
    for _, event in evidence.of(OlderFragmentsLacking):
        assert isinstance(event, OlderFragmentsLacking), "as asked for"
        if event.ledgers:
            text = f"older fragments of open ledgers {list(event.ledgers)} lack copies"
            yield Violation("L4", text, 0, 0, (event,))
    for _, event in evidence.of(LedgersLacking):
        assert isinstance(event, LedgersLacking), "as asked for"
        if event.ledgers:
            text = f"ledgers {list(event.ledgers)} have entries with fewer copies than Qa"
            yield Violation("L4", text, 0, 0, (event,))
        if event.marked:
            text = "marks of ledgers that lack copies remain, long after the faults ended"
            yield Violation("L4", text, 0, 0, (event,))


def _false_envelopes(evidence: Evidence) -> Iterator[Violation]:
    holders: dict[tuple[int, int, int], dict[int, DumpedSlots]] = {}
    dumps: dict[int, dict[int, NodeDumped]] = {}
    for _, event in evidence.of(NodeDumped):
        assert isinstance(event, NodeDumped), "as asked for"
        dumps.setdefault(event.log, {})[event.node] = event
        for slots in event.slots:
            if slots.copyset and slots.intact and not slots.set_aside:
                place = (event.log, slots.first, slots.last)
                holders.setdefault(place, {})[event.node] = slots
    unsure = unseen_losses(evidence)
    for (log, first, last), nodes in sorted(holders.items()):
        if last <= evidence.trim_held(log):
            continue
        best = max(nodes.values(), key=_order)
        lacking = [node for node in best.copyset if node not in nodes and node not in unsure]
        if lacking:
            text = (
                f"the copyset of the block at {format_lsn(first)} is {list(best.copyset)}, "
                f"but nodes {lacking} lack it"
            )
            yield Violation("L4", text, log, first, tuple(dumps[log].values()))


def _order(slots: DumpedSlots) -> tuple[int, int]:
    return slots.seal_epoch, slots.wave
