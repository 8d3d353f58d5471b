"""The bytes of a whole log above some LSNs: the sum of its nodes' shares, a lower bound.

Each node answers for its share of the blocks that came to it in their first wave (`payload_count`),
in parts of the directory that lie wholly above the LSN. So no block is counted twice, whatever the
copysets, weights and nodesets are. A node that does not answer makes the sum smaller, and the log
keeps more records until the node answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cordwood.errors import CordwoodError
from cordwood.layout.log_questions import AskKept, KeptReply
from cordwood.nodes import NodeId
from cordwood.storage.engine import StorageEngine
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
"""A node reads some directory entries for the answer; a slower node is not counted."""


async def kept_here(engine: StorageEngine, log: int, lsns: Sequence[int]) -> tuple[int, ...]:
    """How many bytes of a log this node answers for above each LSN.

    Raises:
        TablesFailed, Corrupt: the directory cannot be read.
    """
    held = engine.cache.get(log)
    if held is None:
        return (0,) * len(lsns)
    parts = [
        (entry.first, entry.payload)
        for _, entry in await engine.logs.directory(log)
        if entry.last > held.gone
    ]
    return tuple(sum(payload for first, payload in parts if first > lsn) for lsn in lsns)


class KeptBytes:
    """See the module."""

    def __init__(self, engine: StorageEngine, node: NodeId, peers: Callable[[], Peers]) -> None:
        self._engine = engine
        self._node = node
        self._peers = peers

    async def above(self, log: int, lsns: Sequence[int]) -> list[int]:
        """A lower bound of the bytes that the whole log has above each LSN.

        Raises:
            TablesFailed, Corrupt: this node's own part cannot be read.
        """
        others = [node for node in self._peers().up if node != self._node]
        answers = await asyncio.gather(*(self._ask(node, log, lsns) for node in others))
        answers.append(await kept_here(self._engine, log, lsns))
        return [sum(of_lsn) for of_lsn in zip(*answers, strict=True)]

    async def _ask(self, node: NodeId, log: int, lsns: Sequence[int]) -> tuple[int, ...]:
        none = (0,) * len(lsns)
        try:
            reply = await self._peers().call(
                node, AskKept(log, tuple(lsns)), timeout_s=ASK_TIMEOUT_S
            )
        except CordwoodError as error:
            logger.debug("node %d does not say what it keeps of log %d: %s", node, log, error)
            return none
        if not isinstance(reply, KeptReply) or len(reply.bytes) != len(lsns):
            return none
        return reply.bytes
