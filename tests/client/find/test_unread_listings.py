"""Listings beside entries that the metadata store has and nobody can read: told, none is hidden."""

from __future__ import annotations

import random

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import Malformed
from cordwood.metadata.memory import MemoryMetadata


async def spoil(cluster: ClusterAtHand, key: str) -> None:
    """Write an entry as a newer version may."""
    store = MemoryMetadata(random.Random(1), cluster.metadata.data)
    found = await store.get(key)
    assert found is not None
    assert await store.compare_and_set(key, b'{"newer":1}', found.version)


@as_scenario(simulate, nodes=3)
async def test_logs_are_listed_without_one_only_if_the_caller_takes_that(
    cluster: ClusterAtHand,
) -> None:
    """A query over all logs must not leave one out in silence."""
    async with cluster.client() as store:
        for name in ("a", "b", "c"):
            await store.append(name, b"x")
        await spoil(cluster, "log_ids/1")
        with pytest.raises(Malformed, match=r"the list is not whole.*log_ids/1"):
            await store.logs()
        with pytest.raises(Malformed, match="log_ids/1"):
            await store.log_tree.names()
        unread: list[str] = []
        assert [log.name for log in await store.logs(unread=unread)] == ["/b", "/c"]
        assert await store.log_tree.names(unread=unread) == {2: "/b", 3: "/c"}
        assert len(unread) == 2
        assert all("log_ids/1: " in each and "cannot be read" in each for each in unread)


@as_scenario(simulate, nodes=3)
async def test_a_consumer_that_cannot_be_read_hides_no_other(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        for name in ("a", "b"):
            await store.append(name, b"x")
            await store.cursors.save(f"reader-{name}", {name: 5})
        await spoil(cluster, "consumers/reader-a")
        await spoil(cluster, "log_ids/1")
        with pytest.raises(Malformed, match="reader-a"):
            await store.cursors.list()
        unread: list[str] = []
        (group,) = await store.cursors.list(unread=unread)
        assert group.consumer == "reader-b"
        assert group.positions == {"/b": 5}
        (why,) = unread
        assert why.startswith("consumer reader-a: ")
        assert await store.cursors.save("reader-b", {"b": 6}) == {"/b": 6}
