"""Bugs of the auto-recovery of ledgers: each scene holds, and with its bug planted it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk, order
from rebuild_scene import lost as lost_nodes
from swaps import swap, swap_value
from test_ledger_autorecovery_cluster import (
    E3,
    UNFLUSHED,
    marked,
    payloads,
    until_settled_whole,
    until_whole,
)

from cordwood.admin import ledger_autorecovery
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_repair import LedgerRepair
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.errors import LedgerFenced, OutcomeUnknown, Rejected, TooFewNodes
from cordwood.layout.message_ledgers import LacReply
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_autorecovery import Mark
from cordwood.quorum.ensemble_choice import Placement
from cordwood.sim.planted import PlantedBug, planted
from cordwood.sim.planted.ledger_repairs import BUGS

WHOLE_S = 200
"""Some looks for marks, and the grace of an open ledger."""

DAY_US = 86_400_000_000

TWO_RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}

Scene = Callable[[ClusterAtHand], Awaitable[None]]


async def a_node_is_lost(cluster: ClusterAtHand) -> None:
    """A closed ledger names it in its first fragment, an open one has gone on elsewhere."""
    async with cluster.client() as store:
        closed, lives = [await store.ledgers.create(**E3) for _ in range(2)]
        lost = closed.metadata.newest.nodes[0]
        assert lost in lives.metadata.newest.nodes
        for made in (closed, lives):
            await made.append_many(payloads(20))
        lose_disk(cluster, lost)
        for made in (closed, lives):
            await made.append_many(payloads(20))
            await asyncio.sleep(10)  # the lost node is found out
            await made.append_many(payloads(20))
            assert lost not in made.metadata.newest.nodes
        await closed.close()
        await call_lost(cluster, lost)
        await until(lambda: bool(cluster.metadata.data.listed("ledger-marks/")), timeout_s=WHOLE_S)
        await until_whole(cluster, store, closed.ledger_id, timeout_s=WHOLE_S)
        found = await store.ledgers.metadata(closed.ledger_id)
        assert all(lost not in each.nodes for each in found.fragments)
        # The older fragments of the open ledger are repaired, and its writer goes on.
        await until_settled_whole(cluster, store, lives.ledger_id, timeout_s=WHOLE_S)
        found = await store.ledgers.metadata(lives.ledger_id)
        assert found.state is LedgerState.OPEN
        assert all(lost not in each.nodes for each in found.fragments)
        assert await lives.append(b"more") == 60
        assert await marked(cluster) == []


async def a_node_is_back_before_anybody_looks(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        await made.close()
        lost = made.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        cluster.keep_starting(lost)
        await until(lambda: lost in cluster.running, timeout_s=25)
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)


async def a_second_node_is_lost_meanwhile(cluster: ClusterAtHand) -> None:
    marks = LedgerMarks(cluster.metadata)
    await marks.add(Mark(7, (1,), 5))
    before = await marks.get(7)
    assert before is not None
    await marks.add(Mark(7, (2,), 6))
    await marks.finish(7, before[1])
    found = await marks.get(7)
    assert found is not None
    assert found[0].nodes == (1, 2)


async def a_node_lost_entries_without_a_word(cluster: ClusterAtHand) -> None:
    """One at the end of a fragment, which a sample looks at, and one between."""
    async with cluster.client() as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        await made.close()
        node = made.metadata.newest.nodes[1]
        held = cluster.running[NodeId(node)].engine.ledgers.held[made.ledger_id]
        del held.entries[0], held.entries[10]
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)


async def a_repair_has_nodes_of_one_rack_alone(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(
            ensemble=2, write=2, ack=2, placement=Placement(is_enforced=True)
        )
        await made.append_many(payloads(3))
        await made.close()
        lost, other = made.metadata.newest.nodes
        for node in {1, 2, 3, 4} - {lost, other}:
            if (node in (1, 2)) == (lost in (1, 2)):
                cluster.kill(node)
        await asyncio.sleep(30)  # until it is known to be dead
        with pytest.raises(TooFewNodes):
            await store.ledgers.repair(made.ledger_id, nodes=[lost])


async def a_ledger_takes_longer_than_a_repair_without_progress(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(**E3)
        for _ in range(10):
            await made.append_many(payloads(1000))
        await made.close()
        lost = made.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        with pytest.MonkeyPatch.context() as patched:
            swap_value(patched, lambda: ledger_autorecovery.REPAIR_S, 0.04)
            await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)


async def two_fragments_have_their_others_in_two_racks(cluster: ClusterAtHand) -> None:
    """Of three racks: a node that is right in the one may be in the rack of the other's node."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for node in (5, 6):
        cluster.locations[NodeId(node)] = racks[node]
    cluster.add_nodes(2)
    await cluster.start(5, 6)
    async with cluster.client() as store:
        for _ in range(12):
            made = await store.ledgers.create(
                ensemble=2, write=2, ack=2, placement=Placement(is_enforced=True)
            )
            await made.append(b"x")
            lost, other = made.metadata.newest.nodes
            third = next(n for n in racks if racks[n] not in (racks[lost], racks[other]))
            # What a writer leaves that put a third node in the place of the second one.
            opened = await store.ledgers.open(made.ledger_id)
            changed = opened.metadata.with_ensemble(1, (lost, third)).closed(0, 1)
            await LedgerMetadataCalls.set(store.ledgers._calls, opened.held.version, changed)
            await store.ledgers.repair(made.ledger_id, nodes=[lost])
            check = await store.ledgers.check(made.ledger_id)
            assert (check.narrow, check.is_whole) == ([], True)


