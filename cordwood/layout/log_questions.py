"""Questions to a storage node about its records of a log. The client combines the nodes' answers.

Each question names `until`, the tail that the log's sequencer gave. Nodes leave out records above
it, so all nodes answer for the same part of the log.

Source: docs/sources/logdevice.md 1 ("Positions"), 2.13.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, U62, AnyLsn, TimeUs, Token
from cordwood.nodes import COPIES_MAX

Count = Annotated[int, Meta(ge=0)]


class ForReaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question about a log that may demand its read token for the answer, as it does for its
    records.

    Attributes:
        timeout_ms: how long the caller waits; then the node stops its search. 0 for unknown.
        token: never shown, so the text of a question leaves it out.
    """

    timeout_ms: Annotated[int, Meta(ge=0, le=2**31)] = 0
    token: Token = ""

    def __repr__(self) -> str:
        told = [f"{name}={getattr(self, name)}" for name in self.__struct_fields__[:-1]]
        return f"{type(self).__name__}({', '.join(told)})"


class Trim(Struct, frozen=True, tag="trim"):
    """Delete the records of a log up to `lsn`, for good. All records up to `until` are released."""

    log: U62
    lsn: AnyLsn
    until: AnyLsn


class TrimReply(Struct, frozen=True, tag="trimmed"):
    """The node's trim point, durable; never below the requested one."""

    trim: AnyLsn


class AskTime(ForReaders, frozen=True, tag="ask_time"):
    """Asks for the place of a time among the node's records up to `until`.

    Attributes:
        is_exact: True makes the node look at blocks. False makes it use only the bounds of
            partitions, and the answer may lie earlier.
    """

    log: U62
    time_us: TimeUs
    until: AnyLsn
    is_exact: bool


class TimeReply(Struct, frozen=True, tag="time"):
    """The two blocks of the node between which a time lies.

    Attributes:
        trim: the node's trim point.
        before: the last LSN known to be older, the trim point at least; 0 for none.
        at: the first LSN not known to be older, 0 for none.
        tier: last LSN whose records the node has let go of, because main storage has them; 0 for
            none.
    """

    trim: AnyLsn
    before: AnyLsn
    at: AnyLsn
    tier: AnyLsn = 0


class AskExtent(ForReaders, frozen=True, tag="ask_extent"):
    """Asks where the node's records of a log begin and end, above `above` and up to `until`.

    Attributes:
        above: the trim point of other nodes; the node's own may lie higher.
    """

    log: U62
    until: AnyLsn
    above: AnyLsn = 0


class ExtentReply(Struct, frozen=True, tag="extent"):
    """The first and the last record that the node holds in the asked range, and their times; 0 for
    none.

    `tier` as of `TimeReply`.
    """

    trim: AnyLsn
    first: AnyLsn
    first_us: TimeUs
    last: AnyLsn
    last_us: TimeUs
    tier: AnyLsn = 0


class AskSize(ForReaders, frozen=True, tag="ask_size"):
    """Asks for the approximate bytes of records that the node holds and that were appended in
    `[start, stop)`."""

    log: U62
    start_us: TimeUs
    stop_us: TimeUs


KEPT_LSNS_MAX = 64
"""The most LSNs in one AskKept."""


class AskKept(Struct, frozen=True, tag="ask_kept"):
    """A node asks another node for the bytes that it counts above each of these LSNs."""

    log: U62
    lsns: Annotated[tuple[AnyLsn, ...], Meta(max_length=KEPT_LSNS_MAX)]


class KeptReply(Struct, frozen=True, tag="kept"):
    """An upper bound of the bytes above each LSN: see `storage.space.payload_count`."""

    bytes: Annotated[tuple[AnyLsn, ...], Meta(max_length=KEPT_LSNS_MAX)]


class SizeReply(Struct, frozen=True, tag="size"):
    """The bytes of blocks as stored, of this node's copies only. `tier` is as in `TimeReply`."""

    bytes: int
    tier: AnyLsn = 0


class AskIfLost(Struct, frozen=True, tag="ask_if_lost"):
    """Asks for the blocks that the node would have to give if the data of some nodes were gone.

    Attributes:
        nodes: those nodes, in addition to nodes already reported lost.
        log, lsn: continue after this place, the last answer's end; 0 to begin.
    """

    nodes: Annotated[tuple[U32, ...], Meta(min_length=1, max_length=1024)]
    log: Annotated[int, Meta(ge=0, le=2**62 - 1)] = 0
    lsn: AnyLsn = 0


class IfLostReply(Struct, frozen=True, tag="if_lost"):
    """Blocks that this node would be the donor of, as far as this call looked.

    Attributes:
        blocks, bytes: the blocks that get new copies: number, and bytes sent.
        stuck: blocks with too few nodes left, or nodes in too few domains.
        last: of both, blocks with one copy left.
        gone: blocks with no copy left.
        unknown: blocks of epochs whose nodes this node does not know, and damaged ranges.
        log, lsn: where to continue; log 0 at the end.
    """

    blocks: Count
    bytes: Count
    stuck: Count
    last: Count
    gone: Count
    unknown: Count
    log: Annotated[int, Meta(ge=0, le=2**62 - 1)]
    lsn: AnyLsn


COPIES_ASKED_MAX = 512
"""Blocks in one question."""


class AskCopies(Struct, frozen=True, tag="ask_copies"):
    """Asks another node for its envelopes of these blocks of a log."""

    log: U62
    blocks: Annotated[tuple[tuple[AnyLsn, AnyLsn], ...], Meta(max_length=COPIES_ASKED_MAX)]


class CopyWord(Struct, frozen=True, array_like=True):
    """A node's answer about a block; see `protocol.rebuild_compare`.

    Attributes:
        has: a `rebuild_compare.Has`.
        wave, seal_epoch, by_recovery, copyset: the fields of its envelope. If the node noted a
            move, they are those of the envelope that the block will have after the move.
        is_let_go: with TRIMMED: the block is not trimmed. The node let go of its place, because
            main storage held it.
        is_letting_go: with YES: the node may be about to let go of its copy. Nodes before this
            field do not say it, and pass over it.
    """

    has: Annotated[int, Meta(ge=1, le=4)]
    wave: U32 = 0
    seal_epoch: U32 = 0
    by_recovery: bool = False
    copyset: Annotated[tuple[U32, ...], Meta(max_length=COPIES_MAX)] = ()
    is_let_go: bool = False
    is_letting_go: bool = False


class CopiesReply(Struct, frozen=True, tag="copies"):
    """A `CopyWord` for each block, in the order of the question."""

    words: Annotated[tuple[CopyWord, ...], Meta(max_length=COPIES_ASKED_MAX)]
