"""Calls into the client from places that it runs itself, or that interrupt it."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from swaps import swap

from cordwood.client.blocking import blocking_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.embedded import connect_blocking
from cordwood.errors import CordwoodError, Rejected
from cordwood.host.loop_thread import LoopThread
from cordwood.host.waits import Condition
from cordwood.lsn import make_lsn
from cordwood.settings import ClientSettings

WITHIN_S = 30.0


def outcome(work: Callable[[], Any]) -> Any:
    """What `work` returns; fails where it does not end."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert found, "it waits for itself, or failed"
    return found[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _: store.append("log", b"from a callback"),
        lambda store, _: store.append_many("log", [b"from a callback"]),
        lambda store, _: next(iter(store.read("log"))),
        lambda store, _: store.close(),
        lambda _, writer: writer.append("log", b"from a callback"),
        lambda _, writer: writer.flush(),
    ],
)
def test_a_callback_that_would_wait_for_its_own_thread_is_refused(
    call: Callable[[BlockingStore, Any], Any], tmp_path: Path
) -> None:
    """The client's thread waited for itself, and with it every other thread, for ever."""
    with connect_blocking(str(tmp_path)) as store:
        writer = store.buffered_writer()
        refused: Future[Any] = Future()

        def on_done(_: Future[Any]) -> None:
            try:
                refused.set_result(call(store, writer))
            except CordwoodError as error:
                refused.set_exception(error)

        store.append_many_soon("log", [b"1"]).add_done_callback(on_done)
        with pytest.raises(Rejected, match="would wait for itself"):
            refused.result(WITHIN_S)
        assert outcome(lambda: store.append("log", b"2")) == make_lsn(1, 2)


def test_a_callback_may_submit(tmp_path: Path) -> None:
    with connect_blocking(str(tmp_path)) as store, store.buffered_writer() as writer:
        again: Future[Future[Any]] = Future()

        def on_done(_: Future[Any]) -> None:
            again.set_result(writer.submit("log", b"2"))

        writer.submit("log", b"1").add_done_callback(on_done)
        assert again.result(WITHIN_S).result(WITHIN_S) == make_lsn(1, 2)


@pytest.mark.parametrize("called", ["call", "start", "soon", "_begin", "_cancel"])
def test_a_signal_handler_may_call_wherever_it_interrupts(called: str, tmp_path: Path) -> None:
    """It runs in the thread that holds the client's lock, and waited for that thread: a handler of
    SIGTERM that closes the client hung the program."""
    code = getattr(LoopThread, called).__code__
    store = connect_blocking(str(tmp_path))
    store.append("log", b"1")
    lines: set[int] = set()

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is code:
            if event == "line" and frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                store.tail("log")
            return interrupt
        return None

    def work() -> int:
        sys.settrace(interrupt)
        try:
            if called == "soon":
                store.buffered_writer().submit("log", b"2").result(WITHIN_S)
            elif called == "start":
                store.append_many_soon("log", [b"2"]).result(WITHIN_S)
            elif called == "_cancel":
                with pytest.raises(TypeError):
                    store._thread.call(store._inner.tail("log"), timeout_s="none")  # type: ignore[arg-type]
            else:
                store.append("log", b"2")
        finally:
            sys.settrace(None)
        return len(lines)

    assert outcome(work) > 2
    store.close()


class Soft(Exception):
    """What a signal handler raises."""


def interrupted(at: int, work: Callable[[], object]) -> bool:
    """Raise Soft at one of the moments of `work` at which CPython runs signal handlers: as a
    Python function begins, or a C function has returned. False where there is none so late."""
    seen = 0

    def interrupt(_: FrameType, event: str, __: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_return")
        if seen == at:
            sys.setprofile(None)
            raise Soft

    sys.setprofile(interrupt)
    try:
        work()
    except Soft:
        pass
    finally:
        sys.setprofile(None)
    return seen >= at


def test_a_close_that_was_broken_off_at_any_moment_can_be_made_again() -> None:
    """The loop was never told to end: the second close waited for it for 80 s, and left an embedded
    store open, and its directory locked."""
    at = 0
    is_over = False
    while not is_over:
        at += 1
        ended: list[int] = []
        thread = LoopThread("test")

        async def last(ended: list[int] = ended) -> None:
            ended.append(1)

        first, second = last(), last()
        is_over = not interrupted(at, partial(thread.close, first))
        began = time.monotonic()
        thread.close(second)
        assert time.monotonic() - began < 3, f"the second close waited, after an error at {at}"
        assert ended == [1]
        first.close()
        second.close()
    assert at > 10


def test_a_wait_that_was_broken_off_at_any_moment_raises_the_handler_s_error() -> None:
    """It raised RuntimeError: the lock was not held when its block was left."""
    at = 0
    is_over = False
    while not is_over:
        at += 1
        condition = Condition()

        def wait(condition: Condition = condition) -> None:
            with condition:
                condition.wait(0.001)

        is_over = not interrupted(at, wait)
        assert condition.acquire(blocking=False)
        condition.release()
    assert at > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.slow
def test_a_connect_that_was_broken_off_at_any_moment_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler's error between the opening and the return left an embedded store open, which
    nobody had."""
    threads: list[LoopThread] = []
    swap(monkeypatch, LoopThread, lambda _: threads[-1], within=blocking_store)
    at = 0
    is_over = False
    while not is_over:
        at += 1
        threads.append(LoopThread("test"))
        opened = _Opened()
        found: list[BlockingStore] = []

        def connect(opened: _Opened = opened, found: list[BlockingStore] = found) -> None:
            found.append(open_blocking(opened.open, ClientSettings()))  # type: ignore[arg-type]

        is_over = not interrupted(at, connect)
        for each in found:
            each.close()
        assert opened.opens == opened.closes, f"it stays open, after an error at {at}"
        threads[-1].close()
        gc.collect()
    assert at > 20


class _Opened:
    """Counts how often a store was opened and closed."""

    def __init__(self) -> None:
        self.opens = self.closes = 0

    async def open(self) -> _Opened:
        self.opens += 1
        return self

    async def close(self) -> None:
        self.closes += 1


@pytest.mark.parametrize("kind", ["stream", "reader", "consumer"])
def test_a_call_that_another_thread_passed_says_so(kind: str, tmp_path: Path) -> None:
    """It said that the client was closed."""
    with connect_blocking(str(tmp_path)) as store:
        store.append("log", b"1")
        reading: Any
        if kind == "stream":
            reading = store.read("log", "tail", None)
        elif kind == "reader":
            reading = store.reader("log", start="tail")
        else:
            reading = store.consumer("c", "log", start="tail").__enter__()
        told: Future[Any] = Future()

        def wait_at_the_tail() -> None:
            try:
                told.set_result(next(iter(reading)))
            except CordwoodError as error:
                told.set_exception(error)

        threading.Thread(target=wait_at_the_tail, daemon=True).start()
        ends = time.monotonic() + WITHIN_S
        while reading._filling._task is None:
            assert time.monotonic() < ends
        second: Future[Any] = Future()
        threading.Thread(target=lambda: second.set_result(next(iter(reading))), daemon=True).start()
        with pytest.raises(Rejected, match="another thread reads here"):
            told.result(WITHIN_S)
        store.append("log", b"2")
        given = second.result(WITHIN_S)
        record = given if kind == "stream" else given[1]
        assert record.value == b"2"
