"""A probe's place: which function is watched, and which of its calls count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Sight:
    """One call of a watched function: its arguments, and what it returned.

    Attributes:
        args: of a method the first is its object.
        result: None before the call.
    """

    args: tuple[Any, ...]
    result: Any = None

    @property
    def me(self) -> Any:
        """The object whose method it is."""
        return self.args[0]


Test = Callable[[Sight], object]
"""Whether a call is what the probe looks for."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A probe on a function.

    Attributes:
        place: `module:function` or `module:Class.method`, below `cordwood`.
        test: asked of each call that returned; None counts every one.
        before: whether it is asked before the call and not after.
        raises: the error that counts, in place of a test.
    """

    probe: str
    place: str
    test: Test | None = None
    before: bool = False
    raises: type[BaseException] | None = None


def gave(sight: Sight) -> object:
    """The call gave something."""
    return sight.result
