"""One read of LogsDB. It reads index entries, chooses the copies that count, and then reads the
wanted bodies.

If a row fails its checksum, the read reports its range as unknown and continues after it. So a node
with one bad block still sends all its other blocks.

Source: docs/design.md §5; docs/sources/logdevice.md 2.10 (CHECKSUM_FAIL), 2.13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from cordwood.errors import Corrupt
from cordwood.layout import logs_db
from cordwood.layout.block_header import HEADER_BYTES, peek_stored_bytes
from cordwood.layout.logs_db import DirectoryEntry, IndexKey
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.storage.logs_db.partition import BlockRun, Part, Partition, Wanted
from cordwood.storage.logs_db.tables import SCAN_ROWS_MAX, Tables
from cordwood.storage.scrub.rotten_rows import find_rot

logger = logging.getLogger(__name__)

SCAN_ROWS_MIN = 16
"""The fewest rows of a scan: the copies of one block and a few more."""

BODY_CALLS = 2
BODIES_MIN = 8
"""The bodies of a read are read in BODY_CALLS calls, of at least BODIES_MIN bodies each. One call
waits for the disk body by body. Four calls at the same time got 1.3 to 1.9 times as many bodies of
64 KiB from a disk as one call. More calls would take the threads from other reads."""

Counts = Callable[[int, int, int], bool]
"""Whether a copy counts, from its last LSN, its seal epoch and its wave."""

Directory = Sequence[tuple[Partition, DirectoryEntry]]
"""Where a log's blocks are: partitions by first LSN, with the log's part of each."""

Found = tuple[IndexKey, bytes, Partition]
"""An index entry, and where it stands."""


class IndexQuery(NamedTuple):
    """The request of a read; see `LogsStore.read`."""

    log: int
    start: int
    bound: int
    counts: Counts
    wanted: Wanted | None
    bytes_max: int
    blocks_max: int


async def read_blocks(
    tables: Tables,
    directory: Directory,
    query: IndexQuery,
    known: Sequence[DamagedRange] = (),
    mended: Set[DamagedRange] = frozenset(),
    noticed: list[DamagedRange] | None = None,
) -> BlockRun:
    """Do a read; see `LogsStore.read`.

    Args:
        known: this log's known damaged ranges.
        mended: damaged ranges whose blocks are all held elsewhere.
        noticed: takes the damaged ranges that this read found.
    Raises:
        TablesFailed: the store below does not answer.
    """
    noticed = noticed if noticed is not None else []
    found, limit, damaged = await _find(tables, directory, query, known, mended, noticed)
    if known:
        found, bad = _without_damaged(found, known, query, mended)
        damaged += bad
    blocks: list[StoredBlock] = []
    chosen: list[tuple[StoredBlock, Partition]] = []
    size = seen = last = 0
    for key, wire, partition in winners(found, query.counts):
        if key.first > query.bound:
            break
        # Overlapping blocks belong to the same batch, or the reader would take them for absent.
        if seen and (size >= query.bytes_max or seen >= query.blocks_max) and key.first > last:
            limit = min(limit, last)
            break
        seen, last = seen + 1, max(last, key.last)
        try:
            block = logs_db.read_head(wire)
        except Corrupt as error:
            logger.error("log %d: the index at lsn %d: %s", query.log, key.first, error)
            damaged.append((key.first, key.last))
            continue
        part = Part.WHOLE if query.wanted is None else query.wanted(block)
        if part:
            blocks.append(block)
            size += len(wire)
        if part is Part.WHOLE and block.header.stored_bytes:
            chosen.append((block, partition))
            size += block.header.stored_bytes
    passed = seen - len(blocks)
    failed = await _read_bodies(tables, query.log, chosen)
    if failed:
        damaged += [(block.header.first, block.header.last) for block, _ in failed]
        noticed += [
            DamagedRange(place.number, query.log, block.header.first, block.header.last)
            for block, place in failed
        ]
        blocks = [block for block in blocks if not any(block is each for each, _ in failed)]
    # The last block may end past the bound, and then all of it is in the run.
    next_lsn = limit + 1 if limit < query.bound else max(query.bound, last) + 1
    return BlockRun(blocks, next_lsn, passed, [each for each in damaged if each[0] < next_lsn])


async def home_of(
    tables: Tables, directory: Directory, block: StoredBlock, known: Sequence[DamagedRange] = ()
) -> Partition | None:
    """The partition that holds this very block with its body, under any envelope.

    Args:
        known: this log's known damaged ranges: a block there is not the home.
    Returns:
        None without one, or if its entry cannot be read.
    Raises:
        TablesFailed: the store below does not answer.
    """
    header = block.header
    for partition, entry in reversed(directory):
        if not entry.first <= header.first <= header.last <= entry.last:
            continue
        if any(
            bad.partition == partition.number
            and bad.first <= header.last
            and header.first <= bad.last
            for bad in known
        ):
            continue
        try:
            rows, _ = await tables.scan(
                partition.table,
                logs_db.index_start(header.log, header.last),
                logs_db.index_start(header.log, header.last + 1),
                rows_max=SCAN_ROWS_MAX,
                bytes_max=1 << 30,
            )
        except Corrupt as error:
            logger.error("log %d in partition %d: %s", header.log, partition.number, error)
            continue
        if any(wire[:HEADER_BYTES] == block.wire[:HEADER_BYTES] for _, wire in rows):
            return partition
    return None


async def _find(
    tables: Tables,
    directory: Directory,
    query: IndexQuery,
    known: Sequence[DamagedRange],
    mended: Set[DamagedRange],
    noticed: list[DamagedRange],
) -> tuple[list[Found], int, list[tuple[int, int]]]:
    """Index entries from `start` on, ascending; the LSN up to which they are complete; and the
    ranges where this is unknown."""
    found: list[Found] = []
    damaged: list[tuple[int, int]] = []
    limit = LSN_MAX
    size = 0
    for partition, entry in directory:
        if entry.last < query.start:
            continue
        if entry.first > min(query.bound, limit):
            break
        if known:
            rest = max(query.start, entry.first)
            if is_covered(DamagedRange(partition.number, query.log, rest, entry.last), known):
                continue  # no row of it counts: a table that does not open costs nothing
        rows_max = _rows_wanted(entry, query.bytes_max, query.blocks_max)
        try:
            rows, reached = await _index_rows(tables, partition, query.log, query.start, rows_max)
        except Corrupt as error:
            start = max(query.start, entry.first)
            rot = await find_rot(
                tables, partition.table, query.log, start, entry.last, rows_max=rows_max
            )
            rows = [(logs_db.read_index_key(key), wire) for key, wire in rot.rows]
            # The next read finds what comes after it.
            reached = rot.last if rot.last < entry.last else LSN_MAX
            if rot.first <= min(rot.last, query.bound):
                here = DamagedRange(partition.number, query.log, rot.first, rot.last)
                if not is_covered(here, mended):
                    logger.error("log %d in partition %d: %s", query.log, partition.number, error)
                    noticed.append(here)
                    damaged.append((max(start, rot.first), min(query.bound, rot.last)))
        limit = min(limit, reached)
        found += [(key, wire, partition) for key, wire in rows]
        size += sum(len(wire) + peek_stored_bytes(wire) for _, wire in rows)
        if size >= query.bytes_max or len(found) >= query.blocks_max:
            # Enough; of the following entries, only those that overlap are still wanted.
            limit = min(limit, max(key.last for key, _, _ in found))
    found.sort(key=lambda each: each[0])
    return [each for each in found if each[0].last <= limit], limit, damaged


def is_covered(range_: DamagedRange, by: Iterable[DamagedRange]) -> bool:
    """Whether all of a range lies in others."""
    first = range_.first
    for each in sorted(by):
        if each.partition == range_.partition and each.first <= first <= each.last:
            first = each.last + 1
    return first > range_.last


def _without_damaged(
    found: Sequence[Found],
    known: Sequence[DamagedRange],
    query: IndexQuery,
    mended: Set[DamagedRange] = frozenset(),
) -> tuple[list[Found], list[tuple[int, int]]]:
    """The entries without copies that are known as damaged, and the damaged ranges that no later
    copy fills."""

    def is_bad(each: Found) -> bool:
        key, _, partition = each
        return any(
            bad.partition == partition.number and bad.first <= key.last and key.first <= bad.last
            for bad in known
        )

    left = [each for each in found if not is_bad(each)]
    latest: dict[tuple[int, int], int] = {}
    for key, _, partition in left:
        if query.counts(key.last, key.seal_epoch, key.wave):
            place = (key.first, key.last)
            latest[place] = max(latest.get(place, 0), partition.number)
    bad = [
        (max(each.first, query.start), each.last)
        for each in known
        if each not in mended
        and each.last >= query.start
        and each.first <= query.bound
        # Trap: a copy of an earlier partition does not fill the range. A move may have replaced its
        # envelope, or set it aside, by the copy that rotted.
        and latest.get((each.first, each.last), 0) <= each.partition
    ]
    return left, bad


async def _index_rows(
    tables: Tables, partition: Partition, log: int, start: int, rows_max: int
) -> tuple[list[tuple[IndexKey, bytes]], int]:
    """Some index entries of a partition, and the LSN up to which these are all."""
    while True:
        rows, is_end = await tables.scan(
            partition.table,
            logs_db.index_start(log, start),
            logs_db.index_stop(log),
            rows_max=rows_max,
            bytes_max=1 << 30,
        )
        keyed = [(logs_db.read_index_key(key), wire) for key, wire in rows]
        if is_end:
            return keyed, LSN_MAX
        # More copies of the last block may follow, among them the copy that counts. What stands
        # last says nothing of the LSNs below it until it is sent itself.
        tail = keyed[-1][0]
        whole = [each for each in keyed if each[0].last < tail.last]
        if whole and tail.first > whole[-1][0].last:
            return whole, whole[-1][0].last
        rows_max *= 2


async def _read_bodies(
    tables: Tables, log: int, chosen: Sequence[tuple[StoredBlock, Partition]]
) -> list[tuple[StoredBlock, Partition]]:
    """Read the bodies of blocks; returns the blocks with unreadable bodies."""
    failed: list[tuple[StoredBlock, Partition]] = []
    for partition in {each.number: each for _, each in chosen}.values():
        here = [block for block, place in chosen if place is partition]
        keys = [logs_db.body_key(log, b.header.last, b.header.first) for b in here]
        bodies = await _bodies(tables, partition.table, keys)
        for key, block in zip(keys, here, strict=True):
            block.body = bodies.get(key) or b""
            if len(block.body) != block.header.stored_bytes:
                logger.error(
                    "log %d: the body of the block at lsn %d has %d bytes in LogsDB, not %d",
                    log, block.header.first, len(block.body), block.header.stored_bytes,
                )  # fmt: skip
                failed.append((block, partition))
    return failed


async def _bodies(tables: Tables, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
    """Bodies by key; None, or nothing, where one cannot be read."""
    step = max(BODIES_MIN, -(-len(keys) // BODY_CALLS))
    parts = [keys[at : at + step] for at in range(0, len(keys), step)]
    bodies: dict[bytes, bytes | None] = {}
    # An error of a call is raised only when all calls have ended, so that none is still running.
    for told in await asyncio.gather(
        *(_some_bodies(tables, table, part) for part in parts), return_exceptions=True
    ):
        if isinstance(told, BaseException):
            raise told
        bodies |= told
    return bodies


async def _some_bodies(
    tables: Tables, table: str, keys: Sequence[bytes]
) -> dict[bytes, bytes | None]:
    """As `_bodies`, in one call.

    Read by key even if they are adjacent: see `rocks_logs` on the delays of a scan.
    """
    try:
        return dict(zip(keys, await tables.get(table, keys), strict=True))
    except Corrupt as error:
        logger.error("bodies of table %s: %s", table, error)
    bodies: dict[bytes, bytes | None] = {}
    for key in keys:
        try:
            (bodies[key],) = await tables.get(table, [key])
        except Corrupt:
            bodies[key] = None
    return bodies


def _rows_wanted(entry: DirectoryEntry, bytes_max: int, blocks_max: int) -> int:
    """The estimated number of index entries for a number of bytes, by this log's blocks."""
    mean = max(1, entry.bytes // entry.blocks)
    return max(SCAN_ROWS_MIN, min(SCAN_ROWS_MAX, blocks_max + 1, bytes_max // mean + 2))


def winners(found: Sequence[Found], counts: Counts) -> list[Found]:
    """For each block, the copy that counts. `found` is ascending."""
    winners: list[Found] = []
    for each in found:
        key = each[0]
        if not counts(key.last, key.seal_epoch, key.wave):
            continue
        if winners and winners[-1][0].place == key.place:
            winners[-1] = each
        else:
            winners.append(each)
    return winners
