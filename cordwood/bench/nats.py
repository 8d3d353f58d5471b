"""NATS JetStream as a reference: three servers here, one stream with three replicas.

A raw client that is as light as Python allows drives it over one connection: a PUB for each
message, a reply for each ack, and one write that answers all messages of one read. So the figures
are those of the servers. JetStream acks when a majority holds a message, and does not sync it to
disk first: it promises less than the appends beside it, which are synced on every copy.

Source: NATS client protocol; docs/sources/hotpath.md §5 (no client library reached the servers'
limit).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, cast

from cordwood.errors import Unreachable

REPLICAS = 3
STREAM = "cordwood-bench"
START_TIMEOUT_S = 30.0
"""The servers find one another and elect two leaders; a busy machine takes seconds."""

RETRY_S = 0.2
ACK_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0

REFERENCE_IS = (
    "NATS JetStream, 3 servers on the same disk, 3 replicas, file storage, one message for each "
    "record or batch; acked by a majority, not synced"
)


def find_nats() -> str | None:
    """The path of nats-server, None if it is not installed. Debian installs it in root's PATH."""
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/sbin")


class NatsClient(asyncio.Protocol):
    """One connection that publishes and counts acks. Made by `connect`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._rest = b""
        self._inbox = f"_INBOX.{os.urandom(8).hex()}".encode()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._message = b""
        self._until = 0.0
        self._in_flight = 0
        self._acked = 0
        self._done: asyncio.Future[float] | None = None

    @property
    def port(self) -> int:
        """The port of the server to which this client is connected."""
        port: int = self._transport.get_extra_info("peername")[1]
        return port

    # ---- what a transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self._transport.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        self._transport.write(b"SUB %s 1\r\n" % self._inbox)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, acked = 0, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if line.startswith(b"MSG "):
                stop = end + 2 + int(line.rsplit(b" ", 1)[1])
                if len(data) < stop + 2:
                    break
                acked += self._on_message(data[end + 2 : stop])
                at = stop + 2
                continue
            at = end + 2
            if line.startswith(b"PING"):
                self._transport.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self._fail(Unreachable(f"NATS: {line.decode(errors='replace')}"))
        self._rest = data[at:]
        if acked:
            self._on_acked(acked)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Unreachable(f"NATS closed the connection: {exc}"))

    # ---- calls and loads ----

    async def ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request of JetStream's API.

        Raises:
            Unreachable: no answer in time.
        """
        body = json.dumps(request).encode()
        self._answer = self._loop.create_future()
        head = b"PUB %s %s %d\r\n" % (subject.encode(), self._inbox, len(body))
        self._transport.write(head + body + b"\r\n")
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise Unreachable(f"NATS did not answer {subject}") from None
        finally:
            self._answer = None

    async def publish(self, size: int, in_flight: int, seconds: float) -> float:
        """Messages of `size` bytes acked a second, with a constant number in flight.

        Raises:
            Unreachable: the servers refused one, or did not end within ACK_TIMEOUT_S.
        """
        head = b"PUB %s %s %d\r\n" % (STREAM.encode(), self._inbox, size)
        self._message = head + os.urandom(size) + b"\r\n"
        self._acked = 0
        self._in_flight = in_flight
        self._done = self._loop.create_future()
        began = perf_counter()
        self._until = began + seconds
        self._transport.write(self._message * in_flight)
        try:
            async with asyncio.timeout(seconds + ACK_TIMEOUT_S):
                ended = await self._done
        except TimeoutError:
            raise Unreachable(f"NATS left {self._in_flight} messages without an ack") from None
        finally:
            self._done = None
        return self._acked / (ended - began)

    def close(self) -> None:
        """Close the connection."""
        self._done = self._answer = None
        self._transport.close()

    def _on_message(self, body: bytes) -> int:
        """An ack counts one; anything else is the answer to a call, or an error."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(json.loads(body))
            return 0
        if b'"seq":' in body and b'"error"' not in body:
            return 1
        self._fail(Unreachable(f"NATS refused a message: {body[:200]!r}"))
        return 0

    def _on_acked(self, count: int) -> None:
        self._acked += count
        now = perf_counter()
        if now < self._until:
            self._transport.write(self._message * count)
            return
        self._in_flight -= count
        if self._in_flight == 0 and self._done is not None and not self._done.done():
            self._done.set_result(now)

    def _fail(self, error: Unreachable) -> None:
        for waiting in (self._answer, self._done):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)


@asynccontextmanager
async def nats_cluster(program: str, directory: str) -> AsyncIterator[NatsClient]:
    """A fresh cluster in `directory`, with the stream made, for the length of the block.

    Raises:
        Unreachable: it did not start.
    """
    ports = _free_ports(2 * REPLICAS)
    client_ports, route_ports = ports[:REPLICAS], ports[REPLICAS:]
    processes = []
    try:
        for number in range(REPLICAS):
            path = _configure(directory, number, client_ports, route_ports)
            processes.append(
                await asyncio.create_subprocess_exec(
                    program, "-c", path,
                    stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                )
            )  # fmt: skip
        client = await _with_stream(client_ports[0])
        try:
            yield client
        finally:
            client.close()
    finally:
        for process in processes:
            await _stop(process)


def _configure(
    directory: str, number: int, client_ports: Sequence[int], route_ports: Sequence[int]
) -> str:
    """Write one server's configuration; its path."""
    path = os.path.join(directory, f"nats-{number}.conf")
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
    store = json.dumps(os.path.abspath(os.path.join(directory, f"nats-{number}")))
    text = (
        f"server_name: node-{number}\n"
        f"listen: 127.0.0.1:{client_ports[number]}\n"
        f"jetstream {{ store_dir: {store} }}\n"
        f"cluster {{ name: bench, listen: 127.0.0.1:{route_ports[number]}, routes: [{routes}] }}\n"
    )
    with open(path, "w") as file:
        file.write(text)
    return path


async def _with_stream(port: int) -> NatsClient:
    """A connection, once the servers have elected leaders and made the stream."""
    stream = {
        "name": STREAM, "subjects": [STREAM], "storage": "file", "retention": "limits",
        "num_replicas": REPLICAS, "discard": "old", "max_bytes": 1 << 30,
    }  # fmt: skip
    problem = "no answer"
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                client = None
                try:
                    client = await connect_nats(port)
                    answer = await client.ask(f"$JS.API.STREAM.CREATE.{STREAM}", stream)
                    if "error" not in answer:
                        return client
                    problem = str(answer["error"])
                except (OSError, Unreachable) as error:
                    problem = str(error)
                if client is not None:
                    client.close()
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise Unreachable(f"NATS did not start: {problem}") from None


async def connect_nats(port: int, kind: type[NatsClient] = NatsClient) -> NatsClient:
    """A connection to the server at `port` of this machine.

    Raises:
        OSError: no server listens there.
    """
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(kind, "127.0.0.1", port)
    return client


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
