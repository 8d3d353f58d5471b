"""A sequencer that dies with its switch: some of its stores arrived and some did not.

Recovery plugs a hole in the middle of an epoch if no node that it heard has a run, and a later run
is stored. For this, two runs must be in flight to different nodes, and the sequencer must die
before the first run goes out again. This takes some ten milliseconds, and no death drawn by the
clock falls into them (none in 60 seeds with 1,102 epochs). So this fault cuts the power in exactly
that interval.

Source: docs/sources/reliability.md §5.1; docs/sources/logdevice.md 2.7 (5).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from cordwood.nodes import NodeId
from cordwood.protocol.append_window import InFlightRun
from cordwood.sim.network_faults import Undo, pairs_between

if TYPE_CHECKING:
    from cordwood.sim.fault_kinds import Stage

LOOK_S = 0.001
"""Pause between two looks at the runs in flight: less than the time of a store."""

IDLE_LOOK_S = 0.004
"""The pause while nothing is in flight: about the time until a client's next append."""

DIES_S = (0.3, 2.0)
"""After this time the sequencer dies in every case. It is longer than the timeout of most stores,
so that later waves are met too."""

ALL_BUT_ONE = 0.6
"""Share of the faults in which the sequencer reaches one node only. Then a run that is stored on
unreachable nodes alone is likely, even with few copies and few nodes."""


def torn_sequencer(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Some nodes do not hear the first of `nodes` any more; then it loses its power."""
    cluster, loop, victim = stage.cluster, stage.simulation.loop, nodes[0]
    others = [node for node in cluster.numbers if node != victim]
    most = len(others) - 1
    count = most if chance.random() < ALL_BUT_ONE else chance.randint(min(1, most), max(0, most))
    deaf = set(chance.sample(others, max(0, count)))
    mend = stage.network.cut(pairs_between(stage.names([victim]), stage.names(sorted(deaf))))
    dies_at = loop.time() + chance.uniform(*DIES_S)
    is_over = False

    def look() -> None:
        if is_over:
            return
        windows = [runs for runs in cluster.windows(victim) if runs]
        if loop.time() >= dies_at or any(is_torn(runs, victim, deaf) for runs in windows):
            cluster.cut_power(victim)
        else:
            loop.call_later(LOOK_S if windows else IDLE_LOOK_S, look)

    def whole_again() -> None:
        nonlocal is_over
        is_over = True
        mend()
        if not cluster.machine(victim).is_up:
            cluster.start(victim)

    look()
    return whole_again


def is_torn(runs: Iterable[InFlightRun[object]], victim: NodeId, deaf: Collection[NodeId]) -> bool:
    """Whether some node has confirmed a run, while an earlier run can have reached only `deaf`
    nodes and the victim."""
    lost = {victim, *deaf}
    is_missing = False
    for run in runs:
        confirmed = {*run.copyset, *run.holders} - run.waiting
        if is_missing and confirmed - lost:
            return True
        is_missing = is_missing or not (run.wave == 0 or {*run.copyset, *run.holders} - lost)
    return False
