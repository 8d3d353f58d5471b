"""Rebuilding beside appends and recoveries: what falls between two steps of one of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, copies, healed, lose_disk, missing, order, put_records
from swaps import swap

from cordwood.admin.replicated_events import ClusterEvents
from cordwood.block import BlockKind
from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.event_log import Holds
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.event_log import Outcome, authority_of
from cordwood.rebuilding import Aborted, Acked, NeedsRebuild, RebuildEvent
from cordwood.settings import ClientSettings, StorageSettings, TierSettings
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.copies import told_rank
from cordwood.storage.rebuild.moves import envelope_of


def is_called_empty(cluster: ClusterAtHand, node: int) -> bool:
    """Whether every other node that runs has read that a node is empty."""
    empty = Authority.AUTHORITATIVE_EMPTY
    others = [other for number, other in cluster.running.items() if number != node]
    return all(authority_of(other._rebuild.set, node) is empty for other in others)


def test_a_donor_refuses_what_names_a_drained_node_before_it_looks() -> None:
    """The order goes to every donor, so each knows of it before it reads the member list again."""
    leaves = 5

    async def scenario(cluster: ClusterAtHand) -> None:
        is_over = False

        async def load(store: Store, log: str) -> None:
            while not is_over:
                await store.append(log, b"value")
                await asyncio.sleep(0.02)

        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, asyncio.TaskGroup() as tasks:
            for log in ("log-1", "log-2", "log-3"):
                tasks.create_task(load(store, log))
            await asyncio.sleep(1)
            for number in (1, 2, 3, 4):
                call = SayRebuild(leaves, RebuildOrder.DRAIN)
                tasks.create_task(cluster.running[number]._rebuild.answer(call))
            await asyncio.sleep(3)
            is_over = True
        await until(lambda: is_called_empty(cluster, leaves))
        found = await copies(cluster)
        assert len(found) > 100
        assert [place for place, nodes in found.items() if len(nodes.keys() - {leaves}) < 3] == []

    simulate(scenario, nodes=5)


@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("bug", ["", "left-out-unasked"])
def test_a_node_gives_that_the_writer_of_the_event_did_not_know(drain: bool, bug: str) -> None:
    """Node 6 joined while node 1 was cut off from the metadata store. Then node 1 reported node 3,
    with the members that it knew, and node 6 was no donor."""
    leaves, comes, logs = 3, 6, 8

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=20)
        # After its start a node looks once for moves that it noted, if there ever were any.
        await order(cluster, 2, RebuildOrder.DRAIN)
        await order(cluster, 2, RebuildOrder.UNDRAIN)
        cluster.add_nodes(1)
        cluster.weights[comes] = 8.0
        await cluster.start(comes)
        async with cluster.client(timeout_s=30) as store:
            for number in range(66):  # new epochs take the new node after a minute
                for log in range(1, logs + 1):
                    await store.append(f"log-{log}", b"%d" % number)
                await asyncio.sleep(1)
        places = [
            place for place, on in (await copies(cluster)).items() if {leaves, comes} <= on.keys()
        ]
        assert places, "some blocks have no copies elsewhere"
        if not drain:
            cluster.kill(leaves)
        await cluster.running[1]._rebuild._say(NeedsRebuild(leaves, (1, 2, 3, 4, 5), drain=drain))
        await until(lambda: is_called_empty(cluster, leaves), timeout_s=300)
        found = await copies(cluster)
        few = {place for place, on in found.items() if len(on.keys() - {leaves}) < 2}
        # A recovery of a log may have given some of its blocks new copies meanwhile.
        assert few <= set(places)
        assert bool(few) is bool(bug)

    with planted(find_bug(bug)) if bug else nullcontext():
        simulate(scenario, nodes=5, copies=2)


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
def test_a_node_that_joins_during_a_rebuilding_and_dies_does_not_keep_it_from_its_end(
    replicated: bool,
) -> None:
    """It became a donor although it had nothing to give, and was dead. Half of the nodes were away
    then, so nobody reported its loss."""
    leaves, comes = 3, 4

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            for number in range(300):
                value = random.Random(number).randbytes(20_000)
                await store.append(f"log-{number % 8}", value)
        cluster.kill(leaves)
        cluster.add_nodes(1)
        await call_lost(cluster, leaves)
        await cluster.start(comes)
        await until(lambda: all(comes in cluster.running[each]._members for each in (1, 2)))
        cluster.kill(comes)
        assert not is_called_empty(cluster, leaves)
        await until(lambda: is_called_empty(cluster, leaves), timeout_s=600)

    simulate(
        scenario, nodes=3, copies=2, rebuild_after_s=30.0, replicated_events=replicated,
        storage=StorageSettings(rebuild_bytes_s=65_536),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
def test_an_epoch_that_ends_between_the_seals_and_the_ack_of_a_node_stays_ended(
    monkeypatch: pytest.MonkeyPatch, replicated: bool
) -> None:
    """The sequencer of the epoch is cut off together with the node that is let in empty. The
    others end the epoch without both, while the ack is on its way."""
    log = 1
    acks, goes_on = asyncio.Event(), asyncio.Event()
    right = ClusterEvents.say

    async def say(self: ClusterEvents, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        if isinstance(event, Acked):
            acks.set()
            await goes_on.wait()
        return await right(self, event, holds)

    async def retried(store: Store, value: bytes) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    await store.append("log-1", value)
                except CordwoodError:
                    await asyncio.sleep(1)
                else:
                    return

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1, records=5)
        old = cluster.sequencer_of(log)
        comes = next(node for node in (5, 4) if node != old)
        others = [node for node in cluster.numbers if node not in (old, comes)]
        lose_disk(cluster, comes)
        await call_lost(cluster, comes)
        await until(lambda: is_called_empty(cluster, comes))
        cluster.keep_starting(comes)
        await acks.wait()
        address = dict(zip(cluster.numbers, cluster.addresses, strict=True))
        near, far = cluster.client_host(), cluster.client_host()  # client-2 and client-3
        settings, opener = ClientSettings(timeout_s=30), cluster.open_objects
        async with (
            connected((address[old],), near, settings, opener) as beside_old,
            connected([address[node] for node in others], far, settings, opener) as beside_others,
        ):
            await beside_old.append("log-1", b"before")
            cluster.simulation.network.partition(
                [f"node-{old}", f"node-{comes}", "client-2"],
                [*(f"node-{node}" for node in others), "client-3"],
            )
            await retried(beside_others, b"new")
            # The old one, which is cut off, does not know yet that it was replaced.
            assert any(log in cluster.running[node].sequencing for node in others)
            await until(lambda: any(
                cluster.running[node].engine.cache.log(log).readable >> 32 > 1 for node in others
            ))  # fmt: skip
            goes_on.set()
            appended = asyncio.create_task(beside_old.append("log-1", b"late"))
            await asyncio.wait([appended], timeout=20)
            cluster.simulation.network.mend_all()
            is_acked = (await asyncio.gather(appended, return_exceptions=True))[0]
        async with cluster.client() as store:
            found = await values(store, "log-1")
        assert not isinstance(is_acked, int) or b"late" in found
        assert found.index(b"before") < found.index(b"new")
        assert b"late" not in found[: found.index(b"new")]

    swap(monkeypatch, ClusterEvents.say, say)
    simulate(scenario, nodes=5, copies=2, replicated_events=replicated)


@pytest.mark.slow
def test_nodes_that_begin_anew_know_what_lies_in_main_storage() -> None:
    """Every disk is lost once, each after the last one was made anew."""

    async def scenario(cluster: ClusterAtHand) -> None:
        tiered = LogAttributes(tier=True, local_retention=5, tier_after_s=1)
        written = [b"%d " % number + bytes(400) for number in range(30)]
        async with cluster.client(timeout_s=30) as store:
            await store.create_log("log", attributes=tiered)
            for value in written:
                await store.append("log", value)
                await asyncio.sleep(0.2)
        await until(lambda: all(not n.engine.logs.stored_bytes for n in cluster.running.values()))
        for node in cluster.numbers:
            lose_disk(cluster, node)
            await call_lost(cluster, node)
            cluster.keep_starting(node)
            await healed(cluster)
        async with cluster.client() as store:
            assert await values(store, "log") == written
            assert not await store.is_empty("log")

    simulate(
        scenario, nodes=4, copies=2, tier=TierSettings(BUCKET, look_s=1.0),
        storage=StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("owes", [True, False])
def test_a_node_that_dies_between_its_word_and_its_second_seals_seals_at_its_next_start(
    monkeypatch: pytest.MonkeyPatch, owes: bool, replicated: bool
) -> None:
    """It said that it is back, so recoveries wait for it again; epochs that ended without it are
    sealed before it takes a store. Without the note in the member list they would not be."""
    back = 2
    slow = StorageSettings(rebuild_bytes_s=2000)  # it is back before its data is made anew
    right = ClusterEvents.say

    async def scenario(cluster: ClusterAtHand) -> None:
        died: list[int] = []

        async def dies(
            self: ClusterEvents, event: RebuildEvent, holds: Holds | None = None
        ) -> Outcome:
            outcome = await right(self, event, holds)
            if isinstance(event, Aborted) and not died:
                died.append(event.node)
                cluster.machine(event.node).kill()
            return outcome

        await put_records(cluster)
        cluster.kill(back)
        await call_lost(cluster, back)
        swap(monkeypatch, ClusterEvents.say, dies)
        cluster.start_once(back)
        await until(lambda: bool(died))
        assert back not in cluster.running
        epochs = EpochStore(cluster.metadata)
        before = await epochs.newest()
        # Every sequencer starts anew: epochs end and begin while the node is away.
        for node in [n for n in cluster.numbers if n != back and cluster.running[n].sequencing]:
            cluster.kill(node)
            await cluster.start(node)
            await put_records(cluster, records=1)
        newest = await epochs.newest()
        assert newest != before
        await cluster.start(back)
        engine = cluster.running[back].engine
        assert all(engine.sealed(log) >= epoch for log, epoch in newest.items()) is owes

    with nullcontext() if owes else planted(find_bug("seals-not-owed")):
        simulate(scenario, nodes=5, storage=slow, replicated_events=replicated)


def test_a_donor_that_is_lost_amid_two_moves_of_a_block_leaves_nobody_stuck() -> None:
    """It moved the block for a node that was drained, was overtaken by the next order before it had
    told all, and began a second move. Each copy looks left over to the others then."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1, records=20)
        await asyncio.sleep(2)
        donor = next(iter((await copies(cluster)).values())).popitem()[1][0]
        moves = cluster.running[donor]._rebuild._donor._moves
        torn = 0
        for block in await held_blocks(cluster.running[donor].engine, 1):
            copyset, rank = block.envelope.copyset, told_rank(block.envelope)
            if copyset[0] != donor or block.header.kind is not BlockKind.DATA:
                continue
            one, other = copyset[1:]
            fresh = next(node for node in cluster.numbers if node not in copyset)
            first = envelope_of(block, (donor, one, fresh), rank + 2)
            second = envelope_of(block, (donor, other, fresh), rank + 4)
            assert not await moves._send(fresh, [(block, first)], amends=False)
            assert not await moves._send(NodeId(other), [(block, second)], amends=True)
            torn += 1
        assert torn
        lose_disk(cluster, donor)
        await call_lost(cluster, donor)
        cluster.keep_starting(donor)
        await healed(cluster, timeout_s=60)
        assert not await missing(cluster)
        async with cluster.client() as store:
            assert len(await values(store, "log-1")) == 20

    simulate(scenario, nodes=5)
