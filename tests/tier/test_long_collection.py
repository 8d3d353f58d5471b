"""A collection that takes long: longer than the grace of objects, and beside uploads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from made_objects import Made
from scenarios import as_scenario
from test_tier_cluster import STORAGE, TENDED, TIERED, gone, write
from test_uploader import LOG, on_quiet_store

from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.object_names import objects_prefix
from cordwood.tier.collect import list_all
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.read_leases import hold_objects
from cordwood.tier.uploader import LogUploader
from cordwood.uploading.tend import Tend

GRACE_S = 10.0


async def uploaded(store: ObjectStore, host: Host) -> int:
    """A log in two objects. Returns its end."""
    made = Made(LOG)
    for _ in range(2):
        made = made.block(encode_body([b"v" * 400] * 4, timestamps_us=5))

    async def items() -> Any:
        for item in made.items:
            yield item

    manifest = LogManifest(store, LOG, host, "n")
    uploader = LogUploader(store, manifest, host, LOG, "/x", object_bytes=300)
    await uploader.next_lsn()
    return (await uploader.run(items(), made.first)).end


@as_scenario(on_quiet_store)
async def test_it_keeps_what_was_leased_and_then_let_go_of_during_the_collection(
    store: ObjectStore, host: Host
) -> None:
    """It had read the leases before, and counted the grace up to a time after that."""
    end = await uploaded(store, host)
    names = {info.name async for info in list_all(store, objects_prefix(LOG))}
    assert len(names) == 2

    async def slow_points(log: int) -> tuple[int, int]:
        await hold_objects(store, host, "scan", names, 3600.0, [])
        await LogManifest(store, LOG, host, "n").trim(end)
        await asyncio.sleep(GRACE_S + 1)
        return 0, 0

    async def get_store() -> ObjectStore:
        return store

    async def get_manifest(log: int) -> LogManifest:
        return LogManifest(store, log, host, "n")

    async def check() -> None:
        """The store is this cluster's own."""

    objects = SimpleNamespace(
        store=get_store, manifest=get_manifest, check=check, host=host, name="n"
    )
    attributes = SimpleNamespace(backlog_s=None, backlog_bytes=None)
    info = SimpleNamespace(log_id=LOG, created_us=0, attributes=attributes, name="/x")
    tend = Tend(
        cast(Any, None), cast(Any, None), cast(Any, objects), grace_s=GRACE_S, deleted_keep_s=60
    )
    client = SimpleNamespace(_positions=SimpleNamespace(let_go=slow_points))
    await tend.look(cast(Any, client), cast(Any, {LOG: info}))
    assert {info.name async for info in list_all(store, objects_prefix(LOG))} == names


def test_uploads_go_on_while_a_look_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node awaited its looks at all objects between two uploads. With many that took minutes."""

    async def hangs(self: Tend, *_: object) -> None:
        await asyncio.Event().wait()

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            for _ in range(2):
                await write(store, "log", 20)
                await asyncio.sleep(30)
                assert min(gone(cluster)) == await store.tail("log")

    for look in (Tend.look, Tend.look_at_the_rest):
        monkeypatch.setattr(Tend, look.__name__, hangs)
    simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)
