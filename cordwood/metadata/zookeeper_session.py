"""ZooKeeper for asyncio code: it turns kazoo and its threads into futures.

The only module that knows kazoo. Paths are whole paths. A refusal is a value, and a broken
connection is `Lost`, because then the caller has to find out the request's outcome. Deadlines are
the callers'.

kazoo hands a request to its thread by a byte in a pipe, and would block this loop when
that pipe is full, so at most REQUESTS_MAX are with it at a time, abandoned requests included.

kazoo's connecting thread ends at an error that kazoo does not expect: a process that is out of file
descriptors cannot look up a server's name. Another client then goes on with the same session, so
that a write of the first client cannot come later than a read of the second.

Source: docs/design.md §6.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler

from cordwood.errors import Closed, Unreachable

logger = logging.getLogger(__name__)

SESSION_S = 6.0
"""The servers keep a silent client's session, and its leases, this long. Three ticks of ZooKeeper's
usual 2 s; the server raises shorter times to two ticks."""

RECONNECT_S = (0.05, 1.0)
"""First and longest pause between tries to connect: a server restarts in a second or two.
(kazoo's own longest is an hour.)"""

BEGIN_AGAIN_S = 1.0
"""Pause before another client begins. Descriptors are free again when some connections have
ended."""

REQUESTS_MAX = 64
"""The pipe holds some 270; a listing asks for this many values at once."""


class Lost(Exception):
    """The connection broke before the answer came: the request was done or was not."""


class Refusal(enum.Enum):
    """Why a write was not done."""

    NOT_THERE = "a path, or the one above it, is not there"
    THERE = "a path to be made is there already"
    CHANGED = "the path's data has another version"


@dataclass(frozen=True, slots=True)
class Found:
    """One path.

    Attributes:
        data_version: counts the writes to its data; starts at 0 when it is made.
        zxid: of the transaction that wrote its data last. Never repeats, on any path.
        children: how many there are.
        owner: the session that it lives as long as, 0 if it stays.
    """

    data: bytes
    data_version: int
    zxid: int
    children: int
    owner: int


@dataclass(frozen=True, slots=True)
class Make:
    """Create a path with an existing parent."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Replace a path's data if it has this `data_version`; -1 is any."""

    path: str
    data: bytes
    data_version: int


_LOST = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)

