"""A history, indexed once for all checkers: its appends and its reads, with their times.

A history that contradicts itself (an answer without a call, a record without an
open read) says nothing about the store, so it is refused as malformed.

Positions are indices into the history: "before" means a smaller position.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

from cordwood.errors import Malformed
from cordwood.lsn import make_lsn
from cordwood.sim.checkers.disk import Disk
from cordwood.sim.end_events import NodesLost
from cordwood.sim.events import AppendAgain
from cordwood.sim.history import (
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    CleanEpochSet,
    EndReason,
    EpochTaken,
    Event,
    FaultsHealed,
    FaultStruck,
    GapDelivered,
    NodeDumped,
    PayloadMark,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    Released,
    RunStarted,
    TailAnswered,
)
from cordwood.sim.node_events import NodesetsKnown
from cordwood.sim.position_events import RetentionTrims, TrimAsked

AppendEnd: TypeAlias = AppendOk | AppendFailed | AppendUnknown
Delivery: TypeAlias = RecordDelivered | GapDelivered


@dataclass(slots=True)
class Append:
    """One call. If it never ended, `end` is None and `end_at` is past all events.

    Attributes:
        agains: the times at which it was made again, each with its position.
    """

    invoked: AppendInvoked
    invoked_at: int
    end_at: int
    end: AppendEnd | None = None
    agains: list[tuple[int, AppendAgain]] = field(default_factory=list)

    @property
    def lsns(self) -> tuple[int, ...]:
        """The acknowledged LSNs, () if the call was not acknowledged."""
        return self.end.lsns if isinstance(self.end, AppendOk) else ()


class Ack(NamedTuple):
    """One acknowledged record."""

    lsn: int
    payload: PayloadMark
    append: Append


@dataclass(slots=True)
class Read:
    """One read of one reader: the records and gaps that it was given, each with its position."""

    started: ReadStarted
    started_at: int
    ended_at: int
    ended: ReadEnded | None = None
    items: list[tuple[int, Delivery]] = field(default_factory=list)
    reader: str = field(init=False)
    log: int = field(init=False)
    _records: list[tuple[int, RecordDelivered]] = field(init=False, default_factory=list)
    _gaps: list[tuple[int, GapDelivered]] = field(init=False, default_factory=list)
    _highest: int = field(init=False)

    def __post_init__(self) -> None:
        self.reader, self.log = self.started.reader, self.started.log
        self._highest = self.started.start - 1

    def on_item(self, at: int, item: Delivery) -> None:
        """Add the next record or gap that the reader was given."""
        entry: Any = (at, item)
        if isinstance(item, RecordDelivered):
            self._records.append(entry)
            last = item.lsn
        else:
            self._gaps.append(entry)
            last = item.last
        if last > self._highest or not self.items:
            self._highest = last
        self.items.append(entry)

    def records(self) -> Sequence[tuple[int, RecordDelivered]]:
        """The records, each with its position in the history."""
        return self._records

    def gaps(self) -> Sequence[tuple[int, GapDelivered]]:
        """The gaps, each with its position in the history."""
        return self._gaps

    @property
    def passed(self) -> int:
        """The last LSN that this read claims to have passed; start - 1 for none."""
        if self.ended and self.ended.reason is EndReason.UNTIL and self.started.until is not None:
            return max(self._highest, self.started.until)
        return self._highest


def last_of(item: Delivery) -> int:
    """The last LSN that a record or gap covers."""
    return item.lsn if isinstance(item, RecordDelivered) else item.last


class EpochStore:
    """The actions of the epoch store for one log, by position.

    Attributes:
        taken, cleaned: its actions, each with its position.
        tails: by epoch, the first report of its end.
        owners: by epoch, the position at which it was first handed out.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[int, EpochTaken]] = []
        self.cleaned: list[tuple[int, CleanEpochSet]] = []
        self.tails: dict[int, CleanEpochSet] = {}
        self.owners: dict[int, int] = {}
        self._epochs: list[int] = []
        self._taken_at: list[int] = []
        self._taken_max: list[int] = []
        self._clean_at: list[int] = []
        self._clean_max: list[int] = []

    def on_taken(self, at: int, event: EpochTaken) -> None:
        """Take one more epoch."""
        self.taken.append((at, event))
        if event.epoch not in self.owners:
            bisect.insort(self._epochs, event.epoch)
            self.owners[event.epoch] = at
        _push_max(self._taken_at, self._taken_max, at, event.epoch)

    def on_clean(self, at: int, event: CleanEpochSet) -> None:
        """Take one more recovered epoch."""
        self.cleaned.append((at, event))
        self.tails.setdefault(event.epoch, event)
        _push_max(self._clean_at, self._clean_max, at, event.epoch)

    def highest_taken(self, at: int) -> int:
        """The highest epoch handed out before `at`, 0 if none."""
        return _max_before(self._taken_at, self._taken_max, at)

    def last_clean(self, at: int) -> int:
        """The last clean epoch as of `at`, 0 if none."""
        return _max_before(self._clean_at, self._clean_max, at)

    def epochs_within(self, first: int, last: int) -> list[int]:
        """The epochs of `[first, last]` that were handed out, ascending."""
        start = bisect.bisect_left(self._epochs, first)
        return self._epochs[start : bisect.bisect_right(self._epochs, last)]

    def tail(self, epoch: int) -> int | None:
        """The recovered end of an epoch, at least (epoch, 0); None if it is not known."""
        cleaned = self.tails.get(epoch)
        return None if cleaned is None else max(cleaned.tail, make_lsn(epoch, 0))


