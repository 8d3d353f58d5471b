"""A force after all nodes lost power: the scene holds, and with its bug planted it does not."""

from __future__ import annotations

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.errors import Unreachable
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.sim.planted import find_bug, planted

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
