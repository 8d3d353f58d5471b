"""Bytes read from disk, and sent by nodes, for each byte that a reader of cold data gets.

Five nodes run in this process with separate directories and three copies of every block, all
flushed to LogsDB. Then the nodes are closed, the machine's cache of their files is dropped, and
they open again. The kernel counts the bytes that this process reads from disk while a log is read
(`read_bytes` of /proc/self/io), and the nodes count the bytes that they send. The first read uses
single copies: a block that another node sends costs no read of its body. In the second read, the
reference, all nodes send all their copies.

Nothing else reads meanwhile: there is no scrubbing, and nodes keep no flushed blocks in memory.

Source: docs/sources/logdevice.md 2.10 (copyset index).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from cordwood.bench.append import Say
from cordwood.bench.append_loops import Limit, append_batches
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.logsdb import drop_from_cache
from cordwood.bench.place import PREFIX
from cordwood.client.store import connected
from cordwood.errors import Corrupt, Unreachable
from cordwood.host.memory_network import MemoryNetwork
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST, Lsn
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.node import Node, running_node
from cordwood.nodes import NodeId, Replication
from cordwood.protocol.gap_detection import Delivery
from cordwood.settings import MIB, ClientSettings, NodeSettings, StorageSettings
from cordwood.storage.logs_db.rocks_logs import rocks_tables

LOG = "bench/once"

NODES, COPIES = 5, 3

IN_FLIGHT = 8
FILL_TIMEOUT_S = 300.0
DRAIN_TIMEOUT_S = 60.0
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class OnceProfile:
    """The records to read: `blocks` of `batch` records of `size` bytes."""

    size: int = 1024
    batch: int = 64
    blocks: int = 2000

    @property
    def bytes(self) -> int:
        """Payloads of all records."""
        return self.size * self.batch * self.blocks


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of one read of a whole log.

    Attributes:
        from_disk, sent: bytes for each byte of payload that the reader got.
    """

    from_disk: float
    sent: float


async def bench_once(
    profile: OnceProfile, *, directory: str, repeats: int, say: Say
) -> list[Figure]:
    """Count both, for single copies beside all copies.

    Raises:
        Unreachable: the machine does not count reads from its disk.
        CordwoodError: a node did not start, or a read failed.
    """
    disk: list[Sample] = []
    sent: list[Sample] = []
    for repeat in range(repeats):
        below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
        try:
            single, every = await read_both_ways(profile, below)
        finally:
            shutil.rmtree(below, ignore_errors=True)
        disk.append(Sample(single.from_disk, every.from_disk))
        sent.append(Sample(single.sent, every.sent))
        say(f"read_once: {repeat + 1} of {repeats}")
    return [
        make_figure(
            name, "bytes for a byte", samples,
            reference_is="the same with all copies sent",
            parameters={
                "size": profile.size, "batch": profile.batch, "blocks": profile.blocks,
                "nodes": NODES, "copies": COPIES,
            },
        )
        for name, samples in (("read_once_from_disk", disk), ("read_once_sent", sent))
    ]  # fmt: skip


async def read_both_ways(profile: OnceProfile, directory: str) -> tuple[Reading, Reading]:
    """Fill a log, and read it from the disk with single copies and with all copies.

    Args:
        directory: an empty one on a disk, not in memory.
    Raises:
        Unreachable, CordwoodError: see `bench_once`.
    """
    await _fill(profile, directory)
    readings = []
    for is_single in (True, False):
        drop_from_cache(directory)
        async with _nodes(directory) as (host, nodes):
            readings.append(await _read(profile, host, nodes, is_single=is_single))
    return readings[0], readings[1]


async def _fill(profile: OnceProfile, directory: str) -> None:
    settings = ClientSettings(block_records=profile.batch, block_bytes=MIB)
    values = [os.urandom(profile.size) for _ in range(profile.batch)]
    async with (
        _nodes(directory) as (host, nodes),
        connected(_addresses(nodes), host, settings) as store,
    ):
        await append_batches(
            store, LOG, values, IN_FLIGHT, Limit(profile.blocks * profile.batch, FILL_TIMEOUT_S)
        )
        for node in nodes:
            await node.flush()


async def _read(profile: OnceProfile, host: Host, nodes: list[Node], *, is_single: bool) -> Reading:
    settings = ClientSettings(scd_enabled=is_single)
    async with connected(_addresses(nodes), host, settings) as store:
        last = await store.tail(LOG)
        # A node that is not connected yet counts as down, and others send in its place.
        await store._cluster.peers.wait_tried(
            [node.settings.node for node in nodes], timeout_s=DRAIN_TIMEOUT_S
        )
        sent, read = _sent(nodes), disk_bytes()
        records = 0
        # Without an end: nodes close a stream that was read to its end, and would not send the
        # slower copies whole.
        stream = await store.read(LOG, OLDEST, None)
        next_lsn = OLDEST
        while next_lsn <= last:
            taken = await stream.next()
            assert taken is not None, "a stream without an end ended"
            next_lsn = Lsn(taken.last + 1)
            if isinstance(taken, Delivery):
                records += taken.last - taken.first + 1
        # Nodes whose copies the reader already has send on to the same place: all bytes count.
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while any(  # noqa: ASYNC110 - what it looks at has no event
                stream._buffer.marker(node) <= last for node in stream.senders.sources
            ):
                await asyncio.sleep(LOOK_S)
        stream.close()
        read, sent = disk_bytes() - read, _sent(nodes) - sent
    if records != profile.blocks * profile.batch:
        raise Corrupt(f"{records} records were read of {profile.blocks * profile.batch}")
    return Reading(read / profile.bytes, sent / profile.bytes)


def disk_bytes() -> int:
    """Bytes that the kernel has read from disks for all threads of this process.

    Raises:
        Unreachable: this machine does not count them.
    """
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file.read().splitlines())
        return int(fields["read_bytes"])
    except (OSError, KeyError, ValueError) as error:
        raise Unreachable(f"this machine does not say what it reads from disks: {error}") from error


def _sent(nodes: list[Node]) -> int:
    return sum(node._streams.sent_bytes for node in nodes)


def _addresses(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(node.address for node in nodes)


@asynccontextmanager
async def _nodes(directory: str) -> AsyncIterator[tuple[Host, list[Node]]]:
    """All nodes, each on a separate directory; they share the host with clients."""
    storage = StorageSettings(wal_bytes=128 * MIB, recent_bytes=0, scrub_bytes_s=0)
    async with AsyncExitStack() as exits:
        real = await exits.enter_async_context(real_host())
        host = replace(real, network=MemoryNetwork())
        metadata = SqliteMetadata(os.path.join(directory, "metadata.sqlite"), host)
        exits.push_async_callback(metadata.close)
        nodes = []
        for number in range(1, NODES + 1):
            settings = NodeSettings(
                node=NodeId(number),
                directory=os.path.join(directory, f"node-{number}"),
                metadata="",
                listen=f"node-{number}:1",
                location=f"rack{number}",
                default_replication=Replication(COPIES, 2),
                create_logs=True,
                storage=storage,
            )
            running = running_node(settings, host, metadata, rocks_tables)
            nodes.append(await exits.enter_async_context(running))
        yield host, nodes
