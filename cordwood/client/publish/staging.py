"""Staging: blocks that are durable on as many nodes as their log demands, but have no LSN yet.

`client.publish.publishing` publishes staged blocks later, in this client or in another process. A
`StagedRef` names their nodes, in plain values. Nodes delete blocks that are never published by
themselves.

Source: docs/design.md §9; docs/sources/spark.md §8 ("stage, then publish").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cordwood.block import Codec
from cordwood.client.append.blocks import Columns, cut_blocks
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.errors import BadSetting, CordwoodError, Retryable, TooFewNodes
from cordwood.host.seams import Host
from cordwood.layout.append_group import GroupPart
from cordwood.layout.message import DoneReply
from cordwood.layout.message_staging import StageBlock, Unstage
from cordwood.lsn import LogId
from cordwood.nodes import Member, NodeId, Nodeset
from cordwood.protocol.publishing import StagedBlock
from cordwood.quorum.copyset import choose_copyset
from cordwood.settings import ClientSettings

logger = logging.getLogger(__name__)

STAGE_BLOCK_BYTES = 2 << 20
"""Record bytes of a staged block: with offsets and times it fits a control frame."""

STAGES_AT_ONCE = 8
"""Blocks of one call on their way at a time: enough to keep the nodes' disks busy."""

STAGE_CALL_S = 5.0
"""A node has this long for a block: a durable write, after a flush at worst."""

STAGE_RETRY_S = 0.1
"""Pause before a block is staged anew elsewhere."""

TTL_DEFAULT_S = 3600.0
"""An hour: longer than a batch takes, and a driver its restart. Pinned blocks do not expire."""

TTL_MAX_S = 30 * 86_400.0

STAGE_ID_BITS = 128


class _JsonBlock(msgspec.Struct, frozen=True, array_like=True):
    stage: str
    nodes: list[int]
    records: int
    bytes: int


class _JsonRef(msgspec.Struct, frozen=True):
    log: str
    log_id: int
    blocks: list[_JsonBlock]


