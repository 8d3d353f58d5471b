"""Peers: kept up while wanted, told of once each, dialled again with patience."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scenarios import as_scenario, now
from wire_ends import CLUSTER, Keeping, Offering, RawEnd, host_with, raw_listen, run, until

from cordwood.errors import NoSequencer, Unreachable
from cordwood.host.memory_network import MemoryNetwork
from cordwood.layout.frame import Kind
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.message import AskStatus, Call, DoneReply, Ping, Reply, pack, read_call
from cordwood.nodes import NodeId
from cordwood.sim.loop import SimLoop
from cordwood.sim.network import SimNetwork
from cordwood.sim.process import Process
from cordwood.wire.connection import Connection
from cordwood.wire.peers import (
    DIAL_TIMEOUT_S,
    DOUBT_S,
    PING_EVERY_S,
    PING_TIMEOUT_S,
    REDIAL_MAX_S,
    Peers,
)
from cordwood.wire.server import Server

ONE = NodeId(1)


@asynccontextmanager
async def watching(network) -> AsyncIterator[tuple[Peers, Keeping]]:
    """Node 9's peers, and what their listener hears."""
    kept = Keeping()
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(host_with(network), lambda node: Hello(9, CLUSTER, 1, node), tasks, kept)
        try:
            yield peers, kept
        finally:
            await peers.close()


@asynccontextmanager
async def node(network, number: int, address: str) -> AsyncIterator[Offering]:
    service = Offering()
    async with asyncio.TaskGroup() as tasks:
        server = Server(network, Hello(number, CLUSTER, 1), service, tasks)
        await server.listen(address)
        try:
            yield service
        finally:
            await server.close()


@as_scenario(run)
async def test_a_peer_is_told_of_when_it_comes_goes_and_comes_again() -> None:
    network = MemoryNetwork()
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(3)
        assert (kept.events, peers.up, peers.get(ONE)) == ([], (), None)
        for _ in range(2):
            async with node(network, 1, "a:1"):
                await asyncio.sleep(REDIAL_MAX_S + 0.1)
                assert peers.up == (1,)
                assert kept.events[-1] == ("up", 1)
            await asyncio.sleep(0.1)
            assert peers.up == ()
            assert kept.events[-1] == ("down", 1)
        assert [what for what, _ in kept.events] == ["up", "down"] * 2


@as_scenario(run)
async def test_frames_and_calls_go_both_ways() -> None:
    network = MemoryNetwork()
    async with node(network, 1, "a:1") as service, watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})

        async def answer(call: Call) -> Reply:
            raise NoSequencer("not now")

        service.answer = answer
        with pytest.raises(NoSequencer, match="not now"):
            await peers.call(ONE, AskStatus(), timeout_s=1)
        connection = await peers.wait_for(ONE, timeout_s=1)
        connection.send(Kind.STORE, 1, (b"x",))
        await asyncio.sleep(0.1)
        assert service.kept.frames == [(Kind.STORE, 1, b"x")]
        assert kept.frames == []


@as_scenario(run)
async def test_a_call_waits_for_the_peer_and_for_its_answer_within_one_deadline() -> None:
    network = MemoryNetwork()
    async with watching(network) as (peers, _):
        peers.want({ONE: "a:1"})
        with pytest.raises(Unreachable, match="node 1 at a:1 cannot be reached"):
            await peers.call(ONE, Ping(), timeout_s=2)
        assert now() == pytest.approx(2)
        ends = await raw_listen(network, "a:1")
        asking = asyncio.create_task(peers.call(ONE, Ping(), timeout_s=4))
        await asyncio.sleep(REDIAL_MAX_S)
        ends[-1].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
        with pytest.raises(Unreachable, match="did not answer Ping"):
            await asking
        assert now() == pytest.approx(6)
        with pytest.raises(Unreachable, match="node 2 at no address cannot be reached"):
            await peers.wait_for(NodeId(2), timeout_s=0.1)


@as_scenario(run)
async def test_a_dead_address_is_tried_about_once_a_second() -> None:
    dials: list[float] = []

    class Counting(MemoryNetwork):
        async def connect(self, address, make, *, timeout_s):
            dials.append(now())
            return await super().connect(address, make, timeout_s=timeout_s)

    async with watching(Counting()) as (peers, _):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(30)
        assert 30 <= len(dials) <= 70
        assert max(b - a for a, b in itertools.pairwise(dials)) <= REDIAL_MAX_S


@as_scenario(run)
async def test_a_peer_that_greets_and_hangs_up_is_not_dialled_without_a_pause() -> None:
    """As one does that refuses what it is sent at once: no pause made a storm of it, at the
    speed of the network."""
    network = MemoryNetwork()
    accepted: list[RawEnd] = []

    class Rude(RawEnd):
        def data_received(self, data: bytes) -> None:
            self.say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
            asyncio.get_running_loop().call_later(0.001, self.transport.close)

    def accept() -> Rude:
        accepted.append(Rude())
        return accepted[-1]

    await network.listen("a:1", accept)
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(10)
        assert 5 < len(accepted) <= 400
        assert len(kept.events) == 2 * len(accepted)


