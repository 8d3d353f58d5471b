"""The client's view of its cluster: URLs, finding it, members and logs as they change."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario, now
from swaps import swap_value

from cordwood.client.address import parse_url
from cordwood.client.cluster import NEXT_ADDRESS_S, REFRESH_S, Cluster, LogInfo
from cordwood.client.store import connected
from cordwood.errors import (
    BadSetting,
    Closed,
    LogExists,
    NotOurCluster,
    Overloaded,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.message import AskStatus
from cordwood.layout.message_logs import EpochNodes
from cordwood.nodes import NodeId, Replication
from cordwood.settings import ClientSettings
from cordwood.sim.host import Simulation
from cordwood.wire import server as server_module


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("cordwood://127.0.0.1:4440", ("127.0.0.1:4440",)),
        ("cordwood://a:1,b:2/", ("a:1", "b:2")),
        ("a:1, b:65535", ("a:1", "b:65535")),
        ("cordwood://[::1]:4440", ("[::1]:4440",)),
    ],
)
def test_urls(url: str, addresses: tuple[str, ...]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    [
        "", "cordwood://", "host", "cordwood://host", "host:", ":4440", "host:0", "host:65536",
        "host:port", "a:1,,b:2", "a:1,b", "http://a:1/x", "host:-1", "host:4_440", "host:٣",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused_by_what_it_should_be(url: str) -> None:
    with pytest.raises(BadSetting, match="write cordwood://host:port"):
        parse_url(url)


def test_the_nodes_of_each_epoch() -> None:
    info = LogInfo(
        1, "/a", Replication(), 0, (EpochNodes(1, [1, 2], 2, 1), EpochNodes(5, [3], 1, 1))
    )
    assert [info.nodes_of(epoch) for epoch in (0, 1, 4, 5, 99)] == [(), (1, 2), (1, 2), (3,), (3,)]
    assert info.all_nodes == (1, 2, 3)


class TestFinding:
    @as_scenario(simulate)
    async def test_any_address_that_answers_will_do(self, cluster: ClusterAtHand) -> None:
        host = cluster.client_host()
        addresses = ("nobody:1", "node-2:1", cluster.addresses[2])
        async with connected(addresses, host, ClientSettings()) as store:
            assert list(store.members) == [1, 2, 3]
            await store.append("log", b"v")

    def test_a_client_that_came_when_there_was_one_node_finds_the_others_without_it(self) -> None:
        """Seed 10000081. It knew of one node only, which then hung, and asked nobody else for
        the members: forty seconds later it had not appended anything, with three nodes up."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                assert list(store.members) == [1]
                await cluster.start(2, 3, 4)
                cluster.machine(1).pause()
                await asyncio.sleep(3 * REFRESH_S)
                assert list(store.members) == [1, 2, 3, 4]
                await store.append("log", b"v")

        simulation = Simulation(1)

        async def main(simulation: Simulation) -> None:
            cluster = ClusterAtHand(simulation, nodes=4, copies=2)
            await cluster.start(1)
            await scenario(cluster)

        simulation.run(main)
        assert simulation.loop.unhandled == []

    @as_scenario(simulate)
    async def test_where_nobody_answers_the_text_says_how_to_start_one(
        self, cluster: ClusterAtHand
    ) -> None:
        settings = ClientSettings(timeout_s=2)
        manager = connected(("nobody:1", "node-1:9"), cluster.client_host(), settings)
        with pytest.raises(Unreachable, match=r"nobody:1.*node-1:9.*cordwood up"):
            await manager.__aenter__()

    @as_scenario(simulate)
    async def test_a_machine_that_says_nothing_takes_no_longer_than_the_timeout(
        self, cluster: ClusterAtHand
    ) -> None:
        host = cluster.client_host()
        cluster.simulation.network.partition(["client-1"], ["node-1"])
        settings = ClientSettings(timeout_s=2)
        start = now()
        with pytest.raises(Unreachable):
            await connected(cluster.addresses[:1], host, settings).__aenter__()
        assert now() - start <= 4.1

    @as_scenario(simulate)
    async def test_a_node_that_hangs_holds_nobody_up_who_has_other_addresses(
        self, cluster: ClusterAtHand
    ) -> None:
        """Seed 11100045 with a tier. Clients that came anew waited 5 s for the first address."""
        cluster.machine(1).pause()
        cluster.machine(2).pause()
        start = now()
        async with connected(cluster.addresses, cluster.client_host(), ClientSettings()) as store:
            assert list(store.members) == [1, 2, 3]
            assert now() - start <= 2 * NEXT_ADDRESS_S + 0.1

    @as_scenario(simulate)
    async def test_silent_addresses_are_waited_for_together(self, cluster: ClusterAtHand) -> None:
        for node in (1, 2, 3):
            cluster.machine(node).pause()
        start = now()
        with pytest.raises(Unreachable, match=r"node-1.*node-2.*node-3"):
            await connected(
                cluster.addresses, cluster.client_host(), ClientSettings(timeout_s=2)
            ).__aenter__()
        assert now() - start <= 2 + 2 * NEXT_ADDRESS_S + 0.1

    @as_scenario(simulate)
    async def test_another_cluster_at_an_address_is_not_taken_for_ours(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            inner = store._cluster
            inner._cluster = bytes(16)[:15] + b"x"
            with pytest.raises(NotOurCluster, match="is cluster"):
                await inner.start(timeout_s=2)


class TestMembers:
    @as_scenario(simulate)
    async def test_a_node_that_joins_is_known_and_used_soon(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            cluster.add_nodes(1)
            await cluster.start(4)
            await asyncio.sleep(REFRESH_S + 1)
            assert list(store.members) == [1, 2, 3, 4]
            assert 4 in store._cluster.peers.up

    @as_scenario(simulate)
    async def test_status_tells_each_node_s_own_view_or_why_there_is_none(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"v"] * 5)
            cluster.kill(2)
            await asyncio.sleep(0.5)
            status = await store.status()
            assert list(status) == [1, 2, 3]
            assert isinstance(status[2], Unreachable)
            for number in (1, 3):
                reply = status[number]
                assert not isinstance(reply, Exception)
                assert (reply.node, reply.stored_blocks, reply.failed) == (number, 1, "")
                (log,) = reply.logs
                assert (log.blocks, log.sequencing) == (
                    1, cluster.sequencer_of(1) == number,
                )  # fmt: skip


class TestLogs:
    @as_scenario(simulate)
    async def test_they_are_made_listed_and_described(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.create_log("orders/eu", copies=2)
            assert (made.name, made.replication) == ("/orders/eu", Replication(2, 1))
            assert (await store.create_log("/orders")).replication == Replication(3, 1)
            with pytest.raises(LogExists, match="/orders already"):
                await store.create_log("orders")
            with pytest.raises(BadSetting, match="no log name"):
                await store.create_log("a//b")
            with pytest.raises(BadSetting):
                await store.create_log("c", copies=17)
            await store.append("other", b"v")
            names = [info.name for info in await store.logs()]
            assert names == ["/orders", "/orders/eu", "/other"]
            assert [info.name for info in await store.logs("/orders/")] == names[:2]
            assert (await store.log("orders/eu")).history == made.history

    @as_scenario(simulate, racks=2)
    async def test_fewer_copies_than_the_cluster_s_racks_span_as_many_as_they_can(
        self, cluster: ClusterAtHand
    ) -> None:
        """`copies=1` took over the default of two racks, and was refused for a number that
        nobody had given."""
        async with cluster.client() as store:
            made = await store.create_log("one", copies=1)
            assert made.replication == Replication(1, 1)
            assert (await store.create_log("two", copies=2)).replication == Replication(2, 2)
            with pytest.raises(BadSetting, match="racks is 3"):
                await store.create_log("wrong", copies=2, racks=3)

    @as_scenario(simulate)
    async def test_two_clients_that_make_one_log_at_once_share_it(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as one, cluster.client() as two:
            lsns = await asyncio.gather(
                *(store.append("log", b"v") for store in (one, two) for _ in range(5))
            )
            assert len(set(lsns)) == 10
            assert len(await one.logs()) == 1


class TestCalls:
    @as_scenario(simulate)
    async def test_they_go_to_another_node_when_one_is_silent(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            cluster.machine(1).pause()
            start = now()
            assert len(await store.logs()) == 1
            assert now() - start < 6

    @pytest.mark.slow
    def test_a_client_that_opens_thousands_of_logs_at_once_is_refused_by_nobody(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node ran 1,024 calls and refused the others: they were errors of the caller's."""
        refused: list[Overloaded] = []

        def refuse(text: str) -> Overloaded:
            refused.append(Overloaded(text))
            return refused[-1]

        monkeypatch.setattr(server_module, "Overloaded", refuse)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                opened = await asyncio.gather(
                    *(store.open_log(f"many/{number}") for number in range(3000))
                )
                assert len(opened) == 3000
                assert refused == []

        simulate(scenario)

    def test_what_nodes_refuse_for_want_of_time_is_asked_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: server_module.CLIENT_CALLS_MAX, 1)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as one, cluster.client() as two:
                lsns = await asyncio.gather(
                    *(store.append(f"log/{n}", b"v") for store in (one, two) for n in range(40))
                )
                assert len(lsns) == 80
                assert len(await one.logs()) == 40

        simulate(scenario)

    @as_scenario(simulate)
    async def test_nodes_that_go_on_to_refuse_are_told_of_at_the_deadline(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            swap_value(monkeypatch, lambda: server_module.CLIENT_CALLS_MAX, 0)
            start = now()
            with pytest.raises(Overloaded, match="calls are running on this node"):
                await store.create_log("log")
            assert now() - start == pytest.approx(3, abs=0.1)
            start = now()
            with pytest.raises(Overloaded):
                await store._cluster.call_node(NodeId(1), AskStatus(), timeout_s=2)
            assert 1 <= now() - start <= 2

    @as_scenario(simulate)
    async def test_a_closed_client_says_so_at_once(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.close()
            for call in (store.logs(), store.log("x"), store.create_log("x")):
                with pytest.raises(Closed):
                    await call

    @as_scenario(simulate)
    async def test_a_metadata_store_that_is_out_is_told_and_comes_back(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            await store.append("log", b"v")
            cluster.metadata.is_out = True
            with pytest.raises(Unreachable):
                await store.log("log")
            assert await store.append("log", b"w"), "it is off the path of appends"
            cluster.metadata.is_out = False
            assert (await store.log("log")).name == "/log"


@as_scenario(simulate)
async def test_a_client_that_finds_nobody_leaves_nothing_running(cluster: ClusterAtHand) -> None:
    async with asyncio.TaskGroup() as tasks:
        inner = Cluster(cluster.client_host(), ("nobody:1",), tasks)
        with pytest.raises(Unreachable):
            await inner.start(timeout_s=1)
        await inner.close()
        assert not tasks._tasks


class TestFindLog:
    @as_scenario(simulate)
    async def test_many_who_want_one_ask_once_and_go_on_in_the_order_they_came(
        self, cluster: ClusterAtHand
    ) -> None:
        """Each asked on its own, so the first appends to a new log were stored in the order in
        which the answers came back."""
        async with cluster.client() as store:
            calls = [store.append("new", b"%d" % n) for n in range(50)]
            lsns = await asyncio.gather(*calls)
            assert lsns == sorted(lsns)
            assert len(cluster.held(1, 1)) == 1, "one block"

    @as_scenario(simulate, create_logs=False)
    async def test_an_error_is_everyone_s_and_the_next_one_asks_again(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            ends = await asyncio.gather(
                *(store.append("log", b"v") for _ in range(3)), return_exceptions=True
            )
            assert {type(end) for end in ends} == {UnknownLog}
            await store.create_log("log")
            await store.append("log", b"v")

    @as_scenario(simulate)
    async def test_one_who_gives_up_takes_nobody_along(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            first, second = (asyncio.create_task(store.append("log", b"v")) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).esn == 1
            assert first.cancelled()

    @as_scenario(simulate)
    async def test_a_close_ends_who_asks(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for number in (1, 2, 3):
                cluster.machine(number).pause()
            asking = asyncio.create_task(store.append("log", b"v"))
            await asyncio.sleep(0.2)
            start = now()
            await store.close()
            with pytest.raises(Closed):
                await asking
            assert now() - start < 0.5
