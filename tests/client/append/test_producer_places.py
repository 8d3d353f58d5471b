"""`Producer.again`: no two records get one place, whichever calls were in flight beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Buffer, Gap
from cordwood.client.append import pending_block
from cordwood.client.append.producer import DOUBTS_MAX, Producer, ProducerCall, ProducerPlace
from cordwood.errors import BadSetting, OutcomeUnknown, OutOfSequence, Retryable
from cordwood.sim.planted import find_bug, planted


async def values(store, log) -> list[bytes]:
    return [each.value async for each in await store.read(log) if not isinstance(each, Gap)]


class Writer:
    """The page's recipe: one producer for all logs, begun again after each error."""

    def __init__(self, store) -> None:
        self.store = store
        self.producer = Producer(12)
        self.numbers = {}

    async def begin(self, log):
        self.numbers[log] = (await self.store.create_log(log)).log_id
        await self.once(log, b"0")

    async def once(self, log, value):
        number = self.numbers[log]
        place = self.producer.next_sequence(number)
        while True:
            try:
                return await self.store.append(log, value, producer=self.producer)
            except (OutcomeUnknown, Retryable):
                self.producer = self.producer.again(number, place)


async def out_of_reach(cluster, seconds):
    for number in (1, 2, 3):
        cluster.kill(number)
    await asyncio.sleep(seconds)
    await cluster.start()


@as_scenario(simulate)
async def test_a_call_that_waits_for_room_in_another_log_keeps_its_place(cluster) -> None:
    """Both calls to "b" were acknowledged at one LSN, and the second record was lost."""
    async with cluster.client(timeout_s=3, window_records=1) as store:
        writer = Writer(store)
        for log in "ab":
            await writer.begin(log)

        async def to_b():
            await asyncio.sleep(2)
            return [await writer.once("b", b"%d" % n) for n in (1, 2, 3)]

        _, lsns, _ = await asyncio.gather(
            writer.once("a", b"1"), to_b(), out_of_reach(cluster, 3.2)
        )
        assert len(set(lsns)) == 3
        assert await values(store, "a") == [b"0", b"1"]
        assert await values(store, "b") == [b"0", b"1", b"2", b"3"]


@as_scenario(simulate)
async def test_calls_that_failed_together_do_not_get_one_place(cluster) -> None:
    """All three were acknowledged at one LSN, and two records were lost."""
    async with cluster.client(timeout_s=3) as store:
        writer = Writer(store)
        await writer.begin("log")
        sent = [asyncio.create_task(writer.once("log", b"%d" % n)) for n in range(3)]
        await out_of_reach(cluster, 5)
        answers = await asyncio.gather(*sent, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, BadSetting | OutOfSequence)]
        assert refused
        assert "one call after another" in str(refused[0])
        told = [b"%d" % n for n, each in enumerate(answers) if isinstance(each, int)]
        assert set(told) <= set(await values(store, "log"))
        assert len(told) + len(refused) == 3


@as_scenario(simulate)
async def test_a_place_that_another_call_has_is_not_given_again(cluster) -> None:
    """The call that failed would have been told the LSN of the other one."""
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        await asyncio.gather(
            store.append("log", b"0", producer=producer),
            store.append_many("log", [b"1", b"2"], producer=producer),
            store.append_many("log", [b"3"], producer=producer, atomic=True),
        )
        with pytest.raises(BadSetting, match="ended well, up to 4"):
            producer.again(log, 3)
        await store.append("log", b"4", producer=producer.again(log, 4))
        assert await values(store, "log") == [b"%d" % n for n in range(5)]


@as_scenario(simulate)
async def test_a_call_alone_that_ended_well_is_sent_again_and_gets_its_lsn(cluster) -> None:
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        lsn = await store.append("log", b"0", producer=producer)
        producer = producer.again(log, 0)
        assert await store.append("log", b"0", producer=producer) == lsn
        await store.append("log", b"1", producer=producer)
        assert await values(store, "log") == [b"0", b"1"]


@as_scenario(simulate)
async def test_a_producer_that_was_begun_again_appends_nothing_more_to_that_log(cluster) -> None:
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        later = producer.again(log, 0)
        with pytest.raises(OutOfSequence, match=r"Producer\.again"):
            await store.append("log", b"late", producer=producer)
        await store.append("log", b"one", producer=later)
        await store.append("other", b"one", producer=producer)
        await store.append("other", b"two", producer=later)
        assert await values(store, "log") == [b"one"]
        assert await values(store, "other") == [b"one", b"two"]


@as_scenario(simulate)
async def test_a_call_that_was_cancelled_is_sent_again_at_its_place(cluster) -> None:
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        await store.append("log", b"zero", producer=producer)
        call = asyncio.create_task(store.append("log", b"one", producer=producer))
        await asyncio.sleep(0)
        with pytest.raises(BadSetting, match="have not ended"):
            producer.again(log, 1)
        call.cancel()
        await asyncio.wait([call])
        await store.append("log", b"one", producer=producer.again(log, 1))
        assert await values(store, "log") == [b"zero", b"one"]


