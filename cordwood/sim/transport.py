"""A simulated connection: two transports, and a pipe each way.

A pipe is a byte stream through a sender's write buffer (the `outbox`, the bytes that asyncio
holds), a bounded flight (the kernels' buffers and the wire) and a receiver's unread bytes. It keeps
order, and it stalls where a link is cut, as TCP's retransmissions do. Bytes that a process handed
to its kernel outlive the process; its outbox does not.

A handler gets the same calls in the same order as from asyncio. One contract suite checks both.

Source: asyncio/selector_events.py; docs/sources/reliability.md §5.1.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

from cordwood.block import Buffer
from cordwood.host.seams import DirectReceiver, StreamHandler
from cordwood.sim.links import LinkSettings
from cordwood.sim.loop import SimHandle
from cordwood.sim.process import Process, ProcessState

if TYPE_CHECKING:
    from cordwood.sim.network import SimNetwork

WRITE_HIGH_BYTES = 64 << 10
WRITE_LOW_BYTES = 16 << 10
"""asyncio's default marks for pause_writing and resume_writing."""

READ_BYTES_MAX = 256 << 10
"""One data_received, as in asyncio."""

MERGE_CHANCE = 0.5
"""The chance that segments that arrive at one instant, as after a late segment, are merged."""

_FIN: Final = b""
"""The end of a stream, in order after its bytes; no other segment is empty."""


class Pipe:
    """Bytes from one transport to the other."""

    def __init__(self, network: SimNetwork, source: SimTransport, target: SimTransport) -> None:
        self.source = source
        self.target = target
        self.outbox_bytes = 0
        self._network = network
        self._outbox: deque[bytes | memoryview] = deque()
        self._flight: deque[tuple[float, bytes]] = deque()  # each with its time of arrival
        self._flight_bytes = 0
        self._last_arrival = 0.0
        self._wire_free_at = 0.0
        self._stalled = 0
        self._unacked_bytes = 0
        self._closed = False
        # One handle for all arrivals: nothing is ever cancelled.
        self._arrival = SimHandle(self._arrive, (), target.process.context, target.process)

    def push(self, data: bytes) -> None:
        """Send `data` if the window has room for all of it, else take it into the outbox."""
        link = self._network.links.settings(self.source.host, self.target.host)
        if not (self.outbox_bytes or self._closed) and (
            self._flight_bytes + len(data) <= link.window_bytes
        ):
            self._transmit(link, data)
            return
        self._outbox.append(data)
        self.outbox_bytes += len(data)
        self.pump()

    def pump(self) -> None:
        """Send from the outbox while the window has room."""
        link = self._network.links.settings(self.source.host, self.target.host)
        while self.outbox_bytes and not self._closed:
            room = link.window_bytes - self._flight_bytes
            if room <= 0:
                return
            self._transmit(link, self._take(min(self.outbox_bytes, room)))

    def end(self) -> None:
        """Send the end of the stream; nothing may be pushed after it."""
        if not self._closed:
            link = self._network.links.settings(self.source.host, self.target.host)
            self._send(link, _FIN)
            self._closed = True

    def drop_outbox(self) -> None:
        """Drop the bytes that the process had not handed to its kernel."""
        self._outbox.clear()
        self.outbox_bytes = 0

    def drop_flight(self) -> None:
        """Drop the bytes in flight."""
        self._flight.clear()
        self._flight_bytes = 0

    def shut(self) -> None:
        """The connection is gone: nothing is sent or arrives any more."""
        self.drop_flight()
        self._closed = True

    def consumed(self, count: int) -> None:
        """The target read `count` bytes. The source hears of this, unless the way back is cut."""
        if self._network.links.is_open(self.target.host, self.source.host):
            self._flight_bytes -= count
            self.source.on_space()
        else:
            self._unacked_bytes += count
            self._network.wait_for_mending(self)

    def hold(self) -> None:
        """The target's machine lost its power: bytes in flight wait for its return."""
        if self._flight:
            self._stalled = 1
            self._network.wait_for_mending(self)

    def on_mended(self) -> None:
        """Go on after a cut: each stalled segment is sent again, the acks come through."""
        stalled, self._stalled = self._stalled, 0
        link = self._network.links.settings(self.source.host, self.target.host)
        for _ in range(stalled):
            self._schedule(link.retransmit_s * self._network.draw())
        if self._unacked_bytes:
            count, self._unacked_bytes = self._unacked_bytes, 0
            self.consumed(count)

    def _take(self, count: int) -> bytes:
        self.outbox_bytes -= count
        head = self._outbox[0]
        if len(head) == count:
            self._outbox.popleft()
            return bytes(head)
        taken: list[bytes | memoryview] = []
        while count:
            head = self._outbox.popleft()
            if len(head) > count:
                # A view, so that a large write is not copied once for every window.
                rest = memoryview(head)
                self._outbox.appendleft(rest[count:])
                head = rest[:count]
            taken.append(head)
            count -= len(head)
        return b"".join(taken)

    def _transmit(self, link: LinkSettings, data: bytes) -> None:
        """Put `data` on the wire, in one segment or two."""
        cut = self._network.draw_cut(link, len(data))
        if cut:
            self._send(link, data[:cut])
            data = data[cut:]
        self._send(link, data)

    def _send(self, link: LinkSettings, segment: bytes) -> None:
        network = self._network
        if link.reset_chance and network.draw() < link.reset_chance:
            self.shut()
            network.reset_connection(self.source)
            return
        if link.corrupt_chance:
            segment = network.draw_corruption(link, segment)
        length = len(segment)
        self._flight_bytes += length
        now, free_at = network.loop.now, self._wire_free_at
        self._wire_free_at = free_at = (free_at if free_at > now else now) + (
            length / link.bytes_per_s
        )
        self._schedule(free_at - now + network.links.delay(link))
        self._flight.append((self._last_arrival, segment))

    def _schedule(self, delay: float) -> None:
        network, handle = self._network, self._arrival
        arrival = network.loop.now + delay
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        if handle.process.state is ProcessState.DEAD:
            kernel = network.process
            self._arrival = handle = SimHandle(self._arrive, (), kernel.context, kernel)
        network.loop.set_timer(arrival, handle)

    def _arrive(self) -> None:
        network, flight = self._network, self._flight
        now, target = network.loop.now, self.target
        if not flight or flight[0][0] > now:
            return  # the bytes came with an earlier segment, or the connection was reset
        if not network.links.is_open(self.source.host, target.host):
            self._stalled += 1
            network.wait_for_mending(self)
            return
        segment = flight.popleft()[1]
        if target.gone:
            # No process has this connection any more, and the kernel there answers with a reset.
            if segment is not _FIN:
                self.shut()
                network.send_reset(self.source)
            return
        if flight and segment:
            segment = self._merged(segment, now)
        target.receive(segment)

    def _merged(self, segment: bytes, now: float) -> bytes:
        """The segment, perhaps joined with segments that arrived at the same instant after it."""
        while self._flight and self._network.draw() < MERGE_CHANCE:
            arrival, following = self._flight[0]
            if arrival > now or not following or len(segment) + len(following) > READ_BYTES_MAX:
                break
            segment += following
            self._flight.popleft()
        return segment


