"""Records read many at a time, against the plain loop that reads them one by one."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from wal_memory_disk import MemoryDisk

from cordwood.layout.wal_block import (
    WAL_BODY_BYTES_MAX,
    WAL_RECORD_HEADER_BYTES,
    WalKind,
    WalRecord,
    pack_wal_record,
    unpack_wal_record,
)
from cordwood.layout.wal_run import RecordRun, RunReader
from cordwood.nodes import NodeId
from cordwood.storage.wal import wal_recovery
from cordwood.storage.wal.delta_wal import Wal, WalLimits
from cordwood.storage.wal.wal_file import newest_header, read_slots
from cordwood.storage.wal.wal_recovery import records_of, start_scan

OWNER = NodeId(3)
PATH = "wal"
RING = 96 << 10
SALT = 77
LIMITS = WalLimits(block_bytes=12 << 10, window_bytes=8192, window_step_bytes=8192)


class Image:
    """A WAL's bytes as a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    async def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@functools.cache
def written(seed: int) -> bytes:
    """A WAL that went round its ring in several lives: lone records, runs, batches, holes."""

    async def live() -> bytes:
        disk, chance = MemoryDisk(), random.Random(seed)
        await Wal.format(disk, PATH, 8192 + RING, owner=OWNER, salt=seed)
        for _ in range(3):
            wal = await Wal.open(disk, PATH, owner=OWNER, limits=LIMITS)
            live = [offset async for offset, _ in wal.recover()]
            for _ in range(40):
                bodies = [
                    chance.randbytes(chance.choice((0, 7, 30, 90, 700)))
                    for _ in range(chance.choice((1, 20, 60)))
                ]
                if sum(map(len, bodies)) + 44 * len(bodies) > RING // 4:
                    continue
                while wal.used_bytes > RING // 2:
                    at = min(len(live) - 1, len(live) // 2)
                    await wal.trim(live[at])
                    del live[: at + 1]
                if chance.random() < 0.3:
                    offsets, done = wal.append_many(bodies)
                    live += offsets.tolist()
                else:
                    appended = [wal.append([body]) for body in bodies]
                    live += [offset for offset, _ in appended]
                    done = appended[-1][1]
                await done
            if chance.random() < 0.3:
                await wal.close()
            disk = disk.crash(chance)
        return bytes(disk.file.stable)

    return asyncio.run(live())


DAMAGE = st.lists(
    st.tuples(
        st.integers(8192, 8192 + RING - 1),
        st.sampled_from(("flip", "zero", "other lap", "nested")),
        st.integers(1, 600),
    ),
    max_size=5,
)


def damaged(image: bytes, damage: list[tuple[int, str, int]]) -> bytes:
    data = bytearray(image)
    for at, how, length in damage:
        if how == "flip":
            data[at] ^= 1 << length % 8
        elif how == "zero":
            data[at : at + length] = bytes(len(data[at : at + length]))
        else:
            source = 8192 + (at * 7 + length) % (RING - 700)
            if how == "other lap":
                at, source, length = at // 512 * 512, source // 512 * 512, 512
            data[at : at + length] = data[source : source + len(data[at : at + length])]
    return bytes(data)


async def scanned(image: bytes, *, in_runs: bool) -> tuple[list[Any], Any, int]:
    """All data records, the verdict, and how many came in runs."""
    file = Image(image)
    header = await newest_header(file, PATH, await read_slots(file))
    scan = start_scan(header)
    items: list[Any] = []
    together = 0
    async for found in wal_recovery._scan(file, header, scan, lambda: None, in_runs=in_runs):
        for each in found:
            if isinstance(each, RecordRun):
                assert in_runs
                together += len(each)
                items += each
            elif (run := records_of(*each)) is not None:
                items += run
            else:
                items.append((each[0].offset, each[0].kind, each[1]))
    return items, scan.verdict(), together


@given(st.integers(0, 7), DAMAGE)
def test_runs_and_the_plain_loop_find_the_same(seed, damage):
    image = damaged(written(seed), damage)
    slow = asyncio.run(scanned(image, in_runs=False))
    fast = asyncio.run(scanned(image, in_runs=True))
    assert fast[:2] == slow[:2]


def test_most_of_it_came_in_runs():
    together = [asyncio.run(scanned(written(seed), in_runs=True)) for seed in range(8)]
    assert sum(each[2] for each in together) > 200
    assert any(items[0][0] > RING for items, _, _ in together if items), "none went round"


FIELDS = st.builds(
    WalRecord,
    kind=st.sampled_from(list(WalKind)),
    length=st.one_of(st.integers(0, 5000), st.integers(0, (1 << 32) - 1)),
    body_crc=st.integers(0, (1 << 32) - 1),
    offset=st.one_of(st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1)),
    durable=st.one_of(st.integers(0, 1 << 20), st.integers(0, (1 << 64) - 1)),
    incarnation=st.integers(0, (1 << 32) - 1),
    is_last=st.booleans(),
)


@given(st.lists(FIELDS, min_size=1, max_size=30), st.integers(0, (1 << 32) - 1), st.data())
def test_headers_read_as_columns_are_those_read_alone(records, salt, data):
    packed = bytearray(b"".join(pack_wal_record(record, salt) for record in records))
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    starts = list(range(0, len(packed), WAL_RECORD_HEADER_BYTES))
    alone = [unpack_wal_record(bytes(packed), at, salt) for at in starts]
    good = [each is not None and each.kind is WalKind.DATA for each in alone]
    found, count = RunReader(salt).headers(memoryview(packed), np.array(starts))
    assert count == (good.index(False) if False in good else len(good))
    for row, record in zip(found[:count], alone, strict=False):
        assert record is not None
        assert (row["length"], row["body_crc"], row["offset"], row["durable"]) == record[1:5]
        assert (row["incarnation"], bool(row["flags"])) == record[5:]


@pytest.mark.parametrize("flags", [2, 255])
def test_a_header_that_no_writer_makes_is_none(flags: int):
    packed = bytearray(pack_wal_record(WalRecord(WalKind.DATA, 9, 1, 80, 3, 1, False), SALT))
    packed[5] = flags
    packed[36:40] = crc32c(bytes(packed[:36]), SALT).to_bytes(4, "little")
    assert unpack_wal_record(bytes(packed), 0, SALT) is None
    assert RunReader(SALT).headers(memoryview(packed), np.array([0]))[1] == 0
    longest = WalRecord(WalKind.DATA, WAL_BODY_BYTES_MAX, 1, 80, 3, 1, False)
    assert RunReader(SALT).headers(memoryview(pack_wal_record(longest, SALT)), np.array([0]))[1]
