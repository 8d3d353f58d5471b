"""Heals a node after its WAL lost records: from other nodes, log by log, while the node serves.

A node that finds unreadable records in its WAL at a start reports that its data is unknown. From
then on this goes through all logs (`protocol.wal_heal`). It asks each log's sequencer for the last
number that it gave, waits until that record is settled, and stores again the blocks that envelopes
assign to this node. When all logs are whole, and every block is durable, the loss is over: a record
that the node does not have counts as absent again. After a crash before that, healing begins anew,
and finds most blocks already stored.

Before the node listens, its seals are renewed (`storage.claims`) and its ledgers know of the loss.
If the node has forgotten how an epoch ended, another node knows it.

Source: docs/protocol/repair.md; docs/sources/logdevice.md 2.9 (mini-rebuilding).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError
from cordwood.layout.message_rebuilding import HealState
from cordwood.nodes import NodeId
from cordwood.protocol.wal_heal import HealBook, is_settled
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.repair.sequencer_question import ask_sequencer

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine
    from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

BEGINS_S = 0.0
"""The time after its start at which a node begins. It begins at once, because recoveries do without
it until it is healed."""

LANES = 8
"""Logs that are healed side by side: most of the time is spent waiting for answers."""

FLUSH_TIMEOUT_S = 60.0
NOTE_AGAIN_S = 1.0
RESTORE_TRIES = 3
"""The most rounds over one log. The next round sees blocks that moved during the round before."""


class WalHealing:
    """See the module; `run` does the work, once `connect` was called."""

    def __init__(
        self,
        engine: StorageEngine,
        me: NodeId,
        repairs: Repairs,
        newest: Callable[[], Awaitable[Mapping[int, int]]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            flush: takes all that is in the WAL to LogsDB.
            newest: by log, the newest epoch that was handed out: all logs.
        """
        self._engine = engine
        self._me = me
        self._repairs = repairs
        self._newest = newest
        self._flush = flush
        self._book: HealBook | None = None
        self._blocks = self._bytes = 0
        self._peers: Peers
        self._dead: Callable[[], Set[NodeId]]

    def connect(self, peers: Peers, dead: Callable[[], Set[NodeId]]) -> None:
        """Take the ways to the other nodes, which exist later than the node's store."""
        self._peers = peers
        self._dead = dead

    def state(self) -> HealState:
        """How far it is."""
        damage, book = self._engine.damage, self._book
        if not damage:
            return HealState()
        if book is None:
            return HealState(damage[:4096])
        return HealState(
            damage[:4096], book.logs, len(book.left), self._blocks, self._bytes, book.waits[:4096]
        )

    async def run(self) -> None:
        """Heal the losses that this start, or an earlier start, found."""
        if not self._engine.damage:
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(BEGINS_S)
        while self._book is None:
            try:
                self._book = HealBook(await self._newest())
            except CordwoodError as error:
                logger.info("what was lost is not healed yet: %s", error)
                await asyncio.sleep(1.0)
        while not self._engine.failed:
            await self._round(self._book)
            if self._book.is_healed:
                try:
                    # Trap: while the WAL shows the damage, a start would find it again. And a start
                    # must still find records that rot beside it later.
                    await self._flush_behind_it()
                    await self._engine.heal_loss()
                except (CordwoodError, TimeoutError) as error:
                    logger.warning("that the loss is healed could not be noted: %s", error)
                else:
                    return
                await asyncio.sleep(NOTE_AGAIN_S)
            await asyncio.sleep(max(0.1, self._book.next_s(loop.time())))

    async def _flush_behind_it(self) -> None:
        """Write a record after all others, and take all to LogsDB.

        Raises:
            TimeoutError: it takes too long.
            Retryable: the node stores nothing any more, or its WAL has no space just now.
        """
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await self._engine.settle_stores()
            await self._flush()

    async def _round(self, book: HealBook) -> None:
        waiting = iter(book.due(asyncio.get_running_loop().time()))

        async def lane() -> None:
            for log in waiting:
                try:
                    waits = await self._heal(log, book)
                except CordwoodError as error:
                    waits = str(error)
                if waits:
                    book.on_waits(log, waits, asyncio.get_running_loop().time())
                else:
                    book.on_healed(log)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(lane())

    async def _heal(self, log: int, book: HealBook) -> str:
        """Heal a log. Returns the reason why it has to wait, or "" if it is whole.

        Raises:
            CordwoodError: a call failed, or no holder has a good copy.
        """
        if not await self._repairs.may_hold(log):
            return ""
        if book.bound(log) is None:
            tail = await ask_sequencer(self._peers, self._me, self._dead, log)
            if tail is None:
                return ""  # it was deleted
            book.on_numbered(log, tail.numbered)
        bound = book.bound(log)
        assert bound is not None, "just noted"
        held = self._engine.cache.log(log)
        if not is_settled(bound, held.readable):
            # The sequencer is asked below, and then sends the release once more.
            return await self._unless_deleted(log, "its end is not settled yet")
        for _ in range(RESTORE_TRIES):
            plan = await self._repairs.restore(log, held.gone + 1, bound)
            self._blocks += len(plan.takes)
            self._bytes += sum(take.copy.header.stored_bytes for take in plan.takes)
            if plan.waits:
                return await self._unless_deleted(log, plan.waits)
            if not plan.takes:
                return ""
        return "its blocks are being moved"

    async def _unless_deleted(self, log: int, waits: str) -> str:
        """The reason why a log waits; "" if the log was deleted: it is never settled then."""
        try:
            is_there = await ask_sequencer(self._peers, self._me, self._dead, log) is not None
        except CordwoodError:
            return waits
        return waits if is_there else ""
