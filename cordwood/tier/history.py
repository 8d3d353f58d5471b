"""Reads a log's history from objects: in order, from any LSN to any other, without a node.

Row groups are fetched by ranged gets and checked in threads. The read-ahead begins with one row
group and doubles with each group taken, up to a bound. So a reader of one record fetches one group.
A reader of a year keeps the network busy, and fetches several adjacent groups by one get. After the
head of the manifest, the first record needs two more gets, for its object's footer and its row
group (and a get for each level of pages). If an object is read from its beginning, both gets run at
once: the manifest tells about how many bytes the first row group has.

The output tiles the requested range: blocks, clipped at both ends, and gaps. Readers of columns
take rows in place of blocks (`tier.row_history`). Trims and merges go on meanwhile: if an object is
gone, the manifest is read anew, and its trimmed records become a TRIM gap. The history ends at the
end of the manifest, and nodes continue from `next_lsn`.

Source: docs/objects.md, "Reading"; docs/sources/s3stream.md (b), "Read", and complaint 4 (reads
that compaction breaks).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from cordwood.block import BlockHeader, Buffer, Gap, GapKind
from cordwood.errors import CordwoodError, Malformed, NoObject
from cordwood.host.seams import Host
from cordwood.layout.object_columns import BODY_COLUMNS
from cordwood.layout.object_file import (
    MAGIC,
    Footer,
    Group,
    ObjectRun,
    Piece,
    piece_blocks,
    read_group,
)
from cordwood.layout.object_names import SHARED
from cordwood.layout.object_rows import ROW_BLOCK_COLUMNS, RowBlock, piece_row_blocks
from cordwood.layout.object_writer import GROUP_BYTES
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.tier.block_cache import BlockCache, Blocks, GroupKey
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tiered import Entry, is_lost

AHEAD_BYTES_MAX = 32 << 20
"""The most bytes of stored row groups that are fetched and not taken yet. Eight of them decoded are
twice that."""

GETS_MAX = 8
"""The most row groups under way for one reader, and so the most gets."""

GET_BYTES = 8 << 20
"""The most bytes of adjacent row groups that one get fetches. A row group has about 2 MiB, and a
server has a fixed effort for each get: SeaweedFS used half the processor time for four at once. Two
such gets fit into the groups under way, so that the network stays busy."""

GET_S = 120.0
CHECK_S = 120.0
"""The longest time of a get with all its tries, and of the check of a row group in a thread."""


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """The records `[first, last]` of a block.

    Attributes:
        header: as it was appended; its codec, stored length and CRC are those of the nodes' copy.
        body: all of it, uncompressed, and compared with its CRC; or rows, from which it is made.
    """

    header: BlockHeader
    body: Buffer | RowBlock
    first: int
    last: int

    @property
    def raw(self) -> Buffer:
        """All of the body, uncompressed.

        Raises:
            ChecksumMismatch: rows do not give the appended body.
        """
        return self.body.body() if isinstance(self.body, RowBlock) else self.body

    def cut(self, first: int, last: int) -> HistoryBlock:
        """The records `[first, last]`, which lie within."""
        return HistoryBlock(self.header, self.body, first, last)


HistoryItem = HistoryBlock | Gap


class Span(Protocol):
    """Records `[first, last]` of a log, in the form that its reader takes."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    def cut(self, first: int, last: int) -> Self:
        """The records `[first, last]`, which lie within."""


Part = TypeVar("Part", bound=Span)
Result = TypeVar("Result")


