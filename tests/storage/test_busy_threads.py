"""A node whose threads have too much to do just then goes on: as a donor, and with amends."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk, missing, put_records
from scenarios import as_scenario

from cordwood.errors import Overloaded
from cordwood.settings import StorageSettings
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.logs_store import LogsStore


def is_rebuilt(cluster: ClusterAtHand, node: int) -> bool:
    found = [each._rebuild.set.entry(node) for each in cluster.running.values()]
    return any(entry is not None and entry.is_empty for entry in found)


@pytest.mark.parametrize("kind", [LogReader, LogsStore], ids=["of the donor", "of amends too"])
@as_scenario(simulate, nodes=5, storage=StorageSettings(recent_bytes=0))
async def test_refused_reads_end_no_node(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """The first refused read of a donor, or of an amend, ended its node."""
    await put_records(cluster)
    for node in cluster.running.values():
        await node.flush()
    right, calls = kind.read, [0]

    async def read(self: Any, *asked: Any, **how: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 1 and calls[0] < 100:
            raise Overloaded("4096 blocking calls are waiting")
        return await right(self, *asked, **how)

    lose_disk(cluster, 2)
    monkeypatch.setattr(kind, "read", read)
    await call_lost(cluster, 2)
    await until(lambda: is_rebuilt(cluster, 2), timeout_s=120)
    assert calls[0] > 3
    assert sorted(cluster.running) == [1, 3, 4, 5]
    monkeypatch.undo()
    assert not await missing(cluster)
