"""Whole clusters with a replicated event log: the move there, starts, losses, one order."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, read_all, say_of_dead, simulate, until, values
from crc32c import crc32c
from rebuild_scene import call_lost, healed, lose_disk, lost, missing, order, put_records
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.client.admin.nodes import ASK_EACH_S
from cordwood.client.store import Store
from cordwood.errors import (
    AccessDenied,
    Corrupt,
    NotOurCluster,
    OutcomeUnknown,
    Retryable,
    Unreachable,
)
from cordwood.layout.message_rebuilding import AskRebuilding, RebuildOrder
from cordwood.layout.message_staging import AskStaged, FindStaged, PinStaged, StageBlock
from cordwood.layout.rebuild_events import Base, read_record, read_set
from cordwood.lsn import EVENT_LOG, Lsn
from cordwood.metadata.event_log import LSN_BELOW, StoredEventLog
from cordwood.nodes import Authority, NodeId
from cordwood.protocol import event_log_follower
from cordwood.protocol.event_log import Verdict
from cordwood.rebuilding import Aborted, DonorProgress, IsRebuilt, NeedsRebuild, RebuildingSet
from cordwood.sequencer import appender
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.stored_tree import StoredTree

EVERY = (1, 2, 3, 4, 5)


def moved(cluster: ClusterAtHand) -> bool:
    return all(node._events.has_moved for node in cluster.running.values())


def sets(cluster: ClusterAtHand) -> list[RebuildingSet]:
    return [node._rebuild.set for node in cluster.running.values()]


async def heard(cluster: ClusterAtHand, *wanted: int) -> None:
    """Every node that runs knows that these are lost, and no others."""
    await until(
        lambda: all({e.node for e in each.lost} == {*wanted} for each in sets(cluster)),
        timeout_s=30,
    )


async def base_of(cluster: ClusterAtHand) -> RebuildingSet | None:
    found = await StoredEventLog(cluster.metadata).read_base()
    return found.set if found is not None else None


# Moving.


@as_scenario(simulate, nodes=6, replicated_events=False)
async def test_events_move_into_the_log_once_and_go_on_from_what_was_said(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await order(cluster, 5, RebuildOrder.DRAIN)
    await until(lambda: lost(cluster) == {5})
    before = cluster.running[1]._rebuild.set
    assert await base_of(cluster) is None
    cluster.replicate_events()
    await cluster.stop(1)
    await cluster.start(1)
    await until(lambda: moved(cluster))  # the others too, whose setting is another one
    base = await base_of(cluster)
    assert base is not None
    assert base.through >= before.through
    await order(cluster, 5, RebuildOrder.UNDRAIN)
    await heard(cluster)
    versions = {each.version for each in sets(cluster)}
    assert len(versions) == 1
    assert versions.pop() > LSN_BELOW > before.version
    assert len({each.through for each in sets(cluster)}) == 1


def test_a_rolling_upgrade_moves_once_the_last_node_runs_this_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that cannot read the log would go on by its last set, and others by the log."""
    older = {*EVERY}
    right = StoredEventLog.note_follower

    async def said(self: StoredEventLog, node: NodeId, incarnation: int) -> None:
        if node not in older:
            await right(self, node, incarnation)

    async def restart(cluster: ClusterAtHand, number: int) -> None:
        await cluster.stop(number)
        await cluster.start(number)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        lose_disk(cluster, 5)
        await call_lost(cluster, 5)
        cluster.keep_starting(5)
        for number in (1, 2, 3, 4):
            older.discard(number)
            await restart(cluster, number)
            await asyncio.sleep(8)
            assert await base_of(cluster) is None
        await healed(cluster)
        # One goes back to the older version as the last one is upgraded.
        older.add(4)
        await restart(cluster, 4)
        older.discard(5)
        await restart(cluster, 5)
        await asyncio.sleep(20)
        assert await base_of(cluster) is None
        await order(cluster, 2, RebuildOrder.DRAIN)
        await until(lambda: lost(cluster) == {2})
        older.discard(4)
        await restart(cluster, 4)
        await until(lambda: moved(cluster), timeout_s=60)
        base = await base_of(cluster)
        assert base is not None
        assert base.entry(2) is not None
        await order(cluster, 2, RebuildOrder.UNDRAIN)
        await heard(cluster)
        assert len({each.through for each in sets(cluster)}) == 1
        assert not await missing(cluster)

    swap(monkeypatch, StoredEventLog.note_follower, said)
    simulate(scenario, nodes=5, replicated_events=True)


