"""Nodes whose data is said to be gone or rebuilt: no copyset names them until they are back."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from scenarios import as_scenario, now
from swaps import swap

from cordwood.layout.waves import Refusal
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.node_states import REBUILDING_S, NodeState
from cordwood.sequencer.appender import LogAppender
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted

LOG = 1


def state_of(cluster: ClusterAtHand, node: int) -> NodeState:
    sequencer = cluster.running[cluster.sequencer_of(LOG)]
    return sequencer._states.state(NodeId(node), now())


def told(cluster: ClusterAtHand, node: int, status: Authority, *to: int) -> None:
    """These nodes have heard of a status, the others not (yet)."""
    for number in to:
        engine = cluster.running[number].engine
        is_rebuilt = status is not Authority.FULLY_AUTHORITATIVE
        engine.rebuilding = frozenset({node}) if is_rebuilt else frozenset()


async def copysets(cluster: ClusterAtHand) -> list[tuple[int, ...]]:
    engines = [node.engine for node in cluster.running.values()]
    blocks = [block for engine in engines for block in await held_blocks(engine, LOG)]
    return [b.envelope.copyset for b in sorted(blocks, key=lambda block: block.header.first)]


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Refusal, int]]:
    seen: list[tuple[Refusal, int]] = []
    right = LogAppender.on_refused

    def noted(me, run, node, refusal, at):
        seen.append((refusal.reason, refusal.epoch))
        right(me, run, node, refusal, at)

    swap(monkeypatch, LogAppender.on_refused, noted)
    return seen


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_copyset_that_names_it_is_refused_and_the_next_wave_does_without(
    refusals: list[tuple[Refusal, int]], is_planted: bool
) -> None:
    """Only the storage nodes have heard of it: the sequencer picks it, is told, and leaves it
    out for as long as LogDevice does."""

    async def scenario(cluster: ClusterAtHand) -> None:
        for node in cluster.running.values():
            node.settings = _rarely(node)
        async with cluster.client() as store:
            first = await store.append("log", b"first")
            chosen = (await copysets(cluster))[0]
            back = next(n for n in chosen if n != cluster.sequencer_of(LOG))
            if not is_planted:
                told(cluster, back, Authority.UNDER_REPLICATED, *cluster.running)
            second = await store.append("log", b"second")
            assert second > first
            later = (await copysets(cluster))[-1]
            if is_planted:
                assert (refusals, back in later) == ([], True)
                return
            assert set(refusals) == {(Refusal.REBUILDING, back)}
            assert back not in later
            assert state_of(cluster, back) is NodeState.REBUILDING
            told(cluster, back, Authority.FULLY_AUTHORITATIVE, *cluster.running)
            await asyncio.sleep(REBUILDING_S + 0.1)
            assert state_of(cluster, back) is NodeState.AVAILABLE

    with planted(find_bug("rebuilt-copyset-taken")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)


def _rarely(node):
    """What was told by hand is not read again from the metadata store."""
    from dataclasses import replace

    return replace(node.settings, refresh_s=3600.0)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_node_that_was_given_up_and_comes_back_takes_no_copy_before_all_have_heard(
    is_planted: bool,
) -> None:
    """It is down and given up by hand; what names it is refused, as its start takes that back."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"first")
            owner = cluster.sequencer_of(LOG)
            gone = next(n for n in cluster.running if n != owner)
            cluster.kill(gone)
            await asyncio.sleep(5)
            await store.set_authority(gone, Authority.UNDER_REPLICATED)
            await asyncio.sleep(3)
            known = [node.engine.rebuilding for node in cluster.running.values()]
            if is_planted:
                assert known == [frozenset()] * len(known)
                return
            assert known == [frozenset({gone})] * len(known)
            assert state_of(cluster, gone) is NodeState.REBUILDING
            await store.append("log", b"second")
            await cluster.start(gone)
            await until(lambda: not any(n.engine.rebuilding for n in cluster.running.values()))
            await store.append("log", b"third")
            assert await values(store, "log") == [b"first", b"second", b"third"]

    with planted(find_bug("rebuilt-copyset-taken")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)


@as_scenario(simulate, nodes=3)
async def test_where_there_is_no_other_copyset_appends_are_refused_and_go_on_when_all_have_heard(
    cluster: ClusterAtHand, *, refusals: list[tuple[Refusal, int]]
) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"first")
        for node in cluster.running.values():
            node.settings = _rarely(node)
        await asyncio.sleep(2)
        told(cluster, 2, Authority.AUTHORITATIVE_EMPTY, *cluster.running)
        waiting = asyncio.create_task(store.append("log", b"second"))
        await asyncio.sleep(5)
        assert not waiting.done()
        assert set(refusals) == {(Refusal.REBUILDING, 2)}
        told(cluster, 2, Authority.FULLY_AUTHORITATIVE, *cluster.running)
        await waiting
        assert await values(store, "log") == [b"first", b"second"]
