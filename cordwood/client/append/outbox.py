"""Gathers blocks of many logs for their sequencers, and sends one APPEND frame to each sequencer in
a tick.

A frame costs both sides more than a small block in it. A client that appends to a thousand logs has
a block for each log in every tick.

Source: docs/design.md §4 ("Waves").
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.client.append.append_limits import FRAME_BLOCKS, FRAME_BYTES
from cordwood.layout.frame import Kind
from cordwood.layout.waves import append_head
from cordwood.wire.connection import Connection


class _Frame:
    """The blocks that one connection sends next."""

    __slots__ = ("blocks", "bytes", "parts")

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.blocks = 0
        self.bytes = 0


class Outbox:
    """See the module. Blocks leave in the order of their puts, at the end of the tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._frames: dict[Connection, _Frame] = {}
        self._is_due = False

    def put(self, target: Connection, parts: Sequence[Buffer], blocks: int, size: int) -> None:
        """Send `count` blocks, laid out in `parts`; their bodies have `size` bytes."""
        frame = self._frames.get(target)
        if frame is not None and (
            frame.blocks + blocks > FRAME_BLOCKS or frame.bytes + size > FRAME_BYTES
        ):
            self._send(target, self._frames.pop(target))
            frame = None
        if frame is None:
            frame = self._frames[target] = _Frame()
        frame.parts += parts
        frame.blocks += blocks
        frame.bytes += size
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        """Send all of it now."""
        self._is_due = False
        frames, self._frames = self._frames, {}
        for target, frame in frames.items():
            self._send(target, frame)

    def _send(self, target: Connection, frame: _Frame) -> None:
        target.send(Kind.APPEND, 0, [append_head(frame.blocks), *frame.parts])
