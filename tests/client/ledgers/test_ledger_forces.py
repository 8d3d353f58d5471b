"""Forces and closes while nodes fail: the scenes hold, and with a bug planted they do not."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from swaps import swap

from cordwood.errors import Closed, LedgerFenced, OutcomeUnknown, Overloaded, Unreachable
from cordwood.layout.message_ledgers import AddReply, ForceEntries
from cordwood.ledger import LedgerState
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.ledgers.ledger_store import LedgerStore

STALLED = 100_000.0
"""A write takes ten seconds and more."""


async def the_power_goes(cluster: ClusterAtHand) -> None:
    """All nodes lose an entry that they acknowledged, and answer a force all the same: they do not
    know of it."""
    async with cluster.client() as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=2, limits=WriterLimits(defers_sync=True)
        )
        await made.append(b"forced")
        assert await made.force() == 0
        for number in cluster.numbers:
            cluster.machine(number).disk.latency_factor = STALLED
        assert await made.append(b"lost") == 1
        for number in cluster.numbers:
            cluster.kill(number)
            cluster.machine(number).disk.latency_factor = 1.0
        await cluster.start()
        with pytest.raises(Unreachable):
            await made.force()
        assert made.metadata.last == 0
        opened = await store.ledgers.open(made.ledger_id, recovery=True)
        assert [each.payload async for each in opened] == [b"forced"]


def test_nodes_that_lost_what_they_acknowledged_do_not_confirm_it() -> None:
    simulate(the_power_goes)


def test_with_its_bug_planted_the_scene_does_not_hold() -> None:
    with planted(find_bug("ledger-force-of-another-run")), pytest.raises(pytest.fail.Exception):
        simulate(the_power_goes)


async def a_force_is_overtaken(cluster: ClusterAtHand) -> None:
    """A busy node lets the first force wait, and answers the second one. Then the writer closes."""
    right = LedgerStore.force
    busy = [True]

    async def force(self: LedgerStore, call: ForceEntries) -> AddReply:
        if busy:
            busy.clear()
            raise Overloaded("this node has too much to do")
        return await right(self, call)

    async with cluster.client() as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=2, limits=WriterLimits(defers_sync=True)
        )
        await made.append(b"one")
        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerStore.force, force)
            first = asyncio.ensure_future(made.force())
            await until(lambda: not busy)
            assert await made.append(b"two") == 1
            await made.close()
            assert await first == 0
        assert made.metadata.last == 1


def test_a_force_that_a_close_overtakes_is_done() -> None:
    simulate(a_force_is_overtaken)


def test_a_force_that_waits_for_its_own_answers_is_caught() -> None:
    with planted(find_bug("ledger-force-overtaken")), pytest.raises(Closed):
        simulate(a_force_is_overtaken)


async def a_node_fails_between_an_ack_and_the_close(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=2, limits=WriterLimits(defers_sync=True)
        )
        await made.append(b"forced")
        assert await made.force() == 0
        assert await made.append(b"acknowledged") == 1
        cluster.kill(made.metadata.newest.nodes[2])
        with pytest.raises(Unreachable, match="before this entry was acknowledged"):
            await made.append(b"refused")
        for _ in range(2):
            with pytest.raises(Unreachable, match="closed after entry 0"):
                await made.close()
        opened = await store.ledgers.open(made.ledger_id)
        assert [each.payload async for each in opened] == [b"forced"]


def test_a_close_tells_that_unforced_entries_are_not_in_the_ledger() -> None:
    """The writer had closed the ledger by itself, and `close` returned as if it had forced."""
    simulate(a_node_fails_between_an_ack_and_the_close)


async def a_node_refuses_the_writer(cluster: ClusterAtHand) -> None:
    """The metadata store is an older copy, which allots the same id again."""
    values = cluster.metadata.data.values
    async with cluster.client() as store, cluster.client() as other:
        older = dict(values)
        first = await store.ledgers.create(ensemble=3, write=3, ack=3)
        await first.append(b"one")
        values.clear()
        values.update(older)
        second = await other.ledgers.create(
            ensemble=3, write=3, ack=3, password=b"another", ledger=first.ledger_id
        )
        with pytest.raises(OutcomeUnknown, match="denied"):
            await second.append(b"two")
        with pytest.raises(LedgerFenced, match="did not close it"):
            await second.close()
        assert (await other.ledgers.metadata(second.ledger_id)).state is LedgerState.OPEN


def test_a_close_tells_that_it_did_not_close() -> None:
    simulate(a_node_refuses_the_writer)
