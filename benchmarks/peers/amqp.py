"""A light client of AMQP 0-9-1: publishes with confirms, and consumes without acks.

A frame is type (1 byte), channel (2), size (4), payload, 0xCE; all big-endian. A method's payload
begins with its class and number (2 each); a message is a method, a header (class 2, weight 2,
body size 8, flags 2, properties) and its body.

Source: AMQP 0-9-1 specification; RabbitMQ documentation on publisher confirms.
"""

from __future__ import annotations

import asyncio
import struct

from benchmarks.peers.light_client import CALL_TIMEOUT_S, LightClient
from cordwood.errors import Unreachable

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
_CONFIRM = struct.Struct(">QB")
_CONTENT = struct.Struct(">HHQHB")

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"

START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CHANNEL, CHANNEL_OK = (10, 40), (10, 41), (20, 10), (20, 11)
DECLARE, DECLARE_OK, DELETE, DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
CONSUME, CONSUME_OK, CANCEL, CANCEL_OK = (60, 20), (60, 21), (60, 30), (60, 31)
PUBLISH, DELIVER, ACK, NACK = (60, 40), (60, 60), (60, 80), (60, 120)
SELECT, SELECT_OK = (85, 10), (85, 11)

DURABLE, NO_ACK = 2, 2
TAG = b"r"
DELIVERY_MODE_FLAG = 0x1000
PERSISTENT = 2


class AmqpConnection(LightClient):
    """One connection with one channel. Call `open` first."""

    name = "RabbitMQ"

    def __init__(self) -> None:
        super().__init__()
        self.queue = b""
        self._rest = b""
        self._awaited: tuple[int, int] | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._published = 0
        self._confirmed = 0
        self._early: set[int] = set()
        self._body: list[bytes] = []
        self._body_left = 0

    # ---- calls ----

    async def open(self) -> None:
        """Log in as guest and open a channel with confirms.

        Raises:
            Unreachable: refused, or no answer in time.
        """
        await self._ask(b"AMQP\x00\x00\x09\x01", START)
        login = _long(b"") + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
        tune = await self._ask(_method(0, START_OK, login), TUNE)
        # The server's limits, and no heartbeats: every wait here has a deadline of its own.
        self.transport.write(_method(0, TUNE_OK, tune[:6] + b"\0\0"))
        await self._ask(_method(0, OPEN, _short(b"/") + b"\0\0"), OPEN_OK)
        await self._ask(_method(1, CHANNEL, b"\0"), CHANNEL_OK)
        await self._ask(_method(1, SELECT, b"\0"), SELECT_OK)

    async def declare(self, queue: bytes, copies: int) -> None:
        """Make a quorum queue on this many nodes, and publish to it from now on."""
        arguments = _short(b"x-queue-type") + b"S" + _long(b"quorum")
        arguments += _short(b"x-quorum-initial-group-size") + b"I" + struct.pack(">i", copies)
        body = b"\0\0" + _short(queue) + bytes([DURABLE]) + _long(arguments)
        await self._ask(_method(1, DECLARE, body), DECLARE_OK)
        self.queue = queue

    async def delete(self, queue: bytes) -> None:
        """Delete a queue and its messages."""
        await self._ask(_method(1, DELETE, b"\0\0" + _short(queue) + b"\0"), DELETE_OK)

    def consume(self, queue: bytes) -> None:
        """Have all messages of a queue sent. The queue drops each message when it sends it."""
        body = b"\0\0" + _short(queue) + _short(TAG) + bytes([NO_ACK]) + _long(b"")
        self.transport.write(_method(1, CONSUME, body))

    async def cancel(self) -> None:
        """End the sending that `consume` began."""
        await self._ask(_method(1, CANCEL, _short(TAG) + b"\0"), CANCEL_OK)

    async def _ask(self, request: bytes, answer: tuple[int, int]) -> bytes:
        self._awaited, self._answer = answer, self.loop.create_future()
        self.transport.write(request)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise Unreachable(f"RabbitMQ did not answer with method {answer}") from None
        finally:
            self._awaited = self._answer = None

    # ---- records ----

    def send_records(self, values: list[bytes]) -> None:
        self._published += len(values)
        head, size = self._head(len(values[0])), len(values[0])
        self.write_parts([part for value in values for part in (head, value, END)], size)

    def send_same(self, value: bytes, count: int) -> None:
        self._published += count
        self.write_parts([self._head(len(value)) + value + END] * count, len(value))

    def _head(self, size: int) -> bytes:
        """The bytes of a message before its body."""
        method = _method(1, PUBLISH, b"\0\0" + _short(b"") + _short(self.queue) + b"\0")
        content = _CONTENT.pack(60, 0, size, DELIVERY_MODE_FLAG, PERSISTENT)
        return method + _frame(HEADER, 1, content) + _FRAME.pack(BODY, 1, size)

    # ---- what comes ----

    def data_received(self, data: bytes) -> None:
        data, at, confirmed = self._rest + data, 0, 0
        while len(data) - at >= _FRAME.size:
            kind, _, size = _FRAME.unpack_from(data, at)
            begin = at + _FRAME.size
            if len(data) < begin + size + 1:
                break
            at = begin + size + 1
            if kind == BODY:
                self._on_body(data[begin : begin + size])
            elif kind == HEADER:
                (self._body_left,) = struct.unpack_from(">Q", data, begin + 4)
            elif kind == METHOD:
                confirmed += self._on_method(data[begin : begin + size])
        self._rest = data[at:]
        if confirmed:
            self.on_answered(confirmed)

    def _on_method(self, payload: bytes) -> int:
        """The number of messages that a confirm answers."""
        method = _METHOD.unpack_from(payload)
        if method == ACK:
            return self._on_confirm(*_CONFIRM.unpack_from(payload, 4))
        if method in (DELIVER, CONSUME_OK):
            return 0
        if method == self._awaited and self._answer is not None and not self._answer.done():
            self._answer.set_result(payload[4:])
            return 0
        self._refused(method, payload)
        return 0

    def _refused(self, method: tuple[int, int], payload: bytes) -> None:
        why = f"method {method}: {payload[4:300]!r}"
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Unreachable(f"RabbitMQ: {why}"))
        self.fail(why)

    def _on_confirm(self, tag: int, multiple: int) -> int:
        """Count a confirm. Confirms may come out of order; a confirm with `multiple` answers all
        messages up to its own."""
        if not multiple:
            self._early.add(tag)
            while self._confirmed + 1 in self._early:
                self._confirmed += 1
                self._early.remove(self._confirmed)
            return 1
        count = tag - self._confirmed
        if self._early:
            passed = {each for each in self._early if each <= tag}
            self._early -= passed
            count -= len(passed)
        self._confirmed = tag
        return count

    def _on_body(self, part: bytes) -> None:
        self._body_left -= len(part)
        if self._body_left > 0 or self._body:
            self._body.append(part)
            if self._body_left > 0:
                return
            part, self._body = b"".join(self._body), []
        self.on_record(part)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + END


def _method(channel: int, method: tuple[int, int], body: bytes) -> bytes:
    return _frame(METHOD, channel, _METHOD.pack(*method) + body)
