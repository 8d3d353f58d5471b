"""What a donor measures of foreground work in a cluster, and what its pace bounds."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate
from rebuild_scene import put_records
from scenarios import as_scenario

from cordwood.protocol.rebuild_pace import FLOOR_BYTES_S
from cordwood.storage.rebuild.donor_pace import FIRST_S, RUN_S, DonorPace
from cordwood.storage.store_waits import StoreWaits


def test_waits_are_told_once_and_on_average() -> None:
    waits = StoreWaits()
    assert waits.take() == (0, 0.0)
    waits.add(1.0)
    waits.add(2.0)
    assert waits.take() == (2, 1.5)
    assert waits.take() == (0, 0.0)


@as_scenario(simulate, nodes=3)
async def test_stores_of_appends_count_and_those_of_donors_do_not(cluster: ClusterAtHand) -> None:
    await put_records(cluster, logs=1, records=5)
    found = [node.engine.waits.take() for node in cluster.running.values()]
    assert sum(stores for stores, _ in found) >= 15, "three copies of each"
    assert all(0 < wait_s < 1 for stores, wait_s in found if stores)


def test_a_donor_on_a_quiet_node_goes_fast_after_a_tenth_of_a_second() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        for stores, expected in ((0, 32 << 20), (1, FLOOR_BYTES_S)):
            waits = StoreWaits()
            waits.add(0.001)  # of before
            pace = DonorPace(float(32 << 20), waits)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(pace.watch())
                await asyncio.sleep(FIRST_S / 2)
                for _ in range(stores):
                    waits.add(0.001)
                assert pace.bytes_s == FLOOR_BYTES_S
                await asyncio.sleep(FIRST_S)
                assert pace.bytes_s == expected
                watching.cancel()

    simulate(scenario, nodes=1)


def test_a_donor_gives_way_to_slow_stores_and_goes_on_fast_when_they_end() -> None:
    turned: list[float] = []

    async def scenario(cluster: ClusterAtHand) -> None:
        waits = StoreWaits()
        pace = DonorPace(float(32 << 20), waits)
        pace.follow(lambda bytes_s, now: turned.append(bytes_s))

        async def stores(wait_s: float, seconds: int) -> None:
            for _ in range(10 * seconds):
                waits.add(wait_s)
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(pace.watch())
            await stores(0.002, 6)
            assert pace.bytes_s > 4 * FLOOR_BYTES_S
            await stores(0.050, 2)
            assert pace.bytes_s == FLOOR_BYTES_S
            assert pace.run_bytes(1 << 20) == int(FLOOR_BYTES_S * RUN_S)
            await asyncio.sleep(2)
            assert (pace.bytes_s, pace.is_yielding) == (32 << 20, False)
            assert pace.run_bytes(1 << 20) == 1 << 20
            watching.cancel()

    simulate(scenario, nodes=1)
    assert turned[0] == FLOOR_BYTES_S
    assert turned[-1] == 32 << 20
