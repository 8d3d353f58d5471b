"""A sequencer that dies with its switch: of what it sent, some came and some did not.

What an epoch loses in its middle, and recovery plugs with a hole, is a run that no node heard
took while a later one was stored. That takes two runs in flight to different nodes, and a death
before the first goes out again: some ten milliseconds that no death drawn by the clock meets (none
in 60 seeds of 1,102 epochs). So the power goes when that is so, as it might any time.

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
"""Between two looks at what is in flight: less than a store takes."""

IDLE_LOOK_S = 0.004
"""The same where nothing is: as long as a client's next append takes to come here."""

DIES_S = (0.3, 2.0)
"""After this it dies whatever is in flight; longer than most stores may take, so that later
waves are met too."""

ALL_BUT_ONE = 0.6
"""Share of the faults in which it reaches one node only: a run on all the others is likely then,
where logs have few copies and clusters few nodes."""


def torn_sequencer(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """The first of `nodes` is not heard by some others any more, and then loses its power."""
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
    """Whether some node has confirmed a run while one before it can have come to none but `deaf`
    ones and the victim."""
    lost = {victim, *deaf}
    is_missing = False
    for run in runs:
        confirmed = {*run.copyset, *run.holders} - run.waiting
        if is_missing and confirmed - lost:
            return True
        is_missing = is_missing or not (run.wave == 0 or {*run.copyset, *run.holders} - lost)
    return False
