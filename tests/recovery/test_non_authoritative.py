"""Epochs of which more was lost for good than the copies survive: the log goes on, truthfully."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, read_all, say_of_dead, simulate, until, values
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.errors import NoSequencer
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.membership import Membership
from cordwood.nodes import Authority
from cordwood.recovery import recover_log
from cordwood.sim.planted import find_bug, planted

LOG = 1
FULL, GONE, DOWN = (
    Authority.FULLY_AUTHORITATIVE,
    Authority.UNDER_REPLICATED,
    Authority.UNAVAILABLE,
)


async def three_on(cluster: ClusterAtHand, store: Store, *nodes: int) -> None:
    """Three records on these nodes and no other; nobody else has heard of them."""
    others = [number for number in cluster.numbers if number not in nodes]
    for node in others:
        cluster.kill(node)
    await asyncio.sleep(5)
    for value in (b"0", b"1", b"2"):
        await store.append("log", value)
    for node in nodes:
        cluster.kill(node)
    await cluster.start(*others)


async def clean_epoch(cluster: ClusterAtHand) -> int:
    record = await EpochStore(cluster.metadata).read(LOG)
    assert record is not None
    return record.clean_epoch


async def statuses(cluster: ClusterAtHand) -> set[Authority]:
    return {member.authority for member in await Membership(cluster.metadata).members()}


def lost_epoch(after: Lsn) -> list[Gap]:
    """What a reader is told of the epochs before that of `after`, where 1 held something."""
    lost = Gap(make_lsn(1, 1), make_lsn(1, ESN_MAX), GapKind.DATA_LOSS)
    return [lost, Gap(make_lsn(2, 0), make_lsn(2, 0), GapKind.BRIDGE)]


@as_scenario(simulate, nodes=4, copies=2)
async def test_the_log_goes_on_and_readers_are_told_of_a_loss_and_of_no_hole(
    cluster: ClusterAtHand,
) -> None:
    """Two of four nodes, with two copies of three records and their sequencer, are gone."""
    async with cluster.client(timeout_s=60) as store:
        await three_on(cluster, store, 3, 4)
        for node in (3, 4):
            await say_of_dead(store, node, DOWN)
        pending = asyncio.ensure_future(store.append("log", b"after"))
        await asyncio.sleep(20)
        assert not pending.done(), "they have data, so they are waited for"
        for node in (3, 4):
            await store.set_authority(node, GONE)
        after = await pending
        given = await read_all(store, "log", until=after)
        assert given[:2] == lost_epoch(after)
        assert [each.value for each in given if isinstance(each, Record)] == [b"after"]
        assert await clean_epoch(cluster) == after.epoch - 1
        assert (await store.tail("log")) == after

        # They come back: sealed, and with what they know to be acknowledged. Of the third
        # record nobody knows that.
        await cluster.start(3, 4)
        for node in (3, 4):
            assert cluster.running[node].engine.sealed(LOG) >= after.epoch
        await asyncio.sleep(10)
        assert await statuses(cluster) == {FULL}
        first, second = make_lsn(1, 1), make_lsn(1, 2)
        kept = [(first, first, "DATA"), (second, second, "DATA")]
        for _ in range(2):
            for node in (3, 4):
                held = [each for each in cluster.held(node, LOG) if each[0] >> 32 == 1]
                assert held == kept
            again = await read_all(store, "log", until=after)
            assert [r.value for r in again if isinstance(r, Record)] == [b"0", b"1", b"after"]
            assert again[2] == Gap(make_lsn(1, 3), make_lsn(1, ESN_MAX), GapKind.DATA_LOSS)
            for node in (3, 4):
                cluster.kill(node)
            await cluster.start(3, 4)
            await asyncio.sleep(5)


def test_what_a_node_that_comes_back_knows_to_be_acknowledged_is_not_dropped_unnoticed() -> None:
    with planted(find_bug("own-lng-forgotten")), pytest.raises(AssertionError):
        test_the_log_goes_on_and_readers_are_told_of_a_loss_and_of_no_hole()


def test_one_that_comes_back_before_the_end_is_recovered_with(monkeypatch: Any) -> None:
    """Both are said to be gone, and are back while the epoch is recovered without them."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=60) as store:
            clusters.append(cluster)
            await three_on(cluster, store, 3, 4)
            for node in (3, 4):
                await say_of_dead(store, node, GONE)
            after = await store.append("log", b"after")
            assert begun
            assert await values(store, "log", until=after) == [b"0", b"1", b"2", b"after"]
            assert await clean_epoch(clusters[0]) == after.epoch - 1

    clusters: list[ClusterAtHand] = []
    begun: list[bool] = []
    right = recover_log.mend_tail

    async def mend_tail(*args: Any) -> None:
        await right(*args)
        if not begun:
            begun.append(True)
            await clusters[0].start(3, 4)

    swap(monkeypatch, recover_log.mend_tail, mend_tail, within=recover_log)
    simulate(scenario, nodes=4, copies=2)


def test_a_bridge_that_an_earlier_attempt_stored_is_no_loss(monkeypatch: Any) -> None:
    """The first attempt heard enough, and its bridge is on two nodes. Two others are gone for good
    before the second one, which cannot know by itself that nothing came after the record."""
    right = recover_log._check_absent
    held_up = asyncio.Event()

    async def check(unclean: int, job: Any, tools: Any) -> None:
        if not held_up.is_set():
            raise NoSequencer("held up")
        await right(unclean, job, tools)

    swap(monkeypatch, recover_log._check_absent, check)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=60) as store:
            only = await store.append("log", b"only")
            await asyncio.sleep(1)
            cluster.kill(cluster.sequencer_of(LOG))
            await cluster.start(*(n for n in cluster.numbers if n not in cluster.running))
            after = await store.append("log", b"after")
            bridge = (make_lsn(1, 2), make_lsn(1, ESN_MAX), "BRIDGE")

            def holders() -> set[int]:
                return {n for n in cluster.running if bridge in cluster.held(n, LOG)}

            await until(lambda: len(holders()) >= 2)
            needed = {cluster.sequencer_of(LOG), *holders()}
            gone = [n for n in cluster.numbers if n not in needed][:2]
            assert len(gone) == 2
            record = (only, only, "DATA")
            assert any(record in cluster.held(n, LOG) for n in needed), (
                "the seed takes both of its copies away"
            )
            for node in gone:
                cluster.kill(node)
            for node in gone:
                await say_of_dead(store, node, GONE)
            held_up.set()
            given = await read_all(store, "log", until=after)
            assert await clean_epoch(cluster) == after.epoch - 1
            kinds = [each.kind for each in given if isinstance(each, Gap)]
            assert set(kinds) == {GapKind.BRIDGE}
            assert [each.lsn for each in given if isinstance(each, Record)] == [only, after]

    simulate(scenario, nodes=5, copies=2, seed=1)


def test_a_recovery_that_forgets_what_another_knew_is_noticed(monkeypatch: Any) -> None:
    with planted(find_bug("found-plugs-dropped")), pytest.raises(AssertionError):
        test_a_bridge_that_an_earlier_attempt_stored_is_no_loss(monkeypatch)
