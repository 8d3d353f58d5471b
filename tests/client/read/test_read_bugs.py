"""Bugs of the read path that no seed's faults bring out: each scenario holds, and with its bug
planted it does not. The two with keys and with a slow node are proofs of their own as well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, numbers, say_of_dead, simulate
from scenarios import now

from cordwood.block import Gap, GapKind, Record
from cordwood.client.cluster import Cluster
from cordwood.client.store import Store
from cordwood.layout.waves import StoredBlock
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import make_lsn
from cordwood.nodes import Authority
from cordwood.protocol.single_copy import CopyFilter, Shuffle, shuffled
from cordwood.sim.links import LinkSettings
from cordwood.sim.planted import PlantedBug, planted
from cordwood.sim.planted.read_manners import FIRST_KEY_ONLY
from cordwood.sim.planted.read_path import (
    BAD_COPY_IS_ABSENT,
    EMPTY_IS_FULL,
    EPOCH_GUESSED,
    FILTER_KEPT,
    KNOWN_DOWN_NOT_TOLD,
    NEVER_GREYLISTED,
    SAVED_BEFORE,
    SCENES,
    STALE_ORDER,
)

LOG = 1

Scenario = Callable[[ClusterAtHand], Awaitable[None]]


async def fill(store: Store, *numbers: int) -> None:
    """A block for each number."""
    for number in numbers:
        await store.append("log", b"%d" % number)


async def read_up_to(store: Store, esn: int, *, epoch: int = 1) -> list[Record | Gap]:
    return [item async for item in await store.read("log", until=make_lsn(epoch, esn))]


def losses(items: list[Record | Gap]) -> list[Gap]:
    return [each for each in items if isinstance(each, Gap) and each.kind is GapKind.DATA_LOSS]


async def drained_nodes(cluster: ClusterAtHand) -> None:
    """Two of four nodes are gone and were emptied before: the other two know all there is."""
    async with cluster.client() as store:
        for node in (3, 4):
            cluster.kill(node)
        await fill(store, 0, 1, 2)
        for node in (1, 2):
            held = cluster.running[node].engine.cache.log(LOG)
            del held._blocks[1]
            del held._lasts[1]
        for node in (3, 4):
            await say_of_dead(store, node, Authority.AUTHORITATIVE_EMPTY)
        async with asyncio.timeout(30):
            items = await read_up_to(store, 3)
        assert numbers(items) == [0, 2]
        assert len(losses(items)) == 1


async def damaged_everywhere(cluster: ClusterAtHand) -> None:
    """All copies of a block are damaged, and nobody says that it was never there."""
    async with cluster.client() as store:
        await fill(store, 0, 1, 2)
        for node in cluster.running.values():
            held = node.engine.cache.log(LOG)
            block = held._blocks[1]
            bad = bytes([block.body[0] ^ 1]) + bytes(block.body[1:])
            held._blocks[1] = StoredBlock(block.header, block.envelope, block.wire, bad)
        stream = await store.read("log", until=make_lsn(1, 3))
        assert numbers(await stream.next_items()) == [0]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await stream.next_items()


async def unknown_epoch(cluster: ClusterAtHand) -> None:
    """A reader crosses into an epoch on more nodes, and cannot ask which for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.sequencer.appender.STICKY_BYTES", 1)
        async with cluster.client() as writer, cluster.client() as store:
            few = LogAttributes(nodeset_size=2)
            await writer.create_log("log", attributes=few)
            await fill(writer, 0, 1)
            stream = await store.read("log", until=None)
            found = [await stream.next_items(), await stream.next_items()]
            patch.setattr(Cluster, "learn_log", lambda self, info, learnt: None)
            await writer.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
            await asyncio.sleep(3)
            await fill(writer, *range(2, 12))
            reading = asyncio.create_task(_all(stream, 12))
            await asyncio.sleep(30)
            patch.undo()
            async with asyncio.timeout(60):
                items = [item for each in found for item in each] + await reading
            assert losses(items) == []
            assert numbers(items) == [*range(12)]


async def _all(stream, records: int) -> list[Record | Gap]:
    """All that comes up to the record numbered `records - 1`, or a loss."""
    found: list[Record | Gap] = []
    while not losses(found) and (not numbers(found) or numbers(found)[-1] < records - 1):
        found += await stream.next_items()
    return found


async def keys_of_all_records(cluster: ClusterAtHand) -> None:
    """A block's second key is wanted."""
    async with cluster.client() as store:
        await store.append_many("log", [b"0", b"1"], keys=[b"a", b"b"])
        stream = await store.read("log", keys=[b"b"])
        assert numbers([item async for item in stream]) == [1]


async def consumer_that_dies(cluster: ClusterAtHand) -> None:
    """What it was given and had not dealt with is given again."""
    async with cluster.client() as store:
        await fill(store, 0, 1, 2)
        first = await store.consumer("counter", "log", save_every_s=0)
        await first.start()
        assert numbers(list(await first.read(1))) == [0]
        assert numbers(list(await first.read(1))) == [1]
        await first.close(save=False)
        second = await store.consumer("counter", "log")
        await second.start()
        assert numbers(list(await second.read(1))) == [1]
        await second.close()


