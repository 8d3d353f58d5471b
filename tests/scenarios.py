"""Tests that are scenarios: a runner plays the test itself, on a simulated cluster or another loop.

::

    @as_scenario(simulate, nodes=3)
    async def test_something(cluster: ClusterAtHand, *, tmp_path: Path) -> None:
        async with cluster.client() as store:
            await store.append("log", b"value")

Parameters before the `*` come from the runner, parameters behind it are pytest's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

Test = Callable[..., Awaitable[Any]]
Runner = Callable[..., Any]


def as_scenario(run: Runner | str, **options: Any) -> Callable[[Test], Callable[..., None]]:
    """Make a pytest test of a coroutine function: `run(test, **options)` plays it.

    Args:
        run: calls the scenario with what it made for it, and waits for its end; or the name of a
            fixture that does so.
    """

    def decorate(test: Test) -> Callable[..., None]:
        signature = inspect.signature(test)
        pytests = [each for each in signature.parameters.values() if _is_pytests(each)]
        if isinstance(run, str):
            pytests.append(inspect.Parameter(run, inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(test)
        def played(*owner: object, **fixtures: Any) -> None:
            runner = fixtures.pop(run) if isinstance(run, str) else run
            runner(functools.partial(test, *owner, **fixtures), **options)

        # pytest asks for a fixture for each parameter that it sees here.
        played.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=pytests, return_annotation=None
        )
        return played

    return decorate


def awaited_by(run: Callable[[Any], Any]) -> Runner:
    """A runner for `as_scenario`, of a function that takes a coroutine, such as `asyncio.run`."""
    return lambda test: run(test())


def _is_pytests(parameter: inspect.Parameter) -> bool:
    return parameter.name == "self" or parameter.kind is inspect.Parameter.KEYWORD_ONLY


def run_on_uvloop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a real loop of the kind that nodes use."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def now() -> float:
    """Seconds of the running loop: virtual ones in a simulation."""
    return asyncio.get_running_loop().time()
