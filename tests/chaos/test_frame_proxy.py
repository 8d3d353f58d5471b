"""The proxy harms whole frames, in the way it was told to, and a frame parser notices damage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from swaps import swap_value

from cordwood.chaos import frame_proxy
from cordwood.chaos.frame_proxy import CORRUPT, DELAY, DUPLICATE, REORDER, FrameProxy
from cordwood.errors import Corrupt, Malformed
from cordwood.layout.frame import Frame, FrameParser, Kind, frame

FRAMES = 300


async def _carried(harm: str) -> tuple[list[Frame], FrameProxy, str]:
    """What arrives of FRAMES frames behind a greeting, and why no more did."""
    arrived: list[Frame] = []
    failure = ""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal failure
        parser = FrameParser()
        try:
            while data := await reader.read(100):
                arrived.extend(parser.feed(data))
                if not parser.greeted:
                    parser.greeted = True
                    arrived.extend(parser.feed(b""))
        except (Corrupt, Malformed) as error:
            failure = str(error)
        finally:
            writer.transport.abort()
            done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    to = server.sockets[0].getsockname()
    proxy = FrameProxy(to, harm, seed=4)
    front = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
    with suppress(ConnectionError):
        writer.write(b"".join(frame(Kind.HELLO, 0, bytes(48))))
        for number in range(1, FRAMES + 1):
            writer.write(b"".join(frame(Kind.CALL, number, b"x" * number)))
            await writer.drain()
    writer.transport.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    async with asyncio.timeout(20):
        await done.wait()
    server.close()
    front.close()
    await proxy.close()
    return arrived, proxy, failure


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: frame_proxy.DELAY_S, (0.0, 0.001))


def test_late_frames_are_all_there_in_their_order() -> None:
    arrived, proxy, failure = asyncio.run(_carried(DELAY))
    assert failure == ""
    assert [each.request for each in arrived] == list(range(FRAMES + 1))
    assert proxy.told.harmed > 10


def test_frames_that_come_twice_are_whole() -> None:
    arrived, proxy, failure = asyncio.run(_carried(DUPLICATE))
    assert failure == ""
    assert len(arrived) == FRAMES + 1 + proxy.told.harmed
    assert [each.request for each in arrived] == sorted(each.request for each in arrived)
    assert {each.request for each in arrived} == {*range(FRAMES + 1)}


def test_frames_that_overtake_one_another_are_whole_and_none_is_missing() -> None:
    arrived, proxy, failure = asyncio.run(_carried(REORDER))
    assert failure == ""
    numbers = [each.request for each in arrived]
    assert numbers != sorted(numbers)
    # The last one may have been held back when its sender hung up.
    assert {*range(FRAMES)} <= {*numbers}
    assert proxy.told.harmed > 10


def test_a_damaged_frame_is_refused_and_nothing_behind_it_is_taken() -> None:
    arrived, proxy, failure = asyncio.run(_carried(CORRUPT))
    assert failure
    numbers = [each.request for each in arrived]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) <= FRAMES
    assert all(bytes(each.payload) == b"x" * each.request for each in arrived[1:])
    assert proxy.told.harmed >= 1
    assert proxy.told.refused == 1
