"""Calls of a ledger's clients to the nodes that keep its entries, each with its own deadline.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from cordwood.client.cluster import Cluster
from cordwood.errors import Overloaded
from cordwood.layout.message import Call, Reply
from cordwood.nodes import NodeId

Answer = TypeVar("Answer")

CONNECT_S = 1.0
"""How long a connection to a node may take; a node that refuses is known to be away at once."""

FULL_PAUSE_S = 0.05
"""Pause before an overloaded node is asked again."""


async def ask_node(cluster: Cluster, node: int, call: Call, *, timeout_s: float) -> Reply:
    """Call a node, and again while it is overloaded, all within `timeout_s`.

    Raises:
        Unreachable: there is no connection, or the node does not answer in time.
        Overloaded: the node was overloaded all the time.
        CordwoodError: the node's answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        left = max(0.001, deadline - loop.time())
        connection = await cluster.peers.wait_for(
            NodeId(node), timeout_s=min(CONNECT_S, left), dials=1
        )
        try:
            return await connection.call(call, timeout_s=max(0.001, deadline - loop.time()))
        except Overloaded:
            if loop.time() + FULL_PAUSE_S >= deadline:
                raise
        await asyncio.sleep(FULL_PAUSE_S)


async def ask_together(asks: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """The answers of several nodes that are asked at the same time, in the order of `asks`.

    The first error, or a cancellation, ends the other calls before it comes out: their caller may
    be gone by the time they would end.

    Raises:
        CordwoodError: the first error of a call.
    """
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
