"""S27: what nodes know of a log's nodesets is one history, and none goes back in it.

It says where the nodes stood, too: somewhere where they did stand.

The version of it is the epoch up to which it is complete. Attributes of logs and the list of
members have none: whoever reads them late has an older one, and is fenced or refused where
that would do harm.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import DiskLost
from cordwood.sim.history import NodeStarted, NodeStarting
from cordwood.sim.node_events import EpochsNodes, NodesetsKnown

Entries = dict[int, tuple[EpochsNodes, NodesetsKnown]]
"""By the epoch since when it holds, an entry and the first node that had it."""


def check_configuration(evidence: Evidence) -> list[Violation]:
    """S27: which nodes hold which epoch is one history on all nodes, and none goes back in it.

    A node that knows it up to an epoch knows every change up to there, but for what is trimmed.
    """
    found: list[Violation] = []
    newest: dict[tuple[int, int], NodesetsKnown] = {}
    logs: dict[int, Entries] = {}
    known = [event for _, event in evidence.of(NodesetsKnown) if isinstance(event, NodesetsKnown)]
    for _, event in evidence.of(NodesetsKnown, DiskLost):
        if isinstance(event, DiskLost):
            # Whoever begins anew knows nothing, and learns it again.
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
                text = f"node {event.node} has other nodes from epoch {entry.since} on"
                found.append(Violation("S27", text, event.log, 0, (witness, event)))
    for event in known:
        found.extend(_left_out(event, logs[event.log]))
    for log, entries in sorted(logs.items()):
        found.extend(_misplaced(evidence, log, entries))
    return found


def _misplaced(evidence: Evidence, log: int, entries: Entries) -> Iterator[Violation]:
    """A node in a rack where it never stood."""
    stood: dict[int, set[str]] = {}
    # A node registers before it runs. One that is killed in between is known where it began.
    for _, event in evidence.of(NodeStarted, NodeStarting):
        assert isinstance(event, NodeStarted | NodeStarting)
        stood.setdefault(event.node, set()).add(event.rack)
    for since, (entry, witness) in sorted(entries.items()):
        for node, rack in zip(entry.nodes, entry.racks, strict=False):
            if rack not in stood.get(node, {rack}):
                text = f"from epoch {since} on node {node} is said to be in {rack}, and never was"
                yield Violation("S27", text, log, 0, (witness,))


def _left_out(event: NodesetsKnown, entries: Entries) -> Iterator[Violation]:
    """A change up to the epoch that a node names, which others know and it does not."""
    if not event.history:
        return
    mine = {entry.since for entry in event.history}
    for since, (_, witness) in sorted(entries.items()):
        if min(mine) < since <= event.epoch and since not in mine:
            text = f"node {event.node} knows epochs up to {event.epoch}, and not that of {since}"
            yield Violation("S27", text, event.log, 0, (witness, event))
            return
