"""A manifest that was put back from an older copy: merged objects that it names are deleted, and
the objects that took their place are the only copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from test_compact_log import POLICY, entries_of, simulate, upload
from test_uploader import LOG, expected, history, source, stored

from cordwood.errors import BadSetting, CordwoodError, Malformed, NoObject, ObjectChanged
from cordwood.host.seams import Host
from cordwood.layout.object_names import head_name
from cordwood.sim.object_store import Bucket
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.collect import collect_log, retire_log
from cordwood.tier.compact import compact_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.presence import Presence
from cordwood.tier.repair import Unrepairable, repair_log
from cordwood.tier.shared_upload import LogItems, upload_shared
from cordwood.tier.uploader import Item, LogUploader
from cordwood.tiered import Head


def put_back(bucket: Bucket, older: bytes) -> None:
    bucket.put(head_name(LOG), older, lambda etag: True)


async def merged_since(bucket: Bucket, store, host: Host, blocks: int = 59) -> None:
    """Upload a log, merge and collect it, and put its manifest back from before the merge.

    Args:
        blocks: of the log when its manifest was copied.
    """
    made = history(59)
    items, made.items = made.items, made.items[:blocks]
    await upload(store, host, made)
    older = bucket.content(head_name(LOG))
    made.items = items
    manifest = await upload(store, host, made)
    assert (await compact_log(store, manifest, host, LOG, POLICY)).merged
    await asyncio.sleep(1)
    assert (await collect_log(store, manifest, LOG, host.clock.now_us(), 0)).deleted
    assert await stored(store, host) == expected(made)
    put_back(bucket, older)
    with pytest.raises(NoObject):
        await stored(store, host)


async def turns_end_later(store, host: Host) -> Head:
    """Another program merges something else of the log, so earlier turns are over."""
    manifest = LogManifest(store, LOG, host, "driver")
    for _ in range(3):
        await manifest.take_merging(host.clock.now_us())
        await manifest.end_merging()
    assert manifest.head is not None
    return manifest.head


async def the_only_copies(bucket: Bucket, store, host: Host) -> None:
    for blocks in (59, 30):
        for name in bucket.names():
            bucket.delete(name)
        await merged_since(bucket, store, host, blocks)
        head = await turns_end_later(store, host)
        await asyncio.sleep(1)
        other = LogManifest(store, LOG, host, "collect")
        done = await collect_log(store, other, LOG, host.clock.now_us(), 0)
        assert (done.deleted, done.kept > 0) == (0, True)
        bucket.delete(head_name(LOG))
        found = await repair_log(store, LogManifest(store, LOG, host, "operator"), LOG)
        assert found.holes == ()
        assert head.end <= found.entries[-1].last + 1
        assert await stored(store, host) == expected(history(59))


def test_objects_stay_that_hold_what_a_manifest_names_in_vain():
    simulate(the_only_copies)
    with planted(find_bug("tier-collects-the-only-copies")), pytest.raises(AssertionError):
        simulate(the_only_copies)


def test_a_merge_takes_no_turn_for_objects_that_are_gone():
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        await merged_since(bucket, store, host)
        manifest = LogManifest(store, LOG, host, "merge")
        before = await manifest.load()
        done = await compact_log(store, manifest, host, LOG, POLICY)
        assert done.merged == 0
        assert done.left > 0
        assert await manifest.load() == before

    simulate(scenario)


@pytest.mark.parametrize("names_its_end", [True, False])
def test_a_repair_replaces_a_manifest_that_names_objects_in_vain(names_its_end: bool):
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        made = history(59)
        for blocks in (59, 30):
            for name in bucket.names():
                bucket.delete(name)
            await merged_since(bucket, store, host, blocks)
            manifest = LogManifest(store, LOG, host, "operator")
            before = await manifest.load()
            assert before is not None
            end = made.next - 1 if names_its_end else 0
            found = await repair_log(store, manifest, LOG, end=end)
            assert found.holes == ()
            head = await manifest.load()
            assert head is not None
            assert (head.version, head.fence) > (before.version, before.fence)
            assert head.merging.number > before.merging.number
            assert await stored(store, host) == expected(made)
            with pytest.raises(BadSetting, match="nothing to repair"):
                await repair_log(store, LogManifest(store, LOG, host, "operator"), LOG)

    simulate(scenario)


def test_a_repair_declares_one_missing_object_lost():
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        made = history(59)
        manifest = await upload(store, host, made)
        before = await entries_of(manifest)
        for gone in (before[-1], before[4]):
            bucket.delete(gone.name)
            with pytest.raises(Unrepairable):
                await repair_log(store, LogManifest(store, LOG, host, "operator"), LOG)
            found = await repair_log(
                store, LogManifest(store, LOG, host, "operator"), LOG, accept=True
            )
            assert (gone.first, gone.last) in found.holes
            after = await entries_of(manifest)
            assert [(e.first, e.last) for e in after] == [(e.first, e.last) for e in before]

    simulate(scenario)


def test_a_repair_keeps_a_trim_of_a_manifest_that_names_objects_in_vain():
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        made = history(59)
        manifest = await upload(store, host, made)
        before = await entries_of(manifest)
        await manifest.trim(before[3].first + 1)
        bucket.delete(before[7].name)
        await repair_log(store, LogManifest(store, LOG, host, "operator"), LOG, accept=True)
        head = await manifest.load()
        assert head is not None
        assert head.start == before[3].first + 1
        await retire_log(manifest)
        with pytest.raises(BadSetting, match="deleted"):
            await repair_log(store, LogManifest(store, LOG, host, "operator"), LOG)

    simulate(scenario)


def test_a_commit_during_a_repair_ends_it():
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        await merged_since(bucket, store, host)
        manifest = LogManifest(store, LOG, host, "operator")
        found = await entries_of(manifest)
        before = manifest.head
        assert before is not None
        later = await turns_end_later(store, host)
        with pytest.raises(ObjectChanged):
            await manifest.write_anew(found, before.fence + 1, 99, before)
        assert await manifest.load() == later

    simulate(scenario)


def test_what_stands_before_a_manifest_is_not_looked_for():
    async def scenario(bucket: Bucket, store, host: Host) -> None:
        manifest = await upload(store, host, history(59))
        before = await entries_of(manifest)
        await manifest.trim(before[5].first)
        presence = Presence(store)
        assert await presence.first_missing(manifest, before[0].first, before[3].last) is None
        bucket.delete(before[6].name)
        assert await presence.first_missing(manifest, 1, before[5].last) is None
        assert await presence.first_missing(manifest, 1, before[6].first) == before[6]

    simulate(scenario)


async def a_turn_at_an_older_head(bucket: Bucket, store, host: Host, is_shared: bool) -> None:
    """A copy of the head is put back that was made after an uploader took its turn, and before it
    committed: objects of this turn are dead by the next turn."""
    made = history(59)
    rest, made.items = made.items[40:], made.items[:40]
    manifest = await upload(store, host, made)
    older: list[bytes] = []

    async def copying() -> AsyncIterator[Item]:
        older.append(bucket.content(head_name(LOG)))
        for item in rest[:15]:
            yield item

    uploader = LogUploader(store, manifest, host, LOG, "/orders", object_bytes=300)
    await uploader.run(copying(), await uploader.next_lsn())
    manifest = LogManifest(store, LOG, host, "other")
    uploader = LogUploader(store, manifest, host, LOG, "/orders", object_bytes=300)
    first = await uploader.next_lsn()
    put_back(bucket, older[0])
    made.items = made.items + rest
    failed: CordwoodError | None = None
    if is_shared:
        items = [item async for item in source(made, first)]
        share = LogItems(LOG, "/orders", 0, manifest, first, items)
        await upload_shared(store, host, [share])
        failed = share.failed
    else:
        try:
            await uploader.run(source(made, first), first)
        except CordwoodError as error:
            failed = error
    await asyncio.sleep(1)
    other = LogManifest(store, LOG, host, "collect")
    done = await collect_log(store, other, LOG, host.clock.now_us(), 0)
    assert done.deleted == 0
    assert isinstance(failed, Malformed)
    assert bucket.content(head_name(LOG)) == older[0]
    operator = LogManifest(store, LOG, host, "operator")
    assert (await repair_log(store, operator, LOG, end=first - 1)).holes == ()
    await upload(store, host, made)
    assert await stored(store, host) == expected(made)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_upload_takes_no_turn_at_an_older_head_than_it_read(is_shared: bool):
    scenario = partial(a_turn_at_an_older_head, is_shared=is_shared)
    simulate(scenario)
    with planted(find_bug("tier-turn-at-what-it-finds")), pytest.raises(AssertionError):
        simulate(scenario)
