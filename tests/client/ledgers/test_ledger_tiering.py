"""Closed ledgers in main storage, on a cluster in virtual time: uploaded once, read from there."""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from msgspec.structs import replace
from scenarios import as_scenario

from cordwood.client.ledgers.ledger_check import LedgerChecking
from cordwood.client.ledgers.ledger_repair import write_copies
from cordwood.client.ledgers.ledger_tiering import LedgerTiering
from cordwood.client.ledgers.readable_ledger import LedgerEntry
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store, connected
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    Fenced,
    NoEntry,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.message_ledgers import EntryItem
from cordwood.layout.object_names import LEDGERS, ledger_manifest_name
from cordwood.ledger import DigestKind, LedgerMetadata
from cordwood.settings import ClientSettings, StorageSettings, TierSettings
from cordwood.sim.object_store import Bucket
from cordwood.tier.ledger_history import LedgerHistory
from cordwood.tier.patient_store import PatientStore
from cordwood.uploading import ledger_uploads

COUNT = 600
TIER = TierSettings(BUCKET)


async def closed(store: Store, count: int = COUNT, **more: object) -> WritableLedger:
    ledger = await store.ledgers.create(ensemble=3, write=3, ack=2, **more)
    if count:
        await ledger.append_many([b"entry %d" % number for number in range(count)])
    await ledger.close()
    return ledger


def forget_all(cluster: ClusterAtHand, ledger: int) -> None:
    """No node has an entry of it any more, and none knows why."""
    for node in cluster.running.values():
        held = node.engine.ledgers.held.get(ledger)
        if held is not None:
            held.entries.clear()
            held.runs.clear()


def objects(cluster: ClusterAtHand, ledger: int) -> list[str]:
    """What main storage has of a ledger."""
    prefix = f"{LEDGERS}{ledger:016x}/"
    return [name for name in cluster.bucket.names() if name.startswith(prefix)]


def payloads(found: list[LedgerEntry]) -> list[bytes]:
    return [each.payload for each in found]


