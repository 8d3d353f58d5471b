"""A reader whose client knows statuses of nodes from before these nodes came back."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, until
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_grace import GRACE_S
from cordwood.client.store import Store, connected
from cordwood.layout.message_nodes import AskMembers, MembersReply
from cordwood.nodes import Authority, NodeId
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted

FULL, GONE, EMPTY = (
    Authority.FULLY_AUTHORITATIVE,
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
)
AWAY = (3, 4)
LOGS = [f"log-{number}" for number in range(8)]


async def call_away(cluster: ClusterAtHand, store: Store, word: Authority) -> None:
    for log in LOGS:
        await store.append(log, b"first")
    for node in AWAY:
        cluster.kill(node)
    for node in AWAY:
        await say_of_dead(store, node, word)
    await until(lambda: len(store._cluster.statuses) == len(AWAY))


async def come_back(cluster: ClusterAtHand) -> None:
    await cluster.start(*AWAY)
    await until(lambda: all(
        cluster.running[NodeId(at)]._members[NodeId(node)].authority is FULL
        for at in cluster.numbers for node in AWAY
    ))  # fmt: skip


@pytest.mark.parametrize("bug", ["", "counted-out-long-ago"])
@pytest.mark.parametrize("word", [GONE, EMPTY])
@as_scenario(simulate, nodes=4, copies=2)
async def test_a_node_that_is_back_is_not_counted_out(
    cluster: ClusterAtHand, *, word: Authority, bug: str
) -> None:
    """Nodes 3 and 4 came back and acknowledged records. A reader that is cut off from both of
    them hears of the releases before it reads the member list."""
    network = cluster.simulation.network
    host, settings = cluster.client_host(), ClientSettings()
    with planted(find_bug(bug)) if bug else nullcontext():
        async with (
            cluster.client(timeout_s=30) as store,
            connected(cluster.addresses, host, settings, cluster.open_objects) as cut_off,
        ):
            await call_away(cluster, store, word)
            await until(lambda: len(cut_off._cluster.statuses) == len(AWAY))
            refresher = cut_off._cluster._refresher
            assert refresher is not None
            refresher.cancel()
            network.partition(["client-1"], [f"node-{node}" for node in AWAY])
            await come_back(cluster)
            seen: dict[str, list[Record | Gap]] = {log: [] for log in LOGS}

            async def follow(log: str) -> None:
                stream = await cut_off.read(log, await store.tail(log), until=None)
                async for item in stream:
                    seen[log].append(item)

            following = [asyncio.create_task(follow(log)) for log in LOGS]
            await asyncio.sleep(1)
            lsns = {log: await store.append(log, b"second") for log in LOGS}
            only_there = [
                log
                for log, lsn in lsns.items()
                if set(await holders(cluster, store, log, lsn)) == {*AWAY}
            ]
            assert only_there
            await asyncio.sleep(2 * GRACE_S)
            network.mend_all()
            await asyncio.sleep(2 * GRACE_S)
            for task in following:
                task.cancel()
            for log in LOGS:
                is_false = bool(bug) and log in only_there
                gaps = [each for each in seen[log] if isinstance(each, Gap)]
                losses = [gap for gap in gaps if gap.kind is GapKind.DATA_LOSS]
                assert any(gap.first <= lsns[log] <= gap.last for gap in losses) is is_false
                got = [each.lsn for each in seen[log] if isinstance(each, Record)]
                assert (lsns[log] in got) is not is_false


async def holders(cluster: ClusterAtHand, store: Store, log: str, lsn: int) -> list[int]:
    """The nodes that have a copy of a record."""
    number = (await store.log(log)).log_id
    return [
        node
        for node in cluster.numbers
        if any(f <= lsn <= upto and kind == "DATA" for f, upto, kind in cluster.held(node, number))
    ]


@as_scenario(simulate, nodes=4, copies=2)
async def test_a_loss_is_told_although_the_statuses_are_not_asked_for_before(
    cluster: ClusterAtHand,
) -> None:
    """The nodes are gone for good. The reader asks itself: the client does not look any more."""
    async with cluster.client(timeout_s=30) as store:
        await call_away(cluster, store, GONE)
        refresher = store._cluster._refresher
        assert refresher is not None
        refresher.cancel()
        infos = {log: await store.log(log) for log in LOGS}
        there = [
            log for log in LOGS
            if not any(cluster.held(n, infos[log].log_id) for n in cluster.running)
        ]  # fmt: skip
        assert there
        async with asyncio.timeout(GRACE_S):
            items = [await anext(await store.read(log, until=None)) for log in there]
        assert {item.kind for item in items if isinstance(item, Gap)} == {GapKind.DATA_LOSS}


@as_scenario(simulate)
async def test_a_later_answer_to_an_earlier_question_changes_no_status(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        own = store._cluster
        assert own._refresher is not None
        own._refresher.cancel()
        asked_at = asyncio.get_running_loop().time()
        reply = await own.call_any(AskMembers(), timeout_s=5)
        assert isinstance(reply, MembersReply)
        assert 0 < reply.age_ms < 2000
        gone = [msgspec.structs.replace(m, authority=GONE, weight=7.0) for m in reply.members]
        new = msgspec.structs.replace(gone[0], node=9)
        before = msgspec.structs.replace(reply, members=[*gone, new])
        own._learn(msgspec.structs.replace(reply, age_ms=0), asked_at)
        own._learn(before, asked_at - 1)
        assert not own.statuses, "it was asked for earlier"
        assert own.members[NodeId(1)].weight == 1.0
        assert own.members[NodeId(9)].weight == 7.0, "and this is news"
        own._learn(msgspec.structs.replace(before, age_ms=2000), asked_at + 1)
        assert not own.statuses, "it was read earlier"
        own._want(gone, asked_at + 1)
        assert not own.statuses, "a look-up of a log does not say when it was read"
        own._learn(before, asked_at + 1)
        assert set(own.statuses.values()) == {GONE}
        assert own.statuses_at == asked_at + 1 - reply.age_ms / 1000


@as_scenario(simulate, nodes=4, copies=2)
async def test_a_client_without_a_connection_counts_nobody_out(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await call_away(cluster, store, EMPTY)
        for node in set(cluster.numbers) - set(AWAY):
            cluster.kill(node)
        await until(lambda: not store._cluster.peers.up)
        assert not store._cluster.statuses
