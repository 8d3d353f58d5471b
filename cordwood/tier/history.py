"""Reads a log's history from objects: in order, from any LSN to any other, without a node.

Row groups are fetched by ranged gets and checked in threads. The read-ahead begins with one row
group and doubles with each group taken, up to a bound. So a reader of one record fetches one group,
and a reader of a year keeps the network busy. From the head of the manifest, the first record is
two more gets away: its object's footer, and its row group (and a page a level of the manifest).

The output tiles the requested range: blocks, clipped at both ends, and gaps. What reads columns
takes rows in place of blocks (`tier.row_history`). Trims and merges go on
meanwhile: if an object is gone, the manifest is read anew, and records that it does not keep any
more are a TRIM gap. Where the manifest ends, the history does, and nodes go on from `next_lsn`.

Source: docs/objects.md, "Reading"; docs/sources/s3stream.md (b), "Read", and complaint 4 (reads
that compaction breaks).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from cordwood.block import BlockHeader, Buffer, Gap, GapKind
from cordwood.errors import Malformed, NoObject
from cordwood.host.seams import Host
from cordwood.layout.object_columns import BODY_COLUMNS
from cordwood.layout.object_file import Footer, ObjectRun, Piece, piece_blocks, read_group
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.tier.block_cache import BlockCache, Blocks, GroupKey
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.repair import is_lost
from cordwood.tiered import Entry

AHEAD_BYTES_MAX = 32 << 20
"""Of row groups as stored, fetched and not taken yet; eight of them decoded are twice that."""

GETS_MAX = 8
"""In flight for one reader."""

GET_S = 120.0
CHECK_S = 120.0


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """The records `[first, last]` of a block.

    Attributes:
        header: as it was appended; its codec, stored length and CRC are those of the nodes' copy.
        raw: all of its body, uncompressed, and compared with its CRC.
    """

    header: BlockHeader
    raw: Buffer
    first: int
    last: int

    def cut(self, first: int, last: int) -> HistoryBlock:
        """The records `[first, last]`, which lie within."""
        return HistoryBlock(self.header, self.raw, first, last)


HistoryItem = HistoryBlock | Gap


class Span(Protocol):
    """Records `[first, last]` of a log, in whatever form a reader takes them."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    def cut(self, first: int, last: int) -> Self:
        """The records `[first, last]`, which lie within."""


Part = TypeVar("Part", bound=Span)
Result = TypeVar("Result")


@dataclass(slots=True)
class _Step(Generic[Part]):
    """One row group of one object, or gaps that need none.

    Attributes:
        low, high: LSNs that it tells all of.
        stored: bytes to fetch.
        work: its items, once it has begun.
    """

    entry: Entry
    footer: Footer | None
    run: ObjectRun | None
    group: int
    pieces: list[int]
    low: int
    high: int
    stored: int
    work: asyncio.Task[list[Part | Gap]] | None = None


