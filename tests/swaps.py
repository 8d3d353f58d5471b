"""Other functions and values in the product's code, for a test: by reference, never by a string.

A function or a constant that is renamed breaks the type check and the import of its tests, not
their meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from cordwood.sim.constants import find_constant
from cordwood.sim.planted.bug import at


def swap(
    monkeypatch: pytest.MonkeyPatch,
    target: Callable[..., Any],
    other: Callable[..., Any],
    *,
    within: ModuleType | type | None = None,
) -> None:
    """Put a function in a function's place, such as `LogAppender.on_refused`.

    Args:
        within: the only module whose imported name is replaced, or the class that was given the
            function; None for where it is defined.

    Raises:
        TypeError: `other` cannot be called as `target` is. The product might take that for a
            failure of a node, and the test would pass or fail for another reason.
    """
    _expect_same_calls(target, other)
    for owner, name, made in at(target, within=within).instead(other)():
        monkeypatch.setattr(owner, name, made)


def _expect_same_calls(target: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Bind the arguments of `target` to `other`."""
    try:
        asked = inspect.signature(target).parameters.values()
        given = inspect.signature(other)
    except ValueError:  # written in C
        return
    in_place = [x for x in asked if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    by_name = {x.name for x in asked if x.kind is x.KEYWORD_ONLY}
    given.bind(*in_place, **dict.fromkeys(by_name))


def swap_value(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], other: object) -> None:
    """Another value for a constant: `swap_value(monkeypatch, lambda: peers.PING_EVERY_S, 0.1)`."""
    owner, name = find_constant(read)
    monkeypatch.setattr(owner, name, other)
