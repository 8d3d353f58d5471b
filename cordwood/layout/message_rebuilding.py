"""Control messages about rebuilding, between operators and nodes.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, U62, AnyLsn, Attempt, Sentence

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_TimeUs = Annotated[int, Meta(ge=0, le=2**62)]
_Bytes = Annotated[bytes, Meta(max_length=1_000_000)]


class RebuildOrder(enum.Enum):
    """An operator's order about a node."""

    START = "start"
    """The node is lost: rebuild its data."""
    GONE = "gone"
    """The node's data never comes back."""
    DRAIN = "drain"
    UNDRAIN = "undrain"
    ABORT = "abort"
    """Do not rebuild the node: it will be back with its data."""

    @property
    def is_of_drain(self) -> bool:
        """Whether it begins or ends a drain."""
        return self in (RebuildOrder.DRAIN, RebuildOrder.UNDRAIN)


class SayRebuild(Struct, frozen=True, tag="say_rebuild"):
    """An operator's order; answered with RebuildingReply.

    Attributes:
        forced: the order holds even if many nodes are being rebuilt already.
        unless_empty: the end of a drain is refused if the node is empty by then. Versions without
            this field end the drain.
        if_version: of the rebuilding set when the client gave this order. If the set has changed
            since, the order is refused. None for an older client.
        if_mark: `RebuildingSet.mark` of the node in that set, as `if_version`. None for an older
            client, and for the drain of a request for maintenance.
    """

    node: U32
    order: RebuildOrder
    forced: bool = False
    unless_empty: bool = False
    if_version: AnyLsn | None = None
    if_mark: AnyLsn | None = None


class SayRebalance(Struct, frozen=True, tag="say_rebalance"):
    """Nodes are to give shares of their bytes to others: triples of source, target and millionths.
    Without any, the rebalance that is under way ends. Answered with RebuildingReply.

    Attributes:
        if_mark: `RebuildingSet.rebalance_mark` when the client gave this order. If it has changed
            since, the order is refused. None for an older client.
    """

    shares: Annotated[tuple[tuple[U32, U32, U32], ...], Meta(max_length=4096)]
    if_mark: AnyLsn | None = None


class AskHeld(Struct, frozen=True, tag="ask_held"):
    """Asks for the bytes on a node, by nodeset. log, lsn: as in `AskIfLost`."""

    log: Annotated[int, Meta(ge=0, le=2**62 - 1)] = 0
    lsn: AnyLsn = 0


class HeldGroup(Struct, frozen=True, array_like=True):
    """Bytes of settled blocks whose epochs have this nodeset and this number of copies."""

    nodes: Annotated[tuple[U32, ...], Meta(max_length=4096)]
    copies: U32
    bytes: _Count


class HeldReply(Struct, frozen=True, tag="held"):
    """The bytes on a node, as far as this call looked; log, lsn: as in `IfLostReply`."""

    groups: Annotated[tuple[HeldGroup, ...], Meta(max_length=65536)]
    log: Annotated[int, Meta(ge=0, le=2**62 - 1)]
    lsn: AnyLsn


class AskRebuilding(Struct, frozen=True, tag="ask_rebuilding"):
    """Asks which nodes are being rebuilt, and for this node's progress as a donor."""


class DonorState(Struct, frozen=True):
    """A node's work as a donor.

    Attributes:
        version: of the set by which it works; 0 while idle.
        blocks_done, bytes_done: of ended moves, in this version.
        blocks_left, bytes_left: of moves to make, as far as the scan has come.
        bytes_s: the rate of the last seconds.
        blocked: what it waits for; "" for nothing.
        is_looking: whether it still scans for work.
    """

    version: _Count = 0
    blocks_done: _Count = 0
    bytes_done: _Count = 0
    blocks_left: _Count = 0
    bytes_left: _Count = 0
    bytes_s: float = 0.0
    blocked: Sentence = ""
    is_looking: bool = False


class HealState(Struct, frozen=True):
    """The progress of a node at the records that its WAL lost.

    Attributes:
        lost: the records that cannot be read any more, in words; "" for none.
        logs, logs_left: to be gone through; 0 before it began.
        blocks, bytes: stored again, from other nodes.
        waits: why a log is not whole yet, "" for no reason.
    """

    lost: Sentence = ""
    logs: _Count = 0
    logs_left: _Count = 0
    blocks: _Count = 0
    bytes: _Count = 0
    waits: Sentence = ""


class RebuildingReply(Struct, frozen=True, tag="rebuilding"):
    """The rebuilding set (`layout.rebuild_events.pack_set`), and the answering node's part."""

    set: _Bytes
    donor: DonorState
    heal: HealState = HealState()


class AskEvents(Struct, frozen=True, tag="ask_events"):
    """Asks how far this node has followed the event log. The node answers from memory."""


class EventsReply(Struct, frozen=True, tag="events"):
    """The state of a node that follows the event log.

    Attributes:
        set: the last set that was whole (`layout.rebuild_events.pack_set`).
        reached: the follower has seen all up to this LSN; 0 if it follows nothing.
        is_whole: whether `set` is the result of all records up to `reached`.
    """

    set: _Bytes
    reached: AnyLsn
    is_whole: bool


class TellProducers(Struct, frozen=True, tag="tell_producers"):
    """Keep the producers' blocks of an epoch, or the end of the epoch. A donor of a lost node sends
    it, because it may be the last node that knows it.

    Attributes:
        produced: of an epoch that has not ended, its blocks that count; else as of `Clean`.
        seal, lng, attempt: as of `Clean`; seal 0 for an epoch that has not ended.
        append_time_us: no record of the log is younger, as far as the donor knows.
    """

    log: U62
    epoch: U32
    produced: bytes
    seal: U32 = 0
    lng: AnyLsn = 0
    attempt: Attempt = 1
    append_time_us: _TimeUs = 0


RebuildCall = SayRebuild | AskRebuilding | SayRebalance | AskHeld | AskEvents | TellProducers
RebuildReply = RebuildingReply | HeldReply | EventsReply
