"""What the audit of a metadata store says of its consumers: every change, in order, in time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from cordwood.chaos.store_audit import EARLIER_US, audited, begin_audit
from cordwood.host.real import real_host
from cordwood.lsn import Lsn
from cordwood.metadata.consumers import Consumers
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.protocol.consumer_group import Group


def test_every_change_of_a_consumer_is_noted_where_it_is_stored(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.sqlite")

    def moved(group: Group) -> Group:
        at = Lsn(group.positions.get("/a", 0) + 7)
        return replace(group, positions={"/a": at}, generation=group.generation + 1)

    async def change() -> None:
        async with real_host(1) as host:
            store = SqliteMetadata(path, host)
            consumers = Consumers(store)
            await consumers.change("before", moved)
            begin_audit(path)
            for name in ("one", "two", "one"):
                await consumers.change(name, moved)
            await consumers.change("one", lambda group: group)
            await store.compare_and_set("elsewhere/one", b"x", 0)
            await store.close()

    began_us = time.monotonic_ns() // 1000 - EARLIER_US
    asyncio.run(change())
    changes = audited(path)
    assert [(each.consumer, each.generation) for each in changes] == [
        ("one", 1), ("two", 1), ("one", 2),
    ]  # fmt: skip
    assert changes[-1].positions == {"/a": 14}
    times_us = [each.time_us for each in changes]
    assert times_us == sorted(times_us)
    assert began_us - 10_000 <= times_us[0]
    assert times_us[-1] <= time.monotonic_ns() // 1000 - EARLIER_US
