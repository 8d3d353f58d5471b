"""Producers and conditional appends against a whole cluster: once, in order, or an error."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from cluster_at_hand import simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.block import Gap
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.producer import Producer, QueryProducer
from cordwood.errors import (
    BadSetting,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    TailMoved,
    UnknownLog,
    UnknownProducer,
)
from cordwood.lsn import Lsn, make_lsn
from cordwood.nodes import NodeId
from cordwood.protocol import producers
from cordwood.protocol.producers import QUERY_PRODUCERS, Budget
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.testing.scenario import ScenarioRun

PATIENT = ClientSettings(timeout_s=20.0)


def played(scenario, seed: int = 1, **named):
    async def with_store(cluster):
        return await scenario(cluster, await cluster.connect())

    return ScenarioRun(with_store, seed=seed, settings=PATIENT, **named).run()


async def values(store) -> list[bytes]:
    return [each.value async for each in await store.read("log") if not isinstance(each, Gap)]


@pytest.mark.parametrize("seed", range(1, 6))
def test_what_a_killed_sequencer_left_open_is_stored_once_and_in_order(seed):
    async def scenario(cluster, store):
        producer = Producer(7)
        await store.append("log", b"0", producer=producer)
        appends = []
        for number in range(1, 40):
            appends.append(
                asyncio.ensure_future(store.append("log", b"%d" % number, producer=producer))
            )
            await asyncio.sleep(0.0005)
            if number == 20:
                cluster.crash(*cluster.sequencers())
        lsns = await asyncio.gather(*appends)
        assert lsns == sorted(set(lsns))
        assert await values(store) == [b"%d" % number for number in range(40)]

    played(scenario, seed)


async def _lineage_in_order(cluster) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"0", producer=(old := Producer(7)))
        other = await store.create_log("other")
        new = old.again(int(other.log_id), 0)
        before = asyncio.ensure_future(store.append("log", b"1", producer=old))
        await asyncio.sleep(0)
        behind = await store.append_many("log", [b"2", b"3"], producer=new, atomic=True)
        assert await before < behind[0]
        assert await values(store) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_planted", [False, True])
def test_producers_of_one_lineage_keep_the_order_of_calls_to_a_log(is_planted) -> None:
    """Seed 62000417: each had a lane of its own, and a group passed a record that was gathered."""
    if not is_planted:
        simulate(_lineage_in_order, nodes=5)
        return
    with planted(find_bug("lineage-apart")), pytest.raises((AssertionError, OutOfSequence)):
        simulate(_lineage_in_order, nodes=5)


@as_scenario(simulate, nodes=5)
async def test_a_repeat_is_answered_with_its_place_by_whoever_sequences_by_then(cluster) -> None:
    async with cluster.client(timeout_s=20) as store:
        first = await store.append("log", b"once", producer=Producer(7))
        many = await store.append_many("log", [b"a", b"b"], producer=Producer(8))
        assert await store.append("log", b"once", producer=Producer(7)) == first
        for _ in range(3):
            node = cluster.sequencer_of(1)
            cluster.kill(node)
            assert await store.append("log", b"once", producer=Producer(7)) == first
            assert await store.append_many("log", [b"a", b"b"], producer=Producer(8)) == many
            await cluster.start(node)
        assert await values(store) == [b"once", b"a", b"b"]
        go_on = Producer(8, sequences={1: 2})
        assert await store.append("log", b"c", producer=go_on) > many[-1]


@as_scenario(played)
async def test_a_producer_that_nobody_knows_or_that_was_replaced_or_leaves_a_hole_is_refused(
    cluster, store
) -> None:
    await store.append("log", b"0", producer=Producer(7, epoch=1))
    log = (await store.log("log")).log_id
    with pytest.raises(UnknownProducer, match="begin a higher epoch"):
        await store.append("log", b"x", producer=Producer(9, sequences={log: 5}))
    with pytest.raises(OutOfSequence, match="are missing"):
        await store.append("log", b"x", producer=Producer(7, 1, {log: 5}))
    await store.append("log", b"1", producer=Producer(7, epoch=2))
    old = Producer(7, 1, {log: 1})
    with pytest.raises(ProducerFenced):
        await store.append("log", b"x", producer=old)
    with pytest.raises(OutOfSequence, match="is broken by an earlier failure"):
        await store.append("log", b"x", producer=old)
    assert await values(store) == [b"0", b"1"]


@as_scenario(played)
async def test_out_of_sequence_says_whether_it_is_ahead_or_stored_and_what_comes_next(
    cluster, store
) -> None:
    """A sink that takes every refusal for "stored before" loses what is ahead of the log."""
    await store.append_many("log", [b"a", b"b"], producer=Producer(7))
    log = (await store.log("log")).log_id
    for at in range(2, 14, 2):
        await store.append_many("log", [b"a", b"b"], producer=Producer(7, 0, {log: at}))
    with pytest.raises(OutOfSequence) as ahead:
        await store.append("log", b"x", producer=Producer(7, 0, {log: 20}))
    assert (ahead.value.kind, ahead.value.expected) == (Misplaced.GAP, 14)
    old = Producer(7, 0, {log: 2})
    with pytest.raises(OutOfSequence) as stored:
        await store.append_many("log", [b"a", b"b"], producer=old)
    assert (stored.value.kind, stored.value.expected) == (Misplaced.STORED, 14)
    with pytest.raises(OutOfSequence) as behind:
        await store.append("log", b"x", producer=old)
    assert (behind.value.kind, behind.value.expected) == (Misplaced.BEHIND, None)


@pytest.mark.parametrize("more", [1, 2, 6])
@as_scenario(simulate)
async def test_a_call_of_more_blocks_than_a_log_remembers_ends_when_it_is_sent_again(
    cluster, *, more: int
) -> None:
    """Its outcome was said to be unknown, and it was sent again for ever; or it was said to be
    absent, and a program that went by that stored it twice."""
    lines = [b"%d" % number for number in range(producers.PLACES_MAX + more)]
    producer = Producer(7)
    async with cluster.client(block_records=1) as store:
        made = await store.create_log("log")
        await store.append_many("log", lines, producer=producer)
        again = producer.again(made.log_id, 0)
        with pytest.raises(OutOfSequence) as raised:
            await store.append_many("log", lines, producer=again)
        assert await values(store) == lines
    assert (raised.value.kind, raised.value.expected) == (Misplaced.STORED, len(lines))
    assert raised.value.is_outcome_unknown
    assert not OutOfSequence("", Misplaced.GAP, 0).is_outcome_unknown
    assert not OutOfSequence("", Misplaced.BEHIND).is_outcome_unknown


@as_scenario(simulate)
async def test_the_rest_of_a_call_of_many_blocks_is_sent_where_the_log_ends(cluster) -> None:
    """The call itself ended as out of sequence each time, and its rest was refused as other
    records: the producer could not go on."""
    lines = [b"%d" % number for number in range(300)]
    headers: list[list[tuple[str, bytes]]] = [[("h", line)] for line in lines]
    producer = Producer(7)
    async with cluster.client(block_records=1, timeout_s=3) as store, cluster.client() as other:
        log = (await store.create_log("log")).log_id
        sent = asyncio.ensure_future(
            store.append_many("log", lines, headers=headers, producer=producer)
        )
        while len(await values(other)) < 10:
            assert not sent.done()
        network = cluster.simulation.network
        network.partition(["client-1"], [f"node-{number}" for number in cluster.numbers])
        await asyncio.wait([sent])
        assert isinstance(sent.exception(), OutcomeUnknown)
        network.mend_all()
        producer = producer.again(log, 0)
        with pytest.raises(OutOfSequence) as raised:
            await store.append_many("log", lines, headers=headers, producer=producer)
        end = raised.value.expected
        assert raised.value.kind is Misplaced.STORED
        assert end is not None
        assert await values(other) == lines[:end]
        assert 10 <= end < 300
        producer = producer.again(log, end)
        with pytest.raises(OutOfSequence, match="other records than these"):
            await store.append_many("log", lines[end:-1], producer=producer)
        producer = producer.again(log, end)
        await store.append_many("log", lines[end:], headers=headers[end:], producer=producer)
        await store.append("log", b"next", producer=producer)
        assert await values(other) == [*lines, b"next"]


def test_queries_that_published_leave_producers_their_memory(monkeypatch: pytest.MonkeyPatch):
    swap_value(monkeypatch, lambda: producers.QUERIES, Budget(20, 60_000_000))

    async def scenario(cluster):
        async with cluster.client(timeout_s=20) as store:
            queries = [QueryProducer(QUERY_PRODUCERS + n) for n in range(20)]
            await asyncio.gather(*(store.append("log", b"q", producer=each) for each in queries))
            first = await store.append("log", b"once", producer=Producer(7))
            assert await store.append("log", b"once", producer=Producer(7)) == first
            assert await store.append("log", b"two", producer=Producer(7, 0, {1: 1})) > first

    simulate(scenario, nodes=3)


def test_more_producers_than_a_log_remembers_are_refused_and_those_before_keep_their_places(
    monkeypatch: pytest.MonkeyPatch,
):
    swap_value(monkeypatch, lambda: producers.USERS, Budget(3, 60_000_000))

    async def scenario(cluster):
        async with cluster.client(timeout_s=5) as store:
            placed = [await store.append("log", b"1", producer=Producer(n)) for n in (1, 2, 3)]
            for _ in range(2):
                with pytest.raises(Overloaded, match="remembers 3 producers"):
                    await store.append("log", b"x", producer=Producer(4))
                again = [await store.append("log", b"1", producer=Producer(n)) for n in (1, 2, 3)]
                assert again == placed
                node = cluster.sequencer_of(1)
                cluster.kill(node)
                await cluster.start(node)
            await asyncio.sleep(60)
            await store.append("log", b"4", producer=Producer(4))
            assert await store.append("log", b"1", producer=Producer(3)) == placed[2]
            assert await values(store) == [b"1", b"1", b"1", b"4"]

    simulate(scenario, nodes=5)


async def a_clock_steps_ahead(cluster) -> None:
    async with cluster.client(timeout_s=5) as store:
        placed = [await store.append("log", b"1", producer=Producer(n)) for n in (1, 2, 3)]
        for node in cluster.numbers:
            cluster.machine(node).clock.step(2 * 3_600_000_000)
        with pytest.raises(Overloaded, match=r"wrote \d s ago"):
            await store.append("log", b"x", producer=Producer(4))
        # Its answer was lost, and the program sends it again.
        assert await store.append("log", b"1", producer=Producer(1)) == placed[0]
        await asyncio.sleep(60)
        await store.append("log", b"4", producer=Producer(4))
        assert await values(store) == [b"1", b"1", b"1", b"4"]


@pytest.fixture
def three_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: producers.USERS, Budget(3, 60_000_000))


@pytest.mark.usefixtures("three_for_a_minute")
def test_a_clock_that_steps_ahead_has_no_producer_forgotten_that_just_wrote() -> None:
    """The first block of a producer that had written a second before was stored twice."""
    simulate(a_clock_steps_ahead)


async def the_next_clock_is_ahead(cluster) -> None:
    async with cluster.client(timeout_s=5) as store:
        placed = [await store.append("log", b"1", producer=Producer(n)) for n in (1, 2, 3)]
        old = cluster.sequencer_of(1)
        for node in cluster.numbers:
            if node != old:
                cluster.machine(node).clock.step(3_600_000_000)
        cluster.kill(old)
        await asyncio.sleep(0.5)
        with pytest.raises(Overloaded, match=r"wrote \d s ago"):
            await store.append("log", b"x", producer=Producer(4))
        # Its answer was lost, and the program sends it again.
        assert await store.append("log", b"1", producer=Producer(1)) == placed[0]
        await asyncio.sleep(60)
        await store.append("log", b"4", producer=Producer(4))
        assert await values(store) == [b"1", b"1", b"1", b"4"]


@pytest.mark.usefixtures("three_for_a_minute")
def test_a_next_sequencer_whose_clock_is_ahead_forgets_no_producer_that_just_wrote() -> None:
    """The first block of a producer that had written a second before was stored twice."""
    simulate(the_next_clock_is_ahead, nodes=5)


async def the_clock_is_ahead_in_the_next_epoch(cluster) -> None:
    async with cluster.client(timeout_s=5) as store:
        placed = [await store.append("log", b"1", producer=Producer(n)) for n in (1, 2, 3)]
        node = cluster.running[NodeId(cluster.sequencer_of(1))]
        for each in cluster.numbers:
            cluster.machine(each).clock.step(3_600_000_000)
        await store.append("log", b"2")
        node._sequencer.sequencing()[1].drain()
        await asyncio.sleep(0.5)
        with pytest.raises(Overloaded, match=r"wrote \d s ago"):
            await store.append("log", b"x", producer=Producer(4))
        assert await store.append("log", b"1", producer=Producer(1)) == placed[0]
        assert (await store.append("log", b"3")).epoch == placed[0].epoch + 1


@pytest.mark.usefixtures("three_for_a_minute")
def test_a_clock_ahead_has_none_forgotten_when_its_node_takes_the_next_epoch() -> None:
    """The log's own times say then that an hour has passed."""
    simulate(the_clock_is_ahead_in_the_next_epoch)


