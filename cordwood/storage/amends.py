"""Amends: a block that a node holds gets a new envelope, and its body is not sent again.

A node takes an amend only if it holds the same block intact, in the log cache or in LogsDB.
Otherwise it refuses the whole frame as *not held*, and stores nothing. A block in the cache is
found at once, and so is a block that a donor of this node has just read. Other blocks that are only
in LogsDB are read in the order of the requests, and then all reasons for a refusal are checked
again.

The WAL record of an amend has headers and envelopes. In the cache the block has its body like any
other block (`AmendedBlock` marks it), so readers and memory bounds treat it alike. A flush writes
its index entry, without a body, into the partition that holds the body. If that partition is gone,
the flush writes the body too. So a body is never dropped before an entry that needs it: partitions
are dropped and cut by the trim point of a log, which covers a block's entry and its body together.

At a start, replay finds the bodies of amends in earlier WAL records, or in LogsDB as of its last
flush.

Source: docs/design.md §2 ("an amend rewrites the envelope only"); docs/sources/logdevice.md 2.7
(6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.block import BlockHeader, Buffer
from cordwood.errors import Corrupt, Overloaded
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
from cordwood.storage.refusals import refusal_of, tell_refusal

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine

logger = logging.getLogger(__name__)

WAITING_MAX = 64
"""Frames that wait for LogsDB at once. A further frame is refused as not held, and its sender then
sends bodies. A recovery has one frame under way to each node."""

READ_BYTES = 1 << 20
READ_BLOCKS = 256
"""The most that one read of LogsDB returns."""

Bodies = Mapping[BlockHeader, Buffer]


@dataclass(slots=True)
class _Frame:
    """An unsettled amend; `size` is the bytes for the cache, bodies included."""

    wave: int
    seal_epoch: int
    heads: list[StoredBlock]
    settled: Callable[[Sequence[StoreRefusal]], None]
    wire_bytes: int

    @property
    def size(self) -> int:
        return self.wire_bytes + sum(head.header.stored_bytes for head in self.heads)


class Amends:
    """See the module; `run` finds blocks that only LogsDB holds.

    Attributes:
        unrestored: headers of the replayed record without bodies; `restore` finds these.
    """

    def __init__(self, engine: StorageEngine) -> None:
        self.unrestored: list[StoredBlock] = []
        self._engine = engine
        self._waiting: deque[_Frame] = deque()
        self._read: dict[BlockHeader, Buffer] = {}
        self._stirred = asyncio.Event()

    def store(
        self, wave: int, payload: memoryview, settled: Callable[[Sequence[StoreRefusal]], None]
    ) -> None:
        """Take one STORE payload that amends; `settled` is called once, with the refusals.

        Raises:
            Malformed, ChecksumMismatch: the payload is damaged; no amend was taken.
        """
        seal_epoch, heads = read_amend(payload)
        frame = _Frame(wave, seal_epoch, heads, settled, len(payload))
        if self._settle(frame, None):
            return
        if len(self._waiting) >= WAITING_MAX:
            self.refuse(frame, {})
            return
        self._waiting.append(frame)
        self._stirred.set()

    @contextmanager
    def having_read(self, blocks: Iterable[StoredBlock]) -> Iterator[None]:
        """Take the bodies of these blocks from memory for the length of the `with` statement. This
        node has just read these blocks intact from its own store, and is about to amend them.

        A partition with one of these blocks may be dropped meanwhile. Its log is then trimmed past
        the block, and this is checked when the amend arrives.
        """
        bodies = {block.header: block.body for block in blocks}
        self._read |= bodies
        try:
            yield
        finally:
            for header in bodies:
                self._read.pop(header, None)

    async def run(self) -> None:
        """Read the blocks of waiting amends from LogsDB, one frame after the other, until
        cancelled."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._waiting:
                frame = self._waiting.popleft()
                found = await self._find(frame.heads)
                self._settle(frame, found)

    def _settle(self, frame: _Frame, found: Bodies | None) -> bool:
        """Refuse or store a frame; False if LogsDB has to be read first.

        Args:
            found: the frame's bodies that LogsDB holds; None if LogsDB was not read.
        """
        engine = self._engine
        size = frame.size
        if size > engine.wal.record_bytes_max:
            self.refuse(frame, {})  # too large for one record; the sender then sends bodies
            return True
        is_full = frame.wire_bytes > engine.free_bytes
        taken: list[StoredBlock] = []
        refused: dict[int, StoreRefusal] = {}
        for head in frame.heads:
            refusal = refusal_of(engine, frame.wave, head, frame.seal_epoch, is_full, size)
            if refusal is not None:
                refused[head.header.log] = refusal
                tell_refusal(engine, head, frame.seal_epoch, refusal)
            elif not engine.is_trimmed(head):
                body = self._in_memory(head.header)
                if body is None and found is None:
                    return False
                if body is None and found is not None:
                    body = found.get(head.header)
                if body is None:
                    self.refuse(frame, refused)
                    return True
                taken.append(AmendedBlock(head.header, head.envelope, head.wire, body))
        # A refusal of one block refuses all the frame's blocks of that log.
        taken = [block for block in taken if block.header.log not in refused]
        if taken:
            refusals = tuple(refused.values())
            engine.append_amend(frame.wave, taken, refusals, frame.settled, frame.seal_epoch)
        else:
            frame.settled(tuple(refused.values()))
        return True

    def refuse(self, frame: _Frame, refused: dict[int, StoreRefusal]) -> None:
        """Refuse a whole frame; logs without another reason are refused as not held."""
        for head in frame.heads:
            log = head.header.log
            refused.setdefault(log, StoreRefusal(frame.wave, log, Refusal.NOT_HELD))
        frame.settled(tuple(refused.values()))

    def _in_memory(self, header: BlockHeader) -> Buffer | None:
        body = self._in_cache(header)
        if body is not None:
            return body
        body = self._read.get(header)
        if body is None or crc32c(body) != header.stored_crc:
            return None
        # A copy that was found rotten since then is refused, so that its sender stores it whole.
        damaged = self._engine.logs.damages.of_log(header.log)
        is_bad = any(bad.first <= header.last and header.first <= bad.last for bad in damaged)
        return None if is_bad else body

    def _in_cache(self, header: BlockHeader) -> Buffer | None:
        held = self._engine.cache.get(header.log)
        copy = held.copy_of(header) if held is not None else None
        return copy.body if copy is not None and _is_intact(copy) else None

    async def _find(self, heads: Sequence[StoredBlock]) -> dict[BlockHeader, Buffer]:
        """The bodies of the blocks that LogsDB holds intact."""
        found: dict[BlockHeader, Buffer] = {}
        by_log: dict[int, list[BlockHeader]] = {}
        for head in heads:
            by_log.setdefault(head.header.log, []).append(head.header)
        for log, headers in by_log.items():
            try:
                await self._find_of_log(log, headers, found)
            except (TablesFailed, Corrupt, Overloaded) as error:
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
            # Accept every copy: copies of lower precedence have the same body.
            run = await self._engine.logs.read(
                log, at, bound, lambda last, seal_epoch, wave: True, part_of,
                bytes_max=READ_BYTES, blocks_max=READ_BLOCKS,
            )  # fmt: skip
            found.update((block.header, block.body) for block in run.blocks if _is_intact(block))
            at = run.next

    async def restore(self) -> None:
        """Put the blocks that a replayed record amends into the cache, with their old bodies."""
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
                # The partition is gone because of a trim that this replay has not reached yet. Or
                # the body has rotted, and LogsDB reports that it does not know the block.
                logger.warning(
                    "log %d: the block amended at %s is not held any more",
                    header.log, format_lsn(header.first),
                )  # fmt: skip

    def _dropped(self, header: BlockHeader) -> Buffer | None:
        """The body of a copy that the end of its epoch removed from the cache after the amend. It
        is still in the WAL and in the next flush's batch."""
        batch = self._engine.cache.batch
        blocks = batch.blocks if batch is not None else ()
        copy = next((block for block in blocks if block.header == header), None)
        return copy.body if copy is not None and _is_intact(copy) else None


def _is_intact(block: StoredBlock) -> bool:
    return crc32c(block.body) == block.header.stored_crc
