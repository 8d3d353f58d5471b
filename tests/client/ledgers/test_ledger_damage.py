"""Damaged copies of entries are replaced by whole ones: by checks, and by recoveries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.errors import Undecided
from cordwood.layout.ledger_records import LEDGERS_TABLE, entry_row_key
from cordwood.nodes import NodeId
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted

COUNT = 50
DAMAGED = 7

Damage = Callable[[ClusterAtHand, int, int], Awaitable[None]]


async def rot(cluster: ClusterAtHand, node: int, ledger: int) -> None:
    """The entry's row in LogsDB fails the checksum of its table."""
    running = cluster.running[NodeId(node)]
    await running.flush()
    tables = running.engine.logs.ledgers._tables
    assert isinstance(tables, MemoryTables)
    tables._tables[LEDGERS_TABLE].rotten.add(entry_row_key(ledger, DAMAGED))


async def flip(cluster: ClusterAtHand, node: int, ledger: int) -> None:
    """The entry's body fails its digest."""
    held = cluster.running[NodeId(node)].engine.ledgers.held[ledger]
    kept = held.entries[DAMAGED]
    body = bytes(kept.body)
    held.runs.clear()
    held.entries[DAMAGED] = kept._replace(body=body[:-1] + bytes([body[-1] ^ 1]))


async def damaged(cluster: ClusterAtHand, damage: Damage, *, closed: bool) -> int:
    """A ledger of which a node has a damaged copy of an entry; its number."""
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        await made.append_many([b"entry %d" % number for number in range(COUNT)])
        if closed:
            await made.close()
        else:
            made.abandon()
        await damage(cluster, made.metadata.newest.nodes[0], made.ledger_id)
        return made.ledger_id


async def a_check_fills(cluster: ClusterAtHand, damage: Damage) -> None:
    """The node said that it had another entry, and the check told the same again each week."""
    ledger = await damaged(cluster, damage, closed=True)
    async with cluster.client() as store:
        check = await store.ledgers.check(ledger, fills=True)
        assert (check.damaged, check.filled) == (1, 1)
        assert (await store.ledgers.check(ledger)).is_whole


async def a_recovery_ends(cluster: ClusterAtHand, damage: Damage) -> None:
    """Without another node it could not end the ledger, ever."""
    ledger = await damaged(cluster, damage, closed=False)
    async with cluster.client(timeout_s=5) as store:
        assert (await store.ledgers.recover(ledger)).last == COUNT - 1
        assert (await store.ledgers.check(ledger)).is_whole


@pytest.mark.parametrize("scene", [a_check_fills, a_recovery_ends])
@pytest.mark.parametrize("damage", [rot, flip])
def test_the_scene_holds(scene: Callable[..., Awaitable[None]], damage: Damage) -> None:
    simulate(lambda cluster: scene(cluster, damage))


@pytest.mark.parametrize(
    ("name", "damage"), [("ledger-keeps-rotten", rot), ("ledger-keeps-damaged", flip)]
)
@pytest.mark.parametrize("scene", [a_check_fills, a_recovery_ends])
def test_the_scene_catches_the_bug(
    name: str, damage: Damage, scene: Callable[..., Awaitable[None]]
) -> None:
    with planted(find_bug(name)), pytest.raises((AssertionError, Undecided)):
        simulate(lambda cluster: scene(cluster, damage))
