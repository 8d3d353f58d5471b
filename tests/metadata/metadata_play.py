"""Running metadata tests: a loop that never waits, and SQLite in a real host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from cordwood.host.real import real_host
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.metadata.store import MetadataStore

Result = TypeVar("Result")
Act = Callable[[MetadataStore], Awaitable[Result]]


class PatientLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, timers[0].when())
        super()._run_once()  # type: ignore[misc]


def run_patiently(main: Awaitable[Result]) -> Result:
    """Run on a PatientLoop: delays and deadlines take no time."""

    async def whole() -> Result:
        return await main

    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        return runner.run(whole())


def run_on_sqlite(path: Path | str, act: Act[Result], **settings: Any) -> Result:
    """Run `act` on the real thing, with a connection of its own."""

    async def main() -> Result:
        async with real_host(seed=1) as host, asyncio.timeout(30):
            store = SqliteMetadata(str(path), host, **settings)
            try:
                return await act(store)
            finally:
                await store.close()

    with asyncio.Runner() as runner:
        return runner.run(main())


def run_on_zookeeper(where: str, act: Act[Result], **settings: Any) -> Result:
    """Run `act` on a real server, with a session of its own; `where` is `host:port/root`."""
    from cordwood.metadata.zookeeper import ZooKeeperMetadata

    hosts, slash, root = where.partition("/")

    async def main() -> Result:
        async with real_host() as host, asyncio.timeout(60):
            store = ZooKeeperMetadata(hosts, slash + root, host, **settings)
            try:
                return await act(store)
            finally:
                await store.close()

    with asyncio.Runner() as runner:
        return runner.run(main())
