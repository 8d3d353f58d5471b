"""Frames: every connection carries a stream of them.

Little-endian, 20 bytes of header, then the payload::

    offset width field
    0      4     payload length in bytes
    4      1     kind, see Kind
    5      1     flags, 0
    6      2     number of the frame in its direction of the connection: 1 to 65,535, then 1
                 again; 0 from a sender that does not count
    8      8     request: pairs a reply with its call, or numbers a wave
    16     4     CRC32C over the payload, then over bytes [0, 16)

TCP delivers every byte once and in order. But a proxy, or a bug in a peer, may send a whole frame
twice or too early, with a good checksum. An append that arrives twice would be stored twice. So
each side counts frames, and a frame out of its turn ends the connection.

The checksum covers the payload first, so that the CRC of a payload for several peers is computed
once. Lengths are checked against the kind's limit before a byte of the payload is kept. Until the
hello is done only a hello is read.

Source: docs/design.md §4; docs/sources/hotpath.md §3; docs/sources/reliability.md §7 (4, 5).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch, Malformed

_HEADER = struct.Struct("<IBBHQI")
_SUMMED = struct.Struct("<IBBHQ")
FRAME_HEADER_BYTES = _HEADER.size

HELLO_BYTES_MAX = 1024
"""The most bytes that a node keeps for a peer that has not greeted yet."""

CONTROL_BYTES_MAX = 4 << 20
"""Far above any call: the largest is a staged block of 3.5 MiB."""

NUMBER_MAX = 0xFFFF
"""Frames of one direction are numbered up to here, and from 1 again."""

DATA_BYTES_MAX = 72 << 20
"""Two blocks of the hard body limit (32 MiB) with their headers."""

REPLY_BYTES_MAX = DATA_BYTES_MAX
"""A listing of 150,000 logs, of 400 bytes each. It is as much as DATA_BYTES_MAX: a caller must be
able to receive as many bytes in blocks."""


class Kind(enum.IntEnum):
    """The kind of a frame's payload."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    APPEND = 16
    APPENDED = 17
    APPEND_FAULTS = 18
    TOKENS = 19
    STORE = 32
    STORED = 33
    RELEASE = 34
    READ = 48
    READING = 49
    BLOCKS = 50
    WINDOW = 51
    STOP = 52
    HEADS = 53
    GAPS = 54
    SHARED = 55
    CALL = 64
    REPLY = 65
    FAULT = 66
    GOSSIP = 80


_GREETINGS = frozenset({Kind.HELLO, Kind.WELCOME, Kind.REFUSAL})
_DATA = frozenset({Kind.APPEND, Kind.STORE, Kind.BLOCKS, Kind.HEADS, Kind.SHARED})
_LIMITS: dict[int, int] = {
    kind: HELLO_BYTES_MAX
    if kind in _GREETINGS
    else DATA_BYTES_MAX
    if kind in _DATA
    else REPLY_BYTES_MAX
    if kind == Kind.REPLY
    else CONTROL_BYTES_MAX
    for kind in Kind
}


@dataclass(slots=True)
class Frame:
    """One frame as it arrived; `payload` points into the bytes received."""

    kind: int
    request: int
    payload: memoryview


def checksum(parts: Sequence[Buffer], crc: int = 0) -> int:
    """CRC32C of `parts` back to back, after bytes that have the CRC32C `crc`."""
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def frame_header(kind: int, request: int, length: int, payload_crc: int, number: int = 0) -> bytes:
    """The 20 bytes that go before a payload of `length` bytes and CRC32C `payload_crc`."""
    summed = _SUMMED.pack(length, kind, 0, number, request)
    return summed + crc32c(summed, payload_crc).to_bytes(4, "little")


def next_number(number: int) -> int:
    """The number of the frame after frame `number`; 0 is before the first."""
    return number % NUMBER_MAX + 1


def _cut(whole: memoryview, kind: int, request: int, crc: int) -> Frame:
    """The frame in `whole`, which is header and payload, if its CRC is `crc`."""
    payload = whole[FRAME_HEADER_BYTES:]
    if crc32c(whole[: _SUMMED.size], crc32c(payload)) != crc:
        raise ChecksumMismatch(f"a frame of kind {kind} failed its CRC32C")
    return Frame(kind, request, payload)


