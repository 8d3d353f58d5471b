"""Main storage on a whole cluster: nodes upload and let go, and readers notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, until, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.admin.positions import Point, Tiered
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.client.read.reader import Reader
from cordwood.client.store import Store, connected
from cordwood.errors import BadSetting, Corrupt, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.manifest import pack_owner
from cordwood.layout.object_names import LOGS, OWNER, head_name, origin_name
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import Lsn, make_lsn
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings, StorageSettings, TierSettings
from cordwood.sim.cluster import SimCluster
from cordwood.sim.holdings import held_blocks
from cordwood.sim.object_store import Bucket
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.repair import Unrepairable, repair_log
from cordwood.tier.uploader import LogUploader
from cordwood.uploading.log_source import LogSource

STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TIER = TierSettings(BUCKET, look_s=1.0)
TENDED = TierSettings(BUCKET, look_s=1.0, tend_s=3.0, grace_s=5.0)
TIERED = LogAttributes(tier=True, local_retention=5, tier_after_s=1)


async def write(store: Store, log: str, count: int, pause_s: float = 0.2) -> list[bytes]:
    written = [b"%s %d " % (log.encode(), n) + bytes(400) for n in range(count)]
    for value in written:
        await store.append(log, value)
        await asyncio.sleep(pause_s)
    return written


def gone(cluster: ClusterAtHand, log: int = 1) -> list[int]:
    return [node.engine.gone_of(log) for node in cluster.running.values()]


async def node_without_the_last(cluster: ClusterAtHand, log: int = 1) -> int:
    """A node that holds some of a log, and not its last block."""
    ends = {}
    for number, node in cluster.running.items():
        held = await held_blocks(node.engine, log)
        ends[number] = max((block.header.last for block in held), default=0)
    return next(number for number, end in ends.items() if 0 < end < max(ends.values()))


class TestTheWholeWay:
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_nodes_let_go_of_what_is_uploaded_and_all_is_read(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 100)
            await asyncio.sleep(20)
            for node in cluster.running.values():
                assert node.engine.trim_of(1) == 0
                assert node.engine.logs.stored_bytes == 0
            assert min(gone(cluster)) == await store.tail("log")
            assert await values(store, "log") == written
            more = await write(store, "log", 10)
            assert await values(store, "log") == written + more

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_it_is_told_up_to_where_main_storage_holds_a_log(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await store.create_log("here")
            await write(store, "log", 40)
            await store.append("here", b"x")
            made_us = (await store.log("here")).created_us
            assert (await store.tiered("here")) == Tiered(BUCKET, Lsn(0), made_us)
            upto = (await store.tiered("log")).upto
            assert upto == max(gone(cluster)) < await store.tail("log")
            await asyncio.sleep(20)
            assert (await store.tiered("log")).upto == await store.tail("log")

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_a_log_that_is_made_later_is_met(self, cluster: ClusterAtHand) -> None:
        """A log that is made counts as no change of the tree, which nodes look for."""
        async with cluster.client() as store:
            await asyncio.sleep(10)
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 20)
            await asyncio.sleep(20)
            assert min(gone(cluster)) == await store.tail("log")
            assert await values(store, "log") == written

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_a_log_whose_store_says_nothing_of_it_is_kept_and_others_go(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            for log in ("a", "b"):
                await store.create_log(log, attributes=TIERED)
                await store.append(log, b"first")
            await until(lambda: len(cluster.bucket.names()) >= 4, timeout_s=20)
            for node in cluster.running.values():
                assert node.engine.gone_of(1) == node.engine.gone_of(2) == 0
            cluster.bucket.delete(origin_name(1))
            await asyncio.sleep(30)
            for node in cluster.running.values():
                assert node.engine.gone_of(1) == 0, "whose history it is, nobody knows"
                assert node.engine.gone_of(2) == await store.tail("b")


WAITS = LogAttributes(tier=True, local_retention=3600, tier_after_s=20)


class TestSilentNodes:
    @pytest.mark.slow
    @as_scenario(simulate, nodes=5, copies=2, seed=2, storage=STORAGE, tier=TIER)
    async def test_records_that_no_node_sends_hold_up_no_other_log(
        self, cluster: ClusterAtHand
    ) -> None:
        """An upload that had begun waited for them, and its uploader's other logs with it. What was
        before them waited too."""
        async with cluster.client() as store:
            await store.create_log("log", attributes=WAITS)
            await write(store, "log", 20, 0.1)
            before = await store.tail("log")
            uploader = cluster.sequencer_of(1)
            cluster.kill(uploader)
            await asyncio.sleep(3)
            await write(store, "log", 5, 0.1)
            epoch_2 = await store.tail("log")
            await cluster.start(uploader)
            await asyncio.sleep(8)
            await write(store, "log", 5, 0.1)
            assert cluster.sequencer_of(1) == uploader
            silent = [
                number
                for number, node in cluster.running.items()
                if any(at.header.last == epoch_2 for at in await held_blocks(node.engine, 1))
            ]
            assert len(silent) == 2
            assert uploader not in silent, "with this seed"
            for number in silent:
                cluster.kill(number)
            await asyncio.sleep(10)
            later = [f"later-{n}" for n in range(8)]
            for log in later:
                await store.create_log(log, attributes=WAITS)
                await store.append(log, b"x")
            numbers = {log: int((await store.log(log)).log_id) for log in later}
            beside = {n for n in numbers.values() if cluster.sequencer_of(n) == uploader}
            assert beside, "this uploader has other logs"
            await asyncio.sleep(120)
            host = cluster.client_host()
            objects = await cluster.open_objects(host, BUCKET)
            for log in (1, *numbers.values()):
                head = await LogManifest(objects, log, host, "test").load()
                assert head is not None
                if log == 1:
                    assert before < head.end < epoch_2, "with the end of its epoch, or without"
                else:
                    assert head.end == make_lsn(1, 2)
            blocked = cluster.running[NodeId(uploader)]._tiering.uploads.blocked
            assert list(blocked) == [1]
            assert before < blocked[1] <= epoch_2
            await cluster.start(*silent)
            await asyncio.sleep(90)
            head = await LogManifest(objects, 1, host, "test").load()
            assert head is not None
            assert head.end == await store.tail("log") + 1

    @pytest.mark.slow
    @as_scenario(simulate, nodes=5, copies=2, seed=2, storage=STORAGE, tier=TIER)
    async def test_logs_that_do_not_answer_are_waited_for_together(
        self, cluster: ClusterAtHand
    ) -> None:
        """One after another, each for its time: a hundred of them held up others for an hour."""
        async with cluster.client() as store:
            names = [f"log-{n}" for n in range(40)]
            for name in names:
                await store.create_log(name, attributes=WAITS)
            for _ in range(3):
                for name in names:
                    await store.append(name, b"x")
                await asyncio.sleep(1)
            for number in list(cluster.running)[:2]:
                cluster.kill(number)
            await asyncio.sleep(50)
            failed = [
                sum(each.failures > 0 for each in node._tiering.uploads._seen.values())
                for node in cluster.running.values()
            ]
            assert max(failed) > 6, "each takes ten seconds, and this node had no more than 50"


KEEPS = replace(STORAGE, retention_every_s=86_400)
"""Of a node that lets nothing go."""


def break_objects(cluster: ClusterAtHand, part: slice = slice(None)) -> list[str]:
    """Flip a bit in row groups of some of the log's objects."""
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")][part]
    for name in names:
        content = bytearray(cluster.bucket.content(name))
        content[40] ^= 1
        cluster.bucket.damage(name, bytes(content))
    return names


