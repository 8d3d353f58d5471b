"""What only the SQLite store has: processes that share a file, foreign files, full disks."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from metadata_play import run_on_sqlite
from scenarios import as_scenario, awaited_by
from swaps import swap_value

from cordwood.errors import BadSetting, Corrupt, OutcomeUnknown, Overloaded, Unreachable
from cordwood.host.real import real_host
from cordwood.metadata import sqlite as sqlite_module
from cordwood.metadata.sqlite import (
    APPLICATION_ID,
    SCHEMA,
    SqliteMetadata,
    read_keys_after,
)
from cordwood.metadata.store import MetadataStore, Versioned

PROGRAM_TIMEOUT_S = 30


def program(body: str, *arguments: object) -> list[str]:
    """A process that runs `body` on a store in the file that its first argument names."""
    code = (
        "import asyncio, resource, sys\n"
        "from cordwood.host.real import real_host\n"
        "from cordwood.metadata.sqlite import SqliteMetadata\n"
        "from cordwood.metadata.epoch_store import EpochStore\n"
        "from cordwood.errors import CordwoodError, OutcomeUnknown\n"
        "async def main():\n"
        "    async with real_host(seed=1) as host:\n"
        "        store = SqliteMetadata(sys.argv[1], host)\n"
        "        try:\n"
        + "".join(f"            {line}\n" for line in body.splitlines())
        + "        finally:\n"
        "            await store.close()\n"
        "asyncio.run(main())\n"
    )
    return [sys.executable, "-c", code, *map(str, arguments)]


def start(command: list[str]) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root)


def output(process: subprocess.Popen[str]) -> str:
    told, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    assert process.returncode == 0, told
    return told


async def set_a(store: MetadataStore) -> int | None:
    return await store.compare_and_set("a", b"1", 0)


async def get_a(store: MetadataStore) -> Versioned | None:
    return await store.get("a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


class TestProcesses:
    def test_processes_that_make_a_file_and_race_for_epochs_share_none(self, path: Path):
        """They start on no file at all, so they race for the tables and for WAL mode too."""
        body = (
            "from cordwood.nodes import NodeId, Replication\n"
            "epochs = EpochStore(store)\n"
            "await epochs.create(1, (NodeId(1),), Replication(1))\n"
            "for _ in range(25):\n"
            "    print((await epochs.take_epoch(1))[0])"
        )
        processes = [start(program(body, path)) for _ in range(4)]
        taken = [int(word) for process in processes for word in output(process).split()]
        assert sorted(taken) == list(range(1, 101))

    def test_a_killed_process_loses_nothing_it_was_told(self, path: Path):
        body = (
            "number = 0\n"
            "while True:\n"
            "    number += 1\n"
            "    version = await store.compare_and_set(f'k/{number}', b'x', 0)\n"
            "    print(version, flush=True)"
        )
        process = start(program(body, path))
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        told += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]

        async def act(store: MetadataStore) -> None:
            listed = {key: found.version for key, found in await store.list("k/")}
            assert all(listed[f"k/{n}"] == version for n, version in enumerate(told, start=1))
            # One more may have been committed and not told.
            assert len(told) <= len(listed) <= len(told) + 1
            version = await store.compare_and_set("new", b"", 0)
            assert version == max(listed.values()) + 1

        run_on_sqlite(path, act)

    def test_a_file_that_another_process_has_locked_is_unreachable_and_nothing_is_written(
        self, path: Path
    ):
        run_on_sqlite(path, set_a)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        async def act(store: MetadataStore) -> None:
            with pytest.raises(Unreachable, match="locked"):
                await store.compare_and_set("b", b"", 0)
            # Readers do not wait for writers in WAL mode.
            assert await store.get("a")
            holder.execute("COMMIT")
            assert await store.get("b") is None
            assert await store.compare_and_set("b", b"", 0)

        try:
            # A fifth of it is left for the way back of an answer, on a busy machine too.
            run_on_sqlite(path, act, deadline_s=1.0)
        finally:
            holder.close()


class TestThreads:
    def test_many_calls_at_once_on_one_store(self, path: Path):
        async def act(store: MetadataStore) -> None:
            async def one(number: int) -> int | None:
                version = await store.compare_and_set(f"k/{number}", b"%d" % number, 0)
                assert version
                assert await store.get(f"k/{number}") == Versioned(b"%d" % number, version)
                return version

            versions = await asyncio.gather(*(one(number) for number in range(60)))
            assert len(set(versions)) == 60

        run_on_sqlite(path, act)

    def test_calls_behind_one_that_waits_end_in_time_and_know_that_nothing_was_written(
        self, path: Path
    ):
        """The lock inside the store has a deadline too, and it ends before the call's."""
        run_on_sqlite(path, set_a)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        async def act(store: MetadataStore) -> None:
            tries = [store.compare_and_set(f"k/{n}", b"", 0) for n in range(3)]
            ends = await asyncio.gather(*tries, return_exceptions=True)
            assert [type(end) for end in ends] == [Unreachable] * 3
            holder.execute("COMMIT")
            assert await store.list("k/") == []

        try:
            run_on_sqlite(path, act, deadline_s=3.0)
        finally:
            holder.close()

    @as_scenario(awaited_by(asyncio.run))
    async def test_stores_that_make_a_file_at_the_same_moment(self, *, tmp_path: Path) -> None:
        """SQLite tells some of them at once that the file is locked, whatever they would wait."""
        async with real_host(seed=1) as host:
            for turn in range(10):
                path = str(tmp_path / str(turn))
                stores = [SqliteMetadata(path, host) for _ in range(4)]
                tries = [store.compare_and_set("a", b"", 0) for store in stores]
                won = [version for version in await asyncio.gather(*tries) if version]
                assert won == [1]
                await asyncio.gather(*(store.close() for store in stores))

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_call_behind_one_that_is_stuck_in_the_disk_is_unreachable(
        self, *, path: Path
    ) -> None:
        async with real_host(seed=1) as host:
            store = SqliteMetadata(str(path), host, deadline_s=0.5)
            with store._lock, pytest.raises(Unreachable, match="before this one"):
                await store.compare_and_set("a", b"", 0)
            assert await store.get("a") is None
            await store.close()

    def test_a_file_that_another_reads_is_switched_to_wal_mode_when_it_has_read(self, path: Path):
        """SQLite does not wait there by itself: it holds a lock, and so could wait for ever."""
        run_on_sqlite(path, set_a)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN")
        holder.execute("SELECT * FROM entry").fetchall()

        async def act(store: MetadataStore) -> None:
            asyncio.get_running_loop().call_later(0.05, holder.execute, "COMMIT")
            assert await store.get("a")

        try:
            run_on_sqlite(path, act)
        finally:
            holder.close()


