"""Appends of a new epoch while older ones are recovered: acknowledged at once, released after."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from scenarios import as_scenario

from cordwood.block import Gap
from cordwood.errors import NoSequencer
from cordwood.recovery import recover_log
from cordwood.testing.scenario import ScenarioRun


class Gate:
    """Stands in for reading an epoch's tail: holds recoveries back, or refuses them."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.error: NoSequencer | None = None
        self.right = recover_log.collect_digest

    async def __call__(self, *args, **named):
        if self.error is not None:
            raise self.error
        await self.is_open.wait()
        return await self.right(*args, **named)


def played(scenario, seed: int = 1):
    async def gated(cluster):
        gate = Gate()
        with mock.patch.object(recover_log, "collect_digest", gate):
            store = await cluster.connect()
            await store.append("orders", b"1")
            await asyncio.sleep(0.1)  # so that nodes know its release
            (old,) = cluster.sequencers()
            cluster.crash(old)
            await asyncio.sleep(0.5)
            await scenario(cluster, store, gate)
            gate.error = None
            gate.is_open.set()

    ScenarioRun(gated, seed=seed).run()


async def read_soon(store) -> list[bytes]:
    """What a reader gets within a second."""
    found: list[bytes] = []
    stream = await store.read("orders", "oldest", None)
    try:
        async with asyncio.timeout(1.0):
            async for item in stream:
                if not isinstance(item, Gap):
                    found.append(item.value)
    except TimeoutError:
        stream.close()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_they_are_acknowledged_at_once_and_seen_once_all_below_is_recovered(seed: int):
    async def scenario(cluster, store, gate):
        lsns = [await store.append("orders", b"%d" % n) for n in (2, 3)]
        assert [lsn.epoch for lsn in lsns] == [2, 2]
        assert await read_soon(store) == [b"1"]
        gate.is_open.set()
        assert await store.tail("orders") >= lsns[-1]
        assert await read_soon(store) == [b"1", b"2", b"3"]

    played(scenario, seed)


@as_scenario(played)
async def test_who_asks_for_the_tail_waits_or_is_told_why(cluster, store, gate) -> None:
    await store.append("orders", b"2")
    asking = asyncio.ensure_future(store.tail("orders"))
    await asyncio.sleep(1)
    assert not asking.done()
    gate.is_open.set()
    assert (await asking).epoch == 2


@as_scenario(played)
async def test_a_recovery_that_fails_is_tried_again_while_appends_go_on(
    cluster, store, gate
) -> None:
    gate.error = NoSequencer("too many members are absent")
    for n in range(10):
        await store.append("orders", b"%d" % n)
        await asyncio.sleep(0.2)
    gate.error = None
    gate.is_open.set()
    await asyncio.sleep(1)
    assert len(await read_soon(store)) == 11


@as_scenario(played)
async def test_a_sequencer_that_dies_while_it_recovers_leaves_what_it_acknowledged_to_the_next(
    cluster, store, gate
) -> None:
    last = await store.append("orders", b"2")
    (second,) = cluster.sequencers()
    cluster.crash(second)
    await asyncio.sleep(0.2)
    cluster.restart(*(n for n in cluster.nodes if n not in cluster.running))
    gate.is_open.set()
    assert await store.append("orders", b"3") > last
    await store.tail("orders")
    assert await read_soon(store) == [b"1", b"2", b"3"]