class TestDamage:
    @pytest.mark.parametrize("single", [True, False])
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER, storages={3: KEEPS})
    async def test_a_damaged_object_is_passed_over_where_a_node_holds_a_copy(
        self, cluster: ClusterAtHand, *, single: bool
    ) -> None:
        async with cluster.client(scd_enabled=single) as store:
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 60)
            await asyncio.sleep(20)
            tail = await store.tail("log")
            assert sorted(gone(cluster)) == [0, tail, tail]
            assert break_objects(cluster, slice(1, None, 2))
            assert await values(store, "log") == written

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER, storages={3: KEEPS})
    async def test_a_node_that_starts_has_time_to_give_what_an_object_holds_damaged(
        self, cluster: ClusterAtHand
    ) -> None:
        """The read ended with the error of the object although the node was there a moment
        later."""
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 60)
            await asyncio.sleep(20)
            tail = await store.tail("log")
            assert sorted(gone(cluster)) == [0, tail, tail]
            break_objects(cluster, slice(1, None, 2))
            cluster.kill(3)
            await asyncio.sleep(1)
            reading = asyncio.create_task(values(store, "log", until=tail))
            await asyncio.sleep(3)
            await cluster.start(3)
            async with asyncio.timeout(60):
                assert await reading == written

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_where_none_holds_a_copy_the_error_names_the_object(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 60)
            await asyncio.sleep(20)
            before = {name: cluster.bucket.content(name) for name in cluster.bucket.names()}
            assert break_objects(cluster)
            with pytest.raises(Corrupt):
                await values(store, "log")
            for name, content in before.items():
                cluster.bucket.damage(name, content)
            assert len(await values(store, "log")) == 60


