"""A cluster of real processes: killed, stopped, orphaned, full, started again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import uvloop
from scenarios import as_scenario, awaited_by

from cordwood.block import Gap, GapKind, Record
from cordwood.cli.replace import put_in_place
from cordwood.cli.up import welcome
from cordwood.client import aio
from cordwood.client.store import Store
from cordwood.embedded import embedded_store
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    NoSequencer,
    OutcomeUnknown,
    StoreInUse,
    Unreachable,
)
from cordwood.host.real import real_host
from cordwood.local_cluster import ClusterShape, LocalCluster, find_address, local_cluster
from cordwood.lsn import Lsn
from cordwood.metadata.event_log import StoredEventLog
from cordwood.metadata.where import open_metadata
from cordwood.nodes import NodeId
from cordwood.settings import MIB, ClientSettings

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parent.parent
TWO_OF_THREE = ClusterShape(nodes=3, racks=3, copies=2, copy_racks=2, wal_bytes=16 * MIB)
THREE_OF_THREE = ClusterShape(nodes=3, racks=3, copies=3, copy_racks=2, wal_bytes=16 * MIB)


@asynccontextmanager
async def running(
    path: Path, shape: ClusterShape | None, **settings: float
) -> AsyncIterator[tuple[LocalCluster, Store]]:
    """A cluster and a client of it."""
    async with (
        local_cluster(str(path), shape) as cluster,
        await aio.connect(cluster.url, ClientSettings(**settings)) as store,  # type: ignore[arg-type]
    ):
        yield cluster, store


async def sequencer_of(store: Store) -> NodeId:
    """The node that sequences the only log."""
    for node, status in (await store.status()).items():
        if not isinstance(status, CordwoodError) and any(log.sequencing for log in status.logs):
            return node
    raise AssertionError("no node sequences the log")


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.02)


async def read_all(store: Store, until: Lsn | str = "tail") -> list[Record | Gap]:
    return [item async for item in await store.read("log", until=until)]


async def until_refused(store: Store, value: bytes) -> None:
    """Append until it is known that nothing of it was stored, and why."""
    for _ in range(40):
        try:
            await store.append("log", value)
        except OutcomeUnknown:
            continue


class Writers:
    """Callers who append without a pause, and what they were told.

    Attributes:
        acked: value by LSN.
        unknown: values that may or may not be stored.
    """

    def __init__(self, store: Store, count: int = 8) -> None:
        self.acked: dict[Lsn, bytes] = {}
        self.unknown: list[bytes] = []
        self._store = store
        self._going = True
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(count)]

    async def _write(self, number: int) -> None:
        turn = 0
        while self._going:
            value = b"%d-%d" % (number, turn)
            turn += 1
            try:
                self.acked[await self._store.append("log", value)] = value
            except OutcomeUnknown:
                self.unknown.append(value)

    async def go_on(self, records: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acked) + records
        await until(lambda: len(self.acked) >= wanted, 20)

    async def stop(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)

    def check(self, items: list[Record | Gap]) -> None:
        """All that was acknowledged is there once, in order; nothing that was not sent is."""
        expected = items[0].lsn if isinstance(items[0], Record) else items[0].first
        for item in items:
            first, last = (item.lsn,) * 2 if isinstance(item, Record) else (item.first, item.last)
            assert first == expected
            expected = last + 1
        found = {item.lsn: item.value for item in items if isinstance(item, Record)}
        assert found.items() >= self.acked.items()
        extra = [value for lsn, value in found.items() if lsn not in self.acked]
        assert set(extra) <= set(self.unknown)
        assert len(extra) == len(set(extra))


@pytest.mark.slow
@as_scenario(awaited_by(uvloop.run))
async def test_nodes_that_are_killed_or_stopped_while_appends_go_on(*, tmp_path: Path) -> None:
    """Two copies on three nodes: any one of them may go, the sequencer's too."""
    async with running(tmp_path, TWO_OF_THREE) as (cluster, store):
        await store.append("log", b"first")
        owner = await sequencer_of(store)
        storage = next(node for node in cluster.nodes if node != owner)
        writers = Writers(store)
        await writers.go_on(200)
        cluster.kill(storage)
        await writers.go_on(200)
        assert writers.unknown == [], "a storage node that dies costs nobody anything"
        await cluster.start_node(storage)
        await writers.go_on(100)

        cluster.send_signal(storage, signal.SIGSTOP)
        await writers.go_on(100)
        cluster.send_signal(storage, signal.SIGCONT)
        await writers.go_on(100)

        cluster.kill(owner)
        await writers.go_on(200)
        await writers.stop()
        writers.acked[Lsn((1 << 32) | 1)] = b"first"
        assert max(writers.acked).epoch > 1, "another node took over"
        writers.check(await read_all(store))
        await cluster.start_node(owner)
        await until(lambda: len(store._cluster.peers.up) == 3)
        writers.check(await read_all(store, until=max(writers.acked)))


