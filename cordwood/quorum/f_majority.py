"""F-majority: whether the nodes that replied meet every copyset that could hold a record.

If they do, a record that none of them holds was never stored on a full copyset, so it was never
acknowledged. If they are sealed, no copyset is left for an old sequencer.

The rule, for R copies over at least K racks. A copyset that avoids the heard nodes needs R silent
nodes, and silent nodes in K racks. So either of two facts excludes it:

- fewer than R members are silent;
- fewer than K racks have a silent member: at least `racks - K + 1` racks answered in full.

With more scopes (rows, regions …) there is a fact like the second for each scope, and any one fact
is enough. The second is why location pays: with R=3 over 2 of 3 racks, two whole racks are enough,
however many nodes the third rack has.

Each node counts by its authoritative status (`quorum.authority`):

- AUTHORITATIVE_EMPTY: the data was rebuilt elsewhere. The node counts as not in the nodeset.
- UNDER_REPLICATED: the data is gone. The node can never be heard. Its reply is not needed once
  every node with data has replied.
- UNAVAILABLE: the node is down and has data. Without an f-majority the caller waits for it.

Members of any weight count. A weight concerns new records only, and an old record may lie on a node
that takes no new records today.

Two things differ from LogDevice. If fewer domains are left than a record needs copies, LogDevice
reaches no f-majority; here every node that has data must be heard. And any scope that the
replication names may give the f-majority.

Readers, recovery and the questions about places in a log all use this one rule.

Source: docs/sources/logdevice.md 2.6, 2.9; common/FailureDomainNodeSet.h.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence, Set

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.authority import HAS_DATA


class QuorumVerdict(enum.Enum):
    """What the nodes that replied allow a caller to conclude."""

    NONE = "none"
    """Nodes that did not reply may hold the record."""
    INCOMPLETE = "incomplete"
    """The nodes meet every copyset; some nodes that have data did not reply."""
    COMPLETE = "complete"
    """The nodes meet every copyset, and all nodes that have data replied."""
    NON_AUTHORITATIVE = "non-authoritative"
    """All nodes that have data replied, and they do not meet every copyset: more nodes lost
    their data than the copies survive."""

    @property
    def is_f_majority(self) -> bool:
        """Whether the replies meet every copyset."""
        return self in (QuorumVerdict.COMPLETE, QuorumVerdict.INCOMPLETE)


def weigh_replies(
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> QuorumVerdict:
    """Weigh the replies of the nodes in `heard`.

    Args:
        heard: nodes that replied for this LSN; nodes outside the nodeset do not count.
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
        return QuorumVerdict.COMPLETE if complete else QuorumVerdict.INCOMPLETE
    # A silent node that has data may hold the record, so nothing can be concluded without it.
    return QuorumVerdict.NON_AUTHORITATIVE if complete else QuorumVerdict.NONE


def _meet_every_copyset(
    heard: Set[NodeId], rest: Sequence[tuple[Member, Authority]], replication: Replication
) -> bool:
    """Whether the silent nodes cannot hold a copyset.

    If the whole nodeset has too few domains of one scope for a copyset: whether all were heard.
    """
    scopes = (("node", replication.copies), *replication.spans)
    for scope, copies in scopes:
        # Trap: a nodeset that was recorded wrongly must stall a recovery. By the rule below, any
        # silence would be enough, because no set of silent nodes could hold a copyset.
        if len({member.domain(scope) for member, _ in rest}) < copies:
            return all(status in HAS_DATA and member.node in heard for member, status in rest)
    return any(meets(heard, rest, scope, copies) for scope, copies in scopes)


def meets(
    heard: Set[NodeId], rest: Iterable[tuple[Member, Authority]], scope: str, copies: int
) -> bool:
    """Whether enough domains replied in full that the other domains cannot hold a copyset."""
    full: dict[str, bool] = {}
    for member, status in rest:
        domain = member.domain(scope)
        # A domain counts only as a whole: one silent node of a rack may hold the copy of that rack.
        answered = status in HAS_DATA and member.node in heard
        full[domain] = full.get(domain, True) and answered
    return sum(full.values()) >= len(full) - copies + 1
