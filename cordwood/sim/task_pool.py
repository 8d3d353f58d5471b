"""Simulations side by side: worker processes, each of which runs one task at a time.

A simulation that hangs (a bug may spin for ever) can only be ended from outside. So each worker has
a pipe of its own and a time limit for every task, and is replaced when it exceeds the limit. The
limit is time of a core, if the machine tells it: a worker that other programs delay does not hang.
Workers start from a fresh interpreter: only the task reaches them, so a seed gives the same run in
each.

Source: TigerBeetle's fuzzing orchestrator (docs/sources/reliability.md §1).
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

WAITED_MAX = 10
"""Factor of its limit that a task may take in real time, from any cause."""

STOP_S = 2.0
"""How long an idle worker may take to end before it is killed."""


class Lost(Exception):
    """A worker gave no result: it took too long, it died, or its task raised an error."""


class _Worker(Generic[Task, Result]):
    def __init__(self, work: Callable[[Task], Result]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(work, theirs), daemon=True, name="cordwood-sim"
        )
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self._is_up = False
        self._given_s = self._cpu_given_s = 0.0

    def give(self, task: Task) -> None:
        self.task = task
        self._count_from_now()
        self.pipe.send(task)

    def comes_up(self) -> bool:
        """Whether the message in its pipe is its first; the start does not count as work."""
        if self._is_up:
            return False
        try:
            self.pipe.recv()
        except (EOFError, ConnectionError):
            return False
        self._is_up = True
        self._count_from_now()
        return True

    def _count_from_now(self) -> None:
        self._given_s, self._cpu_given_s = time.monotonic(), self._cpu_s() or 0.0

    def hangs(self, timeout_s: float) -> bool:
        """Whether its task has taken longer than it may."""
        waited_s = time.monotonic() - self._given_s
        if waited_s <= timeout_s:
            return False
        cpu_s = self._cpu_s() if self._is_up else self._cpu_given_s
        if cpu_s is None or waited_s > WAITED_MAX * timeout_s:
            return True
        return cpu_s - self._cpu_given_s > timeout_s

    def _cpu_s(self) -> float | None:
        """Time of a core that its process has used; None if the machine does not tell."""
        try:
            # The kernel's number for the clock of a process, as clock_getcpuclockid gives it.
            return time.clock_gettime(~(self.process.pid or 0) << 3 | 2)
        except OSError:
            return None

    def end(self) -> None:
        self.pipe.close()
        self.process.join(STOP_S if self.task is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class TaskPool(Generic[Task, Result]):
    """See the module. Use it in a `with` block, which leaves no process behind.

    Args:
        work: a function of a module, called in the workers.
        jobs: workers.
        timeout_s: seconds of a core that one task may take.
    """

    def __init__(self, work: Callable[[Task], Result], *, jobs: int, timeout_s: float) -> None:
        self._work = work
        self._timeout_s = timeout_s
        self._workers = [_Worker(work) for _ in range(jobs)]

    def __enter__(self) -> TaskPool[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def run(
        self, next_task: Callable[[], Task | None], *, every_s: float = 0.2
    ) -> Iterator[tuple[Task, Result | Lost] | None]:
        """Yield each task with its result as it ends, and None now and then.

        Args:
            next_task: called whenever a worker is free; None for "no more for now". The run is over
                when it returns None and no task is under way.
            every_s: the longest time between two things yielded.
        """
        while True:
            for worker in self._workers:
                if worker.task is None and (task := next_task()) is not None:
                    worker.give(task)
            busy = [worker for worker in self._workers if worker.task is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], timeout=every_s)
            for worker in busy:
                if worker.pipe in ready and worker.comes_up():
                    continue
                if worker.pipe in ready or worker.hangs(self._timeout_s):
                    task = worker.task
                    assert task is not None, "a busy worker has a task"
                    yield task, self._result(worker, late=worker.pipe not in ready)
            if not ready:
                yield None

    def _result(self, worker: _Worker[Task, Result], *, late: bool) -> Result | Lost:
        worker.task = None
        try:
            if late:
                raise EOFError
            answer: tuple[str, Result | str] = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.kill()
            worker.end()
            self._workers[self._workers.index(worker)] = _Worker(self._work)
            took = f"no end within {self._timeout_s:g} s" if late else "its process died"
            return Lost(took)
        kind, value = answer
        return Lost(str(value)) if kind == "raised" else value  # type: ignore[return-value]


def _serve(work: Callable[[Task], Result], pipe: Connection) -> None:
    """A worker's life: task in, result out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    logging.disable(logging.CRITICAL)
    quiet_leftovers()
    try:
        pipe.send(("up", None))
    except OSError:
        return  # the pool was over before this one was up
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[str, object] = ("result", work(task))
        except Exception:  # noqa: BLE001  (the caller is told, with the traceback)
            answer = ("raised", traceback.format_exc())
        pipe.send(answer)


def quiet_leftovers() -> None:
    """Do not report errors of dead simulated processes that cannot clean up.

    Python runs the `finally` blocks of a dropped coroutine when it is collected. The blocks of a
    killed process then find their loop closed, which means nothing.
    """
    sys.unraisablehook = lambda _: None
