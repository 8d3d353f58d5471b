"""O1: nodes that must store nothing store nothing. O4: no copyset names nodes that its members know
to be given up. O5: an order that is carried out holds until the next one.

O1 is about two kinds of nodes: nodes that an operator made read-only, and nodes that never had a
weight, which no epoch's nodeset may name. A node hears late that it is read-only. From then on its
WAL takes no block. If the operator's report came before the node started, the WAL takes no block in
this start at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import DiskLost
from cordwood.sim.history import BlockStored, Event, NodeStarted
from cordwood.sim.operator_events import (
    BlockKept,
    BlockNames,
    OrderAsked,
    OrderSeen,
    OrderTold,
    RebuildingKnown,
    StorageAsked,
    StorageKnown,
    StorageTold,
)

STARTS_S = 2.0
"""A node reads its reports while it starts: a report counts if it came this long before the node
ran."""

HEARS_S = 10.0
"""Without faults a node hears of a report within this time: it looks at least every five seconds,
and stores in flight reach its disk in the remaining time."""


@dataclass(slots=True)
class _Node:
    """What the history has told of a node so far.

    Attributes:
        told: the report that made it read-only; None while no report certainly holds.
        start: its last start; `was_told` if the report came before it and has held since.
        weighs: whether it ever had a weight.
        knows: the offset from which on it knows that it is read-only; None while it does not.
    """

    told: StorageTold | None = None
    start: NodeStarted | None = None
    was_told: bool = False
    weighs: bool = False
    knows: StorageKnown | None = None


def check_storing_nodes(evidence: Evidence) -> list[Violation]:
    """O1: read-only nodes that know of it and nodes without weight store only ends of epochs."""
    starts = [event for _, event in evidence.of(NodeStarted)]
    has_light = any(isinstance(event, NodeStarted) and not event.weight for event in starts)
    if not (has_light or evidence.of(StorageAsked, StorageTold, StorageKnown, BlockKept)):
        return []  # most runs end here, and need not look at all their stores
    nodes: dict[int, _Node] = {}
    healed_us = None if evidence.healed_at is None else evidence.time_of(evidence.healed_at)
    found: list[Violation] = []
    kinds = (NodeStarted, StorageAsked, StorageTold, StorageKnown, BlockKept, BlockStored)
    for _, event in evidence.of(*kinds):
        if isinstance(event, BlockStored):
            node = nodes.get(event.node)
            if node is not None and not event.is_end:
                found += _judge_stored(event, node, healed_us)
        elif isinstance(event, BlockKept):
            knows = nodes.setdefault(event.node, _Node()).knows
            if knows is not None and event.offset >= knows.offset:
                found.append(_wrong(event, "although it knew that it is read-only", knows))
        elif isinstance(event, NodeStarted | StorageAsked | StorageTold | StorageKnown):
            _note(nodes.setdefault(event.node, _Node()), event)
    return found


def check_copysets_named(evidence: Evidence) -> list[Violation]:
    """O4: no node stores a block that names a node whose data it knows to be reported gone.

    Blocks in flight when it heard of the report do not count: they are below the offset.
    """
    known: dict[int, list[RebuildingKnown]] = {}
    found: list[Violation] = []
    for _, event in evidence.of(RebuildingKnown, BlockNames, DiskLost):
        if isinstance(event, DiskLost):
            known.pop(event.node, None)  # its WAL begins anew, so its offsets do too
        elif isinstance(event, RebuildingKnown):
            known.setdefault(event.node, []).append(event)
        elif isinstance(event, BlockNames):
            told = [each for each in known.get(event.node, ()) if each.offset <= event.offset]
            if told and (named := set(told[-1].rebuilding) & set(event.names)):
                text = f"node {event.node} stored {format_lsn(event.first)}, naming lost {named}"
                shown = (told[-1], event)
                found.append(Violation("O4", text, event.log, event.first, shown))
    return found


def check_orders_hold(evidence: Evidence) -> list[Violation]:
    """O5: what an operator was told to be done holds until the operator's next order.

    A node may carry out an order late, or once more. That must not undo a later order. Orders
    without an answer may hold or not, until an order has an answer.
    """
    may_hold: dict[str, dict[str, Event]] = {}
    found: list[Violation] = []
    for _, event in evidence.of(OrderAsked, OrderTold, OrderSeen):
        if isinstance(event, OrderAsked):
            may_hold.setdefault(event.matter, {})[event.value] = event
        elif isinstance(event, OrderTold):
            may_hold[event.matter] = {event.value: event}
        elif isinstance(event, OrderSeen):
            holds = may_hold.get(event.matter)
            if holds is not None and event.value not in holds:
                text = (
                    f"{event.matter} is {event.value}, though it was ordered {' or '.join(holds)}"
                )
                found.append(Violation("O5", text, 0, 0, (*holds.values(), event)))
    return found


def _note(node: _Node, event: NodeStarted | StorageAsked | StorageTold | StorageKnown) -> None:
    if isinstance(event, NodeStarted):
        told = node.told
        node.start = event
        node.was_told = told is not None and event.time_us - told.time_us >= STARTS_S * 1e6
        node.weighs |= event.weight > 0
    elif isinstance(event, StorageKnown):
        node.knows = event if event.read_only else None
    elif isinstance(event, StorageTold) and event.read_only:
        node.told = node.told or event
    else:
        node.told, node.was_told = None, False


def _judge_stored(event: BlockStored, node: _Node, healed_us: int | None) -> list[Violation]:
    if node.start is not None and not node.weighs:
        return [_wrong(event, "although it never had a weight", node.start)]
    if node.told is None:
        return []
    if node.was_told and node.start is not None:
        return [_wrong(event, "although it was read-only at its start", node.told)]
    if healed_us is not None:
        heard_us = max(healed_us, node.told.time_us) + HEARS_S * 1e6
        if event.time_us > heard_us:
            return [_wrong(event, "although it became read-only long before", node.told)]
    return []


def _wrong(event: BlockStored | BlockKept, why: str, because: Event) -> Violation:
    text = f"node {event.node} stored {format_lsn(event.first)} {why}"
    return Violation("O1", text, event.log, event.first, (because, event))
