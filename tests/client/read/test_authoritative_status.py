"""What became of a node's data: said by a person, heard by everybody, taken back by the node."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, until, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_grace import GRACE_S
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Rejected
from cordwood.lsn import make_lsn
from cordwood.node import OLD_S
from cordwood.nodes import Authority, NodeId
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.sim.planted import find_bug, planted

FULL, GONE, EMPTY, DOWN = (
    Authority.FULLY_AUTHORITATIVE,
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
    Authority.UNAVAILABLE,
)
LOG = 1
HEARD_S = 8.0
"""A node reads the member list each second, a client asks for it each five."""


async def next_of(stream: ReadStream, timeout_s: float) -> Record | Gap | None:
    """What comes next; None if nothing does in time."""
    try:
        async with asyncio.timeout(timeout_s):
            (item,) = await stream.next_items()
            return item
    except TimeoutError:
        return None


async def three_records(store: Store) -> None:
    for number in range(3):
        await store.append("log", b"%d" % number)


class TestSaid:
    @as_scenario(simulate)
    async def test_every_node_and_every_client_hears_of_it(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as other:
            assert set((await store.authorities()).values()) == {FULL}
            cluster.kill(3)
            await say_of_dead(store, 3, GONE)
            assert (await store.authorities())[NodeId(3)] is GONE
            await until(lambda: other._cluster.statuses == {3: GONE})
            for node in cluster.running.values():
                assert node._members[NodeId(3)].authority is GONE

    @as_scenario(simulate)
    async def test_a_node_that_is_up_is_not_called_lost(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for authority in (GONE, EMPTY):
                with pytest.raises(Rejected, match="node 2 is up"):
                    await store.set_authority(2, authority)
            await store.set_authority(2, DOWN)  # readers wait for it as before
            with pytest.raises(BadSetting, match="no node 9"):
                await store.set_authority(9, DOWN)

    @as_scenario(simulate)
    async def test_it_is_a_compare_and_set(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            cluster.kill(3)
            await say_of_dead(store, 3, GONE)
            with pytest.raises(Rejected, match="is under-replicated by now, not unavailable"):
                await store.set_authority(3, EMPTY, DOWN)
            await store.set_authority(3, EMPTY, GONE)
            await store.set_authority(3, EMPTY)  # as it is
            with pytest.raises(Rejected, match="cannot become under-replicated"):
                await store.set_authority(3, GONE)


class TestTakenBack:
    @as_scenario(simulate)
    async def test_a_node_that_starts_again_is_fully_authoritative(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await three_records(store)
            cluster.kill(3)
            await say_of_dead(store, 3, EMPTY)
            await cluster.start(3)
            await until(lambda: store._cluster.statuses == {})

    @as_scenario(simulate)
    async def test_one_that_was_only_stopped_says_that_it_is_here(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await three_records(store)
            cluster.machine(3).pause()
            await say_of_dead(store, 3, GONE)
            cluster.machine(3).resume()
            await until(lambda: store._cluster.statuses == {})


async def three_on(cluster: ClusterAtHand, store: Store, *nodes: int) -> None:
    """Three records, on these nodes and no other; all four are up afterwards."""
    others = [number for number in cluster.numbers if number not in nodes]
    for node in others:
        cluster.kill(node)
    await asyncio.sleep(5)
    await three_records(store)
    await cluster.start(*others)
    await asyncio.sleep(30)


class TestReaders:
    """Four nodes, two copies: two of them cannot say that nothing is lost."""

    @as_scenario(simulate, nodes=4, copies=2)
    async def test_they_wait_for_what_is_away_and_tell_the_loss_of_what_is_gone(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await three_on(cluster, store, 3, 4)
            for node in (3, 4):
                cluster.kill(node)
            stream = await store.read("log", until=make_lsn(1, 3))
            for node in (3, 4):
                await say_of_dead(store, node, DOWN)
            assert await next_of(stream, 60) is None
            for node in (3, 4):
                await store.set_authority(node, GONE)
            lost = await next_of(stream, HEARD_S)
            assert lost == Gap(make_lsn(1, 1), make_lsn(1, 3), GapKind.DATA_LOSS)

    @as_scenario(simulate, nodes=4, copies=2)
    async def test_what_was_said_before_a_rebuild_proves_nothing_after_it(
        self, cluster: ClusterAtHand
    ) -> None:
        """Nodes 1 and 2 have come past what 3 and 4 held. Then it is brought to them, and 3 and 4
        are called empty: the reader must ask anew."""
        async with cluster.client() as store:
            await three_on(cluster, store, 3, 4)
            there = cluster.running[3].engine.cache.log(LOG)
            for node in (3, 4):
                cluster.kill(node)
            stream = await store.read("log", until=make_lsn(1, 3))
            assert await next_of(stream, 20) is None, "3 and 4 may have it"
            for node in (1, 2):
                held = cluster.running[node].engine.cache.log(LOG)
                held._blocks[:], held._lasts[:] = there._blocks, there._lasts
            for node in (3, 4):
                await say_of_dead(store, node, EMPTY)
            for value in (b"0", b"1", b"2"):
                found = await next_of(stream, HEARD_S + GRACE_S)
                assert isinstance(found, Record)
                assert found.value == value

    @as_scenario(simulate, nodes=4, copies=3)
    async def test_a_node_that_sends_is_there_whatever_is_said_of_it(
        self, cluster: ClusterAtHand
    ) -> None:
        """Somebody called all four nodes gone, and they send: an f-majority of them is one."""
        async with cluster.client() as writer:
            await three_records(writer)
        async with cluster.client() as store:
            stream = await store.read("log")
            await until(lambda: len(stream.senders.sending()) == 4)
            store._cluster.statuses = {NodeId(node): GONE for node in (1, 2, 3, 4)}
            assert stream._judge({NodeId(2)}) is QuorumVerdict.NONE
            assert stream._judge({NodeId(2), NodeId(3)}) is QuorumVerdict.INCOMPLETE


@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3, copies=2)
async def test_a_node_that_is_cut_off_calls_nobody_empty(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """Node 1 is cut off from the metadata store. Node 3 was reported as empty, and came back
    with its data since. Then it went down again, with the other node that has the records."""
    async with cluster.client() as store:
        await three_on(cluster, store, 2, 3)
        cluster.kill(3)
        await say_of_dead(store, 3, EMPTY)
        own = await cluster.start_with_own_way(1)
        await asyncio.sleep(10)
        cluster.running[1].engine.release(LOG, make_lsn(1, 3))  # what its restart forgot
        assert len(await values(store, "log")) == 3  # nodes know by now who may read it
        await store.log("log")  # and the client knows its nodes
        own.is_out = True
        await cluster.start(3)
        await asyncio.sleep(2 * OLD_S)
        assert cluster.running[NodeId(2)]._members[NodeId(3)].authority is FULL
        assert cluster.running[NodeId(1)]._members[NodeId(3)].authority is EMPTY
        for node in (2, 3):
            cluster.kill(node)
        with planted(find_bug("old-statuses")) if is_planted else nullcontext():
            await asyncio.sleep(HEARD_S)
            assert store._cluster.statuses == {3: EMPTY if is_planted else DOWN}
            stream = await store.read(LOG, until=make_lsn(1, 3))
            first = await next_of(stream, 60)
            if is_planted:
                assert first == Gap(make_lsn(1, 1), make_lsn(1, 3), GapKind.DATA_LOSS)
                return
            assert first is None
            await cluster.start(3)
            assert isinstance(await next_of(stream, 60), Record)


@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3, copies=2)
async def test_a_loss_is_told_once_the_metadata_store_is_back(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """Nodes 2 and 3 are gone, and node 1 hears of no return: readers wait, but not for ever."""
    async with cluster.client() as store:
        await three_on(cluster, store, 2, 3)
        assert len(await values(store, "log")) == 3  # nodes know by now who may read it
        await store.log("log")  # and the client knows its nodes
        for node in (2, 3):
            cluster.kill(node)
            await say_of_dead(store, node, GONE)
        cluster.metadata.is_out = True
        await asyncio.sleep(2 * OLD_S)
        lost = Gap(make_lsn(1, 1), make_lsn(1, 3), GapKind.DATA_LOSS)
        with planted(find_bug("old-statuses")) if is_planted else nullcontext():
            await asyncio.sleep(HEARD_S)
            stream = await store.read(LOG, until=make_lsn(1, 3))
            assert await next_of(stream, 60) == (lost if is_planted else None)
        cluster.metadata.is_out = False
        if not is_planted:
            assert await next_of(stream, HEARD_S + GRACE_S) == lost
