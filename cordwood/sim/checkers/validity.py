"""Whether a run counts: a run that did nothing breaks no promise and proves nothing.

Source: docs/design.md §10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.sim.checkers.evidence import Evidence, evidence_of
from cordwood.sim.history import Event, FaultStruck

ACKED_MIN = 1000
EPOCHS_MIN = 2
FAULT_KINDS_MIN = 3


@dataclass(frozen=True, slots=True)
class Validity:
    """True if the run counts; else `reasons` says why it does not, in words."""

    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.reasons


def run_is_valid(
    history: Sequence[Event] | Evidence,
    *,
    acked_min: int = ACKED_MIN,
    epochs_min: int = EPOCHS_MIN,
    fault_kinds_min: int = FAULT_KINDS_MIN,
) -> Validity:
    """Judge whether a run did enough to count.

    Args:
        acked_min: records acknowledged, over all logs.
        epochs_min: epochs crossed, over all logs: an epoch is crossed when an append of a later
            epoch of its log is acknowledged.
        fault_kinds_min: different kinds of fault that struck.
    Raises:
        Malformed: the history contradicts itself.
    """
    evidence = evidence_of(history)
    acked = sum(len(acks) for acks in evidence.acks.values())
    crossed = sum(_crossed(evidence, log) for log in evidence.logs)
    kinds = {event.kind for event in evidence.events if isinstance(event, FaultStruck)}
    reasons = []
    if acked < acked_min:
        reasons.append(f"{acked} records were acknowledged, {acked_min} are wanted")
    if crossed < epochs_min:
        reasons.append(f"{crossed} epochs were crossed, {epochs_min} are wanted")
    if len(kinds) < fault_kinds_min:
        names = ", ".join(sorted(kinds)) or "none"
        reasons.append(f"{len(kinds)} kinds of fault struck ({names}), not {fault_kinds_min}")
    if evidence.healed_at is None:
        reasons.append("the faults were never healed")
    else:
        reasons.extend(
            f"log {log}: no reader reached the tail after the healing"
            for log in evidence.logs
            if not _tail_was_reached(evidence, log, evidence.healed_at)
        )
    return Validity(tuple(reasons))


def _crossed(evidence: Evidence, log: int) -> int:
    acks = evidence.acks.get(log, [])
    store = evidence.stores.get(log)
    epochs = {ack.lsn >> 32 for ack in acks} | set(store.owners if store else ())
    return sum(epoch < acks[-1].lsn >> 32 for epoch in epochs) if acks else 0


def _tail_was_reached(evidence: Evidence, log: int, healed_at: int) -> bool:
    """Whether a read that was still open at the healing passed the last acknowledged record."""
    acks = evidence.acks.get(log, [])
    return not acks or any(
        read.log == log and read.ended_at > healed_at and read.passed >= acks[-1].lsn
        for read in evidence.reads
    )
