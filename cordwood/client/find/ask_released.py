"""Ask the sequencers of many logs for their last released LSNs: one call for each node.

For callers that poll. The answer is never above a log's tail, and below it only for as long as a
replaced sequencer has not heard of its successor; `Store.tail` is exact.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cordwood.client.cluster import Cluster
from cordwood.errors import Retryable
from cordwood.layout.message import ASK_LOGS_MAX, AskReleased, ReleasedReply, check_call
from cordwood.nodes import Member, NodeId

logger = logging.getLogger(__name__)

ASK_NODE_S = 1.0
"""How long a node may be away before its logs are asked for one by one, as `tail` does."""


OWNERS_KEPT = 131_072
"""Logs for which the sequencer's node is remembered, in some twelve MiB. Computing it takes 75 ms
for ten thousand logs, and it changes only with the members."""


class ReleasedAsker:
    """Asks again and again; remembers which node sequences which log."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = min(timeout_s, ASK_NODE_S)
        self._owners: dict[int, NodeId | None] = {}
        self._known_of: tuple[Mapping[NodeId, Member], frozenset[NodeId]] | None = None

    async def ask(self, logs: Iterable[int]) -> dict[int, int]:
        """The last released LSN of each log, by number; logs without a sequencer are left out."""
        by_node: dict[NodeId, list[int]] = {}
        for log, node in self._owners_of(list(logs)):
            if node is not None:
                by_node.setdefault(node, []).append(log)
        asks = [
            _ask_node(self._cluster, node, numbers[at : at + ASK_LOGS_MAX], self._timeout_s)
            for node, numbers in sorted(by_node.items())
            for at in range(0, len(numbers), ASK_LOGS_MAX)
        ]
        known: dict[int, int] = {}
        for answer in await asyncio.gather(*asks):
            known.update(answer)
        return {log: released for log, released in known.items() if released}

    def _owners_of(self, logs: Sequence[int]) -> Iterator[tuple[int, NodeId | None]]:
        now = (self._cluster.members, frozenset(self._cluster.dead))
        if now != self._known_of or len(self._owners) > OWNERS_KEPT:
            self._known_of, self._owners = now, {}
        owners = self._owners
        for log in logs:
            if log not in owners:
                owners[log] = next(iter(self._cluster.sequencers(log)), None)
            yield log, owners[log]


async def _ask_node(
    cluster: Cluster, node: NodeId, logs: list[int], timeout_s: float
) -> dict[int, int]:
    """One node's answer; empty if the node does not answer, and the caller asks elsewhere.

    Raises:
        BadSetting: a number is none of a log. The node would close the connection.
    """
    call = AskReleased(logs)
    check_call(call)
    try:
        reply = await cluster.peers.call(node, call, timeout_s=timeout_s)
    except Retryable as error:
        logger.debug("node %d does not say what it released: %s", node, error)
        return {}
    assert isinstance(reply, ReleasedReply), "AskReleased is answered with ReleasedReply"
    return dict(zip(logs, reply.released, strict=False))
