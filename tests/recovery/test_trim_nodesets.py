"""A log's history of nodesets goes with its data, and never before it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until, values
from scenarios import as_scenario
from swaps import swap_value

from cordwood.block import Gap, GapKind
from cordwood.client.store import Store
from cordwood.layout.log_questions import ExtentReply
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.metadata import epoch_store
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.nodes import Authority, NodeId
from cordwood.recovery.trim_nodesets import trimmed_since
from cordwood.sequencer.log_watch import WATCH_S

LOG = 1
HISTORY = ((1, (1, 2)), (4, (2, 3)), (6, (3, 4)))
"""Epochs 1 to 3 on nodes 1 and 2, 4 and 5 on 2 and 3, from 6 on on 3 and 4."""

END_3, END_5 = make_lsn(3, ESN_MAX), make_lsn(5, ESN_MAX)


@pytest.mark.parametrize(
    ("clean", "trims", "firsts", "gone", "since"),
    [
        (6, {3: END_5}, {}, (), 6),  # all of it is trimmed, and nobody holds any
        (6, {3: END_5 - 1}, {}, (), 4),  # one LSN is not
        (6, {3: make_lsn(9, 1)}, {2: make_lsn(4, 1)}, (), 4),  # node 2 has not let go of it yet
        (6, {3: make_lsn(9, 1)}, {1: make_lsn(2, 1)}, (), 1),
        (6, {3: make_lsn(9, 1)}, {2: make_lsn(6, 1)}, (), 6),  # what it holds is above
        (5, {3: make_lsn(9, 1)}, {}, (), 4),  # recovery still asks who ended epoch 5
        (3, {3: make_lsn(9, 1)}, {}, (), 1),
        (6, {3: make_lsn(9, 1), 1: None}, {}, (), 1),  # node 1 is away: it may have some
        (6, {3: make_lsn(9, 1), 1: None}, {}, (1,), 6),  # and has none, somebody says
        (6, {}, {}, (), 1),  # nobody asked for a trim
    ],
)
def test_what_may_go(clean: int, trims, firsts, gone, since: int) -> None:
    history = tuple(NodesetSince(first, nodes, 2, 1) for first, nodes in HISTORY)
    record = EpochRecord(8, clean, 0, history)
    extents = {
        NodeId(n): ExtentReply(trims.get(n, 0), firsts.get(n, 0), 0, firsts.get(n, 0), 0)
        for n in (1, 2, 3, 4)
        if trims.get(n, 0) is not None
    }
    statuses = {NodeId(n): Authority.UNDER_REPLICATED for n in gone}
    assert trimmed_since(record, extents, statuses) == since


def read_history(cluster: ClusterAtHand) -> list[int]:
    """The epochs that the log's entries begin with."""
    record = msgspec.json.decode(cluster.metadata._values[f"epochs/{LOG}"].value, type=EpochRecord)
    return [each.since for each in record.history]


async def history(cluster: ClusterAtHand) -> list[int]:
    record = await EpochStore(cluster.metadata).read(LOG)
    assert record is not None
    return [each.since for each in record.history]


async def spread(store: Store, size: int) -> Lsn:
    """Have the log's next epoch on so many nodes; a record of it."""
    before = (await store.append("log", b"?")).epoch
    await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=size))
    while (await store.append("log", b"?")).epoch == before:  # noqa: ASYNC110 - another node's doing
        await asyncio.sleep(0.1)
    return await store.append("log", b"%d" % size)


async def read_to(store: Store, lsn: Lsn) -> list[bytes]:
    return [v for v in await values(store, "log", until=lsn) if v != b"?"]


@as_scenario(simulate, nodes=5, copies=2)
async def test_it_goes_with_the_data_and_a_reader_that_begins_below_is_told_of_the_trim(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
        for size in (5, 3, 4):
            last = await spread(store, size)
        assert await read_to(store, last) == [b"5", b"3", b"4"]
        assert await history(cluster) == [1, 2, 3, 4]
        trim = make_lsn(3, 1)
        await store.trim("log", trim)
        # A node that has still to learn how an epoch ended cannot say what it holds. Node 1
        # has no part in the last epochs, so it hears late that they are over.
        await asyncio.sleep(2)
        last = await spread(store, 3)
        await until(lambda: read_history(cluster) == [3, 4, 5])
        given = await read_all(store, "log", until=last)
        assert isinstance(given[0], Gap)
        assert (given[0].kind, given[0].last >= make_lsn(2, ESN_MAX)) == (GapKind.TRIM, True)
        assert (await read_to(store, last))[-2:] == [b"4", b"3"]


@as_scenario(simulate, nodes=5, copies=2)
async def test_a_node_that_is_away_keeps_what_it_may_hold(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
        for size in (5, 3):
            last = await spread(store, size)
        away = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
        cluster.kill(away)
        await asyncio.sleep(5)
        await store.trim("log", last)
        await spread(store, 4)
        await asyncio.sleep(10)
        assert await history(cluster) == [1, 2, 3, 4]
        await cluster.start(away)
        await asyncio.sleep(5)
        await store.trim("log", last)
        await spread(store, 3)
        await until(lambda: read_history(cluster) == [3, 4, 5])


@pytest.mark.slow
def test_a_log_that_has_had_too_many_takes_no_epoch_in_vain_and_another_once_it_is_trimmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap_value(monkeypatch, lambda: epoch_store.HISTORY_MAX, 3)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
            for size in (5, 3):
                last = await spread(store, size)
            await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=4))
            await asyncio.sleep(5 * WATCH_S)
            lsn = await store.append("log", b"full")
            assert lsn.epoch == last.epoch, "each look took an epoch"
            await store.trim("log", lsn)
            await asyncio.sleep(3 * WATCH_S)
            last = await store.append("log", b"more")
            assert (last.epoch, await history(cluster)) == (4, [3, 4])
            assert (await read_to(store, last))[-1] == b"more"

    simulate(scenario, nodes=5, copies=2)
