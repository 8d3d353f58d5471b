"""What would be lost, and to be given, without some nodes: beside a look at every copy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.admin.nodes import IfLost
from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Unreachable
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Authority, NodeId
from cordwood.storage import copy_survey
from cordwood.storage.logs_db.partition import Part

RECORDS = 40
LOGS = ("one", "two", "three")


async def written(cluster: ClusterAtHand, store: Store) -> None:
    """Blocks on many copysets; some are in LogsDB, and others in the cache."""
    for log in LOGS:
        await store.create_log(log, attributes=LogAttributes(sticky_copysets=False))
    for number in range(RECORDS):
        for log in LOGS:
            await store.append(log, b"%d" % number * 10)
        if number == RECORDS // 2:
            for node in cluster.running.values():
                await node.flush()


async def copies(cluster: ClusterAtHand) -> dict[tuple[int, int], tuple[tuple[int, ...], int]]:
    """Every block that some node holds: its copyset, and the bytes of its body."""
    found = {}
    for node in cluster.running.values():
        for log in node.engine.cache.logs:
            at = 1
            while at <= LSN_MAX:
                run = await node.engine.reader.read(
                    log, at, LSN_MAX, lambda _: Part.HEAD, bytes_max=1 << 30, blocks_max=1000
                )
                for block in run.blocks:
                    key = (log, block.header.first)
                    found[key] = (block.envelope.copyset, block.header.stored_bytes)
                at = run.next
    return found


def expected(
    blocks: Iterable[tuple[tuple[int, ...], int]], lost: set[int], nodes: int, copies: int
) -> IfLost:
    """The sum over all nodes, slow and obvious."""
    given = sent = stuck = last = gone = 0
    for copyset, size in blocks:
        left = set(copyset) - lost
        if left == set(copyset):
            continue
        if not left:
            gone += 1
            continue
        last += len(left) == 1
        if nodes - len(lost) < copies:
            stuck += 1
        else:
            given += 1
            sent += size * (copies - len(left))
    return IfLost(given, sent, stuck, last, gone, 0)


def total(answers: Iterable[IfLost | CordwoodError]) -> IfLost:
    rows = [each for each in answers if isinstance(each, IfLost)]
    names = ("blocks", "bytes", "stuck", "last", "gone", "unknown")
    return IfLost(*(sum(getattr(each, name) for each in rows) for name in names))


class TestAnswers:
    @pytest.mark.parametrize("at_once", [copy_survey.LOOK_BLOCKS, 7])
    def test_they_add_up_to_every_block_once(
        self, at_once: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: copy_survey.LOOK_BLOCKS, at_once)
        swap_value(monkeypatch, lambda: copy_survey.STEP_BLOCKS, min(at_once, 5))

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await written(cluster, store)
                blocks = (await copies(cluster)).values()
                assert len(blocks) >= RECORDS * len(LOGS)
                for count in (1, 2, 3, 4):
                    for lost in itertools.combinations(range(1, 6), count):
                        answers = await store.if_lost(lost)
                        assert list(answers) == [1, 2, 3, 4, 5]
                        assert total(answers.values()) == expected(blocks, {*lost}, 5, 2)

        simulate(scenario, nodes=5, copies=2)

    @as_scenario(simulate, nodes=5, copies=3)
    async def test_all_that_share_a_block_with_the_lost_node_give(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await written(cluster, store)
            answers = await store.if_lost([3])
            assert answers.pop(NodeId(3)) == IfLost()
            assert all(isinstance(e, IfLost) and e.blocks > 0 for e in answers.values())

    @as_scenario(simulate, nodes=5, copies=2)
    async def test_what_is_said_of_nodes_already_counts(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await written(cluster, store)
            blocks = (await copies(cluster)).values()
            cluster.kill(3)
            for _ in range(100):
                try:
                    await store.set_authority(3, Authority.UNDER_REPLICATED)
                    break
                except CordwoodError:
                    await asyncio.sleep(1)
            await asyncio.sleep(5)
            answers = await store.if_lost([2])
            assert isinstance(answers[NodeId(3)], Unreachable)
            # Epochs that were recovered since ended with a bridge, which is no body.
            found, wanted = total(answers.values()), expected(blocks, {2, 3}, 5, 2)
            assert (found.bytes, found.stuck) == (wanted.bytes, wanted.stuck)

    @as_scenario(simulate)
    async def test_a_node_that_there_is_not(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            with pytest.raises(BadSetting, match="no node 9; there are 1, 2"):
                await store.if_lost([2, 9])
            with pytest.raises(BadSetting, match="name a node; there are 1, 2"):
                await store.if_lost([])
