"""The simulated network: hosts, listeners, connects, and what goes wrong.

Every host sees it through a `HostNetwork` made for one of its processes. Kernels are simulated
where they outlive a process. A handshake with a paused process succeeds. The connections of a
killed process are closed or reset for it. A machine without power says nothing until it is back,
and then resets connections that it does not know.

Source: docs/sources/reliability.md §5.1; TCP as far as a stream's user can tell.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable

from cordwood.errors import BadSetting, Unreachable
from cordwood.host.address import join_address, split_address
from cordwood.host.seams import Listener, StreamHandler
from cordwood.sim.links import Links, LinkSettings
from cordwood.sim.loop import SimLoop
from cordwood.sim.process import Process
from cordwood.sim.transport import Pipe, SimTransport

FIRST_FREE_PORT = 40_000
"""Port 0 takes the ports from this number on, in order, and never the same port twice."""

SYN_RETRY_S = 1.0
"""A handshake without an answer is tried again after this, then after twice that, as in TCP."""

RUDE_CLOSE_CHANCE = 0.3
"""Share of aborts and deaths that reset the connection; the others end it in order."""

_LOOPBACK = frozenset(["127.0.0.1", "localhost", "::1"])
_ANY = frozenset(["0.0.0.0", "::"])


class SimNetwork:
    """The network of one simulation.

    Attributes:
        loop: the loop it runs on.
        links: delays, losses and cuts. Change the links between hosts there, but mend through this
            class, which lets stalled traffic go on.
        process: the kernels' own process, which acts for dead processes.
    """

    def __init__(
        self, loop: SimLoop, chance: random.Random, default: LinkSettings | None = None
    ) -> None:
        self.loop = loop
        self.links = Links(chance, default or LinkSettings())
        self.process = Process("network")
        self.draw: Callable[[], float] = chance.random
        self._chance = chance
        self._hosts: set[str] = set()
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._ports = itertools.count(FIRST_FREE_PORT)
        self._numbers = itertools.count()
        self._transports: dict[int, SimTransport] = {}
        self._stalled: dict[Pipe, None] = {}  # in the order of their stalls

    def host(self, name: str, process: Process) -> HostNetwork:
        """The network as `process`, on the machine `name`, sees it."""
        self._hosts.add(name)
        return HostNetwork(self, name, process)

    # ---- faults ----

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Cut both directions between two sets of hosts. Connections live on, and stall."""
        some, others = list(some), list(others)
        self.links.cut(some, others)
        self.links.cut(others, some)

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Cut one direction only."""
        self.links.cut(sources, targets)

    def mend(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Undo cuts in both directions between two sets of hosts."""
        some, others = list(some), list(others)
        self.links.mend(some, others)
        self.links.mend(others, some)
        self._go_on()

    def mend_all(self) -> None:
        """Undo every cut."""
        self.links.mend_all()
        self._go_on()

    def power_off(self, host: str) -> None:
        """The machine goes silent. Kill its processes after this call, so that peers hear
        nothing."""
        self.links.set_power(host, on=False)

    def power_on(self, host: str) -> None:
        """The machine answers again, with resets to connections from before."""
        self.links.set_power(host, on=True)
        self._go_on()

    def reset(self, some: Iterable[str], others: Iterable[str]) -> int:
        """Reset every connection between two sets of hosts; return how many."""
        some, others = frozenset(some), frozenset(others)
        found = [
            transport
            for transport in list(self._transports.values())
            if transport.host in some and transport.outbound.target.host in others
        ]
        for transport in found:
            self.reset_connection(transport)
        return len(found)

    def bury(self, process: Process) -> None:
        """A process died: end its connections, as its kernel does if the machine has power."""
        for transport in list(self._transports.values()):
            if transport.process is process:
                transport.on_death(powered=self.links.has_power(transport.host))

    # ---- for transports and pipes ----

    def register(self, transport: SimTransport) -> int:
        """Remember a live transport; returns its number."""
        number = next(self._numbers)
        self._transports[number] = transport
        return number

    def forget(self, transport: SimTransport) -> None:
        """Drop a transport that is gone."""
        self._transports.pop(transport.number, None)

    def reset_connection(self, transport: SimTransport) -> None:
        """Both sides lose the connection, each after a delay of its own."""
        for side in (transport, transport.outbound.target):
            self._later(side, side.on_reset)

    def send_reset(self, to: SimTransport) -> None:
        """A kernel reports that it does not know the connection. The report is lost if the link is
        cut."""

        def arrive() -> None:
            if self.links.is_open(to.inbound.source.host, to.host):
                to.on_reset()

        self._later(to, arrive)

    def wait_for_mending(self, pipe: Pipe) -> None:
        """Bytes of `pipe` wait until a cut is mended."""
        self._stalled[pipe] = None

    def draw_cut(self, link: LinkSettings, length: int) -> int:
        """Where to cut a segment in two; 0 for not at all."""
        if length > 1 and self.draw() < link.split_chance:
            return self._chance.randrange(1, length)
        return 0

    def draw_corruption(self, link: LinkSettings, segment: bytes) -> bytes:
        """The segment, perhaps with one bit flipped."""
        if not segment or self.draw() >= link.corrupt_chance:
            return segment
        bad = bytearray(segment)
        bad[self._chance.randrange(len(bad))] ^= 1 << self._chance.randrange(8)
        return bytes(bad)

    def draw_rude_close(self) -> bool:
        """Whether an abort or a death resets the connection."""
        return self.draw() < RUDE_CLOSE_CHANCE

    def _later(self, side: SimTransport, callback: Callable[[], None]) -> None:
        if side.process.dead:
            return
        delay = self.links.delay(self.links.default)
        self.loop.call_later(delay, callback, context=side.process.context)

    def _go_on(self) -> None:
        # Pipes whose link is still cut will wait again.
        waiting, self._stalled = self._stalled, {}
        for pipe in waiting:
            pipe.on_mended()

    # ---- for a host's view ----

    def listen(self, view: HostNetwork, address: str, accept: Accept) -> SimListener:
        """See `Network.listen`."""
        host, port = split_address(address)
        if host != view.name and host not in _LOOPBACK | _ANY:
            raise BadSetting(f"cannot listen on {address}: {view.name} has no such address")
        port = port or next(self._ports)
        if (view.name, port) in self._listeners:
            raise BadSetting(f"cannot listen on {address}: Address already in use")
        listener = SimListener(self, view, join_address(host, port), port, accept)
        self._listeners[view.name, port] = listener
        view.process.at_death(listener.stop)
        return listener

    def stop_listening(self, host: str, port: int) -> None:
        """No process listens there any more."""
        self._listeners.pop((host, port), None)

    async def connect(self, view: HostNetwork, address: str, make: Accept) -> StreamHandler:
        """See `Network.connect`; the caller keeps the deadline."""
        host, port = split_address(address)
        target = view.name if host in _LOOPBACK | _ANY else host
        listener = await self._handshake(view, address, target, port)
        near = SimTransport(self, view.name, view.process, address)
        far = SimTransport(self, target, listener.process, f"{view.name}:0")
        there, back = Pipe(self, near, far), Pipe(self, far, near)
        near.join(outbound=there, inbound=back)
        far.join(outbound=back, inbound=there)
        listener.take(far)
        try:
            await asyncio.sleep(self._travel(target, view.name))
        except asyncio.CancelledError:
            near.abort()
            raise
        if near.is_closing():
            raise Unreachable(f"cannot reach {address}: Connection reset by peer")
        handler = make()
        near.start(handler)
        return handler

    async def _handshake(
        self, view: HostNetwork, address: str, target: str, port: int
    ) -> SimListener:
        retry_s = SYN_RETRY_S
        while True:
            await asyncio.sleep(self._travel(view.name, target))
            if target not in self._hosts:
                raise Unreachable(f"cannot reach {address}: Name or service not known")
            if self.links.is_open(view.name, target) and self.links.is_open(target, view.name):
                break
            await asyncio.sleep(retry_s)
            retry_s *= 2
        listener = self._listeners.get((target, port))
        link = self.links.settings(view.name, target)
        if listener is None or (link.refuse_chance and self.draw() < link.refuse_chance):
            await asyncio.sleep(self._travel(target, view.name))
            raise Unreachable(f"cannot reach {address}: Connection refused")
        return listener

    def _travel(self, source: str, target: str) -> float:
        return self.links.delay(self.links.settings(source, target))


Accept = Callable[[], StreamHandler]


class SimListener:
    """A `Listener`; it ends with its process."""

    def __init__(
        self, network: SimNetwork, view: HostNetwork, address: str, port: int, accept: Accept
    ) -> None:
        self.process = view.process
        self._network = network
        self._view = view
        self._address = address
        self._port = port
        self._accept = accept

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop accepting. Safe to call twice."""
        self._network.stop_listening(self._view.name, self._port)

    def take(self, transport: SimTransport) -> None:
        """Accept `transport`: its process is told when it next runs."""
        self._network.loop.call_soon(transport.accept, self._accept, context=self.process.context)


class HostNetwork:
    """A `Network` for one process on one simulated machine."""

    def __init__(self, network: SimNetwork, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self._network = network
        process.at_death(lambda: network.bury(process))

    async def listen(self, address: str, accept: Accept) -> Listener:
        return self._network.listen(self, address, accept)

    async def connect(self, address: str, make: Accept, *, timeout_s: float) -> StreamHandler:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._network.connect(self, address, make)
        except TimeoutError as error:
            raise Unreachable(f"{address} did not answer within {timeout_s:g} s") from error
