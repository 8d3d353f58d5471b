"""Data directories that a node's first start cut short, and ones that only look so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest
from crc32c import crc32c

from cordwood.errors import BadSetting, NotOurCluster
from cordwood.host.real import real_host
from cordwood.host.seams import Disk, Host
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.node import running_node
from cordwood.nodes import NodeId
from cordwood.settings import MIB, NodeSettings, StorageSettings
from cordwood.sim.host import Simulation
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_file import open_wal

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


def salt_after_start(seed: int) -> int:
    """The salt of the WAL that a node's first start makes."""

    async def main(simulation: Simulation) -> int:
        async def life(host: Host) -> int:
            metadata = MemoryMetadata(random.Random(1), MemoryData())
            async with running_node(SETTINGS, host, metadata, memory_tables):
                pass
            file, header = await open_wal(host.disk, WAL_PATH, owner=SETTINGS.node, capacity=MIB)
            await file.close()
            return header.salt

        return await simulation.machine("node-1").start(life)

    return Simulation(seed).run(main)


async def nothing_happens(disk: Disk) -> None:
    """Between two starts."""


def sizes_of_starts(
    *wal_bytes: int, between: Callable[[Disk], Awaitable[None]] = nothing_happens
) -> list[int]:
    """Start one node with each of these settings in turn; its WAL's sizes."""

    async def main(simulation: Simulation) -> list[int]:
        async def life(host: Host) -> list[int]:
            metadata = MemoryMetadata(random.Random(1), MemoryData())
            sizes = []
            for each in wal_bytes:
                settings = replace(SETTINGS, storage=StorageSettings(each))
                async with running_node(settings, host, metadata, memory_tables) as node:
                    sizes.append(node.engine.wal.capacity_bytes)
                await between(host.disk)
            return sizes

        return await simulation.machine("node-1").start(life)

    return Simulation(1).run(main)


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


class TestSalt:
    """A client that guesses it can send a payload that passes for a WAL record."""

    def test_it_cannot_be_worked_out_from_what_a_client_knows(self):
        salts = [salt_after_start(seed) for seed in (1, 2, 3)]
        assert len({*salts}) == 3, "same node, size and path, another salt"
        guessed = crc32c(f"{SETTINGS.node} 1 {MIB} {WAL_PATH}".encode())
        assert guessed not in salts

    def test_a_seed_gives_the_same_one_again(self):
        assert salt_after_start(4) == salt_after_start(4)

    def test_two_real_hosts_draw_different_ones(self):
        async def drawn() -> int:
            async with real_host() as host:
                return host.random.getrandbits(64)

        assert asyncio.run(drawn()) != asyncio.run(drawn())


class TestWalBytes:
    """A WAL's size is that of the first start."""

    def test_other_settings_are_told_which_size_counts(self, caplog: pytest.LogCaptureFixture):
        assert sizes_of_starts(2 * MIB, 2 * MIB) == [2 * MIB, 2 * MIB]
        assert "storage.wal_bytes" not in caplog.text
        assert sizes_of_starts(2 * MIB, 8 * MIB) == [2 * MIB, 2 * MIB]
        (told,) = [each for each in caplog.records if "storage.wal_bytes" in each.message]
        assert told.levelname == "WARNING"
        assert f"has the {2 * MIB} bytes" in told.message
        assert f"the {8 * MIB} bytes of storage.wal_bytes count for nothing" in told.message

    def test_a_wal_of_another_size_than_the_identity_says_is_refused(self):
        async def swap(disk: Disk) -> None:
            stored = await disk.read_file(IDENTITY_PATH)
            assert stored is not None
            other = {**msgspec.json.decode(stored), "wal_bytes": 4 * MIB}
            await disk.write_file(IDENTITY_PATH, msgspec.json.encode(other))

        with pytest.raises(BadSetting, match=f"formatted with {2 * MIB} bytes.*{4 * MIB}"):
            sizes_of_starts(2 * MIB, 2 * MIB, between=swap)
