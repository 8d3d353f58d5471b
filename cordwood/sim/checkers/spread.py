"""Whether copies are in as many failure domains as the log wants.

Counted from the racks' full names (`region.dc.cluster.row.rack`), without the code that places
copies.

The event log keeps fewer copies, or fewer domains, once the data of nodes is gone or a node was
moved: the others must be able to record the next loss (docs/protocol/event-log.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set

import msgspec

from cordwood.lsn import EVENT_LOG
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.end_events import DiskLost
from cordwood.sim.events import NodeStarting
from cordwood.sim.history import NodeStarted, RunStarted
from cordwood.sim.operator_events import RebuildingKnown

_ABOVE = {"rack": 0, "row": 1, "cluster": 2, "dc": 3, "region": 4}
"""Labels to leave out of a rack's full name, by scope."""


def asked_of(evidence: Evidence, log: int, at: int) -> RunStarted:
    """The run, with the replication that the records of a log had to have.

    Args:
        at: position in the history.
    """
    run = evidence.run
    # Two copies stay two, but the domains that they span may be fewer.
    if log != EVENT_LOG or (run.copies < 3 and run.racks == 1 and not run.wider):
        return run
    gone = _gone(evidence, at)
    if not gone and not _was_narrow(evidence, at):
        return run
    nodes = {e.node for _, e in evidence.of(NodeStarted) if isinstance(e, NodeStarted)}
    copies = 2
    if run.racks == 1 and not run.wider:
        # With R - 1 more nodes lost, R must be left for the event that says so.
        copies = max(copies, min(run.copies, (len(nodes - gone) + 1) // 2))
    return msgspec.structs.replace(run, copies=copies, racks=1, wider={})


def _was_narrow(evidence: Evidence, at: int) -> bool:
    """Whether, at any time before a position, the loss of R - 1 nodes could have left too few
    domains: some nodes had moved together."""
    run = evidence.run
    events = [(w, e) for w, e in evidence.of(NodeStarted, NodeStarting) if w < at]
    racks: dict[int, str] = {}
    nodes = {e.node for _, e in evidence.of(NodeStarted) if isinstance(e, NodeStarted)}
    for _, event in events:
        assert isinstance(event, NodeStarted | NodeStarting), "no other was asked for"
        racks[event.node] = event.rack
        if nodes <= racks.keys() and not _is_wide(run, racks):
            return True
    return False


def _is_wide(run: RunStarted, racks: Mapping[int, str]) -> bool:
    for scope, count in _asked(run).items():
        sizes = sorted(Counter(_domain(rack, scope) for rack in racks.values()).values())
        left, spare = len(sizes), run.copies - 1
        for size in sizes:  # the smallest domains go first
            spare -= size
            left -= spare >= 0
        if left < count:
            return False
    return True


def _gone(evidence: Evidence, at: int) -> set[int]:
    """Nodes whose data was lost before a position, or was reported gone."""
    gone: set[int] = set()
    for where, event in evidence.of(DiskLost, RebuildingKnown):
        if where >= at:
            break
        gone |= {event.node} if isinstance(event, DiskLost) else set()
        gone |= set(event.rebuilding) if isinstance(event, RebuildingKnown) else set()
    return gone


def lacking(run: RunStarted, nodes: Collection[int], racks: Set[str]) -> str:
    """What copies on `nodes`, in `racks`, lack of the wanted replication; "" for nothing."""
    if len(nodes) >= run.copies and len(racks) >= run.racks and not run.wider:
        return ""  # the quick way, taken for a hundred thousand blocks
    spans = {scope: len({_domain(rack, scope) for rack in racks}) for scope in _asked(run)}
    if len(nodes) >= run.copies and all(spans[s] >= count for s, count in _asked(run).items()):
        return ""
    return f"{len(nodes)} copies in " + " and ".join(f"{spans[s]} {s}s" for s in spans)


def asked_for(run: RunStarted) -> str:
    """The replication of the log, in words."""
    spans = " and ".join(f"{count} {scope}s" for scope, count in _asked(run).items())
    return f"the log asks for {run.copies} in {spans}"


def _asked(run: RunStarted) -> dict[str, int]:
    return {"rack": run.racks, **run.wider}


def _domain(rack: str, scope: str) -> str:
    labels = rack.split(".")
    return ".".join(labels[: max(1, len(labels) - _ABOVE[scope])])
