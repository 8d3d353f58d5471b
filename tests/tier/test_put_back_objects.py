"""Objects that an operator puts back after a repair has called their records lost."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all
from cluster_at_hand import simulate as simulate_cluster
from made_objects import Made
from scenarios import as_scenario
from test_repair import IN, Cloud, all_entries, on_bucket
from test_tier_cluster import STORAGE, TENDED, TIERED, objects, write
from test_told_losses import told

from cordwood.block import Record
from cordwood.errors import BadSetting
from cordwood.sim.object_store import Bucket
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.collect import collect_log, collect_shared
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectInfo
from cordwood.tier.repair import Found, Unrepairable, is_lost, repair_log

DAY_US = 86_400_000_000


async def repaired(cluster: ClusterAtHand, *, accept: bool = False) -> Found:
    """What an operator's `cordwood tier repair` of log 1 finds."""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    return await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=accept)


async def an_accepted_loss_is_put_back(cluster: ClusterAtHand) -> None:
    """The nodes deleted the object at the next collection, and no repair took it."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, "log", 60)
        await asyncio.sleep(30)
        tail = await store.tail("log")
        name = objects(cluster)[-4]
        content = cluster.bucket.content(name)
        cluster.bucket.delete(name)
        assert (await repaired(cluster, accept=True)).holes
        cluster.bucket.put(name, content, lambda etag: True)
        # Many collections, after the object's grace.
        await asyncio.sleep(60)
        assert name in objects(cluster)
        try:
            found = await repaired(cluster)
        except BadSetting as error:
            pytest.fail(str(error))
        assert found.holes == ()
        await asyncio.sleep(60)
        assert name in objects(cluster)
        items = await read_all(store, "log", until=tail)
        assert told(items) == []
        assert len([item for item in items if isinstance(item, Record)]) == 60


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["tier-refuses-what-is-put-back", "tier-collects-what-is-put-back"])
def test_a_repair_takes_an_accepted_loss_back(bug: str) -> None:
    simulate_cluster(an_accepted_loss_is_put_back, nodes=3, storage=STORAGE, tier=TENDED)
    with planted(find_bug(bug)), pytest.raises((AssertionError, pytest.fail.Exception)):
        simulate_cluster(an_accepted_loss_is_put_back, nodes=3, storage=STORAGE, tier=TENDED)


@pytest.mark.parametrize("which", [0, 2, 4, 64, 66])
@as_scenario(on_bucket)
async def test_each_of_a_log_s_objects_can_come_back(cloud: Cloud, *, which: int) -> None:
    manifest = await cloud.grow(5 if which < 5 else 67)
    entries = await all_entries(manifest)
    start, lost = entries[0].first, entries[which]
    content = cloud.bucket.content(lost.name)
    await cloud.store.delete([lost.name], **IN)
    await repair_log(cloud.store, cloud.manifest(), 7, start=start, accept=True)
    for end in (0, entries[-1].last):
        with pytest.raises(BadSetting, match="nothing to repair"):
            await repair_log(cloud.store, cloud.manifest(), 7, start=start, end=end, accept=True)
    await cloud.store.put(lost.name, [content], **IN)
    now_us = cloud.host.clock.now_us() + DAY_US
    done = await collect_log(cloud.store, cloud.manifest(), 7, now_us, 3600.0)
    assert (lost.name in cloud.bucket.names(), done.kept) == (True, 1)
    found = await repair_log(cloud.store, cloud.manifest(), 7, start=start)
    assert found.holes == ()
    again = await all_entries(cloud.manifest())
    assert [entry.name for entry in again] == [entry.name for entry in entries]
    with pytest.raises(BadSetting, match="nothing to repair"):
        await repair_log(cloud.store, cloud.manifest(), 7, start=start)


@as_scenario(on_bucket)
async def test_what_is_still_lost_is_named_again(cloud: Cloud) -> None:
    """One of two lost objects comes back. Until it is accepted anew, the manifest stays."""
    entries = await all_entries(await cloud.grow(6))
    content = cloud.bucket.content(entries[1].name)
    await cloud.store.delete([entries[1].name, entries[4].name], **IN)
    await repair_log(cloud.store, cloud.manifest(), 7, start=entries[0].first, accept=True)
    await cloud.store.put(entries[1].name, [content], **IN)
    with pytest.raises(Unrepairable, match="1 ranges"):
        await repair_log(cloud.store, cloud.manifest(), 7)
    found = await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
    assert found.holes == ((entries[4].first, entries[4].last),)
    again = await all_entries(cloud.manifest())
    assert [is_lost(entry) for entry in again] == [False] * 4 + [True, False]


@as_scenario(on_bucket)
async def test_an_object_goes_once_its_lost_range_is_trimmed(cloud: Cloud) -> None:
    entries = await all_entries(await cloud.grow(5))
    lost = entries[1]
    content = cloud.bucket.content(lost.name)
    await cloud.store.delete([lost.name], **IN)
    await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
    await cloud.store.put(lost.name, [content], **IN)
    manifest = cloud.manifest()
    await manifest.load()
    await manifest.trim(entries[2].first)
    with pytest.raises(BadSetting, match="nothing to repair"):
        await repair_log(cloud.store, cloud.manifest(), 7)
    now_us = cloud.host.clock.now_us() + DAY_US
    done = await collect_log(cloud.store, cloud.manifest(), 7, now_us, 3600.0)
    assert (lost.name in cloud.bucket.names(), done.kept) == (False, 0)


@as_scenario(on_bucket)
async def test_a_shared_object_that_is_put_back_stays(cloud: Cloud) -> None:
    manifests = {log: cloud.manifest(log) for log in (7, 9)}
    for log, manifest in manifests.items():
        await manifest.take_turn(Made(log).next)
    for _ in range(3):
        done = await cloud.put((7, 2), (9, 3))
        for log, manifest in manifests.items():
            await manifest.commit(cloud.entry(done, log))
    lost = (await all_entries(manifests[7]))[1]
    content = cloud.bucket.content(lost.name)
    await cloud.store.delete([lost.name], **IN)
    for log in manifests:
        await repair_log(cloud.store, cloud.manifest(log), log, accept=True)
    await cloud.store.put(lost.name, [content], **IN)
    now_us = cloud.host.clock.now_us() + DAY_US
    collected = await collect_shared(cloud.store, cloud.manifest, now_us, 3600.0)
    assert (lost.name in cloud.bucket.names(), collected.kept) == (True, 1)
    for log in manifests:
        assert (await repair_log(cloud.store, cloud.manifest(log), log)).holes == ()
        again = await all_entries(cloud.manifest(log))
        assert [is_lost(entry) for entry in again] == [False] * 3


def list_as_now(cloud: Cloud, patch: pytest.MonkeyPatch) -> None:
    """Listings stay as they are now."""
    now = [info for name in cloud.bucket.names() if (info := cloud.bucket.info(name)) is not None]

    def older(self: Bucket, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
        return [each for each in now if each.name.startswith(prefix) and each.name > after][:limit]

    patch.setattr(Bucket, "list", older)


def answer_badly_once(cloud: Cloud, name: str, patch: pytest.MonkeyPatch) -> None:
    """The next read of an object gives other bytes than it has."""
    right = cloud.store.get
    bad = [name]

    async def get(asked: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        found = await right(asked, start, stop, timeout_s=timeout_s)
        if asked in bad:
            bad.remove(asked)
            return bytes(len(found))
        return found

    patch.setattr(cloud.store, "get", get)


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("why", ["an older listing", "a bad answer"])
@as_scenario(on_bucket)
async def test_what_is_put_back_is_damaged_only_if_it_is_so_each_time(
    cloud: Cloud, *, why: str, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged object was replaced by a sound one, and the collection deleted that."""
    entries = await all_entries(await cloud.grow(5))
    lost = entries[1]
    content = cloud.bucket.content(lost.name)
    await cloud.store.delete([lost.name], **IN)
    await cloud.store.put(lost.name, [content[:-9]], **IN)
    await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
    if why == "an older listing":
        list_as_now(cloud, monkeypatch)
    await cloud.store.put(lost.name, [content], **IN)
    if why == "a bad answer":
        answer_badly_once(cloud, lost.name, monkeypatch)
    now_us = cloud.host.clock.now_us() + DAY_US
    with planted(find_bug("tier-damaged-by-one-read")) if is_planted else nullcontext():
        done = await collect_log(cloud.store, cloud.manifest(), 7, now_us, 3600.0)
    assert (lost.name in cloud.bucket.names()) is not is_planted
    assert done.kept == (0 if is_planted else 1)
