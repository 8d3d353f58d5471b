"""Blocks of many logs leave as one frame to each sequencer, in the order they were put."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from scenarios import as_scenario, awaited_by

from cordwood.block import Buffer
from cordwood.client.append.append_limits import FRAME_BLOCKS, FRAME_BYTES
from cordwood.client.append.outbox import Outbox
from cordwood.layout.frame import Kind
from cordwood.layout.waves import append_head
from cordwood.wire.connection import Connection


class Sequencer:
    """Keeps the frames that it is sent."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, kind: int, request: int, parts: Sequence[Buffer]) -> None:
        assert (kind, request) == (Kind.APPEND, 0)
        self.frames.append(b"".join(parts))


def put(outbox: Outbox, target: Sequencer, *blocks: bytes, size: int = 1) -> None:
    outbox.put(cast(Connection, target), blocks, len(blocks), size)


@as_scenario(awaited_by(asyncio.run))
async def test_all_of_a_turn_leave_as_one_frame_to_each() -> None:
    outbox, one, other = Outbox(asyncio.get_running_loop()), Sequencer(), Sequencer()
    put(outbox, one, b"a", b"b")
    put(outbox, other, b"x")
    put(outbox, one, b"c")
    assert one.frames == other.frames == []
    await asyncio.sleep(0)
    assert one.frames == [append_head(3) + b"abc"]
    assert other.frames == [append_head(1) + b"x"]
    put(outbox, one, b"d")
    outbox.send()
    await asyncio.sleep(0)
    assert one.frames[1:] == [append_head(1) + b"d"]


@as_scenario(awaited_by(asyncio.run))
async def test_a_frame_that_is_full_leaves_first() -> None:
    outbox, one = Outbox(asyncio.get_running_loop()), Sequencer()
    put(outbox, one, b"a", size=FRAME_BYTES)
    put(outbox, one, b"b")
    assert one.frames == [append_head(1) + b"a"]
    put(outbox, one, *[b"c"] * (FRAME_BLOCKS - 1))
    put(outbox, one, b"d")
    outbox.send()
    assert one.frames[1:] == [
        append_head(FRAME_BLOCKS) + b"b" + b"c" * (FRAME_BLOCKS - 1),
        append_head(1) + b"d",
    ]
