"""Readers of several logs: fairness, portions, seeking, refusal, Arrow, and health."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, at, numbers, simulate
from scenarios import as_scenario, now
from swaps import swap, swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.client.cluster import REFRESH_S
from cordwood.client.find.log_info import AnyLog
from cordwood.client.read.read_stream import HEALTH_S, ReadStream
from cordwood.client.read.reader import Reader
from cordwood.client.store import Store
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    Overloaded,
    UnknownLog,
    Unreachable,
)
from cordwood.lsn import make_lsn
from cordwood.protocol.read_window import CREDIT_BYTES_MIN
from cordwood.sequencer import appender
from cordwood.storage.push import read_streams
from cordwood.storage.push.read_streams import ReadStreams


async def fill(store: Store, log: str, *sizes: int, key: bytes | None = None) -> None:
    """Blocks of so many records; values count up from 1."""
    number = 0
    for size in sizes:
        values = [b"%d" % (number + n) for n in range(1, size + 1)]
        await store.append_many(log, values, keys=None if key is None else [key] * size)
        number += size


async def rest(reader: Reader) -> tuple[list[int], list[type[CordwoodError]]]:
    """All that comes, and the errors that are told meanwhile."""
    found: list[int] = []
    told: list[type[CordwoodError]] = []
    while len(told) < 10:
        try:
            portion = await reader.read(timeout_s=5)
        except CordwoodError as error:
            told.append(type(error))
            continue
        if not portion:
            break
        found += numbers(portion)
    return found, told


class TestPortions:
    @as_scenario(simulate)
    async def test_a_portion_has_at_most_so_many_records_of_one_block(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 5, 2)
            async with await store.reader("log", until=at(7)) as reader:
                found = [numbers(await reader.read(3)) for _ in range(4)]
                assert found == [[1, 2, 3], [4, 5], [6, 7], []]
                assert not await reader.read()

    @as_scenario(simulate)
    async def test_nothing_within_the_timeout_is_an_empty_portion(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 1)
            reader = await store.reader("log")
            assert numbers(await reader.read(timeout_s=1)) == [1]
            start = now()
            assert not await reader.read(timeout_s=0.5)
            # Rounded: two readings of a clock of floats differ by a hair more or less.
            assert 0.5 <= round(now() - start, 9) < 0.6
            await fill(store, "log", 2)
            assert numbers(await reader.read(timeout_s=0.5)) == [1, 2]
            assert reader.position("log") == at(4)

    @as_scenario(simulate)
    async def test_a_gap_comes_alone_and_may_be_left_out(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 2)
            victim = cluster.sequencer_of(1)
            cluster.kill(victim)
            await cluster.start(victim)
            await fill(store, "log", 1)
            until = make_lsn(2, 1)
            with_gaps = await store.reader("log", until=until)
            portions = [await with_gaps.read() for _ in range(3)]
            assert [len(each.records) for each in portions] == [2, 0, 1]
            assert portions[1].gap == Gap(at(3), make_lsn(2, 0), GapKind.BRIDGE)
            without = await store.reader("log", until=until, gaps=False)
            assert numbers([item async for _, item in without]) == [1, 2, 1]

    @as_scenario(simulate)
    async def test_keys(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 3, key=b"a")
            await fill(store, "log", 2, key=b"b")
            await fill(store, "log", 2)
            reader = await store.reader("log", until=at(7), keys=[b"b", b"c"])
            found = [item async for _, item in reader]
            assert [each.value for each in found if isinstance(each, Record)] == [b"1", b"2"]
            assert [each for each in found if isinstance(each, Gap)] == [
                Gap(at(1), at(3), GapKind.FILTERED),
                Gap(at(6), at(7), GapKind.FILTERED),
            ]
            assert sum(n._streams.unwanted_blocks for n in cluster.running.values()) == 2


class TestManyLogs:
    @as_scenario(simulate)
    async def test_a_busy_log_does_not_starve_the_others(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "busy", *[4] * 50)
            for log in ("a", "b"):
                await fill(store, log, *[1] * 10)
            reader = await store.reader("busy", "a", "b")
            assert reader.logs == ("a", "b", "busy")
            await asyncio.sleep(1)
            turns = [(await reader.read()).log for _ in range(24)]
            for log in ("busy", "a", "b"):
                assert 7 <= turns.count(log) <= 9

    @as_scenario(simulate)
    async def test_each_log_is_in_order_and_all_comes(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for log in "abc":
                await fill(store, log, 3, 1, 5)
            reader = await store.reader("a", "b", "c", until=at(9))
            seen: dict[str, list[int]] = {}
            async for log, item in reader:
                seen.setdefault(log, []).append(int(item.value))
            assert seen == {log: [*range(1, 10)] for log in "abc"}

    @as_scenario(simulate)
    async def test_logs_may_come_and_go(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 1)
            await fill(store, "b", 1)
            reader = await store.reader("a")
            assert (await reader.read()).log == "a"
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(1)
            await reader.start("b")
            assert (await waiting).log == "b"
            reader.stop("a")
            reader.stop("a")
            await fill(store, "a", 1)
            assert not await reader.read(timeout_s=2)
            assert reader.logs == ("b",)

    @as_scenario(simulate)
    async def test_seek(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 4, 4)
            reader = await store.reader("a", until=at(8))
            assert numbers(await reader.read(2)) == [1, 2]
            assert reader.position("a") == at(3)
            await reader.seek("a", at(7))
            assert numbers(await reader.read()) == [7, 8]
            await reader.seek("a", "oldest")
            assert numbers(await reader.read(1)) == [1]
            for call in (reader.seek("b", 1),):
                with pytest.raises(BadSetting, match="not read"):
                    await call
            with pytest.raises(BadSetting, match="not read"):
                reader.position("b")

    @as_scenario(simulate)
    async def test_closing_ends_a_read_that_waits(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 1)
            reader = await store.reader("a", start="tail")
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(1)
            reader.close()
            with pytest.raises(Closed):
                await waiting
            left = await store.reader("a", start="tail")
        with pytest.raises(Closed):
            await left.read()


class TestMemory:
    @as_scenario(simulate, wal_bytes=16 << 20)
    async def test_many_streams_share_one_budget_and_all_come_to_their_ends(
        self, cluster: ClusterAtHand
    ) -> None:
        """A reader that does not read holds what it was granted; the others go on."""
        logs = [f"log{n}" for n in range(8)]
        budget = {"read_bytes": 1 << 20, "read_memory_bytes": 1 << 20}
        async with cluster.client() as writer, cluster.client(**budget) as store:
            for log in logs:
                for _ in range(10):
                    await writer.append(log, bytes(30_000))
            idle = [await store.read(log, until=at(10)) for log in logs]
            await asyncio.sleep(2)
            held = sum(
                source.credit.held for stream in idle for source in stream.senders.sources.values()
            )
            floors = len(idle) * 3 * (CREDIT_BYTES_MIN + 30_000)
            assert 0 < held <= (1 << 20) + floors
            async with await store.reader(*logs, until=at(10)) as reader:
                assert len([item async for item in reader]) == 80
            for stream in idle:
                stream.close()
            assert store._budget.free == store._budget.limit


class TestDelivery:
    @as_scenario(simulate)
    async def test_what_is_refused_comes_again_and_holds_up_its_own_log_only(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 3)
            await fill(store, "b", 3)
            reader = await store.reader("a", "b", until=at(3))
            seen: list[tuple[str, int, float]] = []
            start = now()

            def accept(log: str, item: Record | Gap) -> bool:
                number = int(item.value)
                tries = [each for each in seen if each[:2] == (log, number)]
                seen.append((log, number, now() - start))
                return (log, number) != ("a", 2) or len(tries) == 3

            await reader.deliver(accept)
            accepted = [each[:2] for each in seen]
            assert [number for log, number in accepted if log == "b"] == [1, 2, 3]
            assert [number for log, number in accepted if log == "a"] == [1, 2, 2, 2, 2, 3]
            again = [when for log, number, when in seen if (log, number) == ("a", 2)]
            pauses = [round(late - early) for early, late in itertools.pairwise(again)]
            assert pauses == [1, 2, 4]
            assert max(when for log, _, when in seen if log == "b") < 1


class TestKeys:
    @pytest.mark.parametrize("wanted", [None, [b"b"]])
    @as_scenario(simulate)
    async def test_records_come_without_them_where_they_are_not_wanted(
        self, cluster: ClusterAtHand, *, wanted
    ) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"1", b"2", b"3"], keys=[b"a", b"b", None])
            for record_keys in (True, False):
                stream = await store.read("log", keys=wanted, record_keys=record_keys)
                found = [item async for item in stream if isinstance(item, Record)]
                values = [b"1", b"2", b"3"] if wanted is None else [b"2"]
                assert [each.value for each in found] == values
                assert any(each.key for each in found) is record_keys
            reader = await store.reader("log", until=at(3), record_keys=False)
            items = [item async for _, item in reader]
            assert [item.key for item in items if isinstance(item, Record)] == [None] * 3


class TestArrow:
    @as_scenario(simulate)
    async def test_batches_hold_what_records_hold_and_gaps_that_lose_nothing_are_left_out(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 100, 1, 1, 50)
            victim = cluster.sequencer_of(1)
            cluster.kill(victim)
            await cluster.start(victim)
            await fill(store, "log", 3)
            until = make_lsn(2, 3)
            stream = await store.read("log", at(5), until)
            batches = [item async for item in stream.arrow(["lsn", "value"])]
            lsns = [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]
            values = [v for batch in batches for v in batch.column("value").to_pylist()]
            assert lsns == [at(n) for n in range(5, 153)] + [make_lsn(2, n) for n in (1, 2, 3)]
            assert values[0] == b"5"
            assert len(batches) < 6
            stream = await store.read("log", at(150), until)
            kinds = [type(item).__name__ async for item in stream.arrow(gaps=True)]
            assert kinds == ["RecordBatch", "Gap", "RecordBatch"]
            stream = await store.read("log")
            with pytest.raises(BadSetting):
                await anext(stream.arrow(["nonsense"]))


class TestLeftOut:
    @as_scenario(simulate)
    async def test_without_payloads_records_come_with_their_places_and_times(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 3, 1, key=b"a")
            whole = [item async for item in await store.read("log")]
            before = sum(n._streams.sent_bytes for n in cluster.running.values())
            bare = [item async for item in await store.read("log", payloads=False)]
            sent = sum(n._streams.sent_bytes for n in cluster.running.values()) - before
            assert [(r.lsn, r.append_time_us) for r in bare] == [
                (r.lsn, r.append_time_us) for r in whole
            ]
            assert {(r.value, r.key) for r in bare} == {(b"", None)}
            held = cluster.running[1].engine.cache.log(1)
            assert sent == sum(len(held.at(n).wire) for n in range(2)), "heads of two blocks"
            stream = await store.read("log", at(2), payloads=False)
            (batch,) = [each async for each in stream.arrow(["lsn", "value", "timestamp"])]
            assert batch.column("lsn").to_pylist() == [at(2), at(3), at(4)]
            assert batch.column("value").to_pylist() == [b""] * 3
            with pytest.raises(BadSetting, match="payloads"):
                await store.read("log", keys=[b"a"], payloads=False)

    @as_scenario(simulate)
    async def test_batches_have_the_rows_with_the_keys_that_are_wanted(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            keys = [b"a", None, b"b"] * 40
            await store.append_many("log", [b"%d" % n for n in range(120)], keys=keys)
            await store.append_many("log", [b"120", b"121"], keys=[b"b", None])
            await store.append_many("log", [b"122"] * 50, keys=[b"c"] * 50)
            for columns in (["value"], ["value", "key"]):
                stream = await store.read("log", keys=[b"b"])
                batches = [each async for each in stream.arrow(columns, gaps=True)]
                gaps = [each for each in batches if isinstance(each, Gap)]
                rows = [each for each in batches if not isinstance(each, Gap)]
                values = [v for each in rows for v in each.column("value").to_pylist()]
                assert values == [b"%d" % n for n in range(2, 121, 3)] + [b"120"]
                assert all(each.schema.names == columns for each in rows)
                assert gaps == [Gap(at(123), at(172), GapKind.FILTERED)]

    def test_single_copies_tile_where_blocks_are_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: appender.STICKY_BYTES, 1)

        async def scenario(cluster: ClusterAtHand) -> None:
            for settings in ({}, {"scd_enabled": False}):
                async with cluster.client(**settings) as store:
                    log = f"log{len(settings)}"
                    for number in range(60):
                        await fill(store, log, 2, key=b"%d" % (number % 7))
                    stream = await store.read(log, at(2), at(119), keys=[b"3", b"none"])
                    items = [item async for item in stream]
                    expected = at(2)
                    for item in items:
                        first = item.lsn if isinstance(item, Record) else item.first
                        assert first == expected
                        expected = (item.lsn if isinstance(item, Record) else item.last) + 1
                    assert expected == at(120)
                    assert [r.key for r in items if isinstance(r, Record)] == [b"3"] * 17
                    kinds = {item.kind for item in items if isinstance(item, Gap)}
                    assert kinds == {GapKind.FILTERED}

        simulate(scenario, nodes=5, copies=3)


class TestPassingErrors:
    @pytest.mark.parametrize("kind", ["reader", "consumer"])
    @as_scenario(simulate)
    async def test_a_log_whose_stream_failed_is_begun_again_where_it_stood(
        self, cluster: ClusterAtHand, *, kind: str
    ) -> None:
        """Its error was told once, and the log was never read again."""
        async with cluster.client() as store:
            await fill(store, "a", 3)
            await fill(store, "b", 3, 3)
            if kind == "reader":
                reading = reader = await store.reader("/a", "/b")
            else:
                reading = await store.consumer("c", "a", "b")
                await reading.start()
                reader = reading._reader
            found: dict[str, list[int]] = {"/a": [], "/b": []}

            async def read() -> None:
                while portion := await reading.read(2, timeout_s=2):
                    found[portion.log] += numbers(portion)
                    if found == {"/a": [1, 2], "/b": [1, 2]}:
                        break

            await read()
            failing = reader._feed("/b").stream
            failing.fail(Overloaded("no room for one more read stream"))
            with pytest.raises(Overloaded):
                await read()
            await read()
            assert found == {"/a": [1, 2, 3], "/b": [1, 2, 3, 4, 5, 6]}
            await fill(store, "b", 1)
            await read()
            assert found["/b"][6:] == [1]
            assert reader._feed("/b").stream is not failing

    @as_scenario(simulate)
    async def test_one_that_cannot_be_begun_rests_and_the_others_are_read(
        self, cluster: ClusterAtHand
    ) -> None:
        """Each call tried it again first, and told its error: nothing else was ever read."""
        async with cluster.client() as store:
            await fill(store, "a", 1)
            await fill(store, "b", 1)
            reader = await store.reader("a", "b")
            for _ in range(2):
                await reader.read(timeout_s=1)
            opening = reader._open

            number = reader._feed("b").stream.info.log_id

            async def refuse(log: AnyLog, *where: Any) -> Any:
                if log == number:
                    raise Unreachable("no sequencer")
                return await opening(log, *where)

            reader._open = refuse
            reader._feed("b").stream.fail(Overloaded("no room for one more read stream"))
            await fill(store, "a", 5)
            found: list[int] = []
            told: list[CordwoodError] = []
            while len(found) < 5 and len(told) < 10:
                try:
                    found += numbers(await reader.read(1))
                except CordwoodError as error:
                    told.append(error)
            assert found == [1, 2, 3, 4, 5]
            assert isinstance(told[-1], Unreachable)
            assert len(told) < 5
            reader._open = opening
            await fill(store, "b", 1)
            assert numbers(await reader.read()) == [1]

    @as_scenario(simulate)
    async def test_one_that_was_deleted_meanwhile_is_told_once(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 1)
            await fill(store, "b", 1)
            reader = await store.reader("a", "b")
            for _ in range(2):
                await reader.read(timeout_s=1)
            await store.log_tree.delete("b")
            await asyncio.sleep(3 * REFRESH_S)
            reader._feed("b").stream.fail(Overloaded("no room for one more read stream"))
            assert await rest(reader) == ([], [Overloaded, UnknownLog])
            await fill(store, "a", 1)
            assert await rest(reader) == ([1], [])

    @as_scenario(simulate)
    async def test_it_goes_on_in_its_log_whichever_has_the_name_by_then(
        self, cluster: ClusterAtHand
    ) -> None:
        """It went on in the log that had the name, at a place of the one that it had read."""
        async with cluster.client() as store:
            await fill(store, "log", 1, 1)
            reader = await store.reader("log")
            assert numbers(await reader.read()) == [1]
            await store.log_tree.rename("log", "old")
            await store.create_log("log")
            await asyncio.sleep(3 * REFRESH_S)
            await store.append_many("log", [b"91", b"92", b"93"])
            reader._feed("log").stream.fail(Overloaded("no room for one more read stream"))
            assert await rest(reader) == ([2], [Overloaded])
            await reader.seek("log", "oldest")
            assert numbers(await reader.read()) == [1]

    @as_scenario(simulate)
    async def test_a_callback_gets_the_rest_of_a_log_whose_error_was_told(
        self, cluster: ClusterAtHand
    ) -> None:
        """The next `deliver` returned as if all had been read to its end."""
        async with cluster.client() as store:
            await fill(store, "a", 1, 1, 1)
            await fill(store, "b", 1, 1, 1)
            reader = await store.reader("a", "b", until="tail")
            found: list[int] = []

            def accept(_: str, item: Record | Gap) -> None:
                assert isinstance(item, Record)
                found.append(int(item.value))
                if len(found) == 2:
                    reader._feed("b").stream.fail(Overloaded("no room for one more"))

            with pytest.raises(Overloaded):
                await reader.deliver(accept)
            await reader.deliver(accept)
            assert sorted(found) == [1, 1, 2, 2, 3, 3]

    @as_scenario(simulate)
    async def test_a_log_that_is_stopped_while_it_is_sought_stays_stopped(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 3)
            reader = await store.reader("log")
            right = reader._open

            async def late(*asked: Any) -> ReadStream:
                await asyncio.sleep(0.5)
                return await right(*asked)

            reader._open = late
            seeking = asyncio.create_task(reader.seek("log", at(1)))
            await asyncio.sleep(0.1)
            reader.stop("log")
            with pytest.raises(BadSetting, match="stopped meanwhile"):
                await seeking
            assert reader.logs == ()

    @pytest.mark.parametrize("meanwhile", ["seek", "stop", "read"])
    @as_scenario(simulate)
    async def test_what_is_done_with_it_while_it_is_begun_again_stands(
        self, cluster: ClusterAtHand, *, meanwhile: str
    ) -> None:
        """A seek was undone, a stopped log read on, and what another call had given came again."""
        async with cluster.client() as store:
            await fill(store, "log", 20)
            reader = await store.reader("log", start=at(1), until=at(30))
            assert numbers(await reader.read(20)) == [*range(1, 21)]
            await fill(store, "log", 10)
            reader._feed("log").stream.fail(Overloaded("no room for one more read stream"))
            with pytest.raises(Overloaded):
                await reader.read()
            right = reader._open

            async def late(*asked: Any) -> ReadStream:
                await asyncio.sleep(0.5)
                return await right(*asked)

            reader._open = late
            reading = [asyncio.create_task(rest(reader))]
            await asyncio.sleep(0.1)
            if meanwhile == "stop":
                reader.stop("log")
            elif meanwhile == "read":
                reading.append(asyncio.create_task(rest(reader)))
            else:
                reader._open = right
                await reader.seek("log", at(11))
            found = [number for task in reading for number in (await task)[0]]
            wanted = {"seek": (1, 21), "stop": (0, 0), "read": (1, 11)}
            assert sorted(found) == [*range(*wanted[meanwhile])]
            assert reader.logs == (() if meanwhile == "stop" else ("log",))

    @as_scenario(simulate)
    async def test_one_that_was_to_end_at_the_tail_ends_at_that_tail(
        self, cluster: ClusterAtHand
    ) -> None:
        """The tail was asked for anew, and records behind the asked end were given."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            reader = await store.reader("log", until="tail")
            reader._feed("log").stream.fail(Overloaded("no room for one more read stream"))
            with pytest.raises(Overloaded):
                await reader.read()
            await fill(store, "log", 3)
            assert numbers(await reader.read()) == [1, 2, 3]
            assert not await reader.read()


