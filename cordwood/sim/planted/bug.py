"""A planted bug, and the code that puts it in and takes it out again.

Planting replaces functions for the length of a block. A bug refers to the function that it
replaces: `at(Claims.release)`. If the name is gone, or the replacement has other arguments, the
type check fails. Production code has no hook for this.

Source: docs/sources/reliability.md §1 (etcd re-finds its old bugs), §6.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from cordwood.sim.constants import find_constant
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import as_drawn

P = ParamSpec("P")
R = TypeVar("R")

Plant = Callable[[], Sequence[tuple[Any, str, Any]]]
"""Gives (class or module, attribute, the bug's function) for each replacement."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One bug.

    Attributes:
        name: its name on the command line.
        story: its effect, in words.
        plant: the replacements.
        scenario: changes a seed's draw so that the bug acts, see `sim.planted.scenarios`.
        scene: the test that catches it, if no seed has the conditions that it needs; "" for seeds.
    """

    name: str
    story: str
    plant: Plant
    scenario: Callable[[RunOptions], RunOptions] = as_drawn
    scene: str = ""


class at(Generic[P, R]):  # noqa: N801 - reads as a preposition: at(Claims.release).around(wrong)
    """A function, method or property of the product that a bug replaces.

    Args:
        target: the function itself, such as `Claims.release` or `epoch_store.note_begun`.
        within: the only module whose imported name is replaced, or the class that was given the
            function; None for where it is defined.
    """

    def __init__(self, target: Callable[P, R], *, within: ModuleType | type | None = None) -> None:
        self.owner, self.name = find_owner(target, within)

    def around(self, wrong: Callable[Concatenate[Callable[P, R], P], R]) -> Plant:
        """`wrong` in its place: it takes the right function, and then the arguments of that
        function."""
        return lambda: [(self.owner, self.name, _wrapped(self._right, wrong))]

    def instead(self, wrong: Callable[P, R]) -> Plant:
        """`wrong` in its place, without the right function."""
        return lambda: [(self.owner, self.name, _like(self._right, wrong))]

    @property
    def _right(self) -> Any:
        return self.owner.__dict__[self.name]


def value(read: Callable[[], R], wrong: R) -> Plant:
    """Another value for the constant that `read` reads: `value(lambda: peers.PING_EVERY_S,
    0.1)`."""
    module, name = find_constant(read)
    return lambda: [(module, name, wrong)]


def together(*plants: Plant) -> Plant:
    """All of these replacements."""
    return lambda: [each for plant in plants for each in plant()]


def find_owner(target: Callable[..., Any], within: ModuleType | type | None) -> tuple[Any, str]:
    """The class or module that holds `target`, and the name that it has there."""
    function: Any = inspect.unwrap(_plain(target))
    owner: Any = sys.modules[function.__module__] if within is None else within
    path = (function.__qualname__ if within is None else function.__name__).split(".")
    for each in path[:-1]:
        owner = owner.__dict__[each]
    held = owner.__dict__.get(path[-1])
    assert held is not None, f"{owner} has no {path[-1]}"
    assert inspect.unwrap(_plain(held)) is function, f"{path[-1]} of {owner} is another one"
    return owner, path[-1]


def _plain(found: Any) -> Any:
    """The function of a property, a class method or itself."""
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def _like(right: Any, wrong: Any) -> Any:
    """`wrong` in the form of `right`: a property, a class method, a static method or a function."""
    if isinstance(right, property):
        return property(wrong)
    if isinstance(right, classmethod):
        return classmethod(lambda cls, *args, **named: wrong(*args, **named))
    return staticmethod(wrong) if isinstance(right, staticmethod) else wrong


def _wrapped(right: Any, wrong: Any) -> Any:
    taken = inspect.signature(wrong)
    taken = taken.replace(parameters=[*taken.parameters.values()][1:])
    if isinstance(right, classmethod):

        def of_class(cls: Any, *args: Any, **named: Any) -> Any:
            return wrong(functools.partial(right.__func__, cls), *args, **named)

        return classmethod(of_class)
    is_static = isinstance(right, staticmethod)
    function = right.fget if isinstance(right, property) else _plain(right)

    def plain(*args: Any, **named: Any) -> Any:
        return wrong(function, *args, **named)

    # Probes ask whether a function is a coroutine function, so the planted function must be one,
    # too.
    async def coroutine(*args: Any, **named: Any) -> Any:
        return await wrong(function, *args, **named)

    made: Any = coroutine if inspect.iscoroutinefunction(wrong) else plain
    made.__signature__ = taken
    if isinstance(right, property):
        return property(made)
    return staticmethod(made) if is_static else made


_NOTES: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def notes_of(thing: object) -> dict[str, Any]:
    """The notes of bugs about an object of the product, which has no field for them."""
    return _NOTES.setdefault(thing, {})


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    """Put the bug into the code for the length of the block."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, wrong in bug.plant():
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, wrong)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)
