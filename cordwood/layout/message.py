"""Control messages (calls, replies and faults) as MessagePack with fixed schemas.

A CALL frame holds one of `Call`, its REPLY one of `Reply`, its FAULT a `Fault`. Unknown fields are
ignored, unknown tags are refused. No append waits for a message of this module.

Source: docs/design.md §4 ("msgspec (control messages only)"); docs/sources/reliability.md §7 (7).
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from cordwood.block import Buffer
from cordwood.errors import BadSetting, Malformed
from cordwood.layout.log_questions import (
    AskCopies,
    AskExtent,
    AskIfLost,
    AskKept,
    AskSize,
    AskTime,
    CopiesReply,
    ExtentReply,
    IfLostReply,
    KeptReply,
    SizeReply,
    TimeReply,
    Trim,
    TrimReply,
)
from cordwood.layout.message_consumers import ConsumerCall, ConsumerReply, ConsumersReply
from cordwood.layout.message_faults import AppendFault as AppendFault
from cordwood.layout.message_faults import Fault as Fault
from cordwood.layout.message_faults import to_error as to_error
from cordwood.layout.message_faults import to_fault as to_fault
from cordwood.layout.message_fields import (
    U32,
    U62,
    AnyLsn,
    Attempt,
    Name,
    Sentence,
)
from cordwood.layout.message_impact import AskFitness, AskImpact, FitnessReply, ImpactReply
from cordwood.layout.message_ledgers import (
    AddReply,
    AutorecoveryReply,
    EntriesReply,
    LacReply,
    LedgerCall,
    LedgerIdReply,
    LedgerReply,
    LedgersReply,
    RunReply,
)
from cordwood.layout.message_logs import (
    AskDirectory,
    AskEpochs,
    CreateLog,
    DirectoryReply,
    EpochNodes,
    EpochsReply,
    FindLog,
    ListLogs,
    LogReply,
    LogsReply,
)
from cordwood.layout.message_maintenance import MaintenanceCall, MaintenanceReply
from cordwood.layout.message_nodes import (
    AskMembers,
    MemberInfo,
    MembersReply,
    SetAuthority,
    SetStorage,
)
from cordwood.layout.message_rebuilding import RebuildCall, RebuildReply
from cordwood.layout.message_rights import (
    AskVersion,
    DeleteLog,
    RaiseToken,
    RenameLog,
    SetAttributes,
    VersionReply,
)
from cordwood.layout.message_staging import (
    PublicationReply,
    PublishCall,
    StagedPlaces,
    StagedReply,
    StagingCall,
)
from cordwood.layout.scrub_state import ScrubState

Message = TypeVar("Message")

ASK_LOGS_MAX = 10_000
"""Logs of one AskReleased: a frame of 90 KB, answered in a few milliseconds."""


class LogState(Struct, frozen=True):
    """One log on one node, for the output of `status` commands.

    Attributes:
        readable: the last LSN that the node may send to readers: it is below `released` while the
            node has to delete blocks that a recovery did not keep.
    """

    log: U62
    sequencing: bool
    epoch: U32
    lng: AnyLsn
    released: AnyLsn
    blocks: int
    bytes: int
    sealed: U32
    readable: AnyLsn = 0


class StatusReply(Struct, frozen=True, tag="status"):
    """A node's own view of its state and of its cluster.

    Attributes:
        uptime_s: seconds since it started.
        wal_used_bytes, wal_capacity_bytes: the ring, as of now.
        cache_bytes: bytes that are not in LogsDB yet.
        logs_bytes, partitions: of LogsDB.
        scrub: the progress of scrubbing.
        appended_records, stored_blocks, sent_blocks, sent_bytes: since it started.
        failed: why the node cannot store, "" if it can.
        filtered_blocks: blocks that this node did not send to readers, because another node sends
            them.
    """

    node: U32
    cluster: bytes
    version: Name
    uptime_s: float
    wal_used_bytes: int
    wal_capacity_bytes: int
    cache_bytes: int
    connections: int
    appended_records: int
    stored_blocks: int
    failed: Sentence
    members: list[MemberInfo]
    logs: list[LogState]
    logs_bytes: int = 0
    partitions: int = 0
    sent_blocks: int = 0
    sent_bytes: int = 0
    filtered_blocks: int = 0
    scrub: ScrubState = ScrubState()


class TailReply(Struct, frozen=True, tag="tail"):
    """`released` is the last LSN that readers may see; (E, 0) if epoch E is empty so far. Blocks up
    to `numbered` have their LSNs."""

    epoch: U32
    released: AnyLsn
    node: U32
    numbered: AnyLsn = 0


class ReleasedReply(Struct, frozen=True, tag="released"):
    """The released LSN of each log of an `AskReleased`, in its order; 0 for a log that this node
    does not sequence."""

    released: list[AnyLsn]


class SealReply(Struct, frozen=True, tag="sealed"):
    """A node's answer to a seal.

    Attributes:
        lngs: by epoch, the LNG. Epochs without a known LNG are left out.
        append_time_us: the latest append time that it knows for this log, 0 for none.
        produced: by epoch, the producers' blocks in it; see `layout.produced`.
        is_sure: whether it knows all records that it ever stored. A node that lost records may have
            held later records than it knows.
        quiet_us: the time since it last stored a record of the log, or since its start if that is
            shorter, by its steady clock.
        begun: the highest epoch of which it knows that a sequencer began it, 0 for none. A node of
            an older version leaves it out.
    """

    lngs: dict[int, int]
    append_time_us: int
    produced: dict[int, bytes] = {}
    is_sure: bool = True
    quiet_us: Annotated[int, Meta(ge=0, le=2**62)] = 0
    begun: U32 = 0


class DoneReply(Struct, frozen=True, tag="done"):
    """The reply to a call that was carried out and has no other answer."""


class AskStatus(Struct, frozen=True, tag="ask_status"):
    """Asks for a node's own view of its state."""


