"""Writers that end before their records are stored: they leave nothing behind in their client."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, others, simulate, values
from scenarios import as_scenario

from cordwood.client.append.buffered_writer import WriteMode, WriterOptions
from cordwood.errors import Closed, OutcomeUnknown, Overloaded
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import Lsn
from cordwood.sim.planted import find_bug, planted

STREAM = WriterOptions(mode=WriteMode.STREAM, size_trigger_bytes=1000, compression="none")


async def streams_end_while_their_log_takes_no_appends(cluster: ClusterAtHand) -> None:
    """Their blocks had no deadline, and filled the client's window for as long as their log took no
    appends: appends to all other logs of the client were refused."""
    async with cluster.client(timeout_s=2, window_bytes=10_000, block_bytes=10_000) as store:
        one_copy = LogAttributes(replicate_across={"node": 1})
        up = await store.create_log("up", attributes=one_copy)
        await store.append("up", b"before")
        await store.append("down", b"before")
        away = next(n for n in others(cluster, up.log_id) if n != cluster.sequencer_of(2))
        cluster.kill(away)
        await asyncio.sleep(10)
        told = []
        for _ in range(4):
            async with store.buffered_writer(STREAM) as writer:
                told += [writer.append_nowait("down", bytes(900)) for _ in range(4)]
        for each in told:
            with pytest.raises((Closed, OutcomeUnknown)):
                await each
        assert await store.append("up", b"after")
        await cluster.start(away)
        assert await values(store, "up") == [b"before", b"after"]


def test_a_stream_that_was_closed_gives_its_room_back() -> None:
    simulate(streams_end_while_their_log_takes_no_appends)


def test_the_scene_catches_blocks_that_stay() -> None:
    with planted(find_bug("ended-stream-stays")), pytest.raises(Overloaded):
        simulate(streams_end_while_their_log_takes_no_appends)


@as_scenario(simulate)
async def test_a_writer_whose_close_was_cancelled_ends(cluster: ClusterAtHand) -> None:
    """It went on for as long as its client lived, and nobody could close it any more."""
    async with cluster.client() as store:
        await store.append("log", b"before")
        for number in cluster.numbers:
            cluster.machine(number).pause()

        async def write() -> None:
            async with store.buffered_writer(STREAM) as writer:
                told.append(writer.append_nowait("log", b"in flight"))

        told: list[asyncio.Future[Lsn]] = []
        writing = asyncio.create_task(write())
        await asyncio.sleep(1.0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        with pytest.raises(OutcomeUnknown):
            await told[0]
        for number in cluster.numbers:
            cluster.machine(number).resume()
