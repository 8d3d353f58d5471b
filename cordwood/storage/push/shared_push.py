"""Shared pushes: data that several streams get alike is read, checksummed and sent once.

Readers at the tail of one log have the same position and want the same data. In one tick the first
of these streams has the run read, and the others are added to it. At the end of the tick each
client gets one frame with the numbers of its streams. So a hundred readers of one client cost this
node, the wire and the client's decoder as much as one reader, and a hundred clients cost one pass
over the bytes for the checksum.

Source: docs/design.md §4 (waves); LogDevice (docs/sources/logdevice.md 2.10) has a frame for each
record and reader.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from cordwood.block import Buffer
from cordwood.layout.frame import Kind, checksum
from cordwood.layout.reading import (
    SHARERS_MAX,
    BlocksHead,
    blocks_head,
    shared_head,
    shared_streams,
)
from cordwood.storage.logs_db.partition import BlockRun
from cordwood.wire.connection import Connection


class Sharer(Protocol):
    """The part of a stream that this module uses."""

    connection: Connection
    number: int


class Push:
    """One run of blocks, and the streams that get it.

    Attributes:
        run: the blocks that were read.
        sent_bytes: bytes of these blocks, with heads and bodies.
    """

    __slots__ = ("_by_connection", "_parts", "_released", "_trim", "run", "sent_bytes")

    def __init__(self, run: BlockRun, released: int, trim: int) -> None:
        self.run = run
        self._released = released
        self._trim = trim
        self._parts: list[Buffer] = []
        for block in run.blocks:
            self._parts += (block.wire, block.body)
        self.sent_bytes = sum(map(len, self._parts))
        self._by_connection: dict[Connection, list[int]] = {}

    def add(self, stream: Sharer) -> bool:
        """Add a stream; whether it is the first one on its connection."""
        numbers = self._by_connection.setdefault(stream.connection, [])
        numbers.append(stream.number)
        return len(numbers) == 1

    def send(self) -> None:
        """Send one frame to each client, or more to a client with very many streams."""
        blocks, parts = len(self.run.blocks), self._parts
        if sum(map(len, self._by_connection.values())) == 1:
            for connection, (number,) in self._by_connection.items():
                head = BlocksHead(number, blocks, self.run.next, self._released, self._trim)
                connection.send(Kind.BLOCKS, 0, (blocks_head(head), *parts))
            return
        sums: dict[int, tuple[bytes, int]] = {}
        for connection, numbers in self._by_connection.items():
            for start in range(0, len(numbers), SHARERS_MAX):
                some = numbers[start : start + SHARERS_MAX]
                if len(some) not in sums:
                    head = BlocksHead(0, blocks, self.run.next, self._released, self._trim)
                    packed = shared_head(len(some), head)
                    sums[len(some)] = packed, checksum((packed, *parts))
                packed, crc = sums[len(some)]
                behind = shared_streams(some)
                connection.send(Kind.SHARED, 0, (packed, *parts, behind), checksum((behind,), crc))


class Pushes:
    """The pushes of one tick, by the wanted data and the position."""

    __slots__ = ("_all", "_by_key", "_due_bytes")

    def __init__(self) -> None:
        self._due_bytes: dict[Connection, int] = {}
        self._all: list[Push] = []
        self._by_key: dict[Hashable, Push] = {}

    def find(self, key: Hashable) -> Push | None:
        """The push that was read for another stream with the same key."""
        return self._by_key.get(key)

    def keep(self, key: Hashable, push: Push) -> None:
        """Keep a new push for other streams. It replaces an older one with the same key, which was
        too large for a stream: the smaller part suits all other streams as well."""
        self._all.append(push)
        self._by_key[key] = push

    def add(self, push: Push, stream: Sharer) -> bool:
        """Send a push to one more stream; whether it is the first on its connection."""
        if not push.add(stream):
            return False
        due = self._due_bytes.get(stream.connection, 0)
        self._due_bytes[stream.connection] = due + push.sent_bytes
        return True

    def due_bytes(self, connection: Connection) -> int:
        """The bytes that a connection will get at the end of the tick."""
        return self._due_bytes.get(connection, 0)

    def send(self) -> None:
        """Send all pushes, at the end of the tick."""
        for push in self._all:
            push.send()
