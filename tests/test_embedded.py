"""The embedded store: durable in one directory, one owner at a time, the same API."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from embedded_at_hand import open_at
from scenarios import as_scenario, awaited_by

import cordwood
from cordwood.block import Gap, GapKind, Record
from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, connect, open_blocking
from cordwood.client.read.cursors import Lag
from cordwood.embedded import embedded_store
from cordwood.errors import (
    BadSetting,
    Closed,
    NotOurCluster,
    OutcomeUnknown,
    Retryable,
    StoreInUse,
    Unreachable,
)
from cordwood.lsn import Lsn, make_lsn, parse_lsn
from cordwood.settings import MIB, ClientSettings, StorageSettings
from cordwood.spark.options import SERVERS, parse_options
from cordwood.spark.source import CordwoodSource

ROOT = Path(__file__).resolve().parent.parent


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Another Python process; it ends when its standard input does."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


TAKES_ITS_PLACE = """
import sys
import cordwood
with cordwood.connect(sys.argv[1], wal_mib=16) as store:
    for n in range(20):
        store.append("b", b"%d" % n)
    print("open", flush=True)
    sys.stdin.read()
    for n in range(20, 40):
        store.append("b", b"%d" % n)
"""


FORKS = """
import gc, os, sys
import cordwood
how = sys.argv[2]
store = cordwood.connect(sys.argv[1], wal_mib=16)
store.append("b", b"1")
if how == "closed":
    store.close()
pid = os.fork()
if pid == 0:
    if how == "uses it":
        try:
            store.append("b", b"2")
        except cordwood.errors.Closed as error:
            print(error)
    elif how == "lets go":
        del store
        gc.collect()
    elif how == "exits":
        sys.exit(3)
    print("the child ends")