class TestHealth:
    @as_scenario(simulate)
    async def test_a_reader_that_stands_still_says_so_and_that_it_goes_on(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 1, 1)
            held = {n: node.engine.cache.log(1) for n, node in cluster.running.items()}
            for number in (1, 2, 3):
                body = bytearray(held[number]._blocks[1].body)
                body[-1] ^= 1
                held[number]._blocks[1].body = bytes(body)
            reader = await store.reader("log", until=at(2))
            said: list[str] = []
            reader._feeds[0].stream.on_health = lambda stream, trouble: said.append(trouble)
            assert numbers(await reader.read()) == [1]
            reading = asyncio.create_task(reader.read())
            await asyncio.sleep(HEALTH_S / 2)
            assert reader.unhealthy == {}
            await asyncio.sleep(HEALTH_S)
            assert "nothing at e1n2 for 10 s" in reader.unhealthy["log"]
            body[-1] ^= 1
            held[3]._blocks[1].body = bytes(body)
            cluster.kill(3)
            await cluster.start(3)
            assert numbers(await asyncio.wait_for(reading, 60)) == [2]
            assert len(said) == 2
            assert said[1] == ""
            assert reader.unhealthy == {}

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["reader", "consumer"])
    @as_scenario(simulate)
    async def test_one_that_is_cut_off_from_everybody_says_so_though_it_knows_of_nothing_more(
        self, cluster: ClusterAtHand, *, kind: str
    ) -> None:
        """It had read all there was, and nobody could tell it of more: it was silent for good."""
        network = cluster.simulation.network
        nodes = [f"node-{number}" for number in cluster.numbers]
        said: list[tuple[str, bool]] = []

        def on_health(log: str, why: str) -> None:
            said.append((log, bool(why)))

        async with cluster.client() as store, cluster.client() as other:
            await fill(other, "/log", 1)
            if kind == "reader":
                reader = await store.reader("/log", on_health=on_health)
            else:
                reader = await store.consumer("me", "/log", on_health=on_health)
                await reader.start()
            found: list[int] = []

            async def follow() -> None:
                async for _, item in reader:
                    found.extend(numbers([item]))

            reading = asyncio.create_task(follow())
            await asyncio.sleep(100)
            assert said == [], "an idle reader is a healthy one"
            for cut in range(2):
                said.clear()
                network.partition(["client-1"], nodes)
                await asyncio.sleep(60)
                assert said == [("/log", True)]
                assert "no node reports whether there is more" in reader.unhealthy["/log"]
                if cut:
                    await fill(other, "/log", 2)
                network.mend_all()
                await asyncio.sleep(60)
                assert said == [("/log", True), ("/log", False)]
                assert reader.unhealthy == {}
            assert found == [1, 1, 2]
            reading.cancel()

    @as_scenario(simulate)
    async def test_a_log_whose_sequencer_cannot_be_asked_may_have_more(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "/log", 1)
            reader = await store.reader("/log")
            assert numbers(await reader.read()) == [1]
            reading = asyncio.create_task(reader.read())
            sequencing = cluster.sequencer_of(1)
            others = [number for number in cluster.numbers if number != sequencing]
            for number in others:
                cluster.kill(number)
                await asyncio.sleep(5)
            cluster.kill(sequencing)
            await cluster.start(sequencing)  # alone, so it cannot begin an epoch
            await asyncio.sleep(60)
            assert "2 of 3 nodes are not connected" in reader.unhealthy["/log"]
            await cluster.start(*others)
            await asyncio.sleep(60)
            assert reader.unhealthy == {}
            assert not reading.done() or reading.result().gap is not None
            reading.cancel()


