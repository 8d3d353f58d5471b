"""Blocking calls that a signal handler's error broke off, and that are made again: the loop may
have done them, and nobody had the result."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from cordwood.embedded import connect_blocking
from cordwood.errors import Fenced, LogExists, UnknownLog
from cordwood.host.delivery import Delivery, if_undelivered
from cordwood.host.loop_thread import LoopThread, _Call
from cordwood.sim.planted import find_bug, planted


class Soft(Exception):
    """What a signal handler raises."""


def moments(
    work: Callable[[int], object], before: Callable[[], object] = lambda: None
) -> Iterator[int]:
    """Call `work` with 1, 2 and so on, and raise Soft in it at the moment of this number of those
    at which CPython runs signal handlers: as a Python function begins, or a C one has returned.

    Gives the number if it broke the call off, and ends where there is no moment so late.
    """
    for at in itertools.count(1):
        seen = 0

        def interrupt(_: FrameType, event: str, __: object, at: int = at) -> None:
            nonlocal seen
            seen += event in ("call", "c_return")
            if seen == at:
                sys.setprofile(None)
                raise Soft

        is_broken_off = False
        before()
        sys.setprofile(interrupt)
        try:
            work(at)  # An error within a finalizer is told to nobody.
        except Soft:
            is_broken_off = True
        finally:
            sys.setprofile(None)
        if seen < at:
            assert at > 10
            return
        if is_broken_off:
            yield at


def bug(name: str) -> AbstractContextManager[object]:
    return planted(find_bug(name)) if name else nullcontext()


def wrong(name: str) -> AbstractContextManager[object]:
    return pytest.raises(pytest.fail.Exception) if name else nullcontext()


pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.mark.parametrize("bug_name", ["", "results-undelivered"])
def test_a_claim_that_was_broken_off_at_any_moment_is_won_by_its_repeat(
    bug_name: str, tmp_path: Path
) -> None:
    """The claim was done, and its repeat was refused: nobody had the records."""
    with connect_blocking(str(tmp_path)) as store, bug(bug_name), wrong(bug_name):
        store.create_log("tasks")
        store.save_cursors("c", {"tasks": 1})

        def claim(at: int) -> None:
            store.save_cursors("c", {"tasks": at + 1}, {"tasks": at})

        for at in moments(claim):
            try:
                claim(at)
            except Fenced as error:
                pytest.fail(f"nobody has the records, after an error at {at}: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("bug_name", ["", "results-undelivered"])
@pytest.mark.parametrize("change", ["delete", "rename"])
def test_a_change_that_was_broken_off_at_any_moment_leaves_alone_a_log_that_took_the_name(
    change: str, bug_name: str, tmp_path: Path
) -> None:
    """The change was done, and its repeat deleted, or renamed, the log that had taken the name."""

    with connect_blocking(str(tmp_path)) as store, bug(bug_name), wrong(bug_name):

        def make(at: int) -> None:
            if change == "delete":
                store.log_tree.delete("a")
            else:
                store.log_tree.rename("a", f"b{at}")

        def begin() -> None:
            with suppress(LogExists):
                store.create_log("a")

        for at in moments(make, begin):
            time.sleep(0.05)  # a node may be doing it still
            try:
                made = store.create_log("a")
            except LogExists:
                make(at)  # it was broken off before it was done
                continue
            if change == "rename":
                store.log_tree.rename(f"b{at}", f"c{at}")
            with suppress(UnknownLog):
                make(at)
            try:
                assert store.log(made.log_id).name == "/a"
            except (AssertionError, UnknownLog):
                pytest.fail(f"a log that nobody meant is changed, after an error at {at}")
            store.log_tree.delete("a", made.log_id)


def test_an_error_that_nobody_got_is_undelivered_too_and_a_result_is_not() -> None:
    thread = LoopThread("test")
    told: list[str] = []

    async def work(name: str, error: Exception | None) -> None:
        if_undelivered(partial(told.append, name))
        if error is not None:
            raise error

    def refused() -> None:
        with pytest.raises(UnknownLog):
            thread.call(work("refused", UnknownLog("a")))

    try:
        thread.call(work("done", None))
        refused()
        assert told == []
        broken_off = len([*moments(lambda _: refused())])
        thread.call(work("done", None))
        assert {*told} == {"refused"}
        assert len(told) < broken_off
    finally:
        thread.close()


@pytest.mark.parametrize("bug_name", ["", "errors-undelivered"])
def test_an_error_that_a_signal_takes_from_the_thread_is_undelivered(bug_name: str) -> None:
    """The refusal of a repeat was known to nobody, and its next repeat deleted another log."""
    thread = LoopThread("test")
    told: list[str] = []

    async def refused() -> None:
        if_undelivered(partial(told.append, "refused"))
        raise UnknownLog("a")

    async def look() -> list[str]:
        return told

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is _Call.is_own.__code__:
            sys.setprofile(None)
            raise Soft

    try:
        with bug(bug_name), wrong(bug_name):
            sys.setprofile(interrupt)
            try:
                with pytest.raises(Soft):
                    thread.call(refused())
            finally:
                sys.setprofile(None)
            if thread.call(look()) != ["refused"]:
                pytest.fail("the refusal counts as told")
    finally:
        thread.close()


def test_who_awaits_on_the_loop_always_gets_the_result() -> None:
    told: list[int] = []
    if_undelivered(partial(told.append, 1))
    delivery = Delivery()
    delivery.add(partial(told.append, 2))
    delivery.fail()
    delivery.fail()
    assert told == [2]
