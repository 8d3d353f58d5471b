"""What rotted in a node's WAL is unknown there: a reader waits for who has it, and says nothing."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until

from cordwood.block import Gap, Record
from cordwood.lsn import make_lsn
from cordwood.sim.damage import damage_wal
from cordwood.sim.planted import find_bug, planted

LOG = 1
RECORDS = 30


async def rot_of_one_copy(cluster: ClusterAtHand, *, is_flushed: bool = False) -> None:
    """Of two copies one has rotted in a WAL, and the other's node is away for a while.

    Args:
        is_flushed: the node trims its WAL behind a flush and restarts before it is asked.
    """
    async with cluster.client() as store:
        for number in range(RECORDS):
            await store.append("log", b"%d" % number)
        first, other = (n for n in cluster.numbers if cluster.held(n, LOG))
        cluster.kill(first)
        assert damage_wal(cluster.machine(first).disk, random.Random(1))
        cluster.kill(other)
        await cluster.start(first)
        if is_flushed:
            # What it has read back is flushed by its age, and the WAL trimmed behind that.
            wal = cluster.running[first].engine.wal
            await until(lambda: wal.trim_offset >= 0 and not wal.used_bytes, timeout_s=300)
            cluster.kill(first)
            await cluster.start(first)
            found = cluster.running[first].engine.wal.recovery
            assert found is not None
            assert not found.damage
        stream = await store.read("log", until=make_lsn(1, RECORDS))
        items: list[Record | Gap] = []

        async def read_on(for_s: float) -> None:
            async with asyncio.timeout(for_s):
                while more := await stream.next_items():
                    items.extend(more)

        with pytest.raises(TimeoutError):
            await read_on(30)
        assert not [each for each in items if isinstance(each, Gap)]
        await cluster.start(other)
        await read_on(60)
        assert [int(each.value) for each in items if isinstance(each, Record)] == [*range(RECORDS)]


def test_a_reader_waits_for_the_node_that_has_it() -> None:
    simulate(rot_of_one_copy, nodes=4, copies=2)


def test_a_reader_waits_for_it_when_the_wal_shows_nothing_any_more() -> None:
    simulate(partial(rot_of_one_copy, is_flushed=True), nodes=4, copies=2)


def test_a_node_that_forgets_it_is_caught() -> None:
    with (
        planted(find_bug("damage-forgotten")),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        simulate(partial(rot_of_one_copy, is_flushed=True), nodes=4, copies=2)


def test_a_node_that_takes_it_for_absent_is_caught() -> None:
    with (
        planted(find_bug("damage-is-silence")),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        simulate(rot_of_one_copy, nodes=4, copies=2)
