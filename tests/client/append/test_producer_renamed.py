"""Records that are sent again go to the log of their first try, or nowhere."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.append.producer import Producer
from cordwood.errors import BadSetting, OutcomeUnknown, Retryable, UnknownLog
from cordwood.sim.planted import find_bug, planted


async def sent_again(cluster: ClusterAtHand, *, by_name: bool) -> tuple[list[bytes], list[bytes]]:
    """Append as docs/api.md says while the answers are lost and an operator renames the log: the
    records of both logs."""
    async with cluster.client(timeout_s=3.0) as store, cluster.client() as operator:
        await store.append("payments", b"0")
        payments = (await store.log("payments")).log_id
        producer = Producer(10)

        async def append_once(value: bytes) -> None:
            nonlocal producer
            place = producer.next_sequence(payments)
            while True:
                try:
                    log = "payments" if by_name else payments
                    await store.append(log, value, producer=producer)
                    return
                except (Retryable, OutcomeUnknown):
                    producer = producer.again(payments, place)

        await append_once(b"1")
        nodes = [cluster.machine(cluster.sequencer_of(payments)).name]
        cluster.simulation.network.cut(nodes, ["client-1"])
        appending = asyncio.create_task(append_once(b"2"))
        await asyncio.sleep(1)
        await operator.log_tree.rename("payments", "old")
        await operator.create_log("payments")
        await asyncio.sleep(7)
        cluster.simulation.network.mend_all()
        try:
            await appending
        finally:
            found = await values(operator, "old"), await values(operator, "payments")
            assert found == ([b"0", b"1", b"2"], [])
        if not by_name:
            # They are sent: by the name the producer goes on in the log that has it now.
            await store.append("payments", b"3", producer=producer)
        return await values(operator, "old"), await values(operator, "payments")


@as_scenario(simulate, copies=3)
async def test_a_repeat_by_number_goes_to_the_log_of_the_first_try(cluster: ClusterAtHand) -> None:
    assert await sent_again(cluster, by_name=False) == ([b"0", b"1", b"2"], [b"3"])


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_repeat_by_a_name_that_moved_is_refused(is_planted: bool) -> None:
    """The record was stored a second time, in the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        with pytest.raises(BadSetting, match=r"payments leads to log \d+ now.*by the number"):
            await sent_again(cluster, by_name=True)

    bug = planted(find_bug("again-elsewhere")) if is_planted else nullcontext()
    with bug, pytest.raises(AssertionError) if is_planted else nullcontext():
        simulate(scenario, copies=3)


