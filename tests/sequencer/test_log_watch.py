"""A log's attributes change while its epoch ends for another reason."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values

from cordwood.errors import OutcomeUnknown
from cordwood.log_attributes import LogAttributes
from cordwood.sequencer.appender import LogAppender
from cordwood.sequencer.log_watch import DRAIN_S, LogWatch


def test_an_epoch_that_ends_while_its_attributes_are_looked_at_is_not_drained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 22001242. The next epoch was being taken already, was taken to be the one that had
    drained, and the node ended by that."""
    ended: list[int] = []
    right = LogWatch._may_have_it

    async def scenario(cluster: ClusterAtHand) -> None:
        async def look(self: LogWatch, log: int, appender: LogAppender) -> bool:
            may_have_it = await right(self, log, appender)
            if not ended:
                ended.append(appender.epoch)
                appender.drain()  # as where its numbers run out
            return may_have_it

        monkeypatch.setattr(LogWatch, "_may_have_it", look)
        async with cluster.client(timeout_s=20.0) as store:
            await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
            await store.append("log", b"1")
            await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
            await until(lambda: bool(ended))
            last = await store.append("log", b"2")
            assert (ended, last.epoch) == ([1], 2)
            assert len((await store.log("log")).history[-1].nodes) == 5
            assert await values(store, "log", until=last) == [b"1", b"2"]
        assert len(cluster.running) == 5

    simulate(scenario, nodes=5)


def test_an_epoch_that_does_not_drain_is_ended() -> None:
    """Its last run waits for a node that is stopped, and the change of attributes for the run."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=60.0) as store, cluster.client(timeout_s=60.0) as other:
            made = await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
            await store.append("log", b"1")
            sequencer = cluster.sequencer_of(made.log_id)
            stopped = next(n for n in made.history[-1].nodes if n != sequencer)
            cluster.machine(stopped).pause()
            waits = asyncio.ensure_future(store.append("log", b"2"))
            await asyncio.sleep(0.5)
            assert not waits.done()
            changed = asyncio.get_running_loop().time()
            await other.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
            with pytest.raises(OutcomeUnknown, match="epoch 1 was fenced"):
                await waits
            assert asyncio.get_running_loop().time() - changed < 4 * DRAIN_S
            cluster.machine(stopped).resume()
            last = await other.append("log", b"3")
            assert last.epoch > 1
            assert b"3" in await values(other, "log", until=last)

    simulate(scenario, nodes=6)