class TestTogether:
    """Calls that wait at the same time share a commit, and nothing else."""

    @staticmethod
    def commits_of(store: Any) -> list[str]:
        seen: list[str] = []
        store._connection.set_trace_callback(seen.append)
        return seen

    def test_many_writes_at_once_take_few_commits(self, path: Path):
        async def act(store: Any) -> None:
            assert await store.compare_and_set("k", b"", 0)
            seen = self.commits_of(store)
            keys = [f"k{number}" for number in range(500)]
            versions = await asyncio.gather(*(store.compare_and_set(k, b"1", 0) for k in keys))
            assert len(set(versions)) == 500
            assert None not in versions
            found = await asyncio.gather(*map(store.get, keys))
            assert [each.version for each in found] == versions
            assert 1 <= seen.count("COMMIT") < 100

        run_on_sqlite(path, act)

    def test_of_those_that_race_for_one_key_one_wins(self, path: Path):
        async def act(store: Any) -> None:
            for round_ in range(10):
                before = await store.get("a")
                expected = before.version if before else 0
                values = [b"%d" % number for number in range(50)]
                ended = await asyncio.gather(
                    *(store.compare_and_set("a", value, expected) for value in values)
                )
                (won,) = (at for at, version in enumerate(ended) if version is not None)
                after = await store.get("a")
                assert (after.value, after.version) == (values[won], ended[won]), round_

        run_on_sqlite(path, act)

    def test_thousands_at_once_wait_for_each_other(self, path: Path):
        """More than the host's threads take calls: opening a thousand logs at once ended so."""

        async def act(store: Any) -> None:
            found = await asyncio.gather(*(store.get(f"k{n}") for n in range(1500)))
            assert found == [None] * 1500

        run_on_sqlite(path, act)

    def test_more_than_may_wait_are_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        swap_value(monkeypatch, lambda: sqlite_module.CALLS_MAX, 300)

        async def act(store: Any) -> None:
            ended = await asyncio.gather(
                *(store.get("a") for _ in range(301)), return_exceptions=True
            )
            assert sum(isinstance(end, Overloaded) for end in ended) == 1
            assert await store.get("a") is None

        run_on_sqlite(path, act)

    def test_an_error_of_one_is_not_that_of_the_others(self, path: Path):
        """Its transaction is rolled back, and what was in it with it is written by itself."""

        async def act(store: Any) -> None:
            await store.get("a")

            def fails(_: sqlite3.Connection) -> int:
                raise sqlite3.OperationalError("made up")

            for _ in range(5):
                await asyncio.gather(*(self.remove(store, f"k{n}") for n in range(40)))
                writes = [store.compare_and_set(f"k{n}", b"1", 0) for n in range(40)]
                writes.insert(20, store._run(fails, "a write that fails"))
                ended = await asyncio.gather(*writes, return_exceptions=True)
                assert isinstance(ended.pop(20), Unreachable)
                found = await asyncio.gather(*(store.get(f"k{n}") for n in range(40)))
                assert [each and each.version for each in found] == ended
                assert None not in ended

        run_on_sqlite(path, act)

    async def remove(self, store: Any, key: str) -> None:
        found = await store.get(key)
        if found is not None:
            assert await store.compare_and_set(key, None, found.version)

    @pytest.mark.parametrize(
        ("code", "told"),
        [(sqlite3.SQLITE_IOERR, OutcomeUnknown), (sqlite3.SQLITE_FULL, Overloaded)],
    )
    def test_a_commit_that_fails_fails_for_all_of_them(self, path: Path, code, told):
        class NoCommits:
            def __init__(self, db: sqlite3.Connection) -> None:
                self.close = db.close
                self.db = db

            def execute(self, text: str, *more: Any) -> sqlite3.Cursor:
                if text == "COMMIT":
                    error = sqlite3.OperationalError("made up")
                    error.sqlite_errorcode = code
                    raise error
                return self.db.execute(text, *more)

        async def act(store: Any) -> None:
            assert await store.compare_and_set("there", b"1", 0)
            with store._lock:
                writes = [store.compare_and_set(f"k{n}", b"1", 0) for n in range(8)]
                writes.append(store.compare_and_set("there", b"2", 0))
                going = [asyncio.ensure_future(write) for write in writes]
                await asyncio.sleep(0.05)
                store._connection = NoCommits(store._connection)
            *ended, refused = await asyncio.gather(*going, return_exceptions=True)
            assert [type(end) for end in ended] == [told] * 8
            assert isinstance(refused, Unreachable if told is OutcomeUnknown else Overloaded)
            found = await asyncio.gather(*(store.get(f"k{n}") for n in range(8)))
            assert found == [None] * 8
            assert (await store.get("there")).value == b"1"

        run_on_sqlite(path, act)

    def test_who_is_cancelled_before_its_turn_writes_nothing(self, path: Path):
        async def act(store: Any) -> None:
            await store.get("a")
            with store._lock:
                going = [
                    asyncio.ensure_future(store.compare_and_set(f"k{n}", b"1", 0))
                    for n in range(20)
                ]
                await asyncio.sleep(0.05)
                for each in going[::2]:
                    each.cancel()
                await asyncio.sleep(0.05)
            await asyncio.gather(*going, return_exceptions=True)
            found = await asyncio.gather(*(store.get(f"k{n}") for n in range(20)))
            assert [each is not None for each in found] == [False, True] * 10

        run_on_sqlite(path, act)


