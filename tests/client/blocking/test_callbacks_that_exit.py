"""Callbacks of an application that raise SystemExit in the client's thread."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import cordwood
from cordwood.block import Record
from cordwood.errors import Closed
from cordwood.host.loop_thread import LoopThread
from cordwood.host.waits import ThreadFuture


def leave(*_: object) -> None:
    sys.exit(3)


def test_an_exit_in_a_callback_of_a_future_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the client's thread without a word: futures of other threads never ended, `close`
    returned as if all was well, and the store stayed in use."""
    with cordwood.connect(tmp_path) as store, store.buffered_writer() as writer:
        told: list[str] = []
        ready = threading.Event()
        store._thread.soon(lambda: ready.wait(60))
        first = store.append_many_soon("log", [b"first"])
        first.add_done_callback(leave)
        first.add_done_callback(lambda _: told.append("behind"))
        second = writer.submit("log", b"second")
        second.add_done_callback(leave)
        ready.set()
        assert first.result(30)
        assert second.result(30)
        assert writer.append("log", b"third")
        assert store.append("log", b"fourth")
        assert told == ["behind"]
    assert "a callback of a future failed" in caplog.text
    with cordwood.connect(tmp_path) as store:
        found = [each.value for each in store.read("log") if isinstance(each, Record)]
        assert sorted(found) == [b"first", b"fourth", b"second", b"third"]


def test_an_exit_in_the_loop_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread("goes-on")
    thread.soon(leave)

    async def answer() -> int:
        return 7

    assert thread.call(answer()) == 7
    assert "tried to end the client's thread" in caplog.text
    thread.close()
    with pytest.raises(Closed):
        thread.call(answer())


def test_an_exit_in_a_callback_comes_out_where_a_thread_cancels() -> None:
    future: ThreadFuture[int] = ThreadFuture()
    told = threading.Event()
    future.add_done_callback(leave)
    future.add_done_callback(lambda _: told.set())
    with pytest.raises(SystemExit):
        future.cancel()
    assert told.is_set()
