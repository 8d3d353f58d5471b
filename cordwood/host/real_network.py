"""The network seam on asyncio's (or uvloop's) TCP, and Unix sockets within one machine.

Both loops set TCP_NODELAY on every stream, which the contract suite checks:
shells cork their own writes, so Nagle's wait would only add latency.

Source: docs/sources/hotpath.md §3; CONTRIBUTING.md, "The idea".
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from cordwood.block import Buffer
from cordwood.errors import BadSetting, Unreachable
from cordwood.host.address import join_address, split_address
from cordwood.host.local_socket import bind_beside, reach_beside, widen
from cordwood.host.seams import DirectReceiver, StreamHandler

ACCEPT_BACKLOG = 512
"""Connections the kernel holds for us; clients of a restarted node come all at once."""

SCRATCH_BYTES = 64 << 10
"""Bytes read at a time before their destination is known: the first piece of a large frame, or
thousands of small frames."""

LISTEN_TIMEOUT_S = 10.0
"""Binding asks a name server at most, and that must not hang a start."""


class RealTransport(asyncio.Transport):
    """A `Transport` over one of the loop's.

    The loops differ during a close: with bytes queued, asyncio still sends data written after
    `close`; uvloop raises after the last call. Here it does nothing, whichever loop. asyncio's
    `writelines` of Python 3.12.0 to 3.13.5 never calls `pause_writing` (its issue 136234), so a
    peer that does not read would not slow the writer: there the parts are joined and written, as
    asyncio itself did up to Python 3.11.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._joins = type(inner).__module__.startswith("asyncio.")
        self.get_write_buffer_size = inner.get_write_buffer_size  # type: ignore[method-assign]
        self.is_closing = inner.is_closing  # type: ignore[method-assign]
        self.pause_reading = inner.pause_reading  # type: ignore[method-assign]
        self.resume_reading = inner.resume_reading  # type: ignore[method-assign]
        self.get_extra_info = inner.get_extra_info  # type: ignore[method-assign]

    def writelines(self, parts: Iterable[Buffer]) -> None:
        if self._inner.is_closing():
            return
        if self._joins:
            self._inner.write(b"".join(parts))
        else:
            self._inner.writelines(parts)

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


def _real(transport: asyncio.BaseTransport) -> RealTransport:
    """Used at both ends: an accepted Unix socket inherits no buffer size from its listener."""
    widen(transport.get_extra_info("socket"))
    return RealTransport(cast(asyncio.Transport, transport))


class _Introduction(asyncio.Protocol):
    """Stands between a loop and a handler for as long as it takes to pass a `RealTransport`.

    Every other call goes from the loop to the handler's own method, so this costs
    nothing per chunk.
    """

    def __init__(self, handler: StreamHandler) -> None:
        self.handler = handler
        self.is_open = False
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_open = True
        self.handler.connection_made(_real(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:  # once: see `RealNetwork.connect`
            self.is_open = False
            self.handler.connection_lost(exc)


class _DirectIntroduction(asyncio.BufferedProtocol):
    """As `_Introduction`, for a handler that says where bytes belong.

    A frame of 64 KiB arrives in a few pieces. asyncio's plain protocols make an object of
    each and the handler joins them: two copies, each into fresh memory. Here the kernel
    writes all but the first piece into its place.
    """

    def __init__(self, handler: DirectReceiver, scratch: memoryview) -> None:
        self.handler = handler
        self.is_open = False
        self._scratch = scratch
        self._is_direct = False
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_open = True
        self.handler.connection_made(_real(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:  # once: see `RealNetwork.connect`
            self.is_open = False
            self.handler.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        into = self.handler.receive_into()
        self._is_direct = into is not None
        return self._scratch if into is None else into

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_direct:
            self.handler.placed(nbytes)
        else:
            self.handler.data_received(bytes(self._scratch[:nbytes]))


class RealListener:
    """A `Listener` over asyncio servers: that of a port, and those beside it."""

    def __init__(self, servers: Sequence[asyncio.Server], address: str) -> None:
        self._servers = servers
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        # No wait_closed: from Python 3.12 on it waits for the connections as well.
        for server in self._servers:
            server.close()


class RealNetwork:
    """A `Network` of streams on the running loop: TCP, or Unix sockets within one machine.

    Args:
        has_unix_sockets: whether to listen at them, and to try them first; see `local_socket`.
    """

    def __init__(self, *, has_unix_sockets: bool = True) -> None:
        self._has_unix_sockets = has_unix_sockets
        # One for all connections: between `get_buffer` and `buffer_updated` no other has
        # its turn.
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def _introduce(self, handler: StreamHandler) -> _Introduction | _DirectIntroduction:
        if isinstance(handler, DirectReceiver):
            return _DirectIntroduction(handler, self._scratch)
        return _Introduction(handler)

    async def listen(self, address: str, accept: Callable[[], StreamHandler]) -> RealListener:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()

        def introduced() -> asyncio.BaseProtocol:
            return self._introduce(accept())

        try:
            async with asyncio.timeout(LISTEN_TIMEOUT_S):
                servers = [await _bind(host, port, introduced)]
                bound = join_address(host, servers[0].sockets[0].getsockname()[1])
                beside = bind_beside(bound) if self._has_unix_sockets else None
                if beside is not None:
                    servers.append(
                        await loop.create_unix_server(
                            introduced, sock=beside, backlog=ACCEPT_BACKLOG
                        )
                    )
        except OSError as error:  # TimeoutError is one too
            reason = error.strerror or type(error).__name__
            raise BadSetting(f"cannot listen on {address}: {reason}") from error
        return RealListener(servers, bound)

    async def connect(
        self, address: str, make: Callable[[], StreamHandler], *, timeout_s: float
    ) -> StreamHandler:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        introductions: list[_Introduction | _DirectIntroduction] = []

        def introduced() -> asyncio.BaseProtocol:
            introductions.append(self._introduce(make()))
            return introductions[-1]

        try:
            async with asyncio.timeout(timeout_s):
                beside = reach_beside(address) if self._has_unix_sockets else None
                if beside is not None:
                    await loop.create_unix_connection(introduced, sock=beside)
                else:
                    await loop.create_connection(introduced, host, port)
        except BaseException as error:
            # Trap: if a connect is cancelled, uvloop closes the transport. The protocol knows of
            # the connection by then, and would not be told of its end.
            for each in introductions:
                each.connection_lost(None)
            if isinstance(error, OSError):  # TimeoutError is one too
                raise _unreachable(address, timeout_s, error) from error
            raise
        return introductions[-1].handler


def _unreachable(address: str, timeout_s: float, error: OSError) -> Unreachable:
    if isinstance(error, TimeoutError):
        return Unreachable(f"{address} did not answer within {timeout_s:g} s")
    return Unreachable(f"cannot reach {address}: {error.strerror or error}")


async def _bind(host: str, port: int, accept: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # The first only: with port 0, `localhost` would get one free port for each of
    # 127.0.0.1 and ::1, and a listener has one address. IPv4 first, because people type it.
    first = min(found, key=lambda info: info[0] != socket.AF_INET)
    return await loop.create_server(accept, str(first[4][0]), port, backlog=ACCEPT_BACKLOG)
