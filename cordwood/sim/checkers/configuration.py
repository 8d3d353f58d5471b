"""S27: all nodes know one history of a log's nodesets, and no node goes back in it.

The history also tells the locations of nodes, and a node must have had that location.

The version of the history is the epoch up to which it is complete. Attributes of logs and the
member list have no version: a node that reads them late has old ones, and is fenced or refused
where that would do harm.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import DiskLost
from cordwood.sim.history import NodeStarted, NodeStarting
from cordwood.sim.node_events import EpochsNodes, NodesetsKnown

Entries = dict[int, tuple[EpochsNodes, NodesetsKnown]]
"""Entries of the history by their first epoch, each with the first node that had it."""


def check_configuration(evidence: Evidence) -> list[Violation]:
    """S27: all nodes know one history of the nodes of each epoch, and no node goes back in it.

    A node that knows the history up to an epoch knows every change up to there, except for trimmed
    epochs.
    """
    found: list[Violation] = []
    newest: dict[tuple[int, int], NodesetsKnown] = {}
    logs: dict[int, Entries] = {}
    known = [event for _, event in evidence.of(NodesetsKnown) if isinstance(event, NodesetsKnown)]
    for _, event in evidence.of(NodesetsKnown, DiskLost):
        if isinstance(event, DiskLost):
            # A node that restarts knows nothing, and learns the history again.
            newest = {place: each for place, each in newest.items() if place[0] != event.node}
            continue
        assert isinstance(event, NodesetsKnown), "as asked for"
        before = newest.get((event.node, event.log))
        if before is not None and event.epoch < before.epoch:
            text = f"node {event.node} knew epochs up to {before.epoch}, then up to {event.epoch}"
            found.append(Violation("S27", text, event.log, 0, (before, event)))
        else:
            newest[event.node, event.log] = event
        entries = logs.setdefault(event.log, {})
        for entry in event.history:
            other, witness = entries.setdefault(entry.since, (entry, event))
            if other != entry:
                text = f"node {event.node} knows another nodeset from epoch {entry.since} on"
                found.append(Violation("S27", text, event.log, 0, (witness, event)))
    for event in known:
        found.extend(_left_out(event, logs[event.log]))
    for log, entries in sorted(logs.items()):
        found.extend(_misplaced(evidence, log, entries))
    return found


def _misplaced(evidence: Evidence, log: int, entries: Entries) -> Iterator[Violation]:
    """Find an entry with a node in a rack where it never was."""
    stood: dict[int, set[str]] = {}
    # A node registers before it runs. If it is killed in between, the location of its start is
    # known.
    for _, event in evidence.of(NodeStarted, NodeStarting):
        assert isinstance(event, NodeStarted | NodeStarting)
        stood.setdefault(event.node, set()).add(event.rack)
    for since, (entry, witness) in sorted(entries.items()):
        for node, rack in zip(entry.nodes, entry.racks, strict=False):
            if rack not in stood.get(node, {rack}):
                text = f"epoch {since}'s nodeset has node {node} in {rack}, where it never was"
                yield Violation("S27", text, log, 0, (witness,))


def _left_out(event: NodesetsKnown, entries: Entries) -> Iterator[Violation]:
    """Find a change up to the epoch that a node names, which other nodes know and this node does
    not."""
    if not event.history:
        return
    mine = {entry.since for entry in event.history}
    for since, (_, witness) in sorted(entries.items()):
        if min(mine) < since <= event.epoch and since not in mine:
            text = f"node {event.node} knows epochs to {event.epoch}, but not nodeset {since}"
            yield Violation("S27", text, event.log, 0, (witness, event))
            return
