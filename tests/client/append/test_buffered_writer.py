"""The buffered writer on a whole cluster: triggers, memory, modes, retries and ends."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, values
from scenarios import as_scenario, now

from cordwood.block import Codec, Record
from cordwood.client.append.buffered_writer import (
    WAITS_A_TICK,
    BufferedWriter,
    WriteMode,
    WriterOptions,
)
from cordwood.client.store import Store
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    Retryable,
    UnknownLog,
)
from cordwood.lsn import Lsn
from cordwood.settings import MIB
from cordwood.sim.planted import find_bug, planted

LOG = 1


def blocks(cluster: ClusterAtHand) -> list[tuple[int, Codec]]:
    """Records and codec of each block of the log, from a node that has all of them."""
    cached = cluster.running[1].engine.cache.log(LOG)
    found = [cached.at(index) for index in range(len(cached))]
    return [(each.header.count, Codec(each.header.codec)) for each in found if each is not None]


class TestTriggers:
    @as_scenario(simulate)
    async def test_a_block_is_sent_when_it_is_large_enough(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            options = WriterOptions(time_trigger_s=None, size_trigger_bytes=1000)
            async with store.buffered_writer(options) as writer:
                futures = [writer.append_nowait("log", bytes(100)) for _ in range(25)]
                lsns = await asyncio.gather(*futures[:20])
                assert not any(future.done() for future in futures[20:])
                await writer.flush()
                lsns += [future.result() for future in futures[20:]]
            assert lsns == list(range(lsns[0], lsns[0] + 25))
            assert blocks(cluster) == [(10, Codec.LZ4), (10, Codec.LZ4), (5, Codec.LZ4)]

    @as_scenario(simulate)
    async def test_a_block_is_sent_when_its_first_record_is_old_enough(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"warm")
            async with store.buffered_writer(WriterOptions(time_trigger_s=0.5)) as writer:
                began = now()
                first = writer.append_nowait("log", b"first")
                await asyncio.sleep(0.3)
                second = writer.append_nowait("log", b"second")
                assert await second == await first + 1
                assert 0.5 <= now() - began < 0.7
            assert [count for count, _ in blocks(cluster)] == [1, 2]

    @as_scenario(simulate)
    async def test_logs_are_gathered_apart_and_flushed_together(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            writer = store.buffered_writer(WriterOptions(time_trigger_s=None))
            for at in range(30):
                writer.put(f"log{at % 3}", b"%d" % at)
            await writer.flush()
            assert writer.bytes == 0
            for each in range(3):
                wanted = [b"%d" % at for at in range(each, 30, 3)]
                assert await values(store, f"log{each}") == wanted

    @as_scenario(simulate)
    async def test_a_flush_returns_after_the_callbacks_of_all_its_records(
        self, cluster: ClusterAtHand
    ) -> None:
        """It came back a tick before the last one."""
        async with cluster.client() as store:
            told: list[bytes] = []

            def on_success(log: str, contexts: Sequence[Any], lsns: Sequence[Lsn]) -> None:
                told.extend(contexts)

            options = WriterOptions(time_trigger_s=None)
            async with store.buffered_writer(options, on_success=on_success) as writer:
                for at in range(5):
                    last = writer.append_nowait("log", b"%d" % at, context=at)
                    await writer.flush()
                    assert told == [*range(at + 1)]
                last = writer.append_nowait("log", b"5", context=5)
                writer.put("log", b"6", context=6)
                flushed = asyncio.ensure_future(writer.flush())
                await last
                await writer.flush()
                assert told == [*range(7)], "a flush that began as the block ended"
                await flushed

    @pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
    @as_scenario(simulate)
    async def test_records_keep_their_columns_in_every_codec(
        self, cluster: ClusterAtHand, *, codec: str
    ) -> None:
        async with cluster.client() as store:
            async with store.buffered_writer(WriterOptions(compression=codec)) as writer:
                writer.put("log", b"a" * 500, key=b"k", timestamp=7)
                writer.put("log", b"b" * 500, headers=[("h", b"v")])
            [one, two] = [r for r in await read_all(store, "log") if isinstance(r, Record)]
            assert (one.key, one.timestamp_us, one.headers) == (b"k", 7, ())
            assert (two.key, two.headers) == (None, (("h", b"v"),))
            assert blocks(cluster) == [(2, Codec[codec.upper()])]


class TestMemory:
    @as_scenario(simulate)
    async def test_other_tasks_go_on_while_a_program_puts_without_a_pause(
        self, cluster: ClusterAtHand
    ) -> None:
        """`wait_space` never waited while there was room: nothing was sent or answered for
        seconds."""
        async with cluster.client() as store, store.buffered_writer() as writer:
            ticks = 0

            async def count() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            counting = asyncio.ensure_future(count())
            for _ in range(4 * WAITS_A_TICK):
                await writer.wait_space()
                writer.put("log", b"x")
            assert ticks >= 3
            counting.cancel()
            await writer.flush()
            assert (writer.failed, len(await values(store, "log"))) == (0, 4 * WAITS_A_TICK)

    @pytest.mark.parametrize("mode", WriteMode)
    def test_appends_that_start_together_are_stored_in_their_order(self, mode: WriteMode) -> None:
        """Each 256th gave other tasks a turn before it had its place: a later append took it."""

        async def scenario(cluster: ClusterAtHand) -> None:
            options = WriterOptions(mode=mode)
            async with cluster.client() as store, store.buffered_writer(options) as writer:
                for first in range(0, 3 * WAITS_A_TICK, 30):
                    numbers = range(first, first + 30)
                    await asyncio.gather(*(writer.append("log", b"%06d" % n) for n in numbers))
                found = await values(store, "log")
            assert found == sorted(found)
            assert len(found) >= 3 * WAITS_A_TICK

        simulate(scenario)
        with planted(find_bug("writer-ticks-first")), pytest.raises(AssertionError):
            simulate(scenario)

    @as_scenario(simulate)
    async def test_a_record_that_cannot_be_put_leaves_the_others_of_its_block(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, store.buffered_writer() as writer:
            writer.put("log", b"1")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "cordwood.client.append.buffered_writer.own_headers", lambda _: 1 // 0
                )
                with pytest.raises(ZeroDivisionError):
                    writer.put("log", b"2")
            writer.put("log", b"3")
            await writer.flush()
            assert (writer.failed, await values(store, "log")) == (0, [b"1", b"3"])

    @as_scenario(simulate)
    async def test_it_is_bounded_and_who_appends_waits(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            options = WriterOptions(
                time_trigger_s=None, size_trigger_bytes=1000, memory_bytes_max=5000
            )
            async with store.buffered_writer(options) as writer:
                while writer.bytes < 5000:
                    writer.put("log", bytes(90))
                with pytest.raises(Overloaded):
                    writer.put("log", bytes(90))
                assert writer.bytes <= 5000 + 90
                highest = 0
                for _ in range(200):
                    await writer.wait_space()
                    writer.put("log", bytes(90))
                    highest = max(highest, writer.bytes)
                assert highest <= 5000 + 90
            assert writer.bytes == 0

    @as_scenario(simulate)
    async def test_what_is_gathered_is_sent_when_nothing_else_makes_room(
        self, cluster: ClusterAtHand
    ) -> None:
        """Many logs, each below its size, and no time: memory is full of what nothing sends."""
        async with cluster.client() as store:
            options = WriterOptions(
                time_trigger_s=None, size_trigger_bytes=4000, memory_bytes_max=4000
            )
            async with store.buffered_writer(options) as writer:
                for at in range(100):
                    await writer.wait_space()
                    writer.put(f"log{at % 10}", bytes(100))


class TestErrors:
    @as_scenario(simulate)
    async def test_what_cannot_be_is_refused_at_once(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(block_bytes=1000) as store:
            writer = store.buffered_writer()
            with pytest.raises(RecordTooLarge):
                writer.put("log", bytes(2000))
            await writer.close()
            with pytest.raises(Closed):
                writer.put("log", b"late")

    @pytest.mark.parametrize("mode", list(WriteMode))
    @as_scenario(simulate, create_logs=False)
    async def test_a_log_that_is_not_there_was_not_appended_to(
        self, cluster: ClusterAtHand, *, mode: WriteMode
    ) -> None:
        failed: list[tuple[str, Any, CordwoodError]] = []
        async with cluster.client() as store:
            writer = store.buffered_writer(
                WriterOptions(mode=mode), on_failure=lambda *told: failed.append(told)
            )
            future = writer.append_nowait("log", b"value", context="mine")
            with pytest.raises(UnknownLog) as raised:
                await future
            assert not raised.value.is_outcome_unknown
            await writer.close()
        assert [(log, list(contexts)) for log, contexts, _ in failed] == [("log", ["mine"])]

    @as_scenario(simulate)
    async def test_what_is_in_flight_when_the_client_closes_is_unknown(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"warm")
            writer = store.buffered_writer(WriterOptions(time_trigger_s=None))
            for number in cluster.running:
                cluster.machine(number).disk.stall(5.0)
            sent = writer.append_nowait("log", b"sent")
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(0.1)
            gathered = writer.append_nowait("log", b"gathered")
        with pytest.raises(OutcomeUnknown) as unknown:
            await sent
        assert unknown.value.is_outcome_unknown
        with pytest.raises(Closed) as closed:
            await gathered
        assert not closed.value.is_outcome_unknown
        await flushing

    @pytest.mark.parametrize(
        "options",
        [
            {"time_trigger_s": 0},
            {"retry_count": -1},
            {"compression": "gzip"},
            {"size_trigger_bytes": 0},
            {"size_trigger_bytes": 2000, "memory_bytes_max": 1000},
            {"retry_max_s": 0.0},
        ],
    )
    def test_options_out_of_their_range(self, options: dict[str, Any]) -> None:
        with pytest.raises(BadSetting):
            WriterOptions(**options)


class TestRetries:
    @pytest.mark.parametrize("mode", [WriteMode.INDEPENDENT, WriteMode.ONE_AT_A_TIME])
    @as_scenario(simulate, nodes=3)
    async def test_what_was_not_appended_is_sent_again_if_that_is_wanted(
        self, cluster: ClusterAtHand, *, mode: WriteMode
    ) -> None:
        async with cluster.client(timeout_s=1.0) as store:
            await store.append("log", b"warm")
            cluster.kill(next(n for n in cluster.running if n != cluster.sequencer_of(LOG)))
            asked: list[CordwoodError] = []

            def allow(log: str, contexts: Any, error: CordwoodError) -> bool:
                asked.append(error)
                return len(asked) < 3

            for on_retry, wanted in ((None, 1), (allow, 3)):
                count = 0 if on_retry is None else None
                options = WriterOptions(mode=mode, retry_count=count)
                writer = store.buffered_writer(options, on_retry=on_retry)
                with pytest.raises(Retryable) as raised:
                    await writer.append("log", b"value")
                assert not raised.value.is_outcome_unknown
                assert len(asked) in (0, wanted)
            await cluster.start(*(n for n in cluster.numbers if n not in cluster.running))
            async with store.buffered_writer(WriterOptions(retry_count=None)) as writer:
                await writer.append("log", b"value")
            assert await values(store, "log") == [b"warm", b"value"]

    @as_scenario(simulate)
    async def test_one_at_a_time_is_one_at_a_time(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            open_appends = store._appends
            most = 0
            options = WriterOptions(mode=WriteMode.ONE_AT_A_TIME, size_trigger_bytes=100)
            async with store.buffered_writer(options) as writer:
                for at in range(50):
                    writer.put("log", b"%d" % at + bytes(100))
                while writer.bytes:
                    most = max(most, len(open_appends.sent))
                    await asyncio.sleep(0.0002)
            assert most == 1
            assert [int(v[:-100]) for v in await values(store, "log")] == list(range(50))


async def _kill_sequencers(cluster: ClusterAtHand, chance: random.Random, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        victim = cluster.sequencer_of(LOG)
        if victim:
            cluster.kill(victim)
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            await cluster.start(victim)


async def _write(store: Store, acked: list[tuple[int, int]]) -> None:
    options = WriterOptions(
        mode=WriteMode.STREAM, time_trigger_s=0.02, size_trigger_bytes=300, memory_bytes_max=5000
    )
    async with store.buffered_writer(options) as writer:
        for at in range(400):
            await writer.wait_space()
            future = writer.append_nowait("log", b"%06d" % at)
            future.add_done_callback(lambda done, at=at: acked.append((at, done.result())))
            await asyncio.sleep(0.02)
    await asyncio.sleep(0)  # the last callbacks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_stores_each_record_once_and_in_order_whatever_dies(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        acked: list[tuple[int, int]] = []
        async with cluster.client(timeout_s=20) as store, asyncio.TaskGroup() as tasks:
            tasks.create_task(_kill_sequencers(cluster, random.Random(seed), 4))
            await _write(store, acked)
            assert [at for at, _ in acked] == list(range(400))
            assert all(one[1] < two[1] for one, two in itertools.pairwise(acked))
            found = [r for r in await read_all(store, "log") if isinstance(r, Record)]
            assert [int(record.value) for record in found] == list(range(400))
            assert [record.lsn for record in found] == [lsn for _, lsn in acked]

    simulate(scenario, nodes=5, seed=seed)


@as_scenario(simulate, wal_bytes=16 * MIB, wals={3: MIB})
async def test_a_stream_keeps_its_order_behind_a_block_that_no_node_takes(
    cluster: ClusterAtHand,
) -> None:
    """A block that was cut while the others came back went in front of them."""
    options = WriterOptions(mode=WriteMode.STREAM, size_trigger_bytes=1, compression="none")
    async with cluster.client(codec="none") as store:
        async with store.buffered_writer(options) as writer:
            refused = writer.append_nowait("log", bytes(900_000))
            futures = [writer.append_nowait("log", b"%d" % at) for at in range(12)]
            await writer.flush()
        with pytest.raises(RecordTooLarge):
            refused.result()
        lsns = [future.result() for future in futures]
        assert lsns == sorted(lsns)
        assert [int(v) for v in await values(store, "log")] == list(range(12))


@as_scenario(simulate)
async def test_a_call_does_not_pass_those_that_wait_for_room(cluster: ClusterAtHand) -> None:
    """It came in the moment in which a block had ended and those had not woken."""
    options = WriterOptions(
        mode=WriteMode.STREAM,
        time_trigger_s=0.01,
        size_trigger_bytes=1000,
        memory_bytes_max=2000,
    )
    calls: list[asyncio.Task[Lsn]] = []

    async def call_behind(store: Store, writer: BufferedWriter) -> None:
        for _ in range(100):
            await store.append("other", b"value")
            calls.append(asyncio.create_task(writer.append("log", bytes(600))))

    async def call(writer: BufferedWriter) -> None:
        for _ in range(100):
            calls.append(asyncio.create_task(writer.append("log", bytes(600))))
            await asyncio.sleep(0.001)

    async with cluster.client() as store, store.buffered_writer(options) as writer:
        await asyncio.gather(call_behind(store, writer), call(writer))
        lsns = await asyncio.gather(*calls)
        assert lsns == sorted(lsns)


def test_records_of_put_that_fail_are_told_without_a_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`flush` returned, and they were gone."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, store.buffered_writer() as writer:
            for _ in range(3):
                writer.put("none", b"value")
            with pytest.raises(UnknownLog):
                await writer.append("none", b"value")
            await writer.flush()
            assert writer.failed == 4

    simulate(scenario, create_logs=False)
    assert "3 records for none were not acknowledged" in caplog.text
