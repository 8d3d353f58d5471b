"""Records that were submitted and not waited for: each is stored as it was, or its fate is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

import cordwood
from cordwood.block import Record
from cordwood.client.append.buffered_writer import WriterOptions
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, Closed, RecordTooLarge, UnknownLog, Unreachable
from cordwood.host.loop_thread import LoopThread
from cordwood.host.waits import ThreadFuture
from cordwood.settings import ClientSettings


def stored(store: BlockingStore, log: str = "log") -> list[Record]:
    return [item for item in store.read(log) if isinstance(item, Record)]


class TestCallersLists:
    """The loop's thread begins a call later, and the caller goes on with its lists and buffers."""

    def test_a_list_that_is_cleared_after_the_call_loses_nothing(self, tmp_path: Path) -> None:
        with cordwood.connect(tmp_path / "store") as store:
            batch, keys, times, headers = [b"1", b"2"], [b"a", None], [1, 2], [[("h", b"x")], []]
            call = store.append_many_soon(
                "log", batch, keys=keys, timestamps=times, headers=headers
            )
            for each in (batch, keys, times, headers[0], headers):
                each.clear()
            assert len(call.result(10)) == 2
            assert [
                (each.value, each.key, each.timestamp_us, list(each.headers))
                for each in stored(store)
            ] == [(b"1", b"a", 1, [("h", b"x")]), (b"2", None, 2, [])]

    def test_buffers_that_are_filled_anew_change_no_record(self, tmp_path: Path) -> None:
        with cordwood.connect(tmp_path / "store") as store:
            buffer, writer = bytearray(b"first"), store.buffered_writer()
            headers = [("h", buffer)]
            # The loop comes to neither of them before the buffer has something else in it.
            store._thread.soon(lambda: time.sleep(0.2))
            calls = [
                store.append_many_soon("log", [buffer], keys=[buffer], headers=[headers]),
                writer.submit("log", buffer, key=buffer, headers=headers),
            ]
            buffer[:] = b"again"
            headers.clear()
            for call in calls:
                call.result(10)
            for each in stored(store):
                assert (each.value, each.key) == (b"first", b"first")
                assert list(each.headers) == [("h", b"first")]

    @as_scenario(simulate)
    async def test_a_list_that_is_cleared_while_the_call_waits_loses_nothing(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(block_records=5, window_records=10) as store:
            batch = [b"%d" % number for number in range(100)]
            sent, keys = list(batch), list(batch)
            call = asyncio.create_task(store.append_many("log", batch, keys=keys))
            await asyncio.sleep(0)
            batch.clear()
            keys.clear()
            assert len(await call) == 100
            assert await values(store, "log") == sent

    @pytest.mark.parametrize("value", ["text", [1, 2, 3], None, 5])
    def test_what_is_no_bytes_is_refused_and_holds_no_room(
        self, tmp_path: Path, value: object
    ) -> None:
        """A list of numbers was taken for bytes, and text kept its room for ever."""
        with cordwood.connect(tmp_path / "store") as store:
            writer = store.buffered_writer()
            for wrong in ({"value": value}, {"value": b"", "key": value or 5}):
                with pytest.raises(BadSetting, match="is bytes, not"):
                    writer.submit("log", **wrong)  # type: ignore[arg-type]
            with pytest.raises(BadSetting, match="is bytes, not"):
                store.append_many_soon("log", [value])  # type: ignore[list-item]
            assert writer._memory.bytes == 0
            assert writer.append("log", b"good")


class TestNames:
    @pytest.mark.parametrize("name", [5, None, b"log", "half \ud800", "long" * 100])
    @as_scenario(simulate)
    async def test_a_name_that_no_node_reads_harms_nobody(
        self, cluster: ClusterAtHand, *, name: object
    ) -> None:
        """Nodes closed the connection, with all that was in flight; half of a character ended
        the client."""
        async with cluster.client() as store, store.buffered_writer() as writer:
            await store.append("log", b"1")
            up = set(store._cluster.peers.up)
            other = asyncio.create_task(store.append("log", b"2"))
            for call in (
                store.append(name, b"x"),  # type: ignore[arg-type]
                store.append_many(name, [b"x"]),  # type: ignore[arg-type]
                store.append_many(name, [b"x"], atomic=True),  # type: ignore[arg-type]
                store.tail(name),  # type: ignore[arg-type]
            ):
                # A number is a log's address too, and no log has this one.
                with pytest.raises(UnknownLog if name == 5 else BadSetting):
                    await asyncio.wait_for(call, 5)
            for call in (
                writer.append(name, b"x"),  # type: ignore[arg-type]
                store.create_log(name),  # type: ignore[arg-type]
                store.logs(name),  # type: ignore[arg-type]
            ):
                with pytest.raises(BadSetting):
                    await asyncio.wait_for(call, 5)
            await other
            assert set(store._cluster.peers.up) == up
            assert await values(store, "log") == [b"1", b"2"]


class TestCancelled:
    def test_a_future_that_was_cancelled_holds_up_nobody(self, tmp_path: Path) -> None:
        """The loop's thread could not tell it, and left what stood behind it where it was."""
        with cordwood.connect(tmp_path / "store") as store:
            writer = store.buffered_writer()
            store._thread.soon(lambda: time.sleep(0.2))
            refused = writer.submit("log", bytes(5 << 20))
            dropped = writer.submit("log", b"dropped")
            kept = writer.submit("log", b"kept")
            assert refused.cancel()
            assert dropped.cancel()
            assert kept.result(10)
            assert not kept.cancel()
            with pytest.raises(RecordTooLarge):
                writer.append("log", bytes(5 << 20))
            assert [each.value for each in stored(store)] == [b"kept"]
            assert writer._memory.bytes == 0


class Soft(Exception):
    """A time limit that a signal handler raises."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("way", ["submit", "soon"])
def test_a_signal_at_any_moment_loses_no_room_and_stops_no_record(tmp_path: Path, way: str) -> None:
    """A call that was broken off between its mark and the wake-up left all others waiting."""

    def raise_it(*_: object) -> None:
        raise Soft

    with cordwood.connect(tmp_path / "store") as store:
        writer = store.buffered_writer(WriterOptions(time_trigger_s=0.01))
        before = signal.signal(signal.SIGALRM, raise_it)
        calls, broken = [], 0
        until = time.monotonic() + 3
        try:
            while time.monotonic() < until:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 + broken % 97 * 0.000003)
                    # Bounded: an alarm within a finalizer is told to nobody.
                    for _ in range(50):
                        if way == "submit":
                            calls.append(writer.submit("log", b"x"))
                        else:
                            calls.append(store.append_many_soon("log", [b"x"]))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Soft:
                    broken += 1
                if len(calls) > 5000:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    for call in calls:
                        call.result(20)
                    calls.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert broken > 50
        assert writer.submit("log", b"last").result(20)
        writer.flush()
        assert writer._memory.bytes == 0
        assert not writer._handed
        assert store._thread.finish(20) == 0


def test_a_forked_child_is_refused_whatever_its_parent_held(tmp_path: Path) -> None:
    """Locks that another thread held as the process was forked are let go by nobody."""
    with cordwood.connect(tmp_path / "store") as store:
        writer = store.buffered_writer()
        store.append("log", b"1")
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            with store._thread._lock, writer._memory._changed:
                held.set()
                go.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(10)
                for call in (
                    lambda: store.append("log", b"2"),
                    lambda: store.append_many_soon("log", [b"2"]),
                    lambda: writer.submit("log", b"2"),
                    writer.flush,
                ):
                    with pytest.raises(Closed, match="forked"):
                        call()
                store._leave(lambda: 10.0)
                store.close()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        go.set()
        holder.join()
        assert os.waitstatus_to_exitcode(status) == 0
        assert writer.append("log", b"2")


def test_a_forked_child_waits_for_no_answer_that_its_parent_gets() -> None:
    """The thread that resolves futures is the parent's, and may have held their locks."""
    pending, told = ThreadFuture[int](), ThreadFuture[int]()
    told.set_result(7)
    with pending._condition, told._condition:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(10)
                for wait in (pending.result, pending.exception):
                    with pytest.raises(Closed, match="forked"):
                        wait()
                assert told.result() == 7
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


def test_threads_that_go_on_to_call_do_not_keep_a_client_from_closing(tmp_path: Path) -> None:
    """Each of their calls was taken, to fail on the loop, which came to nothing else."""
    store = cordwood.connect(tmp_path / "store", ClientSettings(timeout_s=5))
    store.append("log", b"0")
    writer = store.buffered_writer()
    futures: list[Future[object]] = []
    go = threading.Event()

    def call(number: int) -> None:
        go.wait()
        with suppress(Closed):
            while True:
                if number % 2:
                    futures.append(store.append_many_soon("log", [b"x"]))
                else:
                    futures.append(writer.submit("log", b"x"))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    began = time.monotonic()
    go.set()
    store.close()
    took_s = time.monotonic() - began
    for each in threads:
        each.join(10)
    assert not any(each.is_alive() for each in threads)
    assert took_s < 10
    assert wait(futures, 10).not_done == set()


def test_what_ends_the_loop_s_last_work_is_raised() -> None:
    async def fail() -> None:
        raise Unreachable("no such node")

    thread = LoopThread("test")
    with pytest.raises(Unreachable, match="no such node"):
        thread.close(fail())
    thread.close(fail())
    thread = LoopThread("test")
    with pytest.raises(Unreachable, match="did not close within"):
        thread.close(asyncio.sleep(30), timeout_s=0.1)
    with pytest.raises(Closed):
        thread.call(asyncio.sleep(0))


def run_program(text: str, *arguments: object) -> str:
    """What a program that ends by itself says."""
    ended = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return ended.stdout + ended.stderr


UNCLOSED = {
    "blocking": """
store = cordwood.connect(sys.argv[1])
for number in range(10):
    store.append("log", b"%d" % number)
""",
    "two of them": """
stores = [cordwood.connect(sys.argv[1]), cordwood.connect(sys.argv[1] + "-other")]
for number in range(10):
    stores[0].append("log", b"%d" % number)
    stores[1].append("log", b"%d" % number)
""",
    "with reads": """
store = cordwood.connect(sys.argv[1])
for number in range(10):
    store.append("log", b"%d" % number)
reader, consumer = store.reader("log"), store.consumer("c", "log", member="m")
assert consumer.__enter__().read().records and reader.read().records
""",
    "a thread that goes on": """
store = cordwood.connect(sys.argv[1])
for number in range(10):
    store.append("log", b"%d" % number)
def call():
    try:
        while True:
            store.append("other", b"x")
    except cordwood.CordwoodError:
        pass
threading.Thread(target=call).start()
time.sleep(0.2)
""",
    "a daemon thread that reads": """
store = cordwood.connect(sys.argv[1])
for number in range(10):
    store.append("log", b"%d" % number)
def read():
    for item in store.read("log", until=None):
        pass
threading.Thread(target=read, daemon=True).start()
time.sleep(0.2)
""",
    "daemon threads that submit": """
store = cordwood.connect(sys.argv[1])
writer = store.buffered_writer()
for number in range(10):
    writer.submit("log", b"%d" % number)
def submit():
    while True:
        writer.submit("other", b"x")
for _ in range(2):
    threading.Thread(target=submit, daemon=True).start()
time.sleep(1)
""",
    "daemon threads that wait for memory": """
store = cordwood.connect(sys.argv[1])
writer = store.buffered_writer()
for number in range(10):
    writer.submit("log", b"%d" % number)
full = store.buffered_writer(cordwood.client.append.buffered_writer.WriterOptions(
    size_trigger_bytes=1, memory_bytes_max=1))
def submit():
    while True:
        full.submit("other", b"x")
for _ in range(2):
    threading.Thread(target=submit, daemon=True).start()
time.sleep(1)
""",
    "asyncio in a thread": """
async def main():
    store = await cordwood.aio.connect(sys.argv[1])
    for number in range(10):
        await store.append("log", b"%d" % number)
    is_done.set()
    await asyncio.Event().wait()
is_done = threading.Event()
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
is_done.wait()
""",
    "asyncio": """
async def main():
    store = await cordwood.aio.connect(sys.argv[1])
    for number in range(10):
        await store.append("log", b"%d" % number)
asyncio.run(main())
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", UNCLOSED)
def test_a_store_in_the_process_that_was_not_closed_ends_in_silence(
    tmp_path: Path, way: str
) -> None:
    """The interpreter takes its threads from the store's node, and that told of it by a
    traceback."""
    began = time.monotonic()
    said = run_program(
        "import asyncio, sys, threading, time, cordwood, cordwood.aio\n" + UNCLOSED[way],
        tmp_path / "store",
    )
    assert said == ""
    assert time.monotonic() - began < 30
    with cordwood.connect(tmp_path / "store") as store:
        assert [each.value for each in stored(store)] == [b"%d" % n for n in range(10)]


class TestEndOfTheProgram:
    def test_what_was_submitted_is_stored(self, tmp_path: Path) -> None:
        said = run_program(
            """
import sys, cordwood
store = cordwood.connect(sys.argv[1])
writer, slow = store.buffered_writer(), store.buffered_writer(
    cordwood.client.append.buffered_writer.WriterOptions(time_trigger_s=None))
for number in range(100):
    writer.submit("log", b"%d" % number)
    slow.submit("slow", b"%d" % number)
    store.append_many_soon("soon", [b"%d" % number])
            """,
            tmp_path / "store",
        )
        assert said == ""
        with cordwood.connect(tmp_path / "store") as store:
            for log in ("log", "slow", "soon"):
                assert [each.value for each in stored(store, log)] == [
                    b"%d" % n for n in range(100)
                ]

    @pytest.mark.slow
    def test_what_is_not_stored_in_time_is_told(self, tmp_path: Path) -> None:
        said = run_program(
            """
import sys, time, cordwood
from cordwood.host import at_end
at_end.END_S = at_end.CLOSE_S = 0.1
store = cordwood.connect(sys.argv[1])
writer = store.buffered_writer()
store._thread.soon(lambda: time.sleep(30))
for number in range(7):
    writer.submit("log", b"%d" % number)
store.append_many_soon("log", [b"x"])
            """,
            tmp_path / "store",
        )
        assert "7 records of buffered writers not known to be stored, and 1 calls" in said

    def test_a_writer_that_is_closed_first_is_told_of(self, tmp_path: Path) -> None:
        said = run_program(
            """
import sys, cordwood
with cordwood.connect(sys.argv[1]) as store:
    store.buffered_writer().submit("log", b"1")
            """,
            tmp_path / "store",
        )
        assert "1 records of a writer are not known to be stored: this client was closed" in said