class _Get:
    """One get of adjacent row groups of an object. The first step that needs one begins it."""

    def __init__(self, store: ObjectStore, name: str, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.work: asyncio.Task[bytes] | None = None
        self._store = store
        self._name = name

    async def part(self, group: Group) -> memoryview:
        """The bytes of one of the row groups. Other steps' parts survive a cancelled call."""
        if self.work is None:
            work = self._store.get(self._name, self.start, self.stop, timeout_s=GET_S)
            self.work = asyncio.get_running_loop().create_task(work)
        content = memoryview(await _ended(self.work))
        return content[group.start - self.start : group.stop - self.start]


@dataclass(slots=True)
class _Step(Generic[Part]):
    """One row group of one object, or gaps that need none.

    Attributes:
        low, high: the range of LSNs that it covers.
        stored: bytes to fetch.
        get: fetches its row group, and perhaps the next steps' too; None without a row group.
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
    get: _Get | None = None
    work: asyncio.Task[list[Part | Gap]] | None = None


Load = Callable[[], Awaitable[tuple[Footer, Buffer]]]
"""Gets a row group's bytes, and the footer that describes them."""


class HistorySpans(Generic[Part]):
    """See the module. Use it with `async with`, or close it. A subclass makes parts of row groups.

    Args:
        store: patient.
        manifest: the log's; it is read anew if needed.
        start, until: the first and the last wanted LSN.
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
        self._first: tuple[str, asyncio.Task[Sequence[Part]]] | None = None
        self._missed = (0, 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the read-ahead."""
        tasks: list[asyncio.Task[object]] = [s.work for s in self._steps if s.work is not None]
        gets = [s.get.work for s in self._steps if s.get is not None and s.get.work is not None]
        tasks += dict.fromkeys(gets)  # steps share them
        if self._footer is not None:
            tasks.append(self._footer[1])
        if self._first is not None:
            tasks.append(self._first[1])
        plan, self._plan, self._footer, self._first = self._plan, None, None, None
        self._steps.clear()
        if plan is not None:
            await plan.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next(self) -> Part | Gap | None:
        """The next part or gap; None where `until` was given out, or the history ends.

        After an error or a cancellation it may be called again, and continues at `next_lsn`.

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
            except (CordwoodError, asyncio.CancelledError):
                # Trap: an error ends a generator. The next call would return the end of the
                # history.
                await self.close()
                raise
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
        """Give out the next step's items. Returns whether there was a step."""
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
        # Trap: the present head may be newer than the plan that named the object.
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
                # A reader that is left closes this at once, not the loop some time later.
                async with aclosing(self._steps_of(entry, after, lsn)) as steps:
                    async for step in steps:
                        yield step
                lsn = entry.last + 1

    async def _steps_of(
        self, entry: Entry, after: Entry | None, lsn: int
    ) -> AsyncGenerator[_Step[Part], None]:
        """The row groups of an entry from an LSN on; if there is none, one step without a row
        group."""
        if is_lost(entry):
            yield _Step[Part](entry, None, None, 0, [], entry.first, entry.last, 0)
            return
        if self._ahead_bytes == 1 and self._first is None:
            self._begin_first(entry, lsn)
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
        get: _Get | None = None
        for number, pieces in groups.items():
            group = footer.index.groups[number]
            if get is None or group.start >= get.stop:
                rest = (
                    footer.index.groups[each]
                    for each in groups
                    if each > number and self._wants(entry.name, each)
                )
                stop = get_stop(group, rest, min(GET_BYTES, self._ahead_bytes // 2))
                get = _Get(self._store, entry.name, group.start, stop)
            is_last = number == next(reversed(groups))
            high = until if is_last else run.pieces[pieces[-1]].last
            size = group.stop - group.start
            yield _Step[Part](entry, footer, run, number, pieces, low, high, size, get)
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
        first, self._first = self._first, None
        if first is not None and step.group == 0 and first[0] == entry.name:
            # Trap: nothing else holds it from here on, so it ends with this step.
            parts = await first[1]
        else:
            if first is not None:
                first[1].cancel()
                await asyncio.gather(first[1], return_exceptions=True)
            parts = await self._parts(entry.name, step.group, partial(self._load, step))
        return [*parts, *gaps]

    async def _parts(self, name: str, number: int, load: Load) -> Sequence[Part]:
        """Fetch and check a row group; returns all its records of the log."""
        raise NotImplementedError

    async def _checked(self, load: Load, check: Callable[[Footer, Buffer], Result]) -> Result:
        """Fetch a row group, and check it in a thread.

        A reader that catches up takes half of the cores at most: appends, and readers at the tail,
        find the others free.
        """
        footer, content = await load()
        return await self._host.run_calculation(partial(check, footer, content), timeout_s=CHECK_S)

    async def _load(self, step: _Step[Part]) -> tuple[Footer, Buffer]:
        footer, get = step.footer, step.get
        assert footer is not None, "the step has a row group"
        assert get is not None, "and a get of it"
        return footer, await get.part(footer.index.groups[step.group])

    # ---- the first row group, beside its footer ----

    def _begin_first(self, entry: Entry, lsn: int) -> None:
        """Fetch an object's first row group beside its footer, if that is where the LSN lies."""
        stop = first_group_stop(entry, lsn)
        if not stop or not self._wants(entry.name, 0):
            return
        loop = asyncio.get_running_loop()
        footer = loop.create_task(entry_footer(self._store, entry, timeout_s=GET_S))
        load = partial(self._load_first, entry, footer, stop)
        self._footer = (entry.name, footer)
        self._first = (entry.name, loop.create_task(self._parts(entry.name, 0, load)))

    def _wants(self, name: str, number: int) -> bool:
        """Whether a row group is still to be fetched; no other reader has it or fetches it."""
        return True

    async def _load_first(
        self, entry: Entry, footer_of: asyncio.Task[Footer], stop: int
    ) -> tuple[Footer, Buffer]:
        start = len(MAGIC)
        begun = await self._store.get(entry.name, start, stop, timeout_s=GET_S)
        footer = await _ended(footer_of)
        group = footer.index.groups[0]
        if group.stop > stop:
            begun += await self._store.get(entry.name, stop, group.stop, timeout_s=GET_S)
        return footer, begun[: group.stop - start]


async def _ended(task: asyncio.Task[Result]) -> Result:
    """A task's result. The task goes on if the waiting call is cancelled."""
    await asyncio.wait([task])
    return task.result()


def get_stop(first: Group, others: Iterable[Group], bytes_max: int) -> int:
    """Where a get of a row group ends: after all others that follow it one after another within
    this many bytes."""
    stop = first.stop
    for group in others:
        if group.start != stop or group.stop - first.start > bytes_max:
            break
        stop = group.stop
    return stop


def first_group_stop(entry: Entry, lsn: int) -> int:
    """About where an object's first row group ends; 0 if it is not known to hold the LSN.

    A group is closed at GROUP_BYTES of bodies. So a smaller object is one group, and its end is
    known. In a larger object the estimate is the group's share of the bytes, and an eighth more.
    The first group of an object of several logs is most often another log's.
    """
    groups_end = entry.size - entry.footer_bytes
    is_first = lsn <= entry.first and not is_lost(entry) and not entry.name.startswith(SHARED)
    if not is_first or groups_end <= len(MAGIC):
        return 0
    share = (groups_end - len(MAGIC)) * GROUP_BYTES // max(1, entry.bytes)
    return min(groups_end, len(MAGIC) + share + share // 8)


class HistoryReader(HistorySpans[HistoryBlock]):
    """Gives blocks, as they were appended.

    Args:
        cache: of row groups, shared with other readers of the store; None for none.
        as_rows: give each block as rows, and make no bodies, for a reader of columns.
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
        as_rows: bool = False,
    ) -> None:
        super().__init__(store, manifest, host, log, start, until, ahead_bytes_max=ahead_bytes_max)
        self._cache = cache or BlockCache(0)
        self._as_rows = as_rows

    def _wants(self, name: str, number: int) -> bool:
        return self._key(name, number) not in self._cache

    def _key(self, name: str, number: int) -> GroupKey:
        return GroupKey(name, number, self._log, self._as_rows)

    async def _parts(self, name: str, number: int, load: Load) -> Sequence[HistoryBlock]:
        def check(footer: Footer, content: Buffer) -> Blocks:
            pieces = pieces_of(footer, self._log, number)
            if self._as_rows:
                rows = read_group(footer, number, content, ROW_BLOCK_COLUMNS)
                found = [piece_row_blocks(piece, rows, log=self._log) for piece in pieces]
                return [(each.header, each) for blocks in found for each in blocks]
            rows = read_group(footer, number, content, BODY_COLUMNS)
            return [each for piece in pieces for each in piece_blocks(piece, rows, log=self._log)]

        key = self._key(name, number)
        found = await self._cache.blocks(key, partial(self._checked, load, check))
        return [HistoryBlock(header, body, header.first, header.last) for header, body in found]


def pieces_of(footer: Footer, log: int, number: int) -> list[Piece]:
    """A log's records in a row group."""
    run = footer.index.run(log)
    return [piece for piece in run.pieces if piece.group == number] if run is not None else []


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
