"""Asking the members of a nodeset the same thing, until enough have answered.

Source: CONTRIBUTING.md, "The idea"; docs/sources/logdevice.md 2.7 (4: a grace period for those on
their way).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from cordwood.errors import CordwoodError, Unreachable
from cordwood.nodes import NodeId

Answer = TypeVar("Answer")

GRACE_S = 0.1
"""How long answers that are still on their way are waited for once enough are there:
each one more makes recovery know more (LogDevice waits as long)."""


async def ask_all(
    nodes: Sequence[NodeId], ask: Callable[[NodeId], Awaitable[Answer]]
) -> dict[NodeId, Answer | CordwoodError]:
    """Ask all nodes at once and wait for every one; see `ask_until`."""
    return await ask_until(nodes, ask, lambda answers: False)


async def ask_until(
    nodes: Sequence[NodeId],
    ask: Callable[[NodeId], Awaitable[Answer]],
    enough: Callable[[Mapping[NodeId, Answer | CordwoodError]], bool],
    grace_s: float | None = None,
    silent: Collection[NodeId] = (),
) -> dict[NodeId, Answer | CordwoodError]:
    """Ask all nodes at once; return when all have answered, or enough have and GRACE_S passed.

    Args:
        ask: keeps its own deadline; one of our errors counts as its answer, any other
            exception ends the whole question.
        enough: told what is there so far.
        grace_s: in place of GRACE_S.
        silent: nodes that most likely do not answer: once enough are there nobody waits for
            these, so that appends do not stand still at each epoch beside a stopped node.
    Returns:
        An answer or an error for each node, in node order.
    """
    loop = asyncio.get_running_loop()
    answers: dict[NodeId, Answer | CordwoodError] = {}

    async def guarded(node: NodeId) -> None:
        try:
            answers[node] = await ask(node)
        except CordwoodError as error:
            answers[node] = error

    async with asyncio.TaskGroup() as tasks:
        asked = {tasks.create_task(guarded(node)) for node in nodes}
        ends_at: float | None = None
        while asked:
            if ends_at is not None and answers.keys() | set(silent) >= set(nodes):
                break
            left = None if ends_at is None else max(0.0, ends_at - loop.time())
            _, asked = await asyncio.wait(asked, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if ends_at is None and enough(answers):
                ends_at = loop.time() + (GRACE_S if grace_s is None else grace_s)
            if ends_at is not None and loop.time() >= ends_at:
                break
        for late in asked:
            late.cancel()
    unheard = Unreachable("no answer yet, when enough others had answered")
    return {node: answers.get(node, unheard) for node in sorted(nodes)}
