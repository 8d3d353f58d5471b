"""Bounds that a ledger meets: of its metadata, and of calls that wait."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.admin import ledger_autorecovery
from cordwood.client.ledgers import ledgers
from cordwood.errors import (
    BadSetting,
    Closed,
    LedgerFenced,
    OutcomeUnknown,
    Overloaded,
    Undecided,
    Unreachable,
)
from cordwood.layout.ledger_metadata import CREATED_BYTES_MAX, METADATA_BYTES_MAX, pack_ledger
from cordwood.layout.message_ledgers import LedgerReply, SetLedger
from cordwood.ledger import (
    CUSTOM_BYTES_MAX,
    ENSEMBLE_MAX,
    ENTRY_MAX,
    FRAGMENTS_LEFT,
    LEDGER_MAX,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Striping,
    fragments_max,
)
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol import ledger_writer
from cordwood.protocol.ledger_autorecovery import Mark
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.settings import MIB, ClientSettings
from cordwood.sim.links import LinkSettings
from cordwood.sim.planted import find_bug, planted

FILL = {f"part {number}": bytes(62_000) for number in range(16)}


def custom(size: int) -> dict[str, bytes]:
    """So many bytes of custom values, all in all."""
    whole = {f"part {at}": bytes(CUSTOM_BYTES_MAX) for at in range(size // CUSTOM_BYTES_MAX)}
    return {**whole, "rest": bytes(size % CUSTOM_BYTES_MAX)}


class TestMetadata:
    @pytest.mark.parametrize("ensemble", [1, 3, 4, 20, ENSEMBLE_MAX])
    def test_the_largest_ledger_of_a_writer_can_be_ended_by_a_recovery(self, ensemble: int) -> None:
        striping = Striping(ensemble, 1, 1)
        nodes = tuple(range(2**32 - ensemble, 2**32))
        left = FRAGMENTS_LEFT if ensemble <= 20 else 70
        count = fragments_max(striping) + left
        fragments = (Fragment(0, nodes), *(Fragment(2**62 + at, nodes) for at in range(count - 1)))
        made = LedgerMetadata(LEDGER_MAX, striping, fragments[:1], custom=custom(498_000))
        assert len(pack_ledger(made, CREATED_BYTES_MAX)) > CREATED_BYTES_MAX - 3000
        found = LedgerMetadata(
            LEDGER_MAX, striping, fragments, LedgerState.CLOSED, ENTRY_MAX, ENTRY_MAX,
            custom=custom(498_000),
        )  # fmt: skip
        assert len(pack_ledger(found)) <= METADATA_BYTES_MAX

    @as_scenario(simulate)
    async def test_a_ledger_of_the_largest_custom_values_is_closed_and_recovered(
        self, cluster: ClusterAtHand
    ) -> None:
        """With a value of all that the store takes it could be neither, nor fenced, ever."""
        async with cluster.client(timeout_s=5) as store:
            with pytest.raises(BadSetting, match="500000 can be"):
                await store.ledgers.create(custom=FILL)
            for ends_it in (True, False):
                made = await store.ledgers.create(custom=custom(498_000))
                assert await made.append(b"an entry") == 0
                if ends_it:
                    await made.close()
                assert (await store.ledgers.recover(made.ledger_id)).last == 0

    @as_scenario(simulate)
    async def test_a_node_refuses_to_make_one_that_leaves_no_room(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: ledgers.CREATED_BYTES_MAX, METADATA_BYTES_MAX)
        async with cluster.client(timeout_s=5) as store:
            with pytest.raises(BadSetting, match="500000 can be"):
                await store.ledgers.create(custom=FILL)


class TestSmallWals:
    """Nodes whose WALs take less at once than a client sends in one call, a MiB."""

    @pytest.mark.slow
    @as_scenario(simulate, nodes=4, wal_bytes=MIB)
    async def test_ledgers_are_written_recovered_and_repaired(self, cluster: ClusterAtHand) -> None:
        """A writer waited for such nodes until its timeout, or was told that it was denied."""
        values = [b"%d " % number + bytes(1000) for number in range(2000)]
        async with cluster.client(timeout_s=20) as store:
            closed, left = [await store.ledgers.create(ensemble=3, write=3, ack=3) for _ in "ab"]
            for made in (closed, left):
                assert await made.append_many(values) == list(range(2000))
            await closed.close()
            left.abandon()
            lost = closed.metadata.newest.nodes[0]
            cluster.kill(lost)
            assert (await store.ledgers.recover(left.ledger_id)).last == 1999
            moved = await store.ledgers.repair(closed.ledger_id, nodes=[lost])
            assert moved.keys() == {lost}
            for made in (closed, left):
                opened = await store.ledgers.open(made.ledger_id)
                assert [each.payload for each in await opened.read(0, 1999)] == values
                assert (await store.ledgers.check(made.ledger_id)).is_whole

    @as_scenario(simulate, nodes=4, wal_bytes=MIB)
    async def test_an_entry_that_no_wal_takes_ends_its_ledger_and_is_not_stored(
        self, cluster: ClusterAtHand
    ) -> None:
        """It was told as unknown, and its ledger was left to a recovery."""
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=2)
            assert await made.append(b"small") == 0
            with pytest.raises(Closed, match="larger than a node's WAL takes"):
                await made.append(bytes(MIB // 2))
            found = await store.ledgers.metadata(made.ledger_id)
            assert (found.state, found.last) == (LedgerState.CLOSED, 0)


async def large_entries_wait_for_a_flush(cluster: ClusterAtHand) -> None:
    """Less than half of the WAL was in use, so no flush began, and the next entry had no room: it
    was refused for a minute, the ledger went from node to node, and its close failed."""
    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        async with asyncio.timeout(5):
            assert await made.append_many([bytes(MIB * 45 // 100)] * 3) == [0, 1, 2]
            await made.close()
        assert len(made.metadata.fragments) == 1


def test_large_entries_have_their_turn_after_a_flush() -> None:
    simulate(large_entries_wait_for_a_flush, nodes=4, wal_bytes=MIB)


def test_without_a_flush_for_them_large_entries_wait() -> None:
    with planted(find_bug("ledger-full-asks-no-flush")), pytest.raises(TimeoutError):
        simulate(large_entries_wait_for_a_flush, nodes=4, wal_bytes=MIB)


async def a_writer_has_no_room_for_a_fragment(cluster: ClusterAtHand) -> None:
    """It asked the metadata store to take it, again and again, and could not be closed."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        await made.append(b"kept")
        cluster.kill(made.metadata.newest.nodes[0])
        with pytest.raises(Unreachable, match="too many changes"):
            await made.append(b"refused")
        found = await store.ledgers.metadata(made.ledger_id)
        assert (found.state, found.last) == (LedgerState.CLOSED, 0)


