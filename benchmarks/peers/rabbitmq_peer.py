"""RabbitMQ: a quorum queue and a stream on the same three nodes.

Every node has directories, ports and an Erlang cookie of its own, and a port mapper that is ours,
so that an installed RabbitMQ is neither used nor disturbed.

Source: RabbitMQ documentation on quorum queues, streams, and cluster formation (classic config).
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from benchmarks.peers.amqp import AmqpConnection
from benchmarks.peers.light_client import follow, read_seconds
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.processes import free_ports, run_tool, servers, start
from benchmarks.peers.rabbit_stream import StreamConnection
from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad

NODES = 3
MEMORY = "2GB"
"""A node's memory before it stops publishers. A node keeps the 512 MiB of its write-ahead log of
quorum queues in memory until the log is full, and its documentation asks for three times as much.
With 1 GB, publishers stopped for good, because the log did not fill any more."""

SBIN = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"

READY_TIMEOUT_S = 90.0

NOTES = "Erlang does not spin while it waits (`+sbwt none`), as it should where cores are shared"

QUORUM = Variant(
    "rabbitmq_quorum", "RabbitMQ quorum queue", servers=NODES, copies=NODES, synced=True,
    durability="written and fdatasynced on a majority (2 of 3)",
    client="raw AMQP 0-9-1 on uvloop, persistent messages with publisher confirms; reads without "
    "acks, which takes them off the queue",
    notes=f"a queue, and no log: what is read is gone; {NOTES}",
)  # fmt: skip
STREAM = Variant(
    "rabbitmq_stream", "RabbitMQ stream", servers=NODES, copies=NODES, synced=False,
    durability="in the page caches of a majority (2 of 3); never synced",
    client="raw stream protocol on uvloop, all records of one write in as few publish frames as "
    "hold them, with confirms; reads by chunk",
    notes=NOTES,
)  # fmt: skip


class RabbitmqPeer(Peer):
    """See the module."""

    name = "rabbitmq"
    variants = (QUORUM, STREAM)

    def missing(self) -> str | None:
        if _sbin() and shutil.which("epmd"):
            return None
        return "rabbitmq-server is not installed (apt-get install rabbitmq-server)"

    def version(self) -> str:
        found = re.search(r"rabbitmq_server-([\d.]+)", _sbin() or "")
        return found[1] if found else "?"

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        amqp, stream, dist, mapper = _ports()
        async with servers() as running:
            await start(
                running, "epmd", ["epmd", "-port", str(mapper), "-address", "127.0.0.1"], directory
            )
            environments = [
                _configure(directory, at, amqp[at], stream[at], dist[at])
                | {"ERL_EPMD_PORT": str(mapper)}
                for at in range(NODES)
            ]

            async def boot(at: int) -> None:
                environment = environments[at]
                server = await start(
                    running, f"rabbit-{at}", [f"{_sbin()}/rabbitmq-server"], directory, environment
                )
                await server.wait_port(stream[at])
                await run_tool(
                    [f"{_sbin()}/rabbitmqctl", "await_startup"], READY_TIMEOUT_S, environment
                )

            await boot(0)  # the others join it
            async with asyncio.TaskGroup() as tasks:
                for at in range(1, NODES):
                    tasks.create_task(boot(at))
            yield _Running(amqp[0], stream[0])


def _ports() -> tuple[list[int], list[int], list[int], int]:
    ports = free_ports(3 * NODES + 1)
    return ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES : 3 * NODES], ports[-1]


def _sbin() -> str | None:
    """The directory of its scripts; Debian's wrappers need root."""
    return max(glob.glob(SBIN), default=None)