class AskTail(Struct, frozen=True, tag="ask_tail"):
    """Asks a log's sequencer for the tail, and starts a sequencer if there is none. `activate_here`
    starts it on the asked node."""

    log: U62
    activate_here: bool


class AskReleased(Struct, frozen=True, tag="ask_released"):
    """Asks for the released LSNs of many logs of which this node is the sequencer.

    Cheaper than AskTail and weaker: no node confirms that this sequencer is still the owner, so the
    answer may lie below the tail, and no sequencer is started.
    """

    logs: Annotated[list[U62], Meta(max_length=ASK_LOGS_MAX)]


class Ping(Struct, frozen=True, tag="ping"):
    """Asks for any answer: it shows that the node is there."""


class Seal(Struct, frozen=True, tag="seal"):
    """Refuse stores into epochs below `epoch`, for good. Asks for the LNGs of the epochs `[clean +
    1, epoch)`."""

    log: U62
    epoch: U32
    clean: U32


class Clean(Struct, frozen=True, tag="clean"):
    """Epoch `epoch` is mended and over.

    Attributes:
        seal: the recovery's own epoch; its blocks carry it.
        lng: above this LSN, only blocks of that attempt count.
        produced: the log's producers at its end; see `layout.produced`.
        attempt: among recoveries under one seal, a later recovery has a higher number.
    """

    log: U62
    epoch: U32
    seal: U32
    lng: AnyLsn
    produced: bytes = b""
    attempt: Attempt = 1


class Yield(Struct, frozen=True, tag="yield"):
    """The node that took epoch `epoch` asks the log's sequencer to finish and stop.

    Attributes:
        node: the successor; clients are sent there.
    """

    log: U62
    epoch: U32
    node: U32


class AskEpoch(Struct, frozen=True, tag="ask_epoch"):
    """Asks what the node knows of the end of an epoch."""

    log: U62
    epoch: U32


class EpochReply(Struct, frozen=True, tag="epoch"):
    """The end of an epoch, as `Clean` told it. `known` is False if the node did not get a `Clean`
    for it."""

    known: bool
    seal: U32
    lng: AnyLsn
    produced: bytes = b""
    attempt: Attempt = 1


class TellNodesets(Struct, frozen=True, tag="tell_nodesets"):
    """Keep which nodes may hold each epoch's records, complete up to `epoch`.

    Attributes:
        begins: whether `epoch` begins after this call: a node that knows records of it or of a
            higher epoch refuses. A node of an older version does not check.
    """

    log: U62
    epoch: U32
    history: list[EpochNodes]
    begins: bool = False


class AskNodesets(Struct, frozen=True, tag="ask_nodesets"):
    """Asks for the nodes that may hold each epoch's records, as far as the asked node was told."""

    log: U62