async def a_node_loses_its_disk_between_its_copies_and_its_name(
    cluster: ClusterAtHand, ledger: int, work: Callable[[], Awaitable[object]]
) -> None:
    """A repair or a recovery copies to a node, which begins anew before a fragment names it."""
    right = LedgerMetadataCalls.set
    before = {*range(1, 5)} - {*cluster.running}
    hit: set[int] = set()

    async def set_late(
        self: LedgerMetadataCalls, version: int, metadata: LedgerMetadata
    ) -> tuple[Versioned, bool]:
        is_end = metadata.ledger == ledger and metadata.state is LedgerState.CLOSED
        if is_end and not hit and not {*metadata.newest.nodes} & before:
            (spare,) = {*range(1, 5)} - {*first}
            hit.add(spare)
            lose_disk(cluster, spare)
            await call_lost(cluster, spare)
            for node in (spare, *before):
                cluster.keep_starting(node)
            await until(lambda: spare in cluster.running and spare not in lost_nodes(cluster))
        return await right(self, version, metadata)

    found = await LedgerMetadataStore(cluster.metadata).get(ledger)
    assert found is not None
    first = found.metadata.newest.nodes
    with pytest.MonkeyPatch.context() as patched:
        swap(patched, LedgerMetadataCalls.set, set_late)
        await work()
    assert hit
    found = await LedgerMetadataStore(cluster.metadata).get(ledger)
    assert found is not None
    assert {*found.metadata.newest.nodes} >= hit


async def a_node_of_a_repair_loses_its_disk(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=120) as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        await made.close()
        away = made.metadata.newest.nodes[0]
        cluster.kill(away)
        await asyncio.sleep(5)
        await a_node_loses_its_disk_between_its_copies_and_its_name(
            cluster, made.ledger_id, lambda: store.ledgers.repair(made.ledger_id, nodes=[away])
        )
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)
        assert (await store.ledgers.metadata(made.ledger_id)).joining == ()


async def a_node_of_a_recovery_loses_its_disk(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=120) as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        await made.append_many(payloads(20))
        made.abandon()
        cluster.kill(made.metadata.newest.nodes[0])
        await asyncio.sleep(5)
        await a_node_loses_its_disk_between_its_copies_and_its_name(
            cluster, made.ledger_id, lambda: store.ledgers.recover(made.ledger_id)
        )
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)


async def a_writer_goes_on_elsewhere_before_a_check_hears_its_lac(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client() as other:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads(10))
        right = ReadableLedger._ask_lac
        moves = asyncio.Lock()

        async def ask_late(self: ReadableLedger, *args: Any) -> LacReply | None:
            async with moves:
                if len(cluster.running) == 4 and len(made.metadata.fragments) == 1:
                    cluster.kill(made.metadata.newest.nodes[0])
                    for number in range(20):
                        await made.append(b"more %d" % number)
                        await asyncio.sleep(0.3)
                    await cluster.start(*{*cluster.numbers} - {*cluster.running})
            return await right(self, *args)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, ReadableLedger._ask_lac, ask_late)
            check = await other.ledgers.check(made.ledger_id)
        assert len(made.metadata.fragments) == 2
        assert (check.is_whole, check.last, check.copies) == (True, 29, 60)


