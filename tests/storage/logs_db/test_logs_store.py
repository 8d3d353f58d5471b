"""LogsDB against a plain dictionary, over the twin of its tables; and what a drop leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from made_blocks import OWNER, at, block, made_host, run
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.block import BlockKind
from cordwood.errors import NotOurCluster
from cordwood.layout.logs_db import LogState, body_key
from cordwood.layout.waves import AmendedBlock, StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.loop import SimLoop
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.logs_db import logs_read
from cordwood.storage.logs_db.index_search import search
from cordwood.storage.logs_db.logs_store import OPEN_PARTITIONS, LogsStore
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.logs_db.tables import TablesFailed

Result = TypeVar("Result")

SMALL = StorageSettings(partition_bytes=4096, partition_files=2, partition_age_s=60)
LOGS = (1, 2, 3)
END = at(1000)


async def opened(disk: MemoryDisk, node: NodeId = OWNER) -> tuple[LogsStore, dict[int, LogState]]:
    return await LogsStore.open(memory_tables("logsdb", SMALL, made_host(disk)), SMALL, node)


def every(last: int, seal_epoch: int, wave: int) -> bool:
    return True


async def read_all(
    store: LogsStore,
    log: int,
    start: int = 0,
    bound: int = END,
    expected: Sequence[StoredBlock] = (),
    **limits: int,
) -> list[StoredBlock]:
    """All runs from `start` to `bound`, each of at most so much; none says that it has come
    past an LSN of what is `expected` without having given it."""
    found: list[StoredBlock] = []
    while start <= bound:
        run = await store.read(
            log, start, bound, every, **{"bytes_max": 1 << 20, "blocks_max": 100, **limits}
        )
        assert run.next > start
        assert all(start <= each.header.last for each in run.blocks)
        found += run.blocks
        given = {bytes(each.wire) for each in found}
        assert all(bytes(b.wire) in given for b in expected if b.header.first < run.next)
        start = run.next
    return found


def wires(blocks: list[StoredBlock]) -> list[bytes]:
    return [bytes(each.wire) + bytes(each.body) for each in blocks]


class KilledError(Exception):
    """The process ends at this write."""


class DeadlyDisk(MemoryDisk):
    """Its process is killed before or after one of the next writes, if it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = -1
        self.is_written = False

    def arm(self, writes: int, *, is_written: bool) -> None:
        self.writes_left, self.is_written = writes, is_written

    async def write_file(self, path: str, data: bytes) -> None:
        self.writes_left -= self.writes_left > 0
        if self.writes_left == 0:
            if self.is_written:
                await super().write_file(path, data)
            raise KilledError
        await super().write_file(path, data)