def large(items: list[Record | Gap]) -> int:
    """How many records of about a MiB there are."""
    return sum(isinstance(each, Record) and len(each.value) > MIB // 2 for each in items)


@pytest.mark.slow
@as_scenario(awaited_by(uvloop.run))
async def test_a_log_that_needs_every_node_waits_for_the_one_that_died_and_outgrows_its_wals(
    *, tmp_path: Path
) -> None:
    async with running(tmp_path, THREE_OF_THREE, timeout_s=5) as (cluster, store):
        writers = Writers(store, 4)
        await writers.go_on(100)
        await writers.stop()
        before = await store.tail("log")
        owner = await sequencer_of(store)
        cluster.kill(owner)
        with pytest.raises(NoSequencer, match=rf"absent: node {owner}:"):
            await until_refused(store, b"too early")
        await cluster.start_node(owner)
        after = await store.append("log", b"after")
        assert after.epoch > before.epoch
        items = await read_all(store)
        writers.unknown += [b"too early", b"after"]
        writers.check(items)
        assert Gap(Lsn(before + 1), Lsn(2 << 32), GapKind.BRIDGE) in items

        patient = ClientSettings(timeout_s=60)
        async with await aio.connect(cluster.url, patient) as filler:
            for _ in range(40):
                await filler.append("log", bytes(MIB - 100))
        full = await read_all(store)
        assert full[: len(items)] == items
        assert large(full) == 40, "more than the WALs hold"
        directory = cluster.directory
        assert find_address(directory) == cluster.url
    with pytest.raises(Unreachable, match="cordwood up"):
        find_address(directory)

    async with running(tmp_path, None, timeout_s=5) as (again, store):
        assert again.url == cluster.url, "the same nodes at the same addresses"
        assert await read_all(store, until=max(writers.acked)) == items[: len(writers.acked)]
        assert large(await read_all(store)) == 40


def test_nodes_stop_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.settings import MIB

async def main():
    shape = ClusterShape(nodes=2, racks=1, copies=1, copy_racks=1, wal_bytes=4 * MIB)
    async with local_cluster(sys.argv[1], shape) as cluster:
        print(*(node.process.pid for node in cluster.nodes.values()), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "a node outlived the process that started it"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def told_nodes(path: Path) -> set[bool]:
    """Whether the last start told the nodes to move events into the event log."""
    return {
        json.loads(each.read_bytes())["replicated_events"]
        for each in path.glob("node-*/settings.json")
    }


async def has_moved(cluster: LocalCluster) -> bool:
    """Whether the events are in the event log."""
    async with real_host() as host:
        metadata = open_metadata(cluster.metadata, host)
        try:
            return await StoredEventLog(metadata).read_base() is not None
        finally:
            await metadata.close()


class TestEventLog:
    """Only new clusters begin with the replicated event log: the events do not move back."""

    @pytest.mark.slow
    @as_scenario(awaited_by(uvloop.run))
    async def test_a_new_cluster_with_nodes_enough_has_it_and_keeps_it(
        self, *, tmp_path: Path
    ) -> None:
        async with running(tmp_path, TWO_OF_THREE) as (cluster, _):
            assert told_nodes(tmp_path) == {True}
            async with asyncio.timeout(60):
                while not await has_moved(cluster):  # noqa: ASYNC110 - a file has no event
                    await asyncio.sleep(0.2)
        for shape in (None, TWO_OF_THREE):
            async with running(tmp_path, shape) as (_, store):
                await store.append("log", b"value")
                assert told_nodes(tmp_path) == {True}
        stored = msgspec.structs.replace(TWO_OF_THREE, replicated_events=False)
        with pytest.raises(BadSetting, match=r"another shape .*, events replicated"):
            await local_cluster(str(tmp_path), stored).__aenter__()

    @pytest.mark.parametrize("wrote", ["nothing", pytest.param("off", marks=pytest.mark.slow)])
    @as_scenario(awaited_by(uvloop.run))
    async def test_a_directory_from_before_it_keeps_its_events_where_they_are(
        self, *, tmp_path: Path, wrote: str
    ) -> None:
        stored = msgspec.structs.replace(TWO_OF_THREE, replicated_events=False)
        async with running(tmp_path, stored) as (_, store):
            await store.append("log", b"value")
        path = tmp_path / "cluster.json"
        if wrote == "nothing":
            shape = json.loads(path.read_bytes())
            del shape["replicated_events"]  # as versions before the field wrote it
            path.write_text(json.dumps(shape))
        before = path.read_bytes()
        for shape in (None, TWO_OF_THREE, stored):
            async with running(tmp_path, shape) as (cluster, store):
                await store.append("log", b"value")
                assert told_nodes(tmp_path) == {False}
                assert not await has_moved(cluster)
        assert path.read_bytes() == before

    @as_scenario(awaited_by(uvloop.run))
    async def test_a_new_cluster_with_too_few_nodes_has_none(self, *, tmp_path: Path) -> None:
        async with running(tmp_path, THREE_OF_THREE):
            assert told_nodes(tmp_path) == {False}


class TestRefusals:
    ONE = ClusterShape(nodes=1, racks=1, copies=1, copy_racks=1, wal_bytes=4 * MIB)

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_directory_has_one_cluster_of_one_shape_at_a_time(
        self, *, tmp_path: Path
    ) -> None:
        async with local_cluster(str(tmp_path), self.ONE):
            with pytest.raises(StoreInUse, match=rf"process {os.getpid()}.*runs on it already"):
                await local_cluster(str(tmp_path)).__aenter__()
        with pytest.raises(BadSetting, match=r"another shape \(1 nodes, 1 racks, WAL 4 MiB, "):
            await local_cluster(str(tmp_path), TWO_OF_THREE).__aenter__()

    @as_scenario(awaited_by(asyncio.run))
    async def test_an_embedded_store_is_no_cluster(self, *, tmp_path: Path) -> None:
        async with embedded_store(str(tmp_path), ClientSettings(), 4 * MIB):
            pass
        with pytest.raises(BadSetting, match="is an embedded store, not a cluster"):
            await local_cluster(str(tmp_path), self.ONE).__aenter__()

    def test_a_node_that_does_not_start_is_quoted_and_the_others_are_stopped(
        self, tmp_path: Path
    ) -> None:
        async def scenario() -> None:
            (tmp_path / "node-2").mkdir()
            (tmp_path / "node-2" / "identity").write_text("nobody")
            shape = ClusterShape(nodes=2, racks=1, copies=1, copy_racks=1, wal_bytes=4 * MIB)
            with pytest.raises(Unreachable) as failed:
                await local_cluster(str(tmp_path), shape).__aenter__()
            assert re.search(r"node 2 did not start: node 2 stops: .*identity", str(failed.value))
            assert not (tmp_path / "address").exists()

        asyncio.run(scenario())
        ours = [
            pid
            for pid in os.listdir("/proc")
            if pid.isdigit() and str(tmp_path) in _command_line(pid)
        ]
        assert ours == []


class TestAClusterThatIsStartedAgain:
    """`cordwood up` ended, and all nodes with it, where one node's disk was lost since."""

    TWO = ClusterShape(nodes=2, racks=1, copies=1, copy_racks=1, wal_bytes=4 * MIB)

    @pytest.mark.slow
    @as_scenario(awaited_by(asyncio.run))
    async def test_it_goes_on_without_a_node_that_does_not_start(self, *, tmp_path: Path) -> None:
        async with local_cluster(str(tmp_path), self.TWO, without_failed=True):
            pass
        (tmp_path / "node-2" / "identity").write_text("nobody")
        async with local_cluster(str(tmp_path), without_failed=True) as cluster:
            assert list(cluster.failed) == [2]
            assert re.search(r"node 2 .* does not run", welcome(cluster, str(tmp_path), 0.1))
            assert [node for node, each in cluster.nodes.items() if each.is_running] == [1]
        with pytest.raises(Unreachable, match="node 2 did not start"):
            await local_cluster(str(tmp_path)).__aenter__()
        (tmp_path / "node-1" / "identity").write_text("nobody")
        with pytest.raises(Unreachable, match="did not start"):
            await local_cluster(str(tmp_path), without_failed=True).__aenter__()


class TestADirectoryThatIsReplaced:
    """`cordwood up` ended, and all nodes with it, where `cordwood nodes replace` changed a node's
    directory just as the node was started again."""

    ONE = ClusterShape(nodes=1, racks=1, copies=1, copy_racks=1, wal_bytes=4 * MIB)

    @pytest.mark.slow
    @as_scenario(awaited_by(asyncio.run))
    async def test_it_is_changed_while_the_node_starts(
        self, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = tmp_path / "cluster" / "node-1", tmp_path / "new"
        new.mkdir()
        async with local_cluster(str(tmp_path / "cluster"), self.ONE) as cluster:
            await cluster.stop_node(NodeId(1))
            spawn = asyncio.create_subprocess_exec

            async def spawn_late(*args: object, **options: object) -> object:
                put_in_place(str(old), str(new))
                return await spawn(*args, **options)  # type: ignore[call-overload]

            monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn_late)
            with pytest.raises(Unreachable, match="node 1 did not start: its log cannot be read"):
                await cluster.start_node(NodeId(1))
            monkeypatch.undo()
            with pytest.raises(Unreachable, match=r"is in the cluster, but .* is empty"):
                await cluster.start_node(NodeId(1))  # in the new directory, and says why

    @as_scenario(awaited_by(asyncio.run))
    async def test_it_cannot_be_written(self, *, tmp_path: Path) -> None:
        async with local_cluster(str(tmp_path), self.ONE) as cluster:
            await cluster.stop_node(NodeId(1))
            (tmp_path / "node-1").rename(tmp_path / "elsewhere")
            (tmp_path / "node-1").write_text("no directory")
            with pytest.raises(Unreachable, match="node 1 cannot use its directory"):
                await cluster.start_node(NodeId(1))

    @pytest.mark.slow
    @as_scenario(awaited_by(asyncio.run))
    async def test_the_machine_has_no_process_for_it(
        self, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error ended `cordwood up`, and with it all other nodes."""
        async with local_cluster(str(tmp_path), self.ONE) as cluster:
            await cluster.stop_node(NodeId(1))

            async def spawn(*args: object, **options: object) -> object:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

            monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
            with pytest.raises(Unreachable, match="node 1 has no process"):
                await cluster.start_node(NodeId(1))
            monkeypatch.undo()
            await cluster.start_node(NodeId(1))


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.slow
@as_scenario(awaited_by(uvloop.run))
async def test_what_is_staged_survives_kill_9_of_every_process_and_is_published_once(
    *, tmp_path: Path
) -> None:
    async with running(tmp_path / "c", THREE_OF_THREE, timeout_s=30.0) as (cluster, store):
        blocks = [[bytes([at]) * 1000] * 100 for at in range(8)]
        refs = [await store.stage("log", values) for values in blocks]
        plain = [ref.to_json() for ref in refs]
        for number in cluster.nodes:
            cluster.kill(number)
        for number, node in cluster.nodes.items():
            while node.is_running:  # noqa: ASYNC110 - a process says nothing when it ends
                await asyncio.sleep(0.02)
            await cluster.start_node(number)
        async with await aio.connect(cluster.url, ClientSettings(timeout_s=30.0)) as other:
            first = await other.publish("query", 0, plain)
            again = await other.publish("query", 0, plain)
            assert again.spans == first.spans
            found = [item async for item in await other.read("log")]
            values = [item.value for item in found if isinstance(item, Record)]
            assert values == [value for some in blocks for value in some]
