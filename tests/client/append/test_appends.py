"""Appends: blocks out of turns, what survives, what is refused, and what becomes of failures."""

from __future__ import annotations

import asyncio
import datetime
import random
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, at, read_all, simulate, until, values
from scenarios import as_scenario, now
from swaps import swap

from cordwood.block import Record
from cordwood.client.append.producer import Producer
from cordwood.client.store import Store
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    NoSequencer,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    Retryable,
    TooFewNodes,
    UnknownLog,
)
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId
from cordwood.sequencer.role import SequencerRole
from cordwood.settings import MIB, SequencerSettings

LOG = 1
"""The number of the first log that a cluster makes."""

UTC = datetime.UTC
ERA = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def blocks(cluster: ClusterAtHand, log: int = LOG) -> list[tuple[int, int]]:
    """First and last esn of each block that node 1 holds."""
    return [(first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last, _ in cluster.held(1, log)]


async def records(store: Store, log: str = "log") -> list[Record]:
    return [item for item in await read_all(store, log) if isinstance(item, Record)]


def nobody_waits(store: Store) -> bool:
    """Whether the client has forgotten everything that it sent."""
    appends = store._appends
    window = appends.window
    return not appends.sent and window.records == window.bytes == 0 and window.has_space


class TestTurns:
    @as_scenario(simulate)
    async def test_what_one_tick_brings_is_one_block(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"alone")
            lsns = await asyncio.gather(*(store.append("log", b"%d" % n) for n in range(50)))
            assert lsns == [at(n) for n in range(2, 52)]
            first = asyncio.create_task(store.append("log", b"a"))
            await asyncio.sleep(0.001)
            await asyncio.gather(first, store.append("log", b"b"))
            assert blocks(cluster) == [(1, 1), (2, 51), (52, 52), (53, 53)]

    @as_scenario(simulate)
    async def test_logs_do_not_share_blocks(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for log in ("a", "b"):
                await store.append(log, b"first")
            await asyncio.gather(*(store.append("ab"[n % 2], b"%d" % n) for n in range(10)))
            assert blocks(cluster, 1) == blocks(cluster, 2) == [(1, 1), (2, 6)]
            assert await values(store, "b") == [b"first", b"1", b"3", b"5", b"7", b"9"]

    @as_scenario(simulate)
    async def test_order_is_the_order_of_the_calls(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(block_records=7) as store:
            log = await store.open_log("log")
            futures = []
            for number in range(500):
                futures.append(log.append_nowait(b"%d" % number))
                if number % 13 == 0:
                    await asyncio.sleep(0)
            assert await asyncio.gather(*futures) == [at(n) for n in range(1, 501)]
            assert await values(store, "log") == [b"%d" % n for n in range(500)]

    @pytest.mark.parametrize(
        ("settings", "sizes", "expected"),
        [
            ({"block_records": 3}, [1] * 8, [(1, 3), (4, 6), (7, 8)]),
            ({"block_bytes": 100}, [40, 40, 40, 100, 1], [(1, 2), (3, 3), (4, 4), (5, 5)]),
            ({"block_bytes": 100}, [100, 100], [(1, 1), (2, 2)]),
            ({"block_bytes": 100}, [0] * 5, [(1, 5)]),
        ],
    )
    @as_scenario(simulate)
    async def test_a_block_is_cut_at_the_client_s_limits(
        self, cluster: ClusterAtHand, *, settings, sizes, expected
    ) -> None:
        async with cluster.client(**settings) as store:
            log = await store.open_log("log")
            await asyncio.gather(*(log.append_nowait(bytes(size)) for size in sizes))
            assert blocks(cluster) == expected
            lsns = await store.append_many("many", [bytes(size) for size in sizes])
            assert lsns == [at(n) for n in range(1, len(sizes) + 1)]
            assert blocks(cluster, 2) == expected

    @as_scenario(simulate, wal_bytes=64 * MIB)
    async def test_keys_and_headers_count_towards_a_block(self, cluster: ClusterAtHand) -> None:
        """Only values did, so many large headers made a block that the sequencer refuses, and
        with it every record of the turn."""
        async with cluster.client() as store:
            log = await store.open_log("log")
            futures = [
                log.append_nowait(b"v", b"k" * 1000, None, [("name", bytes(100_000))])
                for _ in range(60)
            ]
            await asyncio.gather(*futures)
            found = await records(store)
            assert {each.headers for each in found} == {(("name", bytes(100_000)),)}
            assert len(found) == 60
            await store.append_many("log", [b"v"] * 60, headers=[[("n", bytes(100_000))]] * 60)


class TestWhatSurvives:
    @as_scenario(simulate)
    async def test_keys_timestamps_and_headers_in_any_mixture(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            log = await store.open_log("log")
            sent: list[dict[str, Any]] = [
                {},
                {"key": b"k"},
                {"time_us": 17},
                {},
                {"key": b""},
                {"headers": [("a", b"1"), ("a", None), ("ü", b"")]},
                {"key": b"z", "time_us": -5, "headers": []},
            ]
            await asyncio.gather(*(log.append_nowait(b"v", **each) for each in sent))
            found = await records(store)
            assert [each.key for each in found] == [None, b"k", None, None, b"", None, b"z"]
            assert found[5].headers == (("a", b"1"), ("a", None), ("ü", b""))
            assert {each.headers for each in found[:5] + found[6:]} == {()}
            mine = found[0].timestamp_us
            assert [each.timestamp_us for each in found] == [mine, mine, 17, *[mine] * 3, -5]
            assert blocks(cluster) == [(1, 7)]

    @pytest.mark.parametrize("block_records", [4, 7, 1000])
    @as_scenario(simulate)
    async def test_columns_that_some_calls_of_a_turn_have_and_others_do_not(
        self, cluster: ClusterAtHand, *, block_records: int
    ) -> None:
        """Records that one block takes are put into it a column at a time."""
        async with cluster.client(block_records=block_records) as store:
            calls: list[dict[str, Any]] = [
                {},
                {"keys": [b"k", None, b""]},
                {"timestamps": 7},
                {"headers": [[("a", b"1")], (), [("b", None), ("b", b"")]]},
                {"timestamps": [3, 2, 1], "keys": [None, None, None]},
                {},
            ]
            await asyncio.gather(
                *(
                    store.append_many("log", [b"%d %d" % (n, m) for m in range(3)], **columns)
                    for n, columns in enumerate(calls)
                )
            )
            found = await records(store)
        assert [each.value for each in found] == [
            b"%d %d" % (n, m) for n in range(len(calls)) for m in range(3)
        ]
        assert [each.key for each in found] == [None] * 3 + [b"k", None, b""] + [None] * 12
        assert [each.timestamp_us for each in found[6:9]] == [7, 7, 7]
        assert [each.timestamp_us for each in found[12:15]] == [3, 2, 1]
        assert all(each.timestamp_us > 10**9 for each in (*found[:6], *found[9:12]))
        assert [tuple(each.headers) for each in found[9:12]] == [
            (("a", b"1"),), (), (("b", None), ("b", b"")),
        ]  # fmt: skip
        assert not any(each.headers for each in (*found[:9], *found[12:]))

    @as_scenario(simulate)
    async def test_a_record_without_a_timestamp_gets_the_client_s_time(
        self, cluster: ClusterAtHand
    ) -> None:
        cluster.simulation.machine("node-1")
        async with cluster.client() as store:
            before = store._appends._host.clock.now_us()
            await store.append("log", b"v")
            (found,) = await records(store)
            assert before <= found.timestamp_us <= found.append_time_us
            assert found.append_time_us <= store._appends._host.clock.now_us()

    @pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
    @as_scenario(simulate)
    async def test_every_codec_and_every_kind_of_bytes(
        self, cluster: ClusterAtHand, *, codec: str
    ) -> None:
        async with cluster.client(codec=codec) as store:
            sent = [b"", b"bytes" * 1000, bytearray(b"array"), memoryview(b"a view")]
            for value in sent:
                await store.append("log", value)
            await store.append_many("log", sent)
            assert await values(store, "log") == [bytes(value) for value in sent] * 2

    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [
            (ERA + datetime.timedelta(seconds=1.5), 1_500_000),
            (ERA - datetime.timedelta(microseconds=1), -1),
            (ERA.astimezone(datetime.timezone(datetime.timedelta(hours=-7))), 0),
            (datetime.datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=UTC), 1_782_907_200_000_001),
            (-(2**63), -(2**63)),
            (2**63 - 1, 2**63 - 1),
        ],
    )
    @as_scenario(simulate)
    async def test_a_timestamp_with_a_time_zone_or_in_microseconds(
        self, cluster: ClusterAtHand, *, timestamp, expected
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v", timestamp=timestamp)
            await store.append_many("log", [b"v", b"v"], timestamps=timestamp)
            await store.append_many("log", [b"v"], timestamps=[timestamp])
            assert {each.timestamp_us for each in await records(store)} == {expected}


class TestRefused:
    """A request that is wrong is refused to its caller, and to nobody else."""

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"value": "text"}, BadSetting),
            ({"value": None}, BadSetting),
            ({"value": b"v", "key": "text"}, BadSetting),
            ({"value": b"v", "headers": [("name", "text")]}, BadSetting),
            ({"value": b"v", "headers": [(b"name", b"v")]}, BadSetting),
            ({"value": b"v", "headers": [("name",)]}, BadSetting),
            ({"value": b"v", "headers": [("\ud800", b"v")]}, BadSetting),
            ({"value": b"v", "timestamp": 2**63}, BadSetting),
            ({"value": b"v", "timestamp": -(2**63) - 1}, BadSetting),
            ({"value": b"v", "timestamp": 1.5}, BadSetting),
            ({"value": b"v", "timestamp": datetime.datetime(2026, 1, 1)}, BadSetting),
            ({"value": memoryview(b"12345678").cast("I")}, BadSetting),
            ({"value": bytes(1001)}, RecordTooLarge),
            ({"value": bytes(600), "key": bytes(401)}, RecordTooLarge),
            ({"value": b"v", "headers": [("name", bytes(1000))]}, RecordTooLarge),
        ],
    )
    @as_scenario(simulate)
    async def test_and_the_others_of_its_turn_are_stored(
        self, cluster: ClusterAtHand, *, arguments, error
    ) -> None:
        """An error while the block was made was nobody's: no future of it was ever settled."""
        async with cluster.client(block_bytes=1000, timeout_s=3) as store:
            await store.open_log("log")
            bad = asyncio.create_task(store.append("log", **arguments))
            good = asyncio.create_task(store.append("log", b"good"))
            async with asyncio.timeout(2):
                with pytest.raises(error):
                    await bad
                assert await good == at(1)
            assert await values(store, "log") == [b"good"]
            assert nobody_waits(store)

    @pytest.mark.parametrize(
        ("columns", "error", "why"),
        [
            ({"values": [b"1", "2"]}, BadSetting, "a "),
            ({"values": [b"1", bytes(1001)]}, RecordTooLarge, "1001 bytes.*block_bytes"),
            ({"values": [b"1"], "keys": []}, BadSetting, "1 values, but 0 keys"),
            ({"values": [b"1"], "keys": ["k"]}, BadSetting, "a "),
            ({"values": [b"1"], "headers": [[], []]}, BadSetting, "1 values, but 2 headers"),
            ({"values": [b"1", b"2"], "timestamps": [1]}, BadSetting, "2 values, but 1 timestamps"),
            ({"values": [b"1"], "timestamps": [2**63]}, BadSetting, "a "),
            ({"values": [b"1"], "timestamps": 2**63}, BadSetting, "a "),
            ({"values": [b"1"], "headers": [[("n", bytes(1000))]]}, RecordTooLarge, "block_bytes"),
        ],
    )
    @as_scenario(simulate)
    async def test_many_at_once_are_all_checked_before_any_is_sent(
        self, cluster: ClusterAtHand, *, columns, error, why: str
    ) -> None:
        async with cluster.client(block_bytes=1000, block_records=1, timeout_s=3) as store:
            await store.open_log("log")
            good = asyncio.create_task(store.append("log", b"good"))
            async with asyncio.timeout(2):
                with pytest.raises(error, match=why):
                    await store.append_many("log", **columns)
                await good
            assert await values(store, "log") == [b"good"]
            assert nobody_waits(store)

    @as_scenario(simulate)
    async def test_none_at_all_are_stored_at_once(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            assert await store.append_many("log", []) == []
            assert await store.append_many("log", [], keys=[], timestamps=[]) == []
            assert await values(store, "log") == []

    @as_scenario(simulate, wal_bytes=16 * MIB)
    async def test_the_largest_record_is_as_large_as_a_block(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(block_bytes=MIB) as store:
            await store.append("log", bytes(MIB))
            with pytest.raises(RecordTooLarge, match=r"1048577 bytes.*hold 1048576"):
                await store.append("log", bytes(MIB + 1))
            log = await store.open_log("log")
            with pytest.raises(RecordTooLarge):
                log.append_nowait(bytes(MIB), b"k")

    @as_scenario(simulate, wal_bytes=4 * MIB)
    async def test_a_block_that_the_nodes_are_too_small_for_is_refused_by_them(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(block_bytes=4 * MIB) as store:
            with pytest.raises(RecordTooLarge, match="a block has at most"):
                await store.append("log", bytes(3 * MIB))
            await store.append("log", b"small")
            assert await values(store, "log") == [b"small"]

    @as_scenario(simulate, create_logs=False)
    async def test_a_log_that_is_not_there_and_may_not_be_made(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            with pytest.raises(UnknownLog, match="cordwood logs create"):
                await store.append("log", b"v")
            await store.create_log("log")
            assert await store.append("log", b"v") == at(1)
            with pytest.raises(BadSetting, match="no log name"):
                await store.append("no log", b"v")


class TestRetries:
    @as_scenario(simulate, wal_bytes=16 * MIB, sequencer=SequencerSettings(window_bytes=MIB))
    async def test_refusals_that_stored_nothing_are_tried_again(
        self, cluster: ClusterAtHand
    ) -> None:
        """Four times the sequencer's window at once: most are told Overloaded at first."""
        async with cluster.client(block_bytes=64 << 10) as store:
            sent = [bytes([n % 256]) * (60 << 10) for n in range(70)]
            log = await store.open_log("log")
            lsns = await asyncio.gather(*(log.append_nowait(value) for value in sent))
            assert sorted(lsns) == [at(n) for n in range(1, 71)]
            by_lsn = dict(zip(lsns, sent, strict=True))
            for each in await records(store):
                assert by_lsn[each.lsn] == each.value
            assert nobody_waits(store)

    @as_scenario(simulate)
    async def test_nothing_stored_within_the_deadline_is_retryable_with_the_reason(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            await store.append("log", b"v")
            victim = next(n for n in (1, 2, 3) if n != cluster.sequencer_of(LOG))
            cluster.kill(victim)
            await asyncio.sleep(0.5)
            start = now()
            with pytest.raises(TooFewNodes, match=rf"wants 3 copies.*down: {victim}\)"):
                await store.append("log", b"w")
            assert 2.8 <= now() - start < 3.5
            assert nobody_waits(store)
            await cluster.start(victim)
            assert await store.append("log", b"x") == at(2)

    @as_scenario(simulate)
    async def test_an_append_waits_for_a_node_that_comes_back_in_time(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            victim = next(n for n in (1, 2, 3) if n != cluster.sequencer_of(LOG))
            cluster.kill(victim)
            await asyncio.sleep(0.5)
            waiting = asyncio.create_task(store.append("log", b"w"))
            await asyncio.sleep(5)
            assert not waiting.done()
            await cluster.start(victim)
            assert await waiting == at(2)
            assert await values(store, "log") == [b"v", b"w"]

    @as_scenario(simulate)
    async def test_in_flight_at_the_deadline_is_an_unknown_outcome_and_is_not_sent_again(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=2) as store:
            await store.append("log", b"v")
            victim = next(n for n in (1, 2, 3) if n != cluster.sequencer_of(LOG))
            cluster.machine(victim).pause()
            start = now()
            with pytest.raises(OutcomeUnknown, match=r"no answer within 2 s.*read the log"):
                await store.append("log", b"w")
            assert 2 <= now() - start < 2.5
            cluster.machine(victim).resume()
            assert await store.append("log", b"x") == at(3)
            assert await values(store, "log") == [b"v", b"w", b"x"], "it was stored, once"
            assert nobody_waits(store)

    @as_scenario(simulate)
    async def test_a_lost_connection_makes_what_is_in_flight_unknown_at_once(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            for number in (1, 2, 3):
                if number != cluster.sequencer_of(LOG):
                    cluster.machine(number).pause()
            waiting = asyncio.create_task(store.append("log", b"w"))
            await asyncio.sleep(0.1)
            start = now()
            cluster.kill(cluster.sequencer_of(LOG))
            with pytest.raises(OutcomeUnknown, match=r"connection to node \d was lost"):
                await waiting
            assert now() - start < 1
            assert nobody_waits(store)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_what_comes_back_keeps_its_place(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A block that was sent back was numbered after blocks that it was submitted before:
        those sent meanwhile, and those that came back later and were sent again earlier."""
        chance = random.Random(seed)
        admit = SequencerRole._admit

        def moody(self: SequencerRole, *asked: Any) -> Any:
            if chance.random() < 0.1:
                return Overloaded("not just now"), NodeId(0)
            return admit(self, *asked)

        swap(monkeypatch, SequencerRole._admit, moody)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(block_records=2, timeout_s=60) as store:
                log = await store.open_log("log")
                futures = []
                for number in range(300):
                    futures.append(log.append_nowait(b"%d" % number))
                    if number % 5 == 0:
                        await asyncio.sleep(chance.choice((0, 0.0003, 0.002)))
                lsns = await asyncio.gather(*futures)
                assert lsns == [at(n) for n in range(1, 301)]

        simulate(scenario, nodes=3, seed=seed)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_what_is_sent_elsewhere_waits_for_answers_that_are_owed(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A block was sent on to another node, and blocks behind it at the first node came back
        later: what was submitted after them was stored before them, by the other node."""
        chance = random.Random(seed)
        admit = SequencerRole._admit

        def moody(self: SequencerRole, *asked: Any) -> Any:
            if chance.random() < 0.05:
                successor = NodeId(self._node % 3 + 1)
                return NoSequencer(f"node {successor} takes over"), successor
            return admit(self, *asked)

        swap(monkeypatch, SequencerRole._admit, moody)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(block_records=2, timeout_s=60) as store:
                log = await store.open_log("log")
                futures = []
                for number in range(300):
                    futures.append(log.append_nowait(b"%d" % number))
                    if number % 3 == 0:
                        await asyncio.sleep(chance.choice((0, 0.0003, 0.002)))
                lsns = await asyncio.gather(*futures, return_exceptions=True)
                stored = [lsn for lsn in lsns if isinstance(lsn, Lsn)]
                assert len(stored) > 200
                assert stored == sorted(stored)
                numbers = [int(value) for value in await values(store, "log")]
                assert numbers == sorted(numbers)

        simulate(scenario, nodes=3, seed=seed)

    @pytest.mark.parametrize("late", [[], [UnknownLog("it was deleted")]])
    def test_a_producer_s_block_that_may_be_stored_is_never_called_not_stored(
        self, late: list[CordwoodError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was in flight when its sequencer died, and then refused: by one that had no room
        until the deadline, or for good."""
        admit = SequencerRole._admit
        refusals: list[CordwoodError] = []

        def refuse(self: SequencerRole, *asked: Any) -> Any:
            if not refusals:
                return admit(self, *asked)
            return refusals[0] if len(refusals) == 1 else refusals.pop(0), NodeId(0)

        swap(monkeypatch, SequencerRole._admit, refuse)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(timeout_s=20) as store:
                producer = Producer(7)
                await store.append("log", b"v", producer=producer)
                others = [n for n in (1, 2, 3) if n != cluster.sequencer_of(LOG)]
                for number in others:
                    cluster.machine(number).pause()
                waiting = asyncio.create_task(store.append("log", b"w", producer=producer))
                await asyncio.sleep(0.1)
                refusals[:] = [Overloaded("not now"), Overloaded("nor now"), *late]
                victim = cluster.sequencer_of(LOG)
                cluster.kill(victim)
                for number in others:
                    cluster.machine(number).resume()
                await cluster.start(victim)
                with pytest.raises(OutcomeUnknown, match="was sent before and not answered"):
                    await waiting
                refusals.clear()
                assert await store.append("log", b"x", producer=Producer(7, 1))
                assert await values(store, "log") == [b"v", b"w", b"x"], "it was stored"

        simulate(scenario)


class TestWindow:
    @as_scenario(simulate)
    async def test_who_waits_for_room_goes_in_turn(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(window_records=10, block_records=4) as store:
            await store.open_log("log")
            lsns = await asyncio.gather(*(store.append("log", b"%d" % n) for n in range(95)))
            assert lsns == [at(n) for n in range(1, 96)]
            assert nobody_waits(store)

    @as_scenario(simulate)
    async def test_room_for_many_wakes_many(self, cluster: ClusterAtHand) -> None:
        """One for each block that came back: a thousand callers went one by one, a round
        trip each."""
        async with cluster.client(window_records=100) as store:
            await store.append("log", b"first")
            start = now()
            await asyncio.gather(*(store.append("log", b"v") for _ in range(1000)))
            assert len(blocks(cluster)) <= 15
            assert now() - start < 0.2

    @as_scenario(simulate)
    async def test_room_in_bytes_is_waited_for_in_turn_too(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(window_bytes=4096, block_bytes=2048) as store:
            await store.open_log("log")
            calls = [store.append("log", b"%04d" % n * 100) for n in range(60)]
            assert await asyncio.gather(*calls) == [at(n) for n in range(1, 61)]

    @as_scenario(simulate)
    async def test_who_does_not_wait_is_told(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(window_records=3) as store:
            log = await store.open_log("log")
            futures = [log.append_nowait(b"v") for _ in range(3)]
            with pytest.raises(Overloaded, match="3 records, 3 bytes are in flight"):
                log.append_nowait(b"v")
            await log.wait_space()
            futures.append(log.append_nowait(b"v"))
            assert await asyncio.gather(*futures) == [at(n) for n in (1, 2, 3, 4)]

    @as_scenario(simulate)
    async def test_many_at_once_go_through_a_small_window(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(window_records=50, block_records=20) as store:
            lsns = await store.append_many("log", [b"%d" % n for n in range(1000)])
            assert lsns == [at(n) for n in range(1, 1001)]
            assert await values(store, "log") == [b"%d" % n for n in range(1000)]

    @as_scenario(simulate)
    async def test_a_cancelled_append_gives_its_room_back_once_it_is_answered(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            going = asyncio.create_task(store.append("log", b"w"))
            await asyncio.sleep(0)
            going.cancel()
            await asyncio.wait([going])
            await asyncio.sleep(1)
            assert nobody_waits(store)


class TestClose:
    @as_scenario(simulate)
    async def test_in_flight_is_unknown_what_waits_is_closed_and_nothing_is_taken_after(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(window_records=2) as store:
            await store.append("log", b"v")
            log = await store.open_log("log")
            for number in (1, 2, 3):
                cluster.machine(number).pause()
            in_flight = log.append_nowait(b"in flight")
            await asyncio.sleep(0.01)
            same_turn = log.append_nowait(b"not sent yet")
            waiting = asyncio.create_task(store.append("log", b"waits for room"))
            many = asyncio.create_task(store.append_many("log", [b"waits too"]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            start = now()
            await store.close()
            assert now() - start < 1
            with pytest.raises(OutcomeUnknown, match="was in flight"):
                await in_flight
            with pytest.raises((Closed, OutcomeUnknown)):
                await same_turn
            for task in (waiting, many):
                with pytest.raises(Closed):
                    await task
            for call in (
                store.append("log", b"v"),
                store.append_many("log", [b"v"]),
                store.open_log("log"),
                store.tail("log"),
                log.wait_space(),
            ):
                with pytest.raises(Closed):
                    await call
            with pytest.raises(Closed):
                log.append_nowait(b"v")
            await store.close()

    @as_scenario(simulate)
    async def test_blocks_sent_before_the_close_are_no_block_was_stored(
        self, cluster: ClusterAtHand
    ) -> None:
        """Some of many were in flight: that they were not stored is more than is known."""
        async with cluster.client(window_records=2, block_records=2) as store:
            await store.append("log", b"v")
            many = asyncio.create_task(store.append_many("log", [b"v"] * 9))
            await asyncio.sleep(0.001)
            await store.close()
            with pytest.raises(OutcomeUnknown):
                await many

    @as_scenario(simulate)
    async def test_a_client_whose_cluster_has_gone_closes_at_once(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            for number in (1, 2, 3):
                cluster.kill(number)
            waiting = asyncio.create_task(store.append("log", b"v"))
            await asyncio.sleep(0.5)
            start = now()
            await store.close()
            assert now() - start < 0.5
            with pytest.raises(CordwoodError):
                await waiting


@as_scenario(simulate)
async def test_a_cluster_that_is_gone_is_retryable_at_the_deadline(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=4) as store:
        await store.append("log", b"v")
        for number in (1, 2, 3):
            cluster.kill(number)
        await asyncio.sleep(1)
        start = now()
        with pytest.raises(Retryable):
            await store.append("log", b"w")
        assert 3.8 - 1e-6 <= now() - start < 4.5
        with pytest.raises(Retryable):
            await store.append_many("log", [b"w"])
        await cluster.start()
        await until(lambda: len(store._cluster.peers.up) == 3)
        await store.append("log", b"x")
        assert await values(store, "log") == [b"v", b"x"]
