"""A constant of a module or a class, named by a function that reads it.

A number has no name of its own, so it cannot be referred to as a function can. A function that
reads the number, such as `lambda: peers.PING_EVERY_S`, passes the type check, and its code says
which name it looks up in which module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def find_constant(read: Callable[[], Any]) -> tuple[Any, str]:
    """The module or class, and the name, that `read` looks up. `read` must be one look-up alone."""
    owner_name, name = read.__code__.co_names
    owner = read.__globals__[owner_name]
    assert name in owner.__dict__, f"{owner.__name__} has no {name}"
    return owner, name
