"""F-majority: whether the nodes heard meet every copyset that could hold a record.

What no heard node holds was then never stored on a full copyset, so it was never
acknowledged; and a seal on the heard nodes leaves no copyset for an old sequencer.

The rule, for copies R over at least K racks. A copyset that avoids the heard nodes
needs R silent nodes, and silent nodes in K racks. So either of two facts excludes it:

- fewer than R members are silent;
- fewer than K racks have a silent member, which is to say that at least
  `racks - K + 1` racks answered in full.

With more scopes (rows, regions …) there is a fact like the second for each of them, and
any one is enough.

The second is why location pays: with R=3 over 2 of 3 racks, two whole racks are
enough to hear, however many nodes the third has.

Members count whatever their weight: weight is a wish about new records, and an old
record may lie on a node that takes none today. What became of a node's data (its
authoritative status) counts for readers and recoveries, in `quorum.authority`.

Source: docs/sources/logdevice.md 2.6; common/FailureDomainNodeSet.h.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known once some members were heard.

    Attributes:
        reached: the nodes heard meet every copyset.
        missing: members not heard, in node order; may be there when `reached` is.
    """

    reached: bool
    missing: tuple[NodeId, ...]

    @property
    def complete(self) -> bool:
        """Whether every member was heard."""
        return not self.missing


def f_majority(heard: Set[NodeId], nodeset: Nodeset, replication: Replication) -> Verdict:
    """Say whether `heard` meets every copyset that `nodeset` allows.

    A nodeset too small for its own replication allows no copyset at all. LogDevice
    then calls no answer enough; we want every member, because a nodeset written down
    wrongly must stall recovery and not let it conclude from silence.

    Args:
        heard: nodes that answered; may hold nodes outside the nodeset.
        replication: copies, and their domains, that each record of the epoch has.
    Returns:
        Verdict with the members not heard.
    Source: docs/sources/logdevice.md 2.6.
    """
    missing = tuple(node for node in nodeset.nodes if node not in heard)
    if not can_replicate(frozenset(nodeset.nodes), nodeset, replication):
        return Verdict(not missing, missing)
    return Verdict(not can_replicate(frozenset(missing), nodeset, replication), missing)
