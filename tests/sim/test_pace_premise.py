"""That appends beside a hampered node are judged only where they can go on: once somebody has
stored on a slow one, and with no more nodes out than the copies survive."""

import asyncio
from types import SimpleNamespace

import pytest
from swaps import swap_value

from cordwood.nodes import NodeId, Replication
from cordwood.protocol.append_window import AppendWindow
from cordwood.sim import aftermath
from cordwood.sim.cluster import SimCluster
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.host import Simulation
from cordwood.sim.swarm import swarm_options


def test_with_one_copy_nobody_is_hampered():
    """Seed 19001430. An epoch came to its last esn while a node was stopped, and the next one
    could not be sealed without it, as must be."""
    drawn = [swarm_options(seed) for seed in (19001430, *range(400))]
    copies = {each.cluster.replication.copies for each in drawn if each.paced}
    assert 1 in {each.cluster.replication.copies for each in drawn}
    assert min(copies) == 2


def window(*copysets: tuple[int, ...]) -> AppendWindow[None]:
    made: AppendWindow[None] = AppendWindow(1)
    for copyset in copysets:
        run = made.number(1, None)
        run.send_to(copyset, 0.0)
    return made


def is_stored(*copysets: tuple[int, ...]) -> bool:
    cluster = SimpleNamespace(numbers=(1, 2), windows=lambda number: [window(*copysets)])
    return asyncio.run(aftermath.is_stored_on(cluster, 3))


def test_a_slow_node_that_no_copyset_has_is_noticed_by_nobody(monkeypatch: pytest.MonkeyPatch):
    """Seed 1000325. Copysets stick, so nothing came to the slow node in the ten seconds that
    the others had to notice it; the first stores there, within the measured stretch, were late."""
    swap_value(monkeypatch, lambda: aftermath.TRIED_S, 0.1)
    assert not is_stored((1, 2), (1, 4))
    assert is_stored((1, 2), (1, 3))


@pytest.mark.parametrize(
    ("damaged", "copies", "may_be"),
    [((), 2, (1, 2, 3, 4)), ((4,), 2, (4,)), ((4,), 3, (1, 2, 3, 4)), ((1, 4), 3, (1, 4))],
)
def test_beside_nodes_that_lost_records_no_other_is_hampered_where_that_is_one_too_many(
    damaged, copies: int, may_be
):
    """Seed 1390029638. Two copies, one node that had lost its WAL, another stopped: the epoch
    that was under way could not be recovered, the next came to its last esn, and appends
    waited for the stopped one, as they must."""
    running = {
        n: SimpleNamespace(engine=SimpleNamespace(damage="lost" if n in damaged else ""))
        for n in (1, 2, 3, 4)
    }
    options = SimpleNamespace(replication=Replication(copies))
    cluster = SimpleNamespace(spared=lambda: (1, 2, 3, 4), running=running, options=options)
    assert tuple(aftermath.may_be_hampered(cluster)) == may_be


def test_the_only_node_of_a_region_that_each_record_needs_is_not_hampered():
    """Seed 66000653. Two copies in two regions, and node 2 alone in one of them: each append
    waited for its slow disk, as it must."""
    options = swarm_options(66000653).cluster
    assert options.location(NodeId(2)).startswith("region2.")
    assert [n for n in (1, 3, 4) if options.location(NodeId(n)).startswith("region2.")] == []
    simulation = Simulation(1)
    cluster = SimCluster(simulation, options, HistoryRecorder(lambda: 0))
    assert tuple(aftermath.may_be_hampered(cluster)) == (1, 3, 4)