async def given_up(store, producer, *each) -> None:
    """Calls under way at once, which the caller did not wait for."""
    calls = [asyncio.create_task(store.append("log", value, producer=producer)) for value in each]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


@as_scenario(simulate)
async def test_a_call_that_failed_with_another_is_not_passed(cluster) -> None:
    """The first one was sent again. The next record got the LSN of the second one, and was lost."""
    async with cluster.client(block_records=1) as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        await store.append("log", b"0", producer=producer)
        await given_up(store, producer, b"1", b"2")
        producer = producer.again(log, 1)
        await store.append("log", b"1", producer=producer)
        with pytest.raises(OutOfSequence, match="other records than these may be stored"):
            await store.append("log", b"3", producer=producer)
        await store.append("log", b"2", producer=producer)
        await store.append("log", b"3", producer=producer)
        for place in (1, 2, 3):
            with pytest.raises(BadSetting, match="ended well, up to 4"):
                producer.again(log, place)
        assert await values(store, "log") == [b"0", b"1", b"2", b"3"]


@as_scenario(simulate)
async def test_a_call_that_was_passed_over_is_not_sent_again(cluster) -> None:
    """It was, got its LSN, and the next record got the LSN of the call that had passed it."""
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        await store.append("log", b"0", producer=producer)
        await given_up(store, producer, b"1")
        await store.append("log", b"2", producer=producer)
        with pytest.raises(BadSetting, match="ended well, up to 3"):
            producer.again(log, 1)
        await store.append("log", b"3", producer=producer)
        assert await values(store, "log") == [b"0", b"1", b"2", b"3"]


@as_scenario(simulate)
async def test_a_place_where_other_records_may_be_stored_is_refused(cluster) -> None:
    """The call waited for room behind one of unknown outcome, and had read the same place."""
    async with cluster.client(window_records=1) as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        await store.append("log", b"0", producer=producer)
        await given_up(store, producer, b"1", b"2")
        producer = producer.again(log, 1)
        with pytest.raises(OutOfSequence, match="other records than these may be stored"):
            await store.append("log", b"2", producer=producer)
        with pytest.raises(OutOfSequence, match="other records than these may be stored"):
            await store.append_many("log", [b"1", b"2"], producer=producer)
        lsn = await store.append("log", b"1", producer=producer)
        assert lsn == await store.append("log", b"2", producer=producer) - 1
        assert await values(store, "log") == [b"0", b"1", b"2"]


@as_scenario(simulate)
async def test_of_two_producers_that_again_made_the_later_one_goes_on(cluster) -> None:
    """Both had one place in hand: the second record there was told the first one's LSN."""
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        earlier, later = producer.again(log, 0), producer.again(log, 0)
        await store.append("log", b"0", producer=later)
        with pytest.raises(OutOfSequence, match=r"Producer\.again"):
            await store.append("log", b"1", producer=earlier)
        for old in (producer, earlier):
            with pytest.raises(BadSetting, match="ended well, up to 1"):
                old.again(log, 0)
        await store.append("log", b"1", producer=producer.again(log, 1))
        assert await values(store, "log") == [b"0", b"1"]


@as_scenario(simulate)
async def test_a_call_that_never_found_its_log_is_not_taken_for_a_later_one(cluster) -> None:
    """The later call had the same place, and ended well."""
    async with cluster.client(timeout_s=2) as store, cluster.client() as other:
        producer = Producer(12)
        log = (await other.create_log("log")).log_id
        for number in cluster.numbers:
            cluster.machine(number).pause()
        with pytest.raises((Retryable, OutcomeUnknown)):
            await store.append("log", b"lost", producer=producer)
        for number in cluster.numbers:
            cluster.machine(number).resume()
        await store.append("log", b"0", producer=producer)
        with pytest.raises(BadSetting, match="ended well, up to 1"):
            producer.again(log, 0)
        await store.append("log", b"1", producer=producer.again(log, 1))
        assert await values(store, "log") == [b"0", b"1"]


@pytest.mark.parametrize("size", [10, 10_000], ids=["records kept", "a digest kept"])
@as_scenario(simulate)
async def test_the_last_call_is_sent_again_with_its_own_records_only(cluster, *, size: int) -> None:
    """Its answer may have been lost to a signal."""
    async with cluster.client() as store:
        producer = Producer(12)
        log = (await store.create_log("log")).log_id
        bulk = [b"%d" % n * size for n in range(20)]
        lsns = await store.append_many("log", bulk, keys=[b"k"] * 20, producer=producer)
        producer = producer.again(log, 0)
        for others in ({"values": bulk}, {"values": bulk[::-1], "keys": [b"k"] * 20}):
            with pytest.raises(OutOfSequence, match="other records than these may be stored"):
                await store.append_many("log", producer=producer, **others)
        again = await store.append_many("log", bulk, keys=[b"k"] * 20, producer=producer)
        assert again == lsns


