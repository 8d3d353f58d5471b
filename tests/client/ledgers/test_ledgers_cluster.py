"""Ledgers on a cluster in virtual time: written, read, followed, fenced, recovered, lost nodes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.ledgers import writable_ledger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    Closed,
    LedgerExists,
    LedgerFenced,
    NoEntry,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    Rejected,
    TooFewNodes,
    Undecided,
    UnknownLedger,
    Unreachable,
)
from cordwood.ledger import NO_ENTRY, DigestKind, LedgerState
from cordwood.metadata.memory import LateWrite
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.quorum.ensemble_choice import Placement
from cordwood.sim.disk import DISK_BYTES

E3 = {"ensemble": 3, "write": 3, "ack": 2}
DEFERRED = WriterLimits(defers_sync=True)


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [f"entry {number}".encode() for number in range(start, start + count)]


class TestWritingAndReading:
    @pytest.mark.parametrize("digest", list(DigestKind))
    @as_scenario(simulate)
    async def test_what_was_appended_is_read_in_order(
        self, cluster: ClusterAtHand, *, digest: DigestKind
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3, digest=digest, password=b"secret")
            assert await made.append_many(payloads(700)) == list(range(700))
            assert (made.last_add_confirmed, made.last_add_pushed) == (699, 699)
            await made.close()
            await made.close()  # harmless
            with pytest.raises(Closed):
                await made.append(b"more")
            opened = await store.ledgers.open(made.ledger_id, b"secret")
            assert opened.is_closed
            assert [each.payload for each in await opened.read(0, 699)] == payloads(700)
            assert (await opened.read(3, 4))[1].entry == 4
            assert (await opened.last_entry()).payload == b"entry 699"
            assert opened.length == sum(map(len, payloads(700)))
            with pytest.raises(NoEntry):
                await opened.read(0, 700)
            with pytest.raises(NoEntry):
                await opened.read_unconfirmed(700, 700)
            for first, last in ((2, 1), (2**63, 2**63), (0, 2**70)):
                with pytest.raises(BadSetting):
                    await opened.read(first, last)
                with pytest.raises(BadSetting):
                    await opened.read_unconfirmed(first, last)
            with pytest.raises(AccessDenied):
                await store.ledgers.open(made.ledger_id, b"other")

    @as_scenario(simulate)
    async def test_arrow_batches_have_every_entry_once_and_end_where_they_are_told(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(9000))
            opened = await store.ledgers.open(made.ledger_id)
            sizes, values = [], []
            async for batch in opened.arrow(["lsn", "value"], until=8999):
                sizes.append(batch.num_rows)
                values += batch["value"].to_pylist()
            assert values == payloads(9000)
            assert 8192 <= sizes[0] < 8192 + 256
            assert len(sizes) == 2
            some = [b async for b in opened.arrow(["lsn"], start=100, until=103)]
            assert [b["lsn"].to_pylist() for b in some] == [[100, 101, 102, 103]]
            assert [b async for b in opened.arrow(start=5, until=4)] == []
            await made.close()
            whole = await store.ledgers.open(made.ledger_id)
            assert sum([b.num_rows async for b in whole.arrow()]) == 9000

    @as_scenario(simulate, nodes=5)
    async def test_entries_lie_on_their_write_set_only(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=4, write=2, ack=2)
            await made.append_many(payloads(40))
            nodes = made.metadata.newest.nodes
            for place, node in enumerate(nodes):
                held = cluster.running[node].engine.ledgers.held[made.ledger_id]
                wanted = {e for e in range(40) if (place - e) % 4 < 2}
                assert held.entries.keys() == wanted
            await made.close()
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 39)] == payloads(40)

    @as_scenario(simulate)
    async def test_an_open_ledger_is_followed_to_its_end(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as writer, cluster.client() as reader:
            made = await writer.ledgers.create(**E3)
            opened = await reader.ledgers.open(made.ledger_id)
            found: list[bytes] = []

            async def follow() -> None:
                async for each in opened:
                    found.append(each.payload)

            following = asyncio.ensure_future(follow())
            for some in (payloads(3), payloads(5, 3)):
                await made.append_many(some)
                await asyncio.sleep(1)
                # The last entry's LAC is told though no entry comes behind it.
                assert found == payloads(len(found))
                assert found[-1:] == some[-1:]
            await made.close()
            await following
            assert found == payloads(8)
            assert opened.is_closed

    @as_scenario(simulate)
    async def test_ids_of_the_callers_choice_are_acknowledged_in_order(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            calls = [asyncio.ensure_future(made.write(i, b"%d" % i)) for i in (3, 1, 2)]
            await asyncio.sleep(1)
            assert not any(call.done() for call in calls)
            assert await made.write(0, b"0") == 0
            assert await asyncio.gather(*calls) == [3, 1, 2]
            with pytest.raises(BadSetting, match="written already"):
                await made.write(2, b"again")
            for wrong in (-1, 2**63, 2**70, 1.5, "7"):
                with pytest.raises(BadSetting, match="ids go from 0"):
                    await made.write(wrong, b"no entry's id")  # type: ignore[arg-type]
            late = asyncio.ensure_future(made.write(5, b"5"))
            await asyncio.sleep(1)
            await made.close()
            with pytest.raises(Closed):
                await late
            assert (await store.ledgers.metadata(made.ledger_id)).last == 3

    @as_scenario(simulate)
    async def test_a_call_of_a_chosen_id_is_told_of_its_own_entry_only(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            one = WriterLimits(entries_max=1)
            made = await store.ledgers.create(ensemble=3, write=3, ack=3, limits=one)
            calls = [asyncio.ensure_future(made.write(i, b"%d" % i)) for i in (1, 2, 0)]
            # The third adds all three, one after the other, and the last node dies under it.
            while made.last_add_confirmed < 0:  # noqa: ASYNC110 - in the turn of its ack
                await asyncio.sleep(0.0001)
            cluster.kill(3)
            told = await asyncio.gather(*calls, return_exceptions=True)
            assert told[2] == 0
            opened = await store.ledgers.open(made.ledger_id, recovery=True)
            stored = [each.payload async for each in opened]
            for number, outcome in zip((1, 2, 0), told, strict=True):
                is_told = outcome == number
                assert is_told == (b"%d" % number in stored), outcome

    @as_scenario(simulate)
    async def test_entries_with_ids_go_on_when_the_call_that_adds_them_is_cancelled(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            one = WriterLimits(entries_max=1)
            made = await store.ledgers.create(**E3, limits=one)
            for node in cluster.numbers:
                cluster.machine(node).pause()
            calls = [asyncio.ensure_future(made.write(i, b"%d" % i)) for i in (0, 2, 3, 1)]
            await asyncio.sleep(0.1)
            calls[3].cancel()
            for node in cluster.numbers:
                cluster.machine(node).resume()
            assert await asyncio.gather(*calls[:3]) == [0, 2, 3]
            assert made.last_add_confirmed == 3

    def test_entries_that_wait_for_ids_below_them_have_a_bound(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                made = await store.ledgers.create(**E3)
                waits = [asyncio.ensure_future(made.write(i, bytes(1000))) for i in (1, 2)]
                await asyncio.sleep(0.1)
                with pytest.raises(Overloaded, match="wait for entry 0"):
                    await made.write(3, bytes(1000))
                assert await made.write(0, bytes(1000)) == 0
                assert await asyncio.gather(*waits) == [1, 2]
                assert await made.write(3, bytes(1000)) == 3

        swap_value(monkeypatch, lambda: writable_ledger.AHEAD_BYTES, 2500)
        simulate(scenario, wal_bytes=32 << 20)

    @as_scenario(simulate)
    async def test_a_follower_asks_with_pauses_where_one_node_is_fenced_and_nobody_writes(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as writer, cluster.client() as reader:
            made = await writer.ledgers.create(**E3)
            await made.append_many(payloads(3))
            await asyncio.sleep(1)
            # A node that lost records; nobody adds anything, so nobody hears of it.
            await cluster.running[2]._ledgers.note_loss(is_anew=False)
            opened = await reader.ledgers.open(made.ledger_id)
            began = asyncio.get_running_loop().time()
            asked = 0
            while asyncio.get_running_loop().time() < began + 10:
                assert await opened.wait_confirmed(2, timeout_s=1) == 2
                asked += 1
            assert asked <= 55

    @as_scenario(simulate, nodes=4, wal_bytes=128 << 20)
    async def test_batches_of_large_entries_have_a_bound_in_bytes(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=4, write=2, ack=2)
            large = [bytes([n]) * (1 << 19) for n in range(64)]
            assert await made.append_many([*payloads(600), *large]) == [*range(664)]
            await made.close()
            opened = await store.ledgers.open(made.ledger_id)
            found: list[bytes] = []
            sizes: list[int] = []
            async for batch in opened.batches():
                sizes.append(sum(len(each.payload) for each in batch))
                found += [each.payload for each in batch]
            assert found == [*payloads(600), *large]
            # What is asked for at first, and one reply of each node.
            assert max(sizes) < (4 << 20) + 4 * (3 << 20)
            some = await opened.read_batch(600, bytes_max=1)
            assert [each.payload for each in some] == large[:1]
            some = await opened.read_batch(590, bytes_max=3 << 20)
            assert [each.payload for each in some] == [*payloads(10, 590), *large[:5]]

    @as_scenario(simulate)
    async def test_an_empty_ledger_has_no_last_entry(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            async with await store.ledgers.create(**E3) as made:
                pass
            opened = await store.ledgers.open(made.ledger_id)
            assert opened.last_add_confirmed == NO_ENTRY
            with pytest.raises(NoEntry):
                await opened.last_entry()
            assert [each async for each in opened] == []

    @as_scenario(simulate, wal_bytes=32 << 20)
    async def test_an_entry_has_a_limit(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            assert await made.append(bytes(1 << 20)) == 0
            with pytest.raises(RecordTooLarge):
                await made.append(bytes((3 << 20) + 1))
            wide = memoryview(bytes(4 << 20)).cast("q")  # fewer items than an entry has bytes
            with pytest.raises(RecordTooLarge):
                await made.append(wide)
            with pytest.raises(RecordTooLarge):
                await made.write(1, wide)
            assert await made.append(wide[:10]) == 1
            assert made.length == (1 << 20) + 80


class TestMetadata:
    @as_scenario(simulate)
    async def test_ids_are_allotted_chosen_and_listed_in_order(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            chosen = await store.ledgers.create(**E3, ledger=2, custom={"who": b"me"})
            large = await store.ledgers.create(**E3, ledger=2**40)
            with pytest.raises(LedgerExists):
                await store.ledgers.create(**E3, ledger=2)
            made = [(await store.ledgers.create(**E3)).ledger_id for _ in range(4)]
            assert len({*made, 2, 2**40}) == 6
            listed = [ledger async for ledger in store.ledgers.list()]
            assert listed == sorted([*made, 2, 2**40])
            assert await store.ledgers.page(2, 1) == [min(m for m in made if m > 2)]
            assert (await store.ledgers.metadata(2)).custom == {"who": b"me"}
            await store.ledgers.delete(2**40)
            await store.ledgers.delete(2**40)
            assert 2**40 not in [ledger async for ledger in store.ledgers.list()]
            with pytest.raises(UnknownLedger):
                await store.ledgers.open(2**40)
            del chosen, large

    @as_scenario(simulate)
    async def test_a_striping_that_cannot_be_is_refused_by_name(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            create = store.ledgers.create
            with pytest.raises(BadSetting, match="wanted is"):
                await create(ensemble=2, write=3, ack=2)
            with pytest.raises(TooFewNodes, match="4 are wanted"):
                await create(ensemble=4, write=3, ack=2)
            shrunk = await create(ensemble=4, write=3, ack=2, shrinks=True)
            assert shrunk.metadata.striping.ensemble == 3
            with pytest.raises(BadSetting, match="no digest"):
                await create(digest="md5")


class TestRecovery:
    @as_scenario(simulate)
    async def test_a_recovery_shuts_the_writer_out_and_keeps_what_it_was_told(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as writer, cluster.client() as other:
            made = await writer.ledgers.create(**E3)
            await made.append_many(payloads(20))
            opened = await other.ledgers.open(made.ledger_id, recovery=True)
            assert opened.is_closed
            assert opened.last_add_confirmed == 19
            assert [each.payload for each in await opened.read(0, 19)] == payloads(20)
            with pytest.raises(OutcomeUnknown):
                await made.append(b"late")
            with pytest.raises(LedgerFenced):
                await made.append(b"later")
            with pytest.raises(LedgerFenced):
                await made.close()
            again = await other.ledgers.open(made.ledger_id, recovery=True)
            assert again.metadata == opened.metadata

    @as_scenario(simulate)
    async def test_two_recoveries_at_once_agree(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as a, cluster.client() as b, cluster.client() as writer:
            made = await writer.ledgers.create(**E3)
            calls = [made.append_nowait(each) for each in payloads(50)]
            ends = await asyncio.gather(
                a.ledgers.recover(made.ledger_id), b.ledgers.recover(made.ledger_id)
            )
            assert ends[0] == ends[1]
            told = await asyncio.gather(*calls, return_exceptions=True)
            acked = [each for each in told if isinstance(each, int)]
            assert max(acked, default=-1) <= ends[0].last
            assert all(isinstance(each, (int, OutcomeUnknown)) for each in told)

    @as_scenario(simulate)
    async def test_a_fence_alone_shuts_the_writer_out(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append(b"one")
            told = await store.ledgers.fence(made.ledger_id)
            assert all(told.values())
            with pytest.raises(OutcomeUnknown):
                await made.append(b"two")
            state = (await store.ledgers.metadata(made.ledger_id)).state
            assert state is LedgerState.IN_RECOVERY
            assert (await store.ledgers.recover(made.ledger_id)).last == 0
            with pytest.raises(LedgerFenced, match="closed already"):
                await store.ledgers.fence(made.ledger_id)

    @as_scenario(simulate)
    async def test_a_fence_outlives_the_node_that_never_saw_the_ledger(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await store.ledgers.fence(made.ledger_id)
            for node in (1, 2, 3):
                cluster.kill(node)
            await cluster.start(1, 2, 3)
            await asyncio.sleep(5)
            with pytest.raises(OutcomeUnknown):
                await made.append(b"one")

    @as_scenario(simulate)
    async def test_too_few_nodes_leave_it_undecided(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(3))
            made.abandon()
            cluster.kill(1)
            cluster.kill(2)
            with pytest.raises(Undecided, match="start those that are down"):
                await store.ledgers.recover(made.ledger_id)
            await cluster.start(1, 2)
            assert (await store.ledgers.recover(made.ledger_id)).last == 2


class TestFailedNodes:
    @as_scenario(simulate, nodes=4)
    async def test_another_node_takes_the_place_of_one_that_dies(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(10))
            dead = made.metadata.newest.nodes[0]
            cluster.kill(dead)
            await made.append_many(payloads(10, 10))
            await made.append_many(payloads(10, 20))
            assert dead not in made.metadata.newest.nodes
            assert len(made.metadata.fragments) == 2
            await made.close()
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 29)] == payloads(30)

    @as_scenario(simulate)
    async def test_without_another_node_the_ledger_ends_where_it_was_acknowledged(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=3)
            await made.append_many(payloads(10))
            cluster.kill(made.metadata.newest.nodes[0])
            with pytest.raises(TooFewNodes):
                await made.append(b"one more")
            with pytest.raises(Closed, match="too few nodes"):
                await made.append(b"two more")
            found = await store.ledgers.metadata(made.ledger_id)
            assert (found.state, found.last) == (LedgerState.CLOSED, 9)

    @as_scenario(simulate)
    async def test_what_was_flushed_is_read_after_a_restart(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(300))
            for number in (1, 2, 3):
                await cluster.running[number].flush()
                held = cluster.running[number].engine.ledgers.held[made.ledger_id]
                assert (len(held.entries), held.last) == (0, 299)
            await made.append_many(payloads(10, 300))
            for number in (1, 2, 3):
                cluster.kill(number)
            await cluster.start()
            await asyncio.sleep(3)
            found = await store.ledgers.recover(made.ledger_id)
            assert found.last == 309
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 309)] == payloads(310)


class TestRepair:
    @pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)])
    @as_scenario(simulate, nodes=6)
    async def test_what_a_lost_node_held_is_copied_and_its_keeper_named(
        self, cluster: ClusterAtHand, *, shape
    ) -> None:
        async with cluster.client() as store:
            ensemble, write, ack = shape
            made = await store.ledgers.create(ensemble=ensemble, write=write, ack=ack)
            await made.append_many(payloads(600))
            first = made.metadata.newest.nodes
            with pytest.raises(Rejected, match="recover it first"):
                await store.ledgers.repair(made.ledger_id, nodes=[first[0]])
            await made.close()
            assert await store.ledgers.repair(made.ledger_id) == {}
            lost = first[1]
            cluster.kill(lost)
            moved = await store.ledgers.repair(made.ledger_id, nodes=[lost])
            assert moved.keys() == {lost}
            new = moved[lost]
            assert new not in first
            found = await store.ledgers.metadata(made.ledger_id)
            assert found.newest.nodes == tuple(new if n == lost else n for n in first)
            held = cluster.running[new].engine.ledgers.held[made.ledger_id]
            wanted = {e for e in range(600) if (1 - e) % ensemble < write}
            assert held.entries.keys() == wanted
            assert await store.ledgers.repair(made.ledger_id, nodes=[lost]) == {}
            # As many nodes may go once more as at first.
            cluster.kill(first[2])
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 599)] == payloads(600)


class TestDeletion:
    @as_scenario(simulate)
    async def test_nodes_let_go_of_what_was_deleted_and_of_nothing_else(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            kept, gone = [await store.ledgers.create(**E3) for _ in range(2)]
            for made in (kept, gone):
                await made.append_many(payloads(20))
                await made.close()
            node = cluster.running[1]
            await node.flush()
            await store.ledgers.delete(gone.ledger_id)
            assert await node._ledgers.sweep() == 1
            assert await node._ledgers.sweep() == 0
            table = node.engine.logs.ledgers
            assert await table.entries(gone.ledger_id, range(20)) == [None] * 20
            assert None not in await table.entries(kept.ledger_id, range(20))
            # While the metadata store is away nothing goes.
            cluster.metadata.is_out = True
            with pytest.raises(Unreachable):
                await node._ledgers.sweep()
            cluster.metadata.is_out = False
            opened = await store.ledgers.open(kept.ledger_id)
            assert len(await opened.read(0, 19)) == 20

    @as_scenario(simulate)
    async def test_no_ledger_gets_the_id_of_one_that_was_deleted(
        self, cluster: ClusterAtHand
    ) -> None:
        """Nodes keep what they have under the id: it would be read as the new one's."""
        async with cluster.client() as store:
            for chosen in (7, 2**40):
                made = await store.ledgers.create(**E3, ledger=chosen)
                await made.append_many(payloads(5))
                await made.close()
                await store.ledgers.delete(chosen)
                await store.ledgers.delete(chosen)
                for _ in range(2):
                    with pytest.raises(LedgerExists, match="was deleted"):
                        await store.ledgers.create(**E3, ledger=chosen)
                with pytest.raises(UnknownLedger):
                    await store.ledgers.open(chosen, recovery=True)
            # An id that was deleted in vain is used up too; its neighbours are free.
            await store.ledgers.delete(8)
            with pytest.raises(LedgerExists, match="was deleted"):
                await store.ledgers.create(**E3, ledger=8)
            for free in (6, 9, 7 + 1024, 2**40 + 1):
                assert (await store.ledgers.create(**E3, ledger=free)).ledger_id == free
            allotted = [(await store.ledgers.create(**E3)).ledger_id for _ in range(9)]
            assert allotted == [0, 1, 2, 3, 4, 5, 10, 11, 12]

    @as_scenario(simulate)
    async def test_of_a_deletion_and_a_creation_that_cross_no_second_ledger_comes(
        self, cluster: ClusterAtHand
    ) -> None:
        chance = random.Random(1)
        cluster.metadata.delay_s = (0.0, 0.01)
        async with cluster.client() as store, cluster.client() as other:
            for chosen in range(60):
                await (await store.ledgers.create(**E3, ledger=chosen)).append(b"one")

                async def make(chosen: int = chosen) -> None:
                    await asyncio.sleep(chance.uniform(0, 0.05))
                    await other.ledgers.create(**E3, ledger=chosen)

                making = [asyncio.ensure_future(make()) for _ in range(4)]
                await store.ledgers.delete(chosen)
                told = await asyncio.gather(*making, return_exceptions=True)
                assert {type(each) for each in told} == {LedgerExists}
                assert await store.ledgers.page() == []

    @as_scenario(simulate)
    async def test_a_ledger_whose_first_write_comes_after_its_deletion_goes_again(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3, ledger=7)
            await made.append_many(payloads(5))
            values = cluster.metadata.data.values
            key = next(key for key in values if key.startswith("ledgers/"))
            value = values[key].value
            await store.ledgers.delete(7)
            late = LateWrite(asyncio.get_running_loop().time() + 1, key, value, 0)
            cluster.metadata.data.put_off(late)
            await asyncio.sleep(2)
            assert (await store.ledgers.metadata(7)).state is LedgerState.OPEN
            assert await cluster.running[1]._ledgers.sweep() == 1
            with pytest.raises(UnknownLedger):
                await store.ledgers.metadata(7)

    @as_scenario(simulate)
    async def test_a_writer_of_a_deleted_ledger_is_told(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made: WritableLedger = await store.ledgers.create(**E3)
            await made.append(b"one")
            await store.ledgers.delete(made.ledger_id)
            with pytest.raises(LedgerFenced):
                await made.close()


class TestPlacement:
    @as_scenario(simulate, nodes=4)
    async def test_a_node_whose_disk_fills_up_gets_fewer_ledgers(
        self, cluster: ClusterAtHand
    ) -> None:
        cluster.machine(2).disk.free_bytes = DISK_BYTES // 20
        async with cluster.client() as store:
            await asyncio.sleep(10)  # the node measures, tells, and clients hear
            firsts: Counter[int] = Counter()
            for _ in range(120):
                made = await store.ledgers.create(ensemble=1, write=1, ack=1)
                firsts.update(made.metadata.newest.nodes)
                made.abandon()
            assert firsts[2] < 15, "an eighth of each other one's"
            cluster.machine(2).disk.free_bytes = DISK_BYTES
            await asyncio.sleep(10)
            firsts.clear()
            for _ in range(120):
                made = await store.ledgers.create(ensemble=1, write=1, ack=1)
                firsts.update(made.metadata.newest.nodes)
                made.abandon()
            assert firsts[2] > 15

    def test_an_enforced_rule_holds_over_changes_of_the_ensemble(self) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                made = await store.ledgers.create(**E3, placement=Placement(is_enforced=True))
                await made.append(b"one")
                nodes = made.metadata.newest.nodes
                (alone,) = [node for node in nodes if node in (4, 5)][:1] or [4]
                assert {*nodes} & {4, 5}, "one rack alone has three nodes"
                cluster.kill(alone)
                await made.append_many(payloads(20))
                after = made.metadata.newest.nodes
                assert {*after} & {4, 5} - {alone}
                assert alone not in after

        locations = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}
        simulate(scenario, nodes=5, locations=locations)

    @as_scenario(simulate, locations={1: "a", 2: "a", 3: "a"})
    async def test_one_rack_is_refused_where_two_are_enforced(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            with pytest.raises(TooFewNodes, match="two domains of the scope rack"):
                await store.ledgers.create(**E3, placement=Placement(is_enforced=True))
            await (await store.ledgers.create(**E3)).close()

    @as_scenario(simulate, nodes=4, locations={1: "a", 2: "b", 3: "c", 4: "d"})
    async def test_a_writer_goes_where_it_is_told_first(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await asyncio.sleep(1.0)  # nodes hear of each other
            await store.ledgers._cluster.refresh_members(timeout_s=5.0)
            for _ in range(5):
                near = Placement(local="b")
                made = await store.ledgers.create(**E3, placement=near)
                assert made.metadata.newest.nodes[0] == 2
                await made.close()

    @as_scenario(simulate)
    async def test_a_slow_node_is_passed_over_and_asked_last_from_then_on(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(10))
            await made.close()
            opened = await store.ledgers.open(made.ledger_id)
            slow = opened._orders([0])[0][0]
            cluster.machine(slow).pause()
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert len(await opened.read(0, 9)) == 10
            assert 0.25 < loop.time() - began < 1.0, "it did not wait for the slow one's time"
            assert opened._orders([0])[0][-1] == slow
            began = loop.time()
            await opened.read(0, 9)
            assert loop.time() - began < 0.25
            cluster.machine(slow).resume()


class TestDeferredSync:
    @as_scenario(simulate)
    async def test_it_is_confirmed_by_a_force_and_by_the_close(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3, limits=DEFERRED)
            assert await made.append_many(payloads(20)) == list(range(20))
            assert made.last_add_confirmed == NO_ENTRY
            opened = await store.ledgers.open(made.ledger_id)
            assert await opened.read_last_add_confirmed() == NO_ENTRY
            assert await made.force() == 19
            assert made.last_add_confirmed == 19
            await made.append(b"behind the force")
            assert made.last_add_confirmed == 19
            await asyncio.sleep(0.5)
            assert await opened.read_last_add_confirmed() == 19
            await made.close()
            assert made.metadata.last == 20
            assert len([each async for each in opened]) == 21

    @as_scenario(simulate, nodes=4)
    async def test_a_node_that_fails_ends_the_writer_at_its_lac(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3, limits=DEFERRED)
            await made.append_many(payloads(5))
            await made.force()
            await made.append(b"not forced")
            cluster.kill(made.metadata.newest.nodes[0])
            with pytest.raises(Unreachable):
                await made.close()
            assert (made.metadata.state, made.metadata.last) == (LedgerState.CLOSED, 4)

    @as_scenario(simulate)
    async def test_a_recovery_keeps_what_it_finds_and_ends_the_writer(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            made = await store.ledgers.create(**E3, limits=DEFERRED)
            await made.append_many(payloads(5))
            found = await other.ledgers.recover(made.ledger_id)
            assert found.last == 4
            with pytest.raises((OutcomeUnknown, LedgerFenced)):
                await made.force()
            with pytest.raises(LedgerFenced):
                await made.close()
