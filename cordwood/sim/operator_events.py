"""Events about operators' reports on nodes, and their effects on nodes."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import HistoryEvent, LsnValue
from cordwood.sim.slots import DumpedSlots

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Offset of a record in a node's WAL; a later record of the same node has a higher offset."""


class StorageAsked(HistoryEvent, frozen=True, gc=False, tag="storage-asked"):
    """A client is about to make a node read-only, or let it store again."""

    client: str
    node: int
    read_only: bool


class StorageTold(HistoryEvent, frozen=True, gc=False, tag="storage-told"):
    """The client was told that this holds from now on."""

    client: str
    node: int
    read_only: bool


class StorageKnown(HistoryEvent, frozen=True, gc=False, tag="storage-known"):
    """A node knows of it: all records that the node takes from now on are at `offset` or after
    it."""

    node: int
    read_only: bool
    offset: Offset


class BlockKept(HistoryEvent, frozen=True, gc=False, tag="kept"):
    """A block, also told of by `stored`, on a node that knows that it is read-only."""

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    offset: Offset


class NodeScanned(HistoryEvent, frozen=True, gc=False, tag="node-scanned"):
    """A node's answer to a client that asked for all that it holds of a log.

    Attributes:
        stop: the first LSN after the range of the question.
        slots: the node's blocks, without their payloads.
        is_damaged: the node reports that it lost records.
    """

    node: int
    log: int
    stop: int
    slots: tuple[DumpedSlots, ...]
    is_damaged: bool


class RebuildingKnown(HistoryEvent, frozen=True, gc=False, tag="rebuilding-known"):
    """A node knows the nodes whose data is reported gone. At `offset` or after it, it takes no
    block whose copyset names one of them.
    """

    node: int
    rebuilding: tuple[int, ...]
    offset: Offset


class BlockNames(HistoryEvent, frozen=True, gc=False, tag="names"):
    """A block, also told of by `stored`, names these nodes, although the node knows that their data
    is reported gone."""

    node: int
    log: int
    first: LsnValue
    last: LsnValue
    names: tuple[int, ...]
    offset: Offset


class LossAccepted(HistoryEvent, frozen=True, gc=False, tag="loss-accepted"):
    """An operator accepts what a node lost: from its next start on, these records count as gone."""

    node: int


class OrderAsked(HistoryEvent, frozen=True, gc=False, tag="order-asked"):
    """The only operator of a matter is about to give an order about it.

    Attributes:
        matter: what the order is about, such as `autorecovery`.
        value: what it orders, such as `off`.
    """

    client: str
    matter: str
    value: str


class OrderTold(HistoryEvent, frozen=True, gc=False, tag="order-told"):
    """The operator was told that the order is carried out."""

    client: str
    matter: str
    value: str


class OrderSeen(HistoryEvent, frozen=True, gc=False, tag="order-seen"):
    """The operator asked what holds, after the last order had ended, and was told this value."""

    client: str
    matter: str
    value: str


OperatorEvent: TypeAlias = (
    StorageAsked
    | StorageTold
    | StorageKnown
    | BlockKept
    | NodeScanned
    | LossAccepted
    | OrderAsked
    | OrderTold
    | OrderSeen
    | RebuildingKnown
    | BlockNames
)
