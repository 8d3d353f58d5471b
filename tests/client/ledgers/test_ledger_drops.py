"""Nodes let go of ledgers that main storage has, each by a fresh look at its objects."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate

from cordwood.layout.object_names import LEDGERS
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted

LEDGERS_AT_ONCE = 12

UPLOADED_S = 40.0
"""All ledgers are in main storage by then, and no node lets go of any yet."""

PASSES_S = 120.0
"""Between two looks of a node: the object is lost while the only pass of the scene is under way."""


def is_held(cluster: ClusterAtHand, node: int, ledger: int) -> bool:
    held = cluster.running[node].engine.ledgers.held.get(ledger)
    return held is not None and not held.flags.is_empty


async def an_object_lost_in_the_pass(cluster: ClusterAtHand) -> None:
    """Main storage is slow, and loses the last ledger's object while nodes look at the others."""
    async with cluster.client(timeout_s=60) as store:
        made = []
        for _ in range(LEDGERS_AT_ONCE):
            ledger = await store.ledgers.create(ensemble=3, write=3, ack=3, tier=True)
            await ledger.append_many([b"entry"] * 10)
            await ledger.close()
            made.append(ledger.ledger_id)
        await asyncio.sleep(UPLOADED_S)
        for each in made:
            assert (await store.ledgers.metadata(each)).is_tiered
    cluster.bucket.faults = replace(cluster.bucket.faults, latency_s=(1.0, 1.0))
    first, last = made[0], made[-1]
    while any(is_held(cluster, node, first) for node in cluster.running):
        await asyncio.sleep(0.1)
        assert all(is_held(cluster, node, last) for node in cluster.running), (
            "a ledger is let go of by its own look, and not at the end of the pass"
        )
    prefix = f"{LEDGERS}{last:016x}/"
    for name in [name for name in cluster.bucket.names() if name.startswith(prefix)]:
        cluster.bucket.delete(name)
    await asyncio.sleep(PASSES_S)
    assert all(is_held(cluster, node, last) for node in cluster.running)


def play() -> None:
    simulate(
        an_object_lost_in_the_pass,
        nodes=3,
        storage=StorageSettings(flush_age_s=0.5, retention_every_s=PASSES_S / 4),
        tier=TierSettings(BUCKET, look_s=1, tend_s=1, grace_s=5, ledger_keep_s=60),
    )


def test_a_node_lets_go_of_each_ledger_right_after_its_look() -> None:
    play()


def test_the_scene_shows_the_bug() -> None:
    with planted(find_bug("ledger-tier-drops-later")), pytest.raises(AssertionError):
        play()