class TestArrowOfManyLogs:
    @as_scenario(simulate)
    async def test_batches_of_each_log_come_in_order_with_its_name(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 100, 50)
            await fill(store, "b", 60)
            async with await store.reader("a", "b", until="tail") as reader:
                found: dict[str, list[int]] = {"a": [], "b": []}
                async for log, batch in reader.arrow(["value", "log"]):
                    assert not isinstance(batch, Gap)
                    assert set(batch.column("log").to_pylist()) == {f"/{log}"}
                    found[log] += map(int, batch.column("value").to_pylist())
            assert found == {"a": [*range(1, 151)], "b": [*range(1, 61)]}

    @as_scenario(simulate)
    async def test_it_goes_on_where_read_stopped_and_read_where_it_stopped(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 40, 40, 9000)
            async with await store.reader("log", until=at(9080)) as reader:
                assert numbers(await reader.read(3)) == [1, 2, 3]
                batches = reader.arrow(["value"])
                _, batch = await anext(batches)
                assert not isinstance(batch, Gap)
                values = [int(each) for each in batch.column("value").to_pylist()]
                upto = values[-1] + 1
                assert values == [*range(4, upto)]
                assert reader.position("log") == at(4), "the batch is in hand"
                assert numbers(await reader.read(2)) == [upto, upto + 1]
                assert reader.position("log") == at(upto + 2)

    @as_scenario(simulate)
    async def test_gaps_come_alone_and_a_wrong_column_is_refused(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 4, 4)
            await store.trim("log", at(4))
            async with await store.reader("log", start="e1n1", until=at(8)) as reader:
                with pytest.raises(BadSetting, match="no column"):
                    await anext(reader.arrow(["price"]))
                (first, second) = [taken async for _, taken in reader.arrow()]
                assert first == Gap(at(1), at(4), GapKind.TRIM)
                assert not isinstance(second, Gap)
                assert second.num_rows == 4


