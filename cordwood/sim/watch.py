"""What a probe counts: decisions of a type, or calls of a pure function.

The shells of the product tell what they decide (`cordwood.decisions`), and a probe counts that.
Pure rules tell nothing: there a probe watches the function itself, by reference, so that a name
which is gone breaks the type check.
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
        test: asked of each decision; None counts every one.
    """

    probe: str
    kind: type[D]
    test: Callable[[D], object] | None = None


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
        target: the function or method itself.
        test: asked of each call that returned; None counts every one.
        before: whether it is asked before the call and not after.
        raises: the error that counts, in place of a test.
        within: the only module whose imported name is watched; None for where it is defined.
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
        # Once and now: while a bug is planted, the place holds another function.
        object.__setattr__(self, "place", find_owner(self.target, self.within))


def gave(sight: Sight) -> object:
    """The call gave something."""
    return sight.result