class LogsMachine(stateful.RuleBasedStateMachine):
    """Flushes, reads, searches by time, trims, cuts and restarts, and kills in the middle of each
    change; the dictionary holds a block for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(logs_read, "SCAN_ROWS_MIN", 2)
        self.runner = asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1)))
        self.disk = DeadlyDisk()
        self.times = dict.fromkeys(LOGS, 0)
        self.model: dict[int, dict[tuple[int, int, int], StoredBlock]] = {n: {} for n in LOGS}
        self.next = dict.fromkeys(LOGS, 1)
        self.trims = dict.fromkeys(LOGS, 0)
        self.offset = 0
        self.now_us = 0
        self.restart()

    def teardown(self) -> None:
        self.runner.close()
        self.patch.undo()

    def wait(self, work: Awaitable[Result]) -> Result:
        async def main() -> Result:
            return await work

        return self.runner.run(main())

    @stateful.rule()
    def restart(self) -> None:
        before = self.__dict__.get("store")
        self.store, states = self.wait(opened(self.disk))
        if before is not None:
            assert self.store.offset == before.offset
            assert self.store.logs == before.logs
            assert {log: state.last for log, state in states.items() if state.last} == {
                log: held.last for log, held in self.store.logs.items()
            }

    @stateful.rule(
        stored=st.lists(
            st.tuples(
                st.sampled_from(LOGS), st.integers(0, 2), st.integers(1, 3),
                st.sampled_from([0, 1, 10, 700, 3000]), st.integers(-20, 30), st.integers(1, 3),
            ),
            max_size=8,
        )
    )  # fmt: skip
    def flush(self, stored: list[tuple[int, int, int, int, int, int]]) -> None:
        self.take(self.made(stored))

    def made(self, stored: list[tuple[int, int, int, int, int, int]]) -> list[StoredBlock]:
        """New blocks; logs' clocks differ, and along a log no time falls."""
        blocks: list[StoredBlock] = []
        for log, gap, count, size, later_s, wave in stored:
            first = at(self.next[log] + gap)
            self.next[log] += gap + count
            self.now_us += 1_000_000
            time_us = max(self.times[log], self.now_us + later_s * 1_000_000)
            self.times[log] = time_us
            blocks.append(self.put(log, first, count, bytes(size), wave, time_us))
        return blocks

    @stateful.rule(
        stored=st.lists(
            st.tuples(
                st.sampled_from(LOGS), st.integers(0, 2), st.integers(1, 3),
                st.sampled_from([10, 700, 3000]), st.integers(-20, 30), st.integers(1, 3),
            ),
            min_size=2, max_size=6,
        ),
        writes=st.integers(1, 4), is_written=st.booleans(),
    )  # fmt: skip
    def killed_while_it_flushes(
        self, stored: list[tuple[int, int, int, int, int, int]], writes: int, is_written: bool
    ) -> None:
        """What came to no end the WAL has, and is flushed again: nothing is there twice."""
        blocks, before = self.made(stored), self.store.offset
        if self.is_killed(self.flushed(blocks), writes, is_written=is_written):
            assert self.store.offset in (before, self.offset)
            if self.store.offset == before:
                self.wait(self.flushed(blocks, again=True))
        assert self.store.offset == self.offset

    def is_killed(self, work: Awaitable[object], writes: int, *, is_written: bool) -> bool:
        """Do something, and be killed at one of its writes, if it has so many; then start."""
        self.disk.arm(writes, is_written=is_written)
        try:
            self.wait(work)
        except KilledError:
            self.disk.arm(-1, is_written=False)
            self.store, _ = self.wait(opened(self.disk))
            return True
        self.disk.arm(-1, is_written=False)
        return False

    @stateful.rule(log=st.sampled_from(LOGS), pick=st.integers(0, 50), wave=st.integers(1, 5))
    def store_again(self, log: int, pick: int, wave: int) -> None:
        """Another copy of what is there, equal in all but its wave: the highest counts."""
        held = list(self.model[log].values())
        if held:
            old = held[pick % len(held)]
            header, body = old.header, bytes(old.body)
            if header.kind is BlockKind.DATA:
                time_us = header.append_time_us
                self.take([self.put(log, header.first, header.count, body, wave, time_us)])

    @stateful.rule(
        log=st.sampled_from(LOGS), pick=st.integers(0, 50), wave=st.integers(1, 5),
        is_new=st.booleans(), writes=st.integers(1, 9), is_written=st.booleans(),
    )  # fmt: skip
    def amend(
        self, log: int, pick: int, wave: int, is_new: bool, writes: int, is_written: bool
    ) -> None:
        """Another envelope for what is there, or comes in the same flush; no body is written
        for it, whatever else is, and a kill may come between."""
        new = self.made([(log, 0, 2, 700, 0, 1)] if is_new else [])
        held = [each for each in self.model[log].values() if each.header.kind is BlockKind.DATA]
        held = [each for each in held if each.header.last > self.trims[log]]
        if not held:
            return
        old = new[0] if new else held[pick % len(held)]
        before, offset = self.wait(self.bodies(log, old)), self.store.offset
        amended = self.put(
            log, old.header.first, old.header.count, bytes(old.body), wave,
            old.header.append_time_us, AmendedBlock,
        )  # fmt: skip
        blocks = [*new, amended]
        if self.is_killed(self.flushed(blocks), writes, is_written=is_written):
            if self.store.offset == offset:
                self.wait(self.flushed(blocks, again=True))
        else:
            has_body = bool(old.header.stored_bytes)
            assert self.wait(self.bodies(log, old)) == (int(has_body) if is_new else before)
        assert self.store.offset == self.offset

    async def bodies(self, log: int, of: StoredBlock) -> int:
        """In how many partitions a block's body is."""
        key, found = body_key(log, of.header.last, of.header.first), 0
        for partition in self.store.partitions:
            (value,) = await self.store.tables.get(partition.table, [key])
            found += value is not None
        return found

    @stateful.rule(log=st.sampled_from(LOGS), seal=st.integers(2, 4))
    def plug(self, log: int, seal: int) -> None:
        """A hole of a recovery, where nothing is."""
        first = at(self.next[log])
        self.next[log] += 2
        hole: Any = {"kind": BlockKind.HOLE, "count": 2, "seal": seal, "log": log}
        made = block(first, **hole)
        self.model[log][(first + 1, first, BlockKind.HOLE)] = made
        self.take([made])

    def put(
        self, log: int, first: int, count: int, body: bytes, wave: int, time_us: int,
        kind: type[StoredBlock] = StoredBlock,
    ) -> StoredBlock:  # fmt: skip
        whole = block(first, body, log=log, count=count, wave=wave, time_us=time_us)
        made = kind(whole.header, whole.envelope, whole.wire, whole.body)
        place = (made.header.last, first, int(BlockKind.DATA))
        held = self.model[log].get(place)
        if held is None or made.envelope.precedence >= held.envelope.precedence:
            self.model[log][place] = made
        return made

    def take(self, blocks: list[StoredBlock]) -> None:
        self.wait(self.flushed(blocks))
        assert self.store.offset == self.offset

    async def flushed(self, blocks: list[StoredBlock], *, again: bool = False) -> None:
        self.offset += 0 if again else 10
        states = {each.header.log: LogState(released=each.header.last) for each in blocks}
        await self.store.flush(blocks, states, self.offset, self.now_us)

    @stateful.rule(
        log=st.sampled_from(LOGS), start=st.integers(0, 40), span=st.integers(0, 40),
        bytes_max=st.sampled_from([1, 800, 5000, 1 << 20]), blocks_max=st.integers(1, 6),
    )  # fmt: skip
    def read(self, log: int, start: int, span: int, bytes_max: int, blocks_max: int) -> None:
        low = max(at(start), self.trims[log] + 1)
        bound = low + span
        expected = [
            each
            for (last, first, _), each in sorted(self.model[log].items())
            if last >= low and first <= bound
        ]
        found = self.wait(
            read_all(
                self.store, log, low, bound, expected, bytes_max=bytes_max, blocks_max=blocks_max
            )
        )
        assert wires(found) == wires(expected)

    @stateful.rule(log=st.sampled_from(LOGS), esn=st.integers(1, 40))
    def trim(self, log: int, esn: int) -> None:
        self.trims[log] = max(self.trims[log], at(esn))
        before = {each.number for each in self.store.partitions}
        dropped = self.wait(self.store.drop_trimmed(lambda each: self.trims[each]))
        assert {each.number for each in (*self.store.partitions, *dropped)} == before

    @stateful.rule(
        log=st.sampled_from(LOGS), esn=st.integers(1, 40), looks=st.integers(1, 4),
        writes=st.sampled_from([1, 2, 3, 4, 99]), is_written=st.booleans(),
    )  # fmt: skip
    def cut(self, log: int, esn: int, looks: int, writes: int, is_written: bool) -> None:
        """Partitions of which most is trimmed are written anew, and a kill may come between."""
        settled = [each.number for each in self.store.partitions[:-OPEN_PARTITIONS]]
        parts = self.wait(self.store.directory(log))
        lasts = [entry.last for partition, entry in parts if partition.number in settled]
        if lasts:
            self.trims[log] = max(self.trims[log], lasts[esn % len(lasts)])

        async def look() -> None:
            for _ in range(looks):
                await self.store.cut_trimmed(lambda each: self.trims[each])

        self.is_killed(look(), writes, is_written=is_written)

    def trim_some(self, log: int, esn: int) -> None:
        """Up to there, and not all: what is left is searched."""
        self.trims[log] = max(self.trims[log], at(min(esn, self.next[log] * 2 // 3)))

    @stateful.rule(
        log=st.sampled_from(LOGS), esn=st.integers(1, 40), writes=st.integers(1, 3),
        is_written=st.booleans(),
    )  # fmt: skip
    def killed_while_it_drops(self, log: int, esn: int, writes: int, is_written: bool) -> None:
        self.trim_some(log, esn)
        work = self.store.drop_trimmed(lambda each: self.trims[each])
        self.is_killed(work, writes, is_written=is_written)

    @stateful.rule(log=st.sampled_from(LOGS), pick=st.integers(0, 50), off_us=st.integers(-1, 1))
    def find_time(self, log: int, pick: int, off_us: int) -> None:
        """At a block's time and beside it: what is older, and what is not, as the dictionary."""
        held = [
            each.header
            for (last, _, kind), each in sorted(self.model[log].items())
            if kind == BlockKind.DATA and last > self.trims[log]
        ]
        times = [header.append_time_us for header in held] or [0]
        time_us = times[pick % len(times)] + off_us
        older, newer = self.wait(self.searched(log, time_us))
        expected_older = max((h.last for h in held if h.append_time_us < time_us), default=0)
        expected_newer = min(
            (h.first for h in held if h.append_time_us >= time_us), default=LSN_MAX + 1
        )
        if newer <= self.trims[log]:
            # Something trimmed, and still there, is as new: all that is kept is.
            assert expected_older == 0
        else:
            assert newer == expected_newer
        assert (older if older > self.trims[log] else 0) == expected_older

    async def searched(self, log: int, time_us: int) -> tuple[int, int]:
        older, newer = 0, LSN_MAX + 1
        for partition, entry in await self.store.directory(log):
            before, after = await search(
                self.store.tables, partition, log, entry, every,
                lambda header: header.append_time_us < time_us,
            )  # fmt: skip
            older, newer = max(older, before), min(newer, after)
        return older, newer


class TestLogsStore(LogsMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.slow
class TestMoreOfLogsStore(LogsMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@as_scenario(run)
async def test_partitions_go_oldest_first_once_all_their_logs_are_trimmed() -> None:
    disk = MemoryDisk()
    store, _ = await opened(disk)
    for turn in range(6):
        blocks = [block(at(turn + 1), bytes(3000), log=log, time_us=turn) for log in LOGS]
        states = {log: LogState(released=at(turn + 1)) for log in LOGS}
        await store.flush(blocks, states, turn, turn)
    assert len(store.partitions) > 3
    held = store.logs[1].blocks
    trims = {1: at(6), 2: at(6), 3: at(0)}
    assert await store.drop_trimmed(lambda log: trims[log]) == [], "log 3 is not trimmed"
    trims[3] = at(3)
    dropped = await store.drop_trimmed(lambda log: trims[log])
    assert dropped
    assert all(each.number < store.partitions[0].number for each in dropped)
    assert [each.header.last for each in await read_all(store, 3, at(4))] == [
        at(4), at(5), at(6),
    ]  # fmt: skip
    assert store.logs[1].blocks < held
    again, states = await opened(disk)
    assert again.logs == store.logs
    assert [each.number for each in again.partitions] == [each.number for each in store.partitions]
    trims = dict.fromkeys(LOGS, at(6))
    await again.drop_trimmed(lambda log: trims[log])
    assert len(again.partitions) == 1, "the newest stays"


@pytest.mark.parametrize("is_written", [False, True])
def test_a_kill_at_any_write_of_a_cut_leaves_all_that_is_not_trimmed(*, is_written: bool) -> None:
    trims = {1: at(6), 2: 0}

    async def filled(disk: DeadlyDisk) -> LogsStore:
        store, _ = await opened(disk)
        for turn in range(8):
            blocks = [
                block(at(turn + 1), bytes(size), log=log, time_us=turn)
                for log, size in ((1, 3000), (2, 100))
            ]
            states = {each.header.log: LogState(released=each.header.last) for each in blocks}
            await store.flush(blocks, states, turn, turn)
        return store

    async def cut_all(store: LogsStore) -> int:
        cuts = [await store.cut_trimmed(lambda log: trims[log]) for _ in store.partitions]
        return len([each for each in cuts if each is not None])

    async def killed_at(writes: int) -> bool:
        disk = DeadlyDisk()
        store = await filled(disk)
        disk.arm(writes, is_written=is_written)
        try:
            assert await cut_all(store) > 1
        except KilledError:
            disk.arm(-1, is_written=False)
            store, _ = await opened(disk)
            await cut_all(store)
            is_killed = True
        else:
            is_killed = False
        lasts = [each.header.last for each in await read_all(store, 2)]
        assert lasts == [at(n) for n in range(1, 9)]
        assert [each.header.last for each in await read_all(store, 1, at(7))] == [at(7), at(8)]
        return is_killed

    async def scenario() -> None:
        writes = 1
        while await killed_at(writes):
            writes += 1
        assert writes > 4, "each cut writes twice or more"

    run(scenario)


@as_scenario(run)
async def test_another_nodes_tables_are_refused() -> None:
    disk = MemoryDisk()
    await opened(disk)
    with pytest.raises(NotOurCluster, match=rf"node {OWNER}'s, not node 9's"):
        await opened(disk, NodeId(9))


@as_scenario(run)
async def test_a_read_whose_partition_is_dropped_under_it_goes_on_with_the_rest(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(MemoryDisk())
    for turn in range(6):
        made = block(at(turn + 1), bytes(5000), log=1, time_us=turn)
        await store.flush([made], {1: LogState()}, turn, turn)
    reading = asyncio.ensure_future(store.read(1, 0, END, every, bytes_max=1 << 20, blocks_max=99))
    await asyncio.sleep(0.0001)
    await store.drop_trimmed(lambda log: at(4))
    found = (await reading).blocks
    assert [each.header.last for each in found][-2:] == [at(5), at(6)]


@as_scenario(run)
async def test_bodies_that_nobody_wants_are_not_read(*, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = await opened(MemoryDisk())
    blocks = [block(at(n), b"%d" % n, log=1) for n in range(1, 31)]
    await store.flush(blocks, {1: LogState()}, 1, 1)
    asked: list[int] = []
    get = store._tables.get

    async def noting(table: str, keys: Any) -> Any:
        asked.append(len(keys))
        return await get(table, keys)

    monkeypatch.setattr(store._tables, "get", noting)
    parts = {0: Part.WHOLE, 1: Part.NOTHING, 2: Part.HEAD}
    found = await store.read(
        1, 0, END, every, lambda b: parts[b.header.first % 3], bytes_max=1 << 20, blocks_max=99
    )
    assert [bytes(each.body) for each in found.blocks] == [
        bytes(each.body) if parts[each.header.first % 3] is Part.WHOLE else b""
        for each in blocks
        if parts[each.header.first % 3]
    ]
    assert found.passed == 30 - len(found.blocks) == 10
    assert sum(asked) == 10


@as_scenario(run)
async def test_a_flush_that_failed_is_taken_again(*, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = await opened(MemoryDisk())
    made = block(at(1), b"value", log=1)
    write = store._tables.write

    async def failing(table: str, rows: Any) -> None:
        raise TablesFailed("not now")

    monkeypatch.setattr(store._tables, "write", failing)
    with pytest.raises(TablesFailed):
        await store.flush([made], {1: LogState()}, 5, 1)
    assert store.offset == -1
    monkeypatch.setattr(store._tables, "write", write)
    await store.flush([made], {1: LogState()}, 5, 1)
    assert wires(await read_all(store, 1)) == wires([made])


@as_scenario(run)
async def test_a_full_partition_that_a_log_keeps_does_not_make_each_flush_begin_another() -> None:
    """A log that is trimmed as it goes, beside one whose old records stay."""
    store, _ = await opened(MemoryDisk())
    made: list[str] = []
    create = store.tables.create

    async def counting(table: str) -> None:
        made.append(table)
        await create(table)

    store.tables.create = counting  # type: ignore[method-assign]
    for turn in range(2):
        kept = block(at(turn + 1), bytes(3000), log=2, time_us=turn)
        await store.flush([kept], {2: LogState()}, turn, turn)
    before, minute_us = len(made), 60_000_000
    for turn in range(2, 22):
        now_us = turn * minute_us // 4
        blocks = [block(at(turn), b"small", log=1, time_us=now_us)]
        await store.flush(blocks, {1: LogState(append_time_us=now_us)}, turn, now_us)
        await store.drop_trimmed({1: at(turn), 2: 0}.__getitem__, now_us)
    # One for each two files, or for each minute, whichever comes first.
    assert len(made) - before <= 11
    await store.flush([], {1: LogState()}, 30, 30 * minute_us)
    assert len(made) - before <= 11, "a flush without blocks needs no partition"
