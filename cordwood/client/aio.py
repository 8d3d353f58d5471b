"""`connect` for programs with a loop of their own.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from cordwood.client.address import parse_url
from cordwood.client.opening import Opening
from cordwood.client.store import Store, connected
from cordwood.host.collector import rare_collections
from cordwood.host.real import real_host
from cordwood.settings import ClientSettings


def connect(url: str, settings: ClientSettings | None = None) -> Opening[Store]:
    """Connect to a cluster: `async with connect(url) as store`, or `await` it and close it.

    Args:
        url: `cordwood://host:port,…`.
        settings: see `settings.ClientSettings`.
    Raises:
        BadSetting: the URL is not one.
        Unreachable: no node answered; the text says how to start one.
    """

    async def opening() -> Store:
        chosen = settings or ClientSettings()
        return await open_store(_on_this_machine(parse_url(url), chosen))

    return Opening(opening)


@asynccontextmanager
async def _on_this_machine(
    addresses: tuple[str, ...], settings: ClientSettings
) -> AsyncIterator[Store]:
    async with real_host() as host, connected(addresses, host, settings) as store:
        with rare_collections(settings.rare_collections):
            yield store


async def open_store(manager: AbstractAsyncContextManager[Store]) -> Store:
    """Run a store's own tasks in the background until its `close`.

    One task enters and leaves the manager, because a task group must be left by
    the task that entered it, and a caller may close from any.
    """
    ready: asyncio.Future[Store] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            async with manager as store:
                ready.set_result(store)
                await store.wait_closed()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    runner = asyncio.get_running_loop().create_task(run())
    try:
        store = await ready
    except BaseException:
        runner.cancel()
        await asyncio.wait([runner])
        raise
    store.run_by(runner)
    return store