class Trims:
    """Trims of one log that a client or its retention asked for, by position."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._max: list[int] = []

    def on_asked(self, at: int, event: TrimAsked | RetentionTrims) -> None:
        """Take the next requested trim of the history."""
        _push_max(self._at, self._max, at, event.lsn)

    def highest(self, at: int) -> int:
        """The highest LSN of a trim that was asked for before `at`, 0 for none."""
        return _max_before(self._at, self._max, at)


def _push_max(places: list[int], highest: list[int], at: int, value: int) -> None:
    places.append(at)
    highest.append(max(value, highest[-1]) if highest else value)


def _max_before(places: list[int], highest: list[int], at: int) -> int:
    index = bisect.bisect_left(places, at)
    return highest[index - 1] if index else 0


class Releases:
    """The releases of sequencers for one log, by position."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Released]] = []
        self._places: list[int] = []
        self._highest: list[int] = []

    def on_released(self, at: int, event: Released) -> None:
        """Take the next release of the history."""
        self.events.append((at, event))
        _push_max(self._places, self._highest, at, event.lsn)

    def highest(self, at: int) -> int:
        """The highest LSN released before `at`, 0 if none."""
        return _max_before(self._places, self._highest, at)


class Evidence:
    """An indexed history.

    Attributes:
        events: the history.
        run: its header; the defaults if it has none (hand-made histories).
        appends: every call, in the order of invocation.
        origins: payload id to the call that sent it and its place in the call.
        acks: by log, every acknowledged record, by LSN.
        reads: every read, in the order of their starts.
        stores: by log, the actions of the epoch store; a log without any is missing.
        releases: by log, the releases of sequencers; a log without any is missing.
        tails: every answer to `tail()`.
        disks: by log, the nodes' dumps; a log without any is missing.
        healed_at: position from which the liveness promises hold: the first healing after the last
            fault, 0 in a run without faults, None if the faults never stopped.
        lost_at: position at which nodes were first lost for ever, None if none were.
        end_us: time of the last event.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        """Index a history.

        Raises:
            Malformed: it contradicts itself; the text names the event, from 1.
        """
        self.events = events
        self.run = next((e for e in events if isinstance(e, RunStarted)), RunStarted(0))
        self.appends: list[Append] = []
        self._by_type: dict[type, list[tuple[int, Event]]] = defaultdict(list)
        self.origins: dict[str, tuple[Append, int]] = {}
        self.acks: Mapping[int, list[Ack]] = defaultdict(list)
        self.reads: list[Read] = []
        self.stores: dict[int, EpochStore] = {}
        self.releases: dict[int, Releases] = {}
        self.tails: list[TailAnswered] = []
        self.trims: dict[int, Trims] = {}
        self.healed_at: int | None = 0
        self.lost_at: int | None = None
        self._lost: list[tuple[int, tuple[int, ...]]] = []
        self.end_us = events[-1].time_us if events else 0
        self._racks: dict[int, dict[int, dict[int, str]]] | None = None
        self._by_op: dict[int, Append] = {}
        self._open: dict[str, Read] = {}
        self._dumps: dict[int, list[NodeDumped]] = defaultdict(list)
        self._index()
        self.disks = {log: Disk(dumps) for log, dumps in self._dumps.items()}

    @property
    def logs(self) -> list[int]:
        """Every log that was appended to, read, dumped or held an epoch, ascending."""
        named = {append.invoked.log for append in self.appends}
        named |= {read.log for read in self.reads}
        return sorted(named | set(self.stores) | set(self.disks))

    def time_of(self, at: int) -> int:
        """Time of the event at a position; past the last event, the end of the history."""
        return self.events[at].time_us if at < len(self.events) else self.end_us

    def is_genuine(self, log: int, payload: PayloadMark) -> bool:
        """Whether a client sent exactly this payload to this log."""
        origin = self.origins.get(payload.id) if payload.id is not None else None
        if origin is None:
            return False
        invoked = origin[0].invoked
        sent = invoked.payloads[origin[1]]
        return invoked.log == log and sent.crc == payload.crc and sent.length == payload.length

    def key_of(self, payload: PayloadMark) -> str | None:
        """The key with which a record was appended, "" for none; None if no client appended it."""
        origin = self.origins.get(payload.id) if payload.id is not None else None
        if origin is None:
            return None
        append, index = origin
        return append.invoked.keys[index] if append.invoked.keys else ""

    def may_lose(self, at: int) -> bool:
        """Whether data may be gone by then: through damage, or because as many nodes as copies are
        lost."""
        if self.run.beyond_tolerance:
            return True
        if self.lost_at is None or self.lost_at > at:
            return False
        gone = {node for since, nodes in self._lost if since < at for node in nodes}
        return len(gone) >= self.run.copies

    def racks_then(self, log: int, epoch: int) -> Mapping[int, str]:
        """The locations of nodes for an epoch: as its nodeset says, if the history has it."""
        if self._racks is None:
            self._racks = defaultdict(dict)
            for _, event in self.of(NodesetsKnown):
                assert isinstance(event, NodesetsKnown)
                for entry in event.history:
                    racks = dict(zip(entry.nodes, entry.racks, strict=False))
                    self._racks[event.log].setdefault(entry.since, racks)
        known = self._racks.get(log, {})
        since = max((each for each in known if each <= epoch), default=0)
        return known.get(since, {})

    def trim_asked(self, log: int, at: int) -> int:
        """The highest LSN of a log's trims that were asked for before `at`, 0 for none."""
        trims = self.trims.get(log)
        return trims.highest(at) if trims is not None else 0

    def trim_held(self, log: int) -> int:
        """The highest LSN up to which any node let go of a log by the end of the run, trimmed or
        tiered; 0 for none."""
        disk = self.disks.get(log)
        return max((dump.gone for dump in disk.dumps), default=0) if disk is not None else 0

    def acks_within(self, log: int, first: int, last: int) -> list[Ack]:
        """The acknowledged records of `[first, last]`, by LSN."""
        acks = self.acks.get(log, [])
        start = bisect.bisect_left(acks, first, key=attrgetter("lsn"))
        stop = bisect.bisect_right(acks, last, key=attrgetter("lsn"))
        return acks[start:stop]

    def of(self, *types: type[Event]) -> list[tuple[int, Event]]:
        """The events of these kinds in their order, each with its position in the history."""
        found = [each for kind in types for each in self._by_type.get(kind, ())]
        return found if len(types) == 1 else sorted(found, key=itemgetter(0))

    def _index(self) -> None:
        takers: dict[type, Callable[[int, Any], None]] = {
            AppendInvoked: self._on_invoked,
            AppendOk: self._on_end,
            AppendFailed: self._on_end,
            AppendUnknown: self._on_end,
            AppendAgain: self._on_again,
            ReadStarted: self._on_read_started,
            RecordDelivered: self._on_delivery,
            GapDelivered: self._on_delivery,
            ReadEnded: self._on_read_ended,
            EpochTaken: lambda at, e: self.stores.setdefault(e.log, EpochStore()).on_taken(at, e),
            CleanEpochSet: lambda at, e: self.stores.setdefault(e.log, EpochStore()).on_clean(
                at, e
            ),
            Released: lambda at, e: self.releases.setdefault(e.log, Releases()).on_released(at, e),
            TailAnswered: lambda _, e: self.tails.append(e),
            NodeDumped: lambda _, e: self._dumps[e.log].append(e),
            TrimAsked: self._on_trim,
            RetentionTrims: self._on_trim,
            FaultStruck: self._on_fault,
            FaultsHealed: self._on_healed,
            NodesLost: self._on_lost,
        }
        clock_us = 0
        by_type = self._by_type
        for at, event in enumerate(self.events):
            if event.time_us < clock_us:
                raise _malformed(at, "its time is before that of the event above")
            clock_us = event.time_us
            by_type[type(event)].append((at, event))
            taker = takers.get(type(event))
            if taker is not None:
                taker(at, event)
        for acks in self.acks.values():
            acks.sort(key=attrgetter("lsn"))

    def _on_invoked(self, at: int, event: AppendInvoked) -> None:
        if event.op in self._by_op:
            raise _malformed(at, f"append {event.op} is invoked twice")
        append = Append(event, at, len(self.events))
        self._by_op[event.op] = append
        self.appends.append(append)
        if event.keys and len(event.keys) != len(event.payloads):
            raise _malformed(at, f"{len(event.keys)} keys for {len(event.payloads)} records")
        for index, payload in enumerate(event.payloads):
            if payload.id is None:
                raise _malformed(at, "a payload without an id cannot be followed")
            if self.origins.setdefault(payload.id, (append, index)) != (append, index):
                raise _malformed(at, f"payload {payload.id} is sent twice")

    def _on_again(self, at: int, event: AppendAgain) -> None:
        append = self._by_op.get(event.op)
        if append is None or append.end is not None:
            raise _malformed(at, f"append {event.op} is not open")
        append.agains.append((at, event))

    def _on_end(self, at: int, event: AppendEnd) -> None:
        append = self._by_op.get(event.op)
        if append is None or append.end is not None:
            raise _malformed(at, f"append {event.op} is not open")
        append.end = event
        append.end_at = at
        if isinstance(event, AppendOk):
            payloads = append.invoked.payloads
            if len(event.lsns) != len(payloads):
                raise _malformed(at, f"{len(event.lsns)} LSNs for {len(payloads)} records")
            for lsn, payload in zip(event.lsns, payloads, strict=True):
                self.acks[append.invoked.log].append(Ack(lsn, payload, append))

    def _on_read_started(self, at: int, event: ReadStarted) -> None:
        before = self._open.get(event.reader)
        if before is not None:
            before.ended_at = at
        read = Read(event, at, len(self.events))
        self._open[event.reader] = read
        self.reads.append(read)

    def _on_delivery(self, at: int, event: Delivery) -> None:
        read = self._open.get(event.reader)
        if read is None:
            raise _malformed(at, f"reader {event.reader} has no open read")
        read.on_item(at, event)

    def _on_read_ended(self, at: int, event: ReadEnded) -> None:
        read = self._open.pop(event.reader, None)
        if read is None:
            raise _malformed(at, f"reader {event.reader} has no open read")
        read.ended = event
        read.ended_at = at

    def _on_trim(self, at: int, event: TrimAsked | RetentionTrims) -> None:
        self.trims.setdefault(event.log, Trims()).on_asked(at, event)

    def _on_fault(self, at: int, event: FaultStruck) -> None:
        self.healed_at = None

    def _on_healed(self, at: int, event: FaultsHealed) -> None:
        if self.healed_at is None:
            self.healed_at = at

    def _on_lost(self, at: int, event: NodesLost) -> None:
        self._lost.append((at, event.nodes))
        if self.lost_at is None:
            self.lost_at = at


def evidence_of(history: Sequence[Event] | Evidence) -> Evidence:
    """Index a history unless it is indexed already: this costs as much as ten checkers.

    Raises:
        Malformed: it contradicts itself.
    """
    return history if isinstance(history, Evidence) else Evidence(history)


def _malformed(at: int, text: str) -> Malformed:
    return Malformed(f"event {at + 1}: {text}")
