"""The buffered writer of the blocking client while threads submit faster than the loop takes."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

import cordwood
from cordwood.client.append.buffered_writer import WriterOptions
from cordwood.errors import Closed, Overloaded, Unreachable
from cordwood.host import loop_thread
from cordwood.host.loop_thread import LoopThread
from cordwood.lsn import Lsn

RECORDS = 2500


class Held:
    """The loop's thread, held in a callback until it is let go."""

    def __init__(self, thread: LoopThread) -> None:
        self._let_go = threading.Event()
        thread.soon(lambda: self._let_go.wait(60))

    def let_go(self) -> None:
        self._let_go.set()


def test_the_loop_turns_while_threads_submit(tmp_path: Path) -> None:
    """One tick took all that was handed over, also what threads handed over during it: nothing was
    sent, read or answered for as long as they went on, and healthy records ended as unknown."""
    with cordwood.connect(tmp_path) as store, store.buffered_writer() as writer:
        held = Held(store._thread)
        futures = [writer.submit("log", b"x") for _ in range(RECORDS)]
        left: Future[int] = Future()
        store._thread.soon(lambda: left.set_result(len(writer._handed)))
        held.let_go()
        assert 0 < left.result(60) < RECORDS
        writer.flush()
        lsns = [future.result(0) for future in futures]
        assert lsns == sorted(lsns)


def test_empty_records_fill_the_memory(tmp_path: Path) -> None:
    """Their futures were not counted: 32 MiB grew to 1.8 GiB."""
    options = WriterOptions(memory_bytes_max=256 << 10)
    taken: Future[int] = Future()
    with cordwood.connect(tmp_path) as store, store.buffered_writer(options) as writer:

        def fill() -> None:
            for at in range(1000):
                try:
                    writer.submit("log", b"")
                except Overloaded:
                    taken.set_result(at)
                    return
            taken.set_result(1000)

        store._thread.soon(fill)
        assert 100 < taken.result(60) < 300


def test_a_full_memory_is_sent(tmp_path: Path) -> None:
    """No block was full and no time set: the writer waited for memory until its timeout."""
    options = WriterOptions(
        time_trigger_s=None, size_trigger_bytes=100_000, memory_bytes_max=100_000
    )
    with cordwood.connect(tmp_path) as store, store.buffered_writer(options) as writer:
        futures = [writer.submit(f"log/{at % 10}", b"x") for at in range(200)]
        writer.flush()
        assert all(future.result(0) for future in futures)


def test_threads_that_submit_are_told_of_the_close(tmp_path: Path) -> None:
    """They were not while the loop had records to take, held up its end by that, and their last
    futures never ended."""
    store = cordwood.connect(tmp_path)
    writer = store.buffered_writer()
    held = Held(store._thread)
    futures = [writer.submit("log", b"first")]
    closing = threading.Thread(target=store.close)
    closing.start()

    def submit() -> None:
        for _ in range(15_000):
            futures.append(writer.submit("log", b"more"))

    with pytest.raises(Closed):
        submit()
    held.let_go()
    closing.join(60)
    assert all(future.done() for future in futures)
    assert writer.waiting == 0


def test_every_future_ends_when_a_busy_client_closes(tmp_path: Path) -> None:
    store = cordwood.connect(tmp_path)
    writer = store.buffered_writer(WriterOptions(time_trigger_s=0.001))
    kept: list[Future[Lsn]] = []
    told: list[Closed] = []

    def submit() -> None:
        try:
            while True:
                kept.append(writer.submit("log", b"x"))
        except Closed as error:
            told.append(error)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    writer.append("log", b"y")
    store.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(told) == 3
    assert all(future.done() for future in kept)


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path) as store:
        writer = store.buffered_writer()
        writer.close()
        with pytest.raises(Closed, match="this writer was closed"):
            writer.submit("log", b"late")
        assert writer._memory.bytes == 0


def test_a_close_tells_that_the_thread_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It returned as if all had ended."""
    monkeypatch.setattr(loop_thread, "STOP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(loop_thread, "END_S", 0.01)
    thread = LoopThread("held")
    held = Held(thread)
    with pytest.raises(Unreachable, match="still runs"):
        thread.close(timeout_s=0.01)
    held.let_go()
    monkeypatch.undo()
    thread.close()


def test_threads_that_wait_for_memory_get_in_without_a_time_trigger(tmp_path: Path) -> None:
    """Each asked for room once. Others took what came free, their records were gathered, and
    nobody sent them: the rest waited for a minute, and was refused."""
    options = WriterOptions(
        time_trigger_s=None, size_trigger_bytes=64 << 10, memory_bytes_max=64 << 10
    )
    with cordwood.connect(tmp_path) as store, store.buffered_writer(options) as writer:
        threads = [threading.Thread(target=writer.submit, args=("log", b"x")) for _ in range(200)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        assert not any(each.is_alive() for each in threads)
        writer.flush()
        assert writer.failed == 0
