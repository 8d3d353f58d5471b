"""The metadata store on ZooKeeper, for clusters of more than one machine.

A key is a path below the store's root: `nodes/1` is `ROOT/nodes/1`. What lies there is
in `metadata.stored_value`. Every write is one transaction of the key's path and of
`ROOT/:changes/<first part of the key>`, whose zxid is the new version: one counter of the whole
ensemble, which never repeats. The `:changes` path is what watches watch, and a listing that finds
it unchanged at its end is of one moment. Leases are ephemeral paths in `ROOT/:leases`.

Reads are preceded by a `sync`, so that they are not behind on any server;
both travel together. A get and the compare-and-set after it are a round trip each,
because a path's data version is remembered with the version of the value.

After a lost connection, the write is searched for on the next connection, by its nonce. Its outcome
is unknown only if another write came after it, or if no server answers in time.

Source: docs/design.md §6; docs/sources/logdevice.md 2.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from cordwood.errors import OutcomeUnknown, Overloaded, Unreachable
from cordwood.host.seams import Host
from cordwood.metadata.store import (
    DEADLINE_S,
    Keys,
    Leases,
    Versioned,
    check_key,
    check_lease,
    check_listed,
    check_page,
    check_prefix,
    check_watched,
    check_write,
)
from cordwood.metadata.stored_value import (
    MAKE,
    NONCE_BYTES,
    Verdict,
    pack_stored,
    read_stored,
    settle,
)
from cordwood.metadata.zookeeper_session import (
    SESSION_S,
    Found,
    Lost,
    Make,
    Put,
    Refusal,
    ZooKeeperSession,
)

DATA_VERSIONS_MAX = 4096
"""Keys with a remembered data version; a forgotten version costs a round trip."""

RECHECK_S = 10.0
"""How often a watch looks by itself: a notice that was lost is late by this."""

LIST_DEADLINES = 10
"""Deadlines of a call that a listing has: it is a round trip for every READ_AT_ONCE keys, and
a busy machine was seen to read no more than 500 keys a second."""

LOST_PAUSE_S = 0.01
"""Pause before a request is repeated after a broken connection: the loop learns of the break."""

CLOSE_S = 12.0
"""kazoo waits up to 10 s for its threads."""

READ_AT_ONCE = 64
"""Paths of a listing under way at a time: as many as the session takes."""

Answer = TypeVar("Answer")

Listed = list[tuple[str, Versioned]]
Marks = list[tuple[str, int]]

_CHANGES = ":changes"
_LEASES = ":leases"


class ZooKeeperMetadata:
    """A `MetadataStore` below one path of a ZooKeeper ensemble, made on first use.

    Args:
        hosts: `host:port,host:port`.
        root: the path, with a leading slash and without a trailing slash.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        host: Host,
        *,
        deadline_s: float = DEADLINE_S,
        session_s: float = SESSION_S,
    ) -> None:
        self._hosts = hosts
        self._root = root
        self._host = host
        self._deadline_s = deadline_s
        self._session = ZooKeeperSession(hosts, session_s=session_s)
        self._data_versions: dict[str, tuple[int, int]] = {}

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore`."""
        check_key(key)
        async with self._answering():
            return await self._again_if_lost(lambda: self._get(key))

    async def list(self, prefix: str) -> list[tuple[str, Versioned]]:
        """See `MetadataStore`."""
        check_prefix(prefix)
        async with self._answering(LIST_DEADLINES * self._deadline_s):
            return await self._again_if_lost(lambda: self._list(prefix))

    async def keys_after(self, prefix: str, after: str, limit: int) -> Keys:
        """See `MetadataStore`; only the paths on the way to the page are read."""
        check_page(prefix, limit)

        async def read() -> Keys:
            found: Keys = []
            parent, slash, _ = prefix.rpartition("/")
            await self._session.get(self._root, synced=True)
            await self._take_after(parent + slash, prefix, after, limit, found)
            return found

        async with self._answering(LIST_DEADLINES * self._deadline_s):
            return await self._again_if_lost(read)

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """See `MetadataStore`."""
        check_write(key, value, expected)
        nonce = self._host.random.randbytes(NONCE_BYTES)
        attempt = _Attempt(key, pack_stored(value, nonce), nonce, expected)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._write(attempt)
        except TimeoutError:
            if attempt.under_way:
                raise OutcomeUnknown(
                    f"ZooKeeper at {self._hosts} did not say within {self._deadline_s:g} s "
                    f"whether it wrote {key}"
                ) from None
            raise self._no_answer() from None

    async def changed(self, prefix: str, seen: int | None, timeout_s: float) -> int:
        """See `MetadataStore`."""
        path = self._changes(check_watched(prefix))
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            news = self._session.news
            async with self._answering():
                mark = await self._again_if_lost(lambda: self._session.watch(path))
            left = until - loop.time()
            if mark != seen or left <= 0:
                return mark
            try:
                async with asyncio.timeout(min(left, RECHECK_S)):
                    await news.wait()
            except TimeoutError:
                continue

    async def take_lease(self, key: str, value: bytes, ttl_s: float) -> bool:
        """See `MetadataStore`; it lasts as long as the session."""
        check_lease(key, value, ttl_s)
        async with self._answering():
            return await self._again_if_lost(lambda: self._take_lease(key, value))

    async def drop_lease(self, key: str) -> None:
        """See `MetadataStore`."""
        check_lease(key, b"", 1)

        async def drop() -> None:
            found = await self._session.get(self._lease(key))
            if found is not None and found.owner == self._session.session_id:
                await self._session.remove(self._lease(key))

        async with self._answering():
            await self._again_if_lost(drop)

    async def leases(self, prefix: str) -> Leases:
        """See `MetadataStore`."""
        check_prefix(prefix)

        async def read() -> Leases:
            names = await self._session.children(f"{self._root}/{_LEASES}")
            keys = sorted(name.replace(":", "/") for name in names)
            wanted = [key for key in keys if key.startswith(prefix)]
            found = await asyncio.gather(*(self._session.get(self._lease(key)) for key in wanted))
            return [(k, each.data) for k, each in zip(wanted, found, strict=True) if each]

        async with self._answering():
            return await self._again_if_lost(read)

    async def close(self) -> None:
        """See `MetadataStore`."""
        end = self._session.begin_close()
        if end is not None:
            try:
                await self._host.run_blocking(end, timeout_s=CLOSE_S)
            except TimeoutError:
                raise Unreachable(
                    f"the session with ZooKeeper at {self._hosts} was not closed in time"
                ) from None

    # Asking.

    @asynccontextmanager
    async def _answering(self, deadline_s: float = 0.0) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline_s or self._deadline_s):
                yield
        except TimeoutError:
            raise self._no_answer() from None

    async def _again_if_lost(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until the connection holds for as long as the answer takes."""
        while True:
            await self._session.wait_connected()
            try:
                return await ask()
            except Lost:
                await asyncio.sleep(LOST_PAUSE_S)

    def _no_answer(self) -> Unreachable:
        return Unreachable(
            f"ZooKeeper at {self._hosts} did not answer within {self._deadline_s:g} s"
        )

    # Reading.

    async def _get(self, key: str) -> Versioned | None:
        return self._learn(key, await self._session.get(self._path(key), synced=True))

    def _learn(self, key: str, found: Found | None) -> Versioned | None:
        """The stored form at a key's path; its data version is kept for a write."""
        if found is None:
            self._remember(key, 0, MAKE)
            return None
        value = read_stored(key, found.data)
        self._remember(key, 0 if value is None else found.zxid, found.data_version)
        return None if value is None else Versioned(value, found.zxid)

    def _remember(self, key: str, version: int, data_version: int) -> None:
        self._data_versions.pop(key, None)
        self._data_versions[key] = version, data_version
        if len(self._data_versions) > DATA_VERSIONS_MAX:
            del self._data_versions[next(iter(self._data_versions))]

    async def _list(self, prefix: str) -> Listed:
        """Read all below the prefix, again if something was written meanwhile."""
        marks = await self._marks(prefix)
        while True:
            listed = await self._walk(prefix)
            before, marks = marks, await self._marks(prefix)
            if before == marks:
                return sorted(listed)

    async def _marks(self, prefix: str) -> Marks:
        """When each part of the store that the prefix may mean was last written."""
        first, slash, _ = prefix.partition("/")
        await self._session.get(self._root, synced=True)
        names = [first]
        if not slash:
            all_names = await self._session.children(f"{self._root}/{_CHANGES}")
            names = [name for name in all_names if name.startswith(first)]
        found = await asyncio.gather(*(self._session.get(self._changes(name)) for name in names))
        return [(n, each.zxid) for n, each in zip(names, found, strict=True) if each is not None]

    async def _walk(self, prefix: str) -> Listed:
        parent, slash, _ = prefix.rpartition("/")
        listed: Listed = []
        parents = [parent + slash]
        while parents:
            above = parents.pop()
            names = await self._session.children(f"{self._root}/{above}".rstrip("/"))
            keys = [above + name for name in names if not name.startswith(":")]
            keys = [key for key in keys if key.startswith(prefix)]
            for at in range(0, len(keys), READ_AT_ONCE):
                parents += await self._read_keys(keys[at : at + READ_AT_ONCE], listed)
            check_listed(prefix, len(listed))
        return listed

    async def _take_after(
        self, above: str, prefix: str, after: str, limit: int, found: Keys
    ) -> None:
        """Add the keys below a path to `found`, in order, until it has `limit`."""
        names = await self._session.children(f"{self._root}/{above}".rstrip("/"))
        # A path may have a value and others below it: these sort as "name/", apart from "name".
        steps = sorted(
            step for n in names if not n.startswith(":") for step in (above + n, f"{above}{n}/")
        )
        leaves: set[str] = set()
        for step in steps:
            if len(found) >= limit:
                return
            if step.endswith("/"):
                is_wanted = step.startswith(prefix) or prefix.startswith(step)
                is_ahead = step > after or after.startswith(step)
                if is_wanted and is_ahead and step[:-1] not in leaves:
                    await self._take_after(step, prefix, after, limit, found)
            elif step.startswith(prefix) and step > after:
                each = await self._session.get(self._path(step))
                if each is not None and not each.children:
                    leaves.add(step)
                if each is not None and read_stored(step, each.data) is not None:
                    found.append(step)

    async def _read_keys(self, keys: Keys, listed: Listed) -> Keys:
        """Add the values of some keys to `listed`; returns those with keys below them."""
        found = await asyncio.gather(*(self._session.get(self._path(key)) for key in keys))
        for key, each in zip(keys, found, strict=True):
            value = self._learn(key, each)
            if value is not None:
                listed.append((key, value))
        return [f"{k}/" for k, each in zip(keys, found, strict=True) if each and each.children]

    # Writing.

    async def _write(self, attempt: _Attempt) -> int | None:
        """Do one compare-and-set, over as many connections as it needs."""
        while True:
            data_version = await self._again_if_lost(lambda: self._data_version_of(attempt))
            if data_version is None:
                return None
            outcome = await self._try(attempt, data_version)
            if isinstance(outcome, int):
                deleted = read_stored(attempt.key, attempt.data) is None
                self._remember(attempt.key, 0 if deleted else outcome, data_version + 1)
                return outcome
            # The remembered version was wrong, or a path has yet to be created.
            self._data_versions.pop(attempt.key, None)
            if outcome is Refusal.NOT_THERE:
                await self._again_if_lost(lambda: self._make_way(attempt.key))

    async def _data_version_of(self, attempt: _Attempt) -> int | None:
        """The data version that stands for the version expected; None if the path is gone."""
        known = self._data_versions.get(attempt.key)
        if known is None or known[0] != attempt.expected:
            await self._get(attempt.key)
            known = self._data_versions[attempt.key]
        return known[1] if known[0] == attempt.expected else None

    async def _try(self, attempt: _Attempt, data_version: int) -> int | Refusal | None:
        """One transaction; None if it was lost and is not done.

        Raises:
            OutcomeUnknown: its answer was lost, and another write came since.
        """
        path = self._path(attempt.key)
        change = Put(path, attempt.data, data_version)
        changes = Put(self._changes(attempt.key.partition("/")[0]), b"", -1)
        first = Make(path, attempt.data) if data_version == MAKE else change
        try:
            attempt.under_way = True
            outcome = await self._session.write([first, changes])
        except Lost:
            return await self._settle(attempt, data_version)
        attempt.under_way = False
        return outcome

    async def _settle(self, attempt: _Attempt, data_version: int) -> int | None:
        path = self._path(attempt.key)
        found = await self._again_if_lost(lambda: self._session.get(path, synced=True))
        stored = None if found is None else (found.data, found.data_version)
        verdict = settle(attempt.nonce, data_version, stored)
        if verdict is Verdict.UNKNOWN:
            raise OutcomeUnknown(f"the connection broke at a write of {attempt.key}")
        attempt.under_way = False
        return found.zxid if found is not None and verdict is Verdict.DONE else None

    async def _make_way(self, key: str) -> None:
        """Make the paths above a key's, and its part's place in `:changes`."""
        first, *_ = parts = key.split("/")
        await self._make_path(f"{self._root}/{_CHANGES}/{first}")
        if parts[:-1]:
            await self._make_path(self._path("/".join(parts[:-1])))

    async def _make_path(self, path: str) -> None:
        """Make an empty path, and those above it, where they are not there."""
        if await self._session.make(path) is Refusal.NOT_THERE:
            above = path.rpartition("/")[0]
            await self._make_path(above)
            if await self._session.make(path) is Refusal.NOT_THERE:
                raise Overloaded(f"{above} in ZooKeeper is being removed by another client")

    # Leases.

    async def _take_lease(self, key: str, value: bytes) -> bool:
        path = self._lease(key)
        refusal = await self._session.make(path, value, leased=True)
        if refusal is Refusal.NOT_THERE:
            await self._make_path(f"{self._root}/{_LEASES}")
            refusal = await self._session.make(path, value, leased=True)
        if refusal is None:
            return True
        found = await self._session.get(path, synced=True)
        if found is None or found.owner != self._session.session_id:
            return False
        if found.data != value:
            await self._session.put(path, value)
        return True

    # Paths.

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _changes(self, first: str) -> str:
        return f"{self._root}/{_CHANGES}/{first}"

    def _lease(self, key: str) -> str:
        # Nothing can be below an ephemeral path, and no key has a colon.
        return f"{self._root}/{_LEASES}/{key.replace('/', ':')}"


class _Attempt:
    """One compare-and-set.

    Attributes:
        under_way: whether it may be done, or be done later, without an answer.
    """

    __slots__ = ("data", "expected", "key", "nonce", "under_way")

    def __init__(self, key: str, data: bytes, nonce: bytes, expected: int) -> None:
        self.key = key
        self.data = data
        self.nonce = nonce
        self.expected = expected
        self.under_way = False
