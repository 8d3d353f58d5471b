"""A stranger on the network: what speaks to a node's port and is nothing of ours.

A port scanner, a browser, a client with a bug, somebody with bad intent. Nothing that
they say may end a node or reach another connection (reliability digest §7: the last
three holes of a log store's were all in what it parses before it knows who speaks).

Source: reliability digest §5.1 (malformed frames, slow client, floods), §7 (4, 5, 9).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from cordwood.errors import Unreachable
from cordwood.host.seams import Host, Transport
from cordwood.layout.frame import Kind, frame, frame_header
from cordwood.layout.hello import ANY_CLUSTER, Hello, pack_hello

DIAL_S = 1.0
PAUSE_S = 0.1
"""Mean time between two things that it does: far more often than any client of ours."""

NOISE_BYTES_MAX = 2000

KINDS = tuple(kind for kind in Kind if kind not in (Kind.HELLO, Kind.WELCOME, Kind.REFUSAL))
"""Of frames after a greeting."""


class Stranger:
    """Goes on until it is killed.

    Args:
        addresses: of the nodes that it bothers.
    """

    def __init__(self, addresses: Sequence[str], chance: random.Random) -> None:
        self._addresses = addresses
        self._chance = chance

    async def run(self, host: Host) -> None:
        """Dial, say something, perhaps stay, and dial again."""
        chance = self._chance
        acts = (self._noise, self._half_a_hello, self._silence, self._frames, self._no_reader)
        open_ends: list[_End] = []
        while True:
            await asyncio.sleep(chance.expovariate(1 / PAUSE_S))
            try:
                end = await host.network.connect(
                    chance.choice(self._addresses), _End, timeout_s=DIAL_S
                )
            except Unreachable:
                continue
            assert isinstance(end, _End)
            chance.choice(acts)(end)
            open_ends.append(end)
            if chance.random() < 0.5:
                open_ends.pop(chance.randrange(len(open_ends))).hang_up()

    def _noise(self, end: _End) -> None:
        """What a browser or a scanner says."""
        words = (b"GET / HTTP/1.1\r\nHost: cordwood\r\n\r\n", b"\x00" * 500, b"\xff" * 64)
        random_bytes = self._chance.randbytes(self._chance.randint(1, NOISE_BYTES_MAX))
        end.say(self._chance.choice((*words, random_bytes)))

    def _half_a_hello(self, end: _End) -> None:
        """A greeting that never ends."""
        hello = b"".join(frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        end.say(hello[: self._chance.randrange(len(hello))])

    def _silence(self, end: _End) -> None:
        """A connection, and nothing on it."""

    def _frames(self, end: _End) -> None:
        """A good greeting, and then frames that nobody of ours sends."""
        chance = self._chance
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        for _ in range(chance.randint(1, 5)):
            body = chance.randbytes(chance.randint(0, 200))
            kind = chance.choice(KINDS)
            if chance.random() < 0.2:
                # Far more is promised than comes.
                end.say(frame_header(kind, 1, chance.randrange(1 << 32), 0), body)
            else:
                end.say(*frame(kind, chance.randrange(1 << 16), body))

    def _no_reader(self, end: _End) -> None:
        """A good greeting and many questions, whose answers it never takes."""
        end.pause()
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        for number in range(50):
            end.say(*frame(Kind.CALL, number, b'{"type":"ask-members"}'))


class _End:
    """A `StreamHandler` that hears nothing."""

    def __init__(self) -> None:
        self._transport: Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def say(self, *parts: bytes | memoryview | bytearray) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()
