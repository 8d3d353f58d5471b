"""S33 to S36: acknowledged entries stay in a ledger; a ledger has one end; entries have one order;
main storage has all entries of its ledgers.

The archivist recovers every ledger at the end of the run and reads it whole. So an acknowledged
entry that the archivist did not read is lost.

Source: docs/protocol/ledgers.md (Invariants).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.ledger_events import (
    EntryAcked,
    EntryAdded,
    EntryRead,
    EntryRefused,
    LedgerAudited,
    LedgerChecked,
    LedgerEnds,
    LedgerEvent,
    LedgerMade,
)


@dataclass
class _Ledger:
    """The events of one ledger, in their order."""

    made: list[LedgerMade] = field(default_factory=list)
    added: dict[int, EntryAdded] = field(default_factory=dict)
    acked: list[EntryAcked] = field(default_factory=list)
    refused: dict[int, EntryRefused] = field(default_factory=dict)
    read: list[EntryRead] = field(default_factory=list)
    ends: list[LedgerEnds] = field(default_factory=list)
    audited: list[LedgerAudited] = field(default_factory=list)
    checked: list[LedgerChecked] = field(default_factory=list)


def _ledgers(evidence: Evidence) -> dict[int, _Ledger]:
    found: dict[int, _Ledger] = {}
    for _, event in evidence.of(
        LedgerMade, EntryAdded, EntryAcked, EntryRefused, EntryRead, LedgerEnds, LedgerAudited,
        LedgerChecked,
    ):  # fmt: skip
        match event:
            case LedgerMade():
                _of(found, event).made.append(event)
            case EntryAdded():
                _of(found, event).added[event.number] = event
            case EntryAcked():
                _of(found, event).acked.append(event)
            case EntryRefused():
                _of(found, event).refused[event.number] = event
            case EntryRead():
                _of(found, event).read.append(event)
            case LedgerEnds():
                _of(found, event).ends.append(event)
            case LedgerAudited():
                _of(found, event).audited.append(event)
            case LedgerChecked():
                _of(found, event).checked.append(event)
            case _:
                raise AssertionError("no other event was asked for")
    return found


def _of(found: dict[int, _Ledger], event: LedgerEvent) -> _Ledger:
    return found.setdefault(event.ledger, _Ledger())


def check_ledger_entries(evidence: Evidence) -> list[Violation]:
    """S33: every acknowledged entry of a ledger is read unchanged; every entry read was added."""
    found: list[Violation] = []
    for number, ledger in sorted(_ledgers(evidence).items()):
        found += _lost(number, ledger)
        found += _wrong(number, ledger)
    return found


def _lost(number: int, ledger: _Ledger) -> Iterator[Violation]:
    for audit in ledger.audited:
        if audit.error:
            text = f"a recovery and read after the run failed: {audit.error}"
            yield Violation("S33", text, number, 0, (audit,))
    whole = [audit for audit in ledger.audited if not audit.error]
    if not whole:
        return
    read = {each.entry for each in ledger.read if each.client == whole[0].client}
    for ack in ledger.acked:
        if ack.entry not in read:
            text = f"entry {ack.entry} was acknowledged, but it is not in the ledger"
            yield Violation("S33", text, number, 0, (ack, whole[0]))


def _wrong(number: int, ledger: _Ledger) -> Iterator[Violation]:
    by_mark = {added.payload: added for added in ledger.added.values()}
    at = {ack.entry: ledger.added[ack.number] for ack in ledger.acked if ack.number in ledger.added}
    first: dict[int, EntryRead] = {}
    for read in ledger.read:
        added = by_mark.get(read.payload)
        if added is None:
            text = f"entry {read.entry} was read with a payload that no client added to this ledger"
            yield Violation("S33", text, number, 0, (read,))
            continue
        if added.number in ledger.refused:
            text = f"entry {read.entry} was read, but its writer was told that it is not stored"
            yield Violation("S33", text, number, 0, (ledger.refused[added.number], read))
        acked = at.get(read.entry)
        if acked is not None and acked.payload != read.payload:
            text = f"entry {read.entry} was read with another payload than the acknowledged one"
            yield Violation("S33", text, number, 0, (acked, read))
        before = first.setdefault(read.entry, read)
        if before.payload != read.payload:
            text = f"entry {read.entry} was read with two payloads"
            yield Violation("S33", text, number, 0, (before, read))


def check_ledger_ends(evidence: Evidence) -> list[Violation]:
    """S34: a ledger has one writer and one end, and no entry after the end is confirmed."""
    found: list[Violation] = []
    for number, ledger in sorted(_ledgers(evidence).items()):
        if len(ledger.made) > 1:
            text = "two creates of it succeeded"
            found.append(Violation("S34", text, number, 0, tuple(ledger.made[:2])))
        if not ledger.ends:
            continue
        end = ledger.ends[0]
        for other in ledger.ends:
            if (other.last, other.length) != (end.last, end.length):
                text = f"it has two ends, entry {end.last} and entry {other.last}"
                found.append(Violation("S34", text, number, 0, (end, other)))
        found += _wrong_length(number, ledger, end)
        behind: list[EntryAcked | EntryRead] = [*ledger.acked, *ledger.read]
        for each in behind:
            if each.entry > end.last:
                what = "acknowledged" if isinstance(each, EntryAcked) else "read as confirmed"
                text = f"entry {each.entry} was {what}, but the ledger ends at {end.last}"
                found.append(Violation("S34", text, number, 0, (each, end)))
    return found


def _wrong_length(number: int, ledger: _Ledger, end: LedgerEnds) -> Iterator[Violation]:
    for audit in ledger.audited:
        read = {e.entry: e.payload.length for e in ledger.read if e.client == audit.client}
        if not audit.error and end.length != sum(read.values()):
            text = f"its metadata says {end.length} bytes, but {sum(read.values())} were read"
            yield Violation("S34", text, number, 0, (end, audit))


def check_ledger_order(evidence: Evidence) -> list[Violation]:
    """S35: entries are acknowledged and read in the order in which they were added."""
    found: list[Violation] = []
    for number, ledger in sorted(_ledgers(evidence).items()):
        for one, next_one in zip(ledger.acked, ledger.acked[1:], strict=False):
            if next_one.entry <= one.entry or next_one.number <= one.number:
                text = f"entry {next_one.entry} was acknowledged after entry {one.entry}"
                found.append(Violation("S35", text, number, 0, (one, next_one)))
        places = {added.payload: added.number for added in ledger.added.values()}
        last: dict[str, EntryRead] = {}
        for read in ledger.read:
            before = last.get(read.client)
            last[read.client] = read
            if before is None or read.entry <= before.entry:
                continue  # a new read of the follower
            if places.get(read.payload, 1 << 62) <= places.get(before.payload, -1):
                text = f"entries {before.entry} and {read.entry} are not in the order of their adds"
                found.append(Violation("S35", text, number, 0, (before, read)))
            if read.entry != before.entry + 1:
                text = f"a reader got entry {read.entry} after entry {before.entry}"
                found.append(Violation("S35", text, number, 0, (before, read)))
    return found


def check_tiered_ledgers(evidence: Evidence) -> list[Violation]:
    """S36: main storage has every entry of its ledgers, and no node is given copies of them."""
    found: list[Violation] = []
    for number, ledger in sorted(_ledgers(evidence).items()):
        for check in ledger.checked:
            if check.short:
                text = (
                    f"main storage lacks {check.short} entries of it; "
                    f"no node has {check.lost} of them either"
                )
                found.append(Violation("S36", text, number, 0, (check,)))
            if check.filled:
                text = f"it is in main storage, but nodes got {check.filled} copies"
                found.append(Violation("S36", text, number, 0, (check,)))
    return found
