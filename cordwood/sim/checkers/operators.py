"""O1: nodes that are to store nothing store nothing. O4: no copyset names whom its members gave up.

Two kinds of nodes: one that an operator made read-only, and one that never had a weight, which
no epoch's nodeset may name. A node hears late that it is read-only; from then on its WAL
takes no block any more, and where it was said before the node started, none of this start.
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
    RebuildingKnown,
    StorageAsked,
    StorageKnown,
    StorageTold,
)

STARTS_S = 2.0
"""A node reads what is said of it while it starts: what was said so long before it ran counts."""

HEARS_S = 10.0
"""Without faults a node hears of it within this: it looks every five seconds at the longest, and
what was under way then comes to its disk in the rest."""


@dataclass(slots=True)
class _Node:
    """What is known of a node so far.

    Attributes:
        told: by whom, that it stores nothing; None while nobody's word holds for sure.
        start: its last start; `was_told` if the word was there before, and held ever since.
        weighs: whether it ever had a weight.
        knows: since which offset it knows that it is read-only; None while it does not.
    """

    told: StorageTold | None = None
    start: NodeStarted | None = None
    was_told: bool = False
    weighs: bool = False
    knows: StorageKnown | None = None


def check_storing_nodes(evidence: Evidence) -> list[Violation]:
    """O1: a node that knows to be read-only, or has no weight, stores only what ends an epoch."""
    starts = [event for _, event in evidence.of(NodeStarted)]
    has_light = any(isinstance(event, NodeStarted) and not event.weight for event in starts)
    if not (has_light or evidence.of(StorageAsked, StorageTold, StorageKnown, BlockKept)):
        return []  # of most runs: stores are most of what they have
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
                found.append(_wrong(event, "though it knew that it is read-only", knows))
        elif isinstance(event, NodeStarted | StorageAsked | StorageTold | StorageKnown):
            _note(nodes.setdefault(event.node, _Node()), event)
    return found


def check_copysets_named(evidence: Evidence) -> list[Violation]:
    """O4: no node stores what names a node of which it knows that its data is said to be gone.

    What was under way when it heard of that is not meant: that lies below the offset.
    """
    known: dict[int, list[RebuildingKnown]] = {}
    found: list[Violation] = []
    for _, event in evidence.of(RebuildingKnown, BlockNames, DiskLost):
        if isinstance(event, DiskLost):
            known.pop(event.node, None)  # its WAL begins anew, and with it the offsets
        elif isinstance(event, RebuildingKnown):
            known.setdefault(event.node, []).append(event)
        elif isinstance(event, BlockNames):
            told = [each for each in known.get(event.node, ()) if each.offset <= event.offset]
            if told and (named := set(told[-1].rebuilding) & set(event.names)):
                text = f"node {event.node} stored {format_lsn(event.first)}, which names {named}"
                shown = (told[-1], event)
                found.append(Violation("O4", text, event.log, event.first, shown))
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
        return [_wrong(event, "though it never had a weight", node.start)]
    if node.told is None:
        return []
    if node.was_told and node.start is not None:
        return [_wrong(event, "though it was read-only when it started", node.told)]
    if healed_us is not None:
        heard_us = max(healed_us, node.told.time_us) + HEARS_S * 1e6
        if event.time_us > heard_us:
            return [_wrong(event, "though it was made read-only long ago", node.told)]
    return []


def _wrong(event: BlockStored | BlockKept, why: str, because: Event) -> Violation:
    text = f"node {event.node} stored {format_lsn(event.first)} {why}"
    return Violation("O1", text, event.log, event.first, (because, event))
