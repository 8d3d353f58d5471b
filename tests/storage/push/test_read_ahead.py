"""Batches read before a stream asks for them: what of one may be sent, how long it stays."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st
from made_blocks import LOG, OWNER, at, block, made_host, run
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.layout.logs_db import LogState
from cordwood.lsn import ESN_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.partition import BlockRun, Part
from cordwood.storage.push.read_ahead import KEPT_S, STREAMS_MAX, ReadAhead, cut

END = 60

layouts = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=8
)
"""Blocks one after the other: LSNs left out before it, its records, its bytes."""


def told(part: BlockRun) -> list[tuple[int, int]]:
    return [(each.header.first, each.header.last) for each in part.blocks]


@example([(1, 2, 1)], 1, 1, 2, True)
@given(layouts, st.integers(1, END), st.integers(1, 200), st.integers(1, END), st.booleans())
def test_a_batch_in_portions_is_what_reads_with_their_limits_bring(
    layout: list[tuple[int, int, int]], step: int, bytes_max: int, start: int, filtered: bool
) -> None:
    """One large read that is cut, beside a read for each portion."""

    async def scenario() -> None:
        settings = StorageSettings(recent_bytes=0)
        tables = memory_tables("logsdb", settings, made_host(MemoryDisk()))
        store, _ = await LogsStore.open(tables, settings, OWNER)
        blocks, esn = [], 1
        for gap, count, size in layout:
            esn += gap
            blocks.append(block(at(esn), bytes(size), count=count))
            esn += count
        await store.flush(blocks, {LOG: LogState()}, 1, 1)

        async def read(first: int, bound: int, most: int) -> BlockRun:
            return await store.read(
                LOG, first, bound, lambda last, seal, wave: True,
                (lambda b: Part.NOTHING if b.header.first % 3 == 0 else Part.WHOLE)
                if filtered else None,
                bytes_max=most, blocks_max=99,
            )  # fmt: skip

        rest: BlockRun | None = await read(at(start), at(END), 1 << 20)
        here, window = at(start), at(start)
        while rest is not None:
            now, rest = cut(rest, min(window, at(END)), bytes_max)
            asked = await read(here, min(window, at(END)), bytes_max)
            assert told(now) == told(asked)
            assert [bytes(each.body) for each in now.blocks] == [
                bytes(each.body) for each in asked.blocks
            ]
            # It may be told that nothing follows for longer, never that something does not. Where
            # what is passed over ends, the batch does not say: it is told up to the bound then.
            assert min(asked.next, min(window, at(END)) + 1) <= now.next
            assert told(await read(here, now.next - 1, 1 << 20)) == told(now)
            here = now.next
            window = max(window + step, here)
        assert here > at(END)

    run(scenario)


def damaged(*ranges: tuple[int, int], blocks: tuple[int, ...] = (), end: int = 100) -> BlockRun:
    """By sequence numbers of one epoch."""
    places = [(at(first), at(last)) for first, last in ranges]
    return BlockRun([block(at(each)) for each in blocks], at(end), 0, places)


def portion(run: BlockRun, bound: int) -> tuple[BlockRun, BlockRun | None]:
    return cut(run, at(bound), 1 << 20)


def shown(run: BlockRun | None) -> tuple[list[int], int, list[tuple[int, int]]]:
    """First of each block, where to go on, what is damaged."""
    assert run is not None
    firsts = [each.header.first & ESN_MAX for each in run.blocks]
    return firsts, run.next & ESN_MAX, [(f & ESN_MAX, e & ESN_MAX) for f, e in run.damaged]


def test_ranges_of_which_nothing_is_known_stay_in_their_places() -> None:
    now, rest = portion(damaged((3, 4), (9, 12), (20, 21), blocks=(1, 6, 15)), 10)
    assert shown(now) == ([1, 6], 11, [(3, 4), (9, 12)])
    assert shown(rest) == ([15], 100, [(20, 21)])


def test_nothing_is_told_up_to_what_comes_next() -> None:
    now, rest = portion(damaged((40, 41), blocks=(50,)), 10)
    assert shown(now) == ([], 40, [])
    assert shown(rest) == ([50], 100, [(40, 41)])
    now, rest = portion(damaged(), 10)
    assert shown(now) == ([], 100, [])
    assert rest is None


def test_of_what_is_left_out_nothing_is_told_behind_the_window() -> None:
    now, _ = portion(BlockRun([], at(100), 3, []), 10)
    assert shown(now) == ([], 11, [])


class TestPlaces:
    @as_scenario(run)
    async def test_there_are_few_and_a_stream_has_one(self) -> None:
        ahead: ReadAhead[int] = ReadAhead()
        assert [ahead.ask(each) for each in range(STREAMS_MAX + 1)] == [
            *[True] * STREAMS_MAX, False,
        ]  # fmt: skip
        assert not ahead.ask(0)
        assert ahead.is_under_way(0)
        ahead.drop(1)
        assert ahead.ask(STREAMS_MAX)
        assert [ahead.next_asked() for _ in range(STREAMS_MAX + 1)] == [0, 2, 3, None]

    @as_scenario(run)
    async def test_a_batch_is_given_where_the_stream_stands_and_once(self) -> None:
        ahead: ReadAhead[str] = ReadAhead()
        for stream in ("a", "b"):
            assert ahead.ask(stream)
            ahead.keep(stream, at(1), damaged(blocks=(1, 5)))
            assert not ahead.is_under_way(stream)
        assert ahead.take("b", at(2), at(9), 1 << 20) is None
        assert shown(ahead.take("a", at(1), at(4), 1 << 20)) == ([1], 5, [])
        assert shown(ahead.take("a", at(5), at(200), 1 << 20)) == ([5], 100, [])
        assert ahead.take("a", at(100), at(200), 1 << 20) is None
        assert len(ahead) == 0

    @as_scenario(run)
    async def test_what_nobody_takes_goes_in_time_whatever_was_taken_of_it(self) -> None:
        ahead: ReadAhead[str] = ReadAhead()
        assert ahead.ask("a")
        ahead.keep("a", at(1), damaged(blocks=(1, 5)))
        await asyncio.sleep(0.7 * KEPT_S)
        assert ahead.take("a", at(1), at(1), 1 << 20) is not None
        assert len(ahead) == 1
        await asyncio.sleep(0.5 * KEPT_S)
        assert len(ahead) == 0

    @as_scenario(run)
    async def test_what_comes_for_one_who_left_is_not_kept(self) -> None:
        ahead: ReadAhead[str] = ReadAhead()
        assert ahead.ask("a")
        ahead.drop("a")
        ahead.keep("a", at(1), damaged(blocks=(1,)))
        assert len(ahead) == 0
        assert ahead.next_asked() is None
