"""The authoritative status of a node's data: which statuses there are and what may follow what.

Each node of a nodeset has a status (`nodes.Authority`), kept in the metadata store beside its
address. An operator sets it for a node that is down. The node itself takes it back when it starts
again with its disk. `quorum.f_majority` weighs replies by these statuses.

Source: docs/sources/logdevice.md 2.6, 2.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.nodes import Authority, Member, NodeId

BECOMES: Mapping[Authority, frozenset[Authority]] = {
    Authority.FULLY_AUTHORITATIVE: frozenset(Authority),
    Authority.UNAVAILABLE: frozenset(Authority),
    Authority.UNDER_REPLICATED: frozenset(Authority),
    Authority.AUTHORITATIVE_EMPTY: frozenset(
        {Authority.AUTHORITATIVE_EMPTY, Authority.FULLY_AUTHORITATIVE}
    ),
}
"""What a status may be followed by. A node whose data lies elsewhere stays out of what readers
weigh until it is back with a disk of its own: what happens to its old disk means nothing any
more. All else may turn out otherwise: data thought lost is found, or is not."""

HAS_DATA = frozenset({Authority.FULLY_AUTHORITATIVE, Authority.UNAVAILABLE})

REBUILT = frozenset(Authority) - HAS_DATA
"""A node's data is to be stored on others, or was: no copyset may name it until it is back."""


def may_become(before: Authority, after: Authority) -> bool:
    """Whether a node's status may go from `before` to `after`.

    Source: docs/sources/logdevice.md 2.9 ("already AE stays AE"; acknowledged is fully
    authoritative).
    """
    return after in BECOMES[before]


def rebuilt_nodes(members: Iterable[Member]) -> frozenset[NodeId]:
    """The members of which it was said that their data is gone, or lies on others."""
    return frozenset(member.node for member in members if member.authority in REBUILT)