class TestUnknownOutcome:
    """The host gives up on a call whose thread goes on."""

    @staticmethod
    def forgetful(done: bool) -> Callable[..., Any]:
        async def run_blocking(function: Callable[[], Any], *, timeout_s: float) -> Any:
            if done:
                await asyncio.to_thread(function)
            raise TimeoutError

        return run_blocking

    @pytest.mark.parametrize("done", [True, False])
    def test_a_write_that_did_not_return_is_unknown_and_a_read_unreachable(
        self, path: Path, done: bool
    ):
        """One that was not begun by then never is, so its outcome is known."""

        async def act(store: MetadataStore) -> None:
            await store.get("a")
            impatient: Any = SimpleNamespace(run_blocking=self.forgetful(done))
            other = SqliteMetadata(str(path), impatient)
            with pytest.raises(OutcomeUnknown if done else Unreachable):
                await other.compare_and_set("a", b"1", 0)
            with pytest.raises(Unreachable):
                await other.get("a")
            with pytest.raises(Unreachable):
                await other.list("")
            with pytest.raises(Unreachable):
                await other.close()
            assert (await store.get("a") is not None) == done

        run_on_sqlite(path, act)

    def test_a_commit_that_the_disk_refuses_half_way_is_unknown_and_the_store_goes_on(
        self, path: Path
    ):
        """A file that may not grow makes the write of the WAL fail inside COMMIT."""
        body = (
            "import os, signal\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "version = await store.compare_and_set('a', b'1', 0)\n"
            "wal_bytes = os.path.getsize(sys.argv[1] + '-wal')\n"
            "_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (wal_bytes + 5000, hard))\n"
            "try:\n"
            "    await store.compare_and_set('b', b'x' * 100_000, 0)\n"
            "except OutcomeUnknown:\n"
            "    print('unknown')\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
            "print((await store.get('a')).version == version, await store.get('b'))\n"
            "print(await store.compare_and_set('b', b'2', 0) > version)"
        )
        assert output(start(program(body, path))).split() == ["unknown", "True", "None", "True"]


