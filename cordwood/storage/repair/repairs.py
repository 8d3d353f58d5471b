"""Stores rotten blocks of LogsDB again, from good copies of other nodes.

The damage found by scrubbing, by a read or by an earlier start is in the book of damage
(`scrub.damage_book`). The book is the queue: it is durable, and has a bound for each log and
partition. Ranges are repaired one at a time:

1. This node asks all other nodes of the range's nodesets for the heads of their blocks there.
   `protocol.repair_plan` decides which blocks this node needs, and whether these are all.
2. It asks one holder after the other for the bodies, until a body passes the checks: the same
   header, the number of bytes in the header, and the checksum.
3. The blocks go through the WAL, as every store does. A flush takes them to another partition than
   the rotten one.
4. When they are durable, and nothing else can be missing, the range is noted as mended. Until then
   reads report it as unknown.

A range that could not be mended is tried again later, with a growing pause. The pace is that of
rebuilding (`storage.rebuild_bytes_s`).

Source: docs/protocol/repair.md; docs/sources/bookkeeper.md (f).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from cordwood.block import BlockHeader, EnvelopeFlag
from cordwood.errors import CordwoodError, Overloaded, Unreachable
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope
from cordwood.layout.engine_record import STORE_KIND
from cordwood.layout.message import TailReply
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.scrub_state import ScrubState
from cordwood.layout.waves import StoredBlock, StoreRefusal, store_head
from cordwood.lsn import format_lsn
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.rebuild_flow import BLOCK_COST_BYTES, BURST_S
from cordwood.protocol.repair_plan import (
    HeldCopy,
    Past,
    RepairPlan,
    RepairTurns,
    Said,
    Take,
    part_to_plan,
    plan_repair,
)
from cordwood.protocol.write_pace import TokenBucket
from cordwood.quorum.authority import HAS_DATA
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.rebuild.epoch_nodesets import ReadRecord, asked_nodesets, told_nodesets
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.storage.repair.copy_fetch import CopyFetches
from cordwood.storage.repair.sequencer_question import next_logs
from cordwood.storage.scrub.rotten_heads import rotten_heads

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine

logger = logging.getLogger(__name__)

STORE_TIMEOUT_S = 10.0
STATUSES_TIMEOUT_S = 3.0
"""A read of the statuses of nodes, as for a recovery; without an answer nobody is counted out."""

FOUND_MAX = 256
"""Ranges that reads found and that are not noted yet. More are found by the next read."""

LOOK_S = 60.0
"""The longest time between two looks at the book, if no task reports a change of it."""

LOOK_BYTES = 1 << 20
LOOK_BLOCKS = 256
"""The most bytes and blocks of one read of this node's own copies."""

_LOST_IN_MAIN = (
    ", and main storage lost it; if such a node never comes back, `cordwood rebuild gone` of it "
    "ends the wait"
)

WHY_READ = "a read could not read it"

STIRRED_MAX = 16
"""The most logs of one round whose sequencers are asked for their tails. The next round goes on
with the logs behind them."""

Statuses = Mapping[NodeId, Authority]
"""Of the nodes that are not fully authoritative."""

AskSequencer = Callable[[int], Awaitable[TailReply | None]]
"""See `sequencer_question`."""