def frame(kind: int, request: int, payload: Buffer) -> tuple[bytes, Buffer]:
    """One frame as two parts for `writelines`."""
    return frame_header(kind, request, len(payload), crc32c(payload)), payload


class FrameParser:
    """Cuts a byte stream into frames. It is a rule: its caller feeds it the bytes that arrived.

    `greeted` starts as False. Until it is True, only one greeting passes, and the bytes after the
    greeting wait. After setting it to True, feed `b""` once to get the frames in the bytes that
    waited.
    """

    __slots__ = ("_filled", "_frame", "_number", "_rest", "greeted")

    def __init__(self) -> None:
        self.greeted = False
        self._rest = b""
        self._number = 0
        # The arriving frame's buffer, and the number of its arrived bytes.
        self._frame: memoryview | None = None
        self._filled = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes, and return the frames that they complete, in order.

        Raises:
            Malformed: unknown kind, set flags, too long, out of its turn, or not a hello while
                greetings are due. The parser is of no use afterwards.
            ChecksumMismatch: a frame's CRC is wrong. The parser is of no use afterwards.
        """
        frames: list[Frame] = []
        at, end = 0, len(data)
        if self._frame is not None:
            at = min(end, len(self._frame) - self._filled)
            self._frame[self._filled : self._filled + at] = data[:at]
            frames += self.placed(at)
        elif self._rest:
            data = self._rest + data
            self._rest, end = b"", len(data)
        view = memoryview(data)
        while end - at >= FRAME_HEADER_BYTES:
            length, kind, flags, number, request, crc = _HEADER.unpack_from(data, at)
            if not self.greeted or flags or length > _LIMITS.get(kind, -1):
                self._check(length, kind, flags)
            stop = at + FRAME_HEADER_BYTES + length
            if stop > end:
                self._begin(view[at:], stop - at)
                return frames
            frames.append(_cut(view[at:stop], kind, request, crc))
            if number:
                self._count(number)
            at = stop
            if not self.greeted and at < end:
                break  # it waits for `greeted`
        if at < end:
            self._rest = bytes(view[at:])
        return frames

    def drop(self) -> None:
        """Drop an unfinished frame, because no more bytes will come."""
        self._rest, self._frame, self._filled = b"", None, 0

    def receive_into(self) -> memoryview | None:
        """The buffer for the rest of an arriving frame, which saves a copy; None if the next bytes
        are for `feed`. Then call `placed`."""
        return None if self._frame is None else self._frame[self._filled :]

    @property
    def unfinished(self) -> tuple[int, int]:
        """Arrived bytes of an unfinished frame, and its full length; (0, 0) for none."""
        if self._frame is not None:
            return self._filled, len(self._frame)
        return len(self._rest), FRAME_HEADER_BYTES if self._rest else 0

    def placed(self, count: int) -> list[Frame]:
        """Take `count` bytes that the caller put into the buffer of `receive_into`; otherwise as
        `feed`."""
        assert self._frame is not None, "nothing was begun"
        self._filled += count
        if self._filled < len(self._frame):
            return []
        frame, self._frame = self._frame, None
        _, kind, _, number, request, crc = _HEADER.unpack_from(frame)
        cut = _cut(frame, kind, request, crc)
        if number:
            self._count(number)
        return [cut]

    def _count(self, number: int) -> None:
        """Check the number of a frame that arrived whole. The first frame's number starts the
        count."""
        if self._number and number != next_number(self._number):
            raise Malformed(f"frame {number} came when {next_number(self._number)} was due")
        self._number = number

    def _begin(self, start: memoryview, length: int) -> None:
        """Allocate the buffer of a frame with a checked header and an arrived start.

        numpy does not zero the memory, and the machine allocates pages on their first write. So a
        frame that claims a length, and does not send the bytes, costs no memory.
        """
        self._frame = np.empty(length, np.uint8).data
        self._frame[: len(start)] = start
        self._filled = len(start)

    def _check(self, length: int, kind: int, flags: int) -> None:
        limit = _LIMITS.get(kind)
        if limit is None:
            raise Malformed(f"no frame has kind {kind}")
        if flags:
            raise Malformed("a frame sets bits that this version keeps at 0")
        if not self.greeted and kind not in _GREETINGS:
            raise Malformed(f"a frame of kind {kind} came before the hello")
        if length > limit:
            raise Malformed(f"a frame of kind {kind} claims {length} bytes; the limit is {limit}")
