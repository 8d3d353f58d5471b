"""The metadata store on ZooKeeper, for clusters of more than one machine.

A key is a path below the store's root: `nodes/1` is `ROOT/nodes/1`. What lies there is
in `metadata.stored_value`. Every write is one transaction of the key's path and of
`ROOT/:changes/<first part of the key>`, whose zxid is the new version: one counter of the whole
ensemble, which never repeats. The `:changes` path is what watches watch. A listing that finds it
unchanged at its end is of one moment; otherwise it reads the keys once more
(`metadata.zookeeper_moment`). Leases are ephemeral paths in `ROOT/:leases`. They live as long as
the session, so the store itself drops a lease that was not renewed in time, or whose drop had no
answer. Without this, a process that lives and does other work would hold it for ever.

Reads are preceded by a `sync`, so that they are not behind on any server;
both travel together. A get and the compare-and-set after it are a round trip each,
because a path's data version is remembered with the version of the value.

After a lost connection, the write is searched for on the next connection, by its nonce. Its outcome
is unknown only if another write came after it, or if no server answers in time.

Source: docs/design.md §6; docs/sources/logdevice.md 2.1.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from cordwood.errors import Closed, CordwoodError, OutcomeUnknown, Overloaded, Unreachable
from cordwood.host.seams import Host
from cordwood.metadata.store import (
    DEADLINE_S,
    Keys,
    Leases,
    Page,
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
from cordwood.metadata.zookeeper_moment import Seen, at_moment
from cordwood.metadata.zookeeper_session import (
    SESSION_S,
    Found,
    Lost,
    Make,
    Put,
    Refusal,
    ZooKeeperSession,
)

logger = logging.getLogger(__name__)

DATA_VERSIONS_MAX = 4096
"""Keys with a remembered data version; a forgotten version costs a round trip."""

RECHECK_S = 10.0
"""The time between two checks of a watch without a notice. A notice that was lost is late by this
time."""

LIST_DEADLINES = 10
"""A listing has the deadlines of this many calls. It takes a round trip for every READ_AT_ONCE
keys, and a busy machine was seen to read no more than 500 keys a second."""

LOST_PAUSE_S = 0.01
"""Pause before a request is repeated after a broken connection: the loop learns of the break."""

CLOSE_S = 12.0
"""kazoo waits up to 10 s for its threads."""

LEASE_CHECK_S = 1.0
"""The time between two looks for leases that are over. Leases last for tens of seconds."""

READ_AT_ONCE = 64
"""The most paths that a listing reads at the same time: as many as the session takes."""

Answer = TypeVar("Answer")

Listed = list[tuple[str, Versioned]]
OnRead = Callable[[], None]
"""Called after each step of a listing."""

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
        # By key, when a lease of this session is over, on the loop's clock; infinity while it is
        # being taken.
        self._held: dict[str, float] = {}
        self._ending: asyncio.Task[None] | None = None

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
        """See `MetadataStore`, and `page`."""
        return [key for key, _ in await self.page(prefix, after, limit)]

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """See `MetadataStore`; only the paths on the way to the page are read.

        Each step of READ_AT_ONCE paths has the deadline of a listing. Paths of deleted keys stay,
        so a page may have to pass any number of them, and would begin again at the same place.
        """
        check_page(prefix, limit)
        loop = asyncio.get_running_loop()
        step_s = LIST_DEADLINES * self._deadline_s

        async def read(on_read: OnRead) -> Page:
            found: Page = []
            parent, slash, _ = prefix.rpartition("/")
            await self._session.get(self._root, synced=True)
            await self._take_after(parent + slash, prefix, after, limit, found, on_read)
            return found

        async with self._answering(step_s) as patience:
            return await self._again_if_lost(
                lambda: read(lambda: patience.reschedule(loop.time() + step_s))
            )

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
        """See `MetadataStore`; it ends with the session at the latest."""
        check_lease(key, value, ttl_s)
        self._held[key] = math.inf
        # Without an answer the session may hold it: then it is over after its time, too.
        may_be_ours = True
        try:
            async with self._answering():
                may_be_ours = await self._again_if_lost(lambda: self._take_lease(key, value))
                return may_be_ours
        finally:
            if may_be_ours:
                self._end_lease_after(key, ttl_s)
            else:
                self._held.pop(key, None)

    async def drop_lease(self, key: str) -> None:
        """See `MetadataStore`. If this gets no answer, the lease is dropped later."""
        check_lease(key, b"", 1)
        self._end_lease_after(key, 0.0)
        await self._drop_lease(key)

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
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
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
    async def _answering(self, deadline_s: float = 0.0) -> AsyncIterator[asyncio.Timeout]:
        try:
            async with asyncio.timeout(deadline_s or self._deadline_s) as patience:
                yield patience
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
        """Read all keys below the prefix, as of one moment (`metadata.zookeeper_moment`)."""
        mark, seen = await self._last_write(prefix), await self._walk(prefix)
        while True:
            before, mark = mark, await self._last_write(prefix)
            if before == mark:
                return _listed((key, each.value) for key, each in seen.items())
            first, seen = seen, await self._walk(prefix)
            values = at_moment(first, seen, mark)
            if values is not None:
                return _listed(values.items())

    async def _last_write(self, prefix: str) -> int:
        """The zxid of the last write to the parts of the store that the prefix may mean."""
        first, slash, _ = prefix.partition("/")
        await self._session.get(self._root, synced=True)
        names = [first]
        if not slash:
            all_names = await self._session.children(f"{self._root}/{_CHANGES}")
            names = [name for name in all_names if name.startswith(first)]
        found = await asyncio.gather(*(self._session.get(self._changes(name)) for name in names))
        return max((each.zxid for each in found if each is not None), default=0)

    async def _walk(self, prefix: str) -> dict[str, Seen]:
        """Read each key below the prefix once."""
        parent, slash, _ = prefix.rpartition("/")
        seen: dict[str, Seen] = {}
        parents = [parent + slash]
        while parents:
            above = parents.pop()
            names = await self._session.children(f"{self._root}/{above}".rstrip("/"))
            keys = [above + name for name in names if not name.startswith(":")]
            keys = [key for key in keys if key.startswith(prefix)]
            for at in range(0, len(keys), READ_AT_ONCE):
                parents += await self._read_keys(keys[at : at + READ_AT_ONCE], seen)
            check_listed(prefix, sum(each.value is not None for each in seen.values()))
        return seen

    async def _take_after(
        self, above: str, prefix: str, after: str, limit: int, found: Page, on_read: OnRead
    ) -> None:
        """Add the keys below a path to `found`, in order, until it has `limit`."""
        names = await self._session.children(f"{self._root}/{above}".rstrip("/"))
        on_read()
        # A path may have a value and others below it: these sort as "name/", apart from "name".
        steps = sorted(
            step for n in names if not n.startswith(":") for step in (above + n, f"{above}{n}/")
        )
        wanted = [s for s in steps if s[-1] != "/" and s.startswith(prefix) and s > after]
        ahead: dict[str, Found | None] = {}
        leaves: set[str] = set()
        for step in steps:
            if len(found) >= limit:
                return
            if step.endswith("/"):
                is_wanted = step.startswith(prefix) or prefix.startswith(step)
                is_ahead = step > after or after.startswith(step)
                if is_wanted and is_ahead and step[:-1] not in leaves:
                    await self._take_after(step, prefix, after, limit, found, on_read)
            elif step.startswith(prefix) and step > after:
                if step not in ahead:
                    # Number: paths of deleted keys stay, and there may be many between two keys.
                    # One round trip for each of them took minutes.
                    at = bisect_left(wanted, step)
                    keys = wanted[at : at + READ_AT_ONCE]
                    read = await asyncio.gather(*(self._session.get(self._path(k)) for k in keys))
                    ahead = dict(zip(keys, read, strict=True))
                    on_read()
                each = ahead[step]
                if each is not None and not each.children:
                    leaves.add(step)
                value = None if each is None else read_stored(step, each.data)
                if each is not None and value is not None:
                    found.append((step, Versioned(value, each.zxid)))

    async def _read_keys(self, keys: Keys, seen: dict[str, Seen]) -> Keys:
        """Add the paths of some keys to `seen`; returns those with keys below them."""
        found = await asyncio.gather(*(self._session.get(self._path(key)) for key in keys))
        for key, each in zip(keys, found, strict=True):
            value = self._learn(key, each)
            if each is not None:
                seen[key] = Seen(value, each.zxid, each.data_version)
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
        if found is None or found.owner != self._own_session():
            return False
        if found.data != value:
            await self._session.put(path, value)
        return True

    async def _drop_lease(self, key: str) -> None:
        """Drop a lease of this session, unless it has been taken again since."""
        loop, path = asyncio.get_running_loop(), self._lease(key)

        async def drop() -> None:
            found = await self._session.get(path)
            is_ours = found is not None and found.owner == self._own_session()
            if is_ours and self._held.get(key, 0.0) <= loop.time():
                await self._session.remove(path)

        async with self._answering():
            await self._again_if_lost(drop)
        if self._held.get(key, 0.0) <= loop.time():
            self._held.pop(key, None)

    def _own_session(self) -> int:
        """The session's number.

        Raises:
            Lost: there is none at present, so it cannot be compared with that of a lease.
        """
        session = self._session.session_id
        if not session:
            raise Lost("the connection broke between two requests")
        return session

    def _end_lease_after(self, key: str, ttl_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._held[key] = loop.time() + ttl_s
        if self._ending is None or self._ending.done():
            self._ending = loop.create_task(self._end_leases())

    async def _end_leases(self) -> None:
        """Drop leases that are over, for as long as there are leases."""
        loop = asyncio.get_running_loop()
        while self._held:
            await asyncio.sleep(LEASE_CHECK_S)
            for key in [key for key, over_s in self._held.items() if over_s <= loop.time()]:
                try:
                    await self._drop_lease(key)
                except Closed:
                    return  # the leases end with the session
                except CordwoodError as error:
                    logger.info("the lease %s is dropped later: %s", key, error)

    # Paths.

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _changes(self, first: str) -> str:
        return f"{self._root}/{_CHANGES}/{first}"

    def _lease(self, key: str) -> str:
        # Nothing can be below an ephemeral path, and no key has a colon.
        return f"{self._root}/{_LEASES}/{key.replace('/', ':')}"


def _listed(values: Iterable[tuple[str, Versioned | None]]) -> Listed:
    """The keys that have values, sorted."""
    return sorted((key, value) for key, value in values if value is not None)


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
