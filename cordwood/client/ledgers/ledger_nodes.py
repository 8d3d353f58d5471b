"""Calls of a ledger's clients to the nodes that keep its entries, each with its own deadline.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio

from cordwood.client.cluster import Cluster
from cordwood.errors import Overloaded
from cordwood.layout.message import Call, Reply
from cordwood.nodes import NodeId

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
