"""Decides when recovery has heard enough nodes, by the reported status of the silent nodes.

Recovery weighs silence by the status of each node's data, as a reader does (`quorum.authority`). If
a node's data lies on other nodes, the node counts as absent. If a node's data is gone, recovery
does not wait for the node once all other nodes have answered. It waits for a node that is down and
has data. A node that answers is up, even if its status says otherwise.

If all nodes with data answered and they do not meet every copyset, more nodes lost their data than
the copies survive. Recovery is then *non-authoritative*: a record that no node holds may have been
acknowledged. Recovery goes on, so that the log can go on, and plugs no new hole.

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
    """The reported status of each of `members` that is not fully authoritative."""
    fully = Authority.FULLY_AUTHORITATIVE
    return {each.node: each.authority for each in members if each.authority is not fully}


def weigh(
    heard: Set[NodeId], nodeset: Nodeset, replication: Replication, statuses: Statuses
) -> QuorumVerdict:
    """The verdict on the members that answered."""
    away = {node: status for node, status in statuses.items() if node not in heard}
    return weigh_replies(heard, nodeset, replication, away)


def is_enough(
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Statuses,
    empty: Set[NodeId] = frozenset(),
) -> bool:
    """Whether recovery can go on with the nodes in `heard`, which also have to store the tail.

    Args:
        empty: nodes that give no copy, even if they answer, because their data lies elsewhere.
    """
    if not _can_go_on(heard, nodeset, replication, statuses):
        return False
    # Trap: an empty node that answers must not stand for a copy. Without it the tail would have
    # fewer copies, although nodes that are only away could hold them.
    away = {**statuses, **dict.fromkeys(empty, Authority.AUTHORITATIVE_EMPTY)}
    return not empty or _can_go_on(heard - empty, nodeset, replication, away)


def _can_go_on(
    heard: Set[NodeId], nodeset: Nodeset, replication: Replication, statuses: Statuses
) -> bool:
    verdict = weigh(heard, nodeset, replication, statuses)
    # While other nodes may still answer, these must be able to hold a copyset without read-only
    # nodes, which store nothing new. When no other node can answer, proceed with these.
    if verdict is QuorumVerdict.INCOMPLETE:
        takers = {m.node for m in nodeset.members if m.node in heard and not m.read_only}
        return can_replicate(takers, nodeset, replication)
    return verdict is not QuorumVerdict.NONE


def attainable(nodes: Set[NodeId], nodeset: Nodeset, replication: Replication) -> Replication:
    """The highest replication up to `replication` that `nodes` can keep; at least one copy."""
    members = [member for member in nodeset.members if member.node in nodes]
    most = {
        scope: min(count, len({member.domain(scope) for member in members}))
        for scope, count in replication.by_scope.items()
    }
    return Replication.across({scope: max(1, count) for scope, count in most.items()})