async def uploaded(cluster: ClusterAtHand, value: bytes) -> Bucket:
    """Main storage that holds a log of 20 records, of which nodes hold none any more."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        for _ in range(20):
            await store.append("log", value)
            await asyncio.sleep(0.2)
        await asyncio.sleep(20)
        assert min(gone(cluster)) == await store.tail("log")
    return cluster.bucket


class TestAnotherClustersObjects:
    def test_a_client_whose_address_leads_to_them_reads_none_of_them(self) -> None:
        """A directory of the same path on the reader's machine; their log has the same number."""
        theirs = simulate(lambda cluster: uploaded(cluster, b"theirs"), storage=STORAGE, tier=TIER)

        async def opened(host: Host, _address: str) -> PatientStore:
            return PatientStore(theirs.store(), host.random)

        async def scenario(cluster: ClusterAtHand) -> None:
            await asyncio.sleep(7)
            await uploaded(cluster, b"ours")
            host = cluster.client_host()
            async with connected(cluster.addresses, host, ClientSettings(), opened) as store:
                asks: tuple[Callable[[str], Awaitable[object]], ...] = (
                    partial(values, store), store.extent, store.data_size,
                    partial(store.find_time, time=1),
                )  # fmt: skip
                for ask in asks:
                    with pytest.raises(BadSetting, match="another log 1"):
                        await asyncio.wait_for(ask("log"), 60)
            async with cluster.client() as store:
                assert await values(store, "log") == [b"ours"] * 20

        simulate(scenario, storage=STORAGE, tier=TIER)
        with planted(find_bug("tier-any-origin")), pytest.raises(pytest.fail.Exception):
            simulate(scenario, storage=STORAGE, tier=TIER)

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_that_is_asked_once_for_each_log_and_client(self, cluster: ClusterAtHand) -> None:
        """The first record costs four gets: origin and head, footer, row group; then three."""
        await uploaded(cluster, b"ours")
        calls = cluster.bucket.calls
        for kept_bytes, wanted in ((0, [4, 3, 3]), (1 << 20, [4, 2, 2])):
            async with cluster.client(tier_cache_bytes=kept_bytes) as store:
                gets = []
                for _ in range(3):
                    before = calls["get"]
                    async for record in store.read("log", gaps=False):
                        assert record.value == b"ours"
                        break
                    gets.append(calls["get"] - before)
            assert gets == wanted


class TestAManifestThatIsPutBackFromAnOlderCopy:
    async def upload(self, store: Store, bucket: PatientStore, host: Host) -> None:
        """As `cordwood tier upload` does."""
        manifest = LogManifest(bucket, 1, host, "operator")
        uploader = LogUploader(bucket, manifest, host, 1, "log")
        next_lsn = await uploader.next_lsn()
        with contextlib.suppress(BadSetting):
            async with LogSource(store, 1, next_lsn, read_end=uploader.next_lsn) as source:
                await uploader.run(source.items(), source.first)

    async def lives(self, cluster: ClusterAtHand) -> None:
        """An operator uploads, and objects are collected, before the manifest is repaired."""
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 20)
            await until(lambda: all(gone(cluster)), timeout_s=60)
            older = cluster.bucket.content(head_name(1))
            written += await write(store, "log", 20)
            await asyncio.sleep(30)
            upto = max(gone(cluster))
            cluster.bucket.put(head_name(1), older, lambda etag: True)
            for _ in range(2):  # the first turn has the number of the turn that it overtakes
                await self.upload(store, bucket, host)
            await asyncio.sleep(60)
            await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, end=upto)
            assert await values(store, "log") == written

    @pytest.mark.slow
    def test_an_upload_takes_no_turn_at_it(self) -> None:
        """Its turn ended the turns of the objects that the manifest did not name. They were
        collected before a repair could name them again."""
        simulate(self.lives, nodes=3, storage=STORAGE, tier=TENDED)
        with planted(find_bug("tier-turn-at-an-older-head")), pytest.raises(Unrepairable):
            simulate(self.lives, nodes=3, storage=STORAGE, tier=TENDED)

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_the_error_names_the_repair(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 20)
            await until(lambda: all(gone(cluster)), timeout_s=60)

            async def end() -> int:
                return 0

            for first in (0, int(make_lsn(1, 2))):
                source = LogSource(store, 1, first, read_end=end)
                with pytest.raises(BadSetting, match=r"is missing.*`cordwood tier repair 1 --end"):
                    await source.__aenter__()
            await LogSource(store, 1, max(gone(cluster)) + 1, read_end=end).__aenter__()


QUICK = replace(STORAGE, deleted_keep_s=20.0)


async def three_logs(cluster: ClusterAtHand, *lacking: str) -> Bucket:
    """Main storage of three logs; without these objects, which older versions did not write."""
    async with cluster.client() as store:
        for log in ("a", "b", "c"):
            await store.create_log(log, attributes=TIERED)
            await write(store, log, 20)
        await asyncio.sleep(20)
        assert all(min(gone(cluster, log)) for log in (1, 2, 3)), "objects are all there is"
    for name in lacking:
        cluster.bucket.delete(name)
    return cluster.bucket


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {name: bucket.content(name) for name in bucket.names()}


