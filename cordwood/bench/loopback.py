"""The throughput of one TCP connection on this machine: the bytes of a read, and nothing else.

Another process sends the bytes, and an asyncio protocol here drops them. As a program this module
is that sender: `python -m cordwood.bench.loopback HOST:PORT BYTES`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from time import perf_counter

from cordwood.errors import Unreachable
from cordwood.host.real_network import RealNetwork

CHUNK = bytes(256 << 10)
"""One send; larger ones gain nothing on loopback."""

TIMEOUT_S = 60.0

REFERENCE_IS = "the same bytes through one loopback TCP connection, dropped by the receiver"


class Sink(asyncio.Protocol):
    """Counts what arrives.

    Attributes:
        seconds: a future with the time from the first byte to the last.
    """

    def __init__(self, wanted: int) -> None:
        self.seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._left = wanted
        self._began = 0.0

    def data_received(self, data: bytes) -> None:
        self._began = self._began or perf_counter()
        self._left -= len(data)
        if self._left <= 0 and not self.seconds.done():
            self.seconds.set_result(perf_counter() - self._began)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.seconds.done():
            self.seconds.set_exception(Unreachable(f"the sender ended early: {exc}"))
            self.seconds.exception()  # read here: the waiting call may be gone


async def loopback_bytes_per_second(total: int) -> float:
    """Send `total` bytes from another process and time their arrival.

    Raises:
        Unreachable: they did not arrive in time.
    """
    sink = Sink(total)
    listener = await RealNetwork().listen("127.0.0.1:0", lambda: sink)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, listener.address, str(total)
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return total / max(1e-9, await sink.seconds)
    except TimeoutError:
        raise Unreachable(f"{total} bytes took over {TIMEOUT_S:g} s on loopback") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await listener.close()


def send(address: str, total: int) -> None:
    """Send `total` bytes to an address."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        left = total
        while left > 0:
            connection.sendall(CHUNK[:left])
            left -= len(CHUNK)


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]))
