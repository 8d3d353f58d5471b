"""A client of one event loop, called from another one: each call is refused at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.client.append.buffered_writer import WriterOptions
from cordwood.client.store import Store
from cordwood.embedded import connect
from cordwood.errors import Rejected

OTHER = "of another event loop"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[asyncio.AbstractEventLoop, Store]]:
    """A loop that runs in a thread, and a store of it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    store = asyncio.run_coroutine_threadsafe(connect(str(tmp_path / "store"), wal_mib=8), loop)
    try:
        yield loop, store.result(30)
    finally:
        asyncio.run_coroutine_threadsafe(store.result(30).close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "append": lambda store: store.append("log", b"2"),
    "append_many": lambda store: store.append_many("log", [b"2"]),
    "atomic": lambda store: store.append_many("log", [b"2"], atomic=True),
    "tail": lambda store: store.tail("log"),
    "read": lambda store: store.read("log").opened(),
    "writer": lambda store: store.buffered_writer().append("log", b"2"),
    "status": lambda store: store.status(),
    "create_log": lambda store: store.create_log("other"),
    "serve": lambda store: store.serve(),
    "close": lambda store: store.close(),
}


def test_each_call_from_another_loop_is_refused_and_does_nothing(
    own: tuple[asyncio.AbstractEventLoop, Store],
) -> None:
    loop, store = own

    def here(work: Callable[[Store], Awaitable[object]]) -> object:
        async def run() -> object:
            return await work(store)

        return asyncio.run_coroutine_threadsafe(run(), loop).result(30)

    async def elsewhere(work: Callable[[Store], Awaitable[object]]) -> None:
        async with asyncio.timeout(30):
            with pytest.raises(Rejected, match=OTHER):
                await work(store)

    here(lambda store: store.append("log", b"1"))
    for work in CALLS.values():
        asyncio.run(elsewhere(work))

    async def values(store: Store) -> list[bytes]:
        return [item.value async for item in await store.read("log", gaps=False)]

    assert here(values) == [b"1"]
    assert [each.name for each in here(lambda store: store.logs())] == ["/log"]


def test_what_was_opened_is_not_waited_for_in_another_loop(
    own: tuple[asyncio.AbstractEventLoop, Store],
) -> None:
    loop, store = own

    async def opened() -> list[Callable[[], Awaitable[object]]]:
        await store.append("log", b"1")
        stream = await store.read("log", "tail", None)
        reader = await store.reader("log", start="tail")
        log = await store.open_log("log")
        consumer = await store.consumer("c", "log", member="m").opened()
        await consumer.start()
        await consumer.read()
        writer = store.buffered_writer(WriterOptions(time_trigger_s=None))
        writer.put("log", b"2")
        still_open.extend((writer.append_nowait("log", b"3"), consumer, writer, stream, reader))

        async def close(opened: Any) -> None:
            opened.close()

        async def stop() -> None:
            reader.stop("log")

        return [
            stream.next, lambda: reader.read(timeout_s=60), log.wait_space, writer.flush,
            writer.close, consumer.read, consumer.save, consumer.start, consumer.close,
            lambda: close(stream), lambda: close(reader), stop,
        ]  # fmt: skip

    async def elsewhere(work: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(30):
            with pytest.raises(Rejected, match=OTHER):
                await work()

    still_open: list[Any] = []
    for work in asyncio.run_coroutine_threadsafe(opened(), loop).result(30):
        asyncio.run(elsewhere(work))

    async def go_on() -> None:
        """A save in the other loop told that another consumer is further, and a close there left
        the consumer closed. A writer's close failed records of this loop."""
        future, consumer, writer, stream, reader = still_open
        await writer.close()
        assert await future > 0
        assert len((await consumer.read()).records) == 2
        assert await consumer.save()
        await consumer.close()
        assert await stream.next() is not None
        assert len((await reader.read()).records) == 2
        reader.close()
        stream.close()

    asyncio.run_coroutine_threadsafe(go_on(), loop).result(30)


def test_two_calls_of_serve_at_once_are_told_one_address(
    own: tuple[asyncio.AbstractEventLoop, Store],
) -> None:
    """The second one listened as well, and at a given port it was refused."""
    loop, store = own

    async def both() -> list[str]:
        return await asyncio.gather(store.serve(), store.serve())

    first, second = asyncio.run_coroutine_threadsafe(both(), loop).result(30)
    assert first == second