class Repairs:
    """See the module; `run` does the work, once `connect` was called.

    Attributes:
        blocks, bytes: stored again since the start.
        waits: why the last try came to no end, "" if it did.
    """

    def __init__(
        self,
        engine: StorageEngine,
        me: NodeId,
        members: Callable[[], Mapping[NodeId, Member]],
        read_record: ReadRecord,
        bytes_s: int,
        read_statuses: Callable[[int], Awaitable[Statuses]],
    ) -> None:
        """
        Args:
            bytes_s: of bodies fetched; 0 for no pace.
            read_statuses: reads the statuses of nodes anew, as for a recovery of a log.
        """
        self.blocks = self.bytes = 0
        self.waits = ""
        self._engine = engine
        self._logs = engine.logs
        self._me = me
        self._members = members
        self._read_record = read_record
        self._bytes_s = bytes_s
        self._read_statuses = read_statuses
        self._bucket: TokenBucket | None = None
        self._turns = RepairTurns()
        self._found: dict[DamagedRange, None] = {}
        self._changed = asyncio.Event()
        self._stirred = 0  # the log whose sequencer was asked last
        self._fetches: CopyFetches
        self._ask_sequencer: AskSequencer
        self._main: FindMain
        self._dead: Callable[[], Set[NodeId]] = frozenset
        self._logs.damages.on_noted = self._changed.set
        self._logs.on_rot = self._on_rot

    def connect(
        self,
        fetches: CopyFetches,
        ask_sequencer: AskSequencer,
        main: FindMain,
        dead: Callable[[], Set[NodeId]] = frozenset,
    ) -> None:
        """Take the ways to other nodes and to main storage, which exist only after the store. Dead
        nodes are not asked."""
        self._fetches = fetches
        self._main = main
        self._ask_sequencer = ask_sequencer
        self._dead = dead

    def _on_rot(self, found: Sequence[DamagedRange]) -> None:
        for each in found:
            if len(self._found) < FOUND_MAX and self._logs.damages.joined(each) is not None:
                self._found[each] = None
                self._changed.set()

    def state_of(self, scrub: ScrubState) -> ScrubState:
        """The state of scrubbing, with the counts of repairs and the reasons why some wait."""
        return msgspec.structs.replace(
            scrub, repaired_blocks=self.blocks, repaired_bytes=self.bytes,
            repair_waits=self.waits[:4096],
        )  # fmt: skip

    async def run(self) -> None:
        """Mend damaged ranges, until cancelled."""
        loop = asyncio.get_running_loop()
        if self._bytes_s:
            burst = self._bytes_s * BURST_S
            self._bucket = TokenBucket(self._bytes_s, burst, loop.time())
        while True:
            self._changed.clear()
            try:
                await self._note_found()
                await self._round()
            except CordwoodError as error:
                logger.warning("repair has to wait: %s", error)
                self.waits = str(error)
            wait_s = self._turns.next_s(loop.time())
            try:
                async with asyncio.timeout(LOOK_S if wait_s is None else min(LOOK_S, wait_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _note_found(self) -> None:
        """Write the damage that reads found into the book, durably."""
        while self._found:
            each = next(iter(self._found))
            del self._found[each]
            if self._is_there(each):
                await self._logs.note_damage(each, WHY_READ)

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        ranges = [each for each, _ in self._logs.damages.all()]
        stirred: set[int] = set()
        for damaged in self._turns.due(ranges, loop.time()):
            if self._engine.failed:
                return
            try:
                waits = await self._mend(damaged)
            except CordwoodError as error:
                waits = str(error)
            if waits:
                logger.info("log %d: %s is not mended yet: %s", damaged.log, _words(damaged), waits)
                self._turns.on_failed(damaged, loop.time())
                stirred.add(damaged.log)
            else:
                self._turns.forget(damaged)
            self.waits = waits
        # At once: a sequencer that does not answer takes seconds, and the next round waits for it.
        logs = next_logs(stirred, self._stirred, STIRRED_MAX)
        self._stirred = logs[-1] if logs else self._stirred
        await asyncio.gather(*map(self._stir, logs))

    async def _stir(self, log: int) -> None:
        """Have all nodes of a log hear what is released.

        A node that missed a release sends nothing above it. A log that nobody uses has no sequencer
        that repeats the release.
        """
        try:
            await self._ask_sequencer(log)
        except CordwoodError as error:
            logger.info("log %d: its sequencer does not answer: %s", log, error)

    def _is_there(self, damaged: DamagedRange) -> bool:
        """Whether a damaged range may still be read: it is neither dropped nor trimmed."""
        numbers = {partition.number for partition in self._logs.partitions}
        return damaged.partition in numbers and damaged.last > self._engine.gone_of(damaged.log)

    async def _mend(self, damaged: DamagedRange) -> str:
        """Mend a range; returns the reason why not, "" if it is mended or no longer readable.

        Raises:
            CordwoodError: LogsDB cannot be read or written, or no holder has a good copy.
        """
        if not self._is_there(damaged):
            return ""
        log, held = damaged.log, self._engine.cache.log(damaged.log)
        first = max(damaged.first, held.gone + 1)
        digest = damaged.last > held.readable
        epoch = damaged.last >> 32
        if digest and (self._engine.sealed(log) <= epoch or first >> 32 != epoch):
            return "it is not released yet"
        waits = ""
        while True:
            plan = await self._plan(damaged, first, digest=digest)
            if digest and any(_is_by_recovery(take.copy) for take in plan.takes):
                return "its epoch is being recovered"
            await self._take(log, plan.takes, digest=digest)
            last = min(plan.last, damaged.last)
            if not plan.is_whole:
                # Other nodes may know all behind a place of which they let go.
                waits = waits or plan.waits
                if plan.start > last or last == damaged.last:
                    return waits
                first = last + 1
                continue
            if not await self._logs.note_mended(damaged, plan.start, last):
                return ""  # its partition was dropped meanwhile
            logger.warning("log %d: %s is mended", log, _words(damaged._replace(last=last)))
            if last == damaged.last:
                return waits
            first = last + 1
            damaged = damaged._replace(first=first)

    async def may_hold(self, log: int) -> bool:
        """Whether this node is in a nodeset of a log that is not trimmed away.

        Raises:
            Unreachable: the epoch store does not say.
        """
        asked = await asked_nodesets(self._read_record, log, self._members())
        if asked is None:
            raise Unreachable("the nodesets of its epochs are not known")
        return any(self._me in nodeset.nodes for _, nodeset, _ in asked.history)

    async def restore(self, log: int, first: int, last: int) -> RepairPlan:
        """Store again what envelopes give to this node of `[first, last]`, which is released.

        The range need not be noted as damaged. Blocks that other nodes trimmed are left out, and
        this is no reason to wait: this node need not hold them either. Nor does it wait for nodes
        that let go of a place: they never say more of it. But where main storage lost the place,
        it waits for every other node with data. What lies behind such a place is stored meanwhile.

        Raises:
            CordwoodError: LogsDB cannot be read or written, or no holder has a good copy.
        """
        takes: list[Take] = []
        start, waits = first, ""
        while start <= last:
            plan = await self._plan_range(log, start, last, known=None, past=Past.EMPTY)
            if plan.start > last:
                break
            await self._take(log, plan.takes, digest=False)
            takes += plan.takes
            waits = waits or plan.waits
            start = plan.last + 1
        return RepairPlan(first, tuple(takes), not waits, waits)

    async def _plan(self, damaged: DamagedRange, first: int, *, digest: bool) -> RepairPlan:
        known = await self._known(damaged)
        return await self._plan_range(damaged.log, first, damaged.last, known, digest=digest)

    async def _plan_range(
        self,
        log: int,
        first: int,
        last: int,
        known: BlockHeader | None,
        *,
        digest: bool = False,
        past: Past = Past.SILENT,
    ) -> RepairPlan:
        """See `protocol.repair_plan`; of a range with many blocks only the first part is planned.

        Args:
            digest: the range is not released, and this node has sealed its epoch. Recovery may wait
                for this very node. Nodes answer once they have sealed as well, and then no
                append stores there any more.
        """
        epochs = await self._epochs(log, first >> 32, last >> 32)
        if epochs is None:
            waits = "the nodesets of its epochs are not known"
            return RepairPlan(first, (), is_whole=False, waits=waits)
        members = {node for nodeset, _ in epochs for node in nodeset.nodes}
        nodes = sorted(members - {self._me} - self._dead())
        said = await self._ask(log, first, last, nodes, digest=digest)
        start, upto = part_to_plan(first, last, said)
        if start > upto:
            return await self._plan_range(log, start, last, known, digest=digest, past=past)
        last = upto
        statuses = {
            member.node: member.authority
            for member in self._members().values()
            if member.authority is not Authority.FULLY_AUTHORITATIVE
        }
        mine = await self._mine(log, first, last)

        async def planned(upto: int, past: Past) -> RepairPlan:
            def by(statuses: Statuses) -> RepairPlan:
                return plan_repair(
                    first, upto, self._me, said, mine, epochs, statuses, known, past=past
                )

            return await self._by_sure_statuses(log, statuses, by)

        plan = await planned(last, past)
        is_past = any(each.let_go >= plan.start for each in said.values())
        if plan.is_whole or past is not Past.EMPTY or not is_past:
            return plan
        try:
            upto, is_there = await self._main_has(log, plan.start, last)
        except CordwoodError as error:
            return plan._replace(waits=f"{plan.waits}, and main storage does not answer: {error}")
        plan = await planned(upto, Past.SURE if is_there else Past.EMPTY)
        waits = f"{plan.waits}{_LOST_IN_MAIN}" if not is_there else plan.waits
        return plan._replace(waits=waits if plan.waits else "")

    async def _by_sure_statuses(
        self, log: int, statuses: Statuses, plan_by: Callable[[Statuses], RepairPlan]
    ) -> RepairPlan:
        """A plan by the statuses that this node knows, or by newer ones, if a range is whole only
        without nodes that are empty or gone."""
        plan = plan_by(statuses)
        with_data = {node: status for node, status in statuses.items() if status in HAS_DATA}
        if not plan.is_whole or with_data == statuses:
            return plan
        cautious = plan_by(with_data)
        if cautious.is_whole:
            return plan
        # Race: a node that this node knows as empty or gone may be back, and have records there.
        try:
            async with asyncio.timeout(STATUSES_TIMEOUT_S):
                return plan_by(await self._read_statuses(log))
        except (CordwoodError, TimeoutError) as error:
            logger.info("log %d: no node is taken for empty or gone: %s", log, error)
            return cautious

    async def _main_has(self, log: int, first: int, last: int) -> tuple[int, bool]:
        """Whether main storage has the first part of a range, and where this part ends.

        Raises:
            CordwoodError: see `MainCopies.lacks`.
        """
        for start, end in sorted(await self._main().lacks(log, first, last)):
            return (min(end, last), False) if start <= first else (start - 1, True)
        return last, True

    async def _epochs(
        self, log: int, first: int, last: int
    ) -> list[tuple[Nodeset, Replication]] | None:
        """Nodeset and replication of each epoch from `first` to `last`."""
        members = self._members()
        told = told_nodesets(self._engine, log, members)
        if last > told.known or not told.history:
            asked = await asked_nodesets(self._read_record, log, members)
            if asked is None:
                return None
            told = asked
        starts = [since for since, _, _ in told.history if first < since <= last]
        found = [told.of(epoch) for epoch in (first, *starts)]
        return [each for each in found if each is not None] if all(found) else None

    async def _ask(
        self, log: int, first: int, last: int, nodes: Sequence[NodeId], *, digest: bool
    ) -> dict[NodeId, Said]:
        """The nodes' answers about the range. Nodes that do not answer are left out."""

        async def ask(node: NodeId) -> Said | None:
            try:
                return await self._fetches.heads(node, log, first, last, digest=digest)
            except CordwoodError as error:
                logger.info("log %d: %s", log, error)
                return None

        answers = await asyncio.gather(*map(ask, nodes))
        return {n: said for n, said in zip(nodes, answers, strict=True) if said is not None}

    async def _mine(self, log: int, first: int, last: int) -> list[HeldCopy]:
        """Good copies that this node holds there, in the cache or in other partitions."""
        found: list[HeldCopy] = []
        at = first
        while at <= last:
            run = await self._engine.reader.read(
                log, at, last, _head, bytes_max=LOOK_BYTES, blocks_max=LOOK_BLOCKS
            )
            found += [HeldCopy(block.header, block.envelope) for block in run.blocks]
            at = run.next
        return found

    async def _known(self, damaged: DamagedRange) -> BlockHeader | None:
        """The header of the block that fills all of a range, if its index entry can be read;
        otherwise None.

        A copy that the end of its epoch removed is left out: no other node has it.
        """
        held = self._engine.cache.log(damaged.log)
        blocks = await rotten_heads(self._logs, damaged._replace(first=damaged.last))
        heads = [block.header for block in blocks or () if held.counts_block(block)]
        place = damaged.first, damaged.last
        here = {head for head in heads if (head.first, head.last) == place}
        return here.pop() if len(here) == 1 else None

    async def _take(self, log: int, takes: Sequence[Take], *, digest: bool) -> None:
        """Fetch blocks and store them durably.

        Raises:
            Unreachable: of some block no holder sent a good copy, or the WAL takes too long.
            Overloaded: there is no free space.
        """
        for take in takes:
            await self._keep_pace(take.copy.header.stored_bytes)
            block = await self._good_copy(log, take, digest=digest)
            await self._store(block_of(take, block))
            self.blocks += 1
            self.bytes += take.copy.header.stored_bytes

    async def _keep_pace(self, size: int) -> None:
        if self._bucket is None:
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._bucket.debt_s(loop.time()))
        self._bucket.spend(loop.time(), max(BLOCK_COST_BYTES, size))

    async def _good_copy(self, log: int, take: Take, *, digest: bool) -> StoredBlock:
        """The block, from the first holder that has it intact.

        Raises:
            Unreachable: none has.
        """
        header = take.copy.header
        for node in take.holders:
            try:
                blocks = await self._fetches.bodies(
                    node, log, header.first, header.last, digest=digest
                )
            except CordwoodError as error:
                logger.info("log %d: %s", log, error)
                continue
            for block in blocks:
                if is_good(block, header):
                    return block
        nodes = [int(node) for node in take.holders]
        raise Unreachable(
            f"none of nodes {nodes} sent a good copy of the block at {format_lsn(header.first)}"
        )

    async def _store(self, block: StoredBlock) -> None:
        """Store a block; returns when it is durable in the WAL.

        The block was stored here before, under a copyset with this node, so neither a seal nor a
        loss of another node speaks against it.

        Raises:
            Overloaded: there is no free space.
            Unreachable: the WAL takes too long, or failed.
        """
        engine = self._engine
        if block.wire_bytes > engine.repair_bytes:
            raise Overloaded("this node has no free space")
        if engine.is_trimmed(block):
            return
        answer: asyncio.Future[Sequence[StoreRefusal]] = asyncio.get_running_loop().create_future()

        def settled(refusals: Sequence[StoreRefusal]) -> None:
            if not answer.done():
                answer.set_result(refusals)

        parts = [STORE_KIND, store_head(1), block.wire, block.body]
        engine.append_store(0, parts, [block], (), settled, by_recovery=False)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                refusals = await answer
        except TimeoutError:
            raise Unreachable(f"the WAL stored nothing for {STORE_TIMEOUT_S:g} s") from None
        if refusals:
            raise Overloaded(f"the WAL refuses it: {refusals[0].reason.name.lower()}")


def is_good(block: StoredBlock, header: BlockHeader) -> bool:
    """Whether a received block has this header, and an intact body."""
    return (
        block.header == header
        and len(block.body) == header.stored_bytes
        and crc32c(block.body) == header.stored_crc
    )


def block_of(take: Take, block: StoredBlock) -> StoredBlock:
    """The block as it is stored, under the latest envelope. A note of a move is left out: the move
    is another node's to end."""
    envelope = take.copy.envelope
    flags = (envelope.flags & ~EnvelopeFlag.MOVING) | EnvelopeFlag.REBUILT
    envelope = replace(envelope, flags=flags)
    wire = bytes(block.wire[:HEADER_BYTES]) + pack_envelope(envelope)
    return StoredBlock(block.header, envelope, wire, bytes(block.body))


def _is_by_recovery(copy: HeldCopy) -> bool:
    return bool(copy.envelope.flags & EnvelopeFlag.BY_RECOVERY)


def _head(block: StoredBlock) -> Part:
    return Part.HEAD


def _words(damaged: DamagedRange) -> str:
    return f"{format_lsn(damaged.first)} to {format_lsn(damaged.last)}"
