"""Reading from NATS JetStream, by a raw client that is as light as Python allows.

Catch-up is a pull consumer without acks. The client requests a number of messages at a time, and
requests more before all of them have come. So the server always has messages to send, and never
more than a connection takes. The tail is a push consumer without acks. Each message becomes a bytes
object, and no message is kept.

Source: NATS client protocol; JetStream API (consumer create, message next).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import perf_counter

from cordwood.bench.nats import STREAM, NatsClient, connect_nats
from cordwood.bench.pace import TIME
from cordwood.errors import Unreachable

PULL = 4_000
"""Messages of one request: a megabyte. Two requests are open, far below the server's limit of
64."""

READ_TIMEOUT_S = 120.0

TAIL_TIMEOUT_S = 30.0

_INBOX = "cordwood.bench.read"


class NatsReader(NatsClient):
    """One connection that takes messages. Made by `connect_nats`."""

    def __init__(self) -> None:
        super().__init__()
        self._take: Callable[[bytes], None] | None = None
        self._left = 0
        self._read: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(b"SUB %s 2\r\n" % _INBOX.encode())

    def data_received(self, data: bytes) -> None:
        if self._take is None:
            super().data_received(data)
            return
        data, at, take = self._rest + data, 0, self._take
        while (end := data.find(b"\r\n", at)) >= 0:
            if data.startswith(b"MSG ", at):
                stop = end + 2 + int(data[data.rfind(b" ", at, end) + 1 : end])
                if len(data) < stop + 2:
                    break
                take(data[end + 2 : stop])
                at = stop + 2
                continue
            self._on_line(data[at:end])
            at = end + 2
        self._rest = data[at:]
        if self._left <= 0 and self._read is not None and not self._read.done():
            self._read.set_result(None)

    def _on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._transport.write(b"PONG\r\n")
        elif line.startswith((b"-ERR", b"HMSG", b"NATS/1.0")):
            self._fail(Unreachable(f"NATS: {line.decode(errors='replace')}"))

    def _fail(self, error: Unreachable) -> None:
        super()._fail(error)
        if self._read is not None and not self._read.done():
            self._read.set_exception(error)

    async def catch_up(self, first: int, count: int) -> float:
        """Messages read a second, `count` of them from sequence number `first` on.

        Raises:
            Unreachable: the server refused, or did not send them in READ_TIMEOUT_S.
        """
        name = await self._consumer(deliver_policy="by_start_sequence", opt_start_seq=first)
        next_ = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"
        body = json.dumps({"batch": PULL}).encode()
        request = b"PUB %s %s %d\r\n%s\r\n" % (next_.encode(), _INBOX.encode(), len(body), body)
        asked = 2 * PULL

        def take(_: bytes) -> None:
            nonlocal asked
            self._left -= 1
            if count - self._left > asked - PULL and asked < count:
                asked += PULL
                self._transport.write(request)

        began = perf_counter()
        await self._receive(take, count, request * 2, READ_TIMEOUT_S)
        return count / (perf_counter() - began)

    async def follow(self, count: int) -> list[float]:
        """Seconds from the time in each of the next `count` messages until it was here.

        Raises:
            Unreachable: the server refused, or they did not come in time.
        """
        await self._consumer(deliver_policy="new", deliver_subject=_INBOX)
        lags: list[float] = []

        def take(body: bytes) -> None:
            self._left -= 1
            lags.append(perf_counter() - TIME.unpack_from(body)[0])

        await self._receive(take, count, b"", TAIL_TIMEOUT_S)
        return lags

    def offer(self, bodies: list[bytes]) -> None:
        """Publish without asking for acks."""
        head = STREAM.encode()
        self._transport.writelines(
            [b"PUB %s %d\r\n%s\r\n" % (head, len(body), body) for body in bodies]
        )

    async def _consumer(self, **config: str | int) -> str:
        """Make a consumer that ends with this connection. Returns its name."""
        wanted = {"ack_policy": "none", "mem_storage": True, **config}
        answer = await self.ask(
            f"$JS.API.CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": wanted}
        )
        if "error" in answer:
            raise Unreachable(f"NATS made no consumer: {answer['error']}")
        return str(answer["name"])

    async def _receive(
        self, take: Callable[[bytes], None], count: int, request: bytes, timeout_s: float
    ) -> None:
        self._left = count
        self._read = self._loop.create_future()
        self._take = take
        self._transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self._read
        except TimeoutError:
            raise Unreachable(f"NATS did not send {self._left} of {count} messages") from None
        finally:
            self._read = self._take = None


async def connected_reader(port: int) -> NatsReader:
    """A reader's connection to the server at `port`."""
    reader = await connect_nats(port, NatsReader)
    assert isinstance(reader, NatsReader), "as asked"
    return reader