class NodesetsReply(Struct, frozen=True, tag="nodesets"):
    """The nodes of each epoch, with their locations, complete up to `epoch`. `epoch` is 0 if the
    node was told nothing."""

    epoch: U32
    history: list[EpochNodes]
    members: list[MemberInfo]


class StreamState(Struct, frozen=True):
    """One read stream at one node, for people.

    Attributes:
        reader: the reader: `a client`, or `node 3` for that node's recovery.
        next: the next LSN to send.
        sent_bytes: since its reader's last request.
        waits: the reason of its wait: `connection`, `window`, `credit`; "" for new records.
    """

    log: U62
    reader: Name
    next: AnyLsn
    until: int
    window_high: AnyLsn
    sent_bytes: int
    single_copy: bool
    known_down: list[U32]
    waits: Name


class AskStreams(Struct, frozen=True, tag="ask_streams"):
    """Asks for the node's read streams."""


class StreamsReply(Struct, frozen=True, tag="streams"):
    """A node's read streams, by log."""

    streams: list[StreamState]


Call = (
    AskMembers | FindLog | CreateLog | ListLogs | AskStatus | AskTail | AskEpoch | Ping
    | Seal | Clean | AskReleased | Yield | ConsumerCall | AskStreams | SetAttributes
    | AskDirectory | DeleteLog | RenameLog | AskEpochs | StagingCall | PublishCall | RaiseToken
    | Trim | AskTime | AskExtent | AskSize | TellNodesets | AskNodesets | SetAuthority | SetStorage
    | AskKept | AskIfLost | AskVersion | AskCopies | RebuildCall | LedgerCall
    | AskImpact | AskFitness | MaintenanceCall
)  # fmt: skip
Reply = (
    MembersReply | LogReply | LogsReply | StatusReply | TailReply | SealReply | EpochReply
    | DoneReply | ReleasedReply | ConsumerReply | ConsumersReply
    | StreamsReply | DirectoryReply | EpochsReply | StagedReply | StagedPlaces | PublicationReply
    | TrimReply | TimeReply | ExtentReply | SizeReply | NodesetsReply | KeptReply | IfLostReply
    | VersionReply | CopiesReply | RebuildReply
    | AddReply | EntriesReply | RunReply | LacReply | LedgerReply | LedgerIdReply | LedgersReply
    | AutorecoveryReply | ImpactReply | FitnessReply | MaintenanceReply
)  # fmt: skip


_encoder = msgspec.msgpack.Encoder()
_calls: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_faults = msgspec.msgpack.Decoder(Fault)
_append_faults = msgspec.msgpack.Decoder(list[AppendFault])


def pack(message: Call | Reply | Fault | list[AppendFault]) -> bytes:
    """Any control message as MessagePack."""
    return _encoder.encode(message)


def check_call(message: Call) -> None:
    """Refuse a call that nodes could not read: they would close the connection, and fail all calls
    in flight.

    Raises:
        BadSetting: an argument is not text, too long, or otherwise not valid.
    """
    try:
        _calls.decode(_encoder.encode(message))
    except (UnicodeError, OverflowError) as error:
        is_text = isinstance(error, UnicodeError)
        what = "text that is not UTF-8" if is_text else "a number over 64 bits"
        raise BadSetting(f"{type(message).__name__} cannot ask with {what}") from None
    except (msgspec.DecodeError, RecursionError, TypeError) as error:
        raise BadSetting(f"{type(message).__name__} cannot be asked for so: {error}") from None


def read_call(payload: Buffer) -> Call:
    """A CALL payload.

    Raises:
        Malformed: not one of `Call`.
    """
    return _decode(_calls, payload, "a call")


def read_reply(payload: Buffer) -> Reply:
    """A REPLY payload.

    Raises:
        Malformed: not one of `Reply`.
    """
    return _decode(_replies, payload, "a reply")


def read_fault(payload: Buffer) -> Fault:
    """A FAULT payload.

    Raises:
        Malformed: not a fault.
    """
    return _decode(_faults, payload, "a fault")


def read_append_faults(payload: Buffer) -> list[AppendFault]:
    """An APPEND_FAULTS payload.

    Raises:
        Malformed: not a list of append faults.
    """
    return _decode(_append_faults, payload, "append faults")


def _decode(decoder: msgspec.msgpack.Decoder[Message], payload: Buffer, what: str) -> Message:
    # RecursionError: a field that this version skips may have arrays nested a thousand deep.
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what} that this version does not know: {error}") from None
