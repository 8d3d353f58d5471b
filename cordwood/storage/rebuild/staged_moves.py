"""Rebuilds the staged blocks of lost and drained nodes on other nodes.

Like the move of a block in a log, a move has three steps: the new nodes store the block, with its
pin; the other holders hear of the new copyset; last, this node notes it, or drops its copy. During
a move this node refuses pins of the block, and afterwards it accepts only pins with the new
copyset. A publisher needs the pins of all holders, so no publisher commits between old and new
copies. A donor that dies during a move begins again: its unfinished copies expire.

Source: docs/protocol/staging-and-publishing.md, rules 10 to 12; docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set

from cordwood.errors import CordwoodError
from cordwood.layout.message_staging import (
    STAGES_MAX,
    FindStaged,
    PlaceStaged,
    StageBlock,
    StagedPlaces,
    StagePlace,
)
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.rebuild_plan import Losses
from cordwood.protocol.staged_plan import (
    StagedAt,
    StagedMove,
    StagedStuck,
    lacks_copies,
    plan_staged,
)
from cordwood.quorum.copyset import Chance
from cordwood.storage.rebuild.copy_questions import Report
from cordwood.storage.staging.staged_index import StagedBlock
from cordwood.storage.staging.staging import Staging
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

CALL_S = 10.0
"""How long a node may take for a block: as for a store of a donor."""

LANES = 4
"""Number of staged blocks that are moved side by side: as many as logs."""

RUN_BLOCKS = 256
"""Number of blocks in one call to other nodes: the answers may change until the move."""

TTL_MS_MIN = 60_000
"""Shortest life of a new copy: a pin on it must be durable before it could expire."""

TTL_MS_MAX = (1 << 32) - 1
"""Longest life of a new copy: the field of the call has 32 bits."""

NewestNodeset = Callable[[int], Awaitable[tuple[Nodeset, Replication] | None]]


class StagedMoves:
    """See the module."""

    def __init__(
        self,
        me: NodeId,
        staging: Staging,
        peers: Peers,
        newest_nodeset: NewestNodeset,
        random: Chance,
        available: Callable[[], Set[NodeId]],
    ) -> None:
        self._me = me
        self._staging = staging
        self._peers = peers
        self._newest_nodeset = newest_nodeset
        self._random = random
        self._available = available

    async def carry_out(self, losses: Losses, report: Report, is_old: Callable[[], bool]) -> None:
        """Go through all staged blocks once; the report has the remaining work."""
        lacking = self._lacking(losses)
        nodesets: dict[int, tuple[Nodeset, Replication]] = {}
        for log in {held.head.log: None for held in lacking.values()}:
            try:
                known = await self._newest_nodeset(log)
            except CordwoodError as error:
                report.trouble = f"log {log}: its nodeset is not known, and: {error}"
            else:
                if known is not None:
                    nodesets[log] = known
        # No publish can reach a deleted log: its staged blocks expire.
        stages = [stage for stage, held in lacking.items() if held.head.log in nodesets]
        for at in range(0, len(stages), RUN_BLOCKS):
            if is_old():
                break
            run = stages[at : at + RUN_BLOCKS]
            told = await self._ask({stage: lacking[stage] for stage in run}, losses)
            waiting = iter(run)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(LANES):
                    tasks.create_task(self._lane(waiting, told, nodesets, losses, report))
        if self._me in losses.leaving and (left := len(self._staging.index.blocks)):
            report.trouble = report.trouble or f"{left} staged blocks are not moved yet"

    def _lacking(self, losses: Losses) -> dict[bytes, StagedBlock]:
        """The blocks that lack copies and may still be published."""
        over = {*self._staging.expired()}
        return {
            stage: held
            for stage, held in self._staging.index.blocks.items()
            if stage not in over
            and lacks_copies(StagedAt(held.head.moves, held.head.nodes), losses.barred)
        }

    async def _ask(
        self, blocks: Mapping[bytes, StagedBlock], losses: Losses
    ) -> dict[int, dict[bytes, StagedAt]]:
        """The answers about blocks of the other members that have data. Nodes that do not answer
        are left out."""
        by_node: dict[NodeId, list[bytes]] = {}
        for stage, held in blocks.items():
            for node in {*held.head.nodes} - losses.gone - {self._me}:
                by_node.setdefault(NodeId(node), []).append(stage)
        assert RUN_BLOCKS <= STAGES_MAX, "one call names them all"

        async def ask(node: NodeId) -> dict[bytes, StagedAt] | None:
            try:
                call = FindStaged(by_node[node])
                reply = await self._peers.call(node, call, timeout_s=CALL_S)
            except CordwoodError as error:
                logger.info("node %d does not list its staged records: %s", node, error)
                return None
            assert isinstance(reply, StagedPlaces), "FindStaged is answered with places"
            return {each.stage: StagedAt(each.moves, tuple(each.nodes)) for each in reply.places}

        nodes = sorted(by_node)
        answers = await asyncio.gather(*map(ask, nodes))
        return {int(n): a for n, a in zip(nodes, answers, strict=True) if a is not None}

    async def _lane(
        self,
        stages: Iterable[bytes],
        told: Mapping[int, Mapping[bytes, StagedAt]],
        nodesets: Mapping[int, tuple[Nodeset, Replication]],
        losses: Losses,
        report: Report,
    ) -> None:
        for stage in stages:
            with self._staging.moving(stage) as held:
                if held is None:
                    report.again += 1  # it is being pinned, or is about to be dropped
                    continue
                members = {*held.head.nodes} - losses.gone - {self._me}
                if silent := members - told.keys():
                    report.waits.update(silent)
                    continue
                words = {node: told[node].get(stage) for node in members}
                try:
                    await self._move(held, words, nodesets[held.head.log], losses, report)
                except CordwoodError as error:
                    report.trouble = f"a staged block of log {held.head.log}: {error}"

    async def _move(
        self,
        held: StagedBlock,
        told: Mapping[int, StagedAt | None],
        known: tuple[Nodeset, Replication],
        losses: Losses,
        report: Report,
    ) -> None:
        """Move one block.

        Raises:
            CordwoodError: a node refused it, or did not answer.
        """
        here = StagedAt(held.head.moves, held.head.nodes)
        found = plan_staged(
            here, self._me, losses.gone, losses.barred, told, *known, self._available(),
            self._random,
        )  # fmt: skip
        if found is StagedStuck.NO_PLACE:
            report.stuck += 1
        elif isinstance(found, StagedAt):
            await self._staging.place(_place(held, found))
        elif isinstance(found, StagedMove):
            await self._give(held, found)
            report.blocks += 1
            report.bytes += held.head.stored_bytes * len(found.stores)

    async def _give(self, held: StagedBlock, move: StagedMove) -> None:
        if move.stores:
            call = await self._call(held, move.to)
            await asyncio.gather(
                *(self._peers.call(node, call, timeout_s=CALL_S) for node in move.stores)
            )
        place = _place(held, move.to)
        told = PlaceStaged(place)
        await asyncio.gather(
            *(self._peers.call(node, told, timeout_s=CALL_S) for node in move.tells)
        )
        await self._staging.place(place)

    async def _call(self, held: StagedBlock, to: StagedAt) -> StageBlock:
        """The block as a new node gets it."""
        head, body = await self._staging.whole(held.head.stage)
        query, attempt = held.pin or ("", 0)
        left_ms = (head.expires_us - self._staging.now_us()) // 1000
        ttl_ms = min(TTL_MS_MAX, max(TTL_MS_MIN, left_ms))
        return StageBlock(
            head.stage, head.log, ttl_ms, head.records, head.codec, head.raw_bytes,
            head.stored_crc, head.raw_crc, body, list(to.nodes), to.moves, query, attempt,
        )  # fmt: skip


def _place(held: StagedBlock, to: StagedAt) -> StagePlace:
    return StagePlace(held.head.stage, list(to.nodes), to.moves)