@pytest.mark.parametrize("atomic", [False, True])
def test_headers_and_times_make_another_record(atomic: bool):
    """Only the values and keys were compared: a record that differs in these was told the LSN of
    the other one, and lost."""

    async def scenario(cluster):
        async with cluster.client() as store:
            producer = Producer(12)
            log = (await store.create_log("log")).log_id
            given = {"headers": [[("id", b"1")], []], "timestamps": [7, 8], "atomic": atomic}
            lsns = await store.append_many("log", [b"", b""], producer=producer, **given)
            producer = producer.again(log, 0)
            for other in (
                {"headers": [[("id", b"2")], []]}, {"headers": [[], [("id", b"1")]]},
                {"headers": [[("i", b"d1")], []]}, {"headers": None}, {"timestamps": [7, 9]},
                {"timestamps": None},
            ):  # fmt: skip
                with pytest.raises(OutOfSequence, match="other records than these may be stored"):
                    await store.append_many(
                        "log", [b"", b""], producer=producer, **{**given, **other}
                    )
            again = await store.append_many("log", [b"", b""], producer=producer, **given)
            assert again == lsns
            one = {"headers": [("id", b"3")], "timestamp": 9}
            producer = Producer(13)
            lsn = await store.append("log", b"", producer=producer, **one)
            producer = producer.again(log, 0)
            with pytest.raises(OutOfSequence, match="other records than these may be stored"):
                await store.append("log", b"", producer=producer, headers=[("id", b"4")])
            assert lsn == await store.append("log", b"", producer=producer, **one)

    simulate(scenario)
    with planted(find_bug("values-are-records")), pytest.raises(pytest.fail.Exception):
        simulate(scenario)


def test_a_record_is_the_same_one_in_whichever_columns_it_is_given():
    """`append` and `append_many` were told of other records, as was one time for all."""

    async def scenario(cluster):
        async with cluster.client() as store:
            producer = Producer(12)
            log = (await store.create_log("log")).log_id
            lsn = await store.append("log", b"1", timestamp=7, producer=producer)
            for more in (
                {"timestamps": 7}, {"timestamps": [7], "keys": [None]},
                {"timestamps": 7, "headers": [[]], "atomic": True},
            ):  # fmt: skip
                producer = producer.again(log, 0)
                assert await store.append_many("log", [b"1"], producer=producer, **more) == [lsn]

    simulate(scenario)


def test_a_producer_remembers_so_many_calls_of_unknown_outcome():
    place, doubts = ProducerPlace(), set()
    for first in range(DOUBTS_MAX + 3):
        call = ProducerCall(place, doubts)
        call.takes(first, [b"%d" % first], None)
        call.failed(OutcomeUnknown("nobody answered"))
    assert len(doubts) == DOUBTS_MAX
    call = ProducerCall(place, doubts)
    call.takes(DOUBTS_MAX + 3, [b"new"], None)
    call.ended_well()
    assert len(doubts) == DOUBTS_MAX, "those that were not noted stand for all"


@pytest.mark.parametrize("settings", [{"block_records": 2}, {"block_bytes": 4200}])
@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_block_that_could_not_be_encoded_leaves_its_place_to_no_other(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool, wrong: int, settings: dict[str, int]
) -> None:
    """The next block of the call got its sequences. When the call was made again, its records were
    taken for a repeat of those: they were acknowledged with the others' LSNs, and lost. The last
    block of the call was stored twice."""
    records = [b"%d" % number + bytes(2000) for number in range(6)]
    encode, failed = pending_block.encode_body, list[bytes]()

    def encode_body(values: Sequence[Buffer], **columns: Any) -> bytes:
        if not failed and records[2 * wrong] in values:
            failed.append(records[2 * wrong])
            raise MemoryError
        return encode(values, **columns)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(**settings) as store:
            log = (await store.create_log("log")).log_id
            swap(monkeypatch, encode, encode_body, within=pending_block)
            with pytest.raises(OutcomeUnknown if wrong or is_planted else BadSetting):
                await store.append_many("log", records, producer=(producer := Producer(7)))
            assert failed
            again = producer.again(log, 0)
            lsns = await store.append_many("log", records, producer=again)
            assert len({*lsns}) == 6
            found = await values(store, "log")
            if is_planted:
                assert not {*records[2 * wrong : 2 * wrong + 2]} & {*found}
            else:
                assert found == records

    with planted(find_bug("place-left-to-next")) if is_planted else nullcontext():
        simulate(scenario)
