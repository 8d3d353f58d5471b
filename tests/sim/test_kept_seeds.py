"""Seeds that once failed, kept as scenes of their own, each with what it taught.

A seed's swarm changes as the swarm does, so what made it fail is written down here:
the cluster, the knobs, the faults. Each of these broke a promise before its fix.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from cordwood.nodes import Replication
from cordwood.settings import ClientSettings
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.fault_plan import SEQUENCER, Fault
from cordwood.sim.options import RunOptions
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.workload import WorkloadOptions

BUSY = WorkloadOptions(producers=2, readers=1, lanes=2, pause_s=0.1)


def more_seeds(*seeds: int) -> list[ParameterSet]:
    """Seeds that a scene has in `make prove` alone."""
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


def play(*plan: Fault, seed: int = 1, **options: object) -> Outcome:
    chosen = {"workload": BUSY, "length_s": 12.0, "must_count": False, **options}
    with quiet_run():
        return run_seed(seed, RunOptions(plan=plan, **chosen))


def assert_kept(outcome: Outcome) -> None:
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.acked > 100


@pytest.mark.slow
def test_two_quick_members_do_not_keep_a_log_from_being_recovered():
    """Seed 67. Three copies over two racks of two nodes: two members are an f-majority, and
    too few to store a tail on. When the same two always answered first, and nobody waited
    for a third, the log was never recovered, with every member up."""
    outcome = play(
        Fault("crash", (SEQUENCER,), 4.0, 0.5),
        cluster=ClusterOptions(nodes=4, racks=2, replication=Replication(3, 2)),
        turns=(("recovery.ask.GRACE_S", 0),),
    )
    assert_kept(outcome)
    assert outcome.epochs > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *more_seeds(2, 3)])
def test_a_node_whose_rack_is_not_known_yet_is_no_rack_of_its_own(seed):
    """Seed 70. The sequencer had not read the member list since its neighbour registered.
    It took a node without a location for a rack of its own, and put both copies of a
    record into one rack."""
    cluster = ClusterOptions(nodes=5, racks=2, replication=Replication(2, 2), refresh_s=5.0)
    turns = (("sequencer.appender.STICKY_BYTES", 0),)
    assert_kept(play(cluster=cluster, turns=turns, seed=seed))


@pytest.mark.slow
def test_a_sequencer_that_was_replaced_unawares_tells_no_tail():
    """Seed 31. Clients that could not reach the sequencer had another one started. The old
    one heard nothing of that, and when it was reached again it told a tail below what the
    new one had acknowledged."""
    outcome = play(
        Fault("client_partition", (SEQUENCER,), 4.0, 9.0),
        workload=replace(BUSY, ask_s=0.2),
        length_s=16.0,
        turns=(("wire.peers.PING_EVERY_S", 0),),
    )
    assert_kept(outcome)
    assert outcome.probes["tail-answered"] > 20
    assert outcome.epochs > 1


@pytest.mark.slow
def test_a_call_that_waits_for_room_keeps_its_deadline():
    """Seed 26. A call waited most of its deadline for room in the client's window, and its
    block was then given a deadline of its own: it ended after twice the time."""
    outcome = play(
        Fault("pause", (1, 2, 3, 4, 5), 4.0, 7.0),
        workload=replace(
            BUSY, lanes=6, append_timeout_s=3.0, client=ClientSettings(window_records=8)
        ),
    )
    assert_kept(outcome)
    assert outcome.probes["append-unknown"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *more_seeds(2)])
def test_blocks_of_one_call_do_not_pass_one_another(seed):
    """Seed 10. Of a call's blocks a starting sequencer took the small ones and refused the
    large ones, which came again and were numbered after those that they were before."""
    workload = replace(BUSY, burst=40, client=ClientSettings(block_records=3))
    plan = [Fault("crash", (SEQUENCER,), 2.0 + 2 * turn, 0.2) for turn in range(4)]
    turns = (("sequencer.role.ACTIVATING_BYTES_MAX", 0),)
    assert_kept(play(*plan, workload=workload, turns=turns, seed=seed))


@pytest.mark.parametrize("seed", [2, *more_seeds(3)])
def test_a_log_that_goes_home_leaves_no_append_unknown(seed):
    """Seeds 685867048, 685867094, 685867103, 685867148 and 685867150. A log's own node was
    back, and a question for the tail started a sequencer there, with nothing wrong. The one
    elsewhere was sealed without a word, and its next append ended as an unknown outcome."""
    workload = replace(BUSY, producers=1, burst=2, pause_s=0.1, ask_s=8.0)
    outcome = play(
        Fault("crash", (SEQUENCER,), 3.0, 1.0), workload=workload, seed=seed, length_s=4.1
    )
    assert_kept(outcome)
    assert outcome.epochs == 3


def test_a_producers_calls_do_not_pass_one_that_waits_for_room():
    """Seed 900005. A call of several blocks waited for room between them, and the next call of
    the same producer put its own block there: the records stood in another order."""
    client = ClientSettings(window_records=16, block_records=5)
    workload = replace(BUSY, producers=1, pause_s=0.4, idempotent=1.0, burst=40, client=client)
    assert_kept(play(workload=workload, length_s=4.0))


@pytest.mark.slow
def test_a_call_whose_first_block_is_unknown_is_not_told_as_refused():
    """Seed 920017. A producer's call had a block in flight and waited for room for the next.
    The first one ended as unknown, so that the second was refused, and with that error the
    whole call: nothing was stored, it said, and then the first block was."""
    client = ClientSettings(window_records=4, block_records=3)
    workload = replace(
        BUSY, producers=1, lanes=6, pause_s=0.2, idempotent=1.0, burst=40, append_timeout_s=3.0,
        client=client,
    )  # fmt: skip
    pauses = [Fault("pause", (1, 2, 3, 4, 5), 3.0, 4.0), Fault("pause", (1, 2, 3, 4, 5), 8.0, 3.5)]
    assert_kept(play(*pauses, workload=workload))