async def spread(store: Store, blocks: int) -> None:
    """Blocks of ten kilobytes, each on nodes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.sequencer.appender.STICKY_BYTES", 1)
        for number in range(blocks):
            await store.append("log", b"%d" % number + bytes(SIZE))


def whole(items: list[Record | Gap]) -> list[int]:
    return [int(item.value.rstrip(b"\0")) for item in items if isinstance(item, Record)]


async def sender_that_lost_one(cluster: ClusterAtHand) -> None:
    """Others have it; what they had sent before they were asked for it says nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.storage.push.read_streams.BATCH_BLOCKS", 1)
        async with cluster.client() as writer:
            await spread(writer, 60)
        async with cluster.client(read_bytes=40_000) as store:
            host = f"client-{next(cluster._names) - 1}"
            links = cluster.simulation.network.links
            links.change(
                [f"node-{n}" for n in cluster.numbers], [host], LinkSettings(delay_min_s=0.05)
            )
            for index in range(5, 55, 7):
                node = cluster.running[order_of(cluster, index)]
                held = node.engine.cache.log(LOG)
                del held._blocks[index]
                del held._lasts[index]
            async with asyncio.timeout(60):
                items = await read_up_to(store, 60)
            assert losses(items) == []
            assert whole(items) == [*range(60)]


def order_of(cluster: ClusterAtHand, index: int) -> int:
    """The node that sends a block, of three that hold it. Later indices move with each that is
    taken out, so they are counted in a node that keeps all."""
    held = cluster.running[1].engine.cache.log(LOG)
    copyset = held._blocks[index].envelope.copyset
    return shuffled(copyset, CopyFilter(Shuffle.FIXED))[0]


async def node_that_dies(cluster: ClusterAtHand) -> None:
    """A reader in the middle of a log is sent the rest by others."""
    async with cluster.client() as writer:
        await spread(writer, 60)
    async with cluster.client(read_bytes=40_000) as store:
        stream = await store.read("log", until=make_lsn(1, 60))
        items = await stream.next_items()
        cluster.kill(3)
        async with asyncio.timeout(30):
            while more := await stream.next_items():
                items += more
        assert whole(items) == [*range(60)]


SLOW, BYTES_PER_S = 3, 400_000
SIZE, BLOCKS = 10_000, 600


async def slow_node(cluster: ClusterAtHand) -> None:
    """One node's line is seven or a hundred times slower. Once it is done without, reading goes at
    seven tenths of the speed at which all five nodes are read, at least: four send what five
    did. The second is found stuck, too; the first always sends something, and is just slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.sequencer.appender.STICKY_BYTES", 1)
        async with cluster.client() as writer:
            for number in range(BLOCKS):
                await writer.append("log", b"%d" % number + bytes(SIZE))
        patch.setattr("cordwood.protocol.read_window.LSNS_MIN", 32)
        usual = await _rate(cluster, LinkSettings(bytes_per_s=BYTES_PER_S))
        for times in (7, 100):
            before = _sent(cluster)
            slow = await _rate(cluster, LinkSettings(bytes_per_s=BYTES_PER_S / times))
            sent = (_sent(cluster) - before) / (BLOCKS * SIZE)
            # A line so slow that blocks are on it for seconds is found stuck, and what is under
            # way then is sent once more.
            assert sent <= (1.05 if times == 7 else 1.5), f"{times} times slower"
            assert slow >= 0.7 * usual, f"{times} times slower"


def _sent(cluster: ClusterAtHand) -> int:
    return sum(node._streams.sent_bytes for node in cluster.running.values())


async def _rate(cluster: ClusterAtHand, link: LinkSettings) -> float:
    """Blocks a second over the second half of the log, all lines but one alike."""
    usual = LinkSettings(bytes_per_s=BYTES_PER_S)
    async with cluster.client(read_bytes=80_000) as store:
        host = f"client-{next(cluster._names) - 1}"
        links = cluster.simulation.network.links
        links.change([f"node-{n}" for n in cluster.numbers], [host], usual)
        links.change([f"node-{SLOW}"], [host], link)
        stream = await store.read("log", until=make_lsn(1, BLOCKS))
        began = count = 0.0
        async with asyncio.timeout(3000):
            while items := await stream.next_items():
                count += len(items)
                if count >= BLOCKS / 2 and not began:
                    began = now()
        return BLOCKS / 2 / (now() - began)


SCENARIOS: dict[PlantedBug, tuple[Scenario, dict[str, int]]] = {
    EMPTY_IS_FULL: (drained_nodes, {"nodes": 4, "copies": 2}),
    BAD_COPY_IS_ABSENT: (damaged_everywhere, {}),
    EPOCH_GUESSED: (unknown_epoch, {"nodes": 5, "copies": 2}),
    FIRST_KEY_ONLY: (keys_of_all_records, {}),
    SAVED_BEFORE: (consumer_that_dies, {}),
    STALE_ORDER: (sender_that_lost_one, {"wal_bytes": 16 << 20}),
    KNOWN_DOWN_NOT_TOLD: (node_that_dies, {"nodes": 5, "wal_bytes": 16 << 20}),
    FILTER_KEPT: (sender_that_lost_one, {"wal_bytes": 16 << 20}),
    NEVER_GREYLISTED: (slow_node, {"nodes": 5, "copies": 3, "wal_bytes": 64 << 20}),
}


def test_every_bug_that_needs_a_scene_has_one() -> None:
    assert {*SCENES, FIRST_KEY_ONLY} == {*SCENARIOS}


@pytest.mark.parametrize("bug", SCENARIOS, ids=lambda bug: bug.name)
def test_without_the_bug_the_scenario_holds(bug: PlantedBug) -> None:
    scenario, cluster = SCENARIOS[bug]
    simulate(scenario, **cluster)


@pytest.mark.slow
@pytest.mark.parametrize("bug", SCENARIOS, ids=lambda bug: bug.name)
def test_with_the_bug_it_does_not(bug: PlantedBug) -> None:
    scenario, cluster = SCENARIOS[bug]
    with planted(bug), pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)):
        simulate(scenario, **cluster)