class TestRefusedStreams:
    def test_a_log_over_the_limit_of_streams_rests_longer_each_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node refuses a stream that was begun, and each read began it again at once."""
        swap_value(monkeypatch, lambda: read_streams.STREAMS_MAX, 1)
        begun: list[float] = []
        start = ReadStreams.start

        def noting(self: ReadStreams, *request: Any, **how: Any) -> None:
            begun.append(now())
            start(self, *request, **how)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await fill(store, "one", 3)
                await fill(store, "two", 3)
                first = await store.read("one")
                swap(monkeypatch, ReadStreams.start, noting)
                async with await store.reader("two") as reader:
                    ends, told = now() + 60, 0
                    while now() < ends:
                        try:
                            await reader.read(timeout_s=0.1)
                        except Overloaded:
                            told += 1
                    # The first two at once, then 1, 2, 4, 8, 16 and 30 s apart.
                    assert 6 <= told <= 8
                    assert begun[-1] - begun[-2] > 10
                    first.close()
                    swap_value(monkeypatch, lambda: read_streams.STREAMS_MAX, 3)
                    found = []
                    while len(found) < 3:
                        found += numbers(await reader.read(timeout_s=60))
                    assert found == [1, 2, 3]

        simulate(scenario, nodes=1, copies=1)