@as_scenario(run)
async def test_a_new_address_is_dialled_at_once() -> None:
    network = MemoryNetwork()
    async with watching(network) as (peers, _), node(network, 1, "b:1"):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(20)
        start = now()
        peers.want({ONE: "b:1"})
        await peers.wait_for(ONE, timeout_s=1)
        assert now() - start < 0.01


def test_another_node_at_the_address_is_not_taken_for_the_one_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        async with node(network, 2, "a:1"), watching(network) as (peers, kept):
            peers.want({ONE: "a:1"})
            await asyncio.sleep(3)
            assert peers.up == ()
            assert kept.events == []

    run(scenario)
    assert "no connection to node 1: node 1 was wanted, this is node 2" in caplog.text


@pytest.mark.parametrize("how", ["says nothing", "is cut off"])
@as_scenario(run)
async def test_a_peer_that_falls_silent_is_noticed(*, how: str) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    network = SimNetwork(loop, random.Random(5))
    here, there = network.host("here", Process("here")), network.host("there", Process("there"))
    ends = await raw_listen(there, "there:1")
    async with watching(here) as (peers, kept):
        peers.want({ONE: "there:1"})
        await asyncio.sleep(0.1)
        ends[0].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
        await asyncio.sleep(0.1)
        assert peers.up == (1,)
        if how == "is cut off":
            network.partition(["here"], ["there"])
        start = now()
        await until(lambda: not peers.up)
        assert now() - start <= PING_EVERY_S + PING_TIMEOUT_S + 0.5
        assert kept.events == [("up", 1), ("down", 1)]


@as_scenario(run)
async def test_a_call_without_an_answer_has_the_peer_asked_at_once() -> None:
    """A connection to a node that died and is back: the next ping was up to three seconds away, and
    a log that needs every node stood still meanwhile (swarm seed 6001096)."""
    network = MemoryNetwork()
    ends = await raw_listen(network, "a:1")
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(0.1)
        ends[0].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
        await asyncio.sleep(0.1)
        start = now()
        with pytest.raises(Unreachable, match="did not answer AskStatus within"):
            await peers.call(ONE, AskStatus(), timeout_s=0.5)
        await until(lambda: not peers.up)
        assert now() - start <= 0.5 + PING_TIMEOUT_S + 0.1
        assert kept.events == [("up", 1), ("down", 1)]


@as_scenario(run)
async def test_a_peer_that_owes_an_answer_is_asked_before_the_caller_gives_up() -> None:
    """A length of a frame that arrived damaged: the peer waits for the rest of it, and answers
    nothing any more. A seal waited for it three seconds, and the ping after it as long (swarm
    seed 9000897)."""
    network = MemoryNetwork()
    ends = await raw_listen(network, "a:1")
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(0.1)
        ends[0].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
        await asyncio.sleep(0.1)
        start = now()
        with pytest.raises(Unreachable, match="did not answer Ping within"):
            await peers.call(ONE, AskStatus(), timeout_s=10.0)
        assert now() - start <= DOUBT_S + PING_TIMEOUT_S + 0.1
        assert kept.events == [("up", 1), ("down", 1)]


@as_scenario(run)
async def test_a_peer_that_answers_its_pings_is_kept() -> None:
    network = MemoryNetwork()
    ends = await raw_listen(network, "a:1")
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(0.1)
        ends[0].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
        answered = 0
        while now() < 12 * PING_EVERY_S:
            await asyncio.sleep(0.05)
            calls = [each for each in ends[0].frames if each.kind == Kind.CALL]
            for each in calls[answered:]:
                assert read_call(each.payload) == Ping()
                ends[0].say_frame(Kind.REPLY, each.request, pack(DoneReply()))
            answered = len(calls)
        assert 10 <= answered <= 12
        assert kept.events == [("up", 1)]


@as_scenario(run)
async def test_a_peer_that_never_greets_is_tried_again() -> None:
    network = MemoryNetwork()
    ends = await raw_listen(network, "a:1")
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        await asyncio.sleep(3 * (DIAL_TIMEOUT_S + REDIAL_MAX_S))
        assert len(ends) >= 3
        assert all(end.is_lost for end in ends[:-1])
        assert kept.events == []


@as_scenario(run)
async def test_closing_ends_every_connection_and_every_keeper() -> None:
    network = MemoryNetwork()
    async with node(network, 1, "a:1") as service:
        async with watching(network) as (peers, _):
            peers.want({ONE: "a:1", NodeId(2): "nobody:1"})
            await asyncio.sleep(1)
            connection = peers.get(ONE)
            assert isinstance(connection, Connection)
        await asyncio.sleep(0.1)
        assert not connection.is_open
        assert len(service.kept.lost) == 1


@as_scenario(run)
async def test_a_frame_that_the_listener_refuses_closes_the_connection_and_it_comes_again() -> None:
    network = MemoryNetwork()
    ends = await raw_listen(network, "a:1")
    async with watching(network) as (peers, kept):
        peers.want({ONE: "a:1"})
        for turn in range(2):
            await asyncio.sleep(REDIAL_MAX_S)
            ends[turn].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
            await asyncio.sleep(0.01)
            ends[turn].say_frame(Kind.REPLY, 77, pack(DoneReply()))  # to no call of ours
            ends[turn].say_frame(Kind.STOP, 0, b"")
            await asyncio.sleep(0.01)
            assert ends[turn].is_lost
        assert kept.events == [("up", 1), ("down", 1)] * 2