class TestAStoreOfAnotherCluster:
    """Nodes that were started with the address of another cluster's store."""

    def made(self, *lacking: str) -> Bucket:
        return simulate(lambda cluster: three_logs(cluster, *lacking), storage=STORAGE, tier=TIER)

    def lives(self, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, logs: int = 1) -> None:
        """Another cluster's life with that store: a log of it is trimmed, and days pass."""

        async def opened(
            _cluster: SimCluster,
            host: Host,
            _address: str,
            is_cut: Callable[[], bool] = lambda: False,
        ) -> PatientStore:
            return PatientStore(bucket.store(is_cut), host.random)

        async def scenario(cluster: ClusterAtHand) -> None:
            await asyncio.sleep(70)
            async with cluster.client() as store:
                for n in range(logs):
                    await store.create_log(f"ours-{n}", attributes=TIERED)
                    await write(store, f"ours-{n}", 30)
                await store.trim("ours-0", (await store.tail("ours-0")) - 5)
                await asyncio.sleep(60)
                assert len(await values(store, "ours-0")) == 5

        with monkeypatch.context() as patch:
            patch.setattr(SimCluster, "open_objects", opened)
            simulate(scenario, seed=2, storage=QUICK, tier=TENDED)

    @pytest.mark.slow
    def test_nothing_of_it_goes_and_nothing_comes_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its logs that this cluster lacks were taken for deleted ones; a log of the same number
        was trimmed with this cluster's; both had no other copy any more."""
        theirs = self.made()
        before = contents(theirs)
        assert OWNER in before
        self.lives(monkeypatch, theirs)
        assert contents(theirs) == before
        with planted(find_bug("tier-any-owner")):
            self.lives(monkeypatch, theirs)
        assert contents(theirs) != before

    def becomes_theirs(self, theirs: Mapping[str, bytes]) -> dict[str, bytes]:
        """This cluster's life with its own store, which is emptied and given to another cluster.
        Returns what the store has after days."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                for log in ("ours-0", "ours-1"):
                    await store.create_log(log, attributes=TIERED)
                await write(store, "ours-0", 10)
                await until(lambda: bool(objects(cluster)), timeout_s=20)
                for name in cluster.bucket.names():
                    cluster.bucket.delete(name)
                for name, content in theirs.items():
                    cluster.bucket.put(name, content, lambda etag: True)
                await asyncio.sleep(10)
                await write(store, "ours-1", 10)
                await asyncio.sleep(60)
            after.update(contents(cluster.bucket))

        after: dict[str, bytes] = {}
        simulate(scenario, seed=2, storage=QUICK, tier=TENDED)
        return after

    @pytest.mark.slow
    def test_nor_where_the_store_becomes_another_clusters(self) -> None:
        """Nodes asked whose it is when they opened it, and never again. They deleted the other
        cluster's logs, and uploaded their own."""
        theirs = contents(self.made())
        theirs = {name: each for name, each in theirs.items() if f"/{2:016x}/" not in name}
        assert self.becomes_theirs(theirs) == theirs
        with planted(find_bug("tier-owner-asked-once")):
            assert self.becomes_theirs(theirs) != theirs

    def gone_by_theirs(self) -> int:
        """What nodes let go of a log that was first uploaded after the store became another
        cluster's, before a minute has passed."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                for log in ("ours-0", "ours-1"):
                    await store.create_log(log, attributes=TIERED)
                await write(store, "ours-0", 10)
                await until(lambda: all(gone(cluster)), timeout_s=60)
                for name in cluster.bucket.names():
                    cluster.bucket.delete(name)
                cluster.bucket.put(OWNER, pack_owner("another cluster"), lambda etag: True)
                for _ in range(30):
                    await write(store, "ours-1", 1)
                    await asyncio.sleep(1)
            found.extend(gone(cluster, 2))

        found: list[int] = []
        simulate(scenario, nodes=3, seed=2, storage=QUICK, tier=replace(TENDED, tend_s=3600.0))
        return max(found)

    @pytest.mark.slow
    def test_nothing_is_let_go_of_by_objects_in_anothers_store(self) -> None:
        """Nodes asked whose it is every minute. Meanwhile they uploaded, and let go of records by
        what they had put into the other cluster's store."""
        assert self.gone_by_theirs() == 0
        with planted(find_bug("tier-drops-by-any-owner")):
            assert self.gone_by_theirs() > 0

    def names_after_it_was_emptied(self, *, are_new: bool = False) -> list[str]:
        """What a store has a while after it was unmounted, when each node had seen its mark.

        Args:
            are_new: the nodes start after it was unmounted.
        """

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("log", attributes=TIERED)
                await write(store, "log", 10)
                await until(lambda: all(gone(cluster)), timeout_s=60)
            if are_new:
                for number in cluster.numbers:
                    await cluster.stop(number)
            for name in cluster.bucket.names():
                cluster.bucket.delete(name)
            if are_new:
                await cluster.start()
            async with cluster.client() as store:
                await write(store, "log", 10)
                ledger = await store.ledgers.create(ensemble=3, write=3, ack=2, tier=True)
                await ledger.append_many([b"entry"] * 3)
                await ledger.close()
                await asyncio.sleep(120)
                found = await store.ledgers.open(ledger.ledger_id)
                assert len(await found.read(0, 2)) == 3
            names.extend(cluster.bucket.names())

        names: list[str] = []
        simulate(scenario, nodes=3, seed=2, storage=QUICK, tier=TENDED)
        return names

    @pytest.mark.slow
    def test_an_emptied_or_unmounted_store_is_not_marked_again(self) -> None:
        """Nodes took the empty mount point for a new store, moved closed ledgers and logs into it,
        and let go of their copies. Once it was mounted again these were nowhere."""
        assert self.names_after_it_was_emptied() == []
        with planted(find_bug("tier-marks-anew")):
            assert OWNER in self.names_after_it_was_emptied()

    @pytest.mark.slow
    def test_nor_by_nodes_that_start_while_it_is_unmounted(self) -> None:
        """A node that had not seen the mark since its start took the mount point for a new store.
        Once it was marked, the other nodes accepted it too."""
        assert self.names_after_it_was_emptied(are_new=True) == []
        with planted(find_bug("tier-mark-not-noted")):
            assert OWNER in self.names_after_it_was_emptied(are_new=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("logs", [1, 4])
    def test_nor_where_it_is_older_than_owners(
        self, monkeypatch: pytest.MonkeyPatch, logs: int
    ) -> None:
        theirs = self.made(OWNER)
        before = contents(theirs)
        self.lives(monkeypatch, theirs, logs)
        assert contents(theirs) == before

    @pytest.mark.slow
    def test_nor_where_no_log_says_whose_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From before there were origins: what this cluster lacks may be its deleted logs."""
        theirs = self.made(OWNER, *map(origin_name, (1, 2, 3)))
        before = contents(theirs)
        self.lives(monkeypatch, theirs)
        after = contents(theirs)
        kept = [name for name in before if not name.startswith("logs/0000000000000001/")]
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert OWNER not in after

    @pytest.mark.slow
    @as_scenario(simulate, storage=QUICK, tier=TENDED)
    async def test_a_store_from_before_there_were_owners_gets_its_own(
        self, cluster: ClusterAtHand
    ) -> None:
        bucket = await three_logs(cluster)
        owner = bucket.content(OWNER)
        bucket.delete(OWNER)
        for number in cluster.numbers:
            await cluster.stop(number)
        await cluster.start()
        async with cluster.client() as store:
            await until(lambda: OWNER in bucket.names(), timeout_s=20)
            assert bucket.content(OWNER) == owner
            await store.log_tree.delete("c")
            await asyncio.sleep(60)
            assert not [name for name in objects(cluster) if name.startswith(f"{LOGS}{3:016x}")]
            assert len(await values(store, "a")) == 20


class TestPositions:
    @as_scenario(simulate, nodes=4, storage=STORAGE, tier=TIER)
    async def test_the_extent_is_right_while_one_node_has_not_let_go(
        self, cluster: ClusterAtHand
    ) -> None:
        """It holds older records, and not the last one, for which main storage was not asked. The
        first record behind a trim had the time of an earlier block."""
        kept_long = LogAttributes(local_retention=6 * 3600, sticky_copysets=False).over(TIERED)
        async with cluster.client() as store:
            await store.create_log("log", attributes=kept_long)
            await write(store, "log", 20)
            await asyncio.sleep(8)
            records = [r for r in await read_all(store, "log") if isinstance(r, Record)]
            late = await node_without_the_last(cluster)
            for number in set(cluster.numbers) - {late}:
                cluster.machine(number).disk.free_bytes = 1
            await asyncio.sleep(5)
            assert cluster.running[late].engine.gone_of(1) == 0
            assert max(gone(cluster)) == records[-1].lsn
            await store.trim("log", records[4].lsn)
            for _ in range(2):
                extent = await store.extent("log")
                assert extent.last == Point(records[-1].lsn, records[-1].append_time_us)
                assert extent.first == Point(records[5].lsn, records[5].append_time_us)
                cluster.machine(late).disk.free_bytes = 1  # then nobody holds any of it
                await asyncio.sleep(3)

    @pytest.mark.slow
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_times_extents_and_sizes_are_the_same_over_both_tiers(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await store.create_log("here")
            for n in range(60):
                await asyncio.gather(*(store.append(log, b"%d" % n) for log in ("log", "here")))
                await asyncio.sleep(0.5)
            lsns = [r.lsn for r in await read_all(store, "log") if isinstance(r, Record)]
            times = [
                r.append_time_us for r in await read_all(store, "log") if isinstance(r, Record)
            ]
            assert 0 < min(gone(cluster)) < lsns[-1], "it lies on both"
            for lsn, time_us in zip(lsns, times, strict=True):
                assert (await store.find_time("log", time_us)).lsn == lsn
                early = (await store.find_time("log", time_us, approximate=True)).lsn
                assert early <= lsn
            assert (await store.find_time("log", times[-1] + 1)).lsn == lsns[-1] + 1
            extent = await store.extent("log")
            first = await store.head_attributes("log")
            assert (extent.trim, extent.first) == (0, Point(lsns[0], times[0]))
            assert extent.last == Point(lsns[-1], times[-1])
            assert first[1] == Point(lsns[0], times[0])
            await asyncio.sleep(20)
            extent = await store.extent("log")
            assert min(gone(cluster)) == lsns[-1], "all of it lies in main storage"
            assert extent.first == Point(lsns[0], times[0])
            assert extent.last == Point(lsns[-1], times[-1])
            assert not await store.is_empty("log")
            size, other = await store.data_size("log"), await store.data_size("here")
            assert 0 < size.bytes <= other.bytes  # bodies alone, without headers
            assert await values(store, "log", start=lsns[30]) == [b"%d" % n for n in range(30, 60)]

    @as_scenario(simulate, storage=STORAGE, tier=TIER)
    async def test_a_size_counts_main_storage_where_nodes_hold_no_block_at_all(
        self, cluster: ClusterAtHand
    ) -> None:
        """Their logs in memory are empty then, and an empty one was taken for none: size 0."""
        await uploaded(cluster, b"ours")
        async with cluster.client() as store:
            assert (await store.data_size("log")).bytes >= 20 * len(b"ours")

    @pytest.mark.slow
    @pytest.mark.parametrize("what", ["head", "newest", "nothing"])
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_what_main_storage_lost_is_not_taken_for_nothing(
        self, cluster: ClusterAtHand, *, what: str
    ) -> None:
        """Without its manifest a log was said to be empty, and all times lay at its tail."""
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 40)
            await asyncio.sleep(20)
            assert min(gone(cluster)) == await store.tail("log")
            records = [each for each in await read_all(store, "log") if isinstance(each, Record)]
            whole = await store.data_size("log")
            lacks = records[-1].lsn + 1
            if what != "nothing":
                lacks = records[0].lsn
                cluster.bucket.delete(head_name(1))
            if what == "newest":
                cluster.bucket.delete(objects(cluster)[-1])
                found = await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1)
                lacks = Lsn(found.entries[-1].last + 1)
            is_whole = what == "nothing"
            assert (await store.data_size("log")).is_partial is not is_whole
            assert ((await store.data_size("log")).bytes < whole.bytes) is not is_whole
            for each in records:
                place = await store.find_time("log", each.append_time_us)
                assert place.lsn == min(each.lsn, lacks)
                assert place.is_partial == (each.lsn >= lacks)
            extent = await store.extent("log")
            assert extent.is_partial is not is_whole
            if is_whole:
                assert await store.tail_attributes("log") == extent.last
            else:
                with pytest.raises(Unreachable, match="names less of log than nodes let go of"):
                    await store.tail_attributes("log")
            if what == "head":
                with pytest.raises(Unreachable, match="so it is not known that it is empty"):
                    await store.is_empty("log")
                with pytest.raises(Unreachable, match="names less of log"):
                    await store.head_attributes("log")
            else:
                assert not await store.is_empty("log")
                _, first = await store.head_attributes("log")
                assert first == Point(records[0].lsn, records[0].append_time_us)

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_a_node_holds_the_first_records_that_main_storage_lost(
        self, cluster: ClusterAtHand
    ) -> None:
        """The first record was said to be main storage's first one, and times lay too early."""
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            kept = LogAttributes(local_retention=60).over(TIERED)
            await store.create_log("log", attributes=kept)
            await write(store, "log", 40)
            await until(lambda: len(objects(cluster)) > 2)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(3)
            assert max(gone(cluster)) == 0
            records = [each for each in await read_all(store, "log") if isinstance(each, Record)]
            start = records[0].lsn
            cluster.bucket.delete(objects(cluster)[0])
            cluster.bucket.delete(head_name(1))
            manifest = LogManifest(bucket, 1, host, "operator")
            found = await repair_log(bucket, manifest, 1, start=int(start), accept=True)
            ((_, last),) = found.holes
            for node in list(cluster.running.values())[:2]:
                await node.engine.tier(1, last + 2, last + 2)
            assert await read_all(store, "log") == records
            extent = await store.extent("log")
            assert extent.first == Point(start, records[0].append_time_us)
            for each in records:
                assert (await store.find_time("log", each.append_time_us)).lsn == each.lsn


class TestDeletion:
    @pytest.mark.slow
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
    async def test_a_question_that_meets_a_deletion_is_to_be_asked_again(
        self, cluster: ClusterAtHand
    ) -> None:
        """It was told that an object is not there, as if that were so for good."""
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 60)
            await asyncio.sleep(20)
            tail = await store.tail("log")
            info = await store._cluster.find_log("log", create=False, timeout_s=10)
            manifest = await store._tier.manifest(info)
            assert manifest is not None
            await store.trim("log", Lsn(tail - 5))
            await asyncio.sleep(20)
            with pytest.raises(Unreachable, match="ask again"):
                await TierPositions(store._tier, manifest, info, tail).first(0)

    @pytest.mark.slow
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
    async def test_a_trim_reaches_into_main_storage_and_objects_go_after_their_grace(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 60)
            await asyncio.sleep(20)
            lsns = [r.lsn for r in await read_all(store, "log") if isinstance(r, Record)]
            before = len(objects(cluster))
            await store.trim("log", lsns[49])
            await asyncio.sleep(30)
            assert 0 < len(objects(cluster)) < before
            items = await read_all(store, "log")
            assert isinstance(items[0], Gap)
            assert items[0].kind is GapKind.TRIM
            assert [r.lsn for r in items if isinstance(r, Record)] == lsns[50:]

    @pytest.mark.slow
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
    async def test_retention_by_time_and_by_size_reaches_into_main_storage(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            short = TIERED.over(LogAttributes(backlog_s=15))
            small = TIERED.over(LogAttributes(backlog_bytes=6000))
            await store.create_log("short", attributes=short)
            await store.create_log("small", attributes=small)
            for log in ("short", "small"):
                await write(store, log, 50)
            await asyncio.sleep(12)
            assert 14 <= len(await values(store, "small")) < 35
            await asyncio.sleep(40)
            assert await values(store, "short") == []
            assert 14 <= len(await values(store, "small")) < 35

    @pytest.mark.slow
    @pytest.mark.parametrize("codec", ["none", "zstd"])
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
    async def test_retention_by_size_counts_what_nodes_stored(
        self, cluster: ClusterAtHand, *, codec: str
    ) -> None:
        """Not bodies uncompressed, and not what a body has beside its records."""
        bounded = TIERED.over(LogAttributes(backlog_bytes=1000))
        async with cluster.client(codec=codec) as store:
            await store.create_log("log", attributes=bounded)
            zeros = bytes(400) if codec == "zstd" else b""
            written = [b"%d " % number + zeros for number in range(60)]
            for value in written:
                await store.append("log", value)
                await asyncio.sleep(0.2)
            await asyncio.sleep(20)
            assert min(gone(cluster)) > 0
            assert await values(store, "log") == written

    @pytest.mark.slow
    def test_the_objects_of_a_deleted_log_go(self):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("log", attributes=TIERED)
                await store.create_log("other", attributes=TIERED)
                for log in ("log", "other"):
                    await write(store, log, 20)
                await asyncio.sleep(20)
                kept = await values(store, "other")
                assert [name for name in objects(cluster) if "000000001/" in name]
                await store.log_tree.delete("log")
                await asyncio.sleep(60)
                assert not [name for name in objects(cluster) if "000000001/" in name]
                assert await values(store, "other") == kept
                assert len(kept) == 20

        storage = replace(STORAGE, deleted_keep_s=5)
        simulate(scenario, nodes=3, storage=storage, tier=TENDED)


MERGED = replace(
    TENDED, merge_objects=4, merge_s=2.0, merge_shared_bytes=1, merge_object_bytes=100_000
)


class TestMerging:
    @pytest.mark.slow
    def test_nodes_merge_what_piles_up_and_readers_notice_nothing(self):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                for log in ("one", "two"):
                    await store.create_log(log, attributes=TIERED)
                written = dict.fromkeys(("one", "two"), ())
                for _ in range(12):
                    for log in written:
                        written[log] = (*written[log], *await write(store, log, 5))
                    await asyncio.sleep(3)
                await asyncio.sleep(30)
                assert len(objects(cluster)) < 12
                merged = [name for name in objects(cluster) if "-40000000000000" in name]
                assert merged
                for log in written:
                    assert tuple(await values(store, log)) == written[log]

        simulate(scenario, nodes=3, storage=STORAGE, tier=MERGED)

    def test_nodes_merge_nothing_if_they_are_told_so(self):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("one", attributes=TIERED)
                for _ in range(8):
                    await write(store, "one", 5)
                    await asyncio.sleep(3)
                assert len(objects(cluster)) >= 8

        simulate(scenario, nodes=3, storage=STORAGE, tier=replace(MERGED, merge_objects=0))


class TestAfterARepair:
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_nodes_keep_what_a_repaired_manifest_lacks_and_upload_it_again(
        self, cluster: ClusterAtHand
    ) -> None:
        """A node read a manifest that reached further, before an object and the head were lost."""
        kept = LogAttributes(local_retention=20).over(TIERED)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        manifest = LogManifest(bucket, 1, host, "operator")
        async with cluster.client() as store:
            await store.create_log("log", attributes=kept)
            written = await write(store, "log", 100)
            await until(lambda: min(gone(cluster)) > 0)
            await asyncio.sleep(2)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(3)
            cluster.bucket.delete(objects(cluster)[-1])
            cluster.bucket.delete(head_name(1))
            found = await repair_log(bucket, manifest, 1)
            assert max(gone(cluster)) < found.entries[-1].last < await store.tail("log")
            await store.log_tree.set_attributes("log", LogAttributes(tier=True))
            await until(lambda: min(gone(cluster)) > found.entries[-1].last)
            async with asyncio.timeout(60):
                assert await values(store, "log") == written

    @pytest.mark.slow
    @pytest.mark.parametrize("single", [True, False])
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_nodes_keep_what_a_repair_called_lost(
        self, cluster: ClusterAtHand, *, single: bool
    ) -> None:
        """An operator accepted the loss of an object, and all nodes still had what it held."""
        kept = LogAttributes(local_retention=20).over(TIERED)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client(scd_enabled=single) as store:
            await store.create_log("log", attributes=kept)
            written = await write(store, "log", 100)
            await until(lambda: min(gone(cluster)) > 0)
            await asyncio.sleep(2)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(3)
            cluster.bucket.delete(objects(cluster)[-3])
            cluster.bucket.delete(head_name(1))
            manifest = LogManifest(bucket, 1, host, "operator")
            ((first, last),) = (await repair_log(bucket, manifest, 1, accept=True)).holes
            await store.log_tree.set_attributes("log", LogAttributes(tier=True))
            await asyncio.sleep(40)
            assert max(gone(cluster)) < first < last < await store.tail("log")
            assert await values(store, "log") == written
            # One node let go of it before the object was lost.
            for node in list(cluster.running.values())[:2]:
                await node.engine.tier(1, last + 2, last + 2)
            assert await values(store, "log") == written
            for node in cluster.running.values():
                await node.engine.tier(1, last + 2, last + 2)
            async with asyncio.timeout(60):
                items = await read_all(store, "log")
            assert Gap(Lsn(first), Lsn(last), GapKind.DATA_LOSS) in items
            assert len([item for item in items if isinstance(item, Record)]) < len(written)

    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_a_node_that_starts_has_time_to_give_what_main_storage_lost(
        self, cluster: ClusterAtHand
    ) -> None:
        """The other nodes had let go of it, and their answers were a loss at once."""
        kept = LogAttributes(local_retention=20).over(TIERED)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=kept)
            written = await write(store, "log", 100)
            await until(lambda: min(gone(cluster)) > 0)
            await asyncio.sleep(2)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(3)
            cluster.bucket.delete(objects(cluster)[-3])
            cluster.bucket.delete(head_name(1))
            manifest = LogManifest(bucket, 1, host, "operator")
            ((first, last),) = (await repair_log(bucket, manifest, 1, accept=True)).holes
            away = next(each for each in cluster.numbers if each != cluster.sequencer_of(1))
            for number, node in cluster.running.items():
                if number != away:
                    await node.engine.tier(1, last + 2, last + 2)
            tail = await store.tail("log")
            items = await read_all(store, "log")
            lost = [item for item in items if first <= item_first(item) <= last]
            assert isinstance(lost[1], Record)
            time_us = lost[1].append_time_us
            assert await place_of(store, time_us) == (lost[1].lsn, False)
            cluster.kill(away)
            await asyncio.sleep(1)
            # The place was behind the range, and was told as the exact one.
            assert await place_of(store, time_us) == (first, True)
            reading = asyncio.create_task(values(store, "log", until=tail))
            await asyncio.sleep(3)
            await cluster.start(away)
            async with asyncio.timeout(60):
                assert await reading == written

    @pytest.mark.slow
    @pytest.mark.parametrize("lost", [0, -1], ids=["first", "last"])
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_an_end_that_main_storage_lost_is_not_told_while_a_node_is_silent(
        self, cluster: ClusterAtHand, *, lost: int
    ) -> None:
        """The next record of main storage was told as the first, though the silent node had records
        of the lost range before it."""
        kept = LogAttributes(local_retention=20).over(TIERED)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=kept)
            written = await write(store, "log", 100)
            await until(lambda: min(gone(cluster)) > 0)
            await asyncio.sleep(2)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(3)
            manifest = LogManifest(bucket, 1, host, "operator")
            head = await manifest.load()
            assert head is not None
            cluster.bucket.delete(objects(cluster)[lost])
            cluster.bucket.delete(head_name(1))
            repaired = await repair_log(
                bucket, manifest, 1, start=head.start, end=head.end if lost else 0, accept=True
            )
            ((first, last),) = repaired.holes
            before = await store.head_attributes("log"), await store.tail_attributes("log")
            away = next(each for each in cluster.numbers if each != cluster.sequencer_of(1))
            for number, node in cluster.running.items():
                if number != away:
                    await node.engine.tier(1, last + 2, last + 2)
            assert before == (
                await store.head_attributes("log"), await store.tail_attributes("log")
            )  # fmt: skip
            cluster.kill(away)
            await asyncio.sleep(1)
            asked = store.tail_attributes if lost else store.head_attributes
            with pytest.raises(Unreachable):
                await asked("log")
            await cluster.start(away)
            await asyncio.sleep(2)
            assert before == (
                await store.head_attributes("log"), await store.tail_attributes("log")
            )  # fmt: skip
            assert len(written) == 100
            assert first <= last

    @pytest.mark.slow
    @as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
    async def test_the_newest_objects_are_lost_and_the_log_goes_on(
        self, cluster: ClusterAtHand
    ) -> None:
        """Nodes let go of what no object holds any more; readers and uploads wait before that."""
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        told: list[str] = []
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            written = await write(store, "log", 60)
            await asyncio.sleep(20)
            upto = await store.tail("log")
            assert min(gone(cluster)) == upto
            cluster.bucket.delete(objects(cluster)[-1])
            cluster.bucket.delete(head_name(1))
            manifest = LogManifest(bucket, 1, host, "operator")
            found = await repair_log(bucket, manifest, 1)
            first = found.entries[-1].last + 1
            async with store.reader(
                "log", on_health=lambda *each: told.append(str(each))
            ) as reader:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(all_of(reader), 120)
            assert any(f"tier repair 1 --end {Lsn(upto)}" in text for text in told)
            await repair_log(bucket, manifest, 1, end=upto, accept=True)
            written += await write(store, "log", 10)
            async with asyncio.timeout(60):
                items = await read_all(store, "log")
            assert [item for item in items if isinstance(item, Gap)] == [
                Gap(Lsn(first), upto, GapKind.DATA_LOSS)
            ]
            kept = [item.value for item in items if isinstance(item, Record)]
            assert kept == written[: len(kept) - 10] + written[-10:]
            await until(lambda: min(gone(cluster)) > upto)
            async with asyncio.timeout(60):
                assert await read_all(store, "log") == items


def item_first(item: Record | Gap) -> Lsn:
    return item.first if isinstance(item, Gap) else item.lsn


async def place_of(store: Store, time_us: int) -> tuple[Lsn, bool]:
    """The place of a time in the log, and whether it is partial."""
    found = await store.find_time("log", time_us)
    return found.lsn, found.is_partial


async def all_of(reader: Reader) -> list[object]:
    return [each async for each in reader]


def objects(cluster: ClusterAtHand) -> list[str]:
    return [name for name in cluster.bucket.names() if name.endswith(".parquet")]
