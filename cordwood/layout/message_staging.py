"""Control messages of staging and publishing; `layout.message` has all others, and the reading.

A staged block travels as a call, body and all: its limit is that of a control frame.

Source: docs/design.md §9.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.staged import MOVES_MAX
from cordwood.nodes import COPIES_MAX

STAGED_BODY_BYTES_MAX = 7 << 19
"""3.5 MiB: it fits a control frame of 4 MiB, with space for the rest."""

STAGES_MAX = 4096
"""Staged blocks in one batch, and in one call: the metadata store's entry names them all."""

_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_U62 = Annotated[int, Meta(ge=1, le=2**62 - 1)]
_Lsn = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Attempt = Annotated[int, Meta(ge=0, le=2**53)]
_Batch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Name = Annotated[str, Meta(max_length=255)]
_Ids = Annotated[list[_Id], Meta(max_length=STAGES_MAX)]


_Nodes = Annotated[list[_U32], Meta(max_length=COPIES_MAX)]
_Moves = Annotated[int, Meta(ge=0, le=MOVES_MAX)]


class StageBlock(Struct, frozen=True, tag="stage"):
    """Store a block without LSNs durably. Unless it is pinned, the node deletes it after the given
    time.

    Attributes:
        nodes: the copyset.
        moves: how often it was changed.
        query, attempt: the attempt that pinned the block, if a donor sends it; attempt 0 for none.
    """

    stage: _Id
    log: _U62
    ttl_ms: _U32
    records: _U32
    codec: _U32
    raw_bytes: _U32
    stored_crc: _U32
    raw_crc: _U32
    body: Annotated[bytes, Meta(max_length=STAGED_BODY_BYTES_MAX)]
    nodes: _Nodes = []
    moves: _Moves = 0
    query: _Name = ""
    attempt: _Attempt = 0


class PinStaged(Struct, frozen=True, tag="pin_staged"):
    """Keep these blocks until the outcome of this attempt is known; all of them or none.

    Attributes:
        moves: by block, how often its copyset was changed, as far as the caller knows; empty if it
            is 0 for each. The node refuses a pin with an older copyset, because the block is on
            other nodes by then.
    """

    query: _Name
    attempt: _Attempt
    stages: _Ids
    moves: Annotated[list[_Moves], Meta(max_length=STAGES_MAX)] = []


class Unstage(Struct, frozen=True, tag="unstage"):
    """Drop these blocks, except those that another attempt pinned."""

    query: _Name
    attempt: _Attempt
    stages: _Ids


class AskStaged(Struct, frozen=True, tag="ask_staged"):
    """Asks for a staged block with its body."""

    stage: _Id


class StagedReply(Struct, frozen=True, tag="staged"):
    """A staged block; see `StageBlock`."""

    log: _U62
    records: _U32
    codec: _U32
    raw_bytes: _U32
    stored_crc: _U32
    raw_crc: _U32
    body: bytes


class StagePlace(Struct, frozen=True, array_like=True):
    """The copyset of a staged block, and how often it was changed."""

    stage: _Id
    nodes: _Nodes
    moves: _Moves


class PlaceStaged(Struct, frozen=True, tag="place_staged"):
    """Tells the new copyset of a block. A node that is not in it drops the block."""

    place: StagePlace


class FindStaged(Struct, frozen=True, tag="find_staged"):
    """Asks which of these blocks the node has, and for their copysets."""

    stages: _Ids


class StagedPlaces(Struct, frozen=True, tag="staged_places"):
    """The blocks that are on this node."""

    places: Annotated[list[StagePlace], Meta(max_length=STAGES_MAX)]


class BlockPlace(Struct, frozen=True, array_like=True):
    """A staged block of a batch; see `protocol.publishing.StagedBlock`."""

    stage: _Id
    nodes: Annotated[list[_U32], Meta(min_length=1, max_length=16)]
    records: _U32
    stored_bytes: _U32


class LogBlocks(Struct, frozen=True):
    """A batch's share of one log; see `protocol.publishing.LogShare`."""

    log: _U62
    name: _Name
    blocks: Annotated[list[BlockPlace], Meta(min_length=1, max_length=STAGES_MAX)]


_Fingerprint = Annotated[str, Meta(max_length=64)]
"""A digest, as text, of the records of a batch. The publisher computes it; "" for none."""


class AskPublication(Struct, frozen=True, tag="ask_publication"):
    """Asks for the progress of a query."""

    query: _Name


class BeginPublish(Struct, frozen=True, tag="begin_publish"):
    """Take an attempt at a batch; see `protocol.publishing.begin`."""

    query: _Name
    batch: _Batch


class CommitPublish(Struct, frozen=True, tag="commit_publish"):
    """Commit a batch; see `protocol.publishing.commit`."""

    query: _Name
    batch: _Batch
    attempt: _Attempt
    shares: Annotated[list[LogBlocks], Meta(max_length=STAGES_MAX)]
    fingerprint: _Fingerprint = ""


class FinishPublish(Struct, frozen=True, tag="finish_publish"):
    """Says that a commit is in the logs. It has the first and the last LSN by the log's name."""

    query: _Name
    commits: _U32
    spans: dict[_Name, tuple[_Lsn, _Lsn]]


class PublicationReply(Struct, frozen=True, tag="publication"):
    """A query; see `protocol.publishing.Publication`.

    Attributes:
        batch: -1 for none.
        group_bytes_max: the answering node's bound of an atomic group.
    """

    producer: _Lsn
    attempt: _Attempt
    batch: int
    commits: _U32
    committed_by: _Attempt
    is_done: bool
    shares: list[LogBlocks]
    spans: dict[str, tuple[int, int]]
    group_bytes_max: int
    fingerprint: _Fingerprint = ""


StagingCall = StageBlock | PinStaged | Unstage | AskStaged | PlaceStaged | FindStaged
PublishCall = AskPublication | BeginPublish | CommitPublish | FinishPublish