async def a_node_is_drained_whose_ledgers_are_written(cluster: ClusterAtHand) -> None:
    """It is up, and would take entries for ever."""
    async with cluster.client() as store:
        made = await store.ledgers.create(**E3)
        drained = made.metadata.newest.nodes[0]
        await order(cluster, drained, RebuildOrder.DRAIN)
        for number in range(120):
            assert await made.append(b"entry %d" % number) == number
            await asyncio.sleep(1)
        assert drained not in made.metadata.newest.nodes
        await made.close()
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)
        found = await store.ledgers.metadata(made.ledger_id)
        assert found.last == 119
        assert all(drained not in each.nodes for each in found.fragments)


async def a_drain_takes_long(cluster: ClusterAtHand) -> None:
    """Closed ledgers leave the node meanwhile. The writer of an open ledger goes on there, and is
    not shut out."""
    async with cluster.client() as store:
        closed = await store.ledgers.create(ensemble=2, write=2, ack=2)
        drained = closed.metadata.newest.nodes[0]
        lives = closed
        while lives is closed or drained not in lives.metadata.newest.nodes:
            lives = await store.ledgers.create(ensemble=2, write=2, ack=2)
        for made in (closed, lives):
            await made.append_many(payloads(20))
        await closed.close()
        used = {*closed.metadata.newest.nodes, *lives.metadata.newest.nodes}
        away = next(node for node in sorted(cluster.running) if node not in used)
        cluster.kill(away)  # it has to give, so the drain waits for it
        await order(cluster, drained, RebuildOrder.DRAIN)
        async with asyncio.timeout(WHOLE_S):
            while drained in (await store.ledgers.metadata(closed.ledger_id)).newest.nodes:  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(2)
        await asyncio.sleep(100)  # looks, and the grace of an open ledger
        (entry,) = (await store.rebuilding(donors=False)).lost
        assert not entry.is_empty
        assert await lives.append(b"more") == 20
        assert drained in lives.metadata.newest.nodes
        assert await marked(cluster) == []
        await lives.close()
        await until_whole(cluster, store, closed.ledger_id, timeout_s=WHOLE_S)


async def a_ledger_is_larger_than_a_wal(cluster: ClusterAtHand) -> None:
    """Its copies fill the node that gets them, faster than that flushes."""
    async with cluster.client() as store:
        made = await store.ledgers.create(**E3)
        for _ in range(30):
            await made.append_many([bytes(20_000)] * 50)
        await made.close()
        lost = made.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        async with asyncio.timeout(WHOLE_S):
            while lost in (await store.ledgers.metadata(made.ledger_id)).newest.nodes:  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(2)
        check = await store.ledgers.check(made.ledger_id)
        assert (check.is_whole, check.copies) == (True, 4500)


async def a_node_restarts_before_it_is_named_in_a_changed_ledger(cluster: ClusterAtHand) -> None:
    """Another client changed the ledger meanwhile. So nobody knows whether the node joined all the
    time, and whether it would have been marked if its disk had been lost."""
    async with cluster.client(timeout_s=60) as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        before = made.metadata.newest.nodes
        (spare,) = {*range(1, 5)} - {*before}
        cluster.kill(before[0])
        await made.append_many(payloads(20))
        await asyncio.sleep(10)
        await made.append_many(payloads(20))
        assert spare in made.metadata.newest.nodes
        right, hit = LedgerMetadataCalls.set, [False, True]

        async def set_late(
            self: LedgerMetadataCalls, version: int, metadata: LedgerMetadata
        ) -> tuple[Versioned, bool]:
            if spare in metadata.fragments[0].nodes and hit:
                if hit.pop():
                    cluster.kill(spare)
                    await cluster.start(spare)
                found = await self.get(made.ledger_id)
                await right(self, found.version, found.metadata.with_joining(before[0]))
            return await right(self, version, metadata)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataCalls.set, set_late)
            with pytest.raises(Rejected, match="meanwhile"):
                await store.ledgers.repair(made.ledger_id, nodes=[before[0]], older=True)
            # This time the node runs on, and the change of the other client stays.
            moved = await store.ledgers.repair(made.ledger_id, nodes=[before[0]], older=True)
        assert (moved, hit) == ({before[0]: spare}, [])
        assert spare in (await store.ledgers.metadata(made.ledger_id)).fragments[0].nodes


