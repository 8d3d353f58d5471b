"""What is nothing of ours speaks to a node: it goes on, and so does everybody else."""

from __future__ import annotations

from cordwood.sim.fault_plan import Fault
from cordwood.sim.options import RunOptions
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import run_seed
from cordwood.sim.workload import WorkloadOptions


def test_it_is_cut_off_again_and_again_and_nobody_else_is():
    plan = (Fault("stranger", (1, 2, 3, 4, 5), 1.0, 5.0),)
    workload = WorkloadOptions(producers=1, readers=1, lanes=2, pause_s=0.4)
    with quiet_run():
        outcome = run_seed(
            1, RunOptions(plan=plan, workload=workload, length_s=6.0, must_count=False)
        )
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.probes["frame-refused"] > 10
    assert not outcome.probes["append-lost"]
    assert not outcome.probes["append-unknown"]
