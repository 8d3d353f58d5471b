"""The listening side: greets, bounds strangers, runs calls with a deadline.

Source: docs/sources/reliability.md §7 (1, 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from cordwood.errors import CordwoodError, Overloaded, Rejected, Unreachable
from cordwood.host.seams import Listener, Network
from cordwood.layout.frame import REPLY_BYTES_MAX, Frame, Kind
from cordwood.layout.hello import Hello
from cordwood.layout.message import (
    Call,
    DoneReply,
    Ping,
    Reply,
    pack,
    read_call,
    to_fault,
)
from cordwood.layout.reply_parts import pack_reply
from cordwood.layout.tokens import read_tokens
from cordwood.wire.arrivals import Arrivals
from cordwood.wire.connection import HELLO_TIMEOUT_S, Connection
from cordwood.wire.unread import Unread

logger = logging.getLogger(__name__)

STRANGERS_MAX = 256
"""Connections without a greeting yet; more than this is an attack or a bug. The oldest of them goes
then: a caller of ours greets at once, and is never the oldest for long."""

CONNECTIONS_MAX = 4096
"""Greeted connections of clients; well under the usual limit of open files, which the WAL and peers
share. Nodes come in beside them: a node that its peers cannot reach serves no client either."""

CLIENT_CALLS_MAX = 1024
"""The most calls of clients that run at the same time on one node. Each client limits its own
calls; see `connection.CLIENT_CALLS_AT_ONCE`."""

NODE_CALLS_MAX = 4096
"""Calls of nodes, beside those: a client that asks for a tail waits until the log is recovered,
and that takes seals. If these were refused because many clients wait, none of the waits would
end."""

CLIENT_CALL_BYTES_MAX = 512 << 20
"""Bytes of the calls of clients that run at once, as they came: a hundred and forty of the largest.
A call that waits for the metadata store or the disk stays in memory, and a call of many small parts
takes many times its bytes."""

CALL_TIMEOUT_S = 30.0
"""The longest any call may run; the callers' own deadlines are shorter."""


LATE_EVERY_S = 1.0
"""The time between two checks for frames that should be complete by now."""

_PONG = (pack(DoneReply()),)


class Service(Protocol):
    """A node's services to its connections."""

    def on_data(self, connection: Connection, frame: Frame) -> None:
        """A data frame; see `FrameHandler.on_frame`."""

    def on_call(self, connection: Connection, call: Call) -> Awaitable[Reply]:
        """Answer a call other than a ping; raises CordwoodError for a fault."""

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """A greeted connection is gone."""