def _configure(directory: str, at: int, amqp: int, stream: int, dist: int) -> dict[str, str]:
    """Write one node's files. Returns the environment with which it uses them."""
    home = os.path.join(os.path.abspath(directory), f"rabbit-{at}")
    os.makedirs(home)
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{amqp}",
        f"stream.listeners.tcp.1 = 127.0.0.1:{stream}",
        "stream.advertised_host = 127.0.0.1",
        f"stream.advertised_port = {stream}",
        f"vm_memory_high_watermark.absolute = {MEMORY}",
        "disk_free_limit.absolute = 1GB",
        "cluster_formation.peer_discovery_backend = classic_config",
        *(f"cluster_formation.classic_config.nodes.{n + 1} = rabbit{n}@localhost"
          for n in range(NODES)),
    ]  # fmt: skip
    _write(os.path.join(home, "rabbitmq.conf"), "\n".join(lines) + "\n")
    _write(os.path.join(home, "plugins"), "[rabbitmq_stream].\n")
    _write(os.path.join(home, ".erlang.cookie"), "CORDWOODPEERS")
    os.chmod(os.path.join(home, ".erlang.cookie"), 0o400)
    return {
        "HOME": home,
        "RABBITMQ_NODENAME": f"rabbit{at}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp),
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_MNESIA_BASE": os.path.join(home, "mnesia"),
        "RABBITMQ_LOG_BASE": os.path.join(home, "log"),
        "RABBITMQ_PID_FILE": os.path.join(home, "pid"),
        "RABBITMQ_CONFIG_FILE": os.path.join(home, "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": os.path.join(home, "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(home, "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


class _Running(RunningPeer):
    def __init__(self, amqp: int, stream: int) -> None:
        self._amqp = amqp
        self._stream = stream

    @asynccontextmanager
    async def session(self, variant: Variant) -> AsyncIterator[Session]:
        loop = asyncio.get_running_loop()
        session: QuorumSession | StreamSession
        if variant is QUORUM:
            _, publisher = await loop.create_connection(AmqpConnection, "127.0.0.1", self._amqp)
            _, consumer = await loop.create_connection(AmqpConnection, "127.0.0.1", self._amqp)
            session = QuorumSession(publisher, consumer)
        else:
            _, writer = await loop.create_connection(StreamConnection, "127.0.0.1", self._stream)
            _, reader = await loop.create_connection(StreamConnection, "127.0.0.1", self._stream)
            session = StreamSession(writer, reader)
        try:
            await session.open()
            await session.fresh()
            yield session
        finally:
            session.close()


class QuorumSession(Session):
    """A connection that publishes and one that consumes."""

    reads_consume = True

    def __init__(self, publisher: AmqpConnection, consumer: AmqpConnection) -> None:
        self._publisher = publisher
        self._consumer = consumer
        self._numbers = count()

    async def open(self) -> None:
        """Log both in."""
        await self._publisher.open()
        await self._consumer.open()

    def close(self) -> None:
        """Close both."""
        self._publisher.close()
        self._consumer.close()

    async def fresh(self) -> None:
        if self._publisher.queue:
            await self._publisher.delete(self._publisher.queue)
        await self._publisher.declare(b"q%d" % next(self._numbers), NODES)

    async def append(self, load: AppendLoad) -> AppendRun:
        return await self._publisher.append(load)

    async def read(self, size: int, count: int) -> float:
        queue = self._publisher.queue
        seconds = await read_seconds(self._consumer, count, lambda: self._consumer.consume(queue))
        await self._consumer.cancel()
        return seconds

    async def tail(self, load: TailLoad) -> Lag:
        self._consumer.consume(self._publisher.queue)
        lag = await follow(self._consumer, self._publisher.send_records, load)
        await self._consumer.cancel()
        return lag


class StreamSession(Session):
    """A connection that publishes and one that subscribes."""

    def __init__(self, writer: StreamConnection, reader: StreamConnection) -> None:
        self._writer = writer
        self._reader = reader
        self._numbers = count()
        self._stream = b""

    async def open(self) -> None:
        """Log both in."""
        await self._writer.open()
        await self._reader.open()

    def close(self) -> None:
        """Close both."""
        self._writer.close()
        self._reader.close()

    async def fresh(self) -> None:
        if self._stream:
            await self._writer.publish_no_more()
            await self._writer.delete(self._stream)
        self._stream = b"s%d" % next(self._numbers)
        await self._writer.create(self._stream, NODES)
        await self._writer.publish_to(self._stream)

    async def append(self, load: AppendLoad) -> AppendRun:
        return await self._writer.append(load)

    async def read(self, size: int, count: int) -> float:
        loop = asyncio.get_running_loop()
        subscribing: list[asyncio.Task[None]] = []

        def begin() -> None:
            subscribing.append(loop.create_task(self._reader.subscribe(self._stream)))

        seconds = await read_seconds(self._reader, count, begin)
        await subscribing[0]
        await self._reader.unsubscribe()
        return seconds

    async def tail(self, load: TailLoad) -> Lag:
        await self._reader.subscribe(self._stream)
        lag = await follow(self._reader, self._writer.send_records, load)
        await self._reader.unsubscribe()
        return lag
