"""What may be in a history: its events, each a value that travels as a line of JSON.

What each is for, and who records it when, stands in `sim.history`.

Source: docs/sources/reliability.md §3 ("Checkers in Python").
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import crc32c
import msgspec

from cordwood.block import Buffer, GapKind
from cordwood.sim.end_events import EndEvent
from cordwood.sim.event import EpochValue, HistoryEvent, LsnValue, TimeUs
from cordwood.sim.ledger_events import LedgerEvent
from cordwood.sim.name_events import NameEvent
from cordwood.sim.node_events import NodeEvent
from cordwood.sim.operator_events import OperatorEvent
from cordwood.sim.payload import identify
from cordwood.sim.position_events import PositionEvent
from cordwood.sim.scrub_events import NodeScrubbed
from cordwood.sim.slots import DumpedSlots, PayloadMark
from cordwood.sim.token_events import TokenEvent

FORMAT = 1
"""Version of the form; a reader of another version refuses."""

GIVEN_UP = "GivenUp"
"""The error of an append whose caller did not wait for its end: it was cancelled, it
died, or it closed its client. That is no word on whether the cluster works."""


def mark_payload(payload: Buffer) -> PayloadMark:
    """Take the mark of a payload as it was sent or received."""
    return PayloadMark(identify(payload), crc32c.crc32c(payload), len(payload))


class RunStarted(HistoryEvent, frozen=True, gc=False, tag="run-started"):
    """First of every history: what the run promises.

    Attributes:
        copies, racks, wider: the replication of every log in it; `wider` by scope above
            the rack.
        beyond_tolerance: whether the faults may destroy more copies than the
            replication survives, so that data loss may be reported (exactly).
        seed: of a simulation, None elsewhere.
        format: FORMAT.
    """

    copies: int = 3
    racks: int = 1
    beyond_tolerance: bool = False
    seed: int | None = None
    format: int = FORMAT
    wider: dict[str, int] = msgspec.field(default_factory=dict)


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of which batch of a query an append is a part: what one try brings one log.

    Attributes:
        trial: number of the try, unique for its query; of a batch's tries one counts.
    """

    query: str
    batch: int
    trial: int


class AppendInvoked(HistoryEvent, frozen=True, gc=False, tag="append-invoked"):
    """A client asked for `payloads` to be appended, in this order.

    Attributes:
        op: number of the call, unique in the history.
        client: who called.
        log: the log's number.
        payloads: one mark a record, at least one.
        session: run of calls of this client whose submission order must hold; a
            client that reconnects on purpose or restarts takes another number.
        timeout_us: the call's deadline, 0 if it is not known.
        atomic: the records are one group: all of them or none, one behind the other.
        producer: the producer that it went through, 0 for none.
        producer_epoch: the producer's epoch.
        expected_tail: where the log's last record had to stand, if the call said so.
        published: staged and published as a part of this batch; None for a plain append.
        token: the fencing token that it came under, 0 for none.
        keys: of each record its key, "" for none; () if none has one.
    """

    op: int
    client: str
    log: int
    payloads: Annotated[tuple[PayloadMark, ...], msgspec.Meta(min_length=1)]
    session: int = 0
    timeout_us: TimeUs = 0
    atomic: bool = False
    producer: int = 0
    producer_epoch: int = 0
    expected_tail: LsnValue | None = None
    published: Batch | None = None
    token: int = 0
    keys: tuple[str, ...] = ()


class AppendOk(HistoryEvent, frozen=True, gc=False, tag="append-ok"):
    """Acknowledged: `lsns` has one LSN for each payload, in their order."""

    op: int
    lsns: tuple[LsnValue, ...]


class AppendFailed(HistoryEvent, frozen=True, gc=False, tag="append-failed"):
    """Definitely not stored; `error` is the error's class name.

    Attributes:
        ended_us: when its last try ended, if the call meant to try again and could not; 0: now.
    """

    op: int
    error: str
    ended_us: TimeUs = 0


