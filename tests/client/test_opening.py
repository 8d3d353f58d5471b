"""What `connect`, `read`, `reader` and `consumer` return: awaited, entered, iterated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scenarios import as_scenario, awaited_by

from cordwood import aio
from cordwood.block import Record
from cordwood.client.opening import Opening
from cordwood.errors import Closed


class Thing:
    """Something that is opened, and says whether it was closed."""

    def __init__(self):
        self.is_closed = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.is_closed = True


def counted():
    """An opening, and the list of things that it made."""
    made = []

    async def opening():
        await asyncio.sleep(0)
        made.append(Thing())
        return made[-1]

    return Opening(opening), made


class TestOpening:
    def test_nothing_is_opened_before_it_is_used(self):
        _, made = counted()
        assert made == []

    @as_scenario(awaited_by(asyncio.run))
    async def test_two_tasks_that_wait_at_once_get_one_thing(self) -> None:
        opening, made = counted()
        first, second = await asyncio.gather(opening.opened(), opening.opened())
        assert first is second is await opening
        assert made == [first]

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_wait_that_was_cancelled_is_begun_anew(self) -> None:
        opening, made = counted()
        waiting = asyncio.create_task(opening.opened())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert made == []
        assert await opening is made[0]

    @as_scenario(awaited_by(asyncio.run))
    async def test_leaving_the_block_closes_it(self) -> None:
        opening, made = counted()
        async with opening as thing:
            assert not thing.is_closed
        assert [each.is_closed for each in made] == [True]


@pytest.mark.real
class TestOnAStore:
    @as_scenario(awaited_by(asyncio.run))
    async def test_connect_and_read_need_one_keyword_each(self, *, tmp_path: Path) -> None:
        async with aio.connect(tmp_path / "data") as store:
            await store.append_many("a", [b"1", b"2", b"3"])
            values = [item.value async for item in store.read("a")]
        assert values == [b"1", b"2", b"3"]
        with pytest.raises(Closed):
            await store.append("a", b"4")

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_second_loop_goes_on_where_the_first_was_left(self, *, tmp_path: Path) -> None:
        async with aio.connect(tmp_path / "data") as store:
            await store.append_many("a", [b"1", b"2", b"3"])
            items = store.read("a")
            async for item in items:
                assert item.value == b"1"
                break
            assert [item.value async for item in items] == [b"2", b"3"]

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_stream_that_was_entered_is_closed_at_the_end(self, *, tmp_path: Path) -> None:
        async with aio.connect(tmp_path / "data") as store:
            await store.append("a", b"1")
            async with store.read("a", until=None) as stream:
                assert isinstance(await anext(aiter(stream)), Record)
            assert store._streams.by_number == {}

    @as_scenario(awaited_by(asyncio.run))
    async def test_a_reader_of_several_logs_and_a_consumer_are_entered_at_once(
        self, *, tmp_path: Path
    ) -> None:
        async with aio.connect(tmp_path / "data") as store:
            await store.append("a", b"1")
            await store.append("b", b"2")
            async with store.reader("a", "b", until="tail") as reader:
                got = sorted([item.value async for _, item in reader])
            assert got == [b"1", b"2"]
            async with store.consumer("c", "a") as consumer:
                _, item = await anext(aiter(consumer))
                assert item.value == b"1"
