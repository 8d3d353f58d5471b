"""Bytes that cannot be read are found in an index, and good entries stay known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_blocks import LOG, at, block, made_host, run
from test_rocks_logs import SETTINGS, play
from wal_memory_disk import MemoryDisk

from cordwood.errors import Corrupt
from cordwood.host.seams import Host
from cordwood.layout import logs_db
from cordwood.sim.memory_logs import MemoryTables
from cordwood.storage.logs_db.rocks_logs import RocksTables
from cordwood.storage.logs_db.tables import Tables
from cordwood.storage.scrub.rotten_rows import find_rot

TABLE = "p1"
Copy = tuple[int, int]
"""A block's LSN within the epoch, and its wave."""

Found = tuple[set[int], set[int]]
"""The LSNs of entries that were read, and those of which nothing is known."""


async def put(tables: Tables, copies: set[Copy]) -> dict[Copy, bytes]:
    await tables.create(TABLE)
    blocks = {(esn, wave): block(at(esn), b"body", wave=wave) for esn, wave in copies}
    rows = [(logs_db.index_key(each), bytes(each.wire)) for each in blocks.values()]
    await tables.write(TABLE, rows)
    await tables.flush(TABLE)
    return {copy: logs_db.index_key(each) for copy, each in blocks.items()}


async def read_around(tables: Tables, last: int, rows_max: int) -> Found:
    """Read all of the log as a reader does, around what cannot be read."""
    good: set[int] = set()
    bad: set[int] = set()
    start = at(1)
    while start <= last:
        try:
            rows, is_end = await tables.scan(
                TABLE, logs_db.index_start(LOG, start), logs_db.index_start(LOG, last + 1),
                rows_max=rows_max, bytes_max=1 << 30,
            )  # fmt: skip
            stop = last + 1 if is_end else logs_db.read_index_key(rows[-1][0]).last
        except Corrupt:
            rot = await find_rot(tables, TABLE, LOG, start, last, rows_max=rows_max)
            assert start <= rot.last, "it goes on"
            bad |= set(range(max(start, rot.first), rot.last + 1))
            rows, stop = rot.rows, rot.last + 1
        good |= {logs_db.read_index_key(key).last for key, _ in rows}
        start = stop
    return {lsn - at(0) for lsn in good}, {lsn - at(0) for lsn in bad}


COPIES = st.sets(st.tuples(st.integers(1, 60), st.integers(1, 2)), min_size=1, max_size=60)


@given(copies=COPIES, picks=st.sets(st.integers(0, 59), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_no_rotten_entry_is_absent_and_every_good_place_is_told(
    copies: set[Copy], picks: set[int]
) -> None:
    async def scenario() -> tuple[Found, set[Copy]]:
        tables = MemoryTables("tables", SETTINGS, made_host(MemoryDisk()))
        await tables.open()
        keys = await put(tables, copies)
        places = sorted(copies)
        rotten = {places[pick % len(places)] for pick in picks}
        tables._tables[TABLE].rotten |= {keys[copy] for copy in rotten}
        # More rows than the copies of a place: fewer come no further than that place.
        return await read_around(tables, at(60), 16), rotten

    (good, bad), rotten = run(scenario)
    assert {esn for esn, _ in rotten} <= bad
    assert {esn for esn, _ in copies} <= good | bad
    if len(rotten) == 1:
        # Nothing says where between its neighbours it stood, or that its place had another copy.
        ((esn, _),) = rotten
        below = max((e for e, _ in copies if e < esn), default=0)
        assert bad <= set(range(below + 1, esn + 1))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_of_a_file_of_rocksdb_what_can_be_read_is(tmp_path: Path, share: float) -> None:
    """Some bytes of a file are other ones: of 5,000 entries some dozens are not known."""
    count = 5_000

    async def fill(tables: RocksTables, host: Host) -> None:
        await put(tables, {(esn, 1) for esn in range(1, count + 1)})

    async def look(tables: RocksTables, host: Host) -> None:
        good, bad = await read_around(tables, at(count), 512)
        assert good | bad >= set(range(1, count + 1))
        assert not good & bad
        assert 1 <= len(bad) < 100

    play(tmp_path, fill)
    (file,) = (tmp_path / "partitions" / TABLE).glob("*.sst")
    data = bytearray(file.read_bytes())
    place = int(len(data) * share) + 100
    data[place : place + 4] = bytes(byte ^ 0xFF for byte in data[place : place + 4])
    file.write_bytes(data)
    play(tmp_path, look)
