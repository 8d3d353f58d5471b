"""Uploads to main storage that fail beside a repair of the same ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from swaps import swap
from test_ledger_autorecovery_cluster import payloads

from cordwood.client.ledgers import ledger_repair
from cordwood.client.ledgers.ledger_repair import write_copies
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, Rejected
from cordwood.ledger import LedgerMetadata
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted

COUNT = 20

CHANGES = 3
"""Changes of another client: one after the copies, and one after each repeat of the last copy."""

Change = Callable[[LedgerMetadata], LedgerMetadata]


async def repaired(
    store: Store,
    change: Change,
    then: Callable[[int], Awaitable[object]] | None = None,
) -> tuple[LedgerMetadata, int]:
    """Repair a closed ledger. Another client changes it after the first calls with copies.

    Args:
        then: called with the node that got the first copies, before that change.
    Returns:
        The metadata then, and the node that was replaced.
    """
    made = await store.ledgers.create(ensemble=3, write=2, ack=2)
    await made.append_many(payloads(COUNT))
    await made.close()
    calls, lost = store.ledgers._calls, made.metadata.newest.nodes[0]
    writes, asked = write_copies, list[int]()

    async def write(cluster: Any, metadata: LedgerMetadata, node: int, copies: Any) -> int:
        run = await writes(cluster, metadata, node, copies)
        asked.append(node)
        if then is not None and len(asked) == 1:
            await then(node)
        if len(asked) <= CHANGES:
            held = await calls.get(made.ledger_id)
            await calls.set(held.version, change(held.metadata))
        return run

    with pytest.MonkeyPatch.context() as patched:
        swap(patched, write_copies, write, within=ledger_repair)
        await store.ledgers.repair(made.ledger_id, nodes=[lost])
    assert len(asked) > CHANGES
    return await store.ledgers.metadata(made.ledger_id), lost


def claimed(metadata: LedgerMetadata) -> LedgerMetadata:
    return metadata.tiering(1 if metadata.tier is None else metadata.tier.attempt + 1)


def committed(metadata: LedgerMetadata) -> LedgerMetadata:
    return claimed(metadata) if metadata.tier is None else metadata.tiered(7, 1)


async def each_upload_fails(cluster: ClusterAtHand) -> None:
    """Each began with a claim in the metadata, and the repair goes on."""
    async with cluster.client() as store:
        metadata, lost = await repaired(store, claimed)
        assert metadata.tier is not None
        assert lost not in metadata.newest.nodes
        assert metadata.joining == ()
        assert (await store.ledgers.check(metadata.ledger)).is_whole


def test_a_repair_goes_on_beside_uploads_that_fail() -> None:
    simulate(each_upload_fails, nodes=4)


def test_the_scene_catches_the_bug() -> None:
    bug = find_bug("ledger-repair-stops-at-upload")
    with planted(bug), pytest.raises((AssertionError, CordwoodError)):
        simulate(each_upload_fails, nodes=4)


def test_a_repair_ends_once_main_storage_has_the_ledger() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            with pytest.raises(Rejected, match="another client changed"):
                await repaired(store, committed)

    simulate(scenario, nodes=4)


def test_a_node_that_restarted_beside_an_upload_gets_its_copies_once_more() -> None:
    """Between two versions of the metadata it may have lost its disk without a mark."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async def restart(node: int) -> None:
            cluster.kill(NodeId(node))
            await cluster.start(NodeId(node))

        async with cluster.client(timeout_s=60) as store:
            with pytest.raises(Rejected, match="another client changed"):
                await repaired(store, claimed, restart)

    simulate(scenario, nodes=4)