_NOT_TRIED = (RolledBackError, RuntimeInconsistency)
"""A transaction's answer for the changes before and after the failed one."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads; tells when the connecting thread ends, which is the only one that it spawns.

    Args:
        on_end: called by that thread with its error, None if it was told to end.
    """

    def __init__(self, on_end: Callable[[Exception | None], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def spawn(self, func: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """See kazoo."""

        def run() -> None:
            ended_by: Exception | None = None
            try:
                func(*values, **named)
            except Exception as error:  # noqa: BLE001  (any that kazoo does not expect)
                ended_by = error
            self._on_end(ended_by)

        return super().spawn(run)


class ZooKeeperSession:
    """See the module. All methods are called on one loop, the first caller's.

    Requests also raise Unreachable for an error that does not answer them, such as a server that
    admits no clients.

    Args:
        hosts: `host:port,host:port`.
    """

    def __init__(self, hosts: str, *, session_s: float = SESSION_S) -> None:
        self._hosts = hosts
        self._session_s = session_s
        self._client: Any = None
        # The session's number and password.
        self._session: tuple[int, bytes] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._closed = False
        self._connected = asyncio.Event()
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(REQUESTS_MAX)

    @property
    def session_id(self) -> int:
        """The session's number, 0 without a session."""
        known = self._client.client_id if self._client is not None else None
        return known[0] if known else 0

    async def wait_connected(self) -> None:
        """Connect, if that was not done, and wait until a server answers.

        Raises:
            Closed: after `begin_close`.
        """
        if self._closed:
            raise Closed("the metadata store was closed")
        if self._client is None:
            self._start()
        await self._connected.wait()

    @property
    def news(self) -> asyncio.Event:
        """Set when next a watched path changes, or the connection comes back. Take it before the
        path is watched: then no later event is missed."""
        return self._news

    async def get(self, path: str, *, synced: bool = False) -> Found | None:
        """A path, None if it is not there.

        Args:
            synced: True reads the present value. False reads the value that the answering server
                knows, which may be older.
        Raises:
            Lost: the connection broke.
        """
        syncs: list[Any] = []

        def submit(client: Any) -> Any:
            # Requests of one session are done in order, so both travel together.
            if synced:
                syncs.append(client.sync_async(path))
            return client.get_async(path)

        try:
            data, stat = await self._ask(submit)
        except NoNodeError:
            data, stat = b"", None
        if any(sync.exception is not None for sync in syncs):
            raise Lost("the connection broke between two requests")
        if stat is None:
            return None
        return Found(data, stat.version, stat.mzxid, stat.numChildren, stat.ephemeralOwner)

    async def watch(self, path: str) -> int:
        """The zxid of a path's data, 0 if it is not there; `news` tells of the next.

        Raises:
            Lost: the connection broke.
        """
        stat = await self._ask(lambda client: client.exists_async(path, self._on_watched))
        return 0 if stat is None else int(stat.mzxid)

    async def children(self, path: str) -> list[str]:
        """Names below a path, sorted; none if it is not there.

        Raises:
            Lost: the connection broke.
        """
        try:
            return sorted(await self._ask(lambda client: client.get_children_async(path)))
        except NoNodeError:
            return []

    async def write(self, changes: Sequence[Make | Put]) -> int | Refusal:
        """Do all changes, the last of which is a `Put`, in one transaction, or none of them.

        Returns:
            The transaction's zxid, or why the change that failed did.
        Raises:
            Lost: the connection broke.
        """

        def submit(client: Any) -> Any:
            transaction = client.transaction()
            for each in changes:
                if isinstance(each, Make):
                    transaction.create(each.path, each.data)
                else:
                    transaction.set_data(each.path, each.data, each.data_version)
            return transaction.commit_async()

        results = await self._ask(submit)
        for each in results:
            if isinstance(each, KazooException) and not isinstance(each, _NOT_TRIED):
                return _refusal(each)
        return int(results[-1].mzxid)

    async def make(self, path: str, data: bytes = b"", *, leased: bool = False) -> Refusal | None:
        """Make a path; None when that was done. Those `leased` go with the session.

        Raises:
            Lost: the connection broke.
        """
        try:
            await self._ask(lambda client: client.create_async(path, data, ephemeral=leased))
        except (NodeExistsError, NoNodeError) as error:
            return _refusal(error)
        return None

    async def put(self, path: str, data: bytes) -> None:
        """Replace a path's data, if it is there.

        Raises:
            Lost: the connection broke.
        """
        try:
            await self._ask(lambda client: client.set_async(path, data))
        except NoNodeError:
            return

    async def remove(self, path: str) -> None:
        """Remove a path without children, if it is there.

        Raises:
            Lost: the connection broke.
        """
        try:
            await self._ask(lambda client: client.delete_async(path))
        except NoNodeError:
            return

    def begin_close(self) -> Callable[[], None] | None:
        """Take no more requests; returns the call that ends the session, for a thread."""
        self._closed = True
        client, self._client = self._client, None
        if client is None:
            return None

        def end() -> None:
            client.stop()
            client.close()

        return end

    # Below: kazoo, and the reports of its threads.

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        delay_s, delay_max_s = RECONNECT_S
        self._client = client = KazooClient(
            self._hosts,
            timeout=self._session_s,
            client_id=self._session,
            handler=_Handler(lambda error: self._tell(self._on_end, client, error)),
            connection_retry={"max_tries": -1, "delay": delay_s, "max_delay": delay_max_s},
        )
        client.add_listener(lambda state: self._tell(self._on_state, str(state)))
        client.start_async()

    def _on_end(self, client: Any, error: Exception | None) -> None:
        """The connecting thread of a client ended: by `begin_close`, or by an error."""
        if client is self._client:
            logger.warning("ZooKeeper at %s: kazoo ended and begins anew: %r", self._hosts, error)
            self._loop.call_later(BEGIN_AGAIN_S, self._begin_again, client)

    def _begin_again(self, client: Any) -> None:
        if client is not self._client:
            return  # closed
        # No thread of it works any more, so neither call waits.
        client.stop()
        client.close()
        self._start()

    async def _ask(self, submit: Callable[[Any], Any]) -> Any:
        """A request's answer; a given up one keeps its slot until kazoo is done with it."""
        await self._slots.acquire()
        if self._client is None:
            self._slots.release()
            raise Closed("the metadata store was closed")
        answer: asyncio.Future[Any] = self._loop.create_future()
        result = submit(self._client)
        result.rawlink(lambda done: self._tell(self._on_answer, answer, done))
        try:
            return await answer
        except _LOST as error:
            raise Lost(type(error).__name__) from error
        except (NoNodeError, NodeExistsError):
            raise
        except KazooException as error:
            raise _unreachable(self._hosts, error) from error

    def _on_answer(self, answer: asyncio.Future[Any], result: Any) -> None:
        self._slots.release()
        if answer.done():
            return
        if result.exception is not None:
            answer.set_exception(result.exception)
        else:
            answer.set_result(result.value)

    def _on_state(self, state: str) -> None:
        if state == "CONNECTED":
            if self._client is not None:
                self._session = self._client.client_id or self._session
            self._connected.set()
            self._wake()
        else:
            self._connected.clear()
            logger.info("ZooKeeper at %s: the connection is %s", self._hosts, state.lower())

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _on_watched(self, _: Any) -> None:
        self._tell(self._wake)

    def _tell(self, function: Callable[..., None], *values: Any) -> None:
        """From kazoo's threads to the loop."""
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            # The loop was closed, and with it all that waited for this.
            logger.debug("ZooKeeper said something after the loop was closed")


def _refusal(error: KazooException) -> Refusal:
    match error:
        case NoNodeError():
            return Refusal.NOT_THERE
        case NodeExistsError():
            return Refusal.THERE
        case BadVersionError():
            return Refusal.CHANGED
    raise _unreachable("the servers", error)


def _unreachable(hosts: str, error: KazooException) -> Unreachable:
    return Unreachable(f"ZooKeeper at {hosts} refused a request: {error!r}")
