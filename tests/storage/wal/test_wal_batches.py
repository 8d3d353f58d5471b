"""Many records under one header: cut, found again, trimmed one by one, refused as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.errors import Malformed, RecordTooLarge
from cordwood.layout.wal_batch import batch_bytes, cut_batches, pack_batch, read_batch
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalFull, WalLimits

OWNER = NodeId(3)
PATH = "wal"
LIMITS = WalLimits(block_bytes=8192, window_bytes=8192, reserve_bytes=4096)


def run(scenario: Any) -> None:
    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def made(ring: int = 128 << 10) -> tuple[MemoryDisk, Wal]:
    disk = MemoryDisk()
    await Wal.format(disk, PATH, 8192 + ring, owner=OWNER)
    wal, found = await started(disk)
    assert found == []
    return disk, wal


async def started(disk: MemoryDisk) -> tuple[Wal, list[tuple[int, bytes]]]:
    wal = await Wal.open(disk, PATH, owner=OWNER, limits=LIMITS)
    return wal, [item async for item in wal.recover()]


@given(st.lists(st.integers(0, 300)), st.integers(10, 2000))
def test_cuts_follow_one_another_and_are_as_long_as_they_may_be(lengths, bytes_max):
    cuts = list(cut_batches(np.array(lengths, np.int64), bytes_max))
    assert [at for start, stop in cuts for at in range(start, stop)] == list(range(len(lengths)))
    sizes = [batch_bytes(stop - start, sum(lengths[start:stop])) for start, stop in cuts]
    for (start, stop), size in zip(cuts, sizes, strict=True):
        assert size <= bytes_max or stop == start + 1
        if stop < len(lengths):
            assert size + 4 + lengths[stop] > bytes_max


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(0, 1 << 40))
def test_a_batch_is_read_as_it_was_packed(bodies, offset):
    packed = b"".join(pack_batch(bodies, np.array(list(map(len, bodies)), np.int64)))
    assert len(packed) == batch_bytes(len(bodies), sum(map(len, bodies)))
    assert list(read_batch(packed, offset)) == [(offset + n, b) for n, b in enumerate(bodies)]
    assert list(read_batch(packed, offset).above(offset)) == [
        (offset + n, b) for n, b in enumerate(bodies) if n
    ]
    for wrong in (packed[:-1], packed + b"x", b"\0\0\0\0" + packed[4:], packed[:3]):
        with pytest.raises(Malformed):
            read_batch(wrong, offset)


@as_scenario(run)
async def test_batches_come_back_in_order_with_lone_records_between() -> None:
    disk, wal = await made()
    first, _ = wal.append([b"alone"])
    bodies = [b"%d" % n * (n % 50) for n in range(600)]
    offsets, done = wal.append_many(bodies)
    last, after = wal.append([b"after"])
    assert await done > offsets[-1]
    await after
    assert [first, *offsets, last] == sorted({first, *offsets.tolist(), last})
    _, found = await started(disk)
    kept = zip(offsets.tolist(), bodies, strict=True)
    assert found == [(first, b"alone"), *kept, (last, b"after")]


@pytest.mark.parametrize("at", [0, 1, 57, 98, 99])
@as_scenario(run)
async def test_a_trim_inside_a_batch_keeps_the_rest_of_it(*, at: int) -> None:
    disk, wal = await made()
    bodies = [b"%d" % n for n in range(100)]
    offsets, _ = wal.append_many(bodies)
    _, done = wal.append([b"after"])
    await done
    await wal.trim(int(offsets[at]))
    wal, found = await started(disk)
    assert [body for _, body in found] == [*bodies[at + 1 :], b"after"]
    assert wal.recovery is not None
    assert wal.recovery.damage == wal.recovery.holes == ()
    # As far again, after a start that has read of the batch what was left.
    if found[0][0] < found[-1][0]:
        await wal.trim(found[0][0])
        _, again = await started(disk)
        assert again == found[1:]


@as_scenario(run)
async def test_none_are_durable_at_once_and_one_too_large_refuses_all() -> None:
    _, wal = await made()
    offsets, done = wal.append_many([])
    assert (len(offsets), await done) == (0, wal.durable_offset)
    with pytest.raises(RecordTooLarge):
        wal.append_many([b"a", bytes(wal.record_bytes_max)])
    assert wal.used_bytes == 0


@as_scenario(run)
async def test_a_full_wal_takes_none_of_them() -> None:
    disk, wal = await made()
    kept, done = wal.append_many([b"x" * 100] * 500)
    used = wal.used_bytes
    with pytest.raises(WalFull):
        wal.append_many([b"y" * 100] * 800)
    assert wal.used_bytes == used
    more, done = wal.append_many([b"z" * 100] * 400)
    await done
    _, found = await started(disk)
    assert [offset for offset, _ in found] == [*kept, *more]


@as_scenario(run)
async def test_a_damaged_batch_is_damage_and_what_is_behind_it_comes_back() -> None:
    disk, wal = await made()
    offsets, done = wal.append_many([b"x" * 20] * 30)
    await done
    last, done = wal.append([b"after"])
    await done
    disk.file.stable[8192 + 400] ^= 1
    wal, found = await started(disk)
    assert found == [(last, b"after")]
    assert wal.recovery is not None
    ((start, stop),) = wal.recovery.damage
    assert start <= offsets[0] <= offsets[-1] < stop