async def another_repair_names_the_node_first(cluster: ClusterAtHand) -> None:
    """Two repairs fill two places of a fragment. Both choose the only free node."""
    async with cluster.client(timeout_s=60) as store, cluster.client(timeout_s=60) as other:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        before = made.metadata.newest.nodes
        (spare,) = {*range(1, 5)} - {*before}
        cluster.kill(before[0])
        await made.append_many(payloads(20))
        await asyncio.sleep(10)
        await made.append_many(payloads(20))
        right, others = LedgerMetadataCalls.set, [other]

        async def set_late(
            self: LedgerMetadataCalls, version: int, metadata: LedgerMetadata
        ) -> tuple[Versioned, bool]:
            if spare in metadata.joining and others:
                await others.pop().ledgers.repair(made.ledger_id, nodes=[before[0]], older=True)
            return await right(self, version, metadata)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataCalls.set, set_late)
            with pytest.raises(Rejected, match="meanwhile"):
                await store.ledgers.repair(made.ledger_id, nodes=[before[1]], older=True)
        found = await store.ledgers.metadata(made.ledger_id)
        assert found.fragments[0].nodes == (spare, *before[1:])


async def a_node_loses_its_disk_and_another_repair_names_it(cluster: ClusterAtHand) -> None:
    """A worker has looked for lost places already when another repair names the node."""
    cluster.add_nodes(1)
    await cluster.start(5)
    async with cluster.client(timeout_s=300) as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        before = made.metadata.newest.nodes
        cluster.kill(before[0])
        await made.append_many(payloads(20))
        await asyncio.sleep(10)
        await made.append_many(payloads(20))
        newest = made.metadata.newest.nodes
        (spare,) = {*range(1, 6)} - {*before, *newest}
        (away,) = {*newest} - {*before}
        # The only node that the repair can choose is then one that the writer does not write to.
        cluster.kill(away)
        # The node is back, and has marked the ledger, before a worker looks.
        await store.ledgers.switch_autorecovery(on=False)
        await asyncio.sleep(5)
        set_now, end_now = LedgerMetadataCalls.set, LedgerRepair._end
        has_looked, is_named = asyncio.Event(), asyncio.Event()

        async def set_late(
            self: LedgerMetadataCalls, version: int, metadata: LedgerMetadata
        ) -> tuple[Versioned, bool]:
            if spare in metadata.fragments[0].nodes and not has_looked.is_set():
                lose_disk(cluster, spare)
                await cluster.start(before[0], away)
                await call_lost(cluster, spare)
                cluster.keep_starting(spare)
                await until(lambda: spare in cluster.running and spare not in lost_nodes(cluster))
                await store.ledgers.switch_autorecovery(on=True)
                await has_looked.wait()
            return await set_now(self, version, metadata)

        async def end_late(self: LedgerRepair) -> Versioned:
            if not is_named.is_set() and self._opened.metadata.fragments[0].nodes == before:
                has_looked.set()
                await is_named.wait()
            return await end_now(self)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataCalls.set, set_late)
            swap(patched, LedgerRepair._end, end_late)
            moved = asyncio.ensure_future(
                store.ledgers.repair(made.ledger_id, nodes=[before[0]], older=True)
            )
            async with asyncio.timeout(200):
                await has_looked.wait()
            assert await moved == {before[0]: spare}
            is_named.set()
        await until_settled_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)
        assert await made.append(b"more") == 60


async def a_member_is_back_before_the_writer_names_it_once_more(cluster: ClusterAtHand) -> None:
    """A writer replaces another member, and does not know that this one lost its disk and is back.
    The new fragment has an entry that the member acknowledged before its loss. The writer ends."""
    async with cluster.client(timeout_s=60) as store:
        made = await store.ledgers.create(**E3)
        await made.append_many(payloads(20))
        lost, away, _ = made.metadata.newest.nodes
        right = LedgerMetadataCalls.set

        async def set_late(
            self: LedgerMetadataCalls, version: int, metadata: LedgerMetadata
        ) -> tuple[Versioned, bool]:
            if len(cluster.running) == 3:
                await asyncio.sleep(1)  # both other members acknowledge the entry
                lose_disk(cluster, lost)
                await cluster.start(away)
                await call_lost(cluster, lost)
                cluster.keep_starting(lost)
                await until(lambda: lost in cluster.running and lost not in lost_nodes(cluster))
                assert await marked(cluster) == [made.ledger_id]
            return await right(self, version, metadata)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataCalls.set, set_late)
            cluster.kill(away)
            assert await made.append(b"entry 20") == 20
        made.abandon()
        found = await store.ledgers.metadata(made.ledger_id)
        assert (len(found.fragments), found.state) == (2, LedgerState.OPEN)
        assert lost in found.newest.nodes
        await until_whole(cluster, store, made.ledger_id, timeout_s=WHOLE_S)
        opened = await store.ledgers.open(made.ledger_id)
        assert [each.payload for each in await opened.read(0, 20)] == payloads(21)


