"""A seeded asyncio event loop in virtual time.

The next callback is drawn from a seeded stream, and time jumps to the next timer when no callback
is ready. So one seed is one run, and an hour of quiet costs nothing.

- *Order.* asyncio promises that callbacks made ready in one process run in that order, and code
  relies on it. asyncio promises nothing between processes. So the loop draws the next process,
  callback by callback, and the queue of each process is FIFO.
- *Time.* A callback takes no time. Timers due at one instant join their
  processes' queues in the order they were set.
- *Numbers.* Tasks and futures hash by number and not by address (`sim.task`).
- *Garbage.* The cycle collector runs at fixed steps only, because objects that it ends (an async
  generator, a future whose error was never read) call back into the loop.
- *Trace.* A hash over time, process and callback of every step, and over facts that the simulated
  machine adds. Two runs that differ anywhere differ here (`sim.trace`).

Source: docs/sources/reliability.md §4; CONTRIBUTING.md, "Determinism"; asyncio's base_events.py for
what a loop promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
import logging
import random
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar, TypeVarTuple, cast

from cordwood.sim.process import CURRENT_PROCESS, Process, ProcessState
from cordwood.sim.refusals import ForbiddenInSimulation, LoopWithoutMachine, machine_out_of_reach
from cordwood.sim.task import SimFuture, SimTask
from cordwood.sim.trace import Trace

Result = TypeVar("Result")
Args = TypeVarTuple("Args")
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

WALL_START_S = 1_767_225_600
"""Wall time at virtual time 0: 2026-01-01 UTC."""

INSTANT_CALLBACKS_MAX = 1_000_000
"""Most callbacks at one instant: a real burst has thousands, so more than this is a loop that
spins."""

COLLECT_EVERY_CALLBACKS = 1 << 18
"""Steps between two runs of the cycle collector (and of the trace's hash): under a second."""

TIMERS_CANCELLED_MIN = 1000
"""Number of cancelled timers at which the heap is swept; most timeouts are cancelled."""

UNHANDLED_MAX = 100
"""Reports kept of unhandled exceptions; the first few tell the story."""

CLOSE_TRIES_MAX = 100
"""How often the close of a dead coroutine is tried: each `await` in a `finally` refuses one
close."""

CALLBACKS_KEPT_MAX = 500_000
"""The whole heap is searched for garbage after closed loops have run this many callbacks: about
eight seeds, or a thousand tests. A loop searches only its own objects when it closes. After that a
seed leaves some ten MB in cycles, including its history. A full search takes a twentieth of a
seed's time, but longer than most tests where a test run has a thousand modules loaded."""

_callbacks_kept = 0

_end_sleep: Callable[..., object] = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""The callback for which `asyncio.sleep` sets a timer."""

_current_process = CURRENT_PROCESS.get

_log = logging.getLogger(__name__)


class Livelock(RuntimeError):
    """Callbacks go on at one instant without end."""


class Deadlock(RuntimeError):
    """The awaited event cannot happen any more: no callback is ready and no timer is set."""


class SimHandle(asyncio.TimerHandle):
    """A callback that is ready, or will be ready at its time."""

    __slots__ = ("process",)
    _loop: SimLoop
    _when: float

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: Process,
    ) -> None:
        # Not asyncio's handle, which asks for tracebacks and costs more than all the rest.
        self._callback: Any = callback
        self._args: Any = args
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self.process = process

    def __repr__(self) -> str:
        name = getattr(self._callback, "__qualname__", None) or repr(self._callback)
        return f"<{name} of {self.process.name}>"

    def cancel(self) -> None:
        if self._cancelled:
            return
        self._cancelled = True
        self._callback = self._args = None
        if self._scheduled:
            self._loop._timer_was_cancelled()


class SimLoop(LoopWithoutMachine):
    """The loop. Give `asyncio.Runner` a `loop_factory` that makes one.

    Args:
        schedule: the stream that draws which process runs next.
        instant_callbacks_max: callbacks at one instant before it is called a livelock.

    Attributes:
        trace: the hash of all that happened.
        director: the process of everything outside the simulated processes.
        unhandled: contexts of unhandled exceptions, the first UNHANDLED_MAX.
        callbacks_run: steps so far.
        now: virtual time in s; cheaper than `time()`.
    """

    def __init__(
        self, schedule: random.Random, *, instant_callbacks_max: int = INSTANT_CALLBACKS_MAX
    ) -> None:
        self.trace = Trace()
        self.director = Process("director")
        self.unhandled: list[dict[str, Any]] = []
        self.callbacks_run = 0
        self._schedule = schedule
        self._instant_callbacks_max = instant_callbacks_max
        self.now = 0.0
        self._runnable: list[Process] = []  # each process is running and has a callback ready
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_cancelled = 0
        self._timer_numbers = itertools.count()
        self._task_numbers = itertools.count(1)
        self._future_numbers = itertools.count(1)
        self._graveyard: list[SimTask[Any]] = []
        self._dead: list[Process] = []
        self._asyncgens: weakref.WeakKeyDictionary[AsyncGenerator[Any, Any], Process] = (
            weakref.WeakKeyDictionary()
        )
        self._exception_handler: ExceptionHandler | None = None
        self._running = self._stopping = self._closed = False
        self._thread = threading.get_ident()
        self._froze = False

    # ---- what is simulated on top of a loop ----

    def spawn(
        self, process: Process, coro: Coroutine[Any, Any, Result], *, name: str | None = None
    ) -> SimTask[Result]:
        """Run `coro` as a task of `process`. All that it starts belongs to the process too."""
        assert not process.dead, f"{process.name} is dead: a restart is a new Process"
        return self.create_task(coro, name=name, context=process.context.copy())

    def pause(self, process: Process) -> None:
        """Stop a process as SIGSTOP does: its callbacks wait. A paused or dead process stays so."""
        if process.state is ProcessState.RUNNING:
            process.state = ProcessState.PAUSED
            self._unqueue(process)

    def resume(self, process: Process) -> None:
        """Undo `pause`: waiting callbacks run, in their order."""
        if process.state is ProcessState.PAUSED:
            process.state = ProcessState.RUNNING
            if process.ready:
                process.queued = True
                self._runnable.append(process)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: none of its callbacks runs again, not even a `finally`.

        A process that kills itself still finishes its present step. Killing a dead process does
        nothing.
        """
        if process.dead:
            return
        self._unqueue(process)
        cleanups = process.bury()
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        for task in sorted(tasks, key=lambda task: task.number):
            if task.process is process:
                task.bury()
                # Kept, because dropping a coroutine runs its finally blocks.
                self._graveyard.append(task)
        self._dead.append(process)
        for cleanup in cleanups:
            cleanup()

    def _unqueue(self, process: Process) -> None:
        if process.queued:
            process.queued = False
            self._runnable.remove(process)

    # ---- scheduling ----

    def time(self) -> float:
        return self.now

    def call_soon(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
            process = _current_process(self.director)
        else:
            process = context.get(CURRENT_PROCESS, self.director)
        handle = SimHandle(callback, args, context, process)
        process.ready.append(handle)
        if not process.queued and process.state is ProcessState.RUNNING:
            process.queued = True
            self._runnable.append(process)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if threading.get_ident() != self._thread:
            raise ForbiddenInSimulation("a call from another thread into a simulation")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if when <= self.now:
            handle = self.call_soon(callback, *args, context=context)
            handle._when = when
            return handle
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
            process = _current_process(self.director)
        else:
            process = context.get(CURRENT_PROCESS, self.director)
        handle = SimHandle(callback, args, context, process)
        handle._when = when
        handle._scheduled = True
        handle._loop = self
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def set_timer(self, when: float, handle: SimHandle) -> None:
        """As `call_at`, for repeated actions of the machine on a process: the same handle may wait
        many times. It cannot be cancelled."""
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def next_future_number(self) -> int:
        """The number by which a future hashes, see `sim.task`."""
        return next(self._future_numbers)

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> SimTask[Result]:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        where = contextvars.copy_context() if context is None else context
        return SimTask(
            cast(Coroutine[Any, Any, Result], coro),
            self,
            next(self._task_numbers),
            where.get(CURRENT_PROCESS, self.director),
            name=name,
            context=where,
        )

    def _timer_was_cancelled(self) -> None:
        self._timers_cancelled += 1
        if TIMERS_CANCELLED_MIN < self._timers_cancelled > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    # ---- running ----

    def run_forever(self) -> None:
        """Run until `stop`.

        Raises:
            Livelock, Deadlock: time cannot go on.
        """
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._running or asyncio._get_running_loop() is not None:
            raise RuntimeError("another event loop is running")
        with self._as_running_loop():
            self._run()

    def run_until_complete(
        self, future: Generator[Any, None, Result] | Awaitable[Result]
    ) -> Result:
        made_here = not asyncio.isfuture(future)
        awaited: asyncio.Future[Result] = asyncio.ensure_future(
            cast(Awaitable[Result], future), loop=self
        )
        awaited.add_done_callback(self._stop_at)
        try:
            self.run_forever()
        except BaseException:
            if made_here and awaited.done() and not awaited.cancelled():
                awaited.exception()  # this error is being raised: mark it as read
            raise
        finally:
            awaited.remove_done_callback(self._stop_at)
        if not awaited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return awaited.result()

    def _stop_at(self, future: asyncio.Future[Any]) -> None:
        self._stopping = True

    def stop(self) -> None:
        """Stop after the callback that is running."""
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    @contextlib.contextmanager
    def _as_running_loop(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        sys.set_asyncgen_hooks(self._asyncgen_started, self._asyncgen_dropped)
        gc.disable()
        if not self._froze:
            # Earlier objects are not garbage of this run, so the collector leaves them out.
            gc.freeze()
            self._froze = True
        asyncio._set_running_loop(self)
        self._running = True
        try:
            with machine_out_of_reach(self.time, WALL_START_S):
                yield
        finally:
            self._running = self._stopping = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def _run(self) -> None:
        runnable, draw = self._runnable, self._schedule.random
        # Inlined, as calls would take a tenth of a simulation's time: a task is its number here,
        # and a known name is looked up.
        append, number_of = self.trace.append, self.trace.number_of
        numbers = self.trace.numbers
        before_instant = self.callbacks_run
        while not self._stopping:
            if not runnable:
                self._advance()
                before_instant = self.callbacks_run
                continue
            count = len(runnable)
            index = int(draw() * count) if count > 1 else 0
            process = runnable[index]
            ready = process.ready
            handle = ready.popleft()
            if not ready:
                process.queued = False
                runnable[index] = runnable[-1]
                runnable.pop()
            if handle._cancelled:
                continue
            callback = handle._callback
            owner = getattr(callback, "__self__", None)
            if type(owner) is SimTask:
                append(process.number ^ owner.number)
            else:
                name = getattr(callback, "__qualname__", None)
                append(process.number ^ (numbers.get(name) or number_of(callback)))
            try:
                handle._context.run(callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  (as asyncio does: a loop goes on)
                self._report_callback(handle, error)
            self.callbacks_run = run = self.callbacks_run + 1
            if run - before_instant > self._instant_callbacks_max:
                count = run - before_instant
                raise Livelock(f"{count} callbacks at {self.now:g} s; last {handle!r}")
            if run % COLLECT_EVERY_CALLBACKS == 0:
                gc.collect(1)
                self.trace.flush()

    def _advance(self) -> None:
        """Go to the next timer's instant and make ready everything due at it."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            raise Deadlock(f"nothing is ready and no timer is set at {self.now:g} s")
        self.now = now = timers[0][0]
        self.trace.append(now)
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._timers_cancelled -= 1
                continue
            process = handle.process
            if handle._callback is _end_sleep and process.state is ProcessState.RUNNING:
                # It only wakes its task, which is a step of its own.
                _end_sleep(*handle._args)
                continue
            # A timer of a paused or dead process is queued too, and waits there.
            process.ready.append(handle)
            if not process.queued and process.state is ProcessState.RUNNING:
                process.queued = True
                self._runnable.append(process)

    # ---- errors ----

    def _report_callback(self, handle: SimHandle, error: BaseException) -> None:
        self.call_exception_handler(
            {
                "message": f"Exception in callback {handle!r}",
                "exception": error,
                "handle": handle,
            }
        )

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._exception_handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log it, and keep it in `unhandled` for the simulation's verdict."""
        if len(self.unhandled) < UNHANDLED_MAX:
            self.unhandled.append(context)
        _log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return  # reports of objects that are disposed of at the end are dropped
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Does nothing: debug mode measures real time."""

    # ---- the end ----

    def _asyncgen_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens[generator] = CURRENT_PROCESS.get(self.director)

    def _asyncgen_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._asyncgens.pop(generator, self.director)
        if not self._closed and not process.dead:
            self.call_soon(self._close_asyncgen, generator, context=process.context)

    def _close_asyncgen(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the async generators still open, in the order they were started."""
        for generator, process in list(self._asyncgens.items()):
            if not process.dead:
                await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is no default executor. `asyncio.Runner` gives a timeout from Python 3.12 on."""

    def close(self) -> None:
        """Dispose of everything, the dead processes' tasks in the order they died.

        Their `finally` blocks do run now, because Python has no other way to drop a
        coroutine; the loop is closed, so nothing that they do reaches the simulation.
        """
        if self._running:
            raise RuntimeError("Cannot close a running event loop")
        if self._closed:
            return
        self._closed = True
        with _last_words_unheard():
            for task in self._graveyard:
                _close_coroutine(cast(Coroutine[Any, Any, Any], task.get_coro()))
            self._graveyard.clear()
            for process in self._dead:
                process.ready.clear()
            self._dead.clear()
            self._runnable.clear()
            self._timers.clear()
            # Objects in cycles would call back later, in the middle of another run.
            gc.collect()
            if self._froze:
                gc.unfreeze()
                _collect_runs(self.callbacks_run)


def _collect_runs(callbacks: int) -> None:
    """Drop what earlier runs left, now and then.

    Without this, the next run froze the leftovers with all other objects: each process of a sweep
    of 1,500 seeds grew to ten GB, and the sweep slowed to two thirds of its pace.
    """
    global _callbacks_kept
    _callbacks_kept += callbacks
    if _callbacks_kept >= CALLBACKS_KEPT_MAX:
        _callbacks_kept = 0
        gc.collect()


@contextlib.contextmanager
def _last_words_unheard() -> Iterator[None]:
    """Do not report errors that `finally` blocks of dead processes raise or leave behind.

    For example: a coroutine was never awaited, or there is no running loop.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


def _close_coroutine(coro: Coroutine[Any, Any, Any]) -> None:
    for _ in range(CLOSE_TRIES_MAX):
        # Errors of a dead process at a closed loop mean nothing. A coroutine that awaits in a
        # finally block refuses to close, and goes on from there.
        with contextlib.suppress(BaseException):
            coro.close()
            return
