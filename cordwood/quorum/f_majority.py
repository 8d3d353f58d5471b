"""F-majority: whether the replies heard meet every copyset that could hold a record.

A record that no heard node holds was then never stored on a full copyset, so it was never
acknowledged. A seal on the heard nodes leaves no copyset for an old sequencer.

The rule, for R copies over at least K racks. A copyset that avoids the heard nodes needs R silent
nodes, and silent nodes in K racks. So either of two facts excludes it:

- fewer than R members are silent;
- fewer than K racks have a silent member: at least `racks - K + 1` racks answered in full.

With more scopes (rows, regions …) there is a fact like the second for each scope, and any one is
enough. The second is why location pays: with R=3 over 2 of 3 racks, two whole racks are enough,
however many nodes the third rack has.

Each node counts by its authoritative status (`quorum.authority`):

- AUTHORITATIVE_EMPTY: the data was rebuilt elsewhere. The node counts as not in the nodeset.
- UNDER_REPLICATED: the data is gone. The node can never be heard, and need not be heard once every
  node with data was.
- UNAVAILABLE: the node is down and has data. Without an f-majority the caller waits for it.

Members count whatever their weight: a weight is a wish about new records, and an old record may
lie on a node that takes none today.

Two things differ from LogDevice. If fewer domains are left than a record needs copies, LogDevice
calls no answer enough; here every node that has data must be heard, because a nodeset that was
written down wrongly must stall a recovery and not let it conclude from silence. And any scope that
the replication names may give the f-majority.

Readers, recovery and the questions about places in a log all use this one rule.

Source: docs/sources/logdevice.md 2.6, 2.9; common/FailureDomainNodeSet.h.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence, Set

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.authority import HAS_DATA


class QuorumVerdict(enum.Enum):
    """The weight of the replies heard."""

    NONE = "none"
    """Others may hold it."""
    INCOMPLETE = "incomplete"
    """They meet every copyset; some that have data were not heard."""
    COMPLETE = "complete"
    """They meet every copyset, and all that have data were heard."""
    NON_AUTHORITATIVE = "non-authoritative"
    """All that have data were heard, and do not meet every copyset: more nodes lost their
    data than the copies survive."""

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
        return QuorumVerdict.COMPLETE if complete else QuorumVerdict.INCOMPLETE
    return QuorumVerdict.NON_AUTHORITATIVE if complete else QuorumVerdict.NONE


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
