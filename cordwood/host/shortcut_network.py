"""A network on which a process that connects to itself stays in its own memory.

A node that sequences a log is often one of its storage nodes too. Over loopback each of
its own copies is written to a socket, copied twice by the kernel and read back; here it is
copied once. All other connections are those of the network underneath.

Source: docs/design.md §4 (roles may share a process).
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.host.memory_network import MemoryNetwork
from cordwood.host.seams import Listener, Network, StreamHandler


class ShortcutNetwork:
    """A `Network`; see the module.

    Args:
        outside: reaches other processes.
    """

    def __init__(self, outside: Network) -> None:
        self._outside = outside
        self._inside = MemoryNetwork()

    async def listen(self, address: str, accept: Callable[[], StreamHandler]) -> Listener:
        listener = await self._outside.listen(address, accept)
        # By the address as bound. Listening on all interfaces, a node is reached by another
        # one, and that connection goes the long way.
        return _Both(listener, await self._inside.listen(listener.address, accept))

    async def connect(
        self, address: str, make: Callable[[], StreamHandler], *, timeout_s: float
    ) -> StreamHandler:
        network = self._inside if self._inside.listens_at(address) else self._outside
        return await network.connect(address, make, timeout_s=timeout_s)


class _Both:
    def __init__(self, outside: Listener, inside: Listener) -> None:
        self._outside = outside
        self._inside = inside

    @property
    def address(self) -> str:
        return self._outside.address

    async def close(self) -> None:
        await self._inside.close()
        await self._outside.close()
