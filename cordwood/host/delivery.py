"""Whether a thread got the result of a call that the loop did for it.

A signal handler's error may leave a blocking call after the loop has done it. The caller does not
know then what came of it, and makes the call again. So a call that means something else the second
time says what to keep in mind in this case.

Source: docs/api.md ("logs").
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class Delivery:
    """Of one call; to be used on the loop."""

    __slots__ = ("_hooks",)

    def __init__(self) -> None:
        self._hooks: list[Callable[[], object]] = []

    def begin(self) -> None:
        """In the context of the call, before its coroutine begins."""
        _present.set(self)

    def add(self, hook: Callable[[], object]) -> None:
        """See `if_undelivered`."""
        self._hooks.append(hook)

    def fail(self) -> None:
        """The caller will never get the result. Safe to call twice."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()


_present: ContextVar[Delivery | None] = ContextVar("cordwood_delivery", default=None)


def if_undelivered(hook: Callable[[], object]) -> None:
    """Have `hook` called on the loop if the present call's thread never gets its result, also an
    error. A call that is awaited on its own loop has no thread, and always gets it."""
    delivery = _present.get()
    if delivery is not None:
        delivery.add(hook)
