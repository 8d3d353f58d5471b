"""Recoveries on a node that did not hear for some time that members have their data again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, values

from cordwood.errors import CordwoodError, Unreachable
from cordwood.lsn import LogId
from cordwood.nodes import Authority, NodeId
from cordwood.recovery.heard import Statuses
from cordwood.recovery.recover_log import STATUSES_TIMEOUT_S, RecoveryTools, statuses_now
from cordwood.sim.loop import SimLoop
from cordwood.sim.planted import find_bug, planted

GONE, EMPTY, DOWN = (
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
    Authority.UNAVAILABLE,
)
KNOWN = {NodeId(1): EMPTY, NodeId(2): DOWN, NodeId(3): GONE}
LOGS = 12


def told(nodes: set[int], read: Callable[[int], Awaitable[Statuses]]) -> tuple[Statuses, float]:
    """The statuses that count for a recovery with these members, and the time that it took."""
    tools = cast(RecoveryTools, cast(Any, SimpleNamespace(
        statuses=lambda log: KNOWN, read_statuses=read
    )))  # fmt: skip

    async def asked() -> tuple[Statuses, float]:
        began = asyncio.get_running_loop().time()
        found = await statuses_now(LogId(1), nodes, tools)
        return found, asyncio.get_running_loop().time() - began

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        return runner.run(asked())


async def nobody(log: int) -> Statuses:
    return {}


async def refuses(log: int) -> Statuses:
    raise Unreachable("the metadata store does not answer")


async def says_nothing(log: int) -> Statuses:
    await asyncio.Event().wait()
    return {}


def test_only_members_without_data_make_it_ask() -> None:
    assert told({2, 4}, says_nothing) == (KNOWN, 0)
    for node in (1, 3):
        assert told({2, node}, nobody)[0] == {}


def test_without_an_answer_no_member_is_empty_or_gone() -> None:
    assert told({1, 2}, refuses) == ({2: DOWN}, 0)
    assert told({3}, says_nothing) == ({2: DOWN}, STATUSES_TIMEOUT_S)


@pytest.mark.parametrize("is_planted", [False, True])
def test_members_that_came_back_unheard_keep_what_they_acknowledged(*, is_planted: bool) -> None:
    """Two nodes held nothing, and were called empty while they were down. Another node did not
    reach the metadata store when they came back, and did not read the member list after that. It
    took the next epoch when they were down once more. That epoch began without their seals, and the
    epoch before got an end below the records that only they had acknowledged."""

    async def scenario(cluster: ClusterAtHand) -> None:
        network = cluster.simulation.network
        cluster.weights.update({1: 0.1, 2: 0.1})
        await cluster.stop(1)
        await cluster.start(1)
        own = await cluster.start_with_own_way(2)
        logs = [f"log-{number}" for number in range(LOGS)]
        async with cluster.client(timeout_s=30) as store:
            for node in (3, 4):
                cluster.kill(node)
                await say_of_dead(store, node, EMPTY)
            await asyncio.sleep(3)
            node = cluster.running[NodeId(2)]
            node.settings = replace(node.settings, refresh_s=600)
            own.is_out = True
            await asyncio.sleep(1)
            await cluster.start(3, 4)
            await asyncio.sleep(6)
            for log in logs:
                await store.append_many(log, [b"1", b"2"])
        async with cluster.client(timeout_s=3) as far, cluster.client(timeout_s=1) as near:
            for log in logs:
                await far.append(log, b"3")
                await near.append(log, b"4")
            network.partition(["node-1", "node-2", "client-3"], ["node-3", "node-4", "client-2"])
            network.partition(["client-3"], ["node-1"])
            acked: dict[str, list[bytes]] = {log: [b"1", b"2", b"3", b"4"] for log in logs}

            async def go_on(log: str) -> None:
                for value in (b"5", b"6", b"7"):
                    try:
                        await far.append(log, value)
                    except CordwoodError:
                        return
                    acked[log].append(value)

            await asyncio.gather(*map(go_on, logs))
            cluster.kill(3)
            cluster.kill(4)
            await asyncio.sleep(5)

            async def ask(log: str) -> bool:
                """Whether a record of a new epoch is acknowledged."""
                loop = asyncio.get_running_loop()
                end_s = loop.time() + 8
                while loop.time() < end_s:
                    try:
                        return (await near.append(log, b"z")) >> 32 > 1
                    except CordwoodError:
                        await asyncio.sleep(0.05)
                return False

            own.is_out = False
            known = node._members
            assert known[NodeId(3)].authority is known[NodeId(4)].authority is EMPTY
            begun = any(await asyncio.gather(*map(ask, logs)))
        network.mend_all()
        await cluster.start(3, 4)
        await asyncio.sleep(20)
        async with cluster.client(timeout_s=60) as store:
            found = {log: await values(store, log) for log in logs}
        lost = [log for log in logs if found[log][: len(acked[log])] != acked[log]]
        assert begun == is_planted, "without two nodes of four no epoch begins"
        assert bool(lost) == is_planted, lost

    with planted(find_bug("recovery-by-a-list-of-before")) if is_planted else nullcontext():
        simulate(scenario, nodes=4, copies=2)
