"""A proxy before a node that knows frames, and harms them: late, overtaking, twice, damaged.

`python -m cordwood.chaos.frame_proxy --listen HOST:PORT --to HOST:PORT --harm KIND --seed N` runs
until its standard input ends. It divides each connection into frames by their headers, in both
directions; greetings pass untouched. Then it harms one frame in HARMED. At the end it prints its
counts on standard output, as JSON.

The proxy does things that a TCP connection never does by itself. A bad middle box, a replay or a
bug in a peer may send a frame twice or out of its turn, with a good checksum. Like a damaged frame,
this frame must be refused, and its connection closed.

Source: docs/sources/reliability.md §5.1; TigerBeetle's Vortex (§1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from cordwood.layout.frame import DATA_BYTES_MAX, FRAME_HEADER_BYTES, Kind

DELAY, REORDER, DUPLICATE, CORRUPT = "delay", "reorder", "duplicate", "corrupt"
HARMS = (DELAY, REORDER, DUPLICATE, CORRUPT)

HARMED = {DELAY: 0.1, REORDER: 0.1, DUPLICATE: 0.2, CORRUPT: 0.02}
"""Shares of harmed frames. A damaged frame costs its connection, so its share is smaller."""

DELAY_S = (0.001, 0.3)
"""The delay of a frame and of all frames after it, so that connections overtake one another."""

OVERTAKEN_S = 0.2
"""The longest time that a frame is held back for another frame to pass it."""

REFUSED_S = 2.0
"""A refused frame's connection is closed within this time. A frame with a damaged length waits for
bytes that do not come, and is not counted."""

_GREETINGS = (Kind.HELLO, Kind.WELCOME, Kind.REFUSAL)


@dataclass(slots=True)
class Told:
    """The counts of the proxy.

    Attributes:
        frames: frames that passed, over all connections and directions.
        harmed: frames of these that were harmed.
        refused: connections that the receiver closed because of a harmed frame.
    """

    frames: int = 0
    harmed: int = 0
    refused: int = 0


class FrameProxy:
    """See the module."""

    def __init__(self, to: tuple[str, int], harm: str, seed: int) -> None:
        self.told = Told()
        self._to = to
        self._harm = harm
        self._chance = random.Random(seed)
        self._carrying: dict[asyncio.Task[None], None] = {}

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection was made."""
        task = asyncio.get_running_loop().create_task(self.carry(reader, writer))
        self._carrying[task] = None
        task.add_done_callback(lambda done: self._carrying.pop(done))

    async def close(self) -> None:
        """Cut every connection."""
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its start to its end."""
        try:
            there, back = await asyncio.open_connection(*self._to)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, OSError):
                return
            raise
        ways = [
            asyncio.create_task(_Way(self, reader, back).run()),
            asyncio.create_task(_Way(self, there, writer).run()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, back):
                end.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def is_harmed(self) -> bool:
        """Whether the next frame is harmed."""
        self.told.frames += 1
        is_harmed = self._chance.random() < HARMED[self._harm]
        self.told.harmed += is_harmed
        return is_harmed

    @property
    def harm(self) -> str:
        """The harm to frames."""
        return self._harm

    def delay_s(self) -> float:
        """The delay of the next frame."""
        return self._chance.uniform(*DELAY_S)

    def damaged(self, frame: bytes) -> bytes:
        """The frame with one bit flipped."""
        bit = self._chance.randrange(8 * len(frame))
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


class _Way:
    """One direction of a connection."""

    def __init__(
        self, proxy: FrameProxy, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._source = source
        self._sink = sink
        self._held: bytes = b""
        self._harmed_at_s: float | None = None

    async def run(self) -> None:
        """Carry frames until either end closes."""
        try:
            while True:
                await self._carry(await self._next())
        except (asyncio.IncompleteReadError, OSError):
            self._note_refusal()
        except asyncio.CancelledError:
            # The other direction ended first: the receiver of the damaged frame closed the
            # connection.
            self._note_refusal()
            raise

    async def _next(self) -> bytes:
        """The next frame, whole; a held frame goes out when nothing overtakes it."""
        try:
            async with asyncio.timeout(OVERTAKEN_S if self._held else None):
                header = await self._source.readexactly(FRAME_HEADER_BYTES)
        except TimeoutError:
            # Nothing was taken: a header comes whole or not at all.
            await self._send(b"")
            header = await self._source.readexactly(FRAME_HEADER_BYTES)
        length = min(int.from_bytes(header[:4], "little"), DATA_BYTES_MAX)
        return header + await self._source.readexactly(length)

    async def _carry(self, frame: bytes) -> None:
        proxy = self._proxy
        if frame[4] in _GREETINGS or not proxy.is_harmed():
            await self._send(frame)
        elif proxy.harm == DELAY:
            await asyncio.sleep(proxy.delay_s())
            await self._send(frame)
        elif proxy.harm == DUPLICATE:
            await self._send(frame + frame)
            self._note_harm()
        elif proxy.harm == REORDER:
            before, self._held = self._held, frame
            if before:
                self._sink.write(before)
                await self._sink.drain()
        else:
            await self._send(proxy.damaged(frame))
            self._note_harm()

    async def _send(self, frame: bytes) -> None:
        """This frame, and after it the frame that it overtook."""
        held, self._held = self._held, b""
        self._sink.write(frame + held)
        await self._sink.drain()
        if frame and held:
            self._note_harm()

    def _note_harm(self) -> None:
        """The frame just sent must be refused."""
        if self._harmed_at_s is None:
            self._harmed_at_s = asyncio.get_running_loop().time()

    def _note_refusal(self) -> None:
        if self._harmed_at_s is None:
            return
        since_s = asyncio.get_running_loop().time() - self._harmed_at_s
        self._proxy.told.refused += since_s < REFUSED_S
        self._harmed_at_s = None


async def serve(listen: tuple[str, int], to: tuple[str, int], harm: str, seed: int) -> Told:
    """Be the proxy until standard input ends."""
    proxy = FrameProxy(to, harm, seed)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    server = await asyncio.start_server(proxy.accept, *listen, limit=DATA_BYTES_MAX)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()
    server.close()
    # Connections that end from here on are closed by the proxy, and are no refusals.
    told = replace(proxy.told)
    await proxy.close()
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """The proxy as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--harm", required=True, choices=HARMS)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    listen, to = (
        (host, int(port)) for host, _, port in (a.rpartition(":") for a in (asked.listen, asked.to))
    )
    told = asyncio.run(serve(listen, to, asked.harm, asked.seed))
    sys.stdout.write(json.dumps(asdict(told)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
