"""BookKeeper: a ZooKeeper, three bookies, and ledgers acked by two or by all three of them.

Source: Apache BookKeeper documentation (bookie configuration, ledger API).
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
INIT_TIMEOUT_S = 60.0

ZOOKEEPER_HEAP = ("-Xms64m", "-Xmx128m")

DIRECT = ("-XX:MaxDirectMemorySize=512m",)
"""Bookies keep their write and read caches outside the heap."""

CLIENT = (
    "BookKeeper's own client (Java), one entry for each record, no throttle, CRC32C; reads four "
    "runs of entries ahead, at the tail by long poll"
)
NOTES = (
    "bookies as they come, with `journalMaxGroupWaitMSec` 2; an entry for each record: batches are "
    "made a layer above it (DistributedLog, Pulsar); at the tail an explicit LAC each millisecond"
)

QA2 = Variant(
    "bookkeeper_qa2", "BookKeeper E3 Qw3 Qa2", servers=NODES, copies=NODES, synced=True,
    durability="in the journal and fdatasynced by 2 of 3 bookies",
    client=CLIENT, notes=NOTES,
)  # fmt: skip
QA3 = Variant(
    "bookkeeper_qa3", "BookKeeper E3 Qw3 Qa3", servers=NODES, copies=NODES, synced=True,
    durability="in the journal and fdatasynced by all 3 bookies",
    client=CLIENT, notes=NOTES,
)  # fmt: skip


class BookkeeperPeer(Peer):
    """See the module."""

    name = "bookkeeper"
    variants = (QA2, QA3)
    warm_up_s = 4.0

    def missing(self) -> str | None:
        return missing_java("bookkeeper")

    def version(self) -> str:
        return f"{pinned_version('bookkeeper')} (Java {java_version()})"

    async def prepare(self) -> None:
        await prepare_java("bookkeeper")

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        zookeeper, *ports = free_ports(1 + NODES)
        address = f"127.0.0.1:{zookeeper}"
        path = classpath("bookkeeper")
        async with servers() as running:
            keeper = await start(
                running, "zookeeper",
                ["java", *ZOOKEEPER_HEAP, "-Dzookeeper.admin.enableServer=false",
                 "-Dzookeeper.4lw.commands.whitelist=*", "-cp", path,
                 "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                 _keeper(directory, zookeeper)],
                directory,
            )  # fmt: skip
            await keeper.wait_port(zookeeper)
            await run_tool(
                ["java", *ZOOKEEPER_HEAP, "-cp", path, "BookKeeperDriver", address, "init"],
                INIT_TIMEOUT_S,
            )
            bookies = []
            for at, port in enumerate(ports):
                command = ["java", *BROKER_HEAP, *DIRECT, "-cp", path,
                           "org.apache.bookkeeper.server.Main", "--conf",
                           _bookie(directory, at, port, address)]  # fmt: skip
                bookies.append(await start(running, f"bookie-{at}", command, directory))
            for bookie, port in zip(bookies, ports, strict=True):
                await bookie.wait_port(port)
            yield _Running(address, directory)


def _keeper(place: str, port: int) -> str:
    store = os.path.join(place, "zookeeper-store")
    text = f"dataDir={store}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\n"
    return _write(os.path.join(place, "zoo.cfg"), text)


def _bookie(place: str, at: int, port: int, address: str) -> str:
    lines = [
        f"bookiePort={port}",
        "advertisedAddress=127.0.0.1",
        "listeningInterface=lo",
        "allowLoopback=true",
        f"metadataServiceUri=zk+hierarchical://{address}/ledgers",
        f"journalDirectory={place}/bookie-{at}-journal",
        f"ledgerDirectories={place}/bookie-{at}-ledgers",
        "httpServerEnabled=false",
        "minUsableSizeForIndexFileCreation=1048576",
        "minUsableSizeForEntryLogCreation=1048576",
        "isForceGCAllowWhenNoSpace=true",
    ]
    return _write(os.path.join(place, f"bookie-{at}.conf"), "\n".join(lines) + "\n")


def _write(path: str, text: str) -> str:
    with open(path, "w") as file:
        file.write(text)
    return path


class _Running(RunningPeer):
    def __init__(self, address: str, directory: str) -> None:
        self._address = address
        self._directory = directory

    def session(self, variant: Variant) -> AbstractAsyncContextManager[Session]:
        acks = "2" if variant is QA2 else "3"
        return java_session(
            "bookkeeper", "BookKeeperDriver", [self._address, acks], self._directory
        )
