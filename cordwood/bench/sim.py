"""How much faster than time the simulator runs the demo's cluster, with its faults.

Not asynchronous: a simulation brings its own loop.

Source: design.md §10.
"""

from __future__ import annotations

import dataclasses

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.errors import BadSetting
from cordwood.sim.run import demo_options, run_seed

FIRST_SEED = 1
"""The same seeds every time, so that two measurements did the same work."""


def bench_sim(*, minutes: float, repeats: int, say: Say) -> Figure:
    """Run a seed for each repeat; the checkers' own time is not counted.

    Args:
        minutes: simulated minutes with faults, of each seed; settling comes after.
    Raises:
        BadSetting: no time to simulate.
    """
    if minutes <= 0:
        raise BadSetting(f"{minutes} minutes; some time must pass")
    samples: list[Sample] = []
    acked = broken = 0
    for seed in range(FIRST_SEED, FIRST_SEED + repeats):
        outcome = run_seed(seed, dataclasses.replace(demo_options(seed), length_s=60 * minutes))
        samples.append(Sample(outcome.simulated_s / outcome.real_s, 1.0))
        acked += outcome.acked
        broken += bool(outcome.violations)
        say(f"simulation: seed {seed}, {outcome.simulated_s:.0f} s in {outcome.real_s:.1f} s")
    return make_figure(
        "simulated_seconds", "s/s", samples,
        reference_is="real time: one second a second",
        parameters={
            "minutes": minutes, "first_seed": FIRST_SEED, "acked_records": acked,
            "seeds_with_broken_promises": broken,
        },
    )  # fmt: skip
