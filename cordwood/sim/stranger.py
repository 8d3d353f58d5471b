"""A stranger on the network: what speaks to a node's port and is nothing of ours.

A port scanner, a browser, a client with a bug, somebody with bad intent, a node with a bug.
Nothing that they say may end a node or a log, or reach another connection
(docs/sources/reliability.md §7: the last three holes of a log store's were all in what it parses
before it knows who speaks). What they say in frames that are well made is in `sim.forgeries`.

Source: docs/sources/reliability.md §5.1 (malformed frames, slow client, floods), §7 (4, 5, 9).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from cordwood.errors import CordwoodError, Unreachable
from cordwood.host.seams import Host, Transport
from cordwood.layout.frame import FRAME_HEADER_BYTES, FrameParser, Kind, frame, frame_header
from cordwood.layout.hello import ANY_CLUSTER, Hello, pack_hello, unpack_hello
from cordwood.sim import forgeries

DIAL_S = 1.0
PAUSE_S = 0.1
"""Mean time between two things that it does: far more often than any client of ours."""

NOISE_BYTES_MAX = 2000

HELD_MAX = 12
"""Connections on which a frame was begun that it never ends; more than that tells nothing new."""

HALF_BYTES_MAX = 60_000
CROWD = 12
"""Connections that it opens at once."""

NO_MEMBERS = range(50, 60)
"""Numbers that no node of the cluster has."""

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
        self._cluster = ANY_CLUSTER
        self._held: list[_End] = []
        self._acts = (
            self._noise, self._half_a_hello, self._silence, self._frames, self._no_reader,
            self._half_a_frame, self._claims, self._no_member, self._faulty_member,
        )  # fmt: skip

    async def run(self, host: Host) -> None:
        """Dial, say something, perhaps stay, and dial again."""
        chance = self._chance
        open_ends: list[_End] = []
        while True:
            await asyncio.sleep(chance.expovariate(1 / PAUSE_S))
            act = chance.choice(self._acts)
            if act == self._half_a_frame and len(self._held) >= HELD_MAX:
                act = self._drip
            ends = [await self._dial(host) for _ in range(CROWD if act == self._silence else 1)]
            for end in filter(None, ends):
                act(end)
                if end not in self._held:
                    open_ends.append(end)
            goes = chance.random() < 0.5
            while open_ends and (goes or len(open_ends) > 5 * CROWD):
                open_ends.pop(chance.randrange(len(open_ends))).hang_up()
                goes = False

    async def _dial(self, host: Host) -> _End | None:
        node = self._chance.randrange(len(self._addresses))
        try:
            end = await host.network.connect(self._addresses[node], _End, timeout_s=DIAL_S)
        except Unreachable:
            return None
        assert isinstance(end, _End)
        end.learn = self._learn
        return end

    def _learn(self, cluster: bytes) -> None:
        """A node said in its WELCOME which cluster it is of."""
        self._cluster = cluster

    def _half_a_frame(self, end: _End) -> None:
        """A good greeting, the beginning of a frame, and from then on a byte now and then."""
        length = self._chance.randint(1000, HALF_BYTES_MAX)
        here = self._chance.randrange(length)
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        whole = frame_header(Kind.APPEND, 1, length, 0) + bytes(here)
        # Half of a header is a frame that was begun, too.
        end.say(whole[: FRAME_HEADER_BYTES - 5] if self._chance.random() < 0.2 else whole)
        self._held = [held for held in self._held if held.is_open] + [end]

    def _drip(self, end: _End) -> None:
        """It goes on with one of its frames, and comes to no end."""
        self._chance.choice(self._held).say(b"\0")
        self._held = [held for held in self._held if held.is_open]

    def _claims(self, end: _End) -> None:
        """A client that says what nodes say, and what no log has come to."""
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        call = self._chance.choice((forgeries.far_call, forgeries.edge_call))
        end.say(*frame(Kind.CALL, 1, call(self._chance)))
        if self._chance.random() < 0.3:
            end.say(*frame(*forgeries.lie(self._chance)))

    def _no_member(self, end: _End) -> None:
        """What says to be a node: of a number that none has, or one that names no cluster."""
        number = self._chance.choice(NO_MEMBERS)
        if self._chance.random() < 0.3:
            hello = Hello(self._chance.randint(1, len(self._addresses)), ANY_CLUSTER)
        else:
            hello = Hello(number, self._cluster)
        end.say(*frame(Kind.HELLO, 0, pack_hello(hello)))
        for _ in range(self._chance.randint(1, 3)):
            end.say(*frame(*forgeries.lie(self._chance)))

    def _faulty_member(self, end: _End) -> None:
        """A node of the cluster, as far as anybody can tell, that speaks of far epochs."""
        number = self._chance.randint(1, len(self._addresses))
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(number, self._cluster))))
        choice = self._chance.random()
        if choice < 0.4:
            end.say(*frame(Kind.CALL, 1, forgeries.far_call(self._chance)))
        elif choice < 0.7:
            end.say(*frame(Kind.STORE, 1, forgeries.far_store(self._chance)))
        else:
            end.say(*frame(Kind.RELEASE, 0, forgeries.far_release(self._chance)))

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
        """A crowd of connections, and nothing on them."""

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
    """A `StreamHandler` that hears no more than a WELCOME.

    Attributes:
        learn: told of the cluster that a WELCOME names.
    """

    def __init__(self) -> None:
        self.learn: Callable[[bytes], None] | None = None
        self._transport: Transport | None = None
        self._heard: FrameParser | None = FrameParser()

    @property
    def is_open(self) -> bool:
        """Whether the node has left it open."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._heard is None:
            return
        try:
            for each in self._heard.feed(data):
                if each.kind == Kind.WELCOME and self.learn is not None:
                    self.learn(unpack_hello(each.payload).cluster)
                self._heard = None
        except CordwoodError:
            self._heard = None  # as with any line: what it hears may be damaged

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
