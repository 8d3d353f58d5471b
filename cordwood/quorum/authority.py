"""What a reader may conclude from the silence of some nodes, given what became of them.

Each node of a nodeset has an *authoritative status* (`nodes.Authority`), kept in the metadata
store beside its address. A person sets it of a node that is down, and the node itself takes it
back when it starts again with its disk (`BECOMES` says what may follow what). A reader asks of
the nodes that have come past an LSN without a record whether they are enough to say that there
is none:

- nodes whose data was rebuilt elsewhere (AUTHORITATIVE_EMPTY) are as good as not there;
- nodes whose data is gone (UNDER_REPLICATED) can never be heard, and do not have to be once
  everybody who has data was;
- nodes that are down (UNAVAILABLE) have data: without an f-majority the reader waits.

Two things differ from LogDevice. Where fewer domains are left than a record needs copies,
it calls no answer enough; here every node that has data must be heard. And an f-majority
is asked for in every scope that the replication names.

Source: docs/sources/logdevice.md 2.6, 2.9.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence, Set

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication

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


class Hearing(enum.Enum):
    """What the nodes heard amount to."""

    NONE = "none"
    """Others may hold it."""
    INCOMPLETE = "incomplete"
    """They meet every copyset; some that have data were not heard."""
    COMPLETE = "complete"
    """They meet every copyset, and all that have data were heard."""
    NON_AUTHORITATIVE = "non-authoritative"
    """All that have data were heard, and do not meet every copyset: more nodes lost their
    data than the copies survive."""


def may_become(before: Authority, after: Authority) -> bool:
    """Whether a node's status may go from `before` to `after`.

    Source: docs/sources/logdevice.md 2.9 ("already AE stays AE"; acknowledged is fully
    authoritative).
    """
    return after in BECOMES[before]


def rebuilt_nodes(members: Iterable[Member]) -> frozenset[NodeId]:
    """The members of which it was said that their data is gone, or lies on others."""
    return frozenset(member.node for member in members if member.authority in REBUILT)


def hear(
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> Hearing:
    """Say what the nodes in `heard` amount to.

    Args:
        heard: nodes that answered for this LSN; may hold nodes outside the nodeset.
        statuses: of the nodes that are not FULLY_AUTHORITATIVE.
    """
    fully = Authority.FULLY_AUTHORITATIVE
    rest = [
        (member, statuses.get(member.node, fully))
        for member in nodeset.members
        if statuses.get(member.node, fully) is not Authority.AUTHORITATIVE_EMPTY
    ]
    complete = all(member.node in heard for member, status in rest if status in HAS_DATA)
    if _meet_every_copyset(heard, rest, replication):
        return Hearing.COMPLETE if complete else Hearing.INCOMPLETE
    return Hearing.NON_AUTHORITATIVE if complete else Hearing.NONE


def _meet_every_copyset(
    heard: Set[NodeId], rest: Sequence[tuple[Member, Authority]], replication: Replication
) -> bool:
    """Whether the nodes that were not heard cannot hold a copyset; where all together could not
    either, for want of domains in one of the scopes, whether all were heard."""
    scopes = (("node", replication.copies), *replication.spans)
    for scope, copies in scopes:
        if len({member.domain(scope) for member, _ in rest}) < copies:
            return all(status in HAS_DATA and member.node in heard for member, status in rest)
    return any(_meets(heard, rest, scope, copies) for scope, copies in scopes)


def _meets(
    heard: Set[NodeId], rest: Iterable[tuple[Member, Authority]], scope: str, copies: int
) -> bool:
    """Whether so many domains answered in full that the others cannot hold a copyset."""
    full: dict[str, bool] = {}
    for member, status in rest:
        domain = member.domain(scope)
        answered = status in HAS_DATA and member.node in heard
        full[domain] = full.get(domain, True) and answered
    return sum(full.values()) >= len(full) - copies + 1
