"""One connection: hello, frames in, corked frames out, calls with deadlines.

Everything sent in one tick leaves in one `writelines`, because uvloop makes a system call of every
write; nothing waits on a timer for that. A damaged frame closes this connection with a logged
reason and nothing else.

Source: docs/design.md §4; docs/sources/hotpath.md §3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from cordwood.block import Buffer
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    Corrupt,
    Malformed,
    NotOurCluster,
    Overloaded,
    Rejected,
    Retryable,
    Unreachable,
)
from cordwood.host.seams import Network, Transport
from cordwood.layout.answers import check_answer
from cordwood.layout.changes import without_answer
from cordwood.layout.frame import (
    CONTROL_BYTES_MAX,
    Frame,
    FrameParser,
    Kind,
    checksum,
    frame_header,
    next_number,
)
from cordwood.layout.hello import (
    ANY_CLUSTER,
    Hello,
    check_hello,
    pack_hello,
    to_refusal,
    unpack_hello,
)
from cordwood.layout.hello import to_error as refusal_error
from cordwood.layout.message import (
    Call,
    Ping,
    Reply,
    pack,
    read_fault,
    read_reply,
    to_error,
)
from cordwood.layout.message_ledgers import AskLac
from cordwood.layout.message_nodes import AskMembers

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
"""Long enough for a busy peer, short enough that silent callers do not pile up."""

BACKLOG_BYTES_MAX = 256 << 20
"""The most bytes that wait for a peer. A peer with more does not read, and its connection is
closed."""

CALLS_MAX = 4096
"""Calls in flight on one connection; every caller of ours has far fewer."""

CLIENT_CALLS_AT_ONCE = 128
"""The most calls of a client under way on one connection; further calls wait here, in order. It is
enough to hide the round trips, and a node takes as many calls from eight clients before it refuses
any."""

CLIENT_CALLS_WAITING_MAX = 1 << 16
"""Calls that wait for their turn on one connection: a few hundred bytes each."""

POLLS_AT_ONCE = 96
"""The most of these calls that wait at the node for news. So other calls always have their turn:
without this bound, an entry of a client that follows 500 ledgers waited two seconds."""

_AT_ONCE = (Ping, AskMembers)
"""Calls that wait for no others: by these a client finds out that a node is dead."""


class FrameHandler(Protocol):
    """The receiver of a connection's frames; called on the loop, must not block."""

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Take a frame other than a greeting, a reply or a fault.

        Raises:
            CordwoodError: the frame is wrong; the connection is closed.
        """

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """The connection is gone, with why; called once, and only if it was greeted."""


class Connection:
    """See the module. Made by `dial` or by `wire.server.Server`.

    Attributes:
        peer: the other side's greeting; None until greeted.
    """

    def __init__(self, ours: Hello, handler: FrameHandler, *, dialled: bool) -> None:
        self.peer: Hello | None = None
        self._ours = ours
        self._handler = handler
        self._dialled = dialled
        self._parser = FrameParser()
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._sent = 0
        self._flush_due = False
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        # Calls of nodes do not queue behind one another, because appends wait for their answers.
        self._turns = None if ours.node else asyncio.Semaphore(CLIENT_CALLS_AT_ONCE)
        self._polls = asyncio.Semaphore(POLLS_AT_ONCE)
        self._waiting = 0
        self._next_request = 1
        self._error: CordwoodError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.on_closed: Callable[[Connection], None] | None = None
        # Digests of the write tokens that the other side showed.
        self.tokens: frozenset[str] = frozenset()
        # A further check of a caller's greeting; raises the refusal.
        self.admit: Callable[[Hello], None] | None = None
        # Called with the size of an unfinished frame, see `Arrivals.note`.
        self.on_unfinished: Callable[[Connection, int, int, bool], None] | None = None
        self._is_unfinished = False
        # Called with the bytes that wait for a peer that does not read; 0 once it reads again.
        self.on_unread: Callable[[Connection, int], None] | None = None
        # Called when a call is sent, and when a call had no answer in time.
        self.on_asked: Callable[[], None] | None = None
        self.on_silent: Callable[[], None] | None = None
        self.on_writable: Callable[[Connection], None] | None = None

    def __str__(self) -> str:
        if self.peer is None:
            return "a peer not greeted yet"
        return f"node {self.peer.node}" if self.peer.node else "a client"

    # Called by a transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        if self._error is not None:
            # The machine makes a connection a turn after it asked for its handler; a
            # server may have refused it in between.
            self._transport.abort()
        elif self._dialled:
            self.send(Kind.HELLO, 0, (pack_hello(self._ours),))

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._parser.feed(data)
            for frame in frames:
                self._on_frame(frame)
        except CordwoodError as error:
            self.fail(error)
        else:
            self._note_unfinished(bool(frames))

    def receive_into(self) -> memoryview | None:
        return self._parser.receive_into()

    def placed(self, count: int) -> None:
        try:
            frames = self._parser.placed(count)
            for frame in frames:
                self._on_frame(frame)
        except CordwoodError as error:
            self.fail(error)
        else:
            self._note_unfinished(bool(frames))

    def _note_unfinished(self, is_new: bool) -> None:
        if self.on_unfinished is None:
            return
        here, length = self._parser.unfinished
        if here or self._is_unfinished:  # most of what arrives is whole frames
            self._is_unfinished = here > 0
            self.on_unfinished(self, here, length, is_new)

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        error = self._error or Unreachable(f"the connection to {self} was lost: {exc or 'closed'}")
        self._error = error
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._parser.drop()
        self._writable.set()
        # Every call ends here: none may wait for an answer on a connection that is gone.
        told = self.error_for_callers(error)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(told)
        self._calls.clear()
        if not self.ready.done():
            self.ready.set_exception(told)
            self.ready.exception()
        elif self.peer is not None:
            self._handler.on_lost(self, error)
        if self.on_closed is not None:
            self.on_closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self.on_unread is not None:
            self.on_unread(self, 0)
        if self.on_writable is not None:
            self.on_writable(self)

    # Called by other rooms.

    @property
    def is_open(self) -> bool:
        """Whether frames may still be sent."""
        return self._error is None and self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether the machine takes more; `on_writable` is called when that comes back."""
        return self._writable.is_set()

    @property
    def backlog_bytes(self) -> int:
        """Bytes accepted by `send` and not yet handed to the machine."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def send(
        self, kind: int, request: int, parts: Sequence[Buffer], payload_crc: int | None = None
    ) -> None:
        """Cork one frame; it leaves at the end of this tick. Dropped if closed.

        `payload_crc` is `checksum(parts)` where the caller has it already.
        """
        if self._error is not None:
            return
        length = 0
        for part in parts:
            length += len(part)
        crc = checksum(parts) if payload_crc is None else payload_crc
        # By its number the other side notices a frame that is missing or doubled.
        self._sent = next_number(self._sent)
        self._out.append(frame_header(kind, request, length, crc, self._sent))
        self._out.extend(parts)
        self._out_bytes += length
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    @property
    def calls(self) -> int:
        """Number of calls without an answer yet, sent or waiting to be sent."""
        return len(self._calls) + self._waiting

    @property
    def asked(self) -> int:
        """Calls that were sent so far."""
        return self._next_request - 1

    def waits_for(self, asked: int) -> bool:
        """Whether one of the first `asked` calls is unanswered."""
        return next(iter(self._calls), asked + 1) <= asked

    async def call(
        self, message: Call, *, timeout_s: float, answer_s: float | None = None
    ) -> Reply:
        """Ask and wait for the answer.

        At most CLIENT_CALLS_AT_ONCE calls of a client are under way at a time, POLLS_AT_ONCE that
        wait for news; the others wait in order. Calls that ask whether a node is alive do not wait.

        Args:
            timeout_s: for all of it.
            answer_s: for the answer alone, from when the call is sent; None to take the remaining
                time.
        Raises:
            Unreachable: no answer in time, or the connection went away, for any reason.
            Overloaded: too many wait already; nothing was sent.
            BadSetting: no node would read so large a call; nothing was sent.
            Closed, NotOurCluster: this side closed it, or the other side refused.
            OutcomeUnknown: this side, a client, closed it after it had sent a change.
            CordwoodError: the other side's error.
        """
        try:
            async with asyncio.timeout(timeout_s):
                # A ping that waited behind a hundred slow calls would report a live node as dead.
                if self._turns is None or isinstance(message, _AT_ONCE):
                    return await self._ask(message, answer_s)
                if self._waiting >= CLIENT_CALLS_WAITING_MAX:
                    raise Overloaded(f"{self._waiting} calls to {self} wait for their turn")
                if not (isinstance(message, AskLac) and message.wait_ms):
                    return await self._ask_in_turn(self._turns, message, answer_s)
                await self._wait_turn(self._polls)
                try:
                    return await self._ask_in_turn(self._turns, message, answer_s)
                finally:
                    self._polls.release()
        except TimeoutError:
            raise self._silent(message, timeout_s) from None

    async def _wait_turn(self, turns: asyncio.Semaphore) -> None:
        self._waiting += 1
        try:
            await turns.acquire()
        finally:
            self._waiting -= 1

    async def _ask_in_turn(
        self, turns: asyncio.Semaphore, message: Call, answer_s: float | None
    ) -> Reply:
        await self._wait_turn(turns)
        try:
            return await self._ask(message, answer_s)
        finally:
            turns.release()

    async def _ask(self, message: Call, answer_s: float | None) -> Reply:
        """Send a call and wait for its answer; see `call`."""
        if self._error is not None:
            raise self.error_for_callers(self._error)
        if len(self._calls) >= CALLS_MAX:
            raise Unreachable(f"{CALLS_MAX} calls to {self} are unanswered")
        packed = pack(message)
        if len(packed) > CONTROL_BYTES_MAX:
            # The other side would close the connection.
            raise BadSetting(f"{type(message).__name__} has {len(packed)} bytes, too many to ask")
        request = self._next_request
        self._next_request += 1
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._calls[request] = answer
        self.send(Kind.CALL, request, (packed,))
        if self.on_asked is not None:
            self.on_asked()
        try:
            # None: by the caller's deadline alone.
            async with asyncio.timeout(answer_s):
                reply = await answer
        except TimeoutError:
            raise self._silent(message, answer_s or 0) from None
        except Closed as error:
            if error is not self._error:
                raise  # the other side's answer
            raise self._closed_meanwhile(message, error) from None
        finally:
            # Also after a timeout: the answer may still come, and is dropped then.
            self._calls.pop(request, None)
        try:
            # A faulty node may answer with another kind, or for another log.
            check_answer(message, reply)
        except Malformed as error:
            self.fail(error)
            raise self.error_for_callers(error) from None
        return reply

    def _closed_meanwhile(self, message: Call, error: Closed) -> CordwoodError:
        # Trap: `Closed` says that nothing was done, but the node has the call, and may carry it
        # out. A node has no caller to tell: it closes its connections as it stops.
        return error if self._ours.node else without_answer(message, error)

    def _silent(self, message: Call, waited_s: float) -> Unreachable:
        if self.on_silent is not None:
            self.on_silent()
        name = type(message).__name__
        return Unreachable(f"{self} did not answer {name} within {waited_s:g} s")

    async def wait_writable(self) -> None:
        """Wait until the machine takes more; returns at once on a closed connection."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Take nothing more from the peer until `resume_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send corked frames, then close."""
        if self._error is None:
            self._flush()
            self._error = Closed(f"the connection to {self} was closed here")
        if self._transport is not None:
            self._transport.close()

    def fail(self, error: CordwoodError) -> None:
        """Close at once because of `error`."""
        if self._error is not None:
            return
        level = logging.WARNING if isinstance(error, (Corrupt, NotOurCluster)) else logging.DEBUG
        logger.log(level, "closing the connection to %s: %s", self, error)
        self._error = error
        # An object that keeps this connection must not keep a frame that will never be whole.
        self._parser.drop()
        if self._transport is not None:
            self._transport.abort()

    # Inside.

    def error_for_callers(self, error: CordwoodError) -> CordwoodError:
        """The error for callers of a connection that closed.

        A frame that arrived damaged says nothing about a caller's request: for the caller the
        connection was lost, as by a reset, and asking again is right. Only a reader of the node's
        log needs to know which byte was wrong.
        """
        if isinstance(error, (Retryable, Rejected)):
            return error
        return Unreachable(f"the connection to {self} was lost: {error}")

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is None or self._error is not None or not self._out:
            return
        parts, self._out, self._out_bytes = self._out, [], 0
        was_writable = self._writable.is_set()
        self._transport.writelines(parts)
        # Memory is bounded for a peer that does not read.
        waiting = self._transport.get_write_buffer_size()
        if waiting > BACKLOG_BYTES_MAX:
            self.fail(Unreachable(f"{self} does not read: {BACKLOG_BYTES_MAX} bytes wait for it"))
        elif not was_writable and self.on_unread is not None:
            self.on_unread(self, waiting)

    def _on_frame(self, frame: Frame) -> None:
        if self._error is not None:
            return
        kind = frame.kind
        if self.peer is None:
            self._on_greeting(kind, frame)
        elif kind == Kind.REPLY or kind == Kind.FAULT:
            call = self._calls.get(frame.request)
            if call is None or call.done():
                return  # its caller gave up; the answer comes too late for anyone
            if kind == Kind.REPLY:
                call.set_result(read_reply(frame.payload))
            else:
                call.set_exception(to_error(read_fault(frame.payload)))
        else:
            self._handler.on_frame(self, frame)

    def _on_greeting(self, kind: int, frame: Frame) -> None:
        if self._dialled and kind == Kind.REFUSAL:
            raise refusal_error(frame.request, frame.payload)
        if kind != (Kind.WELCOME if self._dialled else Kind.HELLO):
            raise Malformed("a greeting of the wrong kind")
        theirs = unpack_hello(frame.payload)
        try:
            # Before the first frame is taken: a peer of another cluster must not store anything
            # here.
            check_hello(self._ours, theirs)
            if self.admit is not None:
                self.admit(theirs)
        except CordwoodError as error:
            if not self._dialled:
                self.refuse(error)
            raise
        self.peer = theirs
        if not self._dialled:
            self.send(Kind.WELCOME, 0, (pack_hello(self._ours),))
        self._parser.greeted = True
        self.ready.set_result(None)
        # Frames may have come in one piece with the greeting.
        for frame in self._parser.feed(b""):
            self._on_frame(frame)

    def refuse(self, error: CordwoodError) -> None:
        """Close with a REFUSAL, so that a caller of ours can say why."""
        if self._error is not None:
            return
        kind, text = to_refusal(error)
        self.send(Kind.REFUSAL, kind, (text,))
        self._flush()
        level = logging.WARNING if isinstance(error, NotOurCluster) else logging.INFO
        logger.log(level, "refused a caller: %s", error)
        self._error = error
        if self._transport is not None:
            self._transport.close()


async def dial(
    network: Network, address: str, ours: Hello, handler: FrameHandler, *, timeout_s: float
) -> Connection:
    """Connect and greet.

    Raises:
        Unreachable: refused, not greeted within `timeout_s`, or greeted in no way of ours.
        NotOurCluster: the other side is another cluster, node or version.
    """
    made = await network.connect(
        address, lambda: Connection(ours, handler, dialled=True), timeout_s=timeout_s
    )
    connection = cast(Connection, made)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(connection.ready)
    except TimeoutError:
        connection.fail(Unreachable(f"{address} did not greet within {timeout_s:g} s"))
        raise Unreachable(f"{address} did not greet within {timeout_s:g} s") from None
    except asyncio.CancelledError:
        # Trap: a dial that is given up must not leave an open connection without an owner.
        connection.close()
        raise
    return connection


__all__ = ["ANY_CLUSTER", "Connection", "FrameHandler", "Hello", "dial"]
