"""A real connection on a transport that the test plays: what was sent, and a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cordwood.block import Buffer
from cordwood.errors import CordwoodError
from cordwood.layout.frame import Frame, FrameParser, Kind, frame
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.reading import (
    BlocksHead,
    ReadStatus,
    read_blocks_frame,
    read_gaps,
    read_heads_frame,
    read_reading,
    read_shared_frame,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import ESN_MAX
from cordwood.wire.connection import Connection

CLUSTER = bytes(range(16))


class SlowTransport:
    """Keeps what is written; while `is_slow`, as a peer that does not read."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.waiting_bytes = 0
        self.is_slow = False
        self.aborted = False
        self.connection: Connection

    def writelines(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        self.written.append(data)
        if self.is_slow:
            self.waiting_bytes += len(data)
            if self.waiting_bytes > 64 << 10:
                self.connection.pause_writing()

    def drain(self) -> None:
        """The peer read everything."""
        self.waiting_bytes = 0
        self.connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Ignoring:
    def on_frame(self, connection: Connection, frame: Frame) -> None: ...
    def on_lost(self, connection: Connection, error: CordwoodError) -> None: ...


class ReaderEnd:
    """A reader's connection, seen from the node.

    Attributes:
        connection: give it to whatever sends.
        transport: how fast the reader is.
    """

    def __init__(self, node: int = 0) -> None:
        self.transport = SlowTransport()
        self.connection = Connection(Hello(1, CLUSTER), Ignoring(), dialled=False)
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        hello = b"".join(frame(Kind.HELLO, 0, pack_hello(Hello(node, CLUSTER))))
        self.connection.data_received(hello)
        self._taken = 0

    def frames(self) -> list[Frame]:
        """What was written since the last call; the greeting is left out."""
        parser = FrameParser()
        parser.greeted = True
        new = self.transport.written[self._taken :]
        self._taken = len(self.transport.written)
        return [each for each in parser.feed(b"".join(new)) if each.kind != Kind.WELCOME]

    def blocks(self) -> list[tuple[BlocksHead, list[StoredBlock]]]:
        """The BLOCKS frames written since the last call; a SHARED one counts for each stream."""
        found: list[tuple[BlocksHead, list[StoredBlock]]] = []
        for each in self.frames():
            if each.kind == Kind.BLOCKS:
                found.append(read_blocks_frame(each.payload))
            elif each.kind == Kind.SHARED:
                numbers, head, blocks = read_shared_frame(each.payload)
                found += [(replace(head, stream=number), blocks) for number in numbers]
        return found

    def told(self) -> list[str]:
        """All frames written since the last call, in words, in their order."""
        said: list[str] = []
        for each in self.frames():
            if each.kind == Kind.GAPS:
                said += [
                    f"{gap.reason.name.lower()} {gap.first & ESN_MAX}-{gap.last & ESN_MAX}"
                    for gap in read_gaps(each.payload)[1]
                ]
            elif each.kind in (Kind.BLOCKS, Kind.HEADS):
                read = read_blocks_frame if each.kind == Kind.BLOCKS else read_heads_frame
                head, blocks = read(each.payload)
                firsts = " ".join(str(block.header.first & ESN_MAX) for block in blocks)
                said.append(f"{Kind(each.kind).name.lower()} [{firsts}] to {head.next & ESN_MAX}")
            else:
                said.append(Kind(each.kind).name.lower())
        return said

    def firsts(self) -> list[int]:
        """The first LSNs of all blocks written since the last call."""
        return [block.header.first for _, blocks in self.blocks() for block in blocks]

    def readings(self) -> list[tuple[int, ReadStatus, int]]:
        """The READING frames written since the last call, without their versions."""
        found = [read_reading(each.payload) for each in self.frames() if each.kind == Kind.READING]
        return [(stream, status, released) for stream, status, released, *_ in found]


async def pumped(turns: int = 40) -> None:
    """Let streams send all that they may."""
    for _ in range(turns):
        await asyncio.sleep(0)