@pytest.mark.usefixtures("three_for_a_minute")
def test_the_planted_bug_is_caught() -> None:
    with planted(find_bug("clock-ages-producers")), pytest.raises(pytest.fail.Exception):
        simulate(a_clock_steps_ahead)


@pytest.mark.usefixtures("three_for_a_minute")
def test_the_planted_bug_of_the_next_clock_is_caught() -> None:
    with planted(find_bug("own-clock-ages-producers")), pytest.raises(pytest.fail.Exception):
        simulate(the_next_clock_is_ahead, nodes=5)


@as_scenario(played)
async def test_an_append_on_condition_of_the_tail_is_stored_only_there(cluster, store) -> None:
    first = await store.append("log", b"1", expected_tail=await store.tail("log"))
    second = await store.append("log", b"2", expected_tail=first)
    with pytest.raises(TailMoved):
        await store.append("log", b"x", expected_tail=first)
    cluster.crash(*cluster.sequencers())
    await asyncio.sleep(0.5)
    with pytest.raises(TailMoved):
        await store.append("log", b"x", expected_tail=first)
    third = await store.append("log", b"3", expected_tail=second)
    assert third.epoch > second.epoch
    cluster.crash(*cluster.sequencers())
    await asyncio.sleep(0.5)
    await cluster.heal()
    await store.append("log", b"4", expected_tail=await store.tail("log"))
    assert await values(store) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("which", range(4))