class AppendUnknown(HistoryEvent, frozen=True, gc=False, tag="append-unknown"):
    """It may or may not be stored; `error` is the error's class name, or GIVEN_UP.

    Attributes:
        ended_us: when its last try ended, if the call meant to try again and could not; 0: now.
    """

    op: int
    error: str
    ended_us: TimeUs = 0


class AppendAgain(HistoryEvent, frozen=True, gc=False, tag="append-again"):
    """A call's last try ended at `ended_us` with `error`; now it is made again at its place."""

    op: int
    error: str
    ended_us: TimeUs


class ReadStarted(HistoryEvent, frozen=True, gc=False, tag="read-started"):
    """A reader starts at `start`, to read up to and including `until` (None: for ever).

    One that reads as a member of a consumer says which.

    Attributes:
        keys: it asks for records with one of these keys only; () asks for all.
        heads: it asks for no payloads, and what it is given says where records are, not which.
        barred: it has not the read token that the log asks for.
    """

    reader: str
    log: int
    start: LsnValue
    until: LsnValue | None = None
    consumer: str = ""
    keys: tuple[str, ...] = ()
    heads: bool = False
    barred: bool = False


class RecordDelivered(HistoryEvent, frozen=True, gc=False, tag="record"):
    """A reader was given a record, of this append time where that is known."""

    reader: str
    lsn: LsnValue
    payload: PayloadMark
    append_us: int = 0


class GapDelivered(HistoryEvent, frozen=True, gc=False, tag="gap"):
    """A reader was given a gap `[first, last]`, both ends included."""

    reader: str
    first: LsnValue
    last: LsnValue
    kind: GapKind


class EndReason(enum.Enum):
    """Why a read ended."""

    UNTIL = "until"
    """It delivered all of `[start, until]`."""
    TAIL = "tail"
    """The workload had stopped appending, and the reader had caught up."""
    STOPPED = "stopped"
    ERROR = "error"


class ReadEnded(HistoryEvent, frozen=True, gc=False, tag="read-ended"):
    """A read is over; `error` is the class name of what ended it, if an error did."""

    reader: str
    reason: EndReason
    error: str = ""


class EpochTaken(HistoryEvent, frozen=True, gc=False, tag="epoch-taken"):
    """The epoch store gave `epoch` of `log` to a sequencer on `node`."""

    log: int
    epoch: EpochValue
    node: int


class CleanEpochSet(HistoryEvent, frozen=True, gc=False, tag="clean-epoch-set"):
    """The epoch store noted that `epoch` and all before are recovered.

    Attributes:
        tail: LSN of the epoch's last record; (epoch, 0) or less if it has none.
    """

    log: int
    epoch: EpochValue
    tail: LsnValue


class Released(HistoryEvent, frozen=True, gc=False, tag="released"):
    """A sequencer (named `by`, one name an activation) released all up to `lsn`."""

    log: int
    lsn: LsnValue
    by: str


class TailAnswered(HistoryEvent, frozen=True, gc=False, tag="tail"):
    """A client that asked for the tail at `invoked_us` was told `lsn`."""

    client: str
    log: int
    lsn: LsnValue
    invoked_us: TimeUs


class GroupChanged(HistoryEvent, frozen=True, gc=False, tag="group"):
    """The metadata store holds a consumer as this from now on.

    Attributes:
        generation: of its members.
        owners: by log name, the member that reads it and the generation since when.
        positions: by log name, the first LSN not dealt with.
        resets: by log name, how often its position was reset.
    """

    consumer: str
    generation: int
    owners: dict[str, tuple[str, int]]
    positions: dict[str, LsnValue]
    resets: dict[str, int] = msgspec.field(default_factory=dict)


class PositionsSaved(HistoryEvent, frozen=True, gc=False, tag="saved"):
    """A member of a consumer, asked at `invoked_us`, was told that these are saved.

    Attributes:
        positions: by log name; only of logs that it was given something of since its last one.
    """

    consumer: str
    member: str
    positions: dict[str, LsnValue]
    invoked_us: TimeUs


class PositionsReset(HistoryEvent, frozen=True, gc=False, tag="reset"):
    """Whoever asked at `invoked_us` was told that a consumer begins these logs again from there."""

    consumer: str
    positions: dict[str, LsnValue]
    invoked_us: TimeUs