else:
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    if how != "closed":
        store.append("b", b"3")
        store.close()
    with cordwood.connect(sys.argv[1]) as store:
        print(b"".join(getattr(each, "value", b"") for each in store.read("b")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exits", "uses it", "lets go", "closed"])
def test_a_forked_child_ends_as_it_says_and_leaves_the_store_alone(
    tmp_path: Path, how: str
) -> None:
    """RocksDB waited at the child's end for threads that it did not have: SIGSEGV."""
    with child(FORKS, str(tmp_path / "s"), how) as forks:
        told, _ = forks.communicate(timeout=60)
    lines = told.splitlines()
    if how == "uses it":
        assert lines.pop(0) == "this client is of the process that was forked: connect anew"
    if how != "exits":
        assert lines.pop(0) == "the child ends"
    assert lines == ["3" if how == "exits" else "0", repr(b"1" if how == "closed" else b"13")]


FORKS_AND_OPENS = """
import os, sys
import cordwood
how, first, second = sys.argv[1:]
store = cordwood.connect(first, wal_mib=16)
store.append("b", b"1")
if how == "closed":
    store.close()
pid = os.fork()
if pid == 0:
    try:
        cordwood.connect(second, wal_mib=16)
    except cordwood.errors.Rejected as error:
        print(error)
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists(second), flush=True)
if how == "open":
    store.append("b", b"2")
    store.close()
"""


@pytest.mark.parametrize("how", ["open", "closed"])
def test_a_forked_child_opens_no_store_of_its_own(tmp_path: Path, how: str) -> None:
    """RocksDB has no threads there: the store took records until its WAL was full, and neither
    flushed nor closed."""
    with child(FORKS_AND_OPENS, how, str(tmp_path / "s"), str(tmp_path / "t")) as forks:
        told, _ = forks.communicate(timeout=60)
    lines = told.splitlines()
    assert lines[0].startswith("this process was forked from a process that had an embedded store")
    assert lines[1:] == ["4 False"]


def records(store: BlockingStore, log: str) -> dict[Lsn, bytes]:
    return {item.lsn: item.value for item in store.read(log) if isinstance(item, Record)}


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with open_at(tmp_path / "data") as store:
        first = store.append("orders", b"1", key=b"k", timestamp=17, headers=[("h", b"v")])
        many = store.append_many("orders", [b"2", b"3"])
        assert [first, *many] == [make_lsn(1, n) for n in (1, 2, 3)]
    with open_at(tmp_path / "data") as store:
        assert store.append("orders", b"4") == make_lsn(2, 1)
        items = list(store.read("orders"))
        assert items[3] == Gap(make_lsn(1, 4), make_lsn(2, 0), GapKind.BRIDGE)
        found = [item for item in items if isinstance(item, Record)]
        assert [each.value for each in found] == [b"1", b"2", b"3", b"4"]
        assert (found[0].key, found[0].timestamp_us, found[0].headers) == (b"k", 17, (("h", b"v"),))
        assert [log.name for log in store.logs()] == ["/orders"]
        assert store.tail("orders") == make_lsn(2, 1)


def test_the_front_door_opens_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path / "new" / "data") as store:
        assert store.append("log", b"v") == make_lsn(1, 1)
        assert [item.value for item in store.read("log") if isinstance(item, Record)] == [b"v"]


@pytest.mark.parametrize("seed", range(2))
def test_everything_acknowledged_survives_a_kill(tmp_path: Path, seed: int) -> None:
    script = """
import asyncio, sys
from cordwood.client.aio import open_store
from cordwood.embedded import embedded_store
from cordwood.settings import MIB, ClientSettings, StorageSettings

async def main():
    store = await open_store(embedded_store(sys.argv[1], ClientSettings(), 8 * MIB))
    async def call(number):
        turn = 0
        while True:
            value = b"%d-%d" % (number, turn)
            lsn = await store.append("log", value)
            print(f"{lsn} {value.decode()}", flush=True)
            turn += 1
    await asyncio.gather(*(call(number) for number in range(20)))

asyncio.run(main())
"""
    with child(script, str(tmp_path)) as process:
        assert process.stdout is not None
        acked = [process.stdout.readline() for _ in range(random.Random(seed).randrange(200, 900))]
        process.kill()
        acked += process.stdout.readlines()
    with open_at(tmp_path) as store:
        found = records(store, "log")
    whole = [line.split() for line in acked if line.endswith("\n")]
    assert len(whole) >= 200
    assert {parse_lsn(lsn): value.encode() for lsn, value in whole}.items() <= found.items()
    assert len(set(found.values())) == len(found)


class TestOwners:
    def test_a_second_process_is_told_who_has_it(self, tmp_path: Path) -> None:
        script = """
import sys, cordwood
with cordwood.connect(sys.argv[1]) as store:
    store.append("log", b"mine")
    print("open", flush=True)
    sys.stdin.read()
"""
        with open_at(tmp_path):
            pass
        process = child(script, str(tmp_path))
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            with pytest.raises(StoreInUse, match=rf"process {process.pid}"):
                open_at(tmp_path)
        finally:
            process.communicate("")
        assert process.returncode == 0
        with open_at(tmp_path) as store:
            assert list(records(store, "log").values()) == [b"mine"]

    def test_nor_is_it_opened_twice_in_one_process(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
                open_at(tmp_path)
            store.append("log", b"v")

    @pytest.mark.slow
    def test_one_that_was_moved_leaves_alone_what_is_at_its_old_path(self, tmp_path: Path) -> None:
        """Its flush made files among those of the store at its old path; neither opened again."""
        storage = StorageSettings(wal_bytes=16 * MIB, flush_bytes=65_536, flush_quiet_s=0.01)
        settings = ClientSettings(timeout_s=2.0)
        at, moved = tmp_path / "data", tmp_path / "moved"
        stored: dict[Lsn, bytes] = {}
        with open_blocking(
            lambda: open_store(embedded_store(str(at), settings, storage=storage)), settings
        ) as first:
            first.append("a", b"0")
            at.rename(moved)
            with child(TAKES_ITS_PLACE, str(at)) as second:
                assert second.stdin is not None
                assert second.stdout is not None
                assert second.stdout.readline() == "open\n"
                with pytest.raises((Retryable, OutcomeUnknown)):  # noqa: PT012 - one of them
                    for _ in range(1000):
                        stored[first.append("a", bytes(10_000))] = bytes(10_000)
                second.stdin.close()
                assert second.wait(30) == 0
        with open_at(moved) as first, open_at(at) as store:
            assert stored.items() <= records(first, "a").items()
            assert list(records(store, "b").values()) == [b"%d" % n for n in range(40)]

    def test_a_killed_owner_leaves_it_free(self, tmp_path: Path) -> None:
        script = """
import sys, cordwood
store = cordwood.connect(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""
        process = child(script, str(tmp_path))
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with open_at(tmp_path) as store:
            store.append("log", b"v")

    def test_an_open_that_failed_leaves_it_free(self, tmp_path: Path) -> None:
        (tmp_path / "node-1").mkdir()
        (tmp_path / "node-1" / "identity").write_text("nobody")
        with pytest.raises(NotOurCluster, match="identity cannot be read"):
            open_at(tmp_path)
        (tmp_path / "node-1" / "identity").unlink()
        with open_at(tmp_path) as store:
            store.append("log", b"v")


class TestWrongDirectories:
    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(BadSetting, match="file is a file; an embedded store is a directory"):
            cordwood.connect(tmp_path / "file")

    def test_a_cluster_that_does_not_run(self, tmp_path: Path) -> None:
        """Its address is asked for; without one the error says how to start the cluster."""
        (tmp_path / "cluster.json").write_text("{}")
        with pytest.raises(Unreachable, match=f"cordwood up --dir {tmp_path}"):
            cordwood.connect(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json"]

    @pytest.mark.parametrize("url", ["http://x", "cordwod://127.0.0.1:4440", "kafka://h:9092"])
    def test_a_mistyped_scheme_makes_no_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BadSetting, match=r"is not a scheme of Cordwood\. Write cordwood://"):
            cordwood.connect(url)
        assert list(tmp_path.iterdir()) == []

    def test_one_whose_identity_is_another_s(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            with open_at(tmp_path / name) as store:
                store.append("log", name.encode())
        os.rename(tmp_path / "b" / "node-1", tmp_path / "b" / "was")
        os.rename(tmp_path / "a" / "node-1", tmp_path / "b" / "node-1")
        with pytest.raises(NotOurCluster, match="give the right directory"):
            open_at(tmp_path / "b")

    def test_one_whose_wal_is_gone(self, tmp_path: Path) -> None:
        """A new, empty one in its place would make records vanish without a word."""
        with open_at(tmp_path) as store:
            store.append("log", b"v")
        (tmp_path / "node-1" / "wal").unlink()
        with pytest.raises((NotOurCluster, FileNotFoundError)):
            open_at(tmp_path)
        (tmp_path / "node-1" / "identity").unlink()
        with pytest.raises(NotOurCluster, match="node 1 is in the cluster, but"):
            open_at(tmp_path)


class TestBlocking:
    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = open_at(tmp_path)
        store.append("log", b"v")
        reader = store.read("log", until=None)
        assert next(iter(reader))
        store.close()
        store.close()
        for call in (
            lambda: store.append("log", b"v"),
            lambda: store.tail("log"),
            lambda: list(reader),
            lambda: store.read("log"),
        ):
            with pytest.raises(Closed):
                call()

    def test_a_reader_goes_on_from_where_it_was(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("log", [b"%d" % n for n in range(10)])
            with store.read("log") as reader:
                for item in reader:
                    if isinstance(item, Record) and item.value == b"3":
                        break
                # The record that the loop was left at may not have been dealt with.
                assert reader.next_lsn == make_lsn(1, 4)
                assert [item.value for item in reader] == [b"%d" % n for n in range(4, 10)]
                assert reader.next_lsn == make_lsn(1, 11)
            assert [len(list(store.read("log", start=lsn))) for lsn in ("e1n5", "tail")] == [6, 0]

    def test_a_reader_of_several_logs(self, tmp_path: Path) -> None:
        """Batches, a callback that may refuse and may use the store, one log less, and lag."""
        with open_at(tmp_path) as store:
            for log in ("a", "b"):
                store.append_many(log, [b"1", b"2", b"3"])
            last = make_lsn(1, 3)
            with store.reader("a", "b", until=last) as reader:
                assert reader.logs == ("a", "b")
                rows = [
                    (log, value)
                    for log, batch in reader.arrow(["value"])
                    if not isinstance(batch, Gap)
                    for value in batch.column("value").to_pylist()
                ]
                assert sorted(rows) == [(log, b"%d" % n) for log in "ab" for n in (1, 2, 3)]
            seen: list[tuple[str, bytes]] = []

            def accept(log: str, item: Record | Gap) -> bool:
                assert isinstance(item, Record)
                is_new = (log, item.value) not in seen
                seen.append((log, item.value))
                store.save_cursors("billing", {log: item.lsn + 1})
                return item.value != b"1" or not is_new  # each first one is given again

            with store.reader("a", "b", until=last) as reader:
                reader.stop("b")
                assert reader.logs == ("a",)
                reader.deliver(accept)
            assert seen == [("a", b"1"), ("a", b"1"), ("a", b"2"), ("a", b"3")]
            (behind,) = store.lag("billing").values()
            assert isinstance(behind, Lag)
            assert behind.records == 0

    def test_many_threads_share_one_store(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store, ThreadPoolExecutor(8) as pool:
            lsns = list(pool.map(lambda n: store.append("log", b"%d" % n), range(200)))
            assert len(set(lsns)) == 200
            assert records(store, "log") == {lsn: b"%d" % n for n, lsn in enumerate(lsns)}


@as_scenario(awaited_by(asyncio.run))
async def test_asyncio_on_a_plain_loop(*, tmp_path: Path) -> None:
    async with await cordwood.aio.connect(tmp_path) as store:
        lsns = await asyncio.gather(*(store.append("log", b"%d" % n) for n in range(20)))
        assert lsns == [make_lsn(1, n) for n in range(1, 21)]
        stream = await store.read("log")
        assert len([item async for item in stream]) == 20


@pytest.mark.parametrize("cancels", [False, True])
@as_scenario(awaited_by(asyncio.run))
async def test_a_second_close_waits_for_the_first(*, tmp_path: Path, cancels: bool) -> None:
    """It came back while the directory was still in use."""
    for turns in (1, 4, 20):
        store = await cordwood.aio.connect(tmp_path / "store", wal_mib=8)
        await store.append("log", b"1")
        first = asyncio.create_task(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        if cancels:
            first.cancel()
        await store.close()
        async with cordwood.aio.connect(tmp_path / "store", wal_mib=8) as again:
            assert await again.tail("log")
        await asyncio.gather(first, return_exceptions=True)


class TestServe:
    def test_another_process_reads_and_appends(self, tmp_path: Path) -> None:
        script = """
import sys
from cordwood.block import Record
from cordwood.client.blocking.blocking_store import connect

with connect(sys.argv[1]) as store:
    found = [each.value for each in store.read("log") if isinstance(each, Record)]
    print(found, store.append("log", b"theirs"))
"""
        with open_at(tmp_path) as store:
            store.append("log", b"ours")
            url = store.serve()
            assert store.serve() == url
            other = child(script, url)
            said, _ = other.communicate(timeout=60)
            assert said.strip() == "[b'ours'] e1n2"
            assert records(store, "log") == {make_lsn(1, 1): b"ours", make_lsn(1, 2): b"theirs"}
            assert store.append("log", b"ours again") == make_lsn(1, 3)
        with open_at(tmp_path) as store:
            assert store.members == {1: "embedded:1"}

    def test_spark_reads_it_and_is_told_how(self, tmp_path: Path) -> None:
        asked = {"subscribe": "log"}
        with pytest.raises(BadSetting, match=r"store\.serve\(\)"):
            parse_options({**asked, SERVERS: str(tmp_path)})
        with open_at(tmp_path) as store:
            store.append_many("log", [b"1", b"2"])
            source = CordwoodSource({**asked, SERVERS: store.serve()})
            reader = source.reader(source.schema())
            (partition,) = reader.partitions()
            found = [value for batch in reader.read(partition) for value in batch["value"]]
            assert [value.as_py() for value in found] == [b"1", b"2"]

    def test_a_cluster_has_addresses_already(self, tmp_path: Path) -> None:
        with (
            open_at(tmp_path) as store,
            connect(store.serve()) as client,
            pytest.raises(BadSetting, match="only an embedded store is served"),
        ):
            client.serve()

    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with open_at(tmp_path / "a") as one, open_at(tmp_path / "b") as two:
            port = int(one.serve().rpartition(":")[2])
            with pytest.raises(BadSetting, match="cannot listen"):
                two.serve(port)
            assert two.serve() != one.serve()
