"""The simulated metadata store: what each start of a node has of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from cordwood.sim.history import HistoryRecorder
from cordwood.sim.loop import SimLoop
from cordwood.sim.process import Process
from cordwood.sim.recorded_metadata import RecordedMetadata

KEY = "work/1"
TTL_S = 10.0


def test_a_lease_of_one_start_of_a_node_keeps_all_others_out() -> None:
    """All nodes had one holder, so a lease kept nobody out, and no seed met its faults."""

    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        metadata = RecordedMetadata(random.Random(1), HistoryRecorder(lambda: 0))

        async def within(name: str, call: Callable[[], Awaitable[object]]) -> object:
            done: asyncio.Future[object] = loop.create_future()

            async def work() -> None:
                done.set_result(await call())

            loop.spawn(Process(name), work(), name=name)
            return await done

        async def take(name: str) -> bool:
            return bool(await within(name, lambda: metadata.take_lease(KEY, b"", TTL_S)))

        told = [await take("node-1#1"), await take("node-2#1"), await take("node-1#2")]
        await within("node-2#1", lambda: metadata.drop_lease(KEY))
        told += [await take("node-2#1"), await take("node-1#1")]
        await within("node-1#1", lambda: metadata.drop_lease(KEY))
        told.append(await take("node-2#1"))
        await asyncio.sleep(TTL_S + 1)
        return [*told, await take("node-1#2"), await take("node-2#1")]

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        got = runner.run(main())
    assert got == [True, False, False, False, True, True, True, False]
