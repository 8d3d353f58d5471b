"""Data directories that a node's first start cut short, and ones that only look so."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from cordwood.errors import NotOurCluster
from cordwood.host.seams import Disk, Host
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.node import running_node
from cordwood.nodes import NodeId
from cordwood.settings import MIB, NodeSettings, StorageSettings
from cordwood.sim.host import Simulation
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.wal import Wal

SETTINGS = NodeSettings(
    node=NodeId(1),
    directory="/node",
    metadata="",
    listen="node-1:4440",
    storage=StorageSettings(MIB),
)
WAL_PATH = "/node/wal"
IDENTITY_PATH = "/node/identity"


def identity_after_start(prepare: Callable[[Disk], Awaitable[None]]) -> dict[str, object]:
    """Prepare a node's directory and start the node; what its identity says then."""

    async def main(simulation: Simulation) -> bytes | None:
        async def life(host: Host) -> bytes | None:
            await host.disk.make_dir(SETTINGS.directory)
            await prepare(host.disk)
            metadata = MemoryMetadata(random.Random(1), MemoryData())
            async with running_node(SETTINGS, host, metadata, memory_tables):
                return await host.disk.read_file(IDENTITY_PATH)

        return await simulation.machine("node-1").start(life)

    identity = Simulation(1).run(main)
    assert identity is not None
    return msgspec.json.decode(identity)


def test_an_empty_directory_gets_a_wal_and_an_identity():
    async def prepare(disk: Disk) -> None:
        assert await disk.list_dir(SETTINGS.directory) == []

    assert identity_after_start(prepare)["wal_bytes"] == MIB


def test_a_wal_that_was_formatted_and_never_started_is_taken():
    async def prepare(disk: Disk) -> None:
        await Wal.format(disk, WAL_PATH, 2 * MIB, owner=SETTINGS.node)

    # Its size was settled by whoever formatted it.
    assert identity_after_start(prepare)["wal_bytes"] == 2 * MIB


def test_a_blank_wal_is_formatted():
    async def prepare(disk: Disk) -> None:
        await (await disk.open_direct(WAL_PATH, create_bytes=MIB)).close()

    assert identity_after_start(prepare)["node"] == SETTINGS.node


def test_a_wal_that_was_in_use_is_refused_without_its_identity():
    async def prepare(disk: Disk) -> None:
        await Wal.format(disk, WAL_PATH, MIB, owner=SETTINGS.node)
        wal = await Wal.open(disk, WAL_PATH, owner=SETTINGS.node)
        async for _ in wal.recover():
            pass
        await wal.close()

    with pytest.raises(NotOurCluster, match=r"was in use, and .*identity is gone: bring it back"):
        identity_after_start(prepare)


def test_another_nodes_wal_is_refused():
    async def prepare(disk: Disk) -> None:
        await Wal.format(disk, WAL_PATH, MIB, owner=NodeId(9))

    with pytest.raises(NotOurCluster, match="is the WAL of node 9"):
        identity_after_start(prepare)