class CallFailed(HistoryEvent, frozen=True, gc=False, tag="call-failed"):
    """A client's call that is neither an append nor a read ended with an error.

    Attributes:
        call: the method's name ("tail", "connect", …).
        error: the error's class name.
    """

    client: str
    call: str
    error: str


class FaultStruck(HistoryEvent, frozen=True, gc=False, tag="fault"):
    """A fault begins: its kind ("crash", "partition", …), the nodes hit, more in words."""

    kind: str
    nodes: tuple[int, ...] = ()
    text: str = ""


class FaultEased(HistoryEvent, frozen=True, gc=False, tag="fault-eased"):
    """One fault is over, others may go on."""

    kind: str
    nodes: tuple[int, ...] = ()
    text: str = ""


class NodeStarted(HistoryEvent, frozen=True, gc=False, tag="node-started"):
    """A node runs (again); `rack` is its rack's full name: its location."""

    node: int
    incarnation: int = 0
    rack: str = ""
    weight: float = 1.0


class NodeStarting(HistoryEvent, frozen=True, gc=False, tag="node-starting"):
    """A node begins to start in this rack; others may know it there although it never runs."""

    node: int
    rack: str = ""


class DiskGiven(HistoryEvent, frozen=True, gc=False, tag="disk-given"):
    """A machine was given a disk; `own` if it is the one that its node has written."""

    node: int
    own: bool


class BlockStored(HistoryEvent, frozen=True, gc=False, tag="stored"):
    """A node says that a block or plug of a log is durable: `[first, last]`, both included.

    Attributes:
        is_end: it is a recovery's, and a plug or an amend: a read-only node takes it too.
    """

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    is_end: bool = False


class Idled(HistoryEvent, frozen=True, gc=False, tag="idled"):
    """Nobody wanted anything for a while, and the nodes did this much all the same.

    Attributes:
        nodes: how many ran.
        length_us: for how long.
        callbacks: steps of all nodes' event loops together.
    """

    nodes: int
    length_us: TimeUs
    callbacks: int


class FaultsHealed(HistoryEvent, frozen=True, gc=False, tag="healed"):
    """From here on there are no faults: liveness is owed."""


class NodeDumped(HistoryEvent, frozen=True, gc=False, tag="node-dumped"):
    """All that a node holds of one log when the run is over.

    Attributes:
        rack: as in `NodeStarted`.
        trim: its trim point; nothing is owed up to there.
        tier: up to where it let go of what main storage holds.
    """

    node: int
    rack: str
    log: int
    slots: tuple[DumpedSlots, ...]
    trim: LsnValue = 0
    tier: LsnValue = 0

    @property
    def gone(self) -> int:
        """Up to here it keeps nothing."""
        return max(self.trim, self.tier)


class TierDumped(HistoryEvent, frozen=True, gc=False, tag="tier-dumped"):
    """All that main storage holds of one log when the run is over, past all faults.

    Attributes:
        start, end: what its manifest tells of, `end` not included.
        slots: blocks and plugs, as objects have them.
        why: what cannot be read of it; "" for nothing.
    """

    log: int
    start: LsnValue
    end: int
    slots: tuple[DumpedSlots, ...]
    why: str = ""


Event: TypeAlias = (
    RunStarted
    | AppendInvoked
    | AppendOk
    | AppendFailed
    | AppendUnknown
    | AppendAgain
    | ReadStarted
    | RecordDelivered
    | GapDelivered
    | ReadEnded
    | EpochTaken
    | CleanEpochSet
    | Released
    | TailAnswered
    | GroupChanged
    | PositionsSaved
    | PositionsReset
    | CallFailed
    | FaultStruck
    | FaultEased
    | NodeStarted
    | NodeStarting
    | DiskGiven
    | BlockStored
    | Idled
    | FaultsHealed
    | NodeDumped
    | TierDumped
    | PositionEvent
    | TokenEvent
    | NameEvent
    | LedgerEvent
    | NodeScrubbed
    | EndEvent
    | NodeEvent
    | OperatorEvent
)