def test_a_writer_without_room_for_a_fragment_closes_its_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap_value(monkeypatch, lambda: ledger_writer.fragments_max, lambda striping: 1)
    simulate(a_writer_has_no_room_for_a_fragment, nodes=4)
    with planted(find_bug("ledger-fragments-unbounded")), pytest.raises(pytest.fail.Exception):
        simulate(a_writer_has_no_room_for_a_fragment, nodes=4)


SLOW = LinkSettings(delay_min_s=0.02)
"""256 entries in a tenth of a second or so."""


async def left_unforced(cluster: ClusterAtHand, count: int = 8000) -> int:
    """A ledger whose writer died before its first force; its number."""
    async with cluster.client() as store:
        limits = WriterLimits(defers_sync=True)
        made = await store.ledgers.create(ensemble=3, write=3, ack=2, limits=limits)
        for _ in range(count // 1000):
            await made.append_many([b"entry"] * 1000)
        made.abandon()
    return made.ledger_id


async def a_recovery_takes_longer_than_a_call(cluster: ClusterAtHand) -> None:
    """Each attempt began again at the LAC, and was cut short by the client's timeout: the ledger
    was in recovery for ever, and all its nodes were said to be down."""
    ledger = await left_unforced(cluster)
    cluster.simulation.network.links.default = SLOW
    async with cluster.client(timeout_s=1) as store:
        began = asyncio.get_running_loop().time()
        assert (await store.ledgers.recover(ledger)).last == 7999
        assert asyncio.get_running_loop().time() - began > 2


@pytest.mark.slow
def test_a_recovery_goes_on_while_it_comes_further() -> None:
    simulate(a_recovery_takes_longer_than_a_call)


def test_a_recovery_with_one_deadline_never_ends_a_long_ledger() -> None:
    with planted(find_bug("ledger-recovery-begins-again")), pytest.raises(Undecided):
        simulate(a_recovery_takes_longer_than_a_call)


@as_scenario(simulate)
async def test_a_recovery_that_comes_no_further_is_given_up(cluster: ClusterAtHand) -> None:
    """Also where each attempt comes as far as the one before."""
    ledger = await left_unforced(cluster)
    cluster.simulation.network.links.default = SLOW
    reached: list[int] = []

    def on_progress(last: int) -> None:
        reached.append(last)
        if len(reached) == 3:
            cluster.machine(2).pause()
            cluster.machine(3).pause()

    loop = asyncio.get_running_loop()
    async with cluster.client(timeout_s=4) as store:
        began = loop.time()
        with pytest.raises(Undecided, match="start those that are down"):
            await store.ledgers.recover(ledger, on_progress=on_progress)
        assert loop.time() - began < 12
        assert reached == sorted({*reached})
        assert reached[-1] < 7999


@as_scenario(simulate, nodes=4)
async def test_auto_recovery_ends_a_long_ledger(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: ledger_autorecovery.REPAIR_S, 1.0)
    swap_value(monkeypatch, lambda: ledger_autorecovery.CLIENT, ClientSettings(timeout_s=1.0))
    ledger = await left_unforced(cluster)
    cluster.simulation.network.links.default = SLOW
    node = cluster.running[NodeId(1)]
    async with cluster.client() as store:
        metadata = await store.ledgers.metadata(ledger)
        mark = Mark(ledger, metadata.newest.nodes[:1], 0, 0)
        await LedgerMarks(cluster.metadata).add(mark)
        await node._ledgers._autorecovery._work()
        assert (await store.ledgers.metadata(ledger)).last == 7999


@as_scenario(simulate)
async def test_a_fence_ends_if_the_metadata_store_takes_no_change(cluster: ClusterAtHand) -> None:
    """The store's disk was full: it answered reads, and a fence went on for ever."""

    async def is_full(self: LedgerMetadataStore, call: SetLedger) -> LedgerReply:
        raise Overloaded("the disk is full, or the file is at its limit")

    async with cluster.client(timeout_s=2) as store:
        made = await store.ledgers.create()
        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataStore._set, is_full)
            async with asyncio.timeout(10):
                with pytest.raises(Overloaded, match="no node is fenced"):
                    await store.ledgers.fence(made.ledger_id)
        assert await made.append(b"one") == 0
        assert all((await store.ledgers.fence(made.ledger_id)).values())
        with pytest.raises((LedgerFenced, OutcomeUnknown)):
            await made.append(b"two")


def test_progress_in_the_tick_of_the_deadline_is_no_error() -> None:
    async def work() -> None:
        async with asyncio.timeout(0) as patience:
            try:
                await asyncio.sleep(1)
            finally:
                ledger_autorecovery._extend(patience)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


@as_scenario(simulate, nodes=3)
async def test_a_recovery_that_lacks_a_spare_node_says_so(cluster: ClusterAtHand) -> None:
    """With Qw = Qa each entry needs all nodes of its write set, or another one in the place."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many([b"one", b"two", b"three"])
        made.abandon()
        cluster.kill(made.metadata.newest.nodes[1])
        with pytest.raises(Undecided, match="start a spare node"):
            await store.ledgers.recover(made.ledger_id)
        cluster.add_nodes(1)
        await cluster.start(4)
        assert (await store.ledgers.recover(made.ledger_id)).last == 2
