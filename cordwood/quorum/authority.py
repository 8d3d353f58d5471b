"""The authoritative status of a node's data: the statuses and the allowed changes between them.

Each node of a nodeset has a status (`nodes.Authority`). The metadata store keeps it beside the
node's address. An operator sets it for a node that is down. The node clears it when it starts
again with its disk. `quorum.f_majority` weighs replies by these statuses.

Source: docs/sources/logdevice.md 2.6, 2.9.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from cordwood.nodes import Authority, Member, NodeId

BECOMES: Mapping[Authority, frozenset[Authority]] = {
    Authority.FULLY_AUTHORITATIVE: frozenset(Authority),
    Authority.UNAVAILABLE: frozenset(Authority),
    Authority.UNDER_REPLICATED: frozenset(Authority),
    Authority.AUTHORITATIVE_EMPTY: frozenset(
        {Authority.AUTHORITATIVE_EMPTY, Authority.FULLY_AUTHORITATIVE}
    ),
}
"""The statuses that may follow a status. AUTHORITATIVE_EMPTY means that other nodes hold the
node's data. Readers then do not weigh the node until it is back with a disk of its own; the fate
of its old disk no longer matters. All other statuses may be corrected: data that was thought lost
may be found, and the reverse."""

HAS_DATA = frozenset({Authority.FULLY_AUTHORITATIVE, Authority.UNAVAILABLE})

REBUILT = frozenset(Authority) - HAS_DATA
"""Other nodes store this node's data, or will: no copyset may name the node until it is back."""


def may_become(before: Authority, after: Authority) -> bool:
    """Whether a node's status may go from `before` to `after`.

    Source: docs/sources/logdevice.md 2.9 ("already AE stays AE"; acknowledged is fully
    authoritative).
    """
    return after in BECOMES[before]


def rebuilt_nodes(members: Iterable[Member]) -> frozenset[NodeId]:
    """The members whose status says that their data is gone or lies on other nodes."""
    return frozenset(member.node for member in members if member.authority in REBUILT)


def may_be_back(members: Iterable[Member], sure: Container[NodeId]) -> tuple[Member, ...]:
    """Members as a node tells them if it has not heard of their statuses for long.

    A node whose data was gone may be back with it since, and may be down by now. So readers have to
    wait for it. Without this, a reader would be told of a loss of records that this node has.

    Args:
        sure: nodes with a status from another source, which counts as told.
    """
    return tuple(
        replace(each, authority=Authority.UNAVAILABLE)
        if each.authority in REBUILT and each.node not in sure
        else each
        for each in members
    )