@pytest.mark.parametrize("is_planted", [False, True])
def test_each_of_several_calls_is_refused_by_a_name_that_moved(is_planted: bool) -> None:
    """After the first call was sent by number, the second was stored in both logs."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3.0) as store, cluster.client() as operator:
            await store.append("payments", b"0")
            log = (await store.log("payments")).log_id
            producer = Producer(10)
            place = producer.next_sequence(log)
            nodes = [cluster.machine(cluster.sequencer_of(log)).name]
            cluster.simulation.network.cut(nodes, ["client-1"])
            appending = []
            for value in (b"1", b"2"):
                append = store.append("payments", value, producer=producer)
                appending.append(asyncio.create_task(append))
                await asyncio.sleep(0.2)
            await operator.log_tree.rename("payments", "old")
            await operator.create_log("payments")
            await asyncio.sleep(7)
            cluster.simulation.network.mend_all()
            ended = await asyncio.gather(*appending, return_exceptions=True)
            assert all(isinstance(each, (Retryable, OutcomeUnknown)) for each in ended)
            producer = producer.again(log, place)
            for value in (b"1", b"2"):
                with pytest.raises(BadSetting, match="Send them again by the number"):
                    await store.append("payments", value, producer=producer)
                await store.append(log, value, producer=producer)
            await store.append("payments", b"3", producer=producer)
            assert await values(operator, "old") == [b"0", b"1", b"2"]
            assert await values(operator, "payments") == [b"3"]

    bug = planted(find_bug("again-first-only")) if is_planted else nullcontext()
    failure = pytest.raises(pytest.fail.Exception) if is_planted else nullcontext()
    with bug, failure:
        simulate(scenario, copies=3)


@as_scenario(simulate, copies=3)
async def test_a_refusal_ends_when_a_sequencer_says_that_the_log_is_gone(
    cluster: ClusterAtHand,
) -> None:
    """The client knew the number from memory, so no look-up told that the log was deleted."""
    async with cluster.client(timeout_s=3.0) as store, cluster.client() as operator:
        await store.append("payments", b"0")
        log = (await store.log("payments")).log_id
        producer = Producer(10)
        place = producer.next_sequence(log)
        nodes = [cluster.machine(cluster.sequencer_of(log)).name]
        cluster.simulation.network.cut(nodes, ["client-1"])
        with pytest.raises((Retryable, OutcomeUnknown)):
            await store.append("payments", b"1", producer=producer)
        cluster.simulation.network.mend_all()
        await operator.log_tree.delete("payments")
        await operator.create_log("payments")
        producer = producer.again(log, place)
        await asyncio.sleep(1)
        await store.log("payments")
        with pytest.raises(BadSetting, match="Send them again by the number"):
            await store.append("payments", b"1", producer=producer)
        with pytest.raises(UnknownLog, match=f"log {log} was deleted"):
            await store.append(log, b"1", producer=producer)
        await store.append("payments", b"1", producer=producer)
        assert await values(operator, "payments") == [b"1"]


@as_scenario(simulate)
async def test_a_producer_begun_again_goes_on_in_its_other_logs(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        producer = Producer(1)
        await store.append("a", b"0", producer=producer)
        log = (await store.log("a")).log_id
        producer = producer.again(log, 0)
        await store.append("b", b"1", producer=producer)
        await store.append(log, b"0", producer=producer)
        assert await values(store, "a") == [b"0"]
        assert await values(store, "b") == [b"1"]


@pytest.mark.parametrize("ends", ["other spelling", "later record", "deleted"])
@as_scenario(simulate, copies=3)
async def test_a_refusal_lasts_until_the_records_are_sent_or_their_log_is_gone(
    cluster: ClusterAtHand, *, ends: str
) -> None:
    """Another spelling of the name, or a later record, ended it. A deleted log did not."""
    async with cluster.client(timeout_s=3.0) as store, cluster.client() as operator:
        await store.append("payments", b"0")
        log = (await store.log("payments")).log_id
        producer = Producer(10)
        await store.append("payments", b"1", producer=producer)
        place = producer.next_sequence(log)
        cluster.simulation.network.cut(
            [cluster.machine(cluster.sequencer_of(log)).name], ["client-1"]
        )
        appending = asyncio.create_task(store.append("payments", b"2", producer=producer))
        await asyncio.sleep(1)
        if ends == "deleted":
            await operator.log_tree.delete("payments")
        else:
            await operator.log_tree.rename("payments", "old")
        await operator.create_log("payments")
        await asyncio.sleep(7)
        cluster.simulation.network.mend_all()
        with pytest.raises((Retryable, OutcomeUnknown)):
            await appending
        if ends == "later record":
            await store.append("payments", b"3", producer=producer)
        producer = producer.again(log, place)
        name = "/payments" if ends == "other spelling" else "payments"
        with pytest.raises(BadSetting, match="Send them again by the number"):
            await store.append(name, b"2", producer=producer)
        if ends == "deleted":
            with pytest.raises(UnknownLog):
                await store.append(log, b"2", producer=producer)
        else:
            await store.append(log, b"2", producer=producer)
            assert await values(operator, "old") == [b"0", b"1", b"2"]
        await store.append(name, b"4", producer=producer)
        kept = [b"3", b"4"] if ends == "later record" else [b"4"]
        assert await values(operator, "payments") == kept
