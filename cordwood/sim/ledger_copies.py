"""Which ledgers lack copies at the end of a run in which disks were lost.

Source: docs/protocol/ledgers.md (auto-recovery).
"""

from __future__ import annotations

from cordwood.layout.ledger_metadata import read_ledger
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.nodes import NodeId
from cordwood.quorum.ensemble import is_acknowledged, write_set
from cordwood.sim.cluster import SimCluster

_LEDGERS = ("ledgers/", "long-ledgers/")
_MARKS = ("ledger-marks/", "long-ledger-marks/")


def is_marked(cluster: SimCluster) -> bool:
    """Whether any ledger is marked as short of copies."""
    return any(key.startswith(_MARKS) for key in cluster.metadata.data.values)


async def lacking_ledgers(cluster: SimCluster) -> list[int]:
    """Closed ledgers with an entry that fewer than Qa of its nodes have."""
    values = cluster.metadata.data.values
    ledgers = [read_ledger(values[key].value) for key in sorted(values) if key.startswith(_LEDGERS)]
    return [each.ledger for each in ledgers if await _lacks(cluster, each)]


async def _lacks(cluster: SimCluster, metadata: LedgerMetadata) -> bool:
    if metadata.state is not LedgerState.CLOSED or metadata.is_tiered:
        return False
    entries = range(metadata.last + 1)
    here = {node: await _held(cluster, NodeId(node), metadata.ledger, entries) for node in {
        node for each in metadata.fragments for node in each.nodes
    }}  # fmt: skip
    for entry in entries:
        nodes = metadata.nodes_at(entry)
        places = write_set(entry, metadata.striping)
        stored = {place for place in places if entry in here[nodes[place]]}
        if not is_acknowledged(stored, entry, metadata.striping):
            return True
    return False


async def _held(cluster: SimCluster, node: NodeId, ledger: int, entries: range) -> set[int]:
    """The entries out of these that a node holds, in memory or in LogsDB."""
    running = cluster.running.get(node)
    held = running and running.engine.ledgers.held.get(ledger)
    if running is None or not held:
        return set()
    below = await running.engine.logs.ledgers.entries(ledger, entries)
    return {*held.entries, *(each.entry for each in below if each is not None)}
