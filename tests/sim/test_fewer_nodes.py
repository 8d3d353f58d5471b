"""Nodesets that change under crashes: what was acknowledged on the nodes of then is found."""

from __future__ import annotations

import contextlib

import pytest

from cordwood.errors import CordwoodError
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import Replication
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.planted import planted
from cordwood.sim.planted.write_path import NEWEST_NODESET
from cordwood.testing.scenario import BrokenPromise, ScenarioRun

SEED = 2
"""Which node crashes when is drawn: 23 of the seeds 1 to 24 show the bug, the first does not."""

OPTIONS = ClusterOptions(nodes=5, racks=1, replication=Replication(2, 1))


async def shrink_and_crash(cluster) -> None:
    """An acknowledgement, a smaller nodeset for what comes next, and the end of the only
    node that knows what was acknowledged, all in one moment."""
    store = await cluster.connect()
    for number in range(12):
        log = f"log-{number}"
        await store.create_log(log)
        await store.log(log)
        await store.append(log, b"first")
        await store.log_tree.set_attributes(log, LogAttributes(nodeset_size=2))
        with contextlib.suppress(CordwoodError):
            await store.append(log, b"second")
        for node in cluster.sequencers():
            cluster.crash(node)
        with contextlib.suppress(CordwoodError):
            await store.append(log, b"third")
        for node in cluster.nodes:
            if node not in cluster.running:
                cluster.restart(node)


def test_recovery_asks_the_nodes_of_then():
    ScenarioRun(shrink_and_crash, options=OPTIONS, seed=SEED).run()


def test_one_that_asks_the_nodes_of_today_is_caught():
    with planted(NEWEST_NODESET), pytest.raises(BrokenPromise):
        ScenarioRun(shrink_and_crash, options=OPTIONS, seed=SEED).run()
