"""Readers of an open ledger whose last nodes tell no LAC: they read all entries that the metadata
says are confirmed. Each scene holds, and with its bug planted it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.errors import NoEntry
from cordwood.sim.planted import find_bug, planted

PAYLOADS = [b"%d" % number for number in range(30)]

FOLLOW_S = 60.0
"""A follower that stands does so for good."""

Scene = Callable[[ClusterAtHand], Awaitable[None]]


async def followed(opened: ReadableLedger) -> list[bytes]:
    """The first entries of a follower."""
    following = opened.follow()
    async with asyncio.timeout(FOLLOW_S):
        found = [(await anext(following)).payload for _ in PAYLOADS]
    await following.aclose()
    return found


async def written(store: Store) -> WritableLedger:
    made = await store.ledgers.create(ensemble=2, write=2, ack=2)
    await made.append_many(PAYLOADS)
    await asyncio.sleep(1)
    return made


async def changed(cluster: ClusterAtHand, store: Store, made: WritableLedger) -> None:
    """The writer dies right after it changed its ensemble: the new nodes have no entry."""
    held = await store.ledgers._calls.get(made.ledger_id)
    others = [node for node in cluster.running if node not in made.metadata.newest.nodes]
    made.abandon()
    metadata = held.metadata.with_ensemble(len(PAYLOADS), (others[0], others[1]))
    _, is_set = await store.ledgers._calls.set(held.version, metadata)
    assert is_set


async def the_new_nodes_have_no_entry(cluster: ClusterAtHand) -> None:
    """It waited for the new nodes to tell a LAC."""
    async with cluster.client() as store:
        made = await written(store)
        await changed(cluster, store, made)
        assert await followed(await store.ledgers.open(made.ledger_id)) == PAYLOADS
        opened = await store.ledgers.open(made.ledger_id)
        assert [each.payload for each in await opened.read(0, 29)] == PAYLOADS
        with pytest.raises(NoEntry):
            await opened.read(0, 30)


async def the_last_nodes_are_down(cluster: ClusterAtHand) -> None:
    """It waited for nodes that are down to tell a LAC of entries that others have."""
    async with cluster.client() as store:
        made = await written(store)
        first = made.metadata.newest.nodes
        for node in first:
            cluster.kill(node)
        await made.append(b"on other nodes")
        assert not {*first} & {*made.metadata.newest.nodes}
        for node in first:
            await cluster.start(node)
        made.abandon()
        for node in made.metadata.newest.nodes:
            cluster.kill(node)
        assert await followed(await store.ledgers.open(made.ledger_id)) == PAYLOADS


async def the_ensemble_changes_after_the_reader_began(cluster: ClusterAtHand) -> None:
    """It read the metadata again, and went on waiting."""
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        opened = await store.ledgers.open(made.ledger_id)
        await made.append_many(PAYLOADS)
        await changed(cluster, store, made)
        await opened.refresh()
        assert await followed(opened) == PAYLOADS


SCENES: list[tuple[Scene, str]] = [
    (the_new_nodes_have_no_entry, "ledger-settled-unconfirmed"),
    (the_last_nodes_are_down, "ledger-settled-unconfirmed"),
    (the_ensemble_changes_after_the_reader_began, "ledger-settled-unconfirmed"),
    (the_ensemble_changes_after_the_reader_began, "ledger-settled-at-opening"),
]


@pytest.mark.parametrize(
    "scene", dict.fromkeys(scene for scene, _ in SCENES), ids=lambda scene: scene.__name__
)
def test_the_scene_holds(scene: Scene) -> None:
    simulate(scene, nodes=5)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "name"), SCENES)
def test_the_scene_catches_the_bug(scene: Scene, name: str) -> None:
    with planted(find_bug(name)), pytest.raises(TimeoutError):
        simulate(scene, nodes=5)