class Server:
    """Accepts connections for a service until closed.

    Args:
        check_node: raises Unreachable for a caller that claims to be a node but is not a member. It
            protects against mistakes and strangers, but not against a forged greeting: greetings
            are not authenticated.
    """

    def __init__(
        self,
        network: Network,
        ours: Hello,
        service: Service,
        tasks: asyncio.TaskGroup,
        check_node: Callable[[Hello], None] = lambda _: None,
    ) -> None:
        self._check_node = check_node
        self._network = network
        self._ours = ours
        self._service = service
        self._tasks = tasks
        self._connections: dict[Connection, None] = {}
        # Calls of clients, and of nodes, that run now, each with its bytes.
        self._running: tuple[dict[asyncio.Task[None], int], ...] = ({}, {})
        self._client_call_bytes = 0
        self._strangers: dict[Connection, None] = {}
        self._clients = 0
        self._arrivals: Arrivals[Connection] = Arrivals()
        self._unread: Unread[Connection] = Unread(lambda each: each.backlog_bytes)
        self._late: asyncio.TimerHandle | None = None
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """`host:port` really bound."""
        assert self._listener is not None, "not listening yet"
        return self._listener.address

    @property
    def connections(self) -> int:
        """Connections now open, greeted or not."""
        return len(self._connections)

    @property
    def strangers(self) -> int:
        """Connections that have not greeted yet."""
        return len(self._strangers)

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for peers that do not read."""
        return self._unread.bytes

    @property
    def arrivals(self) -> Arrivals[Connection]:
        """Frames that have begun to arrive."""
        return self._arrivals

    async def listen(self, address: str) -> None:
        """Start to accept.

        Raises:
            BadSetting: the address is wrong or taken.
        """
        self._listener = await self._network.listen(address, self._accept)

    async def close(self) -> None:
        """Stop accepting and close every connection."""
        if self._late is not None:
            self._late.cancel()
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.close()
        for task in [task for running in self._running for task in running]:
            task.cancel()

    def _accept(self) -> Connection:
        connection = Connection(self._ours, self, dialled=False)
        self._connections[connection] = None
        connection.on_closed = self._forget
        connection.admit = self._admit
        connection.on_unfinished = self._on_unfinished
        connection.on_unread = self._on_unread
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.refuse(Overloaded(f"{STRANGERS_MAX} connections have not greeted yet"))
        self._strangers[connection] = None
        connection.ready.add_done_callback(lambda _: self._strangers.pop(connection, None))
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._expire, connection)
        return connection

    def _admit(self, theirs: Hello) -> None:
        """Admit a caller with a valid greeting, or refuse it with the reason; see
        `Connection.admit`."""
        if theirs.node:
            self._check_node(theirs)
            return
        if self._clients >= CONNECTIONS_MAX:
            raise Overloaded(
                f"node {self._ours.node} has {self._clients} connections of clients, too many: "
                "close some, or try again later"
            )
        self._clients += 1

    def _expire(self, connection: Connection) -> None:
        if connection.peer is None and connection.is_open:
            connection.fail(Unreachable(f"no hello within {HELLO_TIMEOUT_S:g} s"))

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._arrivals.note(connection, 0, 0, 0, is_new=True)
        self._unread.note(connection, 0)
        if connection.peer is not None and not connection.peer.node:
            self._clients -= 1

    def _on_unfinished(self, connection: Connection, here: int, length: int, is_new: bool) -> None:
        loop = asyncio.get_running_loop()
        self._arrivals.note(connection, here, length, loop.time(), is_new=is_new)
        if here and self._late is None:
            self._late = loop.call_later(LATE_EVERY_S, self._cut_late)
        # One large frame may force out many small ones.
        while (excess := self._arrivals.excess()) is not None:
            held = self._arrivals.bytes
            self._cut(excess, Overloaded(f"unfinished frames hold {held} bytes"))

    def _on_unread(self, connection: Connection, waiting: int) -> None:
        self._unread.note(connection, waiting)
        while (excess := self._unread.excess()) is not None:
            held = self._unread.bytes
            self._unread.note(excess, 0)
            excess.fail(Overloaded(f"{held} bytes wait for peers that do not read"))

    def _cut_late(self) -> None:
        """Cut off callers with overdue frames; called while frames are unfinished."""
        loop = asyncio.get_running_loop()
        for connection in self._arrivals.late(loop.time()):
            self._cut(connection, Unreachable("a frame that was begun did not end in time"))
        more = self._arrivals.bytes > 0
        self._late = loop.call_later(LATE_EVERY_S, self._cut_late) if more else None

    def _cut(self, connection: Connection, error: CordwoodError) -> None:
        self._arrivals.note(connection, 0, 0, 0, is_new=True)
        connection.fail(error)

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == Kind.TOKENS:
            connection.tokens = read_tokens(frame.payload)
            return
        if frame.kind != Kind.CALL:
            self._service.on_data(connection, frame)
            return
        call = read_call(frame.payload)
        if isinstance(call, Ping):
            # Nearly all calls of an idle cluster, and nothing to wait for: no task for it.
            connection.send(Kind.REPLY, frame.request, _PONG)
            return
        of_node = connection.peer is not None and connection.peer.node > 0
        running = self._running[of_node]
        size = 0 if of_node else len(frame.payload)
        held = self._client_call_bytes
        is_full = len(running) >= (NODE_CALLS_MAX if of_node else CLIENT_CALLS_MAX)
        if is_full or (size and held + size > CLIENT_CALL_BYTES_MAX):
            told = f"{len(running)} calls are running on this node, of {held} bytes"
            connection.send(Kind.FAULT, frame.request, (pack(to_fault(Overloaded(told))),))
            return
        task = self._tasks.create_task(self._answer(connection, frame.request, call))
        running[task] = size
        self._client_call_bytes += size
        task.add_done_callback(partial(self._on_answered, running))

    def _on_answered(
        self, running: dict[asyncio.Task[None], int], task: asyncio.Task[None]
    ) -> None:
        self._client_call_bytes -= running.pop(task)

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        self._service.on_lost(connection, error)

    async def _answer(self, connection: Connection, request: int, call: Call) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await self._service.on_call(connection, call)
        except TimeoutError:
            text = f"{type(call).__name__} took longer than {CALL_TIMEOUT_S:g} s"
            connection.send(Kind.FAULT, request, (pack(to_fault(Unreachable(text))),))
        except CordwoodError as error:
            connection.send(Kind.FAULT, request, (pack(to_fault(error)),))
        else:
            parts = pack_reply(reply)
            size = sum(map(len, parts))
            if fits(size):
                connection.send(Kind.REPLY, request, parts)
                return
            # The caller would close the connection, and lose all that is under way on it.
            text = f"the answer to {type(call).__name__} has {size} bytes, too many to send"
            connection.send(Kind.FAULT, request, (pack(to_fault(Rejected(text))),))


def fits(size: int) -> bool:
    """Whether a caller takes an answer of this many bytes."""
    return size <= REPLY_BYTES_MAX
