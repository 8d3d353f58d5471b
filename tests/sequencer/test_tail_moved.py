"""An append on condition of the tail is told that the tail moved once that is so for good."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.client.append.producer import Producer
from cordwood.errors import OutcomeUnknown, TailMoved, UnknownProducer
from cordwood.sim.planted import find_bug, planted

LOG = 1


def cut_off(cluster: ClusterAtHand, *hosts: str) -> None:
    """These hosts reach no node any more."""
    nodes = [f"node-{number}" for number in cluster.numbers]
    cluster.simulation.network.partition(hosts, [each for each in nodes if each not in hosts])


async def a_rival_is_lost(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as one, cluster.client(timeout_s=20) as two:
        await one.append("log", b"1")
        tail = await two.append("log", b"2")
        owner = cluster.sequencer_of(LOG)
        cut_off(cluster, f"node-{owner}")
        rival = asyncio.ensure_future(one.append("log", b"rival", expected_tail=tail))
        await asyncio.sleep(0.05)
        cut_off(cluster, "client-1")
        second = asyncio.ensure_future(two.append("log", b"3", expected_tail=tail))
        await asyncio.sleep(0.5)
        assert not second.done(), "the rival's record is on one node, or on none"
        cluster.kill(owner)
        with pytest.raises(OutcomeUnknown):
            await second
        await two.append("log", b"3", expected_tail=tail)
        assert await values(two, "log") == [b"1", b"2", b"3"]
        rival.cancel()


def test_a_record_that_is_lost_in_flight_has_not_moved_the_tail() -> None:
    """The append was told that the log ended at a record which nobody has: of two that competed,
    both had lost."""
    simulate(a_rival_is_lost, nodes=5, copies=3)


def test_the_planted_bug_is_caught() -> None:
    with planted(find_bug("tail-moved-early")), pytest.raises((AssertionError, TailMoved)):
        simulate(a_rival_is_lost, nodes=5, copies=3)


def test_a_record_that_is_stored_has_moved_it() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as one, cluster.client() as two:
            await one.append("log", b"1")
            tail = await two.append("log", b"2")
            rival = asyncio.ensure_future(one.append("log", b"rival", expected_tail=tail))
            await asyncio.sleep(0.0005)
            with pytest.raises(TailMoved, match=r"ends at e1n3"):
                await two.append("log", b"3", expected_tail=tail)
            await rival
            with pytest.raises(TailMoved):
                await one.append("log", b"4", expected_tail=tail)
            assert await values(two, "log") == [b"1", b"2", b"rival"]

    simulate(scenario, nodes=5, copies=3)


async def an_old_sequencer_is_asked(cluster: ClusterAtHand, with_producer: bool = False) -> None:
    async with cluster.client(timeout_s=20) as one:
        await one.append("log", b"1")
        old = cluster.sequencer_of(LOG)
        cut_off(cluster, f"node-{old}")
        network = cluster.simulation.network
        network.partition([f"node-{old}"], ["client-2"])
        async with cluster.client(timeout_s=20) as two:
            tail = await two.append("log", b"2", producer=Producer(7))
            if with_producer:  # goes on where `two` stopped
                call = one.append("log", b"3", producer=Producer(7, 0, {LOG: 1}))
            else:
                call = one.append("log", b"3", expected_tail=tail)
            third = asyncio.ensure_future(call)
            await asyncio.sleep(0.05)
            network.mend_all()
            await third
            assert await values(two, "log") == [b"1", b"2", b"3"]


def test_an_old_sequencer_does_not_say_that_the_tail_moved() -> None:
    """It was cut off, and its own last record was below the one that its successor had stored. So
    an append that expected the right tail was refused for good."""
    simulate(an_old_sequencer_is_asked, nodes=5, copies=3)


def test_an_old_sequencer_does_not_say_that_a_producer_is_unknown() -> None:
    simulate(lambda cluster: an_old_sequencer_is_asked(cluster, True), nodes=5, copies=3)


def test_the_planted_bug_of_an_old_sequencer_is_caught() -> None:
    with planted(find_bug("old-sequencer-knows")), pytest.raises(UnknownProducer):
        simulate(lambda cluster: an_old_sequencer_is_asked(cluster, True), nodes=5, copies=3)
    with planted(find_bug("old-sequencer-knows")), pytest.raises(TailMoved):
        simulate(an_old_sequencer_is_asked, nodes=5, copies=3)


async def another_append_follows(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as store, cluster.client(timeout_s=20) as other:
        await store.append("log", b"1")
        tail = await store.append("log", b"2")
        cluster.kill(cluster.sequencer_of(LOG))
        await asyncio.sleep(0.5)  # the client's connection has ended
        calls = (
            store.append("log", b"3", expected_tail=tail),
            store.append("log", b"4"),
            store.append_many("log", [b"5", b"6"]),
        )
        await asyncio.gather(*calls)
        found = await values(other, "log")
        assert found == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_no_later_append_of_the_client_passes_it() -> None:
    """It waited for the recovery, which a plain append need not. So a client's own next append
    moved the tail, although the client had called in the other order."""
    simulate(another_append_follows, nodes=5, copies=3)


def test_the_planted_bug_of_a_passed_append_is_caught() -> None:
    with planted(find_bug("expected-tail-passed")), pytest.raises(TailMoved):
        simulate(another_append_follows, nodes=5, copies=3)
