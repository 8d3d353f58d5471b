"""Each call is told its outcome once, truthfully, in time and in the order of the calls."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap, swap_value
from zstandard import ZstdError

import cordwood
from cordwood.block import Record
from cordwood.client.find import log_finding as finding_module
from cordwood.errors import Closed, CordwoodError, OutcomeUnknown, Unreachable
from cordwood.host import loop_thread
from cordwood.host.loop_thread import LoopThread
from cordwood.lsn import Lsn


class TestOrder:
    @pytest.mark.parametrize("is_made", [True, False])
    def test_calls_made_while_a_log_is_looked_up_keep_their_order(
        self, monkeypatch: pytest.MonkeyPatch, is_made: bool
    ):
        """A call that came as the answer did found the log known, and went first."""
        calls: list[asyncio.Task[list[Lsn]]] = []

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                if is_made:
                    await store.append("log", b"first")
            async with cluster.client() as store:
                learn = finding_module.log_info

                def append(turns: int) -> None:
                    call = store.append_many("log", [b"%d" % len(calls)])
                    calls.append(asyncio.create_task(call))
                    if turns:
                        asyncio.get_running_loop().call_soon(append, turns - 1)

                def learn_and_append(reply):
                    append(turns=6)
                    return learn(reply)

                swap(monkeypatch, finding_module.log_info, learn_and_append, within=finding_module)
                append(turns=6)
                await calls[0]
                lsns = [(await call)[0] for call in calls]
                assert len(lsns) >= 14
                assert lsns == sorted(lsns)
                stored = [value for value in await values(store, "log") if value != b"first"]
                assert stored == [b"%d" % number for number in range(len(lsns))]

        simulate(scenario)

    @as_scenario(simulate)
    async def test_a_call_that_is_cancelled_while_it_waits_lets_nobody_pass(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            calls = [
                asyncio.create_task(store.append("log", b"%d" % number)) for number in range(9)
            ]
            await asyncio.sleep(0)
            calls[3].cancel()
            calls[4].cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            lsns = [each for each in done if not isinstance(each, BaseException)]
            assert len(lsns) == 7
            assert lsns == sorted(lsns)

    @as_scenario(simulate)
    async def test_calls_behind_one_of_many_blocks_wait_for_it(
        self, cluster: ClusterAtHand
    ) -> None:
        """It waits for room between its blocks, and later calls went in between."""
        async with cluster.client(block_records=5, window_records=10) as store:
            await store.append("log", b"first")
            long = [b"a%d" % number for number in range(100)]
            calls = [
                store.append_many("log", long),
                store.append("log", b"b"),
                store.append_many("log", [b"c", b"d"]),
                store.append_many("log", [b"e%d" % number for number in range(30)]),
                store.append("log", b"f"),
            ]
            await asyncio.gather(*map(asyncio.create_task, calls))
            after = [b"b", b"c", b"d", *(b"e%d" % number for number in range(30)), b"f"]
            assert await values(store, "log") == [b"first", *long, *after]


class TestBuffers:
    @as_scenario(simulate)
    async def test_a_buffer_that_is_filled_anew_changes_no_record(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            writer, buffer = store.buffered_writer(), bytearray(b"first")
            log = await store.open_log("log")
            futures = [log.append_nowait(buffer), writer.append_nowait("log", buffer)]
            call = asyncio.create_task(store.append_many("new", [buffer], keys=[buffer]))
            await asyncio.sleep(0)
            buffer[:] = b"again"
            await asyncio.gather(*futures, call)
            await writer.close()
            assert await values(store, "log") == [b"first", b"first"]
            assert await values(store, "new") == [b"first"]

    @as_scenario(simulate)
    async def test_a_view_that_is_released_stops_nobody(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            one, two = await store.open_log("one"), await store.open_log("two")
            view = memoryview(b"viewed")
            mine = one.append_nowait(view)
            view.release()
            other = two.append_nowait(b"same turn")
            await asyncio.wait_for(asyncio.gather(mine, other), 5)
            await asyncio.wait_for(store.append("two", b"later"), 5)
            assert await values(store, "one") == [b"viewed"]
            assert await values(store, "two") == [b"same turn", b"later"]

    @pytest.mark.parametrize(
        "wrong",
        [ValueError("no body"), MemoryError(), ZstdError("Allocation error : not enough memory")],
        ids=repr,
    )
    def test_records_that_cannot_be_encoded_end_alone(
        self, monkeypatch: pytest.MonkeyPatch, wrong: Exception
    ):
        """An error of zstd was not expected there: the call waited for ever, and the other log's
        records of that turn were not sent."""
        from cordwood.client.append import pending_block

        encode = pending_block.encode_body

        def encode_body(values, **columns):
            if b"bad" in values:
                raise wrong
            return encode(values, **columns)

        monkeypatch.setattr(pending_block, "encode_body", encode_body)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                one, two = await store.open_log("one"), await store.open_log("two")
                bad, good = one.append_nowait(b"bad"), two.append_nowait(b"good")
                with pytest.raises(CordwoodError, match="cannot be encoded"):
                    await asyncio.wait_for(bad, 5)
                await asyncio.wait_for(good, 5)
                await asyncio.wait_for(store.append("one", b"after"), 5)
                assert store._appends.window.bytes == 0

        simulate(scenario)


class Soft(Exception):
    """A time limit that a signal handler raises."""


async def seven() -> int:
    return 7


class TestLoopThread:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
    @pytest.mark.parametrize("way", ["call", "start"])
    def test_a_signal_at_any_moment_of_a_call_leaves_the_loop_free(self, way: str):
        """A handler that raised within the library's Condition left the loop waiting for ever."""
        thread = LoopThread("test")

        def take() -> int:
            return thread.call(seven()) if way == "call" else thread.start(seven()).result(5)

        def raise_it(*_: object) -> None:
            raise Soft

        before = signal.signal(signal.SIGALRM, raise_it)
        broken = 0
        until = time.monotonic() + 3
        try:
            for tick in itertools.count():
                if time.monotonic() > until:
                    break
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 + tick % 41 * 0.000005)
                    # Bounded: an alarm within a finalizer is told to nobody.
                    for _ in range(100):
                        assert take() == 7
                except (Soft, RuntimeError):
                    broken += 1
                if tick % 100 == 0:
                    assert thread.call(seven(), timeout_s=10) == 7
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert broken > 100
            assert thread.call(seven(), timeout_s=10) == 7
            assert thread.start(seven()).result(10) == 7
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            thread.close()

    def test_what_comes_late_is_still_the_answer(self, monkeypatch: pytest.MonkeyPatch):
        """As after a pause of the whole process: the waiting thread wakes before the loop."""
        thread = LoopThread("test")

        async def work() -> int:
            time.sleep(0.3)  # noqa: ASYNC251 the loop itself stands still
            return 7

        try:
            assert thread.call(work(), timeout_s=0.05) == 7
        finally:
            thread.close()

    @pytest.mark.parametrize(("changes", "error"), [(True, OutcomeUnknown), (False, Unreachable)])
    def test_a_call_that_changes_something_ends_as_unknown(
        self, monkeypatch: pytest.MonkeyPatch, changes: bool, error
    ):
        swap_value(monkeypatch, lambda: loop_thread.LATE_S, 0.05)
        thread = LoopThread("test")
        try:
            with pytest.raises(error, match="no answer within"):
                thread.call(asyncio.sleep(30), timeout_s=0.05, changes=changes)
        finally:
            thread.close()

    def test_calls_of_other_threads_end_when_it_closes(self, monkeypatch: pytest.MonkeyPatch):
        swap_value(monkeypatch, lambda: loop_thread.END_S, 0.2)
        thread = LoopThread("test")
        ended: list[BaseException | int] = []

        def call(changes: bool) -> None:
            try:
                thread.call(asyncio.sleep(60), changes=changes)
            except (Closed, OutcomeUnknown) as error:
                ended.append(error)

        threads = [threading.Thread(target=call, args=(each,)) for each in (True, False)]
        for each in threads:
            each.start()
        time.sleep(0.1)
        thread.close()
        for each in threads:
            each.join(5)
        assert {type(each) for each in ended} == {Closed, OutcomeUnknown}
        with pytest.raises(Closed):
            thread.call(asyncio.sleep(0))

    def test_a_thread_that_gets_the_number_of_the_ended_one_is_another(self):
        """It was told that it waits for itself, by `close` as well."""
        thread = LoopThread("test")
        thread.close()
        thread._thread = threading.current_thread()
        thread.close()
        with pytest.raises(Closed):
            thread.call(asyncio.sleep(0))