class TestFiles:
    @pytest.mark.parametrize("content", [b"x", b"not a database\n" * 1000])
    def test_a_file_that_is_no_database_is_corrupt_and_left_alone(self, path: Path, content: bytes):
        path.write_bytes(content)
        with pytest.raises(Corrupt, match=path.name):
            run_on_sqlite(path, get_a)
        assert path.read_bytes() == content

    def test_damage_is_corrupt_and_leaves_no_lock(self, path: Path):
        """Not every error of SQLite's ends the transaction that meets it."""

        async def fill(store: MetadataStore) -> None:
            for number in range(40):
                await store.compare_and_set(f"k/{number}", b"x" * 3000, 0)

        run_on_sqlite(path, fill)
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xee" * (size - 4096))

        async def act(store: MetadataStore) -> None:
            with pytest.raises(Corrupt, match="damaged"):
                await store.list("")
            with pytest.raises(Corrupt, match="damaged"):
                await store.compare_and_set("k/1", b"", 0)
            other = sqlite3.connect(path, isolation_level=None, timeout=0)
            try:
                other.execute("BEGIN IMMEDIATE")
            finally:
                other.close()

        run_on_sqlite(path, act)

    def test_a_newer_schema_is_refused_and_left_alone(self, path: Path):
        run_on_sqlite(path, set_a)
        with sqlite3.connect(path) as other:
            other.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        other.close()
        with pytest.raises(BadSetting, match=f"version {SCHEMA + 1}"):
            run_on_sqlite(path, get_a)
        with sqlite3.connect(path) as other:
            assert other.execute("PRAGMA user_version").fetchone() == (SCHEMA + 1,)
        other.close()

    def test_another_programs_database_is_refused(self, path: Path):
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE theirs (x)")
        other.close()
        with pytest.raises(BadSetting, match="another program"):
            run_on_sqlite(path, get_a)

    @pytest.mark.parametrize(
        "where",
        ["missing/metadata.sqlite", "", "/proc/metadata.sqlite"],
        ids=["no such directory", "a directory", "a directory that takes no files"],
    )
    def test_a_place_that_takes_no_file_is_named(self, tmp_path: Path, where: str):
        with pytest.raises(BadSetting, match="cannot be opened"):
            run_on_sqlite(tmp_path / where, get_a)

    def test_a_directory_without_write_permission(self, tmp_path: Path):
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(BadSetting, match="cannot be opened"):
                run_on_sqlite(tmp_path / "metadata.sqlite", get_a)
        finally:
            tmp_path.chmod(0o700)

    def test_names_that_sqlite_keeps_for_itself_are_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        run_on_sqlite(":memory:", set_a)
        assert (tmp_path / ":memory:").is_file()

    def test_a_full_store_is_overloaded_and_keeps_what_it_has(self, path: Path):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            with pytest.raises(Overloaded, match="full"):
                await store.compare_and_set("b", b"x" * 500_000, 0)
            assert await store.get("b") is None
            second = await store.compare_and_set("b", b"small", 0)
            assert first
            assert second
            assert second > first

        run_on_sqlite(path, act, bytes_max=200_000)

    def test_the_file_is_marked_as_ours(self, path: Path):
        run_on_sqlite(path, set_a)
        with sqlite3.connect(path) as other:
            assert other.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        other.close()


def test_commits_are_synced_in_wal_mode(path: Path):
    """`synchronous` belongs to a connection and not to the file, so the store's own is asked."""

    async def main() -> tuple[int, str]:
        async with real_host(seed=1) as host:
            store = SqliteMetadata(str(path), host)
            await store.compare_and_set("a", b"", 0)
            connection = store._connection
            assert connection is not None
            (level,) = connection.execute("PRAGMA synchronous").fetchone()
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            await store.close()
            return level, mode

    full = 2
    assert asyncio.run(main()) == (full, "wal")


def test_a_page_far_into_a_list_costs_what_the_first_costs() -> None:
    """It read all keys before it: a million ledgers took a hundred times as long to list."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB, version INTEGER)")
    keys = [f"ledgers/{at:06}" for at in range(20_000)]
    database.executemany("INSERT INTO entry VALUES (?, x'00', 1)", ((key,) for key in keys))
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    database.set_progress_handler(count, 1)
    costs = []
    for after in ("", "ledgers/", keys[9_999], keys[18_999]):
        steps = 0
        page = read_keys_after(database, "ledgers/", after, 100)
        assert len(page) == 100
        assert all(key > after for key in page)
        costs.append(steps)
    assert max(costs) <= 1.1 * min(costs)
    database.close()
