"""Repairs by a listing that is older than the manifest: what the manifest names is not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import pytest
from scenarios import as_scenario
from test_repair import IN, Cloud, all_entries, on_bucket

from cordwood.layout.object_names import pages_prefix
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.sim.object_store import Bucket
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.collect import collect_log
from cordwood.tier.compact import compact_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectInfo
from cordwood.tier.repair import Unrepairable, repair_log
from cordwood.tiered import MERGED

BUG = "tier-repairs-by-the-listing"


def list_only(patch: pytest.MonkeyPatch, known: Iterable[str]) -> None:
    """Listings are from when the store had these objects."""
    right: Callable[[Bucket, str, str, int], list[ObjectInfo]] = Bucket.list
    names = set(known)

    def older(self: Bucket, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
        return [info for info in right(self, prefix, after, limit) if info.name in names]

    patch.setattr(Bucket, "list", older)


async def commit(cloud: Cloud, manifest: LogManifest, *logs: tuple[int, int]) -> None:
    assert manifest.head is not None
    done = await cloud.put(*logs, fence=manifest.head.fence)
    await manifest.commit(cloud.entry(done, 7))


async def grow_unlisted(cloud: Cloud, how: str) -> tuple[LogManifest, list[str]]:
    """A log, and the names that are listed: some objects, by `how` they came, are not."""
    manifest = await cloud.grow(70 if how == "in pages" else 6)
    known = cloud.bucket.names()
    match how:
        case "own" | "trimmed":
            await commit(cloud, manifest, (7, 2))
            await commit(cloud, manifest, (7, 3))
        case "in pages":
            for _ in range(60):  # the head has the last two alone
                await commit(cloud, manifest, (7, 1))
        case "shared":
            await commit(cloud, manifest, (7, 2), (9, 3))
        case "merged":
            policy = MergePolicy(object_bytes=1 << 20)
            assert (await compact_log(cloud.store, manifest, cloud.host, 7, policy)).merged
            await collect_log(cloud.store, manifest, 7, cloud.host.clock.now_us() + 1, 0.0)
            (merged,) = await all_entries(manifest)
            assert merged.fence & MERGED
            for _ in range(2):
                await commit(cloud, manifest, (7, 2))
            known = [name for name in cloud.bucket.names() if name != merged.name]
    if how == "trimmed":
        last = (await all_entries(manifest))[-2]
        await manifest.trim(last.first + 1)
    return manifest, known


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("how", ["own", "in pages", "shared", "merged", "trimmed"])
@as_scenario(on_bucket)
@pytest.mark.slow
async def test_a_repair_forgets_nothing_that_a_manifest_names(
    cloud: Cloud, *, how: str, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, known = await grow_unlisted(cloud, how)
    entries = await all_entries(manifest)
    assert manifest.head is not None
    begin = max(manifest.head.start, entries[0].first)
    lost = entries[-1] if how == "trimmed" else next(e for e in entries if e.name in known)
    await cloud.store.delete([lost.name], **IN)
    list_only(monkeypatch, known)
    with planted(find_bug(BUG)) if is_planted else nullcontext():
        found = await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
    right = [(entry.first, entry.last) for entry in entries if entry.name == lost.name]
    if is_planted:
        assert list(found.holes) != right, "it calls lost what it has just found"
        return
    assert list(found.holes) == right
    again = await all_entries(cloud.manifest())
    assert [e.name for e in again if e.name != "lost"] == [
        e.name for e in entries if e.name != lost.name
    ]
    assert (again[0].first, again[-1].last) == (begin, entries[-1].last)


@as_scenario(on_bucket)
async def test_a_damaged_object_that_is_not_listed_is_told(
    cloud: Cloud, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await cloud.grow(4)
    known = cloud.bucket.names()
    await commit(cloud, manifest, (7, 2))
    entries = await all_entries(manifest)
    await cloud.store.delete([entries[1].name], **IN)
    cloud.bucket.damage(entries[4].name, bytes(entries[4].size))
    list_only(monkeypatch, known)
    with pytest.raises(Unrepairable, match="2 ranges"):
        await repair_log(cloud.store, cloud.manifest(), 7)
    found = await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
    assert [name for name, _ in found.damaged] == [entries[4].name]
    assert found.holes == tuple((e.first, e.last) for e in (entries[1], entries[4]))


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("newest", [2, 70])
@as_scenario(on_bucket)
async def test_a_manifest_without_a_page_still_names_its_newest_objects(
    cloud: Cloud, *, newest: int, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await cloud.grow(66)
    known = cloud.bucket.names()
    for _ in range(newest):
        await commit(cloud, manifest, (7, 1))
    entries = await all_entries(manifest)
    first_page = next(name for name in cloud.bucket.names() if name.startswith(pages_prefix(7)))
    await cloud.store.delete([first_page], **IN)
    list_only(monkeypatch, known)
    with planted(find_bug(BUG)) if is_planted else nullcontext():
        await repair_log(cloud.store, cloud.manifest(), 7)
    again = [entry.name for entry in await all_entries(cloud.manifest())]
    wanted = [entry.name for entry in entries]
    assert again == (wanted[:66] if is_planted else wanted)
