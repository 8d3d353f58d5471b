"""Whether copies are in as many failure domains as the log wants.

Counted from the racks' full names (`region.dc.cluster.row.rack`), without the code that places
copies.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from cordwood.sim.history import RunStarted

_ABOVE = {"rack": 0, "row": 1, "cluster": 2, "dc": 3, "region": 4}
"""Labels to leave out of a rack's full name, by scope."""


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