@as_scenario(played)
async def test_a_tail_told_in_an_epoch_without_a_record_holds_until_there_is_one(
    cluster, store, *, which
) -> None:
    """Swarm seed 12308: epochs went by between the asking for the tail and the append."""
    before = await store.append("log", b"1")
    told = [await store.append("log", b"2")]
    for _ in range(3):
        cluster.crash(*cluster.sequencers())
        await asyncio.sleep(0.5)
        await cluster.heal()
        told.append(await store.tail("log"))
    assert sorted({tail.epoch for tail in told}) == [tail.epoch for tail in told]
    for wrong in (before, told[-1] + 1):
        with pytest.raises(TailMoved):
            await store.append("log", b"x", expected_tail=Lsn(wrong))
    placed = await store.append("log", b"3", expected_tail=told[which])
    with pytest.raises(TailMoved):
        await store.append("log", b"x", expected_tail=told[which])
    assert placed > told[-1]
    assert await values(store) == [b"1", b"2", b"3"]


@as_scenario(played)
async def test_of_two_that_expect_one_tail_one_is_stored(cluster, store) -> None:
    tail = await store.append("log", b"0")
    both = [store.append("log", b"%d" % n, expected_tail=tail) for n in (1, 2)]
    ended = await asyncio.gather(*both, return_exceptions=True)
    assert sum(isinstance(end, TailMoved) for end in ended) == 1
    assert len(await values(store)) == 2


