"""How much faster than real time the simulator runs six nodes and three clients, with faults.

The cost of a seed depends on its calls (an append costs about as much as a quarter of a second of
idling). So the workload is fixed here: bursts, and enough of them that every seed counts. Times are
times of the core and not of the clock, because other programs may use the core as well. Their
effect on its caches shows in the reference, which is plain work measured between the seeds.

Not asynchronous: a simulation brings its own loop.

Source: docs/design.md §10; docs/sources/reliability.md §4 ("budget arithmetic").
"""

from __future__ import annotations

import time

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.errors import BadSetting
from cordwood.nodes import Replication
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.fault_plan import CLIENT_KINDS, KINDS, FaultOptions
from cordwood.sim.options import RunOptions
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.workload import WorkloadOptions

FIRST_SEED = 1
"""The same seeds every time, so that two measurements did the same work."""

NODES = 6
PRODUCERS = 2
READERS = 1

CALLS_PER_S = 4.0
"""The workload of both producers: over a minute a good thousand records, which a run must
acknowledge to count, in bursts of up to twenty."""

LANES = 2

REFERENCE_CALLS = 100_000
"""Plain calls that the reference makes for a simulated second."""


def figure_options(minutes: float) -> RunOptions:
    """Six nodes in three racks, three copies over two; two producers and a reader."""
    return RunOptions(
        length_s=60 * minutes,
        cluster=ClusterOptions(nodes=NODES, racks=3, replication=Replication(3, 2)),
        workload=WorkloadOptions(
            producers=PRODUCERS,
            readers=READERS,
            lanes=LANES,
            pause_s=PRODUCERS * LANES / CALLS_PER_S,
            ask_s=0.0,
        ),
        faults=FaultOptions(kinds=(*KINDS, *CLIENT_KINDS)),
    )


def bench_sim(*, minutes: float, repeats: int, say: Say) -> Figure:
    """Run a seed for each repeat. The checkers' time is not counted.

    Args:
        minutes: simulated minutes with faults, of each seed; settling comes after.
    Raises:
        BadSetting: no time to simulate.
    """
    if minutes <= 0:
        raise BadSetting(f"{minutes} minutes; some time must pass")
    samples: list[Sample] = []
    outcomes: list[Outcome] = []
    with quiet_run():
        for seed in range(FIRST_SEED, FIRST_SEED + repeats):
            before_s = _plain_calls_s()
            outcome = run_seed(seed, figure_options(minutes))
            plain_s = (before_s + _plain_calls_s()) / 2
            samples.append(Sample(outcome.simulated_s / outcome.cpu_s, 1 / plain_s))
            outcomes.append(outcome)
            say(f"simulation: seed {seed}, {_words(outcome)}")
    return make_figure(
        "simulated_seconds", "s/s", samples,
        reference_is=f"a simulated second for every {REFERENCE_CALLS:,} plain Python calls",
        parameters={
            "minutes": minutes, "first_seed": FIRST_SEED, "nodes": NODES,
            "clients": PRODUCERS + READERS, "calls_per_s": CALLS_PER_S,
            "acked_records": sum(outcome.acked for outcome in outcomes),
            "faults": sum(sum(outcome.faults.values()) for outcome in outcomes),
            "seeds_that_count": sum(not outcome.invalid for outcome in outcomes),
            "seeds_with_broken_promises": sum(bool(outcome.violations) for outcome in outcomes),
        },
    )  # fmt: skip


def _words(outcome: Outcome) -> str:
    return (
        f"{outcome.simulated_s:.0f} s in {outcome.cpu_s:.1f} s of a core, {outcome.acked} records, "
        f"{sum(outcome.faults.values())} faults"
    )


def _plain_calls_s() -> float:
    """Seconds of a core that the reference's calls take now."""
    started_s = time.process_time()
    for _ in range(REFERENCE_CALLS):
        _plain()
    return time.process_time() - started_s


def _plain() -> None:
    """Do nothing: only the call is measured."""
