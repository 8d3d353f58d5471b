"""Rot in LogsDB and in a WAL at rest, only where damage can be told from a torn end.

A later record shows a WAL that an earlier record was durable. The last few records have no later
record yet. Any store with one copy of its order takes rot there for a write that a crash cut short.
So this module damages only bytes that a later record, or the header, shows to be durable. The node
must then report them as "unknown" and never as "absent" (S16).

Source: docs/sources/reliability.md §0 (3), §5.1 (bit rot); Alagappan et al., FAST 2018
(a crash and a corruption are told apart, or data is lost).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from cordwood.errors import Corrupt
from cordwood.layout.wal_block import (
    WAL_RECORD_HEADER_BYTES,
    WAL_RING_START,
    WAL_SLOTS,
    WAL_UNIT_BYTES,
    WalHeader,
    WalKind,
    WalRecord,
    align_down,
    align_up,
    unpack_wal_header,
    unpack_wal_record,
    wal_position,
)
from cordwood.sim.disk import SimDisk
from cordwood.sim.memory_logs import files_of_tables, read_file
from cordwood.sim.stored_file import StoredFile

WAL_PATH = "/node/wal"
"""Where simulated nodes keep their WAL."""

TABLES_PATH = "/node/logsdb"
"""Where they keep LogsDB."""

RECORDS_MAX = 3
"""Records or rows that one rot hits."""

BITS_MAX = 2
"""Bits flipped in each: as many as a disk's error correction lets through."""


def damage_wal(disk: SimDisk, chance: random.Random, path: str = WAL_PATH) -> int:
    """Flip bits in records of a stopped node's WAL that were certainly durable.

    Returns:
        How many records were hit; 0 if there are none to hit.
    """
    hit = _durable_places(disk, chance, path)
    for start, stop in hit:
        disk.rot(path, start, stop, bits=chance.randint(1, BITS_MAX))
    return len(hit)


def zero_wal(disk: SimDisk, chance: random.Random) -> int:
    """Replace blocks of a stopped node's WAL by zeros, where their records were durable.

    Returns:
        How many records were hit; 0 if there are none to hit.
    """
    hit = _durable_places(disk, chance, WAL_PATH)
    for start, stop in hit:
        first = align_down(start)
        disk.tree.file(WAL_PATH).write(first, bytes(align_up(stop) - first))
    return len(hit)


def damage_tables(
    disk: SimDisk, chance: random.Random, directory: str = TABLES_PATH, tables: str = "p"
) -> int:
    """Flip bits in rows of a stopped node's LogsDB: index entries and bodies of partitions.

    Args:
        tables: prefixes of the names of the tables to hit.
    Returns:
        How many rows were hit; 0 if there are none to hit.
    """
    places: list[tuple[str, int, int]] = []
    try:
        names = disk.tree.names(directory)
    except OSError:
        return 0  # the node never made this directory
    for name in names:
        path = f"{directory}/{name}"
        data = disk.tree.content(path)
        if name.startswith(tables) and data:
            rows = read_file(data, path)
            places += [
                (path, each.start, each.stop)
                for each in rows
                if each.start is not None and each.stop > each.start
            ]
    hit = chance.sample(places, min(len(places), chance.randint(1, RECORDS_MAX)))
    for path, start, stop in hit:
        disk.rot(path, start, stop, bits=chance.randint(1, BITS_MAX))
    return len(hit)


def lose_partition(disk: SimDisk, chance: random.Random) -> int:
    """Take all files of one partition off a stopped node's disk.

    Returns:
        How many files are gone; 0 if there is no partition.
    """
    try:
        files = files_of_tables(disk.tree.names(TABLES_PATH))
    except OSError:
        return 0  # the node never made LogsDB
    partitions = sorted(table for table in files if table.startswith("p"))
    if not partitions:
        return 0
    gone = files[chance.choice(partitions)]
    for name in gone:
        disk.tree.lose(f"{TABLES_PATH}/{name}")
    return len(gone)


def _durable_places(disk: SimDisk, chance: random.Random, path: str) -> list[tuple[int, int]]:
    """Bytes [start, stop) of the WAL that hold a few records that were certainly durable."""
    try:
        file = disk.tree.file(path)
    except OSError:
        return []
    header = _header(file)
    if header is None:
        return []
    records = list(_records(file, header))
    durable = max([header.durable, *(record.durable for record in records)])
    data = [r for r in records if r.kind is WalKind.DATA and r.stop <= durable]
    hit = chance.sample(data, min(len(data), chance.randint(1, RECORDS_MAX)))
    intact = [record for record in records if record not in hit]
    places = []
    for record in hit:
        if not _can_be_told(record, header, intact):
            continue
        start = wal_position(record.offset, header.ring)
        places.append((start, start + record.stop - record.offset))
    return places


def _can_be_told(record: WalRecord, header: WalHeader, intact: Sequence[WalRecord]) -> bool:
    """Whether a start that reads one window past a bad record meets a record that vouches for it.

    The block that begins where the window ends is the last block that the start reads.
    """
    limit = align_down(record.offset) + header.window
    return header.durable >= record.stop or any(
        record.offset < other.offset <= limit and other.durable >= record.stop for other in intact
    )


def _header(file: StoredFile) -> WalHeader | None:
    """The header that counts."""
    found: list[WalHeader] = []
    for slot in range(WAL_SLOTS):
        try:
            found.append(unpack_wal_header(file.read(slot * WAL_UNIT_BYTES, WAL_UNIT_BYTES)))
        except Corrupt:
            continue
    return max(found, key=lambda header: header.sequence, default=None)


def _records(file: StoredFile, header: WalHeader) -> Iterator[WalRecord]:
    """Every intact record of the present lap, as recovery would find it."""
    offset, last_seen = header.scan, max(header.scan, header.durable, header.resume)
    while offset <= last_seen + header.window:
        place = wal_position(offset, header.ring)
        if place + WAL_RECORD_HEADER_BYTES > WAL_RING_START + header.ring:
            return
        record = unpack_wal_record(file.read(place, WAL_RECORD_HEADER_BYTES), 0, header.salt)
        if record is None or record.offset != offset:
            offset = align_down(offset) + WAL_UNIT_BYTES
            continue
        body = file.read(place + WAL_RECORD_HEADER_BYTES, record.length)
        if record.kind is WalKind.PADDING or crc32c(body) == record.body_crc:
            yield record
        last_seen = max(last_seen, record.stop)
        offset = align_up(record.stop) if record.is_last else record.stop
