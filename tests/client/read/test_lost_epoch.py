"""An epoch whose end was lost, its bridge included, is passed at once.

Swarm seeds 12021 and 12038: nothing was left of the four billion numbers up to the next epoch, and
a reader that was told of one window after the other moved through them for ever.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, until

from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import make_lsn
from cordwood.nodes import Authority
from cordwood.settings import StorageSettings

LOG = 1


def epochs_held(cluster: ClusterAtHand, number: int) -> set[int]:
    """Of what a node has in its cache."""
    return {first >> 32 for first, _, kind in cluster.held(number, LOG) if kind == "DATA"}


async def append_until(store: Store, done: Callable[[], object]) -> None:
    for number in itertools.count():
        if done():
            return
        await store.append("log", b"%d" % number)


@pytest.mark.parametrize("flushed", [False, True])
def test_it_is_passed_in_a_few_steps(flushed: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cordwood.sequencer.appender.STICKY_BYTES", 1)
            async with cluster.client() as store:
                await store.create_log("log", attributes=LogAttributes(nodeset_size=1))
                for number in range(5):
                    await store.append("log", b"%d" % number)
                lost = next(n for n in cluster.numbers if epochs_held(cluster, n))
                other = 3 - lost
                await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=2))
                # The next epoch begins on both, and only what the other holds will be left.
                await append_until(store, lambda: epochs_held(cluster, other))
                tail = await store.append("log", b"last")
                await asyncio.sleep(20)
                readable = cluster.running[other].engine.cache.log(LOG)
                await until(lambda: readable.readable >= tail)
            cluster.kill(lost)
            async with cluster.client() as store:
                await say_of_dead(store, lost, Authority.UNDER_REPLICATED)
                items: list[Record | Gap] = []
                async with asyncio.timeout(30):
                    stream = await store.read("log", make_lsn(1, 1), tail)
                    while more := await stream.next_items():
                        items += more
        kinds = {item.kind for item in items if isinstance(item, Gap)}
        assert GapKind.DATA_LOSS in kinds
        assert len(items) < 30
        assert sum(isinstance(item, Record) for item in items) >= 1
        assert items[-1].lsn == tail if isinstance(items[-1], Record) else items[-1].last == tail

    storage = StorageSettings(flush_age_s=1.0, recent_bytes=0) if flushed else None
    simulate(scenario, nodes=2, copies=1, storage=storage)
