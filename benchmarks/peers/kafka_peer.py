"""Kafka: three brokers that are their own controllers, and topics of two durabilities on them.

Source: Apache Kafka documentation (KRaft, broker and topic configuration).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from benchmarks.peers.java_driver import (
    BROKER_HEAP,
    classpath,
    java_session,
    java_version,
    missing_java,
    pinned_version,
    prepare_java,
)
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.processes import free_ports, run_tool, servers, start

NODES = 3
CLUSTER_ID = "Y29yZHdvb2QtcGVlcnMtYQ"
"""Any 16 bytes in base64."""

FORMAT_TIMEOUT_S = 60.0

CLIENT = (
    "kafka-clients (Java), acks=all, idempotent, one partition, `linger.ms=0` and "
    "`batch.size` 256 KiB, so that nothing waits and what gathers goes together"
)

DEFAULT = Variant(
    "kafka", "Kafka", servers=NODES, copies=NODES, synced=False,
    durability="in the page caches of all in-sync replicas (3); never synced before the ack",
    client=CLIENT,
)  # fmt: skip
FLUSH = Variant(
    "kafka_flush", "Kafka, flush.messages=1", servers=NODES, copies=NODES, synced=True,
    durability="fsynced by every in-sync replica (3) after each batch it appends, before the ack",
    client=CLIENT,
)  # fmt: skip


class KafkaPeer(Peer):
    """See the module."""

    name = "kafka"
    variants = (DEFAULT, FLUSH)
    warm_up_s = 4.0

    def missing(self) -> str | None:
        return missing_java("kafka")

    def version(self) -> str:
        return f"{pinned_version('kafka')} (Java {java_version()})"

    async def prepare(self) -> None:
        await prepare_java("kafka")

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        ports = free_ports(2 * NODES)
        client_ports, controller_ports = ports[:NODES], ports[NODES:]
        java = ["java", *BROKER_HEAP, "-cp", classpath("kafka")]
        async with servers() as running:
            brokers = []
            for at in range(NODES):
                path = _configure(directory, at, client_ports[at], controller_ports)
                await run_tool(
                    [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", path],
                    FORMAT_TIMEOUT_S,
                )
                brokers.append(
                    await start(running, f"kafka-{at}", [*java, "kafka.Kafka", path], directory)
                )
            for at, broker in enumerate(brokers):
                await broker.wait_port(client_ports[at])
            addresses = ",".join(f"127.0.0.1:{port}" for port in client_ports)
            yield _Running(addresses, directory)


def _configure(directory: str, at: int, port: int, controller_ports: list[int]) -> str:
    voters = ",".join(f"{n + 1}@127.0.0.1:{each}" for n, each in enumerate(controller_ports))
    store = os.path.join(os.path.abspath(directory), f"kafka-{at}-store")
    lines = [
        "process.roles=broker,controller",
        f"node.id={at + 1}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_ports[at]}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters={voters}",
        f"log.dirs={store}",
        "message.max.bytes=8388608",
        "default.replication.factor=3",
        "min.insync.replicas=2",
        # The space of deleted topics is free at once, so that runs do not fill the disk.
        "log.segment.delete.delay.ms=1000",
    ]
    path = os.path.join(directory, f"kafka-{at}.properties")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


class _Running(RunningPeer):
    def __init__(self, addresses: str, directory: str) -> None:
        self._addresses = addresses
        self._directory = directory

    def session(self, variant: Variant) -> AbstractAsyncContextManager[Session]:
        kind = "flush" if variant is FLUSH else "default"
        return java_session("kafka", "KafkaDriver", [self._addresses, kind], self._directory)
