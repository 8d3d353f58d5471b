"""Main storage on a whole cluster: nodes upload and let go, and readers notice nothing."""

from __future__ import annotations

import asyncio

from cluster_at_hand import BUCKET, ClusterAtHand, simulate, values

from cordwood.client.store import Store
from cordwood.log_attributes import LogAttributes
from cordwood.settings import StorageSettings, TierSettings

STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TIER = TierSettings(BUCKET, look_s=1.0)
TIERED = LogAttributes(tier=True, local_retention=5, tier_after_s=1)


async def write(store: Store, log: str, count: int, pause_s: float = 0.2) -> list[bytes]:
    written = [b"%s %d " % (log.encode(), n) + bytes(400) for n in range(count)]
    for value in written:
        await store.append(log, value)
        await asyncio.sleep(pause_s)
    return written


def gone(cluster: ClusterAtHand, log: int = 1) -> list[int]:
    return [node.engine.gone_of(log) for node in cluster.running.values()]


class TestTheWholeWay:
    def test_nodes_let_go_of_what_is_uploaded_and_all_is_read(self):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("log", attributes=TIERED)
                written = await write(store, "log", 100)
                await asyncio.sleep(20)
                for node in cluster.running.values():
                    assert node.engine.trim_of(1) == 0
                    assert node.engine.logs.stored_bytes == 0
                assert min(gone(cluster)) == await store.tail("log")
                assert await values(store, "log") == written
                more = await write(store, "log", 10)
                assert await values(store, "log") == written + more

        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)

    def test_a_log_that_is_made_later_is_met(self):
        """A log that is made counts as no change of the tree, which nodes look for."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await asyncio.sleep(10)
                await store.create_log("log", attributes=TIERED)
                written = await write(store, "log", 20)
                await asyncio.sleep(20)
                assert min(gone(cluster)) == await store.tail("log")
                assert await values(store, "log") == written

        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
