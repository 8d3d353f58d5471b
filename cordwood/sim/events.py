"""The events of a history. Each event is a value, and one line of JSON in a file.

`sim.history` says what records each event, and when.

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
"""Version of the form; a reader of another version refuses the file."""

GIVEN_UP = "GivenUp"
"""The error of an append if its caller did not wait for the end: the caller cancelled it, died, or
closed its client. This error does not say whether the cluster works."""


def mark_payload(payload: Buffer) -> PayloadMark:
    """Take the mark of a payload as it was sent or received."""
    return PayloadMark(identify(payload), crc32c.crc32c(payload), len(payload))


class RunStarted(HistoryEvent, frozen=True, gc=False, tag="run-started"):
    """The first event of every history: the promises of the run.

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
    """The batch of a query that an append belongs to. One try of a batch brings one append to each
    log.

    Attributes:
        trial: number of the try, unique for its query; one of the tries of a batch counts.
    """

    query: str
    batch: int
    trial: int


class AppendInvoked(HistoryEvent, frozen=True, gc=False, tag="append-invoked"):
    """A client called to append `payloads`, in this order.

    Attributes:
        op: number of the call, unique in the history.
        client: the calling client.
        log: the log's number.
        payloads: one mark a record, at least one.
        session: run of calls of this client whose submission order must hold; a client that
            reconnects on purpose or restarts takes a new number.
        timeout_us: the call's deadline, 0 if it is not known.
        atomic: the records are one atomic group: all or none are stored, one after the other.
        producer: the producer that appended, 0 for none.
        producer_epoch: the producer's epoch.
        expected_tail: the tail that a conditional append expects; None for other appends.
        published: the batch with which the records were staged and published; None for a plain
            append.
        token: the fencing token of the append, 0 for none.
        keys: the key of each record, "" for none; () if no record has a key.
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
    """The append may or may not be stored; `error` is the error's class name, or GIVEN_UP.

    Attributes:
        ended_us: when its last try ended, if the call meant to try again and could not; 0: now.
    """

    op: int
    error: str
    ended_us: TimeUs = 0


class AppendAgain(HistoryEvent, frozen=True, gc=False, tag="append-again"):
    """A call's last try ended at `ended_us` with `error`; now the call is made again at its
    place."""

    op: int
    error: str
    ended_us: TimeUs


class ReadStarted(HistoryEvent, frozen=True, gc=False, tag="read-started"):
    """A reader starts at `start`, to read up to and including `until` (None: for ever).

    The member of a consumer names its consumer.

    Attributes:
        keys: it asks for records with one of these keys only; () asks for all.
        heads: it asks for no payloads, so it learns the places of records and not their content.
        barred: it does not have the read token that the log demands.
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
    """A reader was given a record, with its append time if that is known."""

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
    """The read delivered all of `[start, until]`."""
    TAIL = "tail"
    """The workload had stopped appending, and the reader had reached the tail."""
    STOPPED = "stopped"
    ERROR = "error"


class ReadEnded(HistoryEvent, frozen=True, gc=False, tag="read-ended"):
    """A read is over; `error` is the class name of the error that ended it, if any."""

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
    """A sequencer released all records up to `lsn`. `by` names the activation."""

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
    """From now on the metadata store holds this state of a consumer.

    Attributes:
        generation: of its members.
        owners: by log name, the member that reads it, and the generation in which it began to.
        positions: by log name, the first LSN not dealt with.
        resets: by log name, how often its position was reset.
    """

    consumer: str
    generation: int
    owners: dict[str, tuple[str, int]]
    positions: dict[str, LsnValue]
    resets: dict[str, int] = msgspec.field(default_factory=dict)


class PositionsSaved(HistoryEvent, frozen=True, gc=False, tag="saved"):
    """A member of a consumer, whose save began at `invoked_us`, was told that these are saved.

    Attributes:
        positions: by log name; only of logs that gave it something since its last save.
    """

    consumer: str
    member: str
    positions: dict[str, LsnValue]
    invoked_us: TimeUs


class PositionsReset(HistoryEvent, frozen=True, gc=False, tag="reset"):
    """A caller that asked at `invoked_us` was told that a consumer will read these logs from these
    positions."""

    consumer: str
    positions: dict[str, LsnValue]
    invoked_us: TimeUs


class CallFailed(HistoryEvent, frozen=True, gc=False, tag="call-failed"):
    """A call of a client ended with an error. The call is neither an append nor a read.

    Attributes:
        call: the method's name ("tail", "connect", …).
        error: the error's class name.
    """

    client: str
    call: str
    error: str


class FaultStruck(HistoryEvent, frozen=True, gc=False, tag="fault"):
    """A fault begins: its kind ("crash", "partition", …), the nodes hit, and more in words."""

    kind: str
    nodes: tuple[int, ...] = ()
    text: str = ""


class FaultEased(HistoryEvent, frozen=True, gc=False, tag="fault-eased"):
    """One fault is over; other faults may go on."""

    kind: str
    nodes: tuple[int, ...] = ()
    text: str = ""


class NodeStarted(HistoryEvent, frozen=True, gc=False, tag="node-started"):
    """A node runs (again). `rack` is the full name of its rack: its location."""

    node: int
    incarnation: int = 0
    rack: str = ""
    weight: float = 1.0


class NodeStarting(HistoryEvent, frozen=True, gc=False, tag="node-starting"):
    """A node begins to start in this rack. Other nodes may know this location even if the node
    never runs."""

    node: int
    rack: str = ""


class DiskGiven(HistoryEvent, frozen=True, gc=False, tag="disk-given"):
    """A machine was given a disk. `own` says whether its node has written this disk."""

    node: int
    own: bool


class BlockStored(HistoryEvent, frozen=True, gc=False, tag="stored"):
    """A node reports that a block or plug of a log is durable: `[first, last]`, both included.

    Attributes:
        is_end: a recovery stored it as a plug or an envelope update: a read-only node takes it too.
    """

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    is_end: bool = False


class Idled(HistoryEvent, frozen=True, gc=False, tag="idled"):
    """No client called for a while, and the nodes did this much work all the same.

    Attributes:
        nodes: how many ran.
        length_us: length of the quiet time.
        callbacks: steps of all nodes' event loops together.
    """

    nodes: int
    length_us: TimeUs
    callbacks: int


class FaultsHealed(HistoryEvent, frozen=True, gc=False, tag="healed"):
    """From here on there are no faults: the liveness promises hold."""


class NodeDumped(HistoryEvent, frozen=True, gc=False, tag="node-dumped"):
    """All that a node holds of one log at the end of the run.

    Attributes:
        rack: as in `NodeStarted`.
        trim: its trim point; up to there it need hold nothing.
        tier: its tier point; up to there it let go of blocks that main storage holds.
    """

    node: int
    rack: str
    log: int
    slots: tuple[DumpedSlots, ...]
    trim: LsnValue = 0
    tier: LsnValue = 0

    @property
    def gone(self) -> int:
        """The last LSN up to which the node keeps nothing."""
        return max(self.trim, self.tier)


class TierDumped(HistoryEvent, frozen=True, gc=False, tag="tier-dumped"):
    """All that main storage holds of one log at the end of the run, read without faults.

    Attributes:
        start, end: the range that its manifest names, `end` not included.
        slots: blocks and plugs, as objects have them.
        why: the part that cannot be read; "" for none.
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
