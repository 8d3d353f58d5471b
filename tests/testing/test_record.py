"""Recorded stores: what goes into the history, and what the application sees of it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from swaps import swap
from verbs_at_hand import run_verb

from cordwood.block import Gap, Record
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.stream_items import StreamItems
from cordwood.client.store import Appending, Store
from cordwood.embedded import embedded_store
from cordwood.errors import BadSetting, Closed, RecordTooLarge
from cordwood.settings import MIB, ClientSettings
from cordwood.sim.checkers import check_all
from cordwood.sim.history import (
    GIVEN_UP,
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    EndReason,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    TailAnswered,
)
from cordwood.testing import Recording
from cordwood.testing.record import RecordedAppending, RecordedStore
from cordwood.testing.recorded_stream import RecordedStream


@pytest.fixture
def on_store(tmp_path: Path):
    """Run `await work(store, recording)` on an embedded store; the recording."""

    def run(work, **settings) -> Recording:
        recording = Recording(copies=1)

        async def body() -> None:
            chosen = ClientSettings(**settings)
            async with embedded_store(str(tmp_path / "data"), chosen, 8 * MIB) as plain:
                await work(recording.wrap(plain, "app", timeout_s=chosen.timeout_s), recording)

        with asyncio.Runner() as runner:
            runner.run(body())
        return recording

    return run


def of(recording: Recording, kind: type) -> list:
    """The events of one type."""
    return [event for event in recording.history if isinstance(event, kind)]


class TestEndToEnd:
    def test_a_run_on_an_embedded_store_verifies(self, on_store, tmp_path: Path):
        async def work(store, _):
            await store.append("orders", b"1", key=b"k", headers=[("a", b"x")])
            await store.append_many("orders", [b"2", b"2", b"2"])
            appending = await store.open_log("orders")
            await asyncio.gather(*(appending.append_nowait(b"%d" % n) for n in range(5)))
            read = [item async for item in await store.read("orders")]
            assert [item.value for item in read][:4] == [b"1", b"2", b"2", b"2"]
            assert read[0].key == b"k"
            assert read[0].headers == (("a", b"x"),)
            assert read[1].headers == ()

        recording = on_store(work)
        path = tmp_path / "history.jsonl"
        recording.save(path)
        outcome = run_verb(["verify", str(path)])
        assert outcome.exit_code == 0, outcome.stdout
        assert "9 records acknowledged in 7 calls" in outcome.stdout
        assert "9 records and 0 gaps in 1 reads" in outcome.stdout

    def test_a_store_that_loses_a_record_is_caught(
        self, on_store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """The history is what the application saw, so a store that lies shows in it."""

        async def work(store, _):
            lsns = [await store.append("orders", b"%d" % n) for n in range(5)]
            next_items = ReadStream.next

            async def skipping(self):
                taken = await next_items(self)
                return await next_items(self) if taken and taken.first == lsns[2] else taken

            swap(monkeypatch, ReadStream.next, skipping)
            assert len([item async for item in await store.read("orders")]) == 4

        assert {v.invariant for v in check_all(on_store(work).history.events)} == {"S2", "S6"}

    def test_a_record_of_somebody_else_is_one_that_nobody_sent(self, on_store):
        async def work(store, recording):
            await recording.wrap(store._store, "other").append("orders", b"recorded")
            await store._store.append("orders", b"not recorded")
            _ = [item async for item in await store.read("orders")]

        assert [v.invariant for v in check_all(on_store(work).history.events)] == ["S3"]


class TestAppends:
    def test_a_caller_that_waits_has_one_session_and_open_calls_one_each(self, on_store):
        async def work(store, _):
            await store.append("orders", b"1")
            await store.append("orders", b"2")
            await asyncio.gather(*(store.append("orders", b"3") for _ in range(3)))
            await store.append("orders", b"4")

        invoked = of(on_store(work), AppendInvoked)
        assert [event.session for event in invoked] == [0, 0, 0, 1, 2, 0]
        assert [event.payloads[0].id for event in invoked] == [f"app/{n}" for n in range(6)]
        assert {event.timeout_us for event in invoked} == {30_000_000}

    def test_what_was_refused_failed_and_what_was_cancelled_was_given_up(self, on_store):
        async def work(store, _):
            with pytest.raises(RecordTooLarge):
                await store.append("orders", bytes(2000))
            appending = await store.open_log("orders")
            with pytest.raises(RecordTooLarge):
                appending.append_nowait(bytes(2000))
            future = appending.append_nowait(b"1")
            future.cancel()
            task = asyncio.ensure_future(store.append("orders", b"2"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        recording = on_store(work, block_bytes=1000)
        assert [event.error for event in of(recording, AppendFailed)] == ["RecordTooLarge"] * 2
        assert [event.error for event in of(recording, AppendUnknown)] == [GIVEN_UP] * 2
        assert check_all(recording.history.events) == []

    def test_what_was_in_flight_when_its_client_was_closed_was_given_up(self, on_store):
        async def work(store, _):
            appending = await store.open_log("orders")
            future = appending.append_nowait(b"1")
            await asyncio.sleep(0)
            await store.close()
            await asyncio.wait([future])
            with pytest.raises(Closed):
                await store.append("orders", b"2")

        recording = on_store(work)
        ends = [*of(recording, AppendUnknown), *of(recording, AppendFailed)]
        assert {event.error for event in ends} <= {GIVEN_UP, "Closed"}
        assert len(ends) + len(of(recording, AppendOk)) == 2

    def test_an_empty_call_and_wrong_columns_are_the_stores_business(self, on_store):
        async def work(store, _):
            assert await store.append_many("orders", []) == []
            with pytest.raises(BadSetting):
                await store.append_many("orders", [b"1"], headers=[(), ()])

        assert of(on_store(work), AppendInvoked) == []

    def test_tails_are_recorded_with_the_time_of_the_question(self, on_store):
        async def work(store, _):
            lsn = await store.append("orders", b"1")
            assert await store.tail("orders") == lsn

        (answer,) = of(on_store(work), TailAnswered)
        assert answer.invoked_us <= answer.time_us

    def test_a_client_keeps_its_name_and_its_numbers(self, on_store):
        async def work(store, recording):
            await store.append("orders", b"1")
            await recording.wrap(store._store, "app").append("orders", b"2")
            assert recording.logs == {1: "/orders"}

        ids = [event.payloads[0].id for event in of(on_store(work), AppendInvoked)]
        assert ids == ["app/0", "app/1"]

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65])
    def test_a_name_that_is_none(self, name: str):
        with pytest.raises(BadSetting):
            Recording().wrap(None, name)


class TestReads:
    def test_one_that_goes_on_asking_has_one_read(self, on_store):
        async def work(store, _):
            await store.append("orders", b"1")
            await store.append("orders", b"2")
            read = [item async for item in await store.read("orders")]
            assert all(isinstance(item, Record | Gap) for item in read)

        recording = on_store(work)
        assert len(of(recording, ReadStarted)) == 1
        assert [event.reason for event in of(recording, ReadEnded)] == [EndReason.UNTIL]

    def test_streams_that_are_open_together_are_readers_of_their_own(self, on_store):
        async def work(store, _):
            await store.append("orders", b"1")
            one, other = await store.read("orders"), await store.read("orders")
            assert await one.next_items()
            assert await other.next_items()
            one.close()
            again = await store.read("orders")
            assert await again.next_items()
            other.close()
            again.close()

        names = [event.reader for event in of(on_store(work), ReadStarted)]
        assert names == ["app.log1", "app.log1.1", "app.log1"]

    @pytest.mark.parametrize("how", ["next", "take", "next_many"])
    def test_blocks_are_recorded_as_their_records(self, on_store, how: str):
        async def work(store, _):
            await store.append_many("orders", [b"1", b"2"])
            stream = await store.read("orders")
            if how == "next_many":
                while await stream.next_many(1 << 20):
                    pass
                return
            taken = await stream.next()
            assert taken.first + 1 == taken.last
            assert (stream.take() if how == "take" else await stream.next()) is None
            stream.close()

        recording = on_store(work)
        assert len(of(recording, RecordDelivered)) == 2
        assert check_all(recording.history.events) == []

    def test_an_interrupted_client_has_nothing_open(self, on_store):
        async def work(store, recording):
            await store.append("orders", b"1")
            stream = await store.read("orders", "oldest", None)
            await stream.next_items()
            task = asyncio.ensure_future(stream.next_items())
            appending = await store.open_log("orders")
            future = appending.append_nowait(b"2")
            store.interrupt()
            assert isinstance(recording.history.events[-1], ReadEnded)
            assert of(recording, AppendUnknown)[0].error == GIVEN_UP
            # Stopped and not killed: it goes on, and what it hears late is no end.
            await future
            assert [item.value for item in await task] == [b"2"]
            stream.close()

        recording = on_store(work)
        assert len(of(recording, AppendOk)) == 1
        assert check_all(recording.history.events) == []


def methods_of(real: type) -> set[str]:
    """What a class has itself, and of a stream what gives out its items."""
    mine = [each for each in real.__mro__ if each in (real, StreamItems)]
    return {name for each in mine for name in vars(each)}


class TestProxies:
    """A new method of a store must be recorded or pass through on purpose."""

    THROUGH = frozenset(
        {"batches", "fill", "next_items", "hand",
         "cluster_id", "close", "create_log", "epoch_end", "is_closed", "log", "logs",
         "members", "taken_lsn",
         "on_node_down", "on_node_frame", "on_node_up", "run_by", "status", "wait_closed",
         "bridge", "fail", "info", "is_done", "next_lsn", "number", "on_blocks", "on_reading",
         "open", "arrow", "gatherer", "buffered_writer", "consumer", "streams", "reader",
         "released", "released_by_number", "serve", "serve_with", "log_tree", "trouble",
         "items_of", "on_gaps", "on_statuses", "is_connected", "stage", "unstage", "publish",
         "published", "fence", "use_fencing_token", "senders", "on_news", "may_conclude",
         "is_grace_over"}
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("real", "recorded"),
        [(Store, RecordedStore), (ReadStream, RecordedStream), (Appending, RecordedAppending)],
    )
    def test_every_method_is_known(self, real, recorded):
        public = {name for name in methods_of(real) if not name.startswith("_")}
        assert public - vars(recorded).keys() <= self.THROUGH

    @pytest.mark.parametrize(
        ("real", "recorded"),
        [(Store, RecordedStore), (ReadStream, RecordedStream), (Appending, RecordedAppending)],
    )
    def test_recorded_methods_take_what_the_real_ones_do(self, real, recorded):
        for name in methods_of(real) & vars(recorded).keys():
            method = getattr(real, name)
            if not name.startswith("_") and callable(method):
                mine = inspect.signature(getattr(recorded, name)).parameters
                assert [*mine] == [*inspect.signature(method).parameters], name
