"""Asks the members of a nodeset the same question, until enough have answered.

Source: CONTRIBUTING.md, "The idea"; docs/sources/logdevice.md 2.7 (4: a grace period for late
answers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from cordwood.errors import CordwoodError, Unreachable
from cordwood.nodes import NodeId

Answer = TypeVar("Answer")

GRACE_S = 0.1
"""How long to wait for further answers after enough have come: each further answer gives recovery
more copies (LogDevice waits as long)."""


async def ask_all(
    nodes: Sequence[NodeId], ask: Callable[[NodeId], Awaitable[Answer]]
) -> dict[NodeId, Answer | CordwoodError]:
    """Ask all nodes at once and wait for every answer; see `ask_until`."""
    return await ask_until(nodes, ask, lambda answers: False)


async def ask_until(
    nodes: Sequence[NodeId],
    ask: Callable[[NodeId], Awaitable[Answer]],
    enough: Callable[[Mapping[NodeId, Answer | CordwoodError]], bool],
    grace_s: float | None = None,
    silent: Collection[NodeId] = (),
) -> dict[NodeId, Answer | CordwoodError]:
    """Ask all nodes at once; return when all have answered, or GRACE_S after enough have.

    Args:
        ask: keeps its own deadline; a CordwoodError counts as the node's answer, any other
            exception ends the whole question.
        enough: decides from the answers so far.
        grace_s: in place of GRACE_S.
        silent: nodes that most likely do not answer. When enough answers are there, the grace
            period does not wait for them, so that one stopped node does not delay appends at
            each new epoch.
    Returns:
        An answer or an error for each node, in node order.
    """
    loop = asyncio.get_running_loop()
    answers: dict[NodeId, Answer | CordwoodError] = {}

    async def guarded(node: NodeId) -> None:
        try:
            answers[node] = await ask(node)
        # An error of one node is its answer. Any other exception is a fault of ours, and ends the
        # group.
        except CordwoodError as error:
            answers[node] = error

    async with asyncio.TaskGroup() as tasks:
        asked = {tasks.create_task(guarded(node)) for node in nodes}
        ends_at: float | None = None
        while asked:
            # All that are expected have answered: the grace would only delay the log.
            if ends_at is not None and answers.keys() | set(silent) >= set(nodes):
                break
            left = None if ends_at is None else max(0.0, ends_at - loop.time())
            _, asked = await asyncio.wait(asked, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if ends_at is None and enough(answers):
                ends_at = loop.time() + (GRACE_S if grace_s is None else grace_s)
            if ends_at is not None and loop.time() >= ends_at:
                break
        # No task outlives the question: a late answer belongs to an attempt that is over.
        for late in asked:
            late.cancel()
    unheard = Unreachable("no answer yet, when enough others had answered")
    return {node: answers.get(node, unheard) for node in sorted(nodes)}
