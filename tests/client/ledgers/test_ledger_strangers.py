"""Ledgers that the metadata store lacks, and nobody deleted: nodes keep their entries."""

from __future__ import annotations

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.errors import UnknownLedger
from cordwood.sim.planted import find_bug, planted


async def the_metadata_store_is_an_older_copy(cluster: ClusterAtHand) -> None:
    """Every node dropped the ledger, and the newer copy of the store brought nothing back."""
    values = cluster.metadata.data.values
    async with cluster.client() as store:
        older = dict(values)
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        await made.append_many([b"one", b"two"])
        await made.close()
        await store.ledgers.delete((await store.ledgers.create()).ledger_id)
        newer = dict(values)
        values.clear()
        values.update(older)
        with pytest.raises(UnknownLedger):
            await store.ledgers.open(made.ledger_id)
        for node in cluster.running.values():
            await node._ledgers.sweep()
        values.clear()
        values.update(newer)
        opened = await store.ledgers.open(made.ledger_id)
        assert [each.payload for each in await opened.read(0, 1)] == [b"one", b"two"]
        assert (await store.ledgers.check(made.ledger_id)).is_whole


def test_nodes_keep_what_nobody_deleted() -> None:
    simulate(the_metadata_store_is_an_older_copy)


def test_nodes_that_take_it_for_deleted_are_caught() -> None:
    with planted(find_bug("ledger-sweeps-strangers")), pytest.raises(Exception, match="entry 0"):
        simulate(the_metadata_store_is_an_older_copy)
