"""A node's directory: an older copy of it, and one that lost its end, are noticed at a start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from scenarios import as_scenario

from cordwood.block import BlockHeader, Envelope
from cordwood.errors import Fenced, NotOurCluster, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.waves import Refusal, StoreRefusal, store_head
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.membership import Membership
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.node import Node, running_node
from cordwood.nodes import NodeId, Replication
from cordwood.settings import MIB, NodeSettings, StorageSettings
from cordwood.sim.host import Simulation
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.data_directory import CLAIMS_MAX, INCARNATION, Incarnations
from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED, GO_ON_OLDER

SETTINGS = NodeSettings(
    node=NodeId(1),
    directory="/node",
    metadata="",
    listen="node-1:4440",
    storage=StorageSettings(MIB, flush_age_s=3600, reached_every_s=1.0),
)
LOG = 7


@dataclass
class World:
    """One machine, and a metadata store that lasts."""

    simulation: Simulation
    data: MemoryData = field(default_factory=MemoryData)

    @property
    def metadata(self) -> MemoryMetadata:
        return MemoryMetadata(random.Random(1), self.data)

    @property
    def machine(self) -> Any:
        return self.simulation.machine("node-1")

    @asynccontextmanager
    async def node(self, host: Host):
        async with running_node(SETTINGS, host, self.metadata, memory_tables) as node:
            assert node.engine.unheard is not None
            node.engine.unheard.tell(LOG, 9)  # no sequencer runs here
            yield node

    async def run(self, life: Callable[[Host], Awaitable[Any]]) -> Any:
        """A process on the machine, to its end."""
        try:
            return await self.machine.start(life)
        finally:
            if self.machine.is_up:
                self.machine.kill()

    async def start_and_store(self, *places: int, wait_s: float = 0.0) -> str:
        """Start the node, store blocks of one record, wait; what it says of its damage."""

        async def life(host: Host) -> str:
            async with self.node(host) as node:
                for esn in places:
                    assert await store(node, 1, esn) == []
                await asyncio.sleep(wait_s)
                return node.engine.damage

        return str(await self.run(life))

    def snapshot(self) -> Any:
        return self.machine.disk.tree.copy()

    def put_back(self, tree: Any) -> None:
        self.machine.disk.tree = tree.copy()

    def leave_word(self, word: bytes) -> Callable[[Host], Awaitable[None]]:
        async def life(host: Host) -> None:
            await host.disk.write_file(f"/node/{ACCEPT_LOSS}", word)

        return life

    async def known(self) -> Incarnations:
        async def life(host: Host) -> bytes | None:
            return await host.disk.read_file(f"/node/{INCARNATION}")

        stored = await self.run(life)
        return msgspec.json.decode(stored, type=Incarnations)


def wire(epoch: int, esn: int) -> bytes:
    body = b"body"
    crc = crc32c(body)
    header = BlockHeader(
        LOG, (epoch << 32) + esn, 1, 1_767_225_600_000_000,
        stored_bytes=len(body), raw_bytes=len(body), stored_crc=crc, raw_crc=crc,
    )  # fmt: skip
    return pack_header(header) + pack_envelope(Envelope((1,), 1, 0)) + body


async def store(node: Node, epoch: int, esn: int) -> list[StoreRefusal]:
    """Store a block of one record; what was refused once that is settled."""
    settled: asyncio.Future[list[StoreRefusal]] = asyncio.get_running_loop().create_future()
    payload = memoryview(store_head(1) + wire(epoch, esn))
    node.engine.store(1, payload, lambda refusals: settled.set_result(list(refusals)))
    return await settled


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        await scenario(World(simulation))

    Simulation(1).run(main)


class TestOlderCopies:
    @as_scenario(play)
    async def test_one_from_before_the_last_start_is_refused_and_says_the_way_out(
        self, world: World
    ) -> None:
        await world.start_and_store(1)
        older = world.snapshot()
        await world.start_and_store(2)
        newest = world.snapshot()
        world.put_back(older)
        with pytest.raises(NotOurCluster) as refused:
            await world.start_and_store()
        for word in (
            "older copy of node 1's directory", "ran as incarnation 1",
            "was incarnation 2", "accept-loss --older /node",
        ):  # fmt: skip
            assert word in str(refused.value)
        world.put_back(newest)
        assert await world.start_and_store(3) == ""

    @as_scenario(play)
    async def test_it_changed_nothing_that_the_metadata_store_knows(self, world: World) -> None:
        await world.start_and_store(1)
        older = world.snapshot()
        await world.start_and_store(2)
        before = await Membership(world.metadata).claim(NodeId(1))
        world.put_back(older)
        with pytest.raises(NotOurCluster):
            await world.start_and_store()
        assert await Membership(world.metadata).claim(NodeId(1)) == before

    @as_scenario(play)
    async def test_one_without_the_file_is_an_older_one(self, world: World) -> None:
        await world.start_and_store(1)

        async def lose(host: Host) -> None:
            await host.disk.write_file(f"/node/{INCARNATION}", b"{}x")

        await world.run(lose)
        with pytest.raises(NotOurCluster, match="older copy"):
            await world.start_and_store()

    @as_scenario(play)
    async def test_with_the_word_it_runs_and_its_silence_proves_nothing_for_good(
        self, world: World
    ) -> None:
        await world.start_and_store(1)
        older = world.snapshot()
        await world.start_and_store(2)
        newest = world.snapshot()
        world.put_back(older)
        await world.run(world.leave_word(GO_ON_OLDER))
        for _ in range(3):
            assert "cannot be read any more" in await world.start_and_store()
        fork = world.snapshot()
        # What ran before is the older one now.
        world.put_back(newest)
        with pytest.raises(NotOurCluster, match="older copy"):
            await world.start_and_store()
        world.put_back(fork)
        await world.run(world.leave_word(ACCEPTED))
        for _ in range(2):
            assert await world.start_and_store() == ""

    @as_scenario(play)
    async def test_accepted_at_once_it_knows_what_it_holds(self, world: World) -> None:
        await world.start_and_store(1)
        older = world.snapshot()
        await world.start_and_store(2, 3, wait_s=2.0)
        world.put_back(older)
        await world.run(world.leave_word(ACCEPTED))
        for _ in range(2):
            assert await world.start_and_store() == ""

    @as_scenario(play)
    async def test_the_word_counts_once(self, world: World) -> None:
        await world.start_and_store(1)
        older = world.snapshot()
        await world.start_and_store(2)
        world.put_back(older)
        await world.run(world.leave_word(ACCEPTED))
        await world.start_and_store()
        again = world.snapshot()
        await world.start_and_store()
        world.put_back(again)
        with pytest.raises(NotOurCluster):
            await world.start_and_store()


class TestCopiesOfOneStart:
    """Taken while the node ran, and put back before it started again: the claims are equal."""

    @staticmethod
    async def restored(world: World, *, wait_s: float) -> None:
        async def life(host: Host) -> Any:
            async with world.node(host) as node:
                await store(node, 1, 1)
                copy = world.snapshot()
                await store(node, 1, 2)
                await asyncio.sleep(wait_s)
                return copy

        copy = await world.run(life)
        world.put_back(copy)

    @as_scenario(play)
    async def test_what_was_noted_and_is_not_there_is_lost(self, world: World) -> None:
        await self.restored(world, wait_s=3.0)
        for _ in range(3):
            assert "cannot be read any more" in await world.start_and_store()

    @as_scenario(play)
    async def test_a_stop_notes_it_too(self, world: World) -> None:
        await self.restored(world, wait_s=0.0)
        assert "cannot be read any more" in await world.start_and_store()

    @as_scenario(play)
    async def test_it_stays_lost_when_the_wal_has_grown_past_it(self, world: World) -> None:
        await self.restored(world, wait_s=3.0)
        for turn in range(4):
            places = range(10 + 5 * turn, 15 + 5 * turn)
            assert "cannot be read any more" in await world.start_and_store(*places)

    @as_scenario(play)
    async def test_accepted_it_is_over(self, world: World) -> None:
        await self.restored(world, wait_s=3.0)
        await world.start_and_store()
        await world.run(world.leave_word(ACCEPTED))
        for _ in range(2):
            assert await world.start_and_store(5) == ""


class TestSeals:
    """What an older copy forgot of seals, the epoch store knows."""

    @pytest.mark.parametrize("word", [GO_ON_OLDER, ACCEPTED])
    @as_scenario(play)
    async def test_an_epoch_older_than_the_newest_is_refused(
        self, world: World, *, word: bytes
    ) -> None:
        epochs = EpochStore(world.metadata)
        await epochs.create(LOG, [NodeId(1)], Replication(1, 1))
        await epochs.take_epoch(LOG)
        await world.start_and_store(1)
        older = world.snapshot()

        async def seal(host: Host) -> None:
            async with world.node(host) as node:
                await node.engine.seal(LOG, 3, 0)

        for _ in range(2):
            await epochs.take_epoch(LOG)
        await world.run(seal)
        world.put_back(older)
        await world.run(world.leave_word(word))

        async def ask(host: Host) -> None:
            async with world.node(host) as node:
                assert node.engine.sealed(LOG) == 3
                for epoch in (1, 2):
                    (refusal,) = await store(node, epoch, 9)
                    assert (refusal.reason, refusal.epoch) == (Refusal.SEALED, 3)
                with pytest.raises(Fenced):
                    await node.engine.seal(LOG, 2, 0)
                assert await store(node, 3, 1) == []

        for _ in range(2):
            await world.run(ask)


class TestClaims:
    @as_scenario(play)
    async def test_a_start_that_dies_before_its_claim_does_not_lock_the_node_out(
        self, world: World
    ) -> None:
        await world.start_and_store(1)

        async def die(host: Host) -> None:
            metadata = world.metadata
            compare_and_set = metadata.compare_and_set

            async def out(key: str, value: bytes | None, expected: int) -> int | None:
                if key.startswith("nodes/"):
                    raise Unreachable("the metadata store is away")
                return await compare_and_set(key, value, expected)

            metadata.compare_and_set = out  # type: ignore[method-assign]
            async with running_node(SETTINGS, host, metadata, memory_tables):
                pass

        for _ in range(CLAIMS_MAX + 3):
            with pytest.raises(Unreachable):
                await world.run(die)
        assert 2 < len((await world.known()).claims) <= CLAIMS_MAX
        assert await world.start_and_store(2) == ""
        assert await world.start_and_store(3) == ""
        assert len((await world.known()).claims) == 2

    @as_scenario(play)
    async def test_two_directories_that_start_at_once_are_told_apart(self, world: World) -> None:
        await world.start_and_store(1)
        older = world.snapshot()

        async def overtaken(host: Host) -> None:
            metadata = world.metadata
            read = metadata.get
            overtaking = True

            async def get(key: str) -> Any:
                nonlocal overtaking
                found = await read(key)
                if key.startswith("nodes/") and overtaking:
                    overtaking = False
                    name = (await Membership(world.metadata).claim(NodeId(1))).name
                    await Membership(world.metadata).register(
                        NodeId(1), "elsewhere:1", claim="another", over=(name,)
                    )
                return found

            metadata.get = get  # type: ignore[method-assign]
            async with running_node(SETTINGS, host, metadata, memory_tables):
                pass

        with pytest.raises(NotOurCluster, match="another directory"):
            await world.run(overtaken)
        world.put_back(older)
        with pytest.raises(NotOurCluster, match="older copy"):
            await world.start_and_store()

    @as_scenario(play)
    async def test_a_node_that_registered_before_there_were_claims_starts(
        self, world: World
    ) -> None:
        await world.start_and_store(1)

        async def forget(host: Host) -> None:
            await host.disk.write_file(f"/node/{INCARNATION}", b'{"claims":[""]}')

        await world.run(forget)
        await Membership(world.metadata).register(NodeId(1), "node-1:4440")
        assert await world.start_and_store(2) == ""

    @as_scenario(play)
    async def test_the_directory_says_which_start_it_was(self, world: World) -> None:
        for number in (1, 2, 3):
            await world.start_and_store()
            assert (await world.known()).incarnation == number
            assert (await Membership(world.metadata).claim(NodeId(1))).incarnation == number

    @as_scenario(play)
    async def test_what_is_noted_is_on_the_disk(self, world: World) -> None:
        async def life(host: Host) -> None:
            async with world.node(host) as node:
                await store(node, 1, 1)
                await asyncio.sleep(60)

        world.machine.start(life)
        await asyncio.sleep(3.0)
        world.machine.kill()
        assert (await Membership(world.metadata).claim(NodeId(1))).reached >= 0
        assert await world.start_and_store(3) == ""