def test_no_call_hangs_when_the_store_is_closed(tmp_path: Path):
    for _ in range(3):
        store = cordwood.connect(tmp_path / "store")
        outcomes: list[str] = []

        def stage(store=store, outcomes=outcomes) -> None:
            try:
                while True:
                    store.stage("log", [b"x"])
            except CordwoodError as error:
                outcomes.append(type(error).__name__)

        def append(store=store, outcomes=outcomes) -> None:
            try:
                while True:
                    store.append_many("log", [b"x"])
            except CordwoodError as error:
                outcomes.append(type(error).__name__)

        store.append("log", b"x")
        threads = [threading.Thread(target=each) for each in (stage, stage, append, append)]
        for each in threads:
            each.start()
        time.sleep(0.2)
        store.close()
        for each in threads:
            each.join(10)
        assert not any(each.is_alive() for each in threads)
        assert len(outcomes) == 4


def test_a_writer_refuses_after_its_client_was_closed(tmp_path: Path):
    store = cordwood.connect(tmp_path / "store")
    writer = store.buffered_writer()
    writer.append("log", b"1")
    store.close()
    for _ in range(3):
        with pytest.raises(Closed):
            writer.submit("log", b"2")
    assert writer._memory.bytes == 0


def test_a_forked_child_may_leave_the_block(tmp_path: Path):
    with cordwood.connect(tmp_path / "store") as store:
        store.append("log", b"1")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.append("log", b"2")
        read = [item.value for item in store.read("log", until="tail") if isinstance(item, Record)]
        assert read == [b"1", b"2"]
