"""Frames for a whole node: nothing that a client or a node sends may end more than itself.

A production node runs in virtual time. Bytes come in over connections of its server, as a
client's and as another node's: frames of every kind with right checksums around payloads
that are as bad as it gets. What is wrong closes the connection; an exception that leaves a
handler, a task that dies or an event that nobody handled is a defect.

Source: docs/sources/reliability.md §7 (1, 4).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

from cluster_at_hand import ClusterAtHand

from cordwood.layout.frame import Kind, frame
from cordwood.layout.hello import ANY_CLUSTER, Hello, pack_hello
from cordwood.sim.host import Simulation

_GREETINGS = (Kind.HELLO, Kind.WELCOME, Kind.REFUSAL)
_LATER = (Kind.HEADS, Kind.GAPS, Kind.SHARED, Kind.TOKENS)
"""Kinds that came after the first corpus stand last, so that its numbers mean what they meant."""
KINDS = (*(kind for kind in Kind if kind not in (*_GREETINGS, *_LATER)), *_LATER)

RUNS_A_NODE = 500
"""A node then starts anew: what runs left behind is forgotten, and a find is soon reached again."""

TURNS_S = 0.05
"""Virtual time that a run is given, for the calls that it began."""

_HEAD = struct.Struct("<BH")
"""Before each payload of a run: a kind, and how long it is."""


class _Wire(asyncio.Transport):
    """The node's side of a connection; what it says is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def writelines(self, parts: Any) -> None:
        for part in parts:
            len(part)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read here: bytes are handed over."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""


def frames_of(data: bytes) -> Iterator[bytes]:
    """The frames of a run: kind and length, payload, and so on while there is something."""
    at = 0
    while at + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + length]
        at += length
        yield b"".join(map(bytes, frame(KINDS[kind % len(KINDS)], at, payload)))


class FuzzedNode:
    """Takes runs, one after another; see the module."""

    def __init__(self) -> None:
        self._runs = 0
        self._begin()

    def _begin(self) -> None:
        self._simulation = Simulation(1)
        self._cluster = ClusterAtHand(self._simulation, nodes=1, copies=1)
        self._loop = self._simulation.loop
        self._runner = asyncio.Runner(loop_factory=lambda: self._simulation.loop)
        self._runner.run(self._start())

    async def _start(self) -> None:
        await self._cluster.start()
        async with self._cluster.client() as client:
            await client.append("log", b"first")

    def run(self, data: bytes) -> None:
        """One run: the first byte says whether a client or a node speaks.

        Raises:
            AssertionError: the node did not survive it.
            Exception: what left a handler.
        """
        if self._runs == RUNS_A_NODE:
            self.close()
            self._begin()
            self._runs = 0
        self._runs += 1
        if data:
            self._runner.run(self._speak(data))

    async def _speak(self, data: bytes) -> None:
        node = self._cluster.running[1]
        connection = node.server._accept()
        wire = _Wire()
        connection.connection_made(wire)
        theirs = Hello(1, node._cluster, 1, 1) if data[0] & 1 else Hello(0, ANY_CLUSTER, 0, 1)
        connection.data_received(b"".join(frame(Kind.HELLO, 0, pack_hello(theirs))))
        assert connection.peer is not None, "the greeting is right"
        for each in frames_of(data[1:]):
            if not wire.is_closed:
                connection.data_received(each)
        await asyncio.sleep(TURNS_S)
        connection.connection_lost(None)
        assert self._loop.unhandled == [], self._loop.unhandled
        assert not node._tasks._aborting, "a task of the node ended"  # type: ignore[attr-defined]

    def close(self) -> None:
        """End all tasks: one left to the garbage collector raises in whatever runs then."""
        for machine in self._simulation.machines:
            machine.kill()
        self._runner.close()
