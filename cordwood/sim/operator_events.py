"""Events about what operators say of nodes, and what nodes make of it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import HistoryEvent, LsnValue
from cordwood.sim.slots import DumpedSlots

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Of a record in a node's WAL; a later record of the same node has a higher one."""


class StorageAsked(HistoryEvent, frozen=True, gc=False, tag="storage-asked"):
    """A client is about to say whether a node stores nothing any more, or stores again."""

    client: str
    node: int
    read_only: bool


class StorageTold(HistoryEvent, frozen=True, gc=False, tag="storage-told"):
    """It was told that this is so from now on."""

    client: str
    node: int
    read_only: bool


class StorageKnown(HistoryEvent, frozen=True, gc=False, tag="storage-known"):
    """A node knows it: what it takes from now on comes to `offset` or behind that."""

    node: int
    read_only: bool
    offset: Offset


class BlockKept(HistoryEvent, frozen=True, gc=False, tag="kept"):
    """A block that `stored` tells of as well, on a node that knows that it stores nothing."""

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    offset: Offset


class NodeScanned(HistoryEvent, frozen=True, gc=False, tag="node-scanned"):
    """A client that asked a node for all that it holds of a log was told this.

    Attributes:
        stop: the first LSN that it did not ask for.
        slots: without their payloads.
        is_damaged: the node says that it lost something.
    """

    node: int
    log: int
    stop: int
    slots: tuple[DumpedSlots, ...]
    is_damaged: bool


class RebuildingKnown(HistoryEvent, frozen=True, gc=False, tag="rebuilding-known"):
    """A node knows whose data is said to be gone: it takes no block to `offset` or behind that
    whose copyset names one of them.
    """

    node: int
    rebuilding: tuple[int, ...]
    offset: Offset


class BlockNames(HistoryEvent, frozen=True, gc=False, tag="names"):
    """A block that `stored` tells of as well names these nodes, of which a node knows that."""

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    names: tuple[int, ...]
    offset: Offset


class LossAccepted(HistoryEvent, frozen=True, gc=False, tag="loss-accepted"):
    """An operator accepts what a node lost: from its next start on that is gone."""

    node: int


OperatorEvent: TypeAlias = (
    StorageAsked
    | StorageTold
    | StorageKnown
    | BlockKept
    | NodeScanned
    | LossAccepted
    | RebuildingKnown
    | BlockNames
)
