"""What is asked about places in a log ends at the node when its caller waits no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from made_blocks import LOG, Made, at, flush, packed, run, turns
from scenarios import as_scenario

from cordwood.errors import Unreachable
from cordwood.layout.log_questions import AskExtent, AskTime
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.role import StorageRole


class StuckTables:
    """Tables of a disk that does not answer, and how many readers wait for it."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def scan(self, *_: Any, **__: Any) -> Sequence[Any]:
        self.waiting += 1
        try:
            await asyncio.sleep(10_000)
        finally:
            self.waiting -= 1
        raise AssertionError("nobody waits so long")


@pytest.mark.parametrize(
    "ask",
    [
        AskTime(LOG, 1, at(1), True, timeout_ms=2000),
        AskExtent(LOG, at(1), timeout_ms=2000),
    ],
    ids=lambda ask: type(ask).__name__,
)
@as_scenario(run)
async def test_a_search_ends_when_its_caller_gives_up(*, ask: Any) -> None:
    made = await Made.new()
    made.store(packed(at(1), lng=0))
    await turns()
    await flush(made, now_us=1)
    made.engine.logs._directories.clear()
    tables = StuckTables(made.engine.logs.tables)
    made.engine.logs._tables = cast(Any, tables)
    role = StorageRole(made.engine, ReadStreams(made.engine.reader))
    start = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable, match=rf"{type(ask).__name__} took longer than 2000 ms"):
        await role.look(ask)
    assert asyncio.get_running_loop().time() == start + 2
    assert tables.waiting == 0


def test_a_client_says_how_long_it_waits() -> None:
    async def scenario(cluster: ClusterAtHand) -> list[int]:
        asked: list[int] = []
        async with cluster.client(timeout_s=3) as store:
            await store.append("log", b"1")
            for node in cluster.running.values():
                look = node._storage.look

                async def noting(call: Any, look: Any = look, **who: Any) -> Any:
                    asked.append(call.timeout_ms)
                    return await look(call, **who)

                node._storage.look = noting  # type: ignore[method-assign]
            await store.extent("log")
        return asked

    asked = simulate(scenario, nodes=3)
    assert asked
    assert set(asked) == {3000}