@pytest.mark.parametrize("number", [-1, 1 << 63, 1 << 64, 1.5, "1", None])
@as_scenario(played)
async def test_a_number_that_no_frame_holds_ends_no_other_append(cluster, store, *, number) -> None:
    """It failed where blocks are sent: the client was closed, with all that was in flight."""
    await store.append("log", b"1")
    log = (await store.log("log")).log_id
    other = asyncio.ensure_future(store.append("log", b"2"))
    with pytest.raises(BadSetting, match="sequence"):
        await store.append("log", b"x", producer=Producer(1, 0, {log: number}))
    with pytest.raises(BadSetting, match="sequence"):
        Producer(1).again(log, number)
    if number is not None:
        with pytest.raises(BadSetting, match="expected_tail"):
            await store.append("log", b"x", expected_tail=number)
    await other
    await store.append("log", b"3")
    assert await values(store) == [b"1", b"2", b"3"]


@as_scenario(played)
async def test_a_truth_value_for_a_number_costs_no_other_append_its_connection(
    cluster, store
) -> None:
    """Nodes took the call for damaged, and closed the connection."""
    await store.append("log", b"1")
    others = [asyncio.ensure_future(store.append("log", b"2")) for _ in range(3)]
    await store.find_time("log", True)
    await store.data_size("log", True)
    for log in (True, False):
        with suppress(UnknownLog, BadSetting):
            await store.tail(log)
        others.append(asyncio.ensure_future(store.append("log", b"2")))
    await asyncio.gather(*others)
    assert len(await values(store)) == 6


