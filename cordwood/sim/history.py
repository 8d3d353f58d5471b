"""Histories: what clients, readers, nodes and the epoch store saw in one run.

A history is a sequence of events in the order in which they happened. It is written as JSON lines,
one event a line; the first event is `RunStarted`. The simulator, runs of real processes and
`cordwood verify` share this form, and `sim.checkers` judges it. Payloads are kept as marks (id,
CRC, length), not as bytes.

Rules for recording:

- A client records an invocation before the call, and the end after the call. An append that never
  ended counts as *unknown*.
- A reader has a name and at most one read open at a time; a restart is a new
  `ReadStarted` under the same name. Records and gaps belong to the open read.
- `EpochTaken` and `CleanEpochSet` are recorded at the epoch store, at the moment
  its compare-and-set takes effect, so that a lost answer does not lose them.
- `Released` is recorded by a sequencer before it tells clients or nodes. A history that has one of
  them for a log has all of that log; a history without them claims nothing.
- `BlockStored` is recorded at the node, when its disk has the block and before it answers. A
  history with one of them has all.
- `NodeDumped` comes at the end, when no call is in flight.

Times are microseconds of one clock; where two events have the same time, their
order in the history counts.

Source: docs/sources/reliability.md §3 ("Checkers in Python").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from cordwood.block import Buffer, GapKind
from cordwood.errors import Malformed, Overloaded, Rejected, Retryable
from cordwood.sim.events import (
    FORMAT,
    GIVEN_UP,
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    Batch,
    BlockStored,
    CallFailed,
    CleanEpochSet,
    DiskGiven,
    EndReason,
    EpochTaken,
    Event,
    FaultEased,
    FaultsHealed,
    FaultStruck,
    GapDelivered,
    GroupChanged,
    Idled,
    NodeDumped,
    NodeStarted,
    NodeStarting,
    PositionsSaved,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    Released,
    RunStarted,
    TailAnswered,
    TierDumped,
    mark_payload,
)
from cordwood.sim.payload import identify, make_payload
from cordwood.sim.scrub_events import NodeScrubbed
from cordwood.sim.slots import DumpedSlots, PayloadMark, SlotKind

__all__ = [
    "GIVEN_UP",
    "AppendFailed",
    "AppendInvoked",
    "AppendOk",
    "AppendUnknown",
    "Batch",
    "BlockStored",
    "CallFailed",
    "CleanEpochSet",
    "DiskGiven",
    "DumpedSlots",
    "EndReason",
    "EpochTaken",
    "Event",
    "FaultEased",
    "FaultStruck",
    "FaultsHealed",
    "GapDelivered",
    "GroupChanged",
    "HistoryRecorder",
    "Idled",
    "NodeDumped",
    "NodeStarted",
    "NodeStarting",
    "PayloadMark",
    "PositionsSaved",
    "ReadEnded",
    "ReadStarted",
    "RecordDelivered",
    "Released",
    "RunStarted",
    "SlotKind",
    "TailAnswered",
    "TierDumped",
    "from_jsonl",
    "identify",
    "make_payload",
    "mark_payload",
    "to_jsonl",
]

EVENTS_MAX = 10_000_000
"""Most events of one recorder: about 3 GiB. A run with more events should be cut in two."""


def _plain(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"a history cannot hold {value!r}")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)  # the hook is asked about Lsn only
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def to_jsonl(events: Iterable[Event]) -> bytes:
    """Write events as JSON lines."""
    return b"".join(_ENCODER.encode(event) + b"\n" for event in events)


def from_jsonl(data: bytes) -> tuple[Event, ...]:
    """Read what `to_jsonl` wrote.

    Raises:
        Malformed: a line is no known event (the text names the line, from 1), the last line is
            torn, or the first is no `RunStarted` of this format.
    """
    lines = data.split(b"\n")
    if lines.pop():
        raise Malformed(f"line {len(lines) + 1}: the history ends inside a line")
    events = tuple(_decode(number, line) for number, line in enumerate(lines, start=1))
    if not events or not isinstance(events[0], RunStarted):
        raise Malformed("line 1: a history starts with run-started")
    if events[0].format != FORMAT:
        raise Malformed(f"line 1: format {events[0].format} is not {FORMAT}, the one known here")
    return events


def _decode(number: int, line: bytes) -> Event:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"line {number}: {error}") from error


class HistoryRecorder:
    """Records one run. Workloads, readers, the epoch store and the fault plan call it.

    Args:
        now_us: the one clock of the run, microseconds, never falling.
        copies, racks, wider, beyond_tolerance, seed: see `RunStarted`.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        *,
        copies: int = 3,
        racks: int = 1,
        wider: Mapping[str, int] | None = None,
        beyond_tolerance: bool = False,
        seed: int | None = None,
    ) -> None:
        self._now_us = now_us
        self._ops = itertools.count(1)
        self._events: list[Event] = []
        started = RunStarted(now_us(), copies, racks, beyond_tolerance, seed)
        self.add(msgspec.structs.replace(started, wider=dict(wider or {})))

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def now_us(self) -> int:
        """The present time, for events that are made elsewhere."""
        return self._now_us()

    @property
    def events(self) -> tuple[Event, ...]:
        """All events so far."""
        return tuple(self._events)

    def add(self, event: Event) -> None:
        """Take an event made elsewhere.

        Raises:
            Overloaded: the history has EVENTS_MAX events.
        """
        if len(self._events) >= EVENTS_MAX:
            raise Overloaded(f"a history takes {EVENTS_MAX} events: make the run shorter")
        self._events.append(event)

    def append_invoked(
        self,
        client: str,
        log: int,
        payloads: Sequence[Buffer],
        *,
        session: int = 0,
        timeout_s: float = 0.0,
        atomic: bool = False,
        producer: tuple[int, int] = (0, 0),
        expected_tail: int | None = None,
        published: Batch | None = None,
        token: int = 0,
        keys: Sequence[str] = (),
    ) -> int:
        """Note a call before it is made. The returned number names the call from now on.

        Args:
            producer: its id and epoch, zeros for none.
            token, keys: see `AppendInvoked`.
        """
        op = next(self._ops)
        marks = tuple(mark_payload(payload) for payload in payloads)
        timeout_us = round(timeout_s * 1e6)
        expected = None if expected_tail is None else int(expected_tail)
        self.add(
            AppendInvoked(
                self._now_us(),
                op,
                client,
                log,
                marks,
                session,
                timeout_us,
                atomic,
                *producer,
                expected,
                published,
                token,
                tuple(keys),
            )
        )
        return op

    def append_ok(self, op: int, lsns: Sequence[int]) -> None:
        """Note an acknowledgement, one LSN for each payload."""
        self.add(AppendOk(self._now_us(), op, tuple(map(int, lsns))))

    def append_raised(self, op: int, error: BaseException, ended_us: int = 0) -> None:
        """Note a call that raised: as failed only if the error says that nothing was stored.

        Args:
            ended_us: end of its last try, if that was before now.
        """
        name = type(error).__name__
        if isinstance(error, Retryable | Rejected):
            self.add(AppendFailed(self._now_us(), op, name, ended_us))
        else:
            self.add(AppendUnknown(self._now_us(), op, name, ended_us))

    def read_started(
        self,
        reader: str,
        log: int,
        start: int,
        until: int | None = None,
        consumer: str = "",
        *,
        keys: Sequence[str] = (),
        heads: bool = False,
        barred: bool = False,
    ) -> None:
        """Note a (re)start of a reader; `until` is included, None follows for ever."""
        ends = None if until is None else int(until)
        self.add(
            ReadStarted(
                self._now_us(), reader, log, int(start), ends, consumer, tuple(keys), heads, barred
            )
        )

    def group_changed(
        self,
        consumer: str,
        generation: int,
        owners: Mapping[str, tuple[str, int]],
        positions: Mapping[str, int],
        resets: Mapping[str, int] | None = None,
    ) -> None:
        """Note, at the metadata store, the new state of a consumer."""
        states = (dict(owners), dict(positions), dict(resets or {}))
        self.add(GroupChanged(self._now_us(), consumer, generation, *states))

    def positions_saved(
        self, consumer: str, member: str, positions: Mapping[str, int], *, invoked_us: int
    ) -> None:
        """Note that a member was told that its positions are saved."""
        ints = {log: int(lsn) for log, lsn in positions.items()}
        self.add(PositionsSaved(self._now_us(), consumer, member, ints, invoked_us))

    def record_delivered(self, reader: str, lsn: int, payload: Buffer, append_us: int = 0) -> None:
        """Note a record that a reader was given."""
        mark = mark_payload(payload)
        self.add(RecordDelivered(self._now_us(), reader, int(lsn), mark, append_us))

    def gap_delivered(self, reader: str, first: int, last: int, kind: GapKind) -> None:
        """Note a gap `[first, last]` that a reader was given."""
        self.add(GapDelivered(self._now_us(), reader, int(first), int(last), kind))

    def read_ended(
        self, reader: str, reason: EndReason, error: BaseException | None = None
    ) -> None:
        """Note the end of a reader's open read."""
        name = type(error).__name__ if error is not None else ""
        self.add(ReadEnded(self._now_us(), reader, reason, name))

    def epoch_taken(self, log: int, epoch: int, node: int) -> None:
        """Note, at the epoch store, that an epoch was handed out."""
        self.add(EpochTaken(self._now_us(), log, epoch, node))

    def clean_epoch_set(self, log: int, epoch: int, tail: int) -> None:
        """Note, at the epoch store, that an epoch is recovered, with its end."""
        self.add(CleanEpochSet(self._now_us(), log, epoch, int(tail)))

    def released(self, log: int, lsn: int, by: str) -> None:
        """Note, at the sequencer, that readers may see all records up to `lsn`."""
        self.add(Released(self._now_us(), log, int(lsn), by))

    def tail_answered(self, client: str, log: int, lsn: int, *, invoked_us: int) -> None:
        """Note an answer to `tail()`, with the time of the question."""
        self.add(TailAnswered(self._now_us(), client, log, int(lsn), invoked_us))

    def call_failed(self, client: str, call: str, error: BaseException) -> None:
        """Note that a call ended with an error."""
        self.add(CallFailed(self._now_us(), client, call, type(error).__name__))

    def fault_struck(self, kind: str, nodes: Iterable[int] = (), text: str = "") -> None:
        """Note that a fault begins."""
        self.add(FaultStruck(self._now_us(), kind, tuple(nodes), text))

    def fault_eased(self, kind: str, nodes: Iterable[int] = (), text: str = "") -> None:
        """Note that one fault is over."""
        self.add(FaultEased(self._now_us(), kind, tuple(nodes), text))

    def node_started(
        self, node: int, incarnation: int = 0, rack: str = "", weight: float = 1.0
    ) -> None:
        """Note that a node runs (again)."""
        self.add(NodeStarted(self._now_us(), node, incarnation, rack, weight))

    def node_starting(self, node: int, rack: str) -> None:
        """Note that a node begins to start, with its location."""
        self.add(NodeStarting(self._now_us(), node, rack))

    def disk_given(self, node: int, *, own: bool) -> None:
        """Note that a machine got a disk: its node's own disk or another one."""
        self.add(DiskGiven(self._now_us(), node, own))

    def block_stored(
        self, node: int, log: int, first: int, last: int, *, is_end: bool = False
    ) -> None:
        """Note that a block is durable on a node, before the node answers."""
        self.add(BlockStored(self._now_us(), node, log, int(first), int(last), is_end))

    def idled(self, nodes: int, length_s: float, callbacks: int) -> None:
        """Note the work of nodes while no client called."""
        self.add(Idled(self._now_us(), nodes, round(length_s * 1e6), callbacks))

    def faults_healed(self) -> None:
        """Note that there are no faults from here on."""
        self.add(FaultsHealed(self._now_us()))

    def node_scrubbed(
        self,
        node: int,
        log: int,
        passes: int,
        rotten: Iterable[tuple[int, int]],
        damaged: Iterable[tuple[int, int]],
        mended: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Note the blocks of a log that rotted on a node, and those that the node knows to be
        damaged."""
        ranges = (tuple(rotten), tuple(damaged), tuple(mended))
        self.add(NodeScrubbed(self._now_us(), node, log, passes, *ranges))

    def node_dumped(
        self,
        node: int,
        rack: str,
        log: int,
        slots: Iterable[DumpedSlots],
        trim: int = 0,
        tier: int = 0,
    ) -> None:
        """Note all that a node's disk holds of a log at the end of the run."""
        self.add(NodeDumped(self._now_us(), node, rack, log, tuple(slots), int(trim), int(tier)))
