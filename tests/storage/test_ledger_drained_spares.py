"""A node that is drained after a recovery or a repair chose it gets no copies: an operator who read
the metadata before it joined may take it away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk, order
from swaps import swap

from cordwood.client.admin.named_ledgers import NamedLedgers
from cordwood.client.admin.replace_node import SETTLED_S
from cordwood.client.ledgers.ledger_nodes import ask_node
from cordwood.client.ledgers.ledger_recovering import _Attempt
from cordwood.client.ledgers.ledger_repair import LedgerRepair
from cordwood.layout.ledger_entry import ledger_key_of
from cordwood.layout.message_ledgers import AskLac
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.ledger import NO_ENTRY
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted

Announce = Callable[..., Awaitable[Any]]


async def a_spare_is_drained_before_it_joins(
    cluster: ClusterAtHand, *, repairs: bool, is_known: bool
) -> bool:
    """A client chooses a spare, and is cut off until the spare was drained and is empty, and an
    operator found no ledger that names it.

    Args:
        repairs: whether the client repairs a closed ledger; otherwise it recovers an open one.
        is_known: whether the spare knows the ledger, so that it takes re-adds.
    Returns:
        Whether the spare got no copies, and another node has them.
    """
    loop = asyncio.get_running_loop()
    chosen = asyncio.Event()
    may_join = asyncio.Event()
    right: Announce = LedgerRepair._announce if repairs else _Attempt._announce

    async def announce_late(self: Any, *args: Any) -> Any:
        # The repairs and recoveries of the cluster's own nodes are not delayed.
        if self._cluster is store.ledgers._cluster and not chosen.is_set():
            assert args[-1] == spare
            chosen.set()
            cluster.simulation.network.partition(
                ["client-2"], [f"node-{node}" for node in cluster.numbers]
            )
            await may_join.wait()
        return await right(self, *args)

    async with cluster.client() as other, cluster.client(timeout_s=60) as store:
        await other.ledgers.switch_autorecovery(on=False)
        made = await other.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many([b"entry %d" % number for number in range(5)])
        ledger = made.ledger_id
        stays, lost = made.metadata.newest.nodes
        if repairs:
            await made.close()
        else:
            made.abandon()
        *others, spare = (node for node in cluster.numbers if node not in (stays, lost))
        for node in others:
            await other.set_storage(node, read_only=True)
        await asyncio.sleep(12)  # all clients have read it
        if is_known:
            key = ledger_key_of(made.metadata.password)
            await ask_node(
                other.ledgers._cluster, spare, AskLac(ledger, key, fence=True), timeout_s=5
            )
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        await asyncio.sleep(12)
        with pytest.MonkeyPatch.context() as patched:
            swap(patched, right, announce_late)
            work = store.ledgers.repair(ledger) if repairs else store.ledgers.recover(ledger)
            working = loop.create_task(work)
            await asyncio.wait_for(chosen.wait(), 30)
            await order(cluster, spare, RebuildOrder.DRAIN)
            await until(lambda: is_empty(cluster, stays, spare), timeout_s=60)
            for node in others:
                await other.set_storage(node, read_only=False)
            await asyncio.sleep(SETTLED_S)
            assert await NamedLedgers(other.ledgers, NodeId(spare)).look() == []
            cluster.simulation.network.mend_all()
            peers = store.ledgers._cluster.peers
            await until(lambda: NodeId(spare) in peers.up, timeout_s=30)
            may_join.set()
            await working
        found = await other.ledgers.metadata(ledger)
        named = {node for each in found.fragments for node in each.nodes}
        # A recovery may have replaced the other member too: it was cut off from all nodes.
        assert lost not in named
        assert (await other.ledgers.check(ledger)).is_whole
        # The ledger names no node that an operator may have taken away.
        held = cluster.running[spare].engine.ledgers.get(ledger)
        return spare not in named and (held is None or held.last == NO_ENTRY)


def is_empty(cluster: ClusterAtHand, via: int, node: int) -> bool:
    entry = cluster.running[via]._rebuild.set.entry(NodeId(node))
    return entry is not None and entry.is_empty


def play(*, repairs: bool, is_known: bool) -> bool:
    told: list[bool] = []

    async def scene(cluster: ClusterAtHand) -> None:
        told.append(
            await a_spare_is_drained_before_it_joins(cluster, repairs=repairs, is_known=is_known)
        )

    simulate(scene, nodes=5, create_logs=False, rebuild_after_s=100_000.0)
    return told[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [False, True], ids=["stranger", "known"])
@pytest.mark.parametrize("repairs", [False, True], ids=["recovery", "repair"])
def test_a_spare_that_was_drained_meanwhile_gets_no_copies(
    *, repairs: bool, is_known: bool
) -> None:
    assert play(repairs=repairs, is_known=is_known)


@pytest.mark.parametrize("repairs", [False, True], ids=["recovery", "repair"])
def test_a_client_that_does_not_look_again_is_caught(*, repairs: bool) -> None:
    with planted(find_bug("ledger-spare-drained-meanwhile")):
        assert not play(repairs=repairs, is_known=True)


def test_a_client_that_does_not_look_again_finds_the_node_unwilling() -> None:
    """An older client, or one that heard old members."""
    with planted(find_bug("ledger-spare-drained-meanwhile")):
        assert play(repairs=False, is_known=False)


def test_a_drained_node_that_takes_strangers_is_caught() -> None:
    with (
        planted(find_bug("ledger-spare-drained-meanwhile")),
        planted(find_bug("ledger-drained-takes-strangers")),
    ):
        assert not play(repairs=False, is_known=False)
