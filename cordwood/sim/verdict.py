"""The checkers' verdict on a whole history, in words that a person can follow.

Used by `cordwood verify` and by the users' fixture. A verdict also says what was *not* checked. If
a history lacks the evidence for a promise, the checkers report the promise as kept, but this proves
nothing.

Source: docs/design.md §10; docs/sources/reliability.md §3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cordwood.lsn import format_lsn
from cordwood.sim.checkers import CHECKERS, Validity, Violation, check_all, run_is_valid
from cordwood.sim.end_events import DisksReplaced, PaceBegan
from cordwood.sim.history import (
    AppendInvoked,
    AppendOk,
    BlockStored,
    CleanEpochSet,
    DiskGiven,
    EpochTaken,
    Event,
    FaultStruck,
    GroupChanged,
    Idled,
    NodeDumped,
    PayloadMark,
    PositionsSaved,
    ReadStarted,
    RecordDelivered,
    Released,
    TailAnswered,
    TierDumped,
)
from cordwood.sim.ledger_events import LedgerMade
from cordwood.sim.name_events import NamedRead, NameLeads
from cordwood.sim.node_events import Gauged, NodesetsKnown
from cordwood.sim.operator_events import (
    LossAccepted,
    NodeScanned,
    OrderSeen,
    RebuildingKnown,
    StorageTold,
)
from cordwood.sim.position_events import (
    ExtentTold,
    KeyFound,
    NodeTrimmed,
    ReleasedTold,
    TimeFound,
    TrimAsked,
)
from cordwood.sim.scrub_events import NodeScrubbed

SHOWN_MAX = 4
"""Elements of a list shown in one line; the history has the rest."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A kind of evidence that a history may lack.

    Attributes:
        types: the events that are it.
        all_of, part_of: promises that are not checked, or only in part, without it.
    """

    types: tuple[type, ...]
    all_of: tuple[str, ...]
    part_of: tuple[str, ...] = ()


EVIDENCE: Mapping[str, Evidence] = {
    "appends": Evidence(
        (AppendInvoked,),
        ("S9", "S10", "S21", "S22", "S25", "S29", "L1", "L5"),
        ("S1", "S2", "S12", "S13", "E1"),
    ),
    "calls by a name that changes": Evidence((NameLeads, NamedRead), ("S32",)),
    "what becomes of ledgers": Evidence((LedgerMade,), ("S33", "S34", "S35", "S36")),
    "reads": Evidence(
        (ReadStarted,), ("S2", "S4", "S5", "S6", "S7", "S28", "S31", "L2"), ("S1", "S3", "S8", "E1")
    ),
    "answers about the tail": Evidence((TailAnswered, ReleasedTold), ("S26",)),
    "events of the epoch store": Evidence(
        (EpochTaken, CleanEpochSet), ("S11", "S12", "L3"), ("S7", "S8", "S13")
    ),
    "releases by sequencers": Evidence((Released,), (), ("S8",)),
    "consumers' positions": Evidence((GroupChanged, PositionsSaved), ("S24",)),
    "disks given to nodes": Evidence((DiskGiven,), ("S17",)),
    "stores of the nodes": Evidence((BlockStored,), ("S14",)),
    "nodesets that nodes know": Evidence((NodesetsKnown,), ("S27",)),
    "disks that were lost for good": Evidence((DisksReplaced,), ("L4",)),
    "limits of the nodes": Evidence((Gauged,), ("L6",)),
    "appends beside a hampered node": Evidence((PaceBegan,), ("L7",)),
    "work of idle nodes": Evidence((Idled,), ("L8",)),
    "answers of find_time, find_key and extent": Evidence(
        (TimeFound, KeyFound, ExtentTold), ("S20",)
    ),
    "scrubs of the nodes": Evidence((NodeScrubbed,), ("S16",)),
    "trims": Evidence((TrimAsked, NodeTrimmed), ("S18",)),
    "what main storage holds": Evidence((TierDumped,), ("S19",)),
    "scans of the nodes' copies": Evidence((NodeScanned,), ("O2",)),
    "losses that were accepted": Evidence((LossAccepted,), ("O3",)),
    "nodes that were given up": Evidence((RebuildingKnown,), ("O4",)),
    "words of operators": Evidence((StorageTold,), ("O1",)),
    "orders of operators": Evidence((OrderSeen,), ("O5",)),
    "dumps of the nodes": Evidence((NodeDumped,), ("S15",), ("S1", "S3", "S7", "S13")),
}
"""The kinds of evidence by name."""

_LSNS = frozenset({"lsn", "first", "last", "start", "until", "tail", "trim", "tier"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one history.

    Attributes:
        violations: broken promises, in the order of CHECKERS.
        validity: whether the run did enough to count.
        counts: events by name ("append-ok", …), by name.
        acked, delivered: records acknowledged, and given to readers.
        faults: how often each kind struck.
        length_s: from the first event to the last.
        missing: names of the evidence that the history does not hold, see EVIDENCE.
    """

    violations: tuple[Violation, ...]
    validity: Validity
    counts: Mapping[str, int]
    acked: int
    delivered: int
    faults: Mapping[str, int]
    length_s: float
    missing: tuple[str, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """The ids of the broken promises, each once."""
        return tuple(each for each in CHECKERS if each in {v.invariant for v in self.violations})

    @property
    def checked(self) -> tuple[str, ...]:
        """The promises for which the history holds evidence, at least in part."""
        unseen = {each for name in self.missing for each in EVIDENCE[name].all_of}
        return tuple(each for each in CHECKERS if each not in unseen)


def judge(history: Sequence[Event]) -> Verdict:
    """Run every checker.

    Raises:
        Malformed: the history contradicts itself; the text names the event, from 1.
    """
    violations = tuple(check_all(history))
    seen = {type(event) for event in history}
    return Verdict(
        violations=violations,
        validity=run_is_valid(history),
        counts=dict(sorted(Counter(map(event_name, history)).items())),
        acked=sum(len(event.lsns) for event in history if isinstance(event, AppendOk)),
        delivered=sum(isinstance(event, RecordDelivered) for event in history),
        faults=dict(sorted(Counter(e.kind for e in history if isinstance(e, FaultStruck)).items())),
        length_s=(history[-1].time_us - history[0].time_us) / 1e6 if history else 0.0,
        missing=tuple(name for name, each in EVIDENCE.items() if seen.isdisjoint(each.types)),
    )


def promise_words(invariant: str) -> str:
    """A promise that can be checked, as its checker says it: `S5: any two readers …`."""
    return (CHECKERS[invariant].__doc__ or invariant).splitlines()[0]


def event_name(event: Event) -> str:
    """The event's name in a history file."""
    return str(type(event).__struct_config__.tag)


def event_words(event: Event) -> str:
    """An event in one line: its time, its name, and its important fields."""
    fields = (
        f"{field}={_value(field, value)}"
        for field, value in msgspec.structs.asdict(event).items()
        if field != "time_us" and value not in (None, "", ())
    )
    return f"{event.time_us / 1e6:11.6f} s  {event_name(event)} {' '.join(fields)}"


def violation_words(violation: Violation, lines: Mapping[int, int] | None = None) -> str:
    """A violation and its evidence, one line each.

    Args:
        lines: by `id` of an event, its line in the file.
    """
    shown = [f"  {violation}"]
    for event in violation.evidence:
        place = f"line {lines[id(event)]}" if lines and id(event) in lines else ""
        shown.append(f"    {place:>10} {event_words(event)}")
    return "\n".join(shown)


def _value(field: str, value: object) -> str:
    if isinstance(value, PayloadMark):
        return str(value.id)
    if field == "slots":
        return f"{len(value)} blocks" if isinstance(value, tuple) else str(value)
    if isinstance(value, tuple):
        return _listed(_value("lsn" if field == "lsns" else "", each) for each in value)
    if field in _LSNS and isinstance(value, int):
        return format_lsn(value)
    return str(getattr(value, "value", value))


def _listed(words: Iterable[str]) -> str:
    listed = list(words)
    if len(listed) <= SHOWN_MAX:
        return ",".join(listed)
    return f"{','.join(listed[: SHOWN_MAX - 1])},…,{listed[-1]} ({len(listed)})"
