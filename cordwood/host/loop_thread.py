"""An event loop in a thread of its own, for callers that have none.

Source: docs/design.md §7 (`connect` blocks); CONTRIBUTING.md, "Determinism" (threads only in this
room).
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import uvloop

from cordwood.errors import Closed, CordwoodError, OutcomeUnknown, Rejected, Unreachable
from cordwood.host import at_end
from cordwood.host.delivery import Delivery
from cordwood.host.waits import FOREVER, FORKED, ThreadFuture, take

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STOP_TIMEOUT_S = 10.0
"""How long `close` waits for the loop to end; it is a daemon, so a program ends anyway."""

LATE_S = 2.0
"""A late call waits this long for the loop: after a pause of the whole process (SIGSTOP, a frozen
container) the waiting thread may wake first, while the loop holds the answer. An interrupted call
waits as long for its end on the loop, which takes a tick or two."""

END_S = 5.0
"""While the client closes, calls in other threads have this long to report their outcome, and as
long again to be cancelled. Their work has failed by then, so a few ticks are enough."""


_OWN_THREAD = (
    "a callback that the client runs in its own thread may not wait for the client: that thread "
    "would wait for itself. Do the work in another thread, or call what does not "
    "wait (`..._soon`, `submit`)"
)


class Told(Protocol):
    """Holds work that threads handed over."""

    def on_loop_end(self) -> None:
        """The loop takes nothing more: end the work with what is known of it.

        Called in the last ticks of the loop, and again once it has ended.
        """


class _Call(Generic[Result]):
    """A coroutine that the loop runs for a thread, and its outcome.

    The thread waits on a lock in C: `waits` tells what a signal does to any other lock.

    Attributes:
        is_done: whether the outcome is set; set last.
        error: the raised error, if any.
    """

    __slots__ = (
        "_delivery",
        "_ended",
        "_is_given_up",
        "_result",
        "_task",
        "_work",
        "error",
        "is_done",
    )

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self._work = work
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._task: asyncio.Task[Result] | None = None
        self._result: Result | None = None
        self._is_given_up = False
        # Not this object: tasks that the coroutine begins keep it for as long as they run.
        self._delivery = Delivery()
        self.error: BaseException | None = None
        self.is_done = False

    # On the loop's thread.

    def begin(self, on_end: Callable[[_Call[Any]], object]) -> None:
        if self._is_given_up:
            self._work.close()
            on_end(self)
            self.wake()
            return
        self._delivery.begin()
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(partial(self._end, on_end))

    def _end(self, on_end: Callable[[_Call[Any]], object], task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            self.error = asyncio.CancelledError()
        else:
            self.error = task.exception()
            if self.error is None:
                self._result = task.result()
        self.is_done = True
        if self._is_given_up:
            self._delivery.fail()
        on_end(self)
        self.wake()

    def cancel(self, on_end: Callable[[_Call[Any]], object]) -> None:
        if self.is_done:
            # The thread was interrupted as it took the result.
            self._delivery.fail()
        elif self._task is not None:
            self._task.cancel()
        else:
            # A signal handler raised before it was handed to the loop.
            self._work.close()
            on_end(self)
            self.wake()

    # On any thread.

    def refuse(self) -> None:
        """Close the coroutine, which will not begin."""
        self._work.close()

    def give_up(self) -> None:
        """Have the loop not begin it any more."""
        self._is_given_up = True

    def wake(self) -> None:
        """End the wait of the thread, whether there is an outcome or not."""
        # Released twice when the loop and `close` both come to it; the lock says so by an error.
        with suppress(RuntimeError):
            self._ended.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within `timeout_s`, which `waits.FOREVER` does not bound."""
        return take(self._ended, timeout_s)

    def outcome(self) -> Result:
        """The coroutine's result; raises its error. `is_own` must follow an error."""
        if self.error is not None:
            raise self.error
        return cast(Result, self._result)

    def is_own(self, error: BaseException) -> bool:
        """Whether `outcome` raised this error: it is the coroutine's. To be asked for once."""
        # Not kept here: the error's traceback names this call, and both would outlive it.
        own, self.error = self.error, None
        return error is own


