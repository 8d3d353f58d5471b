"""A light client of RabbitMQ's stream protocol: publishes with confirms, and reads chunks.

A frame is size (4 bytes), key (2), version (2), and mostly a correlation id (4); all big-endian.
An answer has the key with its highest bit set, the id, and a code (2) that is 1 if all is well. A
chunk has a head of 48 bytes (number of entries at 2, of records at 4) and then entries, each a
length (4) and the record; a length with its highest bit set would be a batch, which this client
never publishes.

Source: RabbitMQ Stream Protocol reference.
"""

from __future__ import annotations

import asyncio
import struct

from benchmarks.peers.light_client import CALL_TIMEOUT_S, LightClient
from cordwood.errors import Unreachable

_HEAD = struct.Struct(">IHH")
_ANSWER = struct.Struct(">IH")
_RECORD = struct.Struct(">QI")
_PUBLISH = struct.Struct(">IHHBI")
_U32 = struct.Struct(">I")

DECLARE_PUBLISHER, PUBLISH, CONFIRM, PUBLISH_ERROR, DELETE_PUBLISHER = 1, 2, 3, 4, 6
SUBSCRIBE, DELIVER, CREDIT, UNSUBSCRIBE, CREATE, DELETE = 7, 8, 9, 12, 13, 14
METADATA_UPDATE, PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN, CLOSE = 16, 17, 18, 19, 20, 21, 22
ANSWER_BIT = 0x8000
OK = 1

PUBLISHER = SUBSCRIPTION = 1
CREDITS = 20
"""Chunks on the way to a reader. The reader gives a credit back for each chunk that came."""

FIRST = 1
"""The offset type of the beginning."""

CHUNK_HEAD_BYTES = 48
FRAME_BYTES = 1 << 20
"""The most bytes of a publish frame; the server's limit is the same."""


class StreamConnection(LightClient):
    """One connection. Call `open` first."""

    name = "RabbitMQ stream"

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = _HEAD.size
        self._number = 0
        self._awaited = -1
        self._answer: asyncio.Future[bytes] | None = None
        self._next_id = 0

    # ---- calls ----

    async def open(self) -> None:
        """Log in as guest.

        Raises:
            Unreachable: refused, or no answer in time.
        """
        await self._ask(PROPERTIES, _U32.pack(0))
        await self._ask(HANDSHAKE, b"")
        await self._ask(AUTHENTICATE, _text(b"PLAIN") + _bytes(b"\0guest\0guest"), TUNE)
        self._write(TUNE, struct.pack(">II", FRAME_BYTES, 0))
        await self._ask(OPEN, _text(b"/"))

    async def create(self, stream: bytes, copies: int) -> None:
        """Make a stream on this many nodes."""
        size = _text(b"initial-cluster-size") + _text(b"%d" % copies)
        await self._ask(CREATE, _text(stream) + _U32.pack(1) + size)

    async def delete(self, stream: bytes) -> None:
        """Delete a stream and its records."""
        await self._ask(DELETE, _text(stream))

    async def publish_to(self, stream: bytes) -> None:
        """Send records to this stream from now on."""
        await self._ask(DECLARE_PUBLISHER, bytes([PUBLISHER]) + _text(b"") + _text(stream))

    async def publish_no_more(self) -> None:
        """End the publishing that `publish_to` began."""
        await self._ask(DELETE_PUBLISHER, bytes([PUBLISHER]))

    async def subscribe(self, stream: bytes) -> None:
        """Have a stream sent from its beginning, and its new records too."""
        offset = struct.pack(">HHI", FIRST, CREDITS, 0)
        await self._ask(SUBSCRIBE, bytes([SUBSCRIPTION]) + _text(stream) + offset)

    async def unsubscribe(self) -> None:
        """End the sending that `subscribe` began."""
        await self._ask(UNSUBSCRIBE, bytes([SUBSCRIPTION]))

    def _write(self, key: int, body: bytes) -> None:
        self.transport.write(_HEAD.pack(4 + len(body), key, 1) + body)

    async def _ask(self, key: int, body: bytes, answer: int = 0) -> bytes:
        """Make a call. TUNE comes after the answer to AUTHENTICATE, so this waits for TUNE
        instead."""
        self._number += 1
        self._awaited = answer or key | ANSWER_BIT
        self._answer = self.loop.create_future()
        self._write(key, _U32.pack(self._number) + body)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise Unreachable(f"RabbitMQ stream did not answer call {key}") from None
        finally:
            self._awaited, self._answer = -1, None

    # ---- records ----

    def send_records(self, values: list[bytes]) -> None:
        size = len(values[0])
        fits = max(1, (FRAME_BYTES - _PUBLISH.size) // (size + _RECORD.size))
        parts = []
        for begin in range(0, len(values), fits):
            some = values[begin : begin + fits]
            bytes_ = len(some) * (size + _RECORD.size) + _PUBLISH.size - 4
            parts.append(_PUBLISH.pack(bytes_, PUBLISH, 1, PUBLISHER, len(some)))
            for value in some:
                self._next_id += 1
                parts += (_RECORD.pack(self._next_id, size), value)
        self.write_parts(parts, size)

    # ---- what comes ----

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return  # a chunk has megabytes: join it once, not at every read
        data, at, confirmed = b"".join(self._parts), 0, 0
        self._needed = _HEAD.size
        while len(data) - at >= _HEAD.size:
            size, key, _ = _HEAD.unpack_from(data, at)
            stop = at + 4 + size
            if len(data) < stop:
                self._needed = stop - at
                break
            begin, at = at + _HEAD.size, stop
            if key == CONFIRM:
                confirmed += _U32.unpack_from(data, begin + 1)[0]
            elif key == DELIVER:
                self._write(CREDIT, struct.pack(">BH", SUBSCRIPTION, 1))
                self._on_chunk(data, begin + 1)
            else:
                self._on_other(key, data[begin:stop])
        self._parts, self._held = [data[at:]], len(data) - at
        if confirmed:
            self.on_answered(confirmed)

    def _on_chunk(self, data: bytes, at: int) -> None:
        (entries,) = struct.unpack_from(">H", data, at + 2)
        at += CHUNK_HEAD_BYTES
        for _ in range(entries):
            (size,) = _U32.unpack_from(data, at)
            at += 4 + size
            self.on_record(data[at - size : at])

    def _on_other(self, key: int, body: bytes) -> None:
        waits = self._answer is not None and not self._answer.done()
        if key & ANSWER_BIT and _ANSWER.unpack_from(body)[1] != OK:
            why = f"call {key & ~ANSWER_BIT} was refused with code {_ANSWER.unpack_from(body)[1]}"
        elif key == self._awaited:
            if self._answer is not None and waits:
                self._answer.set_result(body)
            return
        elif key & ANSWER_BIT or key == METADATA_UPDATE:
            return
        else:
            why = f"key {key}: {body[:200]!r}"
        if self._answer is not None and waits:
            self._answer.set_exception(Unreachable(f"RabbitMQ stream: {why}"))
        self.fail(why)


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _bytes(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value
