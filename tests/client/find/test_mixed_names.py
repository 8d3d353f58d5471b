"""A reader of several names, while the metadata store goes away or comes back: the names are of one
moment."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.find.log_info import LogInfo
from cordwood.client.store import Store
from cordwood.errors import Retryable
from cordwood.sim.planted import find_bug, planted


async def rotate(store: Store, operator: Store) -> None:
    """`store` remembers both names from before."""
    await store.append("orders-1", b"day 1")
    await store.append("orders", b"day 2")
    await operator.log_tree.rename("orders-1", "orders-2")
    await operator.log_tree.rename("orders", "orders-1")
    await operator.create_log("orders")
    await asyncio.sleep(30)


async def leads(store: Store, *names: str) -> list[int]:
    """The numbers of the logs that a reader of the names reads."""
    found = await store._find_several(names, may_remember=True)
    return [found[name].log_id for name in names]


@pytest.mark.parametrize("bug", ["", "names-mixed"])
@pytest.mark.parametrize("out", ["from the second look-up", "until the second look-up"])
def test_a_name_as_it_leads_now_is_not_mixed_with_a_remembered_one(out: str, bug: str) -> None:
    """The log of the second day, which had one of the names all the time, was not read."""

    async def scenario(cluster: ClusterAtHand) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store, cluster.client() as operator:
            await rotate(store, operator)
            right = store._cluster.find_log
            is_first = True

            async def find_log(log: str, **options: object) -> LogInfo:
                nonlocal is_first
                if log == "orders-1" and is_first:
                    is_first = False
                    cluster.metadata.is_out = True
                    loop.call_later(8, setattr, cluster.metadata, "is_out", False)
                return await right(log, **options)  # type: ignore[arg-type]

            if out.startswith("from"):
                # The first answer says that the memory is wrong: the call waits.
                store._cluster.find_log = find_log  # type: ignore[assignment, method-assign]
                assert await leads(store, "orders", "orders-1") == [3, 2]
            else:
                cluster.metadata.is_out = True
                loop.call_later(2, setattr, cluster.metadata, "is_out", False)
                assert await leads(store, "orders-1", "orders") == [1, 2]  # as it was before
            await asyncio.sleep(10)
            assert await leads(store, "orders-1", "orders") == [2, 3]

    with planted(find_bug(bug)) if bug else nullcontext():
        if bug:
            with pytest.raises(AssertionError):
                simulate(scenario)
        else:
            simulate(scenario)


@pytest.mark.parametrize("bug", ["", "names-remembered-mixed"])
def test_names_that_were_learnt_at_two_moments_are_not_taken_from_memory(bug: str) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as operator:
            await rotate(store, operator)
            await store.log("orders")
            cluster.metadata.is_out = True
            with pytest.raises(Retryable):
                await leads(store, "orders-1", "orders")
            cluster.metadata.is_out = False
            assert await leads(store, "orders-1", "orders") == [2, 3]
            cluster.metadata.is_out = True
            assert await leads(store, "orders-1", "orders") == [2, 3]
            cluster.metadata.is_out = False

    with planted(find_bug(bug)) if bug else nullcontext():
        if bug:
            with pytest.raises(pytest.fail.Exception):
                simulate(scenario)
        else:
            simulate(scenario)
