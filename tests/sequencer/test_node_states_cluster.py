"""Slow nodes on a whole cluster: left out, tried with nothing at stake, and taken back."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from crc32c import crc32c
from scenarios import as_scenario, now
from swaps import swap, swap_value

from cordwood.nodes import NodeId
from cordwood.protocol.node_states import NodeState
from cordwood.sequencer import appender
from cordwood.sim.holdings import held_blocks
from cordwood.storage.engine import StorageEngine

LOG = 1


def states_of(cluster: ClusterAtHand) -> dict[int, NodeState]:
    sequencer = cluster.running[cluster.sequencer_of(LOG)]
    return {n: sequencer._states.state(NodeId(n), now()) for n in cluster.running}


def copies_by_node(cluster: ClusterAtHand) -> Counter[int]:
    return Counter(
        {n: sum(kind == "DATA" for _, _, kind in cluster.held(n, LOG)) for n in cluster.running}
    )


@as_scenario(simulate, nodes=5)
async def test_a_node_whose_disk_stalls_is_left_out_probed_and_taken_back(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"first")
        stalled = next(n for n, held in copies_by_node(cluster).items() if held)
        cluster.machine(stalled).disk.stall(10.0)
        waits = []
        for at in range(200):
            began = now()
            await store.append("log", b"%d" % at)
            waits.append(now() - began)
            await asyncio.sleep(0.02)
        # One wave had to find it out, and no append after it: probes did.
        assert sum(wait > 0.1 for wait in waits) == 1
        assert states_of(cluster)[stalled] in (NodeState.SLOW, NodeState.PROBING)
        while states_of(cluster)[stalled] is not NodeState.AVAILABLE:
            await store.append("log", b"more")
            await asyncio.sleep(0.1)
        assert now() < 60
        assert len(await values(store, "log")) > 200


def test_waves_wait_for_disks_that_all_turn_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store takes most of a second, and the first wait is half of that: the waits follow,
    and no wave is sent in vain any more."""
    waves: list[int] = []
    send = appender.LogAppender._send

    def counted(self, run, copyset, at) -> None:
        send(self, run, copyset, at)
        waves.append(run.wave)

    swap(monkeypatch, appender.LogAppender._send, counted)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.append("log", b"first")
            for number in cluster.running:
                disk = cluster.machine(number).disk
                disk.settings = replace(
                    disk.settings, latency_min_s=0.7, latency_jitter_s=0.05, slow_chance=0.0
                )
            for at in range(20):
                await store.append("log", b"%d" % at)
            assert max(waves) > 1
            waves.clear()
            for at in range(20):
                await store.append("log", b"%d" % at)
            assert waves == [1] * 20

    simulate(scenario, nodes=3)


def test_a_burst_on_one_log_is_spread_over_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: appender.STICKY_BYTES, 20_000)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for _ in range(60):
                await asyncio.gather(*(store.append("log", bytes(1000)) for _ in range(50)))
            held = copies_by_node(cluster)
            assert sum(held.values()) == 3 * 60
            assert len(held) == 7
            assert min(held.values()) > 60 * 3 / 7 / 2

    simulate(scenario, nodes=7)


def test_a_quiet_log_changes_its_copyset_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[NodeId, ...]] = []
    send = appender.LogAppender._send

    def noted(self, run, copyset, at) -> None:
        chosen.append(copyset)
        send(self, run, copyset, at)

    swap(monkeypatch, appender.LogAppender._send, noted)
    swap_value(monkeypatch, lambda: appender.STICKY_S, 10.0)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for _ in range(60):
                await store.append("log", b"small")
                await asyncio.sleep(1.0)

    simulate(scenario, nodes=7)
    changes = sum(one != other for one, other in itertools.pairwise(chosen))
    assert 3 <= changes <= 6


@pytest.mark.parametrize("is_late", [False, True])
def test_who_stored_an_earlier_wave_is_sent_the_envelope_alone(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """One member is cut off. The others confirmed the first wave before it was given up, or after
    it; what they hold they are not sent again."""
    amended: list[int] = []
    append_amend = StorageEngine.append_amend

    def counted(self, wave, blocks, *rest) -> None:
        amended.append(sum(block.header.stored_bytes for block in blocks))
        append_amend(self, wave, blocks, *rest)

    swap(monkeypatch, StorageEngine.append_amend, counted)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"first")
            owner = cluster.sequencer_of(LOG)
            (copyset,) = {
                block.envelope.copyset
                for number in cluster.running
                for block in await held_blocks(cluster.running[number].engine, LOG)
            }
            stalled = next(node for node in copyset if node != owner)
            cluster.machine(stalled).disk.stall(10.0)
            if is_late:
                for node in copyset:
                    if node not in (stalled, owner):
                        cluster.machine(node).disk.stall(0.7)
            body = bytes(100_000)
            await store.append("log", body)
            assert amended
            assert min(amended) >= 100_000
            blocks = [
                block
                for number in cluster.running
                for block in await held_blocks(cluster.running[number].engine, LOG)
                if block.header.stored_bytes > len(body)
            ]
            newest = max(block.envelope.wave for block in blocks)
            last = [block for block in blocks if block.envelope.wave == newest]
            assert len(last) == 3
            assert all(crc32c(block.body) == block.header.stored_crc for block in last)
            assert await values(store, "log") == [b"first", body]

    simulate(scenario, nodes=4)
