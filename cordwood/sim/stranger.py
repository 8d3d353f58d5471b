"""A stranger on the network: a program that speaks to a node's port and is no part of Cordwood.

It plays a port scanner, a browser, a client with a bug, an attacker, a node with a bug. No message
of a stranger may end a node or a log, or reach another connection (docs/sources/reliability.md §7:
the last three security holes of a log store were all in the code that parses bytes before the
speaker is known). Its well-formed frames are in `sim.forgeries`.

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
"""Mean time between two of its actions: far more often than a client acts."""

NOISE_BYTES_MAX = 2000

HELD_MAX = 12
"""Most connections with a frame that it begins and never ends; more would show nothing new."""

HALF_BYTES_MAX = 60_000
CROWD = 12
"""Number of connections that it opens at once."""

NO_MEMBERS = range(50, 60)
"""Node numbers that do not exist in the cluster."""

KINDS = tuple(kind for kind in Kind if kind not in (Kind.HELLO, Kind.WELCOME, Kind.REFUSAL))
"""Number of frames after a greeting."""


class Stranger:
    """Speaks to nodes until it is killed.

    Args:
        addresses: addresses of the nodes that it speaks to.
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
        """A node named its cluster in its WELCOME."""
        self._cluster = cluster

    def _half_a_frame(self, end: _End) -> None:
        """A good greeting and the beginning of a frame; after that a byte now and then."""
        length = self._chance.randint(1000, HALF_BYTES_MAX)
        here = self._chance.randrange(length)
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        whole = frame_header(Kind.APPEND, 1, length, 0) + bytes(here)
        # Half of a header is the beginning of a frame, too.
        end.say(whole[: FRAME_HEADER_BYTES - 5] if self._chance.random() < 0.2 else whole)
        self._held = [held for held in self._held if held.is_open] + [end]

    def _drip(self, end: _End) -> None:
        """Send another byte of one of its frames, which never end."""
        self._chance.choice(self._held).say(b"\0")
        self._held = [held for held in self._held if held.is_open]

    def _claims(self, end: _End) -> None:
        """A client that sends messages of nodes, and LSNs that no log has reached."""
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        call = self._chance.choice((forgeries.far_call, forgeries.edge_call))
        end.say(*frame(Kind.CALL, 1, call(self._chance)))
        if self._chance.random() < 0.3:
            end.say(*frame(*forgeries.lie(self._chance)))

    def _no_member(self, end: _End) -> None:
        """A greeting of a pretended node: with a number that no node has, or without a cluster."""
        number = self._chance.choice(NO_MEMBERS)
        if self._chance.random() < 0.3:
            hello = Hello(self._chance.randint(1, len(self._addresses)), ANY_CLUSTER)
        else:
            hello = Hello(number, self._cluster)
        end.say(*frame(Kind.HELLO, 0, pack_hello(hello)))
        for _ in range(self._chance.randint(1, 3)):
            end.say(*frame(*forgeries.lie(self._chance)))

    def _faulty_member(self, end: _End) -> None:
        """A speaker that looks like a node of the cluster, and names far epochs."""
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
        """The bytes of a browser or a scanner."""
        words = (b"GET / HTTP/1.1\r\nHost: cordwood\r\n\r\n", b"\x00" * 500, b"\xff" * 64)
        random_bytes = self._chance.randbytes(self._chance.randint(1, NOISE_BYTES_MAX))
        end.say(self._chance.choice((*words, random_bytes)))

    def _half_a_hello(self, end: _End) -> None:
        """A greeting that never ends."""
        hello = b"".join(frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        end.say(hello[: self._chance.randrange(len(hello))])

    def _silence(self, end: _End) -> None:
        """Many connections, and nothing on them."""

    def _frames(self, end: _End) -> None:
        """A good greeting, and then frames that no client or node sends."""
        chance = self._chance
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        for _ in range(chance.randint(1, 5)):
            body = chance.randbytes(chance.randint(0, 200))
            kind = chance.choice(KINDS)
            if chance.random() < 0.2:
                # The header promises far more bytes than come.
                end.say(frame_header(kind, 1, chance.randrange(1 << 32), 0), body)
            else:
                end.say(*frame(kind, chance.randrange(1 << 16), body))

    def _no_reader(self, end: _End) -> None:
        """A good greeting and many calls; it never reads the answers."""
        end.pause()
        end.say(*frame(Kind.HELLO, 0, pack_hello(Hello(0, ANY_CLUSTER))))
        for number in range(50):
            end.say(*frame(Kind.CALL, number, b'{"type":"ask-members"}'))


class _End:
    """A `StreamHandler` that understands only a WELCOME.

    Attributes:
        learn: called with the cluster that a WELCOME names.
    """

    def __init__(self) -> None:
        self.learn: Callable[[bytes], None] | None = None
        self._transport: Transport | None = None
        self._heard: FrameParser | None = FrameParser()

    @property
    def is_open(self) -> bool:
        """Whether the node has left the connection open."""
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
            self._heard = None  # as on any line, the bytes may be damaged

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
