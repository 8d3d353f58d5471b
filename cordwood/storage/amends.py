"""Amends: a block that a node holds gets another envelope, and its body is not sent again.

An amend is taken only where the very same block is held intact, in the log cache or in LogsDB;
else it is refused as *not held*, all of its frame, and nothing is stored. What is held in the
cache is found at once; what is only in LogsDB is read in the order in which it was asked for,
and all that may speak against a store is asked again then.

A WAL record of it has headers and envelopes. In the cache the block has its body as any other
(`AmendedBlock` tells it apart), so that readers and the bounds on memory know of nothing new. A
flush writes its index entry into the partition in which the body is, and no body; where that is
not to be found any more, it writes the body too. So a body never goes before an entry that
needs it: partitions are dropped and cut by what is trimmed of a log, and the entry of a block
and its body are trimmed together.

A start finds the bodies of the amends that it replays where they were: behind an earlier record
of the WAL, or in LogsDB, as of the flush up to which that is.

Source: docs/design.md §2 ("an amend rewrites the envelope only"); docs/sources/logdevice.md 2.7
(6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.block import BlockHeader, Buffer
from cordwood.errors import Corrupt
from cordwood.layout.waves import (
    AmendedBlock,
    Refusal,
    StoredBlock,
    StoreRefusal,
    read_amend,
)
from cordwood.lsn import format_lsn
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.refusals import refusal_of

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine

logger = logging.getLogger(__name__)

WAITING_MAX = 64
"""Frames that wait for LogsDB at once; one more is told that it is not held, and comes with
bodies. A recovery has one under way to each node."""

READ_BYTES = 1 << 20
READ_BLOCKS = 256
"""What one read of LogsDB brings."""

Bodies = Mapping[BlockHeader, Buffer]


@dataclass(slots=True)
class _Frame:
    """An amend on its way; `size` is what the cache has to take, bodies among it."""

    wave: int
    seal_epoch: int
    heads: list[StoredBlock]
    settled: Callable[[Sequence[StoreRefusal]], None]
    wire_bytes: int

    @property
    def size(self) -> int:
        return self.wire_bytes + sum(head.header.stored_bytes for head in self.heads)


class Amends:
    """See the module; `run` finds what is only in LogsDB.

    Attributes:
        unrestored: heads of the record that is being replayed, whose bodies are to be found.
    """

    def __init__(self, engine: StorageEngine) -> None:
        self.unrestored: list[StoredBlock] = []
        self._engine = engine
        self._waiting: deque[_Frame] = deque()
        self._stirred = asyncio.Event()

    def store(
        self, wave: int, payload: memoryview, settled: Callable[[Sequence[StoreRefusal]], None]
    ) -> None:
        """Take one STORE payload that amends; `settled` is called once, with what was refused.

        Raises:
            Malformed, ChecksumMismatch: the payload is damaged; nothing was taken.
        """
        seal_epoch, heads = read_amend(payload)
        frame = _Frame(wave, seal_epoch, heads, settled, len(payload))
        if self._settle(frame, None):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._refuse(frame, {})
            return
        self._waiting.append(frame)
        self._stirred.set()

    async def run(self) -> None:
        """Look in LogsDB for what amends need, one frame after the other, until cancelled."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._waiting:
                frame = self._waiting.popleft()
                found = await self._find(frame.heads)
                self._settle(frame, found)

    def _settle(self, frame: _Frame, found: Bodies | None) -> bool:
        """Refuse it or store it; False where LogsDB has to be looked into first.

        Args:
            found: what LogsDB has of it; None where that was not asked.
        """
        engine = self._engine
        size = frame.size
        if size > engine.wal.record_bytes_max:
            self._refuse(frame, {})  # as a store it could not come at once
            return True
        is_full = frame.wire_bytes > engine.free_bytes
        taken: list[StoredBlock] = []
        refused: dict[int, StoreRefusal] = {}
        for head in frame.heads:
            refusal = refusal_of(engine, frame.wave, head, frame.seal_epoch, is_full, size)
            if refusal is not None:
                refused[head.header.log] = refusal
            elif not engine.is_trimmed(head):
                body = self._in_cache(head.header)
                if body is None and found is None:
                    return False
                if body is None and found is not None:
                    body = found.get(head.header)
                if body is None:
                    self._refuse(frame, refused)
                    return True
                taken.append(AmendedBlock(head.header, head.envelope, head.wire, body))
        # What is refused of a log is all that the frame has of it.
        taken = [block for block in taken if block.header.log not in refused]
        if taken:
            refusals = tuple(refused.values())
            engine.append_amend(frame.wave, taken, refusals, frame.settled, frame.seal_epoch)
        else:
            frame.settled(tuple(refused.values()))
        return True

    def _refuse(self, frame: _Frame, refused: dict[int, StoreRefusal]) -> None:
        """Refuse all of a frame: what nothing else speaks against is not held."""
        for head in frame.heads:
            log = head.header.log
            refused.setdefault(log, StoreRefusal(frame.wave, log, Refusal.NOT_HELD))
        frame.settled(tuple(refused.values()))

    def _in_cache(self, header: BlockHeader) -> Buffer | None:
        held = self._engine.cache.get(header.log)
        copy = held.copy_of(header) if held is not None else None
        return copy.body if copy is not None and _is_intact(copy) else None

    async def _find(self, heads: Sequence[StoredBlock]) -> dict[BlockHeader, Buffer]:
        """The bodies of those that LogsDB holds intact."""
        found: dict[BlockHeader, Buffer] = {}
        by_log: dict[int, list[BlockHeader]] = {}
        for head in heads:
            by_log.setdefault(head.header.log, []).append(head.header)
        for log, headers in by_log.items():
            try:
                await self._find_of_log(log, headers, found)
            except (TablesFailed, Corrupt) as error:
                logger.warning("log %d: what an amend is of cannot be read: %s", log, error)
        return found

    async def _find_of_log(
        self, log: int, headers: Sequence[BlockHeader], found: dict[BlockHeader, Buffer]
    ) -> None:
        wanted = dict.fromkeys(headers)

        def part_of(block: StoredBlock) -> Part:
            return Part.WHOLE if block.header in wanted else Part.NOTHING

        at, bound = min(each.first for each in headers), max(each.last for each in headers)
        while at <= bound:
            # Copies that lost have the same body.
            run = await self._engine.logs.read(
                log, at, bound, lambda last, seal_epoch, wave: True, part_of,
                bytes_max=READ_BYTES, blocks_max=READ_BLOCKS,
            )  # fmt: skip
            found.update((block.header, block.body) for block in run.blocks if _is_intact(block))
            at = run.next

    async def restore(self) -> None:
        """Put what a replayed record amends into the cache, with the bodies of old."""
        heads, self.unrestored = self.unrestored, []
        bodies = {head.header: self._in_cache(head.header) for head in heads}
        found = await self._find([head for head in heads if bodies[head.header] is None])
        for head in heads:
            header = head.header
            places = (bodies[header], found.get(header), self._dropped(header))
            body = next((each for each in places if each is not None), None)
            if body is not None:
                self._engine.cache.insert(AmendedBlock(header, head.envelope, head.wire, body))
            elif not self._engine.is_trimmed(head):
                # Its partition is gone, for a trim that this replay has still to come to; or
                # its body has rotted, and LogsDB says that it does not know it.
                logger.warning(
                    "log %d: what was amended at %s is not held any more",
                    header.log, format_lsn(header.first),
                )  # fmt: skip

    def _dropped(self, header: BlockHeader) -> Buffer | None:
        """The body of a copy that an epoch's end took out of the cache since it was amended: it
        is in the WAL still, and in what the next flush takes."""
        batch = self._engine.cache.batch
        blocks = batch.blocks if batch is not None else ()
        copy = next((block for block in blocks if block.header == header), None)
        return copy.body if copy is not None and _is_intact(copy) else None


def _is_intact(block: StoredBlock) -> bool:
    return crc32c(block.body) == block.header.stored_crc
