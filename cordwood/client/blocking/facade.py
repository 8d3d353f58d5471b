"""Make blocking methods from asyncio methods, with their parameters, types and docstrings.

A blocking class names each method once: `tail = blocking(Store.tail)`. So the two front doors
cannot differ, and `help()` shows the asyncio method's docstring.

Source: docs/design.md §7.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from cordwood.host.loop_thread import LoopThread

Inner = TypeVar("Inner")
Inner_co = TypeVar("Inner_co", covariant=True)
Result = TypeVar("Result")
Params = ParamSpec("Params")


class Facade(Generic[Inner_co]):
    """An asyncio object, and the thread that runs its loop."""

    def __init__(self, thread: LoopThread, inner: Inner_co, timeout_s: float) -> None:
        """
        Args:
            timeout_s: how long a call waits before it gives up on the loop's thread. The object's
                own deadlines end sooner.
        """
        self._thread = thread
        self._inner = inner
        self._timeout_s = timeout_s

    def _call(self, work: Coroutine[Any, Any, Result], *, changes: bool = False) -> Result:
        """Run a coroutine to its end; see `LoopThread.call`."""
        return self._thread.call(work, timeout_s=self._timeout_s, changes=changes)


def blocking(
    method: Callable[Concatenate[Inner, Params], Coroutine[Any, Any, Result]],
    *,
    changes: bool = False,
    timed: bool = True,
) -> Callable[Concatenate[Facade[Inner], Params], Result]:
    """Make the blocking twin of an asyncio method.

    Args:
        method: a coroutine function of the facade's inner class.
        changes: the call may have stored something when no answer comes: `OutcomeUnknown`.
        timed: the call has one deadline of the client's. Calls over many logs or many blocks
            have a deadline for each part instead, so their sum has none.
    """

    name = method.__name__  # looked up at the object: a subclass or a recorder may have its own

    @wraps(method)
    def call(self: Facade[Inner], /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        work: Coroutine[Any, Any, Result] = getattr(self._inner, name)(*args, **kwargs)
        timeout_s = self._timeout_s if timed else None
        return self._thread.call(work, timeout_s=timeout_s, changes=changes)

    return call


class Until(Generic[Result]):
    """Iterates over a call's results until a result is None. An error of the call does not end the
    iteration."""

    def __init__(self, call: Callable[[], Result | None]) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        given = self._call()
        if given is None:
            raise StopIteration
        return given