class HistorySpans(Generic[Part]):
    """See the module. Use it with `async with`, or close it. A subclass makes parts of row groups.

    Args:
        store: patient.
        manifest: the log's; it is read anew if needed. start, until: the first and the last wanted
            LSN.
    Attributes:
        next_lsn: the next LSN to give out; at the history's end, the LSN from which nodes continue.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: LogManifest,
        host: Host,
        log: int,
        start: int,
        until: int = LSN_MAX,
        *,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self.next_lsn = start
        self._store = store
        self._manifest = manifest
        self._host = host
        self._log = log
        self._until = until
        self._ahead_bytes_max = ahead_bytes_max
        self._ahead_bytes = 1
        self._out: deque[Part | Gap] = deque()
        self._steps: deque[_Step[Part]] = deque()
        self._plan: AsyncGenerator[_Step[Part], None] | None = None
        self._footer: tuple[str, asyncio.Task[Footer]] | None = None
        self._missed = (0, 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the read-ahead."""
        tasks: list[asyncio.Task[object]] = [s.work for s in self._steps if s.work is not None]
        if self._footer is not None:
            tasks.append(self._footer[1])
        plan, self._plan, self._footer = self._plan, None, None
        self._steps.clear()
        if plan is not None:
            await plan.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next(self) -> Part | Gap | None:
        """The next part or gap; None where `until` was given out, or the history ends.

        Raises:
            Corrupt: an object or the manifest differs from what was written.
            Retryable: the store does not answer.
        """
        while not self._out:
            if self.next_lsn > self._until:
                return None
            try:
                if not await self._take_step():
                    return None
            except NoObject as error:
                await self._begin_anew(error)
        item = self._out.popleft()
        self.next_lsn = int(item.last) + 1
        return item

    def __aiter__(self) -> AsyncIterator[Part | Gap]:
        return self._items()

    async def _items(self) -> AsyncIterator[Part | Gap]:
        while (item := await self.next()) is not None:
            yield item

    # ---- ahead ----

    async def _take_step(self) -> bool:
        """Put the next step's items out; whether there was one."""
        await self._fill()
        if not self._steps:
            return False
        step = self._steps[0]
        assert step.work is not None
        items = await step.work
        self._steps.popleft()
        self._ahead_bytes = min(self._ahead_bytes_max, max(2 * step.stored, 2 * self._ahead_bytes))
        self._out.extend(clipped(items, self.next_lsn, self._until))
        return True

    async def _fill(self) -> None:
        """Begin steps until the bound on fetches is reached; at least one."""
        if self._plan is None:
            self._plan = self._planned()
        on_the_way = sum(step.stored for step in self._steps)
        while not self._steps or (on_the_way < self._ahead_bytes and len(self._steps) < GETS_MAX):
            step = await anext(self._plan, None)
            if step is None:
                return
            step.work = asyncio.get_running_loop().create_task(self._items_of(step))
            self._steps.append(step)
            on_the_way += step.stored

    async def _begin_anew(self, error: NoObject) -> None:
        """An object is gone: continue by the present manifest."""
        await self.close()
        head = await self._manifest.load()
        # Trap: the head at hand may be newer than the plan that the object is of.
        missed = (head.version if head is not None else 0, self.next_lsn)
        if head is None or missed == self._missed:
            raise Malformed(f"log {self._log}: {error}: repair it") from error
        self._missed = missed
        if head.start > self.next_lsn:
            last = min(head.start - 1, self._until)
            self._out.append(Gap(Lsn(self.next_lsn), Lsn(last), GapKind.TRIM))

    # ---- what there is to fetch ----

    async def _planned(self) -> AsyncGenerator[_Step[Part], None]:
        """Every row group from `next_lsn` on, by the present manifest."""
        lsn = self.next_lsn
        while lsn <= self._until:
            page = await self._manifest.entries(lsn)
            head = self._manifest.head
            # Trap: the manifest was read anew if a page was gone, and may begin further on by now.
            if head is not None and lsn < head.start:
                trimmed = Entry(lsn, head.start - 1, 0, "", 0, 0, 0, 0, 0, 0, 0, 0, 0)
                yield _Step[Part](trimmed, None, None, 0, [], lsn, head.start - 1, 0)
                lsn = head.start
            if not page:
                return
            for entry, after in zip(page, [*page[1:], None], strict=True):
                if entry.first > self._until:
                    return
                # Closed at once, and not by the loop some time later, when a reader is left.
                async with aclosing(self._steps_of(entry, after, lsn)) as steps:
                    async for step in steps:
                        yield step
                lsn = entry.last + 1

    async def _steps_of(
        self, entry: Entry, after: Entry | None, lsn: int
    ) -> AsyncGenerator[_Step[Part], None]:
        """The row groups of an entry that reach an LSN, or one step of none."""
        if is_lost(entry):
            yield _Step[Part](entry, None, None, 0, [], entry.first, entry.last, 0)
            return
        footer = await self._footer_of(entry, after)
        run = footer.index.run(self._log)
        if run is None or run.last != entry.last or run.first > entry.first:
            raise Malformed(f"{entry.name} does not hold {Lsn(entry.first)} to {Lsn(entry.last)}")
        start, until = max(lsn, entry.first), min(self._until, entry.last)
        groups: dict[int, list[int]] = {}
        for index, piece in enumerate(run.pieces):
            if piece.last >= start and piece.first <= until:
                groups.setdefault(piece.group, []).append(index)
        low = start
        for number, pieces in groups.items():
            group = footer.index.groups[number]
            is_last = number == next(reversed(groups))
            high = until if is_last else run.pieces[pieces[-1]].last
            size = group.stop - group.start
            yield _Step[Part](entry, footer, run, number, pieces, low, high, size)
            low = high + 1
        if not groups:
            yield _Step[Part](entry, footer, run, 0, [], start, until, 0)

    async def _footer_of(self, entry: Entry, after: Entry | None) -> Footer:
        """The footer of an entry's object; the next object's footer is fetched meanwhile."""
        held, self._footer = self._footer, None
        if held is not None and held[0] == entry.name:
            footer = await held[1]
        else:
            if held is not None:
                held[1].cancel()
                await asyncio.gather(held[1], return_exceptions=True)
            footer = await entry_footer(self._store, entry, timeout_s=GET_S)
        is_sequential = self._ahead_bytes > 1
        if (
            after is not None
            and is_sequential
            and not is_lost(after)
            and (after.first <= self._until)
        ):
            work = asyncio.get_running_loop().create_task(
                entry_footer(self._store, after, timeout_s=GET_S)
            )
            self._footer = (after.name, work)
        return footer

    async def _items_of(self, step: _Step[Part]) -> list[Part | Gap]:
        """Fetch a step's row group and check it; its parts, and the gaps around them."""
        entry, footer, run = step.entry, step.footer, step.run
        if footer is None or run is None:
            kind = GapKind.DATA_LOSS if is_lost(entry) else GapKind.TRIM
            return [Gap(Lsn(entry.first), Lsn(entry.last), kind)]
        gaps = [gap for gap in run.gap_list() if gap.last >= step.low and gap.first <= step.high]
        if not step.pieces:
            return list(gaps)
        return [*await self._parts(entry.name, footer, run, step.group), *gaps]

    async def _parts(
        self, name: str, footer: Footer, run: ObjectRun, number: int
    ) -> Sequence[Part]:
        """All that a row group holds of the log, fetched and checked."""
        raise NotImplementedError

    async def _fetch(
        self,
        name: str,
        footer: Footer,
        run: ObjectRun,
        number: int,
        check: Callable[[Buffer, Sequence[Piece]], Result],
    ) -> Result:
        """Fetch a row group, and check in a thread the log's records of these pieces in it."""
        group = footer.index.groups[number]
        content = await self._store.get(name, group.start, group.stop, timeout_s=GET_S)
        pieces = [piece for piece in run.pieces if piece.group == number]
        return await self._host.run_blocking(partial(check, content, pieces), timeout_s=CHECK_S)