@dataclass(frozen=True, slots=True)
class StagedRef:
    """The blocks that one call staged for one log. It pickles; `to_json` makes plain JSON of it.

    Attributes:
        log, log_id: the log's name when it was staged, and its number.
        blocks: in order.
    """

    log: str
    log_id: LogId
    blocks: tuple[StagedBlock, ...]

    @property
    def records(self) -> int:
        """How many records it holds."""
        return sum(block.records for block in self.blocks)

    @property
    def stored_bytes(self) -> int:
        """Bytes of its bodies as stored."""
        return sum(block.stored_bytes for block in self.blocks)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json` in another process."""
        blocks = [[b.stage.hex(), list(b.nodes), b.records, b.stored_bytes] for b in self.blocks]
        return {"log": self.log, "log_id": self.log_id, "blocks": blocks}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedRef:
        """A reference from plain values.

        Raises:
            BadSetting: it is none.
        """
        try:
            read = msgspec.convert(value, _JsonRef)
            blocks = tuple(
                StagedBlock(bytes.fromhex(b.stage), tuple(b.nodes), b.records, b.bytes)
                for b in read.blocks
            )
        except (msgspec.ValidationError, ValueError) as error:
            raise BadSetting(f"this refers to nothing that was staged: {error}") from None
        if any(len(block.stage) * 8 != STAGE_ID_BITS or not block.nodes for block in blocks):
            raise BadSetting("this refers to nothing that was staged: an id is too short")
        return cls(read.log, LogId(read.log_id), blocks)


class Stager:
    """Stages for one client."""

    def __init__(self, cluster: Cluster, host: Host, settings: ClientSettings) -> None:
        self._cluster = cluster
        self._host = host
        self._settings = settings

    async def stage(self, info: LogInfo, columns: Columns, ttl_s: float) -> StagedRef:
        """See `Store.stage`."""
        if not 0 < ttl_s <= TTL_MAX_S:
            raise BadSetting(f"ttl_s is {ttl_s}; it goes up to {TTL_MAX_S:g}")
        settings = self._settings
        parts = cut_blocks(
            columns,
            Codec[settings.codec.upper()],
            min(settings.block_bytes, STAGE_BLOCK_BYTES),
            settings.block_records,
            self._host.clock.now_us,
        )
        at_once = asyncio.Semaphore(STAGES_AT_ONCE)
        deadline = asyncio.get_running_loop().time() + settings.timeout_s

        async def stage_one(part: GroupPart) -> StagedBlock:
            async with at_once:
                return await self._stage_block(info, part, round(ttl_s * 1000), deadline)

        tasks = [asyncio.ensure_future(stage_one(part)) for part in parts]
        try:
            blocks = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return StagedRef(info.name, info.log_id, tuple(blocks))

    async def _stage_block(
        self, info: LogInfo, part: GroupPart, ttl_ms: int, deadline: float
    ) -> StagedBlock:
        """Stage one block on a whole copyset. Copies of an earlier try expire by themselves."""
        loop = asyncio.get_running_loop()
        avoid: frozenset[NodeId] = frozenset()
        while True:
            self._cluster.check_open()
            copyset = self._copyset(info, avoid)
            stage = self._host.random.getrandbits(STAGE_ID_BITS).to_bytes(16, "little")
            call = StageBlock(
                stage, info.log_id, ttl_ms, part.records, part.codec, part.raw_bytes,
                part.stored_crc, part.raw_crc, bytes(part.body), list(copyset or ()),
            )  # fmt: skip
            failures = await self.ask(copyset, call) if copyset else {}
            if copyset and not failures:
                return StagedBlock(stage, copyset, part.records, part.stored_bytes)
            for error in failures.values():
                if not isinstance(error, Retryable):
                    raise error
            if loop.time() + STAGE_RETRY_S >= deadline:
                named = "; ".join(f"node {node}: {error}" for node, error in failures.items())
                raise TooFewNodes(
                    f"{info.name} wants {info.replication}, and too few nodes take what is "
                    f"staged for it ({named or 'too few are up'})"
                )
            avoid = frozenset(failures)
            await asyncio.sleep(STAGE_RETRY_S)

    def _copyset(self, info: LogInfo, avoid: frozenset[NodeId]) -> tuple[NodeId, ...] | None:
        """Nodes for one block, from the log's newest nodeset: only nodes that are up, if they
        suffice."""
        nodes = [NodeId(node) for node in info.history[-1].nodes] if info.history else []
        members = self._cluster.members
        nodeset = Nodeset(tuple(members.get(node) or Member(node, "") for node in nodes))
        up = frozenset(node for node in nodes if self._cluster.peers.get(node) is not None)
        for available in (up - avoid, up):
            found = choose_copyset(nodeset, info.replication, available, self._host.random)
            if found is not None:
                return found
        return None

    async def ask(
        self, nodes: Sequence[int], call: StageBlock | Unstage
    ) -> dict[NodeId, CordwoodError]:
        """Ask all of these nodes; the errors of nodes that failed, in node order."""

        async def ask(node: NodeId) -> CordwoodError | None:
            try:
                reply = await self._cluster.peers.call(node, call, timeout_s=STAGE_CALL_S)
            except CordwoodError as error:
                return error
            assert isinstance(reply, DoneReply), "staging calls are answered when they are done"
            return None

        wanted = sorted(NodeId(node) for node in nodes)
        answers = await asyncio.gather(*map(ask, wanted))
        return {
            node: error for node, error in zip(wanted, answers, strict=True) if error is not None
        }

    async def unstage(
        self, blocks: Sequence[StagedBlock], query: str = "", attempt: int = 0
    ) -> None:
        """Delete blocks on their nodes. On nodes that do not answer they expire by themselves."""
        by_node: dict[int, list[bytes]] = {}
        for block in blocks:
            for node in block.nodes:
                by_node.setdefault(node, []).append(block.stage)
        for node, stages in sorted(by_node.items()):
            failures = await self.ask([node], Unstage(query, attempt, stages))
            for error in failures.values():
                logger.debug("node %d keeps what was staged for now: %s", node, error)
