"""Ends of connections for the tests of this room, in virtual time.

`run` gives a scenario a seeded loop whose clock jumps, so a five-second silence takes no
time. `Ends` are two hosts and the way between them, in memory or simulated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cordwood.block import Buffer
from cordwood.errors import CordwoodError, Malformed
from cordwood.host.memory_network import MemoryNetwork
from cordwood.host.seams import Host, Network
from cordwood.layout.frame import Frame, FrameParser, Kind, frame
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.message import Call, DoneReply, Reply
from cordwood.sim.loop import SimLoop
from cordwood.sim.network import SimNetwork
from cordwood.sim.process import Process
from cordwood.wire.connection import Connection, dial

Result = TypeVar("Result")

CLUSTER = bytes(range(16))
NODE_1 = Hello(1, CLUSTER, 7)
CLIENT = Hello(0, CLUSTER)
ADDRESS = "server:4440"


def run(scenario: Callable[[], Awaitable[Result]], seed: int = 1) -> Result:
    """Run a scenario in virtual time; an exception that nobody handled fails it too."""
    loop = SimLoop(random.Random(seed))

    async def main() -> Result:
        return await scenario()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main())
    assert loop.unhandled == []
    return result


@dataclass
class Ends:
    """What listens, what dials."""

    server: Network
    client: Network


def memory_ends() -> Ends:
    network = MemoryNetwork()
    return Ends(network, network)


def simulated_ends() -> Ends:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    network = SimNetwork(loop, random.Random(5))
    return Ends(
        network.host("server", Process("server")), network.host("client", Process("client"))
    )


def host_with(network: Network) -> Host:
    """A host of which only the network and chance are used."""
    return Host(
        clock=None,  # type: ignore[arg-type]
        network=network,
        disk=None,  # type: ignore[arg-type]
        random=random.Random(3),
        run_blocking=None,  # type: ignore[arg-type]
        run_calculation=None,  # type: ignore[arg-type]
    )


class RawEnd:
    """A side of a connection that says what the test says, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_lost = False
        self.transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def say(self, *parts: Buffer) -> None:
        self.transport.writelines(parts)  # type: ignore[attr-defined]

    def say_frame(self, kind: int, request: int, payload: Buffer) -> None:
        self.say(*frame(kind, request, payload))

    def greet(self, hello: Hello = CLIENT) -> None:
        self.say_frame(Kind.HELLO, 0, pack_hello(hello))

    @property
    def frames(self) -> list[Frame]:
        """Everything heard, as frames."""
        parser = FrameParser()
        parser.greeted = True
        return parser.feed(bytes(self.heard))


class KeptTransport:
    """A transport that keeps each write apart, for tests of when writes are made."""

    def __init__(self) -> None:
        self.writes: list[list[Buffer]] = []
        self.waiting_bytes = 0
        self.closed = ""

    def writelines(self, parts: Sequence[Buffer]) -> None:
        self.writes.append(list(parts))

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = self.closed or "close"

    def abort(self) -> None:
        self.closed = self.closed or "abort"

    def is_closing(self) -> bool:
        return bool(self.closed)


class Keeping:
    """A frame handler and peer listener that keeps what it is told."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, bytes]] = []
        self.lost: list[CordwoodError] = []
        self.events: list[tuple[str, int]] = []

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == Kind.STOP:
            raise Malformed("this handler does not like STOP")
        self.frames.append((frame.kind, frame.request, bytes(frame.payload)))

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        self.lost.append(error)

    def on_peer_up(self, node: int, connection: Connection) -> None:
        self.events.append(("up", node))

    def on_peer_down(self, node: int, connection: Connection) -> None:
        self.events.append(("down", node))

    def on_peer_frame(self, node: int, connection: Connection, frame: Frame) -> None:
        self.on_frame(connection, frame)


class Offering:
    """A service whose answer to a call is what the test sets."""

    def __init__(self) -> None:
        self.kept = Keeping()
        self.calls: list[Call] = []
        self.answer: Callable[[Call], Awaitable[Reply]] = self.done

    async def done(self, call: Call) -> Reply:
        return DoneReply()

    def on_data(self, connection: Connection, frame: Frame) -> None:
        self.kept.on_frame(connection, frame)

    async def on_call(self, connection: Connection, call: Call) -> Reply:
        self.calls.append(call)
        return await self.answer(call)

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        self.kept.on_lost(connection, error)


async def raw_dial(network: Network, address: str = ADDRESS) -> RawEnd:
    """A connection that greets only when told to."""
    end = await network.connect(address, RawEnd, timeout_s=1)
    assert isinstance(end, RawEnd)
    return end


async def raw_listen(network: Network, address: str = ADDRESS) -> list[RawEnd]:
    """Accept into the list that is returned."""
    ends: list[RawEnd] = []

    def accept() -> RawEnd:
        ends.append(RawEnd())
        return ends[-1]

    await network.listen(address, accept)
    return ends


async def dial_in(network: Network, ours: Hello = CLIENT, timeout_s: float = 1) -> Connection:
    return await dial(network, ADDRESS, ours, Keeping(), timeout_s=timeout_s)


async def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    """Look every 5 ms, virtual or real, until it holds; TimeoutError if it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.005)
