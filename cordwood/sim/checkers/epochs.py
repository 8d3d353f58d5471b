"""Epochs and their ends: S11 one sequencer, S12 no ack after seal, S13 recovery keeps acks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.block import GapKind
from cordwood.lsn import ESN_MAX, format_lsn, make_lsn
from cordwood.sim.checkers.evidence import Ack, Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import EpochTaken, Event


def check_one_sequencer(evidence: Evidence) -> list[Violation]:
    """S11: no epoch is handed out twice or after a higher epoch; only its owner acks in it."""
    found = []
    for log, store in sorted(evidence.stores.items()):
        highest: EpochTaken | None = None
        for _, event in store.taken:
            if highest is not None and event.epoch <= highest.epoch:
                text = f"node {event.node} got epoch {event.epoch} after epoch {highest.epoch}"
                found.append(Violation("S11", text, log, 0, (highest, event)))
            else:
                highest = event
        for ack in evidence.acks.get(log, ()) if store.taken else ():
            if store.owners.get(ack.lsn >> 32, ack.append.end_at) >= ack.append.end_at:
                text = f"{ack.payload.id} was acknowledged in an epoch that no sequencer had"
                found.append(_about_ack("S11", text, log, ack))
    return found


def check_no_ack_after_seal(evidence: Evidence) -> list[Violation]:
    """S12: after an epoch is recovered, nothing past its end is acknowledged in it.

    An append that began after the recovery is not acknowledged in this epoch at all.
    """
    found = []
    for log, store in sorted(evidence.stores.items()):
        for ack in evidence.acks.get(log, ()):
            epoch, append = ack.lsn >> 32, ack.append
            tail = store.tail(epoch)
            if epoch <= store.last_clean(append.invoked_at):
                text = f"{ack.payload.id} was sent after the recovery of epoch {epoch}"
                found.append(_about_ack("S12", text, log, ack, store.tails.get(epoch)))
            elif epoch <= store.last_clean(append.end_at) and tail is not None and ack.lsn > tail:
                text = f"{ack.payload.id} was acknowledged above the recovered end of epoch {epoch}"
                found.append(_about_ack("S12", text, log, ack, store.tails.get(epoch)))
    return found


def check_recovery_keeps_acks(evidence: Evidence) -> list[Violation]:
    """S13: an epoch has one end, and every acknowledged record of it is below the end.

    The end comes from the epoch store (a tail), from a bridge on a disk, and from the first LSN of
    a bridge gap, unless the reader only started there. Where data may be lost with its nodes,
    records may be above an end in the epoch store, but not above a bridge.
    """
    found: list[Violation] = []
    for log in evidence.logs:
        found.extend(_tails(evidence, log))
        found.extend(_bridges(evidence, log))
    return found


def _tails(evidence: Evidence, log: int) -> Iterator[Violation]:
    store = evidence.stores.get(log)
    for at, cleaned in store.cleaned if store is not None else ():
        assert store is not None
        first = store.tails[cleaned.epoch]
        if first.tail != cleaned.tail:
            text = f"epoch {cleaned.epoch} has two ends, one at {format_lsn(first.tail)}"
            yield Violation("S13", text, log, cleaned.tail, (first, cleaned))
        last = make_lsn(cleaned.epoch, ESN_MAX)
        end = max(cleaned.tail, make_lsn(cleaned.epoch, 0))
        for ack in evidence.acks_within(log, end + 1, last):
            if ack.append.end_at < at and not evidence.may_lose(at):
                text = f"{ack.payload.id} was acknowledged, but its epoch ended below it"
                yield _about_ack("S13", text, log, ack, cleaned)


class _Bridge(NamedTuple):
    place: int
    is_exact: bool
    witness: Event


def _bridges(evidence: Evidence, log: int) -> Iterator[Violation]:
    for epoch, bridges in sorted(_collect(evidence, log).items()):
        exact = [bridge for bridge in bridges if bridge.is_exact]
        lowest = min(bridges, key=lambda bridge: bridge.place)
        for bridge in exact:
            if bridge.place != lowest.place:
                place = format_lsn(lowest.place)
                text = f"epoch {epoch} has two bridges, one at {place}"
                shown = (lowest.witness, bridge.witness)
                yield Violation("S13", text, log, bridge.place, shown)
                break
        for ack in evidence.acks_within(log, lowest.place, make_lsn(epoch, ESN_MAX))[:1]:
            text = f"{ack.payload.id} was acknowledged at or above its epoch's bridge"
            yield _about_ack("S13", text, log, ack, lowest.witness)


def _collect(evidence: Evidence, log: int) -> dict[int, list[_Bridge]]:
    """All evidence for the place of a bridge, by epoch; not exact means "there or below"."""
    bridges: dict[int, list[_Bridge]] = defaultdict(list)
    if log in evidence.disks:
        for copy in evidence.disks[log].bridges():
            place = copy.slots.first
            bridges[place >> 32].append(_Bridge(place, True, copy.dump))
    for read in evidence.reads:
        due_inside = read.started.start  # a gap from here may be the rest of a longer bridge
        for _, gap in read.gaps() if read.log == log else ():
            place = max(gap.first, make_lsn(gap.first >> 32, 1))  # (E, 0) holds no bridge
            if gap.kind is GapKind.BRIDGE and place >> 32 and place <= gap.last:
                bridges[place >> 32].append(_Bridge(place, gap.first != due_inside, gap))
                due_inside = gap.last + 1
            elif gap.kind is GapKind.TRIM:
                due_inside = gap.last + 1  # a trim point may lie inside a bridge
    return bridges


def _about_ack(
    invariant: str, text: str, log: int, ack: Ack, witness: Event | None = None
) -> Violation:
    end = ack.append.end or ack.append.invoked
    shown = (end,) if witness is None else (witness, end)
    return Violation(invariant, text, log, ack.lsn, shown)
