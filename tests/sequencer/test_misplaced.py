"""A producer's block out of its sequence is told what the log has, once the log has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.client.append.producer import Producer
from cordwood.client.publish import publishing
from cordwood.client.store import Store
from cordwood.errors import Misplaced, OutOfSequence
from cordwood.settings import SequencerSettings
from cordwood.sim.planted import find_bug, planted

LOG = 1
TEN = [b"%d" % number for number in range(10)]


def cut_off(cluster: ClusterAtHand, *hosts: str) -> None:
    """These hosts reach no node any more."""
    nodes = [f"node-{number}" for number in cluster.numbers]
    cluster.simulation.network.partition(hosts, [each for each in nodes if each not in hosts])


async def begun(*stores: Store) -> None:
    """The log has a sequencer, and each client knows it."""
    for store in stores:
        await store.append("log", b"begun")


@pytest.mark.parametrize(
    ("sequence", "kind"), [(0, Misplaced.STORED), (4, Misplaced.STORED), (12, Misplaced.GAP)]
)
def test_what_is_given_out_is_not_told_of_before_it_is_stored(
    sequence: int, kind: Misplaced
) -> None:
    """The error said that ten records were stored. They were in flight, and their sequencer died:
    nobody had them, and who was told so had passed them over."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as one, cluster.client(timeout_s=20) as two:
            await begun(one, two)
            owner = cluster.sequencer_of(LOG)
            cut_off(cluster, f"node-{owner}")
            lost = one.append_many("log", TEN, producer=Producer(7), atomic=True)
            first = asyncio.ensure_future(lost)
            await asyncio.sleep(0.05)
            cut_off(cluster, "client-1")
            part = TEN[sequence : sequence + 5] or [b"12"]
            again = Producer(7, 0, {LOG: sequence})
            second = asyncio.ensure_future(
                two.append_many("log", part, producer=again, atomic=True)
            )
            await asyncio.sleep(0.5)
            assert not second.done(), "the ten are on one node, or on none"
            cluster.kill(owner)
            await asyncio.wait([second])
            stored = await values(two, "log")
            if sequence:
                assert second.exception() is not None
                assert stored == [b"begun"] * 2
            else:
                assert stored == [b"begun"] * 2 + part
            first.cancel()

    async def healthy(cluster: ClusterAtHand) -> None:
        async with cluster.client() as one, cluster.client() as two:
            await begun(one, two)
            stored = asyncio.ensure_future(
                one.append_many("log", TEN, producer=Producer(7), atomic=True)
            )
            await asyncio.sleep(0.0005)
            part = TEN[sequence : sequence + 5] or [b"12"]
            again = Producer(7, 0, {LOG: sequence})
            with pytest.raises(OutOfSequence) as told:
                await two.append_many("log", part, producer=again, atomic=True)
            assert (told.value.kind, told.value.expected) == (kind, 10)
            await stored

    simulate(scenario, nodes=5, copies=3)
    simulate(healthy, nodes=5, copies=3)


def test_a_block_stored_long_ago_is_not_told_of_while_later_blocks_are_in_flight() -> None:
    """The error for the first of ten blocks said that all ten were stored. The last five were in
    flight, and their sequencer died: a caller that went by the error did not send them again."""

    async def scenario(cluster: ClusterAtHand) -> None:
        first_client = cluster.client(timeout_s=20, block_records=1)
        second_client = cluster.client(timeout_s=20, block_records=1)
        async with first_client as one, second_client as two:
            await begun(one, two)
            owner = cluster.sequencer_of(LOG)
            producer = Producer(7)
            await one.append_many("log", TEN[:5], producer=producer)
            cut_off(cluster, f"node-{owner}")
            lost = asyncio.ensure_future(one.append_many("log", TEN[5:], producer=producer))
            await asyncio.sleep(0.05)
            cut_off(cluster, "client-1")
            again = asyncio.ensure_future(two.append_many("log", TEN, producer=Producer(7)))
            await asyncio.sleep(0.5)
            assert not again.done(), "the last five are on one node, or on none"
            cluster.kill(owner)
            await asyncio.wait([again])
            assert again.exception() is None
            assert await values(two, "log") == [b"begun"] * 2 + TEN
            lost.cancel()

    simulate(scenario, nodes=5, copies=3)


def test_a_batch_is_not_published_while_its_last_group_is_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next publisher cut smaller groups. Of its last one it was told that it was stored. So
    it noted the batch as done, and the staged blocks went; then the sequencer died."""
    append_group, count = publishing.Publisher.append_one_group, 0
    is_last = asyncio.Event()

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as one, cluster.client(timeout_s=20) as two:
            await begun(one, two)
            owner = cluster.sequencer_of(LOG)

            async def counted(self: Any, *arguments: Any) -> int:
                nonlocal count
                count += 1
                if count == 15:
                    cut_off(cluster, f"node-{owner}")
                    is_last.set()
                return await append_group(self, *arguments)

            wanted = [b"0/%03d" % at * 80 for at in range(30)]
            refs = [await one.stage("log", [value]) for value in wanted]
            with monkeypatch.context() as patch:
                patch.setattr(publishing.Publisher, "append_one_group", counted)
                first = asyncio.ensure_future(one.publish("q", 0, refs, whole=False))
                await is_last.wait()
                await asyncio.sleep(0.02)
            first.cancel()
            cut_off(cluster, "client-1")
            for node in cluster.running.values():
                # As of a node with a smaller WAL.
                node._publications._group_bytes_max = lambda: 4096
            second = asyncio.ensure_future(two.publish("q", 0, [], whole=False))
            await asyncio.sleep(0.5)
            assert not second.done()
            cluster.kill(owner)
            await second
            assert (await values(two, "log"))[2:] == wanted

    small = SequencerSettings(group_bytes_max=8192)
    simulate(scenario, sequencer=small, nodes=5, copies=3)
    assert count == 15
    count, is_last = 0, asyncio.Event()
    with planted(find_bug("numbered-is-stored")), pytest.raises(AssertionError):
        simulate(scenario, sequencer=small, nodes=5, copies=3)
