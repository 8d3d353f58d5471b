"""Which ledgers lack copies at the end of a run in which disks were lost, and which open ledgers
were repaired in their older fragments.

Source: docs/protocol/ledgers.md (auto-recovery).
"""

from __future__ import annotations

import json

from cordwood.layout.ledger_metadata import SHORT_IDS, ledger_key, read_ledger
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
    closed = [each for each in _ledgers(cluster) if each.state is LedgerState.CLOSED]
    return [each.ledger for each in closed if await _lacks(cluster, each)]


async def lacking_open_ledgers(cluster: SimCluster) -> list[int]:
    """Open ledgers with an older fragment that is not repaired: fewer than Qa of its nodes have an
    entry of it, or it is marked.

    A mark of the newest fragment does not count: the writer replaces the node, or is shut out.
    """
    found = []
    for each in _ledgers(cluster):
        if each.state is LedgerState.OPEN:
            mark = cluster.metadata.data.values.get(_mark_key(each.ledger))
            nodes = {*json.loads(mark.value)["nodes"]} if mark is not None else set()
            older = {node for fragment in each.settled for node in fragment.nodes}
            is_marked = bool(nodes & older) and not nodes & {*each.newest.nodes}
            if is_marked or await _lacks(cluster, each):
                found.append(each.ledger)
    return found


def _ledgers(cluster: SimCluster) -> list[LedgerMetadata]:
    values = cluster.metadata.data.values
    return [read_ledger(values[key].value) for key in sorted(values) if key.startswith(_LEDGERS)]


def _mark_key(ledger: int) -> str:
    return _MARKS[ledger >= SHORT_IDS] + ledger_key(ledger)


class OlderRepairs:
    """What looks at the metadata store show of older fragments of open ledgers.

    Attributes:
        repaired: ledgers of which an older fragment named another node while they were open.
        gone_on: ledgers of these of which the writer began another fragment after that.
    """

    def __init__(self) -> None:
        self.repaired: set[int] = set()
        self.gone_on: set[int] = set()
        self._seen: dict[int, LedgerMetadata] = {}
        self._fragments: dict[int, int] = {}

    def look(self, cluster: SimCluster) -> None:
        """Compare with the look before."""
        for found in _ledgers(cluster):
            ledger, before = found.ledger, self._seen.get(found.ledger)
            if found.state is not LedgerState.OPEN:
                continue
            if before is not None and before.settled != found.settled[: len(before.settled)]:
                self.repaired.add(ledger)
                self._fragments[ledger] = len(found.fragments)
            elif ledger in self.repaired and len(found.fragments) > self._fragments[ledger]:
                self.gone_on.add(ledger)
            self._seen[ledger] = found


async def _lacks(cluster: SimCluster, metadata: LedgerMetadata) -> bool:
    """Whether an entry of a settled fragment has fewer than Qa copies."""
    if metadata.is_tiered:
        return False
    entries = range(metadata.settled_last + 1)
    here = {node: await _held(cluster, NodeId(node), metadata.ledger, entries) for node in {
        node for each in metadata.settled for node in each.nodes
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
