"""The LAC of a quiet ledger reaches its nodes, also if they do not answer when it is sent first."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.sim.planted import find_bug, planted


async def a_quiet_writer_is_cut_off_for_a_while(cluster: ClusterAtHand) -> None:
    """The LAC was sent once. Readers waited for acknowledged entries until the ledger's end."""
    links = cluster.simulation.network.links
    hosts = [cluster.machine(number).name for number in cluster.numbers]
    async with cluster.client() as store, cluster.client() as reader:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        assert await made.append_many([b"a", b"b"]) == [0, 1]
        links.cut(["client-1"], hosts)
        links.cut(hosts, ["client-1"])
        await asyncio.sleep(15)
        links.mend(["client-1"], hosts)
        links.mend(hosts, ["client-1"])
        opened = await reader.ledgers.open(made.ledger_id)
        assert await opened.wait_confirmed(0, timeout_s=30) == 1
        assert [each.payload for each in await opened.read(0, 1)] == [b"a", b"b"]
        await made.close()


def test_it_is_sent_again_to_nodes_that_did_not_take_it() -> None:
    simulate(a_quiet_writer_is_cut_off_for_a_while)


def test_a_writer_that_sends_it_once_is_caught() -> None:
    with planted(find_bug("ledger-lac-told-once")), pytest.raises(AssertionError):
        simulate(a_quiet_writer_is_cut_off_for_a_while)