def test_without_a_look_at_the_members_a_node_goes_on_by_an_older_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Node 5 runs an older version, which cannot read a base, and hears of nothing any more."""
    right = StoredEventLog.note_follower

    async def said(self: StoredEventLog, node: NodeId, incarnation: int) -> None:
        if node != 5:
            await right(self, node, incarnation)

    async def scenario(cluster: ClusterAtHand) -> None:
        await asyncio.sleep(15)
        assert await base_of(cluster) is not None

    swap(monkeypatch, StoredEventLog.note_follower, said)
    with planted(find_bug("events-moved-early")):
        simulate(scenario, nodes=5, replicated_events=True)


@as_scenario(
    simulate,
    nodes=5,
    copies=2,
    racks=2,
    locations={n: "a" if n < 5 else "b" for n in EVERY},
    replicated_events=True,
)
async def test_events_stay_where_a_lost_rack_of_one_node_leaves_the_log_no_place(
    cluster: ClusterAtHand,
) -> None:
    """Without node 5 nothing has copies in two racks: the log could not say that it is lost."""
    await asyncio.sleep(10)
    assert await base_of(cluster) is None
    cluster.add_nodes(1)
    await cluster.start(6)
    await until(lambda: moved(cluster), timeout_s=60)


@as_scenario(simulate, nodes=3, copies=1, replicated_events=True)
async def test_events_stay_where_logs_have_one_copy(cluster: ClusterAtHand) -> None:
    await asyncio.sleep(10)
    assert await base_of(cluster) is None


@as_scenario(simulate, nodes=4, replicated_events=True)
async def test_events_stay_in_the_metadata_store_of_a_cluster_that_is_too_small(
    cluster: ClusterAtHand,
) -> None:
    """Of four nodes and three copies, two lost nodes leave no place for a record that says so."""
    await asyncio.sleep(10)
    assert await base_of(cluster) is None
    cluster.add_nodes(1)
    await cluster.start(5)
    await until(lambda: moved(cluster))
    assert await base_of(cluster) is not None


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_nobody_says_anything_in_the_metadata_store_after_the_move(
    cluster: ClusterAtHand,
) -> None:
    await until(lambda: moved(cluster))
    stored = StoredEventLog(cluster.metadata)
    for call in (stored.read(), stored.known(), stored.say(Aborted(3))):
        with pytest.raises(Exception, match="in the event log, and not here"):
            await call
    first = await base_of(cluster)
    assert (await stored.move()).set == first


# Without the metadata store.


@as_scenario(simulate, nodes=5, replicated_events=True, rebuild_after_s=5.0)
async def test_a_loss_is_said_and_heard_while_the_metadata_store_is_away(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await until(lambda: moved(cluster))
    await asyncio.sleep(1)
    owner = cluster.sequencer_of(EVENT_LOG)
    busy = {owner, *map(cluster.sequencer_of, (1, 2, 3))}
    gone = next(number for number in cluster.numbers if number not in busy)
    cluster.metadata.is_out = True
    lose_disk(cluster, gone)
    await heard(cluster, gone)
    for node in cluster.running.values():
        assert node._members[gone].authority is Authority.UNAVAILABLE
        assert gone in node.engine.rebuilding
    async with asyncio.timeout(60):
        events = cluster.running[owner]._events
        version = (await events.known()).version
        told = (await events.say(DonorProgress(1, version, 5))).after
    await until(lambda: all(each.progress == told.progress for each in sets(cluster)))
    cluster.metadata.is_out = False
    cluster.keep_starting(gone)
    await healed(cluster)
    assert not await missing(cluster)


def owners(cluster: ClusterAtHand) -> set[int]:
    return {cluster.sequencer_of(log) for log in (1, 2, 3, EVENT_LOG)}


async def begin_epoch_without(cluster: ClusterAtHand, log: int, away: int) -> None:
    """The log's next epoch begins while a node is down: it is not told the nodeset."""
    cluster.kill(away)
    owner = cluster.sequencer_of(log)
    cluster.kill(owner)
    await cluster.start(owner)
    await put_records(cluster)
    await cluster.start(away)
    await until(lambda: not cluster.running[away].engine.unsure)
    await asyncio.sleep(5)  # until its sequencer counts on the node again
    await put_records(cluster)
    await asyncio.sleep(10)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_donors_make_a_node_anew_while_the_metadata_store_is_away(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """A donor that was down as an epoch began asks the other nodes for the epoch's nodeset."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        await until(lambda: moved(cluster))
        await asyncio.sleep(5)
        young = max(set(cluster.numbers) - owners(cluster))
        await begin_epoch_without(cluster, 1, young)
        engine = cluster.running[young].engine
        newest = max(block.header.last for block in await held_blocks(engine, 1))
        assert newest >> 32 > engine.nodesets(1)[0]
        gone = max(set(cluster.numbers) - owners(cluster) - {young})

        async def has_to_give() -> bool:
            """Whether the young node is the donor of a block of that epoch."""
            return any(
                block.envelope.copyset[0] == young and gone in block.envelope.copyset
                for block in await held_blocks(engine, 1)
                if block.header.first >> 32 > engine.nodesets(1)[0]
            )

        while not await has_to_give():
            await put_records(cluster)
        await asyncio.sleep(10)
        cluster.metadata.is_out = True
        lose_disk(cluster, gone)
        await heard(cluster, gone)

        def is_empty() -> bool:
            return all(entry.is_empty for each in sets(cluster) for entry in each.lost)

        if is_planted:
            with pytest.raises(TimeoutError):
                await until(is_empty, timeout_s=60)
        else:
            await until(is_empty, timeout_s=60)
        cluster.metadata.is_out = False
        cluster.keep_starting(gone)
        await healed(cluster)
        assert not await missing(cluster)

    # Copysets of their own, so that the young node is a donor.
    swap_value(monkeypatch, lambda: appender.STICKY_BYTES, 0)
    with planted(find_bug("nodesets-unheard")) if is_planted else nullcontext():
        simulate(scenario, nodes=6, replicated_events=True, rebuild_after_s=5.0)


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_a_dead_sequencer_is_replaced_before_anything_is_said(
    cluster: ClusterAtHand,
) -> None:
    """None begins while the metadata store is away, so the next event would come too late. Idle
    followers ask for the tail."""
    await until(lambda: moved(cluster))
    await asyncio.sleep(15)
    gone = cluster.sequencer_of(EVENT_LOG)
    assert gone
    cluster.kill(gone)
    await asyncio.sleep(25)
    cluster.metadata.is_out = True
    some = cluster.running[min(cluster.running)]
    said = await some._events.say(NeedsRebuild(int(gone), EVERY))
    assert said.verdict is Verdict.TAKEN
    await heard(cluster, int(gone))


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_a_question_is_answered_in_time_while_nobody_tells_the_tail(
    cluster: ClusterAtHand,
) -> None:
    await until(lambda: moved(cluster))
    await cluster.running[1]._events.say(NeedsRebuild(3, EVERY, drain=True))
    await heard(cluster, 3)
    cluster.metadata.is_out = True
    loop = asyncio.get_running_loop()
    for node in cluster.running.values():
        began = loop.time()
        reply = await node._rebuild.answer(AskRebuilding())
        assert loop.time() - began < ASK_EACH_S
        assert read_set(reply.set).entry(3) is not None
    began = loop.time()
    said = await cluster.running[2]._events.say(NeedsRebuild(3, EVERY, drain=True))
    assert said.verdict is Verdict.UNCHANGED
    assert loop.time() - began < 3


@as_scenario(simulate, nodes=5, replicated_events=True, rebuild_after_s=5.0)
async def test_its_own_sequencer_may_be_the_lost_node(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    await until(lambda: moved(cluster))
    await asyncio.sleep(1)
    for _ in range(2):
        gone = cluster.sequencer_of(EVENT_LOG)
        lose_disk(cluster, gone)
        await heard(cluster, gone)
        cluster.keep_starting(gone)
        await healed(cluster)
        assert not await missing(cluster)
    assert await values_of_all(cluster)


def nodeset(cluster: ClusterAtHand) -> set[int]:
    """Of the event log's present epoch, once those below it are recovered."""
    owner = cluster.sequencer_of(EVENT_LOG)
    found = owner and cluster.running[owner]._sequencer.sequencing()[EVENT_LOG]
    return {*found.nodeset.nodes} if found and found.is_recovered else set()


@as_scenario(simulate, nodes=6, replicated_events=True)
async def test_it_leaves_out_a_lost_node_so_that_more_may_go_and_takes_it_in_again(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await until(lambda: moved(cluster))
    await cluster.running[1]._events.say(DonorProgress(1, 0, 0))  # it has a sequencer
    await until(lambda: nodeset(cluster) == {1, 2, 3, 4, 5, 6})
    lose_disk(cluster, 6)
    await call_lost(cluster, 6)
    await until(lambda: nodeset(cluster) == {1, 2, 3, 4, 5}, timeout_s=120)
    # It stays away. Two more are down at once, of three copies: one more than without the change.
    busy = cluster.sequencer_of(EVENT_LOG)
    down = [number for number in (1, 2, 3, 4, 5) if number != busy][:2]
    for number in down:
        cluster.kill(number)
    cluster.kill(busy)
    await cluster.start(busy)
    await until(lambda: not cluster.running[busy].engine.unsure)
    found = await cluster.running[busy]._events.read()
    assert [each.node for each in found.lost] == [6]
    await cluster.start(*down)
    cluster.keep_starting(6)
    await healed(cluster)
    await until(lambda: nodeset(cluster) == {1, 2, 3, 4, 5, 6}, timeout_s=180)
    assert not await missing(cluster)


async def values_of_all(cluster: ClusterAtHand) -> bool:
    async with cluster.client() as store:
        return [len(await values(store, f"log-{n}")) for n in (1, 2, 3)] == [20, 20, 20]


# Starting.


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_a_whole_cluster_that_starts_at_once_finds_its_event_log(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await until(lambda: moved(cluster))
    lose_disk(cluster, 4)
    await call_lost(cluster, 4)
    await heard(cluster, 4)
    for node in sorted(cluster.running):
        cluster.kill(node)
    await cluster.start(1, 2, 3, 5)
    assert any(node.engine.unsure for node in cluster.running.values())
    await until(lambda: not any(node.engine.unsure for node in cluster.running.values()))
    assert lost(cluster) == {4}
    assert await values_of_all(cluster)
    cluster.keep_starting(4)
    await healed(cluster)
    assert not await missing(cluster)


@as_scenario(simulate, nodes=5, replicated_events=True)
@pytest.mark.slow
async def test_an_unsure_node_serves_nobody_and_ends_if_its_data_lies_elsewhere(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of that from the event log alone: no base was kept since, and no node answers its
    start."""

    right = StoredEventLog.note_base
    may_keep = False

    async def not_now(self: StoredEventLog, rebuilding: RebuildingSet) -> Base:
        if not may_keep:
            raise Unreachable("not now")
        return await right(self, rebuilding)

    await put_records(cluster)
    await until(lambda: moved(cluster))
    swap(monkeypatch, StoredEventLog.note_base, not_now)
    cluster.kill(2)
    await call_lost(cluster, 2)
    await until(
        lambda: all(e.is_empty for s in sets(cluster) for e in s.lost) and lost(cluster) == {2},
        timeout_s=120,
    )
    for node in sorted(cluster.running):
        cluster.kill(node)
    ends = cluster.start_once(2)
    await until(lambda: 2 in cluster.running)
    stale = cluster.running.pop(NodeId(2))
    assert stale.engine.unsure
    assert not lost(cluster), "the base says nothing of it"
    await asyncio.sleep(3)
    assert stale.engine.unsure
    assert stale._rights.may_read(1, "") is None
    # What it took it would take along: nobody makes that anew, since its loss was dealt with.
    crc, stage = crc32c(b"staged"), bytes(16)
    staged = StageBlock(stage, 1, 60_000, 1, 0, 6, crc, crc, b"staged", [2, 3, 4])
    for call in (staged, PinStaged("q", 1, [stage]), FindStaged([stage]), AskStaged(stage)):
        with pytest.raises(Retryable, match="does not know yet"):
            await stale._staging.answer(call)
    may_keep = True
    await cluster.start(1, 3, 4, 5)
    with pytest.raises(NotOurCluster, match=r"on other nodes .*`cordwood ledgers list --node 2`"):
        await ends
    cluster.machine(2).kill()
    cluster.machine(2).disk.tree = StoredTree()
    cluster.keep_starting(2)
    await healed(cluster)
    assert not await missing(cluster)
    assert await values_of_all(cluster)


# Writing.


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_those_who_race_get_one_order(cluster: ClusterAtHand) -> None:
    """Four donors end at once, and each word counts."""
    await until(lambda: moved(cluster))
    logs = {number: node._events for number, node in cluster.running.items()}
    version = (await logs[1].say(NeedsRebuild(3, EVERY))).after.version
    said = await asyncio.gather(
        *(logs[donor].say(IsRebuilt(3, donor, version)) for donor in EVERY if donor != 3)
    )
    assert {outcome.verdict for outcome in said} == {Verdict.TAKEN}
    after = await logs[2].read()
    assert after.entry(3).is_empty
    await until(lambda: all(each == after for each in sets(cluster)))
    again = await logs[2].say(NeedsRebuild(3, EVERY))
    assert again == (after, Verdict.UNCHANGED)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_word_that_arrives_late_has_no_effect_if_anything_was_said_since(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """Node 3 is back, and says so twice as its first word is not answered. It is lost again, and
    then the first word arrives."""
    right = Store.append
    late: list[asyncio.Task[Lsn]] = []
    arrives = asyncio.Event()

    async def unanswered(self: Store, log, value, **how) -> Lsn:
        async def later() -> Lsn:
            await arrives.wait()
            return await right(self, log, value, **how)

        if not late and log == EVENT_LOG and read_record(value) == Aborted(3):
            late.append(asyncio.create_task(later()))
            raise OutcomeUnknown("no answer")
        return await right(self, log, value, **how)

    async def scenario(cluster: ClusterAtHand) -> None:
        await until(lambda: moved(cluster))
        logs = {number: node._events for number, node in cluster.running.items()}
        cluster.kill(3)
        await logs[1].say(NeedsRebuild(3, EVERY))
        assert (await logs[1].say(Aborted(3))).verdict is Verdict.TAKEN
        assert late
        assert (await logs[2].say(NeedsRebuild(3, EVERY))).verdict is Verdict.TAKEN
        arrives.set()
        await asyncio.wait(late)
        assert (late[0].exception() is None) is is_planted
        found = await logs[4].read()
        assert (found.entry(3) is None) is is_planted, "nobody said that it is back this time"

    with planted(find_bug("event-tail-unchecked")) if is_planted else nullcontext():
        swap(monkeypatch, Store.append, unanswered)
        simulate(scenario, nodes=5, replicated_events=True)


# Snapshots.


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_the_log_is_trimmed_to_a_snapshot_that_others_begin_with(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(lambda: moved(cluster))
    swap_value(monkeypatch, lambda: event_log_follower.SNAPSHOT_EVERY, 5)
    events = cluster.running[1]._events
    version = (await events.say(NeedsRebuild(3, EVERY, drain=True))).after.version
    for done in range(23):
        await events.say(DonorProgress(1, version, 0, done))
        await asyncio.sleep(0.2)
    async with cluster.client() as store:
        first, *rest = await read_all(store, EVENT_LOG)
    assert isinstance(first, Gap)
    assert first.kind is GapKind.TRIM
    kinds = [isinstance(read_record(i.value), RebuildingSet) for i in rest if isinstance(i, Record)]
    assert kinds[0]
    assert len(kinds) <= 12, "of 24 events"
    # One that read nothing of it, and whose base is from before: only a snapshot has the rest.
    late = event_log_follower.EventFollower(RebuildingSet())
    late.on_gap(int(first.last), first.kind)
    for item in rest:
        if isinstance(item, Record):
            late.on_record(int(item.lsn), read_record(item.value))
    assert late.set == await events.read()


class Appended:
    """A client of the event log that takes everything."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def append(self, log: int, value: bytes, *, expected_tail: int) -> Lsn:
        self.values.append(value)
        return Lsn(expected_tail + 1)

    async def trim(self, log: int, lsn: Lsn) -> None:
        return None


def test_no_snapshot_is_taken_of_a_set_that_lacks_records_by_now() -> None:
    """It names the log's last record and lacks what came behind a loss, and all below it was
    trimmed: no node knew any more that 3 is lost."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await until(lambda: moved(cluster))
        log = cluster.running[1]._events.replicated
        follower = event_log_follower.EventFollower(RebuildingSet())
        follower.deltas = event_log_follower.SNAPSHOT_EVERY
        appended: Any = Appended()
        log._follower, log._store, log._kept = follower, appended, follower.set
        async with log._saying:
            keeping = asyncio.create_task(log.keep())
            await asyncio.sleep(0)
            follower.on_gap(follower.reached + 1, GapKind.DATA_LOSS)
            follower.on_record(follower.reached + 1, NeedsRebuild(3, EVERY))
        await keeping
        assert not appended.values

    simulate(scenario, nodes=5, replicated_events=True)


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_only_nodes_write_it(cluster: ClusterAtHand) -> None:
    await until(lambda: moved(cluster))
    await cluster.running[1]._events.say(NeedsRebuild(3, EVERY, drain=True))
    async with cluster.client() as store:
        with pytest.raises(AccessDenied, match="only nodes append"):
            await store.append(EVENT_LOG, b"anything")
        with pytest.raises(Unreachable, match="only nodes trim"):
            await store.trim(EVENT_LOG, "tail")
        assert EVENT_LOG not in await store.log_tree.names()
        found = [i for i in await read_all(store, EVENT_LOG) if isinstance(i, Record)]
    assert read_record(found[0].value) == NeedsRebuild(3, EVERY, drain=True)


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_nodes_go_on_beside_a_metadata_store_from_before_the_move(
    cluster: ClusterAtHand,
) -> None:
    """Each node ended at its next event or its next look at the base, by a failed assertion."""
    await until(lambda: moved(cluster))
    events = cluster.running[1]._events
    await events.say(DonorProgress(1, 0, 0))  # it has a sequencer
    key = "rebuilding/set"
    base = await cluster.metadata.get(key)
    assert base is not None
    version = await cluster.metadata.compare_and_set(key, None, base.version)
    assert version
    assert (await events.say(NeedsRebuild(3, EVERY, drain=True))).verdict is Verdict.TAKEN
    with pytest.raises(Corrupt, match="an older copy, from before the move"):
        await events.keep()
    await heard(cluster, 3)
    await asyncio.sleep(30)
    assert len(cluster.running) == 5, "no node ended by it"
    await cluster.metadata.compare_and_set(key, base.value, 0)
    await events.keep()
    found = await base_of(cluster)
    assert found is not None
    assert found.entry(3) is not None


# A loss beyond the log's copies.


async def lose_records_of_it(cluster: ClusterAtHand) -> tuple[int, ...]:
    """All nodes stop, and two disks are lost with records of the log that nobody else has. An
    operator gives the two nodes up."""
    await put_records(cluster)
    await until(lambda: moved(cluster))
    events = cluster.running[1]._events
    version = (await events.say(NeedsRebuild(3, EVERY, drain=True))).after.version
    await until(lambda: all(each.entry(3) is not None for each in sets(cluster)))
    await asyncio.sleep(10)
    progress = await events.say(DonorProgress(1, version, 0, 7))
    held = {n for n in cluster.numbers if progress.after.through in places(cluster, n)}
    assert len(held) == 2
    for node in sorted(cluster.running):
        cluster.kill(node)
    for node in held:
        cluster.machine(node).disk.tree = StoredTree()
    rest = [number for number in cluster.numbers if number not in held]
    await cluster.start(*rest)
    async with cluster.client(timeout_s=30) as store:
        for node in sorted(held):
            await say_of_dead(store, node, Authority.UNDER_REPLICATED)
    return tuple(sorted(held))


def places(cluster: ClusterAtHand, number: int) -> set[int]:
    return {first for first, _, _ in cluster.held(number, EVENT_LOG)}


@as_scenario(simulate, nodes=5, copies=2, replicated_events=True)
async def test_events_go_on_from_the_furthest_set_after_a_loss_beyond_the_copies(
    cluster: ClusterAtHand,
) -> None:
    held = await lose_records_of_it(cluster)
    await until(lambda: all(each.restated for each in sets(cluster)), timeout_s=120)
    await until(lambda: len({*map(repr, sets(cluster))}) == 1)
    found = sets(cluster)[0]
    assert found.entry(3) is not None, "the base had it"
    await until(lambda: not any(node.engine.unsure for node in cluster.running.values()))
    for node in held:
        said = await cluster.running[min(cluster.running)]._events.say(
            NeedsRebuild(node, EVERY, forced=True)
        )
        assert said.verdict is Verdict.TAKEN
    for node in held:
        await order(cluster, node, RebuildOrder.GONE)
        cluster.keep_starting(node)
    await until(lambda: len(cluster.running) == 5 and lost(cluster) <= {3}, timeout_s=300)
    assert {each.restated for each in sets(cluster)} == {found.restated}, "it is restated once"
    assert {each.through for each in sets(cluster)} == {
        (await cluster.running[1]._events.read()).through
    }


@pytest.mark.parametrize("is_planted", [False, True])
def test_the_furthest_set_has_the_orders_that_living_nodes_know(is_planted: bool) -> None:
    """Node 1 has not heard of the drain, and no base was written of it."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await until(lambda: moved(cluster))
        await cluster.running[1]._events.say(DonorProgress(1, 0, 0))  # it has a sequencer
        await asyncio.sleep(3)  # every node opens a stream of it: none can while the store is out
        base = await base_of(cluster)
        assert base is not None
        cluster.metadata.is_out = True
        await cluster.running[2]._events.say(NeedsRebuild(3, EVERY, drain=True))
        await heard(cluster, 3)
        for number, node in cluster.running.items():
            follower = node._events.replicated._follower
            follower.is_whole = False
            if number == 1:
                follower.set = base
        cluster.metadata.is_out = False
        await until(lambda: all(each.restated for each in sets(cluster)))
        assert lost(cluster) == (set() if is_planted else {3})
        assert len({*map(repr, sets(cluster))}) == 1

    with planted(find_bug("restated-unfurthest")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_node_does_not_count_whose_word_finds_the_fence(is_planted: bool) -> None:
    """The set that is restated may lack its word. After the restatement it says it again."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await until(lambda: moved(cluster))
        events = cluster.running[1]._events
        await events.say(DonorProgress(1, 0, 0))  # it has a sequencer
        cluster.metadata.is_out = True
        await events.say(NeedsRebuild(3, EVERY, drain=True))
        cluster.metadata.is_out = False
        await StoredEventLog(cluster.metadata).fence(1)
        with nullcontext() if is_planted else pytest.raises(Retryable, match="being restated"):
            await events.keep()
        if not is_planted:
            await until(lambda: all(each.restated for each in sets(cluster)))
            await events.keep()
            assert lost(cluster) == {3}, "nodes that are whole restate their set"

    with planted(find_bug("fence-passed")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)
