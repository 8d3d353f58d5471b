"""The listening side: answers, deadlines, and bounds on strangers and on calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scenarios import as_scenario, now
from swaps import swap_value
from wire_ends import (
    ADDRESS,
    CLIENT,
    CLUSTER,
    NODE_1,
    Ends,
    Offering,
    RawEnd,
    dial_in,
    memory_ends,
    raw_dial,
    run,
    simulated_ends,
    until,
)

from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Fenced,
    NoSequencer,
    Overloaded,
    Rejected,
    Unreachable,
)
from cordwood.host.real_network import RealNetwork
from cordwood.layout.frame import CONTROL_BYTES_MAX, REPLY_BYTES_MAX, Kind, frame
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.message import (
    Call,
    DeleteLog,
    DoneReply,
    Ping,
    Reply,
    Seal,
    SealReply,
)
from cordwood.layout.message_staging import FindStaged, StagedPlaces
from cordwood.sim.planted import find_bug, planted
from cordwood.wire import server as server_module
from cordwood.wire.connection import HELLO_TIMEOUT_S
from cordwood.wire.server import CALL_TIMEOUT_S, Server

NODE_2 = Hello(2, CLUSTER, 5)


@asynccontextmanager
async def serving(ends: Ends, service: Offering, address: str = ADDRESS) -> AsyncIterator[Server]:
    async with asyncio.TaskGroup() as tasks:
        server = Server(ends.server, NODE_1, service, tasks)
        await server.listen(address)
        try:
            yield server
        finally:
            await server.close()


async def settle() -> None:
    await asyncio.sleep(0.2)


async def an_answer_is_too_large() -> None:
    """The caller closed the connection over it, and all that was under way was lost."""
    ends, service = memory_ends(), Offering()
    goes_on = asyncio.Event()

    async def answer(call: Call) -> Reply:
        if call == DeleteLog("slow"):
            await goes_on.wait()
            return DoneReply()
        return SealReply({}, 0, {1: bytes(REPLY_BYTES_MAX)})

    service.answer = answer
    async with serving(ends, service):
        client = await dial_in(ends.client)
        waiting = asyncio.create_task(client.call(DeleteLog("slow"), timeout_s=5))
        with pytest.raises(Rejected, match="the answer to Seal has 75497"):
            await client.call(Seal(1, 1, 0), timeout_s=5)
        goes_on.set()
        assert await waiting == DoneReply()


class TestCalls:
    @as_scenario(run)
    async def test_a_call_is_answered_and_an_error_comes_out_as_itself(self) -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service):
            connection = await dial_in(ends.client)
            assert await connection.call(DeleteLog("quick"), timeout_s=1) == DoneReply()

            async def refuse(call: Call) -> Reply:
                raise Fenced("a higher epoch rules", 9)

            service.answer = refuse
            with pytest.raises(Fenced, match="higher epoch") as fenced:
                await connection.call(DeleteLog("log"), timeout_s=1)
            assert fenced.value.epoch == 9
            assert service.calls == [DeleteLog("quick"), DeleteLog("log")]

    def test_a_ping_is_answered_at_once_whatever_the_service_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: server_module.CLIENT_CALLS_MAX, 0)

        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            async with serving(ends, service):
                connection = await dial_in(ends.client)
                assert await connection.call(Ping(), timeout_s=1) == DoneReply()
                with pytest.raises(Overloaded):
                    await connection.call(DeleteLog("log"), timeout_s=1)
                assert service.calls == []

        run(scenario)

    @as_scenario(run)
    async def test_a_slow_call_stops_no_other_and_ends_at_the_limit(self) -> None:
        ends, service = memory_ends(), Offering()

        async def slow(call: Call) -> Reply:
            await asyncio.sleep(0 if call == DeleteLog("quick") else 1000)
            return DoneReply()

        service.answer = slow
        async with serving(ends, service):
            connection = await dial_in(ends.client)
            asking = asyncio.create_task(connection.call(DeleteLog("log"), timeout_s=100))
            await connection.call(DeleteLog("quick"), timeout_s=1)
            assert not asking.done()
            with pytest.raises(Unreachable, match="DeleteLog took longer than 30 s"):
                await asking
            assert now() == pytest.approx(CALL_TIMEOUT_S, abs=0.01)

    def test_calls_of_clients_that_wait_keep_no_node_s_call_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Clients that ask for a tail wait until the log is recovered, and that takes seals."""
        swap_value(monkeypatch, lambda: server_module.CLIENT_CALLS_MAX, 2)

        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            is_sealed = asyncio.Event()

            async def answer(call: Call) -> Reply:
                if isinstance(call, Seal):
                    is_sealed.set()
                    return SealReply({}, 0)
                await is_sealed.wait()
                return DoneReply()

            service.answer = answer
            async with serving(ends, service):
                client, node = await dial_in(ends.client), await dial_in(ends.client, NODE_2)
                ask = DeleteLog("log")
                asking = [asyncio.create_task(client.call(ask, timeout_s=9)) for _ in "12"]
                await asyncio.sleep(0.1)
                with pytest.raises(Overloaded):
                    await client.call(ask, timeout_s=1)
                assert await node.call(Seal(1, 2, 0), timeout_s=1) == SealReply({}, 0)
                assert await asyncio.gather(*asking) == [DoneReply()] * 2

        run(scenario)

    def test_calls_of_nodes_are_bounded_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: server_module.NODE_CALLS_MAX, 0)

        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            async with serving(ends, service):
                node = await dial_in(ends.client, NODE_2)
                with pytest.raises(Overloaded, match="0 calls are running"):
                    await node.call(Seal(1, 2, 0), timeout_s=1)

        run(scenario)

    def test_calls_that_run_at_once_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: server_module.CLIENT_CALLS_MAX, 3)

        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            release = asyncio.Event()

            async def wait(call: Call) -> Reply:
                await release.wait()
                return DoneReply()

            service.answer = wait
            async with serving(ends, service):
                connection = await dial_in(ends.client)
                calls = [
                    asyncio.create_task(connection.call(DeleteLog("log"), timeout_s=9))
                    for _ in "1234"
                ]
                with pytest.raises(Overloaded, match="3 calls are running"):
                    await calls.pop()
                release.set()
                assert await asyncio.gather(*calls) == [DoneReply()] * 3
                assert await connection.call(DeleteLog("log"), timeout_s=1) == DoneReply()

        run(scenario)

    def test_bytes_of_calls_that_run_at_once_are_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thousand calls of 4 MiB from many clients stayed in a node's memory, each many times as
        large once it was read, while the metadata store was slow."""
        swap_value(monkeypatch, lambda: server_module.CLIENT_CALL_BYTES_MAX, 10_000)

        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            release = asyncio.Event()

            async def wait(call: Call) -> Reply:
                await release.wait()
                return StagedPlaces([]) if isinstance(call, FindStaged) else DoneReply()

            service.answer = wait
            large = FindStaged([bytes(16)] * 250)
            async with serving(ends, service):
                clients = [await dial_in(ends.client) for _ in "123"]
                calls = [asyncio.create_task(client.call(large, timeout_s=9)) for client in clients]
                with pytest.raises(Overloaded, match="2 calls are running on this node, of 9"):
                    await calls.pop()
                calls.append(asyncio.create_task(clients[2].call(DeleteLog("log"), timeout_s=9)))
                node = await dial_in(ends.client, NODE_2)
                calls.append(asyncio.create_task(node.call(large, timeout_s=9)))
                await settle()
                release.set()
                found = StagedPlaces([])
                assert await asyncio.gather(*calls) == [found, found, DoneReply(), found]
                for client in clients:
                    assert await client.call(large, timeout_s=9) == found

        run(scenario)

    def test_a_call_that_cannot_be_read_closes_its_connection_only(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            ends, service = memory_ends(), Offering()
            async with serving(ends, service):
                good, bad = await dial_in(ends.client), await raw_dial(ends.client)
                bad.greet()
                bad.say_frame(Kind.CALL, 1, b"\x91" * 5000)
                await settle()
                assert bad.is_lost
                assert await good.call(Ping(), timeout_s=1) == DoneReply()
                assert len(service.kept.lost) == 1

        run(scenario)
        assert "a call that this version does not know" in caplog.text

    @as_scenario(run)
    async def test_an_answer_that_no_frame_holds_is_an_error_of_its_call_alone(self) -> None:
        await an_answer_is_too_large()

    def test_the_scene_catches_an_answer_of_any_size(self) -> None:
        with planted(find_bug("answers-of-any-size")), pytest.raises(ExceptionGroup) as raised:
            run(an_answer_is_too_large)
        assert raised.group_contains(Unreachable, match="was lost: a frame of kind 65 claims")

    @as_scenario(run)
    async def test_a_call_that_no_frame_holds_is_not_sent(self) -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service):
            client = await dial_in(ends.client)
            with pytest.raises(BadSetting, match="too many to ask"):
                await client.call(DeleteLog("x" * CONTROL_BYTES_MAX), timeout_s=5)
            assert await client.call(DeleteLog("log"), timeout_s=5) == DoneReply()
            assert service.calls == [DeleteLog("log")]

    @as_scenario(run)
    async def test_data_goes_to_the_service(self) -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service):
            connection = await dial_in(ends.client)
            connection.send(Kind.STORE, 4, (b"blocks",))
            await settle()
            assert service.kept.frames == [(Kind.STORE, 4, b"blocks")]


class TestStrangers:
    @pytest.mark.parametrize("ends", [memory_ends, simulated_ends])
    @pytest.mark.parametrize("trickle", [b"", b"\x30"])
    @as_scenario(run)
    async def test_who_says_no_hello_in_time_is_cut_off(self, *, ends, trickle: bytes) -> None:
        """A byte now and then is no hello either."""
        between = ends()
        async with serving(between, Offering()) as server:
            stranger = await raw_dial(between.client)
            start = now()
            for _ in range(4):
                stranger.say(trickle)
                await asyncio.sleep(HELLO_TIMEOUT_S / 4 - 0.01)
            assert not stranger.is_lost
            await asyncio.sleep(0.3)
            assert stranger.is_lost
            assert now() - start < HELLO_TIMEOUT_S + 0.3
            assert server.connections == 0

    @as_scenario(run)
    async def test_who_greeted_stays(self) -> None:
        ends = memory_ends()
        async with serving(ends, Offering()):
            connection = await dial_in(ends.client)
            await asyncio.sleep(10 * HELLO_TIMEOUT_S)
            assert connection.is_open

    @pytest.mark.parametrize("ends", [memory_ends, simulated_ends])
    def test_strangers_are_bounded_and_those_who_greeted_are_none(
        self, ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: server_module.STRANGERS_MAX, 3)

        async def scenario() -> None:
            between = ends()
            async with serving(between, Offering()) as server:
                greeted = [await dial_in(between.client) for _ in range(5)]
                strangers = [await raw_dial(between.client) for _ in range(5)]
                await settle()
                assert [each.is_lost for each in strangers] == [True, True, False, False, False]
                assert server.connections == 8
                assert strangers[0].frames[0].kind == Kind.REFUSAL
                greeted.append(await dial_in(between.client))
                assert all(each.is_open for each in greeted)

        run(scenario)

    def test_connections_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: server_module.CONNECTIONS_MAX, 2)

        async def scenario() -> None:
            ends = memory_ends()
            async with serving(ends, Offering()):
                first, _ = await dial_in(ends.client), await dial_in(ends.client)
                with pytest.raises(Overloaded, match="node 1 has 2 connections of clients"):
                    await dial_in(ends.client)
                assert (await dial_in(ends.client, NODE_2)).is_open
                first.close()
                await settle()
                assert (await dial_in(ends.client)).is_open

        run(scenario)

    def test_on_real_sockets_those_over_the_limit_are_closed_and_counted_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: server_module.STRANGERS_MAX, 2)

        async def scenario() -> None:
            ends = Ends(RealNetwork(), RealNetwork())
            async with serving(ends, Offering(), "127.0.0.1:0") as server:
                strangers = [await raw_dial(ends.client, server.address) for _ in range(6)]
                await until(lambda: sum(each.is_lost for each in strangers) == 4)
                assert server.connections == 2
                for each in strangers:
                    each.transport.close()
                await until(lambda: server.connections == 0)
                late = await raw_dial(ends.client, server.address)
                late.greet()
                await until(lambda: bool(late.frames))
                assert late.frames[0].kind == Kind.WELCOME

        asyncio.run(scenario())


class TestLife:
    @as_scenario(run)
    async def test_an_address_is_taken_once_and_free_after_the_close(self) -> None:
        ends = memory_ends()
        async with serving(ends, Offering()) as server:
            assert server.address == ADDRESS
            with pytest.raises(BadSetting, match=ADDRESS):
                await Server(ends.server, NODE_1, Offering(), asyncio.TaskGroup()).listen(ADDRESS)
        async with serving(ends, Offering()):
            assert await (await dial_in(ends.client)).call(Ping(), timeout_s=1) == DoneReply()

    @as_scenario(run)
    async def test_a_close_ends_connections_and_calls_and_takes_no_one_new(self) -> None:
        ends, service = memory_ends(), Offering()

        async def never(call: Call) -> Reply:
            await asyncio.sleep(1000)
            raise AssertionError

        service.answer = never
        async with serving(ends, service):
            connection, stranger = await dial_in(ends.client), await raw_dial(ends.client)
            asking = asyncio.create_task(connection.call(DeleteLog("log"), timeout_s=100))
            await settle()
        with pytest.raises(CordwoodError):
            await asking
        assert now() < 1
        await settle()
        assert not connection.is_open
        assert stranger.is_lost
        with pytest.raises(Unreachable):
            await dial_in(ends.client)

    @as_scenario(run)
    async def test_the_service_hears_of_losses_of_those_who_greeted_only(self) -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service):
            stranger, connection = await raw_dial(ends.client), await dial_in(ends.client)
            stranger.transport.close()
            await settle()
            assert service.kept.lost == []
            connection.close()
            await settle()
            assert [type(error) for error in service.kept.lost] == [Unreachable]

    @as_scenario(run)
    async def test_an_answer_to_who_has_gone_is_dropped(self) -> None:
        ends, service = memory_ends(), Offering()
        release = asyncio.Event()

        async def wait(call: Call) -> Reply:
            await release.wait()
            raise NoSequencer("nobody hears this")

        service.answer = wait
        async with serving(ends, service):
            end = RawEnd()
            await ends.client.connect(ADDRESS, lambda: end, timeout_s=1)
            end.say(*frame(Kind.HELLO, 0, pack_hello(CLIENT)))
            await settle()
            end.transport.close()
            await settle()
            release.set()
            await settle()
            service.answer = service.done
            connection = await dial_in(ends.client)
            assert await connection.call(Ping(), timeout_s=1) == DoneReply()
