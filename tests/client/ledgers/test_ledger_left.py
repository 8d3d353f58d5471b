"""Writers that are left without a close: they end, and cost their client nothing afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.embedded import connect_blocking
from cordwood.errors import LedgerFenced
from cordwood.ledger import LedgerState

E1 = {"ensemble": 1, "write": 1, "ack": 1}


class Boom(Exception):
    """An error of the caller's."""


@as_scenario(simulate, nodes=1)
async def test_a_block_that_ends_with_an_error_ends_its_writer(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(**E1)

        async def fail() -> None:
            async with made:
                await made.append(b"one")
                raise Boom

        with pytest.raises(Boom):
            await fail()
        assert made.is_ended
        with pytest.raises(LedgerFenced, match="given up"):
            await made.append(b"two")
        assert (await store.ledgers.metadata(made.ledger_id)).state is LedgerState.OPEN
        assert (await store.ledgers.recover(made.ledger_id)).last == 0


def test_so_does_a_block_of_a_caller_without_a_loop(tmp_path: Path) -> None:
    with connect_blocking(str(tmp_path)) as store:
        with pytest.raises(Boom), store.ledgers.create(**E1) as made:
            raise Boom
        assert made.is_closed
        with pytest.raises(LedgerFenced, match="given up"):
            made.append(b"one")
        assert store.ledgers.recover(made.ledger_id).last == -1


def test_an_error_of_the_block_comes_out_of_a_client_that_was_closed(tmp_path: Path) -> None:
    def fail() -> None:
        with connect_blocking(str(tmp_path)) as store, store.ledgers.create(**E1):
            store.close()
            raise Boom

    with pytest.raises(Boom):
        fail()


@as_scenario(simulate, nodes=1)
async def test_a_client_visits_only_writers_that_have_something_to_say(
    cluster: ClusterAtHand,
) -> None:
    """Each writer had a timer until the client closed: 3000 of them took most of its time."""
    async with cluster.client() as store:
        idle = [await store.ledgers.create(**E1) for _ in range(3)]
        assert store.ledgers._ticks.waiting == 0
        await idle[0].append(b"one")
        assert store.ledgers._ticks.waiting == 1
        await asyncio.sleep(1)
        # It told its LAC, and a reader of the quiet ledger knows.
        assert store.ledgers._ticks.waiting == 0
        opened = await store.ledgers.open(idle[0].ledger_id)
        assert await opened.read_last_add_confirmed() == 0


@as_scenario(simulate, nodes=1)
async def test_a_writer_that_its_caller_drops_is_not_kept(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made: WritableLedger | None = await store.ledgers.create(**E1)
        assert made is not None
        await made.append(b"one")
        await asyncio.sleep(1)
        kept = weakref.ref(made)
        made = None
        gc.collect()
        assert kept() is None
