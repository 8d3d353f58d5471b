"""The things that a probe counts: decisions of a type, or calls of a pure function.

The shells of the product tell their decisions (`cordwood.decisions`), and a probe counts these.
Pure rules tell nothing, so the probe watches the function itself. It refers to the function and not
to its name as a string, so that the type check finds a name that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, TypeVar

from cordwood.decisions import Decision
from cordwood.sim.planted.bug import find_owner

D = TypeVar("D", bound=Decision)


@dataclass(frozen=True, slots=True)
class Count(Generic[D]):
    """A probe on a type of decision.

    Attributes:
        test: called with each decision; None counts every decision.
    """

    probe: str
    kind: type[D]
    test: Callable[[D], object] | None = None


@dataclass(slots=True)
class Sight:
    """One call of a watched function: its arguments and its result.

    Attributes:
        args: for a method, the first is its object.
        result: None before the call.
    """

    args: tuple[Any, ...]
    result: Any = None

    @property
    def me(self) -> Any:
        """The object whose method it is."""
        return self.args[0]


Test = Callable[[Sight], object]
"""Whether the probe counts a call."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A probe on a function.

    Attributes:
        target: the function or method itself.
        test: called for each call that returned; None counts every call.
        before: whether the test comes before the call and not after it.
        raises: the error that counts, in place of a test.
        within: the only module whose imported name is watched; None for the defining module.
        place: the class or module that holds the function, and its name there.
    """

    probe: str
    target: Callable[..., Any]
    test: Test | None = None
    before: bool = False
    raises: type[BaseException] | None = None
    within: ModuleType | None = None
    place: tuple[Any, str] = field(init=False)

    def __post_init__(self) -> None:
        # Looked up once, now: while a bug is planted, the place holds another function.
        object.__setattr__(self, "place", find_owner(self.target, self.within))


def gave(sight: Sight) -> object:
    """The call gave something."""
    return sight.result
