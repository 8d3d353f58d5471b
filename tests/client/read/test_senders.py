"""Single copies in a whole cluster: how much is sent, and what readers do when nodes fail."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, at, read_all, say_of_dead, simulate, until
from scenarios import now
from swaps import swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_stream import STUCK_S
from cordwood.client.store import Store
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import Authority, NodeId
from cordwood.protocol import read_window
from cordwood.protocol.single_copy import CopyFilter, Doubt, Shuffle, shuffled
from cordwood.sequencer import appender

LOG = 1
FIVE = {"nodes": 5, "copies": 3, "wal_bytes": 16 << 20}


async def fill(store: Store, blocks: int, size: int = 1000) -> None:
    """Blocks of one record each; at most one copyset a call, so they are spread by calls."""
    for number in range(blocks):
        await store.append("log", b"%06d" % number + bytes(size))


def numbers(items: list[Record | Gap]) -> list[int]:
    return [int(item.value[:6]) for item in items if isinstance(item, Record)]


def sent(cluster: ClusterAtHand) -> int:
    return sum(node._streams.sent_bytes for node in cluster.running.values())


def sender_of(cluster: ClusterAtHand, esn: int) -> int:
    """The node that sends a block to every reader."""
    for node in cluster.running.values():
        held = node.engine.cache.log(LOG)
        block = held.at(held.index_from(at(esn)))
        if block is not None and block.header.first <= at(esn):
            return shuffled(block.envelope.copyset, CopyFilter(Shuffle.FIXED))[0]
    raise AssertionError(f"nobody holds {at(esn)}")


def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copyset for each block."""
    swap_value(monkeypatch, lambda: appender.STICKY_BYTES, 1)


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({}, 1.0, 1.05),
        ({"scd_copyset_reordering_max": "none"}, 1.0, 1.05),
        ({"scd_copyset_reordering_max": "hash-shuffle-client-seed"}, 1.0, 1.05),
        ({"scd_enabled": False}, 2.9, 3.1),
        ({"local_scd_enabled": True, "location": "rack2"}, 1.0, 1.05),
    ],
)
def test_each_byte_is_sent_once_and_three_times_without(
    monkeypatch: pytest.MonkeyPatch, settings, low: float, high: float
) -> None:
    spread(monkeypatch)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as writer, cluster.client(**settings) as reader:
            await fill(writer, 300)
            held = sum(n.engine.cache.log(LOG).bytes for n in cluster.running.values()) / 3
            await read_all(writer, "log")  # from here on all nodes know who may read it
            before = sent(cluster)
            assert numbers(await read_all(reader, "log")) == [*range(300)]
            assert low <= (sent(cluster) - before) / held <= high

    simulate(scenario, **FIVE)


@pytest.mark.parametrize(("setting", "attribute"), [(True, None), (False, True)])
def test_a_reader_in_a_region_is_sent_all_that_the_region_has(
    monkeypatch: pytest.MonkeyPatch, setting: bool, attribute: bool | None
) -> None:
    """Here a region is a rack of one node. The client asks for it, or the log does."""
    spread(monkeypatch)

    async def scenario(cluster: ClusterAtHand) -> None:
        settings = {"local_scd_enabled": setting, "location": "rack2"}
        async with cluster.client(**settings) as store:
            await store.create_log("log", attributes=LogAttributes(local_scd_enabled=attribute))
            await fill(store, 100)
            await read_all(store, "log")
            near = cluster.running[2]
            assert near._streams.filtered_blocks == 0
            assert near._streams.sent_blocks == len(near.engine.cache.log(LOG)) > 30

    simulate(scenario, **FIVE)


