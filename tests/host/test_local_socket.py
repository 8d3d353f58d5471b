"""Unix sockets beside TCP ports: who takes them, and when TCP is taken instead."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario

from cordwood.errors import NotOurCluster, Unreachable
from cordwood.host.local_socket import (
    SEND_BUFFER_BYTES,
    bind_beside,
    reach_beside,
    socket_name,
    widen,
)
from cordwood.host.real_network import RealNetwork
from cordwood.layout.hello import Hello
from cordwood.layout.message import Call, DoneReply, Ping, Reply
from cordwood.wire.connection import Connection, Frame, dial
from cordwood.wire.server import Server

GRANTED_BYTES = min(SEND_BUFFER_BYTES, int(Path("/proc/sys/net/core/wmem_max").read_text()))

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run_it(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await main()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return run_it


class Quiet(asyncio.Protocol):
    def __init__(self) -> None:
        self.made, self.lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def family_between(
    listens: RealNetwork, dials: RealNetwork, address: str = "127.0.0.1:0"
) -> socket.AddressFamily:
    """How a connection is made; nothing is left open."""
    far = Quiet()
    listener = await listens.listen(address, lambda: far)
    near = await dials.connect(listener.address, Quiet, timeout_s=5)
    assert isinstance(near, Quiet)
    family: socket.AddressFamily = near.transport.get_extra_info("socket").family
    near.transport.close()  # type: ignore[attr-defined]
    await near.lost.wait()
    await far.lost.wait()
    await listener.close()
    return family


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
@as_scenario("run")
async def test_a_caller_of_this_machine_takes_the_unix_socket(*, address: str) -> None:
    assert await family_between(RealNetwork(), RealNetwork(), address) == socket.AF_UNIX


@as_scenario("run")
async def test_both_ends_have_room_for_a_batch_of_blocks() -> None:
    far, near = Quiet(), Quiet()
    listener = await RealNetwork().listen("127.0.0.1:0", lambda: far)
    await RealNetwork().connect(listener.address, lambda: near, timeout_s=5)
    await far.made.wait()
    for end in (far, near):
        sock = end.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 2 * GRANTED_BYTES
    near.transport.close()  # type: ignore[attr-defined]
    await near.lost.wait()
    await far.lost.wait()
    await listener.close()


def test_a_wider_buffer_than_ours_stays() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * SEND_BUFFER_BYTES)
        before = made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        widen(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= before


def test_the_buffer_of_a_tcp_socket_is_left_to_the_kernel() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        before = made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        widen(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before


@pytest.mark.parametrize(("listens", "dials"), [(False, True), (True, False)])
@as_scenario("run")
async def test_with_an_end_that_knows_only_tcp_it_is_tcp(*, listens: bool, dials: bool) -> None:
    far, near = (RealNetwork(has_unix_sockets=each) for each in (listens, dials))
    assert await family_between(far, near) == socket.AF_INET


@as_scenario("run")
async def test_where_another_has_the_name_the_node_is_reached_by_tcp() -> None:
    first = await RealNetwork(has_unix_sockets=False).listen("127.0.0.1:0", Quiet)
    await first.close()
    squatter = bind_beside(first.address)
    assert squatter is not None
    with squatter:
        family = await family_between(RealNetwork(), RealNetwork(), first.address)
        assert family == socket.AF_INET


def test_the_socket_of_another_user_is_not_trusted() -> None:
    listener = bind_beside("127.0.0.1:1")
    assert listener is not None
    with listener:
        listener.listen(4)
        stranger = reach_beside("127.0.0.1:1", uid=os.geteuid() + 1)
        own = reach_beside("127.0.0.1:1")
        assert own is not None
        own.close()
        if os.geteuid() == 0:
            assert stranger is not None, "root's sockets are trusted"
            stranger.close()
        else:
            assert stranger is None


def test_only_loopback_has_one() -> None:
    assert socket_name("127.0.0.1:4440") == "\0cordwood/127.0.0.1:4440"
    assert socket_name("[::1]:4440") is not None
    for host in ("0.0.0.0", "10.0.0.1", "db1", "[fd00::1]"):
        assert socket_name(f"{host}:4440") is None


@as_scenario("run")
async def test_a_closed_listener_leaves_no_name() -> None:
    listener = await RealNetwork().listen("127.0.0.1:0", Quiet)
    await listener.close()
    with pytest.raises(Unreachable):
        await RealNetwork().connect(listener.address, Quiet, timeout_s=5)
    family = await family_between(RealNetwork(), RealNetwork(), listener.address)
    assert family == socket.AF_UNIX


class Silent:
    def on_frame(self, connection: Connection, frame: Frame) -> None: ...

    def on_data(self, connection: Connection, frame: Frame) -> None: ...

    async def on_call(self, connection: Connection, call: Call) -> Reply:
        return DoneReply()

    def on_lost(self, connection: Connection, error: Exception) -> None: ...


def test_the_greeting_is_checked_there_as_on_tcp(
    run: Callable[[Callable[[], Awaitable[None]]], None],
) -> None:
    cluster = bytes(range(16))

    def members_only(theirs: Hello) -> None:
        if theirs.node > 2:
            raise Unreachable(f"node {theirs.node} is no member")

    async def main() -> None:
        network = RealNetwork()
        async with asyncio.TaskGroup() as tasks:
            server = Server(network, Hello(1, cluster, 7), Silent(), tasks, members_only)
            await server.listen("127.0.0.1:0")

            async def greet(ours: Hello) -> Connection:
                return await dial(network, server.address, ours, Silent(), timeout_s=5)

            with pytest.raises(NotOurCluster):
                await greet(Hello(2, bytes(16), 1))
            with pytest.raises(Unreachable, match="no member"):
                await greet(Hello(3, cluster, 1))
            member = await greet(Hello(2, cluster, 1))
            assert await member.call(Ping(), timeout_s=5) == DoneReply()
            member.close()
            await server.close()

    run(main)


class Speaks(Quiet):
    """Writes at the loop's next turn, as a connection does with its greeting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().call_soon(self._speak)

    def _speak(self) -> None:
        if not self.lost.is_set():
            self.transport.writelines([b"hello"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_unix_sockets", [True, False])
@as_scenario("run")
async def test_a_connection_whose_connect_is_cancelled_hears_that_it_went(
    *, has_unix_sockets: bool
) -> None:
    """uvloop closed it and said nothing: the greeting then failed on a closed transport."""
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(what))
    network = RealNetwork(has_unix_sockets=has_unix_sockets)
    listener = await network.listen("127.0.0.1:0", Quiet)
    made: list[Speaks] = []

    def make() -> Speaks:
        made.append(Speaks())
        return made[-1]

    for turns in range(12):
        connecting = asyncio.ensure_future(network.connect(listener.address, make, timeout_s=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        if connecting.cancel():
            await asyncio.wait([connecting])
        if not connecting.cancelled():
            made[-1].transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    assert [each for each in made if hasattr(each, "transport") and not each.lost.is_set()] == []
    assert wrong == []
    await listener.close()
