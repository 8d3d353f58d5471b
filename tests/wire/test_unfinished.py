"""Frames that are begun and not ended: bounded in time, and in bytes over all connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scenarios import as_scenario, now
from swaps import swap_value
from test_server import serving, settle
from wire_ends import CLIENT, Offering, RawEnd, memory_ends, raw_dial, run, simulated_ends

from cordwood.layout.frame import FRAME_HEADER_BYTES, Kind, frame, frame_header
from cordwood.layout.hello import Hello, pack_hello
from cordwood.wire import arrivals as arrivals_module
from cordwood.wire.arrivals import FRAME_BYTES_S_MIN, FRAME_GRACE_S, Arrivals

MIB = 1 << 20


async def begun(ends: Any, length: int, here: int, hello: Hello = CLIENT) -> RawEnd:
    """A greeted connection with so much of a frame on it."""
    end = await raw_dial(ends.client)
    end.say(*frame(Kind.HELLO, 0, pack_hello(hello)))
    end.say(frame_header(Kind.APPEND, 1, length, 0), bytes(here))
    await settle()
    return end


class TestTheRule:
    def test_bytes_are_summed_and_let_go(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        arrivals.note("a", 10, 100, 0.0, is_new=False)
        arrivals.note("b", 5, 100, 0.0, is_new=False)
        arrivals.note("a", 30, 100, 1.0, is_new=False)
        assert arrivals.bytes == 35
        arrivals.note("a", 0, 0, 2.0, is_new=True)
        assert arrivals.bytes == 5
        arrivals.note("b", 0, 0, 2.0, is_new=True)
        arrivals.note("b", 0, 0, 2.0, is_new=True)
        assert arrivals.bytes == 0

    def test_the_deadline_is_of_the_frame_and_grows_with_its_length(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        arrivals.note("a", 1, 10 * FRAME_BYTES_S_MIN, 0.0, is_new=False)
        arrivals.note("a", 2, 10 * FRAME_BYTES_S_MIN, 29.0, is_new=False)
        assert arrivals.late(FRAME_GRACE_S + 9.9) == []
        assert arrivals.late(FRAME_GRACE_S + 10.1) == ["a"]
        arrivals.note("a", 2, 10 * FRAME_BYTES_S_MIN, 30.0, is_new=True)
        assert arrivals.late(FRAME_GRACE_S + 30.1) == []

    def test_over_the_sum_the_one_that_began_first_goes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: arrivals_module.UNFINISHED_BYTES_MAX, 100)
        arrivals: Arrivals[str] = Arrivals()
        arrivals.note("old", 40, 50, 0.0, is_new=False)
        arrivals.note("young", 60, 80, 1.0, is_new=False)
        assert arrivals.excess() is None
        arrivals.note("young", 61, 80, 1.0, is_new=False)
        assert arrivals.excess() == "old"
        # A connection with whole frames in between is as young as its last frame.
        arrivals.note("old", 40, 50, 2.0, is_new=True)
        assert arrivals.excess() == "young"


@pytest.mark.parametrize("ends", [memory_ends, simulated_ends])
@pytest.mark.parametrize("here", [0, 5000])
@as_scenario(run)
async def test_a_frame_that_was_begun_ends_in_time_or_its_connection_does(
    *, ends, here: int
) -> None:
    between = ends()
    async with serving(between, Offering()) as server:
        end = await begun(between, MIB, here)
        start = now()
        await asyncio.sleep(FRAME_GRACE_S - 1)
        assert not end.is_lost
        await asyncio.sleep(4)
        assert end.is_lost
        assert now() - start < FRAME_GRACE_S + 4
        assert server.connections == 0


@as_scenario(run)
async def test_half_a_header_is_a_frame_begun() -> None:
    ends = memory_ends()
    async with serving(ends, Offering()):
        end = await raw_dial(ends.client)
        end.greet()
        end.say(frame_header(Kind.APPEND, 1, 100, 0)[: FRAME_HEADER_BYTES - 1])
        await asyncio.sleep(FRAME_GRACE_S + 3)
        assert end.is_lost


@as_scenario(run)
async def test_frames_that_go_on_ending_are_never_late() -> None:
    ends, service = memory_ends(), Offering()
    async with serving(ends, service):
        end = await raw_dial(ends.client)
        end.greet()
        whole = b"".join(frame(Kind.APPEND, 1, bytes(200)))
        # Never a moment without a frame begun, and none that takes long.
        end.say(whole[:100])
        for _ in range(100):
            await asyncio.sleep(1)
            end.say(whole[100:] + whole[:100])
        await settle()
        assert not end.is_lost
        assert len(service.kept.frames) == 100


def test_unfinished_frames_of_all_connections_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 connections with 70 of 71 MiB each kept 1.47 GB for as long as they liked."""
    swap_value(monkeypatch, lambda: arrivals_module.UNFINISHED_BYTES_MAX, 10 * MIB)

    async def scenario() -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service) as server:
            held = [await begun(ends, 4 * MIB, 3 * MIB) for _ in range(20)]
            assert [each.is_lost for each in held] == [True] * 17 + [False] * 3
            assert server._arrivals.bytes <= 10 * MIB
            honest = await begun(ends, 4 * MIB, 2 * MIB)
            assert not honest.is_lost
            assert held[17].is_lost
            for each in held[18:]:
                each.transport.close()
            honest.transport.close()
            await settle()
            assert server._arrivals.bytes == 0

    run(scenario)


def test_for_a_large_one_as_many_small_ones_go_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one went for each that arrived, and the sum grew past its bound."""
    swap_value(monkeypatch, lambda: arrivals_module.UNFINISHED_BYTES_MAX, 10 * MIB)

    async def scenario() -> None:
        ends, service = memory_ends(), Offering()
        async with serving(ends, service) as server:
            small = [await begun(ends, MIB, MIB // 2) for _ in range(20)]
            large = await begun(ends, 12 * MIB, 9 * MIB)
            assert server.arrivals.bytes <= 10 * MIB
            assert not large.is_lost
            assert [each.is_lost for each in small] == [True] * 19 + [False]

    run(scenario)