@pytest.mark.parametrize("how", ["killed", "stopped", "cut off"])
def test_when_a_sender_fails_others_send_within_seconds(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """LogDevice waits five minutes for one that merely says nothing; here it takes two seconds,
    and none where the connection ends."""
    spread(monkeypatch)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client(read_bytes=20_000) as reader:
            await fill(store, 200)
            stream = await reader.read("log", until=at(200))
            seen = []
            while len(seen) < 50:
                seen += await stream.next_items()
            victim = sender_of(cluster, 150)
            if how == "killed":
                cluster.kill(victim)
            elif how == "stopped":
                cluster.machine(victim).pause()
            else:
                cluster.simulation.network.partition(["client-2"], [f"node-{victim}"])
            start = now()
            while items := await stream.next_items():
                seen += items
            assert numbers(seen) == [*range(200)]
            assert now() - start < (0.5 if how == "killed" else STUCK_S + 0.5)
            assert stream.senders.choice.doubt(NodeId(victim)) in (Doubt.UNREACHABLE, Doubt.SILENT)
            assert stream.senders.choice.is_single

    simulate(scenario, **FIVE)


def test_a_node_that_comes_back_sends_its_share_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spread(monkeypatch)
    swap_value(monkeypatch, lambda: read_window.LSNS_MIN, 20)
    swap_value(monkeypatch, lambda: read_window.LSNS_MAX, 20)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 20)
            stream = await store.read("log", until=None)
            seen = []
            while len(seen) < 20:
                seen += await stream.next_items()
            victim = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
            cluster.kill(victim)
            await until(lambda: stream.senders.choice.doubt(NodeId(victim)) is not None)
            await cluster.start(victim)
            await asyncio.sleep(12)
            for _ in range(6):
                await fill(store, 20)
                while stream.next_lsn <= await store.tail("log"):
                    await stream.next_items()
            assert stream.senders.choice.known_down == ()

    simulate(scenario, **FIVE)


def forget(cluster: ClusterAtHand, number: int, esn: int) -> None:
    """Let a node lose a block that it holds in memory."""
    held = cluster.running[number].engine.cache.log(LOG)
    index = held.index_from(at(esn))
    if held._blocks[index].header.first == at(esn):
        del held._blocks[index]
        del held._lasts[index]


def test_what_its_sender_has_lost_is_asked_of_all_and_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spread(monkeypatch)
    swap_value(monkeypatch, lambda: read_window.LSNS_MIN, 50)
    swap_value(monkeypatch, lambda: read_window.LSNS_MAX, 50)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 200)
            forget(cluster, sender_of(cluster, 100), 100)
            stream = await store.read("log", until=at(200))
            seen, modes = [], []
            start = now()
            while items := await stream.next_items():
                seen += items
                modes.append(stream.senders.choice.is_single)
            assert numbers(seen) == [*range(200)]
            assert now() - start < 1
            assert False in modes, "once in doubt, all were asked"
            assert modes[-1], "and single copies again once the window had moved"

    simulate(scenario, **FIVE)


@pytest.mark.parametrize("efficiency", [False, True])
def test_a_loss_is_told_in_single_copy_mode_only_to_those_who_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, efficiency: bool
) -> None:
    """Nodes 1 to 5 have lost a record; with the setting the reader never asks all for it."""
    spread(monkeypatch)

    async def scenario(cluster: ClusterAtHand) -> None:
        settings = {"read_stream_guaranteed_delivery_efficiency": efficiency}
        async with cluster.client(**settings) as store:
            await fill(store, 20)
            for number in cluster.numbers:
                forget(cluster, number, 10)
            stream = await store.read("log", until=at(20))
            items = []
            while new := await stream.next_items():
                items += new
            assert [item for item in items if isinstance(item, Gap)] == [
                Gap(at(10), at(10), GapKind.DATA_LOSS)
            ]
            assert (stream.senders.choice.rewinds == 0) == efficiency

    simulate(scenario, **FIVE)


def test_where_nodes_are_gone_for_good_the_others_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three copies, three nodes down: the reader waits, until it is known that two of them will
    not come back; then what lay on these three alone is lost, and said to be."""
    spread(monkeypatch)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 40)
            held = cluster.running[1].engine.cache.log(LOG)
            copyset = held._blocks[3].envelope.copyset
            await asyncio.sleep(1)
            for number in copyset:
                cluster.kill(number)
            stream = await store.read("log", until=at(40))
            reading = asyncio.create_task(_all(stream))
            await asyncio.sleep(60)
            assert not reading.done()
            for number in copyset:
                await say_of_dead(store, number, Authority.UNDER_REPLICATED)
            items = await asyncio.wait_for(reading, 30)
            lost = {
                lsn
                for gap in items
                if isinstance(gap, Gap) and gap.kind is GapKind.DATA_LOSS
                for lsn in range(gap.first, gap.last + 1)
            }
            assert lost
            assert {*numbers(items)}.isdisjoint({(lsn & 0xFFFF) - 1 for lsn in lost})
            assert len(lost) + len(numbers(items)) == 40

    simulate(scenario, **FIVE)


async def _all(stream) -> list[Record | Gap]:
    found = []
    while items := await stream.next_items():
        found += items
    return found
