"""Where a log is sequenced: redirects are followed, and not in circles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.store import Store
from cordwood.metadata.epoch_store import EpochStore
from cordwood.nodes import NodeId
from cordwood.sequencer.eligibility import SUCCESSOR_S, Eligibility
from cordwood.sequencer.role import SequencerRole

LOG = 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each APPEND frame that a node takes, a mark."""
    frames: list[bool] = []
    on_append = SequencerRole.on_append

    def counted(self, connection, frame) -> None:
        frames.append(True)
        on_append(self, connection, frame)

    swap(monkeypatch, SequencerRole.on_append, counted)
    return frames


def test_nodes_that_send_a_client_in_circles_are_told_to_sequence(
    monkeypatch: pytest.MonkeyPatch, asked: list[bool]
) -> None:
    """Each takes the next one for the log's owner, as two views of the members may."""

    def next_one(self: Eligibility, log: int, activate_here: bool) -> NodeId:
        return NodeId(0 if activate_here else self._node % 3 + 1)

    swap(monkeypatch, Eligibility.elsewhere, next_one)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=10) as store:
            began = asyncio.get_running_loop().time()
            await store.append("log", b"0")
            assert asyncio.get_running_loop().time() - began < 1
            assert len(asked) <= 5
            for number in range(1, 20):
                await store.append("log", b"%d" % number)
            assert len(asked) <= 5 + 19, "who sequences once is asked from then on"
            assert await values(store, "log") == [b"%d" % number for number in range(20)]

    simulate(scenario)


@as_scenario(simulate)
async def test_a_client_that_asks_the_wrong_node_is_sent_on_once(
    cluster: ClusterAtHand, *, asked: list[bool]
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"0")
        owner = cluster.sequencer_of(LOG)
        asked.clear()
        async with cluster.client() as other:
            order = other._cluster.sequencers
            wrong = next(node for node in order(LOG) if node != owner)
            other._cluster.sequencers = lambda log: (  # type: ignore[method-assign]
                wrong, *(node for node in order(log) if node != wrong),
            )  # fmt: skip
            await other.append("log", b"1")
            assert cluster.sequencer_of(LOG) == owner
            assert len(asked) == 2


async def append_for(store: Store, log: str, seconds: float) -> int:
    """Append one by one; how many were acknowledged."""
    loop = asyncio.get_running_loop()
    end, acked = loop.time() + seconds, 0
    while loop.time() < end:
        await store.append(log, b"v")
        acked += 1
        await asyncio.sleep(0.02)
    return acked


async def ask_for(store: Store, log: str, seconds: float) -> None:
    """Ask for the tail again and again; it never falls."""
    loop = asyncio.get_running_loop()
    end, last = loop.time() + seconds, 0
    while loop.time() < end:
        began = loop.time()
        tail = await store.tail(log)
        assert tail >= last
        assert loop.time() - began < 3
        last = tail
        await asyncio.sleep(0.5)


@pytest.fixture
def apart() -> Callable[[ClusterAtHand, Store, Store], Awaitable[int]]:
    """Two clients of one log, of which the second cannot reach its sequencer; who that was."""

    async def prepare(cluster: ClusterAtHand, one: Store, two: Store) -> int:
        await one.append("log", b"0")
        await two.append("log", b"0")
        owner = cluster.sequencer_of(LOG)
        cluster.simulation.network.partition(["client-2"], [f"node-{owner}"])
        await asyncio.sleep(10)  # the second one's connection has gone
        return owner

    return prepare


@pytest.mark.slow
@as_scenario(simulate)
async def test_clients_that_see_different_nodes_share_the_one_that_both_see(
    cluster: ClusterAtHand, *, apart: Callable[[ClusterAtHand, Store, Store], Awaitable[int]]
) -> None:
    """The log went to and fro between two nodes, with an epoch for each append of the client
    that could not reach the first: a hundred in a minute."""
    async with cluster.client() as one, cluster.client() as two:
        owner = await apart(cluster, one, two)
        one_acked, two_acked, _ = await asyncio.gather(
            append_for(one, "log", 30), append_for(two, "log", 30), ask_for(one, "log", 30)
        )
        assert min(one_acked, two_acked) > 1000
        record = await EpochStore(cluster.metadata).read(LOG)
        assert record is not None
        assert record.next_epoch <= 4
        assert cluster.sequencer_of(LOG) != owner


@as_scenario(simulate, nodes=5)
async def test_who_gave_a_log_up_takes_it_again_after_a_while(
    cluster: ClusterAtHand, *, apart: Callable[[ClusterAtHand, Store, Store], Awaitable[int]]
) -> None:
    async with cluster.client() as one, cluster.client() as two:
        owner = await apart(cluster, one, two)
        await two.append("log", b"1")
        successor = cluster.sequencer_of(LOG)
        await one.append("log", b"2")
        assert cluster.sequencer_of(LOG) == successor
        await asyncio.sleep(SUCCESSOR_S)
        async with cluster.client() as three:
            await three.append("log", b"3")
        assert cluster.sequencer_of(LOG) == owner


@pytest.mark.parametrize("returns", [False, True])
@as_scenario(simulate, nodes=5)
async def test_a_successor_that_is_gone_or_knows_nothing_of_it_is_not_waited_for(
    cluster: ClusterAtHand,
    *,
    apart: Callable[[ClusterAtHand, Store, Store], Awaitable[int]],
    returns: bool,
) -> None:
    async with cluster.client() as one, cluster.client() as two:
        await apart(cluster, one, two)
        await two.append("log", b"1")
        successor = cluster.sequencer_of(LOG)
        cluster.kill(successor)
        if returns:
            await cluster.start(successor)
        began = asyncio.get_running_loop().time()
        await one.append("log", b"2")
        assert asyncio.get_running_loop().time() - began < 2
        assert await values(one, "log") == [b"0", b"0", b"1", b"2"]