class SimTransport(asyncio.Transport):
    """One side of a connection; methods run in the process that owns it.

    Attributes:
        host, process: its owner.
        gone: this side let go of the connection (closed, lost, or its process died).
    """

    def __init__(self, network: SimNetwork, host: str, process: Process, peer_name: str) -> None:
        super().__init__({"peername": (peer_name, 0)})
        self.host = host
        self.process = process
        self.gone = False
        self.number = network.register(self)
        self._network = network
        self._handler: StreamHandler | None = None
        self._receiver: DirectReceiver | None = None
        self._unread: deque[bytes] = deque()
        self._reading = True
        self._read_due = False
        self._ended = False  # the handler knows that the peer's stream ended
        self._writing_paused = False
        self._space_due = False
        self._closing = False
        self._reset_waits = False
        self._lost_due = False

    def join(self, outbound: Pipe, inbound: Pipe) -> None:
        """Tie it to its two pipes; nothing works before."""
        self.outbound = outbound
        self.inbound = inbound

    def accept(self, make: Callable[[], StreamHandler]) -> None:
        """The accepting side's process takes the connection."""
        if self._lost_due:
            return
        try:
            handler = make()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  (as asyncio: reported, and refused)
            self._report(error, "factory")
            self.abort()
            return
        self.start(handler)

    def start(self, handler: StreamHandler) -> None:
        """Tell `handler` of the connection, and read bytes that came already."""
        self._handler = handler
        self._receiver = cast(DirectReceiver, handler) if _takes_direct(type(handler)) else None
        if self._unread:
            self._read_soon()
        handler.connection_made(self)

    # ---- what a handler's owner calls ----

    def writelines(self, parts: Iterable[Buffer]) -> None:
        if self._closing:
            return
        if self._reset_waits:
            self._lose(_reset_error())
            return
        data = b"".join(parts)
        if not data:
            return
        self.outbound.push(data)
        if self.outbound.outbox_bytes > WRITE_HIGH_BYTES and not self._writing_paused:
            self._writing_paused = True
            self._tell("pause_writing")

    def get_write_buffer_size(self) -> int:
        return self.outbound.outbox_bytes

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._reading or self._closing:
            return
        self._reading = True
        if self._reset_waits:
            self._lose(_reset_error())
        elif self._unread:
            self._read_soon()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self.outbound.outbox_bytes:
            self._let_go(None)

    def abort(self) -> None:
        self._closing = True
        self._drop(None)

    # ---- what the machine does ----

    def receive(self, segment: bytes) -> None:
        """A segment arrived. Called in this side's process."""
        if self._closing:
            # asyncio reads nothing after a close. The kernel takes the bytes, and will reset.
            self._unread.append(segment)
            self.inbound.consumed(len(segment))
            return
        is_next = self._reading and not self._read_due and self._handler is not None
        if is_next and segment and not self._unread and not self._ended:
            self._hand_over(segment)
            return
        self._unread.append(segment)
        if is_next:
            self._read()

    def on_space(self) -> None:
        """The peer read something. Called anywhere; acts in this side's process."""
        wanted = self.outbound.outbox_bytes or self._writing_paused
        if wanted and not self._space_due and not self.process.dead:
            self._space_due = True
            self._soon(self._use_space)

    def on_reset(self) -> None:
        """The peer's kernel knows nothing of this connection. Called in this side's process."""
        if self._lost_due:
            return
        if not self._reading and not self._closing:
            # A loop that does not read does not see it yet, nor does asyncio.
            self._reset_waits = True
            return
        self._lose(_reset_error())

    def on_death(self, *, powered: bool) -> None:
        """This side's process died: its kernel closes for it, unless the power went too."""
        self.outbound.drop_outbox()
        self.gone = self._closing = self._lost_due = True
        self._network.forget(self)
        if powered:
            self.inbound.drop_flight()
            self._hang_up(rude=self._network.draw_rude_close())
        else:
            self.outbound.shut()
            self.inbound.hold()

    # ---- inside ----

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        self._network.loop.call_soon(callback, *args, context=self.process.context)

    def _read_soon(self) -> None:
        if not self._read_due:
            self._read_due = True
            self._soon(self._read)

    def _read(self) -> None:
        """Hand over one chunk: all bytes that are there, at most one read."""
        self._read_due = False
        if not self._unread or not self._reading or self._closing or self._ended:
            return
        chunk = self._unread.popleft()
        if chunk is _FIN:
            self._on_end()
            return
        while self._unread and self._unread[0] is not _FIN:
            if len(chunk) + len(self._unread[0]) > READ_BYTES_MAX:
                break
            chunk += self._unread.popleft()
        self._hand_over(chunk)

    def _hand_over(self, chunk: bytes) -> None:
        """Give the handler a chunk, or as much of it as it has made room for."""
        into = None if self._receiver is None else self._receiver.receive_into()
        if into is not None and len(chunk) > len(into):
            self._unread.appendleft(chunk[len(into) :])
            chunk = chunk[: len(into)]
        if self._unread:
            self._read_soon()
        self.inbound.consumed(len(chunk))
        self._network.loop.trace.note(zlib.crc32(chunk))
        assert self._handler is not None
        try:
            if into is None or self._receiver is None:
                self._handler.data_received(chunk)
            else:
                into[: len(chunk)] = chunk
                self._receiver.placed(len(chunk))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  (as asyncio: reported, and it is lost)
            self._fail(error, "data_received")

    def _on_end(self) -> None:
        self._ended = True
        assert self._handler is not None
        try:
            keep_open = self._handler.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001
            self._fail(error, "eof_received")
            return
        if not keep_open:
            self.close()

    def _use_space(self) -> None:
        self._space_due = False
        if self._lost_due:
            return
        self.outbound.pump()
        if self._writing_paused and self.outbound.outbox_bytes <= WRITE_LOW_BYTES:
            self._writing_paused = False
            self._tell("resume_writing")
        if self._closing and not self.outbound.outbox_bytes:
            self._let_go(None)

    def _tell(self, call: str) -> None:
        try:
            getattr(self._handler, call)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  (as asyncio: reported, and no more)
            self._report(error, call)

    def _fail(self, error: BaseException, call: str) -> None:
        self._report(error, call)
        self._closing = True
        self._drop(error)

    def _report(self, error: BaseException, call: str) -> None:
        self._network.loop.call_exception_handler(
            {
                "message": f"Fatal error: protocol.{call}() call failed.",
                "exception": error,
                "transport": self,
                "protocol": self._handler,
            }
        )

    def _let_go(self, error: BaseException | None) -> None:
        """All is sent: the kernel sends the end, and the handler is told."""
        self._hang_up(rude=False)
        self._lost(error)

    def _drop(self, error: BaseException | None) -> None:
        """As `_let_go`, but at once: queued bytes are dropped."""
        if self._lost_due:
            return
        self.outbound.drop_outbox()
        self._hang_up(rude=self._network.draw_rude_close())
        self._lost(error)

    def _lose(self, error: BaseException) -> None:
        """The connection is no more."""
        if self._lost_due:
            return
        self.outbound.drop_outbox()
        self.outbound.shut()
        self._lost(error)

    def _lost(self, error: BaseException | None) -> None:
        self.gone = self._closing = self._lost_due = True
        self._network.forget(self)
        if self._handler is not None:
            self._soon(self._handler.connection_lost, error)

    def _hang_up(self, *, rude: bool) -> None:
        """As a kernel closes: an orderly end, or a reset where bytes were left unread."""
        unread = any(segment is not _FIN for segment in self._unread)
        self._unread.clear()
        if unread or rude:
            self._network.send_reset(self.outbound.target)
        else:
            self.outbound.end()


@functools.cache
def _takes_direct(handler: type) -> bool:
    """Whether handlers of a type are a DirectReceiver: the question costs as much as a frame."""
    return issubclass(handler, DirectReceiver)


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
