"""An error in Cordwood itself, as a log is taken over: it is told loudly, and the log goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster_at_hand import simulate
from scenarios import as_scenario

from cordwood.client.append.producer import Producer
from cordwood.sequencer.activation import Activation
from cordwood.sim.planted.bug import PlantedBug, at, planted


@contextmanager
def failing_once(step) -> Iterator[None]:
    """The first call of `step`, on whichever node, ends as only a mistake in the code can end."""
    calls = 0

    async def wrong(right, *args):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise TypeError("a mistake")
        return await right(*args)

    with planted(PlantedBug("mistake", "a mistake in the code", at(step).around(wrong))):
        yield


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Activation.recover, "log 1: the epochs below 2 are not recovered"),
        (Activation.activate, "log 1: not sequenced here"),
    ],
)
@as_scenario(simulate)
async def test_it_is_reported_with_the_log_and_tried_again_after_a_pause(
    cluster, *, step, text: str
) -> None:
    """The error ended the node, then the next node that took the log, and so on."""
    async with cluster.client(timeout_s=30) as store:
        producer = Producer(7)
        await store.append("log", b"0", producer=producer)
        with failing_once(step):
            node = cluster.sequencer_of(1)
            cluster.kill(node)
            await cluster.start(node)
            await store.append("log", b"1", producer=producer)
            reader = await store.read("log")
            async with asyncio.timeout(30):
                assert [await anext(reader) for _ in range(3)][2].value == b"1"
        assert len(cluster.running) == 3, "no node ended by it"
    unhandled = cluster.simulation.loop.unhandled
    [told] = [each for each in unhandled if isinstance(each["exception"], TypeError)]
    assert told["message"] == f"{text}, by an error in Cordwood itself"
    unhandled.remove(told)
