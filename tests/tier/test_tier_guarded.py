"""Logs with a read token in main storage: only where that is wanted; readers need the token."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind
from cordwood.client.store import Store
from cordwood.errors import AccessDenied, BadSetting
from cordwood.host.seams import Host
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import LSN_MAX, OLDEST, Lsn
from cordwood.metadata.log_entries import LogEntry, id_key
from cordwood.metadata.log_tree import LogTree
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.patient_store import PatientStore
from cordwood.uploading.upload_role import UploadRole

SECRET, OTHER, WRITER = "a secret", "another secret", "to write"
STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TIER = TierSettings(BUCKET, look_s=1.0, tend_s=3.0, grace_s=5.0)
TOKEN = LogAttributes(read_token=token_digest(SECRET))
TIERED = LogAttributes(tier=True, local_retention=3, tier_after_s=1)
OPEN = LogAttributes(tier_open=True).over(TIERED.over(TOKEN))


async def write(store: Store, count: int = 40, first: int = 0) -> list[bytes]:
    written = [b"%d " % number + bytes(400) for number in range(first, first + count)]
    for value in written:
        await store.append("log", value)
        await asyncio.sleep(0.2)
    return written


def gone(cluster: ClusterAtHand) -> list[int]:
    return [node.engine.gone_of(1) for node in cluster.running.values()]


async def all_gone(cluster: ClusterAtHand, store: Store) -> None:
    await asyncio.sleep(20)
    assert min(gone(cluster)) == await store.tail("log")


async def set_unchecked(cluster: ClusterAtHand, attributes: LogAttributes) -> None:
    """Set attributes of log 1 as a version wrote them that did not refuse them."""
    store = cluster.metadata
    found = await store.get(id_key(1))
    assert found is not None
    log = msgspec.json.decode(found.value, type=LogEntry)
    log = msgspec.structs.replace(log, attributes=attributes.over(log.attributes))
    assert await store.compare_and_set(id_key(1), msgspec.json.encode(log), found.version)
    await LogTree(store).note_change()


class TestOpened:
    @pytest.mark.parametrize("write_token", ["", token_digest(WRITER)])
    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    @pytest.mark.slow
    async def test_nodes_upload_it_and_readers_need_the_token_for_objects_too(
        self, cluster: ClusterAtHand, *, write_token: str
    ) -> None:
        opens, right = [0], cluster.open_objects

        async def counted(host: Host, address: str) -> PatientStore:
            opens[0] += 1
            return await right(host, address)

        # Nodes count for themselves: they look into main storage at any time.
        cluster.open_objects = counted
        tokens = {"read_tokens": (SECRET,), "write_tokens": (WRITER,)}
        async with cluster.client(**tokens) as store:
            asked = LogAttributes(write_token=write_token).over(OPEN)
            await store.create_log("log", attributes=asked)
            written = await write(store)
            await all_gone(cluster, store)
            tail = await store.tail("log")
            assert await values(store, "log") == written
            assert (await store.extent("log")).last is not None
            # A trim reaches the objects: the node that tends them asks for the log's extent.
            await store.trim("log", Lsn(tail - 1))
            await asyncio.sleep(20)
            assert await values(store, "log") == written[-1:]
            assert opens == [1], "this client reads objects"
        for wrong in ((), (OTHER,), (token_digest(SECRET),)):
            async with cluster.client(read_tokens=wrong) as store:
                items = await read_all(store, "log")
                assert isinstance(items[-1], Gap)
                assert items == [Gap(items[0].first, Lsn(tail), GapKind.ACCESS)]
                for ask in (store.extent, store.data_size, store.tiered):
                    with pytest.raises(AccessDenied):
                        await ask("log")
                with pytest.raises(AccessDenied):
                    await store.find_time("log", 1)
        assert opens == [1], "a client without the token opens no main storage"

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    @pytest.mark.slow
    async def test_retention_trims_a_log_with_a_write_token(self, cluster: ClusterAtHand) -> None:
        """The node has no token of the log: it trims as a member."""
        asked = LogAttributes(
            tier=True, local_retention=1, tier_after_s=1, backlog_s=8,
            write_token=token_digest(WRITER),
        )  # fmt: skip
        async with cluster.client(write_tokens=(WRITER,)) as store:
            await store.create_log("log", attributes=asked)
            await write(store)
            await asyncio.sleep(40)
            assert await values(store, "log") == []
            assert not [name for name in cluster.bucket.names() if name.endswith(".parquet")]

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_a_right_that_is_taken_back_ends_a_reader_amid_objects(
        self, cluster: ClusterAtHand
    ) -> None:
        async with (
            cluster.client(read_tokens=(SECRET, OTHER)) as both,
            cluster.client(read_tokens=(SECRET,)) as one,
        ):
            await both.create_log("log", attributes=OPEN)
            written = await write(both)
            await all_gone(cluster, both)
            stream = await one.read("log", OLDEST, None)
            got = list(await stream.next_items())
            assert not isinstance(got[-1], Gap)
            await both.log_tree.set_attributes("log", LogAttributes(read_token=token_digest(OTHER)))
            await asyncio.sleep(5)
            async with asyncio.timeout(30):
                while items := await stream.next_items():
                    got += items
            last = got[-1]
            assert isinstance(last, Gap)
            assert (last.kind, last.last) == (GapKind.ACCESS, Lsn(LSN_MAX))
            assert last.first <= await both.tail("log"), "it ends where it stands"
            assert await values(both, "log") == written


class TestRefused:
    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_both_are_refused_unless_it_says_that_this_is_wanted(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            with pytest.raises(BadSetting, match="tier_open=on"):
                await store.create_log("log", attributes=TIERED.over(TOKEN))
            await store.create_log("log", attributes=TOKEN)
            with pytest.raises(BadSetting, match="tier_open=on"):
                await store.log_tree.set_attributes("log", TIERED)
            await store.log_tree.set_attributes("log", OPEN)
            with pytest.raises(BadSetting, match="tier_open=on"):
                await store.log_tree.set_attributes("log", LogAttributes(), ("tier_open",))
            await store.log_tree.set_attributes("log", LogAttributes(tier=False, tier_open=False))

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_only_who_has_its_token_opens_it(self, cluster: ClusterAtHand) -> None:
        async with (
            cluster.client(read_tokens=(SECRET,)) as owner,
            cluster.client() as other,
        ):
            await owner.create_log("d/log", attributes=TOKEN)
            await owner.create_log("half", attributes=LogAttributes(tier_open=True).over(TOKEN))
            await other.log_tree.set_attributes("open/", LogAttributes(tier=True, tier_open=True))
            tree, wide = other.log_tree, LogAttributes(tier=True, tier_open=True)
            for refused in (
                tree.set_attributes("d/log", wide),
                tree.set_attributes("d/", wide),
                tree.set_attributes("half", LogAttributes(tier=True)),
                tree.rename("d/log", "open/log"),
            ):
                with pytest.raises(AccessDenied, match="CORDWOOD_READ_TOKENS"):
                    await refused
            # Without effect yet, it is nobody's loss; and the last step takes the token.
            await tree.set_attributes("d/log", LogAttributes(tier_open=True))
            with pytest.raises(AccessDenied):
                await tree.set_attributes("d/log", LogAttributes(tier=True))
            await owner.log_tree.rename("d/log", "open/log")
            assert (await owner.log("open/log")).attributes.is_uploaded


class TestMeanwhile:
    @pytest.mark.parametrize("bug", ["", "tier-uploads-by-old-rights"])
    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_an_upload_that_waited_goes_by_the_attributes_of_its_turn(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, bug: str
    ) -> None:
        """It went by those of the look before, and published what was written under the token."""
        right = UploadRole._upload
        waits, turn = asyncio.Event(), asyncio.Event()

        async def held(*args: Any) -> None:
            waits.set()
            await turn.wait()
            await right(*args)

        monkeypatch.setattr(UploadRole, "_upload", held)
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, 5)
            await waits.wait()
            guarded = LogAttributes(tier=False).over(TOKEN)
            await store.log_tree.set_attributes("log", guarded)
            await write(store, 5, 5)
            turn.set()
            with planted(find_bug(bug)) if bug else nullcontext():
                await asyncio.sleep(20)
            published = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
            assert bool(published) is bool(bug)


class TestOlderLogs:
    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_a_log_that_has_both_is_kept_and_said_and_is_in_nobodys_way(
        self, cluster: ClusterAtHand, *, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=TOKEN)
            with caplog.at_level(logging.WARNING):
                await set_unchecked(cluster, TIERED)
                written = await write(store)
                await asyncio.sleep(30)
            assert not [name for name in cluster.bucket.names() if name.endswith(".parquet")]
            assert gone(cluster) == [0, 0, 0]
            said = [each.message for each in caplog.records if "tier_open=on" in each.message]
            assert len(said) == 1, said
            assert await values(store, "log") == written
            for path in ("/", "log"):
                await store.log_tree.set_attributes(path, LogAttributes(backlog_s=3600.0))
            await store.log_tree.rename("log", "other")
            await store.log_tree.rename("other", "log")
            await store.log_tree.set_attributes("log", LogAttributes(tier_open=True))
            await all_gone(cluster, store)
            assert await values(store, "log") == written