@pytest.mark.parametrize(
    ("producer", "epoch"),
    [(0, 0), (1 << 63, 0), (1, -1), (1, 1 << 32), (1.0, 0), ("1", 0), (1, 0.5), (1, None)],
)
def test_identities_have_bounds(producer: int, epoch: int):
    with pytest.raises(BadSetting):
        Producer(producer, epoch)


def test_a_refusal_of_what_was_sent_before_leaves_open_whether_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
):
    """Swarm seed 12130: the answer to a first try was lost. A sequencer that did not know yet that
    it was replaced refused the second one, and its word was taken for the last."""
    answers = [OutcomeUnknown("planted"), OutOfSequence("planted")]

    def on_acked(self, token, first, by):
        self.on_fault(token, answers.pop(0), NodeId(0), by)

    async def scenario(cluster, store):
        with monkeypatch.context() as patch:
            patch.setattr(LogAppends, "on_acked", on_acked)
            with pytest.raises(OutcomeUnknown, match="was sent before"):
                await store.append("log", b"0", producer=Producer(7))
        assert not answers
        assert await values(store) == [b"0"]

    played(scenario)


@pytest.mark.parametrize("paused_s", [2.5, 7.0])
@as_scenario(simulate)
async def test_an_append_of_unknown_outcome_is_sent_again_at_its_place(
    cluster, *, paused_s: float
) -> None:
    """Nothing of it is read meanwhile. By another epoch, or without one, it was stored twice."""
    async with cluster.client(timeout_s=2) as store:
        producer = Producer(7)
        await store.append("other", b"one", producer=producer)
        await store.append("log", b"one", producer=producer)
        log = (await store.log("log")).log_id
        slow = next(n for n in cluster.numbers if n != cluster.sequencer_of(log))
        cluster.machine(slow).pause()
        asyncio.get_running_loop().call_later(paused_s, cluster.machine(slow).resume)
        place, ends = producer.next_sequence(log), []
        while not ends or isinstance(ends[-1], OutcomeUnknown):
            try:
                ends.append(await store.append("log", b"two", producer=producer))
            except OutcomeUnknown as error:
                ends.append(error)
                assert await values(store) == [b"one"]
                with pytest.raises(OutOfSequence, match=r"Producer\.again"):
                    await store.append("log", b"two", producer=producer)
                producer = producer.again(log, place)
        assert len(ends) > 1
        await asyncio.sleep(3)
        assert await values(store) == [b"one", b"two"]
        await store.append("other", b"two", producer=producer)
        await store.append("log", b"three", producer=producer)
        assert await values(store) == [b"one", b"two", b"three"]
        assert (await store.extent("other")).last.lsn == Lsn(make_lsn(1, 2))