class LoopThread:
    """Runs coroutines for blocking callers."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._has_ended = self._is_stopped = False
        # A lock of C: a signal handler that raises leaves it released, or not taken at all. A
        # signal handler that calls the client runs in the interrupted thread, which may hold the
        # lock.
        self._lock = threading.RLock()
        self._is_closing = False
        # Calls that threads wait for, which `close` wakes if the loop never came to them.
        self._open: set[_Call[Any]] = set()
        self._futures: set[ThreadFuture[Any]] = set()
        # By the time they were added; a program may drop its own hold on them.
        self._told: weakref.WeakValueDictionary[int, Told] = weakref.WeakValueDictionary()
        self._told_last = 0
        # What ends the loop, and the last work that it does first.
        self._ending: asyncio.Task[None] | None = None
        self._last: Coroutine[Any, Any, object] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._is_stopped:
                self._run_on()
        finally:
            self._has_ended = True
            self._wake_all()

    def _run_on(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException:
            # Such as a SystemExit of an application's callback. Other threads' work goes on: they
            # would wait for ever, and a store in this process would stay in use.
            logger.exception("a callback tried to end the client's thread, which goes on")

    def tell_end(self, told: Told) -> None:
        """Have `told` told when the loop ends; to be called on the loop."""
        self._told_last += 1
        self._told[self._told_last] = told

    def _wake_all(self) -> None:
        """End the waits for calls that the loop does not come to any more."""
        if self._has_ended:
            self._tell_end()
        for call in list(self._open):
            call.wake()
        for future in list(self._futures):
            future.cancel()

    def _tell_end(self) -> None:
        for told in list(self._told.values()):
            told.on_loop_end()

    @property
    def _is_alive(self) -> bool:
        """Whether the loop runs, in this process.

        Not `Thread.is_alive`: a signal handler that raises within it has CPython 3.11 take the
        thread for ended, and every later call would say that the client was closed.
        """
        return not self._has_ended and os.getpid() == self._pid

    def call(
        self,
        work: Coroutine[Any, Any, Result],
        *,
        timeout_s: float | None = None,
        changes: bool = False,
    ) -> Result:
        """Run a coroutine on the loop and wait for its result.

        An error raised in this thread while it waits (by a signal handler, as for a time limit,
        `SystemExit`, `KeyboardInterrupt`) cancels the coroutine. The error comes out once the
        coroutine has ended on the loop, within LATE_S. The coroutine may have done its work by
        then, so items that it takes for its caller must stay in their place until this thread has
        them, and what it must keep in mind for its repeat is told by `delivery.if_undelivered`.
        `timeout_s` None leaves the deadline to the coroutine.

        Args:
            changes: the coroutine may have stored something when nothing is known of its end.
        Raises:
            Closed: the loop was closed.
            Rejected: this is the loop's own thread; nothing was begun.
            Unreachable: nothing came within `timeout_s`.
            OutcomeUnknown: `Closed` or `Unreachable`, of a call that changes something.
        """
        call = _Call(work)
        try:
            self._begin(call)
            if timeout_s is None:
                call.wait(FOREVER)
            elif not (call.wait(max(timeout_s, 0.0)) or call.wait(LATE_S)):
                raise _unanswered(f"no answer within {timeout_s:g} s", Unreachable, changes)
            if call.error is not None and at_end.has_begun:
                at_end.rest(self._loop)
            if not call.is_done or isinstance(call.error, asyncio.CancelledError):
                # Only `close` cancels this thread's call.
                raise _unanswered("this client was closed meanwhile", Closed, changes)
            result = call.outcome()
        except BaseException as error:
            try:
                is_own = call.is_own(error)
            except BaseException:
                # A signal handler raised: nobody gets the call's error.
                self._cancel(call)
                raise
            if not is_own:
                self._cancel(call)
            raise
        return result

    def _begin(self, call: _Call[Any]) -> None:
        if at_end.has_begun and not self.is_own_thread:
            at_end.rest(self._loop)
        if self.is_of_other_process:
            call.refuse()
            raise Closed(FORKED)
        if self.is_own_thread:
            call.refuse()
            raise Rejected(_OWN_THREAD)
        with self._lock:
            if self._is_closing or not self._is_alive:
                call.refuse()
                raise Closed("this client was closed")
            self._open.add(call)
            self._hand_over(call.begin, self._open.discard)

    def _hand_over(self, callback: Callable[..., object], *args: Any) -> None:
        """Have the loop call it; the lock is held.

        Raises:
            Closed: a signal handler closed the client after this call had found it open.
        """
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError as error:
            raise Closed("this client was closed") from error

    def _cancel(self, call: _Call[Any]) -> None:
        call.give_up()
        if self.is_of_other_process or self.is_own_thread:
            return
        with self._lock:
            is_open = not self._is_closing and self._is_alive
            if is_open:
                self._loop.call_soon_threadsafe(call.cancel, self._open.discard)
        if is_open and not call.is_done:
            # A call that continued could count items as processed while this thread still works on
            # them.
            call.wait(LATE_S)

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine on the loop; its outcome comes by the future.

        Raises:
            Closed: the loop was closed.
        """
        if at_end.has_begun and not self.is_own_thread:
            at_end.rest(self._loop)
        future: ThreadFuture[Result] = ThreadFuture()
        if self.is_of_other_process:
            work.close()
            raise Closed(FORKED)
        try:
            with self._lock:
                if self._is_closing or not self._is_alive:
                    work.close()
                    raise Closed("this client was closed")
                self._futures.add(future)
                self._hand_over(self._begin_future, work, future)
        except BaseException:
            # A signal handler raised: the future has no owner, and `finish` does not wait for it.
            self._futures.discard(future)
            future.cancel()
            raise
        return future

    def _begin_future(
        self, work: Coroutine[Any, Any, Result], future: ThreadFuture[Result]
    ) -> None:
        if future.cancelled():
            self._futures.discard(future)
            work.close()
            return
        task = self._loop.create_task(work)

        def cancel(done: Future[Result]) -> None:
            # The caller cancelled it, in its own thread.
            if done.cancelled() and not self._is_closing and self._is_alive:
                self._loop.call_soon_threadsafe(task.cancel)

        def tell(_: asyncio.Task[Result]) -> None:
            self._futures.discard(future)
            _tell(future, task)

        future.add_done_callback(cancel)
        task.add_done_callback(tell)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop.

        Raises:
            Closed: the loop was closed, or this is a forked child.
        """
        # A daemon thread does not rest here as the interpreter ends: it may have put in what
        # `callback` is to take.
        if self.is_of_other_process:
            raise Closed(FORKED)
        with self._lock:
            self.check_open()
            self._hand_over(callback)

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in the loop's thread, as the callbacks of futures do: a wait for
        the loop there never ends."""
        # Trap: a thread that begins after the loop's thread has ended may get its number.
        return not self._has_ended and _thread.get_ident() == self._thread.ident

    @property
    def is_of_other_process(self) -> bool:
        """Whether this is a forked child, which has no loop."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Refuse a forked child before it takes a lock: another thread of the parent may have held
        the lock at the fork, and in the child no thread would release it.

        Raises:
            Closed: this process has no loop.
        """
        if self.is_of_other_process:
            raise Closed(FORKED)
        if at_end.has_begun and not self.is_own_thread:
            at_end.rest(self._loop)

    def check_open(self) -> None:
        """Refuse what the loop would not come to any more.

        Raises:
            Closed: the client was closed.
        """
        if self._is_closing or not self._is_alive:
            raise Closed("this client was closed")

    def check_waits(self) -> None:
        """Refuse a caller that would wait for itself.

        Raises:
            Rejected: this is the loop's own thread.
        """
        if self.is_own_thread:
            raise Rejected(_OWN_THREAD)

    def finish(self, timeout_s: float) -> int:
        """Wait for calls of `start` that may have no waiters; returns how many have not ended."""
        return len(wait(list(self._futures), timeout_s).not_done)

    def close(
        self, last: Coroutine[Any, Any, object] | None = None, *, timeout_s: float = END_S
    ) -> None:
        """Stop the loop and its thread. Safe to call twice, and in a forked child, which has
        neither.

        Nothing new is taken from here on: threads that went on to call would hold up the loop for
        as long as they did. Calls of other threads end first, with the outcome that they have by
        now, else with `Closed` or `OutcomeUnknown`.

        Args:
            last: ends the work of the calls; runs before the wait.
            timeout_s: of `last`.
        Raises:
            Rejected: this is the loop's own thread; nothing was closed.
            CordwoodError: what `last` raised; Unreachable where it, or the thread, did not end in
                time.
        """
        if self.is_of_other_process:
            _refuse(last)
            return
        if self.is_own_thread:
            _refuse(last)
            raise Rejected(_OWN_THREAD)
        failed: list[BaseException] = []
        with self._lock:
            self._is_closing = True
            # Trap: a signal handler may raise at any moment of this, and the caller closes again.
            # So each call hands over the end, and the loop takes the first that it gets.
            if not self._has_ended:
                with suppress(RuntimeError):  # a handler's own call closed the loop just now
                    self._loop.call_soon_threadsafe(self._begin_end, last, timeout_s, failed)
        join_s = timeout_s + STOP_TIMEOUT_S + 2 * END_S
        if not self._has_ended:
            self._thread.join(join_s)
        self._wake_all()
        if self._has_ended and self._last is not last:
            _refuse(last)
        if self._has_ended and not self._loop.is_closed():
            self._loop.close()
        for error in failed:
            raise error
        if not self._has_ended:
            raise Unreachable(
                f"the client's thread still runs {join_s:g} s after its close began, in a callback "
                "or starved by other threads: what was in flight may be stored, also later"
            )

    def _begin_end(
        self,
        last: Coroutine[Any, Any, object] | None,
        timeout_s: float,
        failed: list[BaseException],
    ) -> None:
        if self._ending is not None:
            _refuse(last)
            return
        self._last = last
        self._ending = self._loop.create_task(self._end(last, timeout_s, failed))

    async def _end(
        self,
        last: Coroutine[Any, Any, object] | None,
        timeout_s: float,
        failed: list[BaseException],
    ) -> None:
        # Told by a list: the loop stops before it would tell by a future.
        try:
            if last is not None:
                async with asyncio.timeout(timeout_s):
                    await last
        except TimeoutError:
            failed.append(Unreachable(f"the client did not close within {timeout_s:g} s"))
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            await self._end_calls()

    async def _end_calls(self) -> None:
        """Give every call its last turns, then stop the loop."""
        try:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, late = await asyncio.wait(others, timeout=END_S)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late, timeout=END_S)
        finally:
            try:
                self._tell_end()
                # The tick in which the callbacks of what they ended run.
                await asyncio.sleep(0)
            finally:
                self._is_stopped = True
                self._loop.stop()


def _refuse(work: Coroutine[Any, Any, object] | None) -> None:
    if work is not None:
        work.close()


def _tell(future: Future[Result], task: asyncio.Task[Result]) -> None:
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    error = task.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def _unanswered(why: str, kind: type[CordwoodError], changes: bool) -> CordwoodError:
    if not changes:
        return kind(why)
    return OutcomeUnknown(f"{why}: an append may be stored, also later than the log is read")