async def a_mark_is_from_a_clock_that_is_ahead(cluster: ClusterAtHand) -> None:
    """The clock of the auditor is a day ahead, whichever node that is, and is then set right."""
    async with cluster.client() as store:
        left = await store.ledgers.create(**E3)
        await left.append_many(payloads(20))
        left.abandon()
        lost = left.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        clocks = [cluster.machine(node).clock for node in cluster.running]
        for clock in clocks:
            clock.step(DAY_US)
        await call_lost(cluster, lost)
        await until(lambda: bool(cluster.metadata.data.listed("ledger-marks/")), timeout_s=WHOLE_S)
        for clock in clocks:
            clock.step(-DAY_US)
        await until_whole(cluster, store, left.ledger_id, timeout_s=WHOLE_S)


SCENES: dict[str, Scene] = {
    "ledger-repair-last-fragment": a_node_is_lost,
    "ledger-repair-unmarked": a_node_is_back_before_anybody_looks,
    "ledger-repair-grown-mark": a_second_node_is_lost_meanwhile,
    "ledger-repair-shuts-out": a_node_is_lost,
    "ledger-repair-names-first": a_node_is_lost,
    "ledger-repair-forgets": a_second_node_is_lost_meanwhile,
    "ledger-repair-anywhere": a_repair_has_nodes_of_one_rack_alone,
    "ledger-repair-same-node": two_fragments_have_their_others_in_two_racks,
    "ledger-repair-gives-up": a_ledger_takes_longer_than_a_repair_without_progress,
    "ledger-repair-waits-for-no-flush": a_ledger_is_larger_than_a_wal,
    "ledger-repair-drained-stays": a_node_is_drained_whose_ledgers_are_written,
    "ledger-repair-drain-unmarked": a_drain_takes_long,
    "ledger-repair-copies-first": a_node_of_a_repair_loses_its_disk,
    "ledger-repair-of-another-run": a_node_restarts_before_it_is_named_in_a_changed_ledger,
    "ledger-repair-named-twice": another_repair_names_the_node_first,
    "ledger-repair-misses-others": a_node_loses_its_disk_and_another_repair_names_it,
    "ledger-repair-forgets-fences": a_member_is_back_before_the_writer_names_it_once_more,
    "ledger-repair-mark-ahead": a_mark_is_from_a_clock_that_is_ahead,
    "ledger-recovery-copies-first": a_node_of_a_recovery_loses_its_disk,
    "ledger-check-metadata-first": a_writer_goes_on_elsewhere_before_a_check_hears_its_lac,
    "ledger-check-believes": a_node_lost_entries_without_a_word,
    "ledger-check-ends-alone": a_node_lost_entries_without_a_word,
    "ledger-check-fills-nothing": a_node_lost_entries_without_a_word,
}

CAUGHT = (
    AssertionError, TimeoutError, ValueError, LedgerFenced, OutcomeUnknown, pytest.fail.Exception,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("scene", [*dict.fromkeys(SCENES.values())], ids=lambda s: s.__name__)
def test_the_scene_holds(scene: Scene) -> None:
    simulate(scene, nodes=4, storage=UNFLUSHED, locations=TWO_RACKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name in SCENES], ids=lambda bug: bug.name
)
def test_the_scene_catches_the_bug(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    if SCENES[bug.name] is not a_node_lost_entries_without_a_word:
        # A check would mend what a repair left out, before anybody looks.
        swap_value(monkeypatch, lambda: ledger_autorecovery.CHECKED_A_LOOK, 0)
    with planted(bug), pytest.raises(CAUGHT):
        simulate(SCENES[bug.name], nodes=4, storage=UNFLUSHED, locations=TWO_RACKS)
