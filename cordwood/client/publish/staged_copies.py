"""Pins the copies of staged blocks on the nodes that have them now, and reads them.

A reference names the nodes that had the copies when the block was staged. Later some of these nodes
may be lost, or drained, and other nodes have the copies: each holder knows the present copyset. A
pin holds under the present copyset only, so a publisher that knows an earlier copyset is refused,
and asks all nodes.

Source: docs/protocol/staging-and-publishing.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from cordwood.client.cluster import Cluster
from cordwood.errors import (
    ChecksumMismatch,
    CordwoodError,
    OutcomeUnknown,
    Retryable,
    StageExpired,
    Unreachable,
)
from cordwood.layout.append_group import GroupPart
from cordwood.layout.message import DoneReply
from cordwood.layout.message_staging import (
    AskStaged,
    BlockPlace,
    FindStaged,
    LogBlocks,
    PinStaged,
    StagedPlaces,
    StagedReply,
    StagePlace,
)
from cordwood.nodes import Authority, NodeId
from cordwood.settings import ClientSettings

logger = logging.getLogger(__name__)

CALL_S = 5.0
"""How long one node may take for one question."""

RETRY_S = 0.1
"""Pause before staged bodies are read again that no node gave, or blocks that move are pinned."""


class StagedCopies:
    """See the module."""

    def __init__(self, cluster: Cluster, settings: ClientSettings) -> None:
        self._cluster = cluster
        self._settings = settings

    async def pin(self, query: str, attempt: int, shares: Sequence[LogBlocks]) -> list[LogBlocks]:
        """Keep every copy of every block until the attempt is over.

        Returns:
            The shares, with the nodes that hold the copies now: others made those of a node that
            was lost, or gives its data away, anew.
        Raises:
            StageExpired: a block is gone somewhere.
            Unreachable: a node that holds some is down.
            Retryable: blocks are being moved all the time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout_s
        now = list(shares)
        moves: dict[bytes, int] = {}
        while True:
            failures = await self._pin_once(query, attempt, now, moves)
            if not failures:
                return now
            stages = [b.stage for b in blocks_of(now) if not failures.keys().isdisjoint(b.nodes)]
            if await self._look_where(stages, now, moves):
                continue
            errors = [error for _, error in sorted(failures.items())]
            is_moving = any(type(error) is Retryable for error in errors)
            if not is_moving or loop.time() + RETRY_S >= deadline:
                # Report a missing block first: it stays missing, and a node that is down may come
                # back.
                gone = [error for error in errors if isinstance(error, StageExpired)]
                raise gone[0] if gone and not is_moving else self._lost(failures) or errors[0]
            await asyncio.sleep(RETRY_S)

    def _lost(self, failures: Mapping[int, CordwoodError]) -> StageExpired | None:
        """The error if only nodes failed that have no data any more, and all other nodes were
        asked: the staged copies were lost with the failed nodes. None otherwise."""
        empty = {
            node
            for node, status in self._cluster.statuses.items()
            if status is Authority.AUTHORITATIVE_EMPTY
        }
        if not failures.keys() <= empty or self._cluster.members.keys() - empty - {
            *self._cluster.peers.up
        }:
            return None
        return StageExpired(
            f"a staged block was lost with node {min(failures)}, and no node made it anew: stage "
            "it again"
        )

    async def _pin_once(
        self, query: str, attempt: int, shares: Sequence[LogBlocks], moves: Mapping[bytes, int]
    ) -> dict[int, CordwoodError]:
        """Ask each node once; the errors of those that did not pin."""
        by_node: dict[int, list[bytes]] = {}
        for block in blocks_of(shares):
            for node in block.nodes:
                by_node.setdefault(node, []).append(block.stage)

        async def pin(node: int, stages: list[bytes]) -> CordwoodError | None:
            known = [moves.get(stage, 0) for stage in stages]
            call = PinStaged(query, attempt, stages, known if any(known) else [])
            try:
                reply = await self._cluster.call_node(NodeId(node), call, timeout_s=CALL_S)
            except CordwoodError as error:
                return error
            assert isinstance(reply, DoneReply), "pinning is answered when it is done"
            return None

        nodes = sorted(by_node)
        answers = await asyncio.gather(*(pin(node, by_node[node]) for node in nodes))
        return {n: error for n, error in zip(nodes, answers, strict=True) if error is not None}

    async def _look_where(
        self, stages: Sequence[bytes], shares: list[LogBlocks], moves: dict[bytes, int]
    ) -> bool:
        """Ask all nodes where blocks are; notes newer copysets, and says whether there were any."""
        newest: dict[bytes, StagePlace] = {}
        for places in (await self._find(stages)).values():
            for place in places:
                best = newest[place.stage].moves if place.stage in newest else 0
                if place.nodes and place.moves > max(best, moves.get(place.stage, 0)):
                    newest[place.stage] = place
        moves.update((stage, place.moves) for stage, place in newest.items())
        for at, share in enumerate(shares):
            shares[at] = LogBlocks(
                share.log, share.name,
                [
                    BlockPlace(b.stage, list(newest[b.stage].nodes), b.records, b.stored_bytes)
                    if b.stage in newest
                    else b
                    for b in share.blocks
                ],
            )  # fmt: skip
        return bool(newest)

    async def _find(self, stages: Sequence[bytes]) -> dict[NodeId, list[StagePlace]]:
        """The blocks of a list that the running nodes hold, by node."""

        async def ask(node: NodeId) -> list[StagePlace]:
            try:
                reply = await self._cluster.peers.call(
                    node, FindStaged(list(stages)), timeout_s=CALL_S
                )
            except CordwoodError as error:
                logger.debug("node %d does not list its staged records: %s", node, error)
                return []
            assert isinstance(reply, StagedPlaces), "FindStaged is answered with places"
            return reply.places

        nodes = sorted(self._cluster.peers.up)
        answers = await asyncio.gather(*map(ask, nodes))
        return dict(zip(nodes, answers, strict=True))

    async def read(self, block: BlockPlace) -> GroupPart:
        """The body of a block, from the first node that sends it.

        Raises:
            StageExpired: every node says that it is gone.
            Unreachable: no node gave it in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout_s
        while True:
            self._cluster.check_open()
            failures: list[CordwoodError] = []
            nodes = sorted(block.nodes, key=lambda n: self._cluster.peers.get(NodeId(n)) is None)
            for node in nodes:
                try:
                    return await self._read_from(NodeId(node), block)
                except (Retryable, OutcomeUnknown, StageExpired, ChecksumMismatch) as error:
                    failures.append(error)
            # Since the commit its nodes may have been lost, or drained, one after the other.
            for node, places in (await self._find([block.stage])).items():
                if places and node not in block.nodes:
                    try:
                        return await self._read_from(node, block)
                    except (Retryable, OutcomeUnknown, StageExpired, ChecksumMismatch) as error:
                        failures.append(error)
            if all(isinstance(error, StageExpired) for error in failures):
                raise failures[0]
            if loop.time() + RETRY_S >= deadline:
                raise Unreachable(f"no node gives a staged block that was committed: {failures[0]}")
            await asyncio.sleep(RETRY_S)

    async def _read_from(self, node: NodeId, block: BlockPlace) -> GroupPart:
        reply = await self._cluster.peers.call(node, AskStaged(block.stage), timeout_s=CALL_S)
        assert isinstance(reply, StagedReply), "AskStaged is answered with the block"
        if crc32c(reply.body) != reply.stored_crc or reply.records != block.records:
            raise ChecksumMismatch(f"node {node} sent another staged block than was asked for")
        return GroupPart(
            reply.records, len(reply.body), reply.raw_bytes, reply.stored_crc, reply.raw_crc,
            reply.codec, reply.body,
        )  # fmt: skip


def blocks_of(shares: Sequence[LogBlocks]) -> list[BlockPlace]:
    """All blocks of a batch, in order."""
    return [block for share in shares for block in share.blocks]
