"""The blocks that readers of main storage share: bounded, fetched once, and never half of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from made_objects import Made
from scenarios import as_scenario

from cordwood.errors import Unreachable
from cordwood.layout.body import encode_body
from cordwood.tier.block_cache import BlockCache, Blocks, GroupKey


def blocks_of(size: int) -> Blocks:
    """One block whose body has about so many bytes."""
    return list(Made(1).block(encode_body([bytes(size)], timestamps_us=1)).items)


BODY = blocks_of(1000)[0][0].raw_bytes
"""Of a body of one record of 1,000 bytes."""


def key(number: int) -> GroupKey:
    return GroupKey("logs/1/objects/a", number, 1, as_rows=False)


class Fetches:
    """A store that counts, and holds its answers back while it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def __call__(self) -> Blocks:
        self.count += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return blocks_of(1000)


def run(main: Callable[[Fetches], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main(Fetches())

    asyncio.run(bounded())


@as_scenario(run)
async def test_what_was_used_longest_ago_goes_first(fetch: Fetches) -> None:
    cache = BlockCache(3 * BODY)
    for number in (1, 2, 3, 1, 4):  # 2 is the oldest when 4 comes
        await cache.blocks(key(number), fetch)
    assert (cache.bytes, fetch.count, cache.hits) == (3 * BODY, 4, 1)
    for number in (1, 3, 4):
        await cache.blocks(key(number), fetch)
    assert fetch.count == 4
    await cache.blocks(key(2), fetch)
    assert fetch.count == 5
    cache.clear()
    assert cache.bytes == 0


@pytest.mark.parametrize("bytes_max", [0, BODY - 1])
@as_scenario(run)
async def test_what_is_larger_than_all_of_it_is_not_kept(fetch: Fetches, *, bytes_max: int) -> None:
    cache = BlockCache(bytes_max)
    for _ in range(2):
        assert len(await cache.blocks(key(1), fetch)) == 1
    assert (cache.bytes, fetch.count, cache.hits) == (0, 2, 0)


@as_scenario(run)
async def test_those_who_want_the_same_at_once_fetch_it_once(fetch: Fetches) -> None:
    cache = BlockCache(10 * BODY)
    fetch.may_answer.clear()
    wants = [asyncio.create_task(cache.blocks(key(1), fetch)) for _ in range(4)]
    await asyncio.sleep(0)
    fetch.may_answer.set()
    found = await asyncio.gather(*wants)
    assert all(each is found[0] for each in found)
    assert (fetch.count, cache.bytes) == (1, BODY)


@as_scenario(run)
async def test_where_the_first_is_cancelled_another_goes_on(fetch: Fetches) -> None:
    cache = BlockCache(10 * BODY)
    fetch.may_answer.clear()
    first, second = (asyncio.create_task(cache.blocks(key(1), fetch)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    fetch.may_answer.set()
    assert len(await second) == 1
    assert first.cancelled()
    assert fetch.count == 2


@as_scenario(run)
async def test_what_failed_is_fetched_again(fetch: Fetches) -> None:
    cache = BlockCache(10 * BODY)
    fetch.error = Unreachable("no answer")
    wants = (cache.blocks(key(1), fetch) for _ in range(2))
    ends = await asyncio.gather(*wants, return_exceptions=True)
    assert all(isinstance(end, Unreachable) for end in ends)
    fetch.error = None
    assert len(await cache.blocks(key(1), fetch)) == 1
    assert fetch.count == 3
