"""A node that could not read its store comes back to the reader by itself."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.errors import Retryable
from cordwood.settings import StorageSettings
from cordwood.storage.log_reader import LogReader
from cordwood.storage.push.read_streams import FETCH_RETRY_S


def test_what_could_not_be_read_is_read_again_soon() -> None:
    right = LogReader.read
    failed: list[int] = []

    async def read(self: LogReader, *asked: Any, **how: Any) -> Any:
        if not failed:
            failed.append(1)
            raise Retryable("the store has too much to do")
        return await right(self, *asked, **how)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"1")
            await asyncio.sleep(1)
            await cluster.running[1].flush()
            loop = asyncio.get_running_loop()
            begin = loop.time()
            with mock.patch.object(LogReader, "read", read):
                assert await values(store, "log") == [b"1"]
            assert failed
            assert loop.time() - begin < FETCH_RETRY_S + 0.5

    simulate(scenario, nodes=1, copies=1, storage=StorageSettings(recent_bytes=0))
