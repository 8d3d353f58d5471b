"""The metadata store on SQLite: one file, shared by the processes of one machine.

A compare-and-set is one `BEGIN IMMEDIATE` transaction in WAL mode under
`synchronous=FULL`: an answered write is on stable storage, and two writes never both win, whichever
processes they come from.

sqlite3 blocks, so every call runs in the host's threads. One connection is kept,
because closing a file's last connection checkpoints it with syncs of its own; one lock lets one
thread use it at a time, which does all waiting calls with one commit (`sqlite_calls`). Nothing
waits past its deadline: not for that lock, and not for other processes. A wait ends a little before
the call's deadline. So a busy file is reported as Unreachable (nothing was written), and only a
write that reached the disk can end as OutcomeUnknown.

The file is one of Cordwood's if its `application_id` says so; `user_version` is the
version of the tables. An empty file is a new one.

A file that was replaced while it was open, or whose counter went back, is not used any more: other
processes may have another file at the same path, and both would hand out the same epochs.

Source: docs/design.md §6; sqlite.org, "WAL", "PRAGMA", "Result and Error Codes".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from cordwood.durable import open_private
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    Corrupt,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.metadata.lease import EntryLeases
from cordwood.metadata.sqlite_calls import SqliteCall, SqliteCalls, State
from cordwood.metadata.store import (
    DEADLINE_S,
    LIST_KEYS_MAX,
    Keys,
    Leases,
    Page,
    Versioned,
    check_key,
    check_listed,
    check_page,
    check_prefix,
    check_watched,
    check_write,
)

Result = TypeVar("Result")

Calls = list[SqliteCall]
Answers = list[int | None]

APPLICATION_ID = 0x43574D44
"""`CWMD`, in the file's header: tells our files from other programs' databases."""

SCHEMA = 1
"""Version of the tables; a file with a higher version is left alone."""

FILE_BYTES_MAX = 4 << 30
"""A store of this size is a leak, and must not take the node's disk with it."""

PAGE_BYTES = 4096

DATABASE_BYTES_MIN = 512
"""SQLite's smallest page. SQLite takes a shorter file for empty, and would write over it."""

WAIT_SHARE = 0.8
"""Part of the deadline that may go by waiting; the rest is for the disk."""

CALLS_AT_ONCE = 256
"""The most calls in the host's threads at the same time. Other rooms need these threads too, and
calls that are done together need no more."""

CALLS_MAX = 16_384
"""The most calls that wait. A thousand logs made at once are twelve thousand calls, a few
seconds."""

SWITCH_PAUSE_S = 0.005
"""The time between tries to switch a new file to WAL mode: other processes do the same, for
milliseconds."""

WATCH_POLL_S = 0.25
"""The delay of a change's report. It costs one small read, and a person does not notice the
delay."""

_TABLES = (
    "CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE counter (last_version INTEGER NOT NULL)",
    "INSERT INTO counter VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA}",
)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_OURS = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
_NOT_ALLOWED = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}


