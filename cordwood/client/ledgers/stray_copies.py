"""Looks for entries on nodes that their ledger's metadata does not name for them.

A repair replaces a lost node although some entries have no readable copy. If the lost node comes
back with its old entries, it has the only copies, and the metadata does not name it any more. Or a
later repair has named it in another place of the fragment, to which these entries do not belong. An
entry of a settled fragment never changes, and every copy is checked by its digest. So it does not
matter which node gives the copy, and nothing follows from its absence.

Source: docs/protocol/ledgers.md, rule 28.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_nodes import ask_node, ask_together
from cordwood.errors import ChecksumMismatch, CordwoodError
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import EntriesReply, EntryAnswer, EntryItem, Found, ReadEntries
from cordwood.ledger import LedgerMetadata
from cordwood.quorum.ensemble import write_set

logger = logging.getLogger(__name__)

STRAY_S = 1.0
"""How long a node may take: all nodes that are not named are asked, and few of them have copies."""

NODES_AT_ONCE = 8
"""Nodes that are asked at the same time: each may send as much as one reply holds."""


async def stray_copies(
    cluster: Cluster, metadata: LedgerMetadata, entries: Sequence[int]
) -> list[EntryItem]:
    """Whole copies of entries of settled fragments from nodes outside their write sets: those that
    were found and fit into a reply of each node, which may be none."""
    wanted = [entry for entry in entries if entry <= metadata.settled_last]
    asked = {
        node: [entry for entry in wanted if is_stray(metadata, entry, node)]
        for node in sorted(cluster.members)
        if node not in cluster.dead
    }
    nodes = [node for node in asked if asked[node]]
    found: dict[int, EntryItem] = {}
    for at in range(0, len(nodes), NODES_AT_ONCE):
        some = nodes[at : at + NODES_AT_ONCE]
        left = [[entry for entry in asked[node] if entry not in found] for node in some]
        for copies in await ask_together(
            _ask(cluster, metadata, node, part)
            for node, part in zip(some, left, strict=True)
            if part
        ):
            found |= {copy.entry: copy for copy in copies}
    return [found[entry] for entry in sorted(found)]


async def stray_entries(
    cluster: Cluster, metadata: LedgerMetadata, entries: Sequence[int]
) -> frozenset[int]:
    """Those of some entries of which `stray_copies` finds copies, in as many replies as needed."""
    found: set[int] = set()
    left = [*entries]
    while left and (copies := await stray_copies(cluster, metadata, left)):
        found |= {copy.entry for copy in copies}
        left = [entry for entry in left if entry not in found]
    return frozenset(found)


def is_stray(metadata: LedgerMetadata, entry: int, node: int) -> bool:
    """Whether a copy of an entry on this node is found by no one who asks the entry's write set.

    Trap: a member of the fragment may be outside the write set of an entry, if Qw < E.
    """
    nodes = metadata.nodes_at(entry)
    return node not in {nodes[place] for place in write_set(entry, metadata.striping)}


async def _ask(
    cluster: Cluster, metadata: LedgerMetadata, node: int, entries: list[int]
) -> list[EntryItem]:
    call = ReadEntries(metadata.ledger, ledger_key_of(metadata.password), entries)
    try:
        reply = await ask_node(cluster, node, call, timeout_s=STRAY_S)
    except CordwoodError as error:
        # It may know another password for this id. The ledger does not depend on its answer.
        logger.debug("node %d gives nothing of ledger %d: %s", node, metadata.ledger, error)
        return []
    assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
    seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
    wanted = {*entries}
    return [
        EntryItem(each.entry, each.lac, each.length, each.body)
        for each in reply.entries
        if each.entry in wanted and each.found is Found.YES and _is_whole(seal, each)
    ]


def _is_whole(seal: EntrySeal, told: EntryAnswer) -> bool:
    try:
        seal.read(told.entry, told.lac, told.length, told.body)
    except ChecksumMismatch:
        return False
    return True
