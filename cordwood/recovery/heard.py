"""When recovery has heard enough: with what is said of the nodes that did not answer.

As a reader does (`quorum.authority`), recovery weighs silence by what became of each node's
data: nodes whose data lies elsewhere are as good as not there, those whose data is gone are
not waited for once all others were heard, and those that are down and have data are. A node
that answers is there, whatever is said of it.

Where all that have data were heard and do not meet every copyset, more nodes lost their data
than the copies survive, and recovery is *non-authoritative*: what nobody holds may have been
acknowledged. It goes on, so that the log does, and plugs nothing.

Source: docs/sources/logdevice.md 2.6, 2.7 (3, 4, 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies

Statuses = Mapping[NodeId, Authority]
"""Of the nodes that are not fully authoritative."""


def statuses_of(members: Iterable[Member]) -> Statuses:
    """Of each of `members` that is not fully authoritative, what is said of its data."""
    fully = Authority.FULLY_AUTHORITATIVE
    return {each.node: each.authority for each in members if each.authority is not fully}


def weigh(
    heard: Set[NodeId], nodeset: Nodeset, replication: Replication, statuses: Statuses
) -> QuorumVerdict:
    """What the members that answered amount to."""
    away = {node: status for node, status in statuses.items() if node not in heard}
    return weigh_replies(heard, nodeset, replication, away)


def is_enough(
    heard: Set[NodeId], nodeset: Nodeset, replication: Replication, statuses: Statuses
) -> bool:
    """Whether recovery goes on with these: they are to hold the tail as well.

    While others may still answer, those heard must be able to hold a copyset; read-only ones
    tell what they have and hold nothing new. Once nobody else can, they do what they can.
    """
    verdict = weigh(heard, nodeset, replication, statuses)
    if verdict is QuorumVerdict.INCOMPLETE:
        takers = {m.node for m in nodeset.members if m.node in heard and not m.read_only}
        return can_replicate(takers, nodeset, replication)
    return verdict is not QuorumVerdict.NONE


def attainable(nodes: Set[NodeId], nodeset: Nodeset, replication: Replication) -> Replication:
    """The most of a replication property that `nodes` can keep; at least one node is asked for."""
    members = [member for member in nodeset.members if member.node in nodes]
    most = {
        scope: min(count, len({member.domain(scope) for member in members}))
        for scope, count in replication.by_scope.items()
    }
    return Replication.across({scope: max(1, count) for scope, count in most.items()})
