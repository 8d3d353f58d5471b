"""What is nothing of ours speaks to a node: it goes on, and so do all logs and everybody else."""

from __future__ import annotations

from cordwood.sim.fault_plan import Fault
from cordwood.sim.options import RunOptions
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import run_seed
from cordwood.sim.workload import WorkloadOptions


def test_it_is_cut_off_again_and_again_and_nobody_else_is():
    plan = (Fault("stranger", (1, 2, 3, 4, 5), 1.0, 9.0),)
    workload = WorkloadOptions(producers=1, readers=1, lanes=2, pause_s=0.4)
    options = RunOptions(
        plan=plan, workload=workload, length_s=10.0, must_count=False,
        turns=(("wire.arrivals.FRAME_GRACE_S", 0),),
    )  # fmt: skip
    with quiet_run():
        outcome = run_seed(1, options)
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.probes["frame-refused"] > 10
    for probe in (
        "frame-late", "number-refused", "claim-refused", "release-asked-about",
        "call-of-nodes-refused",
    ):  # fmt: skip
        assert outcome.probes[probe], probe
    assert not outcome.probes["append-lost"]
    assert not outcome.probes["append-unknown"]