class TestUpload:
    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_ledger_is_uploaded_once_and_read_where_no_node_has_it(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await closed(store)).ledger_id
            before = await store.ledgers.open(number)
            done = await store.ledgers.tier(number)
            assert (done.objects, done.metadata.is_tiered) == (1, True)
            again = await store.ledgers.tier(number)
            assert (again.objects, again.metadata) == (0, done.metadata)
            assert len(objects(cluster, number)) == 2
            forget_all(cluster, number)
            expected = [b"entry %d" % entry for entry in range(COUNT)]
            opened = await store.ledgers.open(number)
            for reader in (opened, before):  # one knows by its metadata, the other asks for it
                assert payloads(await reader.read(0, COUNT - 1)) == expected
                assert payloads([each async for each in reader]) == expected
            assert payloads(await opened.read_batch(7, entries_max=3)) == expected[7:10]
            assert (await opened.last_entry()).length == done.metadata.length
            rows = [row async for batch in opened.arrow() for row in batch.to_pylist()]
            assert [row["value"] for row in rows] == expected
            with pytest.raises(NoEntry):
                await opened.read(0, COUNT)
            with pytest.raises(NoEntry):
                await opened.read_unconfirmed(COUNT, COUNT)

    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_damaged_entry_of_main_storage_is_an_error_and_ends_the_read(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The later entries fill the answer, and the damaged one is the first that is wanted."""
        whole = LedgerHistory.entries

        async def one_damaged(
            self: LedgerHistory, wanted: list[int], bytes_max: int, *, timeout_s: float
        ) -> list[EntryItem]:
            return [
                replace(each, body=b"?" + bytes(each.body[1:])) if each.entry == 5 else each
                for each in await whole(self, wanted, bytes_max, timeout_s=timeout_s)
            ]

        async with cluster.client() as store:
            number = (await closed(store, 40)).ledger_id
            await store.ledgers.tier(number)
            forget_all(cluster, number)
            opened = await store.ledgers.open(number)
            opened._timeout_s = 2.0  # before a flush brings what the nodes were made to forget
            assert len(await opened.read(0, 39)) == 40
            monkeypatch.setattr(LedgerHistory, "entries", one_damaged)
            assert len(await opened.read_batch(0, bytes_max=30)) == 4
            with pytest.raises(Unreachable, match="entry 5"):
                await opened._read_some(5, 20, 10)  # it was empty, and `read_batch` went round
            with pytest.raises(Unreachable, match="entry 5"):
                await opened.read_batch(5, bytes_max=10)
            with pytest.raises(Unreachable, match="entry 5"):
                await opened.read(0, 39)
            assert payloads(await opened.read_batch(6, entries_max=1)) == [b"entry 6"]

    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_an_entry_keeps_its_digest_and_its_password(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for digest in DigestKind:
                number = (await closed(store, 20, digest=digest, password=b"sesame")).ledger_id
                nodes = await (await store.ledgers.open(number, b"sesame")).copies(range(20))
                with pytest.raises(AccessDenied):
                    await store.ledgers.tier(number, b"other")
                await store.ledgers.tier(number, b"sesame")
                forget_all(cluster, number)
                opened = await store.ledgers.open(number, b"sesame")
                assert await opened.copies(range(20)) == nodes
                with pytest.raises(AccessDenied):
                    await store.ledgers.open(number)

    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_an_empty_ledger_has_a_manifest_alone(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 0)).ledger_id
            assert (await store.ledgers.tier(number)).metadata.is_tiered
            opened = await store.ledgers.open(number)
            assert [each async for each in opened] == []
            assert len(objects(cluster, number)) == 1

    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_ledger_that_is_open_stays_on_the_nodes(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            ledger = await store.ledgers.create(tier=True)
            await ledger.append(b"one")
            with pytest.raises(Rejected, match="not closed"):
                await store.ledgers.tier(ledger.ledger_id)
            assert ledger.metadata.wants_tier

    @as_scenario(simulate, nodes=4)
    async def test_a_cluster_without_main_storage_says_so(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 2)).ledger_id
            with pytest.raises(BadSetting, match="tier-store"):
                await store.ledgers.tier(number)


class TestTwoAttempts:
    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_later_attempt_ends_the_earlier_one(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as other:
            number = (await closed(store, 30)).ledger_id
            commit, waits, goes_on = LedgerTiering._commit, asyncio.Event(), asyncio.Event()

            async def late(self: LedgerTiering, attempt: int, crc: int) -> None:
                waits.set()
                await goes_on.wait()
                await commit(self, attempt, crc)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LedgerTiering, "_commit", late)
                first = asyncio.create_task(store.ledgers.tier(number))
                await waits.wait()
            done = await other.ledgers.tier(number)
            goes_on.set()
            with pytest.raises(Fenced):
                await first
            assert await store.ledgers.metadata(number) == done.metadata
            forget_all(cluster, number)
            found = await (await store.ledgers.open(number)).read(0, 29)
            assert payloads(found) == [b"entry %d" % entry for entry in range(30)]

    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_an_upload_that_was_cut_short_is_made_anew(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 30)).ledger_id

            async def never(self: LedgerTiering, attempt: int, crc: int) -> None:
                raise OutcomeUnknown("the client ends here")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LedgerTiering, "_commit", never)
                with pytest.raises(OutcomeUnknown):
                    await store.ledgers.tier(number)
            assert not (await store.ledgers.metadata(number)).is_tiered
            assert (await store.ledgers.tier(number)).metadata.is_tiered
            assert len(objects(cluster, number)) == 4


class TestDamage:
    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_damaged_object_is_an_entry_that_cannot_be_read(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 30)).ledger_id
            await store.ledgers.tier(number)
            (name,) = [each for each in objects(cluster, number) if each.endswith(".parquet")]
            whole = cluster.bucket.content(name)
            damaged = bytearray(whole)
            damaged[100] ^= 4
            cluster.bucket.damage(name, bytes(damaged))
            opened = await store.ledgers.open(number)
            assert len(await opened.read(0, 29)) == 30  # nodes have it
            forget_all(cluster, number)
            with pytest.raises(Unreachable, match="main storage: row group"):
                await opened.read(0, 29)
            cluster.bucket.damage(name, whole)
            assert len(await opened.read(0, 29)) == 30


TENDED = TierSettings(BUCKET, tend_s=1.0, grace_s=5.0)


class TestCollection:
    @as_scenario(simulate, nodes=4, tier=TENDED)
    async def test_objects_of_a_deleted_ledger_go_after_their_grace(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            kept, number = [(await closed(store, 30)).ledger_id for _ in range(2)]
            for each in (kept, number):
                await store.ledgers.tier(each)
            await asyncio.sleep(30)
            await store.ledgers.delete(number)
            await asyncio.sleep(2)
            assert len(objects(cluster, number)) == 2
            await asyncio.sleep(10)
            assert objects(cluster, number) == []
            assert len(objects(cluster, kept)) == 2
            forget_all(cluster, kept)
            assert len(await (await store.ledgers.open(kept)).read(0, 29)) == 30

    @as_scenario(simulate, nodes=4, tier=TENDED)
    async def test_an_attempt_that_was_given_up_goes_and_the_one_in_force_stays(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 30)).ledger_id

            async def never(self: LedgerTiering, attempt: int, crc: int) -> None:
                raise OutcomeUnknown("the client ends here")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LedgerTiering, "_commit", never)
                with pytest.raises(OutcomeUnknown):
                    await store.ledgers.tier(number)
            first = objects(cluster, number)
            await asyncio.sleep(30)
            assert objects(cluster, number) == first  # it may be committed still
            await store.ledgers.tier(number)
            await asyncio.sleep(30)
            left = objects(cluster, number)
            assert len(left) == 2
            assert not {*left} & {*first}

    @as_scenario(simulate, nodes=4, tier=TENDED)
    async def test_what_is_no_ledgers_of_ours_stays(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.ledgers.tier((await closed(store, 3)).ledger_id)
            strangers = [ledger_manifest_name(4711, 1, 2), f"{LEDGERS}notes"]
            for name in strangers:
                cluster.bucket.put(name, b"x", lambda etag: True)
            await asyncio.sleep(30)
            assert {*strangers} <= {*cluster.bucket.names()}


class TestOwner:
    @as_scenario(simulate, nodes=4, tier=TIER)
    async def test_a_directory_that_is_not_the_nodes_own_is_refused(
        self, cluster: ClusterAtHand
    ) -> None:
        other = Bucket(random.Random(1))

        async def opens_another(host: Host, address: str) -> PatientStore:
            return PatientStore(other.store(), host.random)

        async with connected(
            cluster.addresses, cluster.client_host(), ClientSettings(), opens_another
        ) as store:
            number = (await closed(store, 3)).ledger_id
            with pytest.raises(BadSetting, match="another directory"):
                await store.ledgers.tier(number)
            assert not (await store.ledgers.metadata(number)).is_tiered
            assert other.names() == []


LETS_GO = TierSettings(BUCKET, tend_s=1.0, grace_s=5.0, ledger_keep_s=3.0)
QUICK = StorageSettings(flush_age_s=0.5, retention_every_s=1.0)


async def kept_by(cluster: ClusterAtHand, ledger: int) -> dict[int, int]:
    """By node that heard of the ledger, entries that it holds, in memory or in LogsDB."""
    found = {}
    for number, node in cluster.running.items():
        held = node.engine.ledgers.held.get(ledger)
        if held is not None:
            below = await node.engine.logs.ledgers.entries(ledger, range(COUNT))
            found[number] = len(held.entries) + sum(each is not None for each in below)
    return found


class TestLettingGo:
    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_nodes_let_go_of_what_is_committed_and_readers_notice_nothing(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number, other = [(await closed(store)).ledger_id for _ in range(2)]
            early = await store.ledgers.open(number)
            await asyncio.sleep(5)  # LogsDB has them
            assert sum((await kept_by(cluster, number)).values()) == 3 * COUNT
            await store.ledgers.tier(number)
            await asyncio.sleep(1)
            assert sum((await kept_by(cluster, number)).values()) == 3 * COUNT
            await asyncio.sleep(10)
            assert {*(await kept_by(cluster, number)).values()} == {0}
            assert sum((await kept_by(cluster, other)).values()) == 3 * COUNT
            expected = [b"entry %d" % entry for entry in range(COUNT)]
            for reader in (early, await store.ledgers.open(number)):
                with pytest.raises(NoEntry):  # it was asked for again until the timeout
                    await reader.read_unconfirmed(COUNT, COUNT)
                assert payloads(await reader.read(0, COUNT - 1)) == expected
            assert (await store.ledgers.recover(number)).is_tiered

    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_a_claim_alone_lets_go_of_nothing(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number = (await closed(store)).ledger_id

            async def never(self: LedgerTiering, attempt: int, crc: int) -> None:
                raise OutcomeUnknown("the client ends here")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LedgerTiering, "_commit", never)
                with pytest.raises(OutcomeUnknown):
                    await store.ledgers.tier(number)
            await asyncio.sleep(20)
            assert sum((await kept_by(cluster, number)).values()) == 3 * COUNT

    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_a_node_that_does_not_see_the_objects_keeps_its_copies(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number, other = [(await closed(store)).ledger_id for _ in range(2)]
            for each in (number, other):
                await store.ledgers.tier(each)
            cluster.bucket.delete(objects(cluster, number)[0])
            await asyncio.sleep(20)
            assert sum((await kept_by(cluster, number)).values()) == 3 * COUNT
            assert sum((await kept_by(cluster, other)).values()) == 0

    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_a_node_that_starts_anew_knows_what_it_let_go_of(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await closed(store)).ledger_id
            await store.ledgers.tier(number)
            await asyncio.sleep(15)
            nodes = (await store.ledgers.metadata(number)).newest.nodes
            for node in nodes:
                cluster.kill(node)
            await cluster.start(*nodes)
            assert {*(await kept_by(cluster, number)).values()} == {0}
            opened = await store.ledgers.open(number)
            assert len(await opened.read(0, COUNT - 1)) == COUNT
            # Copies that come late are not taken.
            items = await opened.copies([0])
            with pytest.raises(Overloaded, match="gone"):
                await write_copies(store._cluster, opened.metadata, nodes[0], items)

    @as_scenario(simulate, nodes=5, tier=LETS_GO, storage=QUICK)
    async def test_checks_and_repairs_write_nothing_back(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number = (await closed(store)).ledger_id
            await store.ledgers.tier(number)
            await asyncio.sleep(15)
            check = await store.ledgers.check(number, fills=True)
            assert (check.is_whole, check.is_tiered, check.filled) == (True, True, 0)
            assert (check.entries, check.copies, check.lost, check.narrow) == (COUNT, COUNT, 0, [])
            nodes = (await store.ledgers.metadata(number)).newest.nodes
            assert await store.ledgers.repair(number, nodes=nodes[:1]) == {}
            assert {*(await kept_by(cluster, number)).values()} == {0}

    @as_scenario(simulate, nodes=5, tier=LETS_GO, storage=QUICK)
    async def test_a_check_tells_what_main_storage_lost(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            number, here = [(await closed(store)).ledger_id for _ in range(2)]
            await store.ledgers.tier(number)
            await asyncio.sleep(15)
            await store.ledgers.tier(here)
            for each in (number, here):
                (name,) = [name for name in objects(cluster, each) if name.endswith(".parquet")]
                content = bytearray(cluster.bucket.content(name))
                content[50] ^= 1
                cluster.bucket.damage(name, bytes(content))
            check = await store.ledgers.check(number, fills=True)
            assert (check.short, check.lost, check.damaged, check.is_whole) == (
                COUNT, COUNT, COUNT, False
            )  # fmt: skip
            check = await store.ledgers.check(here)
            assert (check.short, check.lost, check.first_short) == (COUNT, 0, 0)
            cluster.bucket.delete(name)
            check = await store.ledgers.check(here)
            assert (check.short, check.lost, check.damaged) == (COUNT, 0, 0)

    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_a_ledger_that_is_let_go_of_meanwhile_lacks_nothing(
        self, cluster: ClusterAtHand
    ) -> None:
        """The check began before the ledger was in main storage."""
        async with cluster.client() as store:
            number = (await closed(store)).ledger_id
            opened = await store.ledgers.open(number)
            await store.ledgers.tier(number)
            await asyncio.sleep(15)
            with pytest.MonkeyPatch.context() as patch:

                async def stale() -> LedgerMetadata:
                    return opened.metadata

                patch.setattr(opened, "refresh", stale)
                check = await LedgerChecking(
                    opened, store._cluster, random.Random(1), share=1.0, fills=True,
                    on_progress=lambda entries: None,
                ).run()  # fmt: skip
            assert (check.is_tiered, check.short, check.lost, check.filled) == (False, 0, 0, 0)


BY_ITSELF = TierSettings(BUCKET, look_s=1.0, ledger_keep_s=1.0)


class TestByItself:
    @as_scenario(simulate, nodes=4, tier=BY_ITSELF, storage=QUICK)
    async def test_closed_ledgers_that_ask_for_it_go_to_main_storage(
        self, cluster: ClusterAtHand
    ) -> None:
        """All nodes share one handle of the metadata store here, so each gets every lease: they
        upload the same ledgers at once, and one attempt at each counts."""
        async with cluster.client() as store:
            asks = [
                (await closed(store, 10, tier=True, password=b"sesame")).ledger_id for _ in range(5)
            ]
            stays = (await closed(store, 10)).ledger_id
            ledger = await store.ledgers.create(tier=True)
            await ledger.append(b"one")
            await asyncio.sleep(20)
            for each in asks:
                assert (await store.ledgers.metadata(each)).is_tiered
                assert {*(await kept_by(cluster, each)).values()} == {0}
                assert len(await (await store.ledgers.open(each, b"sesame")).read(0, 9)) == 10
            assert not (await store.ledgers.metadata(stays)).is_tiered
            assert not (await store.ledgers.metadata(ledger.ledger_id)).is_tiered
            await ledger.close()
            await asyncio.sleep(20)
            assert (await store.ledgers.metadata(ledger.ledger_id)).is_tiered
            roles = [node._tiering.ledger_uploads for node in cluster.running.values()]
            assert sum(role.uploaded for role in roles) == 6

    @as_scenario(simulate, nodes=4, tier=BY_ITSELF, storage=QUICK)
    async def test_many_ledgers_are_looked_at_in_rounds(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger_uploads, "READ_AT_ONCE", 3)
                patch.setattr(ledger_uploads, "LISTED_AT_ONCE", 7)
                asks = [(await closed(store, 1, tier=n % 3 == 0)).ledger_id for n in range(24)]
                await asyncio.sleep(60)
                for n, each in enumerate(asks):
                    assert (await store.ledgers.metadata(each)).is_tiered == (n % 3 == 0)

    @as_scenario(simulate, nodes=4, tier=BY_ITSELF, storage=QUICK)
    async def test_a_lost_node_of_a_tiered_ledger_leaves_no_mark(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await closed(store, 10, tier=True)).ledger_id
            await asyncio.sleep(10)
            lost = (await store.ledgers.metadata(number)).newest.nodes[0]
            cluster.kill(lost)
            await asyncio.sleep(5)
            await store.say_rebuild(lost, "start")
            await asyncio.sleep(120)
            assert [each async for each in store.ledgers.under_replicated()] == []
            assert lost in (await store.ledgers.metadata(number)).newest.nodes
            assert {*(await kept_by(cluster, number)).values()} == {0}
            assert len(await (await store.ledgers.open(number)).read(0, 9)) == 10

    @pytest.mark.slow
    @as_scenario(simulate, nodes=4, tier=LETS_GO, storage=QUICK)
    async def test_the_check_of_copies_reads_main_storage_and_tells_what_is_lost_there(
        self, cluster: ClusterAtHand, *, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The nodes' own check opened main storage by the address alone, which a program that runs
        nodes with a store of its own does not have there: it could read no entry."""
        async with cluster.client() as store:
            whole, lost = [(await closed(store)).ledger_id for _ in range(2)]
            for number in (whole, lost):
                await store.ledgers.tier(number)
            await asyncio.sleep(15)
            assert {*(await kept_by(cluster, lost)).values()} == {0}
            for name in objects(cluster, lost):
                if "/manifest-" not in name:
                    cluster.bucket.delete(name)
            caplog.clear()
            await asyncio.sleep(120)
        said = [each.getMessage() for each in caplog.records]
        assert any(f"ledger {lost}: " in text and "have no copy" in text for text in said)
        assert not any(f"ledger {whole}: " in text for text in said)
