"""The heads of many logs that are read together are those that a read of each log gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from made_blocks import Made, at, flush, packed, run, turns
from swaps import swap, swap_value

from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.logs_db import heads_read
from cordwood.storage.logs_db.heads_read import TOGETHER_MAX, batches
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.logs_db.tables import Rows, Tables

LOGS = range(1, 41)


async def read_alone(made: Made, log: int) -> list[StoredBlock]:
    found: list[StoredBlock] = []
    start = 1
    while start <= LSN_MAX:
        part = await made.engine.reader.read(
            log, start, LSN_MAX, lambda _: Part.HEAD, bytes_max=1 << 20, blocks_max=7
        )
        found += part.blocks
        start = part.next
    return found


def wires(blocks: Sequence[StoredBlock]) -> list[bytes]:
    return [bytes(each.wire) for each in blocks]


async def fill(made: Made, chance: random.Random) -> None:
    """Several partitions, blocks in several waves, and copies by recoveries that lost or won."""
    for number in range(1, 6):
        for log in chance.sample(LOGS, 25):
            for esn in sorted(chance.sample(range(1, 9), 3)):
                epoch, wave = chance.choice([1, 2]), chance.choice([1, 2, 3])
                seal = chance.choice([0, 0, 3]) if epoch == 2 else 0
                # Copies of one block have one append time, and lie in several partitions.
                place, time_us = at(esn, epoch), (esn + log) % 6 * 60_000_000
                made.store(
                    packed(place, log=log, wave=wave, seal=seal, time_us=time_us),
                    wave=wave, seal=seal,
                )  # fmt: skip
        await turns()
        await flush(made, now_us=number * 60_000_000)


@pytest.mark.parametrize("seed", range(12))
def test_they_are_what_a_read_of_each_log_gives(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        made = await Made.new(storage=StorageSettings(partition_age_s=50.0, recent_bytes=0))
        await fill(made, chance)
        engine = made.engine
        assert len(engine.logs.partitions) > 1
        for log in chance.sample(LOGS, 10):
            await engine.purge(log, 2, 3, at(chance.randrange(9), 2))
        for log in chance.sample(LOGS, 10):
            await engine.trim(log, at(chance.randrange(1, 6)), at(9, 3))
        await turns()
        cached, damaged = chance.sample(LOGS, 2)
        made.store(packed(at(20, 4), log=cached))
        number = engine.logs.partitions[0].number
        await engine.logs.note_damage(DamagedRange(number, damaged, at(1), at(2)), "it rotted")
        await turns()
        known = sorted(engine.cache.logs)
        groups = list(engine.reader.batches(known))
        assert [log for group in groups for log in group] == known
        heads: dict[int, list[StoredBlock]] = {}
        for group in groups:
            heads |= await engine.reader.heads(group)
        assert heads.keys() == set(known) - {cached, damaged}
        for log, blocks in heads.items():
            assert wires(blocks) == wires(await read_alone(made, log)), log
        assert sum(map(len, heads.values())) > 100

    run(scenario)


@pytest.mark.parametrize("bug", ["", "heads-of-before"])
def test_a_log_whose_blocks_leave_the_cache_meanwhile_is_read_by_itself(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """Otherwise its blocks would be neither in the scan, which came before the flush, nor in the
    cache, which is looked at after it."""

    async def scenario() -> None:
        made = await Made.new()
        made.store(packed(at(1), log=1), packed(at(1), log=2))
        await turns()
        scans = 0

        async def flushed_after(self: Tables, *of: object, **bounds: int) -> Rows:
            nonlocal scans
            scans += 1
            rows: Rows = await right(self, *of, **bounds)
            if scans == 1:
                await flush(made)
            return rows

        right: Any = type(made.engine.logs.tables).scan
        swap(monkeypatch, right, flushed_after)
        heads = await made.engine.reader.heads([1, 2])
        assert heads == ({1: [], 2: []} if bug else {})
        heads = await made.engine.reader.heads([1, 2])
        assert {log: len(blocks) for log, blocks in heads.items()} == {1: 1, 2: 1}

    with planted(find_bug(bug)) if bug else nullcontext():
        run(scenario)


def test_a_log_with_many_blocks_is_alone() -> None:
    sizes = {1: 5, 2: TOGETHER_MAX, 3: 10, 4: 0, 5: TOGETHER_MAX - 10, 6: 1, 7: 10**6, 8: 1}
    assert list(batches(sizes, sizes.__getitem__)) == [[1], [2], [3, 4, 5], [6], [7], [8]]
    many = list(batches(range(1000), lambda log: 0))
    assert max(map(len, many)) == TOGETHER_MAX
    assert [log for each in many for log in each] == list(range(1000))


def test_more_rows_than_counted_are_read_log_by_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        made = await Made.new()
        made.store(*(packed(at(esn), log=log) for log in (1, 2) for esn in range(1, 9)))
        await turns()
        await flush(made)
        assert len(await made.engine.reader.heads([1, 2])) == 2
        swap_value(monkeypatch, lambda: heads_read.ROWS_MAX, 15)
        assert await made.engine.reader.heads([1, 2]) == {}

    run(scenario)
