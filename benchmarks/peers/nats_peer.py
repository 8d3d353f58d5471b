"""NATS JetStream: one server with one replica, and three with three.

Source: NATS client protocol; JetStream API (stream create and delete, consumer create, message
next); JetStream's documentation on `sync_interval`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from benchmarks.peers.light_client import CALL_TIMEOUT_S, LightClient, follow, read_seconds
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.processes import (
    START_TIMEOUT_S,
    Server,
    first_line,
    free_ports,
    servers,
    start,
)
from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad
from cordwood.bench.nats import find_nats
from cordwood.errors import Unreachable

RETRY_S = 0.2
FIRST_CALL_TIMEOUT_S = 2.0
"""A call is made again after this time: without a leader it may never get an answer."""

PULL_BYTES = 4_000_000
"""The bytes of a reader's request. Two requests are open, far below the server's 64 MiB for a
connection."""

PULL_MAX = 4_000

CLIENT = (
    "raw protocol on uvloop, a PUB for each record with a reply for its ack; reads by pull "
    "consumer without acks (nats-py's own publish is several times slower)"
)
NOTES = "newer servers can sync before the ack (`sync_interval: always`), 2.9 of Debian cannot"

R1 = Variant(
    "nats_r1", "NATS JetStream R1", servers=1, copies=1, synced=False,
    durability="written to the file by 1 server, in its page cache; synced every 2 minutes",
    client=CLIENT, notes=f"one copy; {NOTES}",
)  # fmt: skip
R3 = Variant(
    "nats_r3", "NATS JetStream R3", servers=3, copies=3, synced=False,
    durability="in the page caches of a majority (2 of 3); synced every 2 minutes",
    client=CLIENT, notes=NOTES,
)  # fmt: skip


class NatsPeer(Peer):
    """One number of servers; two such peers share this module."""

    def __init__(self, variant: Variant) -> None:
        self.name = variant.name
        self.variants = (variant,)

    def missing(self) -> str | None:
        return None if find_nats() else "nats-server is not installed (apt-get install nats-server)"

    def version(self) -> str:
        return first_line(find_nats() or "nats-server", "--version").rpartition(" ")[2].lstrip("v")

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        number = self.variants[0].servers
        ports = free_ports(2 * number)
        async with servers() as running:
            for at in range(number):
                path = _configure(directory, at, ports[:number], ports[number:])
                name = f"nats-{at}"
                server = await start(running, name, [find_nats() or "", "-c", path], directory)
                await server.wait_port(ports[at])
            yield _Running(ports[0], running)


def _configure(directory: str, at: int, client_ports: list[int], route_ports: list[int]) -> str:
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
    store = json.dumps(os.path.abspath(os.path.join(directory, f"store-{at}")))
    text = (
        f"server_name: node-{at}\n"
        f"listen: 127.0.0.1:{client_ports[at]}\n"
        f"jetstream {{ store_dir: {store} }}\n"
    )
    if len(client_ports) > 1:
        text += (
            f"cluster {{ name: peers, listen: 127.0.0.1:{route_ports[at]}, routes: [{routes}] }}\n"
        )
    path = os.path.join(directory, f"nats-{at}.conf")
    with open(path, "w") as file:
        file.write(text)
    return path


class _Running(RunningPeer):
    def __init__(self, port: int, running: list[Server]) -> None:
        self._port = port
        self._running = running

    @asynccontextmanager
    async def session(self, variant: Variant) -> AsyncIterator[Session]:
        writer, reader = await self._connect(), await self._connect()
        try:
            session = NatsSession(writer, reader, variant.copies)
            writer.call_timeout_s = FIRST_CALL_TIMEOUT_S
            await self._fresh(session)
            writer.call_timeout_s = CALL_TIMEOUT_S
            yield session
        finally:
            writer.close()
            reader.close()

    async def _connect(self) -> NatsConnection:
        _, client = await asyncio.get_running_loop().create_connection(
            NatsConnection, "127.0.0.1", self._port
        )
        return client

    async def _fresh(self, session: NatsSession) -> None:
        """Make the first stream, once the servers have elected leaders."""
        problem = "no answer"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    try:
                        await session.fresh()
                    except Unreachable as error:
                        problem = str(error)
                        for server in self._running:
                            server.check()
                        await asyncio.sleep(RETRY_S)
                    else:
                        return
        except TimeoutError:
            raise Unreachable(f"NATS did not start: {problem}") from None


class NatsSession(Session):
    """A connection that publishes and one that reads."""

    def __init__(self, writer: NatsConnection, reader: NatsConnection, copies: int) -> None:
        self._writer = writer
        self._reader = reader
        self._copies = copies
        self._numbers = count()
        self._stream = ""

    async def fresh(self) -> None:
        if self._stream:
            await self._writer.ask(f"$JS.API.STREAM.DELETE.{self._stream}", {})
            self._stream = ""
        stream = f"peers-{next(self._numbers)}"
        config = {
            "name": stream, "subjects": [stream], "storage": "file", "retention": "limits",
            "num_replicas": self._copies, "discard": "old",
        }  # fmt: skip
        await self._writer.ask(f"$JS.API.STREAM.CREATE.{stream}", config)
        self._stream = self._writer.subject = stream

    async def append(self, load: AppendLoad) -> AppendRun:
        return await self._writer.append(load)

    async def read(self, size: int, count: int) -> float:
        name = await self._consumer(deliver_policy="all")
        next_ = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{name}"
        self._reader.pull_from(next_, min(PULL_MAX, PULL_BYTES // size), count)
        try:
            return await read_seconds(self._reader, count, self._reader.pull)
        finally:
            self._reader.pull_from("", 0, 0)

    async def tail(self, load: TailLoad) -> Lag:
        await self._consumer(deliver_policy="all", deliver_subject=self._reader.delivery.decode())
        return await follow(self._reader, self._writer.send_records, load)

    async def _consumer(self, **config: str | int) -> str:
        wanted = {"ack_policy": "none", "mem_storage": True, **config}
        request = {"stream_name": self._stream, "config": wanted}
        answer = await self._reader.ask(f"$JS.API.CONSUMER.CREATE.{self._stream}", request)
        return str(answer["name"])


class NatsConnection(LightClient):
    """The protocol: `PUB`, `SUB`, `MSG`, and JetStream's JSON calls over them."""

    name = "NATS"

    def __init__(self) -> None:
        super().__init__()
        self.subject = ""
        self._rest = b""
        token = os.urandom(6).hex()
        self._acks, self._calls = f"_INBOX.{token}.a".encode(), f"_INBOX.{token}.c".encode()
        self.delivery = f"_INBOX.{token}.d".encode()
        self.call_timeout_s = CALL_TIMEOUT_S
        self._answer: asyncio.Future[bytes] | None = None
        self._pull = b""
        self._batch = self._asked = self._wanted = self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        for sid, subject in ((1, self._acks), (2, self._calls), (3, self.delivery)):
            self.transport.write(b"SUB %s %d\r\n" % (subject, sid))

    def data_received(self, data: bytes) -> None:
        data, at, acked = self._rest + data, 0, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            if not data.startswith(b"MSG ", at):
                self._on_line(data[at:end])
                at = end + 2
                continue
            stop = end + 2 + int(data[data.rfind(b" ", at, end) + 1 : end])
            if len(data) < stop + 2:
                break
            sid = data[data.find(b" ", at + 4) + 1]
            body = data[end + 2 : stop]
            at = stop + 2
            if sid == ord("1"):
                acked += self._is_ack(body)
            elif sid == ord("3"):
                self._on_delivered(body)
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(body)
        self._rest = data[at:]
        if acked:
            self.on_answered(acked)

    def _on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self.transport.write(b"PONG\r\n")
        elif line.startswith((b"-ERR", b"HMSG", b"NATS/1.0")):
            self.fail(line.decode(errors="replace"))

    def _is_ack(self, body: bytes) -> int:
        if b'"seq":' in body and b'"error"' not in body:
            return 1
        self.fail(f"a record was refused: {body[:200]!r}")
        return 0

    def _on_delivered(self, body: bytes) -> None:
        self._got += 1
        if self._batch and self._got > self._asked - self._batch and self._asked < self._wanted:
            self._asked += self._batch
            self.transport.write(self._pull)
        self.on_record(body)

    # ---- what a session calls ----

    def pull_from(self, subject: str, batch: int, wanted: int) -> None:
        """Set where `pull` asks for records, how many in each request, and how many in total."""
        body = json.dumps({"batch": batch}).encode()
        head = (subject.encode(), self.delivery, len(body), body)
        self._pull = b"PUB %s %s %d\r\n%s\r\n" % head
        self._batch, self._wanted, self._asked, self._got = batch, wanted, 2 * batch, 0

    def on_quiet(self) -> None:
        # Debian's 2.9 sometimes leaves a request unanswered. The measured time includes this wait.
        if self._batch:
            self.transport.write(self._pull)

    def pull(self) -> None:
        """Open two requests, so that the server always has a request to answer."""
        self.transport.write(self._pull * 2)

    async def ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """A call of JetStream's API.

        Raises:
            Unreachable: no answer in time, or an error.
        """
        body = json.dumps(request).encode()
        self._answer = self.loop.create_future()
        self.transport.write(
            b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), self._calls, len(body), body)
        )
        try:
            async with asyncio.timeout(self.call_timeout_s):
                answer: dict[str, Any] = json.loads(await self._answer)
        except TimeoutError:
            raise Unreachable(f"NATS did not answer {subject}") from None
        finally:
            self._answer = None
        if "error" in answer:
            raise Unreachable(f"NATS: {subject}: {answer['error']}")
        return answer

    def send_records(self, values: list[bytes]) -> None:
        head, size = self._head(len(values[0])), len(values[0])
        parts = [part for value in values for part in (head, value, b"\r\n")]
        self.write_parts(parts, size)

    def send_same(self, value: bytes, count: int) -> None:
        record = self._head(len(value)) + value + b"\r\n"
        self.write_parts([record] * count, len(value))

    def _head(self, size: int) -> bytes:
        return b"PUB %s %s %d\r\n" % (self.subject.encode(), self._acks, size)