class HistoryReader(HistorySpans[HistoryBlock]):
    """Gives blocks, as they were appended.

    Args:
        cache: of row groups, shared with other readers of the store; None for none.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: LogManifest,
        host: Host,
        log: int,
        start: int,
        until: int = LSN_MAX,
        *,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
        cache: BlockCache | None = None,
    ) -> None:
        super().__init__(store, manifest, host, log, start, until, ahead_bytes_max=ahead_bytes_max)
        self._cache = cache or BlockCache(0)

    async def _parts(
        self, name: str, footer: Footer, run: ObjectRun, number: int
    ) -> Sequence[HistoryBlock]:
        def check(content: Buffer, pieces: Sequence[Piece]) -> Blocks:
            rows = read_group(footer, number, content, BODY_COLUMNS)
            return [each for piece in pieces for each in piece_blocks(piece, rows, log=run.log)]

        key = GroupKey(name, number, run.log)
        found = await self._cache.blocks(
            key, partial(self._fetch, name, footer, run, number, check)
        )
        return [HistoryBlock(header, raw, header.first, header.last) for header, raw in found]


def clipped(items: list[Part | Gap], start: int, until: int) -> list[Part | Gap]:
    """Parts and gaps in order, without records outside of `[start, until]`."""
    kept: list[Part | Gap] = []
    for item in sorted(items, key=lambda each: each.first):
        first, last = max(int(item.first), start), min(int(item.last), until)
        if first > last:
            continue
        if isinstance(item, Gap):
            kept.append(Gap(Lsn(first), Lsn(last), item.kind))
        else:
            kept.append(item.cut(first, last))
    return kept
