"""Asks the sequencers of many logs what they released: a call a node, however many logs.

For those who poll. The answer is never above a log's tail, and below it only for as long as a
sequencer has not heard that another one took over; `Store.tail` is the last word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from cordwood.client.cluster import Cluster
from cordwood.errors import Retryable
from cordwood.layout.message import ASK_LOGS_MAX, AskReleased, ReleasedReply
from cordwood.nodes import NodeId

logger = logging.getLogger(__name__)

ASK_NODE_S = 1.0
"""How long a node may be away before its logs are asked for one by one, as `tail` does."""


async def ask_released(
    cluster: Cluster, logs: Iterable[int], *, timeout_s: float
) -> dict[int, int]:
    """The last released LSN of each log, by number; logs that nobody sequences are left out."""
    by_node: dict[NodeId, list[int]] = {}
    for log in logs:
        for node in cluster.sequencers(log)[:1]:
            by_node.setdefault(node, []).append(log)
    asks = [
        _ask_node(cluster, node, numbers[at : at + ASK_LOGS_MAX], min(timeout_s, ASK_NODE_S))
        for node, numbers in sorted(by_node.items())
        for at in range(0, len(numbers), ASK_LOGS_MAX)
    ]
    known: dict[int, int] = {}
    for answer in await asyncio.gather(*asks):
        known.update(answer)
    return {log: released for log, released in known.items() if released}


async def _ask_node(
    cluster: Cluster, node: NodeId, logs: list[int], timeout_s: float
) -> dict[int, int]:
    """What one node answers; nothing if it does not, and the caller asks elsewhere."""
    try:
        reply = await cluster.peers.call(node, AskReleased(logs), timeout_s=timeout_s)
    except Retryable as error:
        logger.debug("node %d does not say what it released: %s", node, error)
        return {}
    assert isinstance(reply, ReleasedReply), "AskReleased is answered with ReleasedReply"
    return dict(zip(logs, reply.released, strict=False))