def _keep_private(path: str) -> None:
    """Make the file, or close it to others: SQLite follows links and has modes of its own.

    A file that may be open already is never opened here: closing it would let go of the locks
    that another connection of this process holds.

    Raises:
        BadSetting: a link stands there.
        OSError: it cannot be made.
    """
    if not os.path.lexists(path):
        new = f"{path}.new-{os.getpid()}-{threading.get_ident()}"
        os.close(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            with contextlib.suppress(FileExistsError):  # another process made it meanwhile
                os.link(new, path)
        finally:
            os.unlink(new)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise BadSetting(f"{path} is a symbolic link: a metadata store is a file; remove the link")
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077:
        os.chmod(path, 0o600)


class SqliteMetadata:
    """A `MetadataStore` in one file, made on first use; its directory must be there.

    Beyond the interface, the first call raises BadSetting if the file cannot be made or opened, or
    belongs to another program or a newer Cordwood. Every call raises Corrupt if the file is damaged
    or not a database.
    """

    def __init__(
        self,
        path: str,
        host: Host,
        *,
        deadline_s: float = DEADLINE_S,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        # An absolute path is never one of SQLite's own names, as ":memory:" is.
        self._path = os.path.abspath(path)
        self._host = host
        self._deadline_s = deadline_s
        self._pages_max = bytes_max // PAGE_BYTES
        self._leases = EntryLeases(
            self, lambda: host.clock.now_us(), lambda count: host.random.randbytes(count)
        )
        self._calls = SqliteCalls()
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)
        self._count = 0
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        # Of the file as it was first opened: its device and inode, and its highest version so far.
        self._file: tuple[int, int] | None = None
        self._version = 0

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore`."""
        check_key(key)
        return await self._run(lambda db: _get(db, key))

    async def list(self, prefix: str) -> list[tuple[str, Versioned]]:
        """See `MetadataStore`."""
        check_prefix(prefix)
        found = await self._run(lambda db: _list(db, prefix))
        check_listed(prefix, len(found))
        return found

    async def keys_after(self, prefix: str, after: str, limit: int) -> Keys:
        """See `MetadataStore`."""
        check_page(prefix, limit)
        return await self._run(lambda db: read_keys_after(db, prefix, after, limit))

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """See `MetadataStore`."""
        check_page(prefix, limit)
        return await self._run(lambda db: _read_page(db, prefix, after, limit))

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """See `MetadataStore`."""
        check_write(key, value, expected)
        return await self._run(
            lambda db: _compare_and_set(db, key, value, expected), f"a write of {key}"
        )

    async def changed(self, prefix: str, seen: int | None, timeout_s: float) -> int:
        """See `MetadataStore`; any write to the file counts, and is told within WATCH_POLL_S."""
        check_watched(prefix)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            mark = await self._run(_last_version)
            left = until - loop.time()
            if mark != seen or left <= 0:
                return mark
            await asyncio.sleep(min(left, WATCH_POLL_S))

    async def take_lease(self, key: str, value: bytes, ttl_s: float) -> bool:
        """See `MetadataStore`; by the machine's clock, which all users of the file share."""
        return await self._leases.take(key, value, ttl_s)

    async def drop_lease(self, key: str) -> None:
        """See `MetadataStore`."""
        await self._leases.drop(key)

    async def leases(self, prefix: str) -> Leases:
        """See `MetadataStore`."""
        return await self._leases.all(prefix)

    async def close(self) -> None:
        """See `MetadataStore`."""
        try:
            await self._host.run_blocking(self._close, timeout_s=self._deadline_s)
        except TimeoutError:
            raise self._no_answer() from None

    async def _run(
        self, work: Callable[[sqlite3.Connection], Result], write: str | None = None
    ) -> Result:
        """Do `work` in a thread, beside others.

        Args:
            write: the write in words, for errors; None for a call that changes nothing.
        Raises:
            OutcomeUnknown: a write was begun and did not return in time.
            Unreachable: nothing was done in time.
            Overloaded: CALLS_MAX calls wait.
        """
        if self._count >= CALLS_MAX:
            raise Overloaded(f"{self._path}: {CALLS_MAX} calls are waiting")
        # Counted from the call, not from when a thread was free for it.
        wait_until = time.monotonic() + WAIT_SHARE * self._deadline_s
        call = SqliteCall(work, write is not None, wait_until)
        self._count += 1
        try:
            async with asyncio.timeout(self._deadline_s), self._room:
                self._calls.add(call)
                answer: Result = await self._host.run_blocking(
                    lambda: self._use(call), timeout_s=self._deadline_s
                )
                return answer
        except TimeoutError:
            # It was not begun, or changes nothing: it may be repeated without a question.
            if self._calls.give_up(call) or write is None:
                raise self._no_answer() from None
            raise OutcomeUnknown(
                f"{self._path}: {write} did not return within {self._deadline_s:g} s"
            ) from None
        finally:
            self._calls.give_up(call)
            self._count -= 1

    def _no_answer(self) -> Unreachable:
        return Unreachable(f"{self._path} did not answer within {self._deadline_s:g} s")

    # Below: in a host thread.

    def _use(self, call: SqliteCall) -> Any:
        """The outcome of `call`, done here or by the previous owner of the connection."""
        if self._lock.acquire(timeout=max(0.0, call.wait_until - time.monotonic())):
            try:
                # Take it again if it was left undone because of another call: that call has ended.
                while calls := self._calls.take(call):
                    self._do(calls)
            finally:
                self._lock.release()
        elif self._calls.give_up(call):
            raise Unreachable(f"{self._path}: calls before this one have not returned")
        if call.state is not State.ENDED:
            # The call was given up, or the disk still works at it.
            raise TimeoutError
        if isinstance(call.answer, BaseException):
            raise call.answer
        return call.answer

    def _do(self, calls: Calls) -> None:
        """Carry out calls, with all writes in one transaction. SQLite's errors become errors of
        Cordwood."""
        at = calls[0]
        try:
            self._check_file()
            db = self._connection or self._open(at.wait_until)
            _wait_for_others(db, at.wait_until)
            self._check_version(_last_version(db))
            for at in calls:
                if not at.is_write:
                    self._calls.end(at, at.work(db))
            # One transaction for all: a commit takes a sync of the disk, however many writes are in
            # it.
            writes = [each for each in calls if each.is_write]
            if writes:
                at = writes[0]
                db.execute("BEGIN IMMEDIATE")
                answers: Answers = []
                for at in writes:
                    answers.append(at.work(db))
                self._commit(db, writes, answers)
        except (sqlite3.Error, CordwoodError) as error:
            self._drop()
            ours = _translate(error, self._path) if isinstance(error, sqlite3.Error) else error
            self._calls.end(at, ours)
        except BaseException:
            # After any error, no transaction may stay open: it locks the file for all processes.
            self._drop()
            raise
        finally:
            self._calls.put_back(calls)

    def _commit(self, db: sqlite3.Connection, writes: Calls, answers: Answers) -> None:
        """Commit. If an error leaves the outcome open, each caller is told so.

        A full disk cuts the WAL short of its commit frame, so nothing was written. After
        any other error the frame may lie in the file, for the next recovery to find.
        """
        # No version was as expected, so there is nothing to write.
        if not any(answers):
            db.execute("ROLLBACK")
        else:
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._drop()
                for call, answer in zip(writes, answers, strict=True):
                    self._calls.end(call, self._uncommitted(error, answer))
                return
        for call, answer in zip(writes, answers, strict=True):
            self._calls.end(call, answer)

    def _uncommitted(self, error: sqlite3.Error, answer: int | None) -> CordwoodError:
        if _code(error) == sqlite3.SQLITE_FULL:
            return _translate(error, self._path)
        if answer is None:
            # The version found instead may come from a write of the same transaction.
            return Unreachable(f"{self._path}: a commit failed; nothing of this was written")
        return OutcomeUnknown(f"{self._path}: a commit failed: {error}")

    def _check_file(self) -> None:
        """Check that the path leads to the file that was opened first, if one was.

        Raises:
            Unreachable: it does not.
        """
        if self._file is not None and _file_at(self._path) != self._file:
            raise Unreachable(
                f"{self._path} was moved, removed or replaced while it was open: stop all nodes, "
                "and bring back the file that they had"
            )

    def _check_version(self, version: int) -> None:
        """Check that the newest version is not below one that was seen before.

        Raises:
            Unreachable: it is.
        """
        if version < self._version:
            raise Unreachable(
                f"{self._path} is an older copy: its newest version is {version}, and it was "
                f"{self._version}. Stop all nodes, and bring back the metadata store that ran last"
            )
        self._version = version

    def _open(self, wait_until: float) -> sqlite3.Connection:
        if self._closed:
            raise Closed(f"the metadata store {self._path} was closed")
        if os.path.isfile(self._path) and 0 < os.path.getsize(self._path) < DATABASE_BYTES_MIN:
            raise Corrupt(f"{self._path} is no metadata store, or was cut short")
        with contextlib.suppress(OSError):  # SQLite says in its words what cannot be made
            _keep_private(self._path)
        try:
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db, wait_until)
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            if _code(error) in _NOT_ALLOWED:
                raise BadSetting(
                    f"{self._path} cannot be opened ({error}): it must be a file, in a directory "
                    "that is there and that this user may write"
                ) from error
            raise
        self._connection = db
        if self._file is None:
            self._file = _file_at(self._path)
        return db

    def _prepare(self, db: sqlite3.Connection, wait_until: float) -> None:
        _wait_for_others(db, wait_until)
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA max_page_count = {self._pages_max}")
        # Looked at in one transaction: another process may be making the tables.
        db.execute("BEGIN")
        is_made = _is_made(db, self._path)
        db.execute("COMMIT")
        if not is_made:
            _make(db, self._path)
        _switch_to_wal(db, self._path, wait_until)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        """Close the connection, which rolls back an uncommitted transaction."""
        db, self._connection = self._connection, None
        if db is not None:
            db.close()


def _file_at(path: str) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None if no file is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _get(db: sqlite3.Connection, key: str) -> Versioned | None:
    row = db.execute("SELECT value, version FROM entry WHERE key = ?", (key,)).fetchone()
    return None if row is None else Versioned(row[0], row[1])


def _last_version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("SELECT last_version FROM counter").fetchone()
    assert isinstance(version, int), "the counter is an integer"
    return version


def _list(db: sqlite3.Connection, prefix: str) -> list[tuple[str, Versioned]]:
    # Keys are ASCII, so DEL sorts after any of them that has the prefix.
    rows = db.execute(
        "SELECT key, value, version FROM entry WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
        (prefix, prefix + "\x7f", LIST_KEYS_MAX + 1),
    )
    return [(key, Versioned(value, version)) for key, value, version in rows]


def read_keys_after(db: sqlite3.Connection, prefix: str, after: str, limit: int) -> Keys:
    """Keys with a prefix that come after a key, at most `limit` of them, in order."""
    return [row[0] for row in _rows_after(db, "key", prefix, after, limit)]


def _read_page(db: sqlite3.Connection, prefix: str, after: str, limit: int) -> Page:
    rows = _rows_after(db, "key, value, version", prefix, after, limit)
    return [(key, Versioned(value, version)) for key, value, version in rows]


def _rows_after(
    db: sqlite3.Connection, columns: str, prefix: str, after: str, limit: int
) -> sqlite3.Cursor:
    # Trap: of two lower bounds SQLite's index takes the first, and reads all keys up to the other.
    # Each page of a long list would cost as much as all pages before it.
    lower, least = (">", after) if after >= prefix else (">=", prefix)
    return db.execute(
        f"SELECT {columns} FROM entry WHERE key {lower} ? AND key < ? ORDER BY key LIMIT ?",
        (least, prefix + "\x7f", limit),
    )


def _compare_and_set(
    db: sqlite3.Connection, key: str, value: bytes | None, expected: int
) -> int | None:
    row = db.execute("SELECT version FROM entry WHERE key = ?", (key,)).fetchone()
    if (row[0] if row else 0) != expected:
        return None
    db.execute("UPDATE counter SET last_version = last_version + 1")
    version = _last_version(db)
    if value is None:
        db.execute("DELETE FROM entry WHERE key = ?", (key,))
    else:
        db.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", (key, value, version))
    return version


def _wait_for_others(db: sqlite3.Connection, wait_until: float) -> None:
    """Let SQLite wait for other processes' locks until then."""
    wait_ms = max(0, round(1000 * (wait_until - time.monotonic())))
    db.execute(f"PRAGMA busy_timeout = {wait_ms}")


def _is_made(db: sqlite3.Connection, path: str) -> bool:
    """Whether our tables are there; False for an empty file.

    Raises:
        BadSetting: the file is another program's, or a newer Cordwood's.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, schema, tables) == (0, 0, 0):
        return False
    if application != APPLICATION_ID:
        raise BadSetting(f"{path} is a database of another program, no metadata store")
    if schema > SCHEMA:
        raise BadSetting(
            f"{path} has tables of version {schema} and this Cordwood knows {SCHEMA}: "
            "use the version that wrote it, or a newer one"
        )
    return True


def _make(db: sqlite3.Connection, path: str) -> None:
    """Make the tables, unless another process did since we looked."""
    db.execute("BEGIN IMMEDIATE")
    if not _is_made(db, path):
        for statement in _TABLES:
            db.execute(statement)
    db.execute("COMMIT")


def _switch_to_wal(db: sqlite3.Connection, path: str, wait_until: float) -> None:
    """Put the file in WAL mode, which it keeps.

    SQLite does not wait here if several processes switch a new file at once, because each holds the
    other's lock. So this code waits and tries again.
    """
    while True:
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if _code(error) not in _BUSY or time.monotonic() > wait_until:
                raise
        time.sleep(SWITCH_PAUSE_S)
    if mode != "wal":
        raise BadSetting(
            f"{path} stays in {mode} mode: its file system cannot share memory between "
            "processes (a network mount?), so use a local disk"
        )


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; -1 for an error of the Python module's own."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _translate(error: sqlite3.Error, path: str) -> CordwoodError:
    """Cordwood's error for an error of SQLite before any commit: nothing was written."""
    code = _code(error)
    if code in _BUSY:
        return Unreachable(f"{path} is locked by another process")
    if code in _NOT_OURS:
        return Corrupt(f"{path} is no metadata store, or is damaged: {error}")
    if code == sqlite3.SQLITE_FULL:
        return Overloaded(f"{path}: the disk is full, or the file is at its limit")
    return Unreachable(f"{path} cannot be used: {error}")
