"""Retention on a whole cluster: trim points by time and by size, and space that comes back."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.errors import UnknownLog
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import EVENT_LOG, make_lsn
from cordwood.metadata.log_entries import id_key
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.memory import MemoryMetadata
from cordwood.node import Node
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.space.retention import Retention

LOG = 1
STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)


async def write(store, log: str, seconds: int, value: bytes = bytes(1000)) -> None:
    for _ in range(seconds):
        await store.append(log, value)
        await asyncio.sleep(1)


async def values(store, log: str) -> tuple[int, list[GapKind]]:
    """How many records are left, and the gaps before them."""
    found = await read_all(store, log)
    gaps = [item.kind for item in found if isinstance(item, Gap)]
    return sum(isinstance(item, Record) for item in found), gaps


class TestByTime:
    @as_scenario(simulate, nodes=3, storage=STORAGE)
    async def test_what_is_too_old_goes_and_its_space_comes_back(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=LogAttributes(backlog_s=10))
            await write(store, "log", 40)
            left, gaps = await values(store, "log")
            assert 10 <= left <= 20
            assert gaps[0] is GapKind.TRIM
            for node in cluster.running.values():
                assert 3 <= len(node.engine.logs.partitions) <= 9
                assert node.engine.logs.drops >= 5
                assert node.engine.logs.stored_bytes < 25_000
            # A log that nobody appends to any more loses all it has, the newest partition too.
            await asyncio.sleep(20)
            assert (await values(store, "log"))[0] == 0
            for node in cluster.running.values():
                assert node.engine.logs.stored_bytes == 0
            assert await store.append("log", b"again") == (await store.tail("log"))

    @as_scenario(simulate, nodes=3, storage=STORAGE)
    async def test_a_log_whose_entry_cannot_be_read_keeps_its_records_and_no_others(
        self, cluster: ClusterAtHand
    ) -> None:
        """A newer version wrote it. Nodes trimmed no log any more, until their disks were full."""
        async with cluster.client() as store:
            short = LogAttributes(backlog_s=5)
            newer = (await store.create_log("newer", attributes=short)).log_id
            await store.create_log("log", attributes=short)
            logs = [await store.open_log(name) for name in ("newer", "log")]
            for log in logs:
                await log.append_nowait(b"their sequencers begin")
            found = await cluster.metadata.get(id_key(newer))
            assert found is not None
            unknown = found.value.replace(b'"attributes":{', b'"attributes":{"x":1,')
            assert await cluster.metadata.compare_and_set(id_key(newer), unknown, found.version)
            await store.log_tree.set_attributes("log", LogAttributes(backlog_s=6))
            for _ in range(30):
                for log in logs:
                    await log.append_nowait(bytes(1000))
                await asyncio.sleep(1)
            for node in cluster.running.values():
                assert node.engine.trim_of(newer) == 0
                assert node.engine.trim_of(newer + 1) > make_lsn(1, 10)

    @as_scenario(simulate, nodes=3, storage=STORAGE)
    async def test_a_log_that_keeps_everything_has_the_partitions_cut(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("short", attributes=LogAttributes(backlog_s=5))
            await store.create_log("long")
            for _ in range(30):
                await store.append("short", bytes(1000))
                await store.append("long", b"for ever")
                await asyncio.sleep(1)
            await asyncio.sleep(30)
            assert (await values(store, "long"))[0] == 30
            for node in cluster.running.values():
                assert len(node.engine.logs.partitions) > 5, "they all hold some of it"
                assert node.engine.logs.stored_bytes < 12_000, "but what was trimmed is gone"

    @as_scenario(simulate, nodes=3, storage=STORAGE)
    async def test_attributes_that_change_take_effect(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await write(store, "log", 20)
            assert (await values(store, "log"))[0] == 20
            await store.log_tree.set_attributes("/", LogAttributes(backlog_s=5))
            await asyncio.sleep(5)
            assert (await values(store, "log"))[0] < 10


class Killed(Exception):
    """The process ends here."""


async def killed(self: LogTree) -> None:
    raise Killed


async def untold(change: Awaitable[object]) -> None:
    """A change of a process that is killed before it tells of it."""
    with pytest.MonkeyPatch.context() as patched:
        swap(patched, LogTree.note_change, killed)
        with pytest.raises(Killed):
            await change


class TestChangesThatNobodyTold:
    """A change is written first and told then. A process that is killed in between tells nobody,
    and who looks finds the change done."""

    @pytest.mark.slow
    @pytest.mark.parametrize("is_planted", [False, True])
    def test_a_log_that_is_to_be_kept_longer_is_kept(self, *, is_planted: bool) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            tree = LogTree(cluster.metadata)
            async with cluster.client() as store:
                await store.create_log("log", attributes=LogAttributes(backlog_s=400))
                await write(store, "log", 20)
                await untold(tree.set_attributes("log", LogAttributes(backlog_s=86_400)))
                await asyncio.sleep(800)
                left, _ = await values(store, "log")
                assert left == (0 if is_planted else 20)

        with planted(find_bug("believes-the-count")) if is_planted else nullcontext():
            simulate(scenario, nodes=3, storage=STORAGE)

    @pytest.mark.slow
    @as_scenario(
        simulate,
        nodes=3,
        storage=StorageSettings(
            flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
        ),
    )
    async def test_records_of_a_deleted_log_go(self, cluster: ClusterAtHand) -> None:
        tree = LogTree(cluster.metadata)
        async with cluster.client() as store:
            await write(store, "log", 3)
            await asyncio.sleep(2)
            await untold(tree.delete("log"))
            with pytest.raises(UnknownLog):
                await store.log_tree.delete("log")
            await asyncio.sleep(400)
            assert all(node.engine.cache.log(LOG).trim for node in cluster.running.values())


class TestBySize:
    @as_scenario(simulate, nodes=3, storage=STORAGE)
    async def test_the_newest_bytes_stay(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=LogAttributes(backlog_bytes=10_000))
            await write(store, "log", 40)
            left, gaps = await values(store, "log")
            assert 9 <= left <= 20
            assert gaps[0] is GapKind.TRIM


class TestBySizeOverNodes:
    """Copysets are sticky: of five nodes, three hold all of a slow log."""

    BOUND = 60_000

    async def _keep(self, store, **attributes) -> None:
        asks = LogAttributes(backlog_bytes=self.BOUND, **attributes)
        await store.create_log("log", attributes=asks)

    @as_scenario(simulate, nodes=5, copies=3, racks=2, storage=STORAGE)
    async def test_a_log_that_is_below_its_bound_loses_nothing(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await self._keep(store)
            await write(store, "log", 50)
            await asyncio.sleep(10)
            assert (await values(store, "log"))[0] == 50

    @pytest.mark.slow
    @as_scenario(simulate, nodes=5, copies=3, racks=2, storage=STORAGE)
    async def test_nor_where_its_nodeset_grows(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await self._keep(store, nodeset_size=3)
            await write(store, "log", 50)
            await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
            await write(store, "log", 5)
            await asyncio.sleep(10)
            assert (await values(store, "log"))[0] == 55

    @pytest.mark.parametrize(
        ("down", "most"), [(0, 75), pytest.param(1, 130, marks=pytest.mark.slow)]
    )
    @as_scenario(simulate, nodes=5, copies=3, racks=2, storage=STORAGE)
    async def test_what_is_over_the_bound_goes_and_the_bound_stays(
        self, cluster: ClusterAtHand, *, down: int, most: int
    ) -> None:
        """Bodies of 1,000 bytes and a few; partitions of two seconds. A node that is away makes
        blocks count for less, and so more of them stay."""
        async with cluster.client() as store:
            await self._keep(store)
            await write(store, "log", 150)
            if down:
                cluster.kill(5)
            await write(store, "log", 150)
            left, gaps = await values(store, "log")
            assert 60 <= left <= most
            assert gaps[0] is GapKind.TRIM
            for node in cluster.running.values():
                assert node.engine.logs.stored_bytes <= (most + 10) * 1200


class TestDeleted:
    def test_nobody_is_asked_of_logs_that_are_gone_for_long(self, monkeypatch: pytest.MonkeyPatch):
        """Each change of the tree asked for each log that had ever been deleted, one by one."""
        asked: list[int] = []
        by_id = LogTree.by_id

        async def counted(tree: LogTree, log: int):
            asked.append(log)
            return await by_id(tree, log)

        swap(monkeypatch, LogTree.by_id, counted)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                for number in range(9):
                    await write(store, f"log-{number}", 1)
                for number in range(8):
                    await store.log_tree.delete(f"log-{number}")
                await asyncio.sleep(40)
                for node in cluster.running.values():
                    logs = node.engine.cache.logs
                    assert sum(node.engine.trim_of(log) > 0 for log in logs) == 8
                asked.clear()
                await store.log_tree.delete("log-8")
                await asyncio.sleep(40)
                assert {*asked} == {9}
                assert all(node.engine.trim_of(9) for node in cluster.running.values())

        simulate(
            scenario,
            nodes=3,
            storage=StorageSettings(
                flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
            ),
        )

    def test_the_event_log_needs_no_question_and_stays(self, monkeypatch: pytest.MonkeyPatch):
        """The list of logs has never named it, so each change of the tree asked for it again."""
        asked: list[int] = []
        passes: list[bool] = []
        is_in_pass = contextvars.ContextVar("is_in_pass", default=False)
        by_id, event_log, look = LogTree.by_id, LogTree.event_log, Retention.look

        async def counted(tree: LogTree, log: int):
            if is_in_pass.get():
                asked.append(log)
            return await by_id(tree, log)

        async def counted_event_log(tree: LogTree):
            if is_in_pass.get():
                asked.append(EVENT_LOG)
            return await event_log(tree)

        async def noted(retention: Retention):
            token = is_in_pass.set(True)
            try:
                await look(retention)
                passes.append(True)
            finally:
                is_in_pass.reset(token)

        swap(monkeypatch, LogTree.by_id, counted)
        swap(monkeypatch, LogTree.event_log, counted_event_log)
        swap(monkeypatch, Retention.look, noted)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await until(lambda: all(holds(node) for node in cluster.running.values()))
                await store.log_tree.set_attributes("/", LogAttributes(backlog_s=5))
                await write(store, "log", 1)
                cluster.kill(5)  # and so the event log has records
                await asyncio.sleep(40)
                await store.log_tree.delete("log")
                passes.clear()
                await asyncio.sleep(40)
                assert len(passes) > 4 * 30, "retention looked"
                assert {*asked} == {1}
                kept = [node.engine for node in cluster.running.values()]
                assert not any(engine.trim_of(EVENT_LOG) for engine in kept)
                assert any(engine.logs.last(EVENT_LOG) for engine in kept)

        def holds(node: Node) -> bool:
            return EVENT_LOG in node.engine.cache.logs

        simulate(
            scenario,
            nodes=5,
            rebuild_after_s=5.0,
            replicated_events=True,
            storage=StorageSettings(
                flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
            ),
        )

    @as_scenario(
        simulate,
        nodes=3,
        storage=StorageSettings(
            flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
        ),
    )
    async def test_renames_that_cross_give_the_log_its_name_back(
        self, cluster: ClusterAtHand
    ) -> None:
        """The rename that lost took the name away last. No name led to the log then, neither by its
        name nor by its number, and a day later its records were gone."""
        near = LogTree(cluster.metadata)

        class Between(MemoryMetadata):
            async def compare_and_set(self, key, value, expected):
                if key == "logs/log" and value is None:
                    await near.rename("other", "log")
                return await super().compare_and_set(key, value, expected)

        async with cluster.client() as store:
            await write(store, "log", 3)
            far = LogTree(Between(random.Random(1), cluster.metadata.data))
            with pytest.raises(UnknownLog):
                await far.rename("log", "other")
            info = await near.by_id(LOG)
            assert info is not None
            assert (info.log_id, info.name) == (LOG, "/log")
            assert await near.get("other") is None
            await asyncio.sleep(40)
            assert (await values(store, "log"))[0] == 3
            await near.rename("log", "other")
            await store.append("other", b"4")

    @as_scenario(
        simulate,
        nodes=3,
        storage=StorageSettings(
            flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
        ),
    )
    async def test_a_log_without_a_name_is_not_a_deleted_one(self, cluster: ClusterAtHand) -> None:
        """Renames that crossed left such a log. A day later its records were gone."""
        names = cluster.metadata
        async with cluster.client() as store:
            await write(store, "log", 3)
            # Renames take such names back now, so the scene takes it away itself.
            name = await names.get("logs/log")
            assert await names.compare_and_set("logs/log", None, name.version)
            await LogTree(names).note_change()
            assert await LogTree(names).by_id(LOG) is None
            await asyncio.sleep(40)
            assert await names.compare_and_set("logs/log", name.value, 0)
            await LogTree(names).note_change()
            assert (await values(store, "log"))[0] == 3

    @as_scenario(
        simulate,
        nodes=3,
        storage=StorageSettings(
            flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=10
        ),
    )
    async def test_records_of_a_deleted_log_go_after_a_while(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await write(store, "log", 3)
            await write(store, "other", 3)
            await store.log_tree.delete("log")
            await asyncio.sleep(5)
            held = [node.engine.cache.log(LOG).trim for node in cluster.running.values()]
            assert held == [0, 0, 0], "not at once"
            await asyncio.sleep(20)
            for node in cluster.running.values():
                assert node.engine.cache.log(LOG).trim
                assert (await node.engine.reader.read(
                    LOG, 0, 1 << 60, bytes_max=1, blocks_max=1
                )).blocks == []  # fmt: skip
            assert (await values(store, "other"))[0] == 3

    @as_scenario(
        simulate,
        nodes=1,
        copies=1,
        storage=StorageSettings(
            flush_age_s=0.5, partition_age_s=2, retention_every_s=1, deleted_keep_s=20
        ),
    )
    async def test_they_go_although_the_node_restarts_more_often_than_that(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await write(store, "log", 3)
            await store.log_tree.delete("log")
        for _ in range(5):
            assert not cluster.running[1].engine.trim_of(LOG), "not yet"
            await asyncio.sleep(4)
            await cluster.stop(1)
            await cluster.start(1)
        await asyncio.sleep(4)
        assert cluster.running[1].engine.trim_of(LOG)


@as_scenario(
    simulate,
    nodes=1,
    copies=1,
    storage=StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=3600),
)
async def test_a_node_that_never_runs_for_an_interval_trims(cluster: ClusterAtHand) -> None:
    """An embedded store of a program that runs for seconds grew without bound."""
    for life in range(3):
        async with cluster.client() as store:
            if not life:
                await store.create_log("log", attributes=LogAttributes(backlog_s=1))
            await write(store, "log", 3)
        await asyncio.sleep(10)
        trimmed = cluster.running[1].engine.trim_of(LOG)
        await cluster.stop(1)
        await cluster.start(1)
    await asyncio.sleep(3)
    assert 0 < trimmed < cluster.running[1].engine.trim_of(LOG)
