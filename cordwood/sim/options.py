"""What one simulated run is made of; drawn by `sim.swarm`, or the demo's shape.

Source: docs/sources/reliability.md §4; TigerBeetle's src/vopr.zig.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.lsn import ESN_ISSUED_MAX
from cordwood.nodes import NodeId
from cordwood.settings import SequencerSettings
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.fault_plan import CLIENT_KINDS, KINDS, Fault, FaultOptions, draw_plan
from cordwood.sim.knobs import HEALING, TurnedKnobs
from cordwood.sim.links import LinkSettings
from cordwood.sim.streams import stream
from cordwood.sim.workload import WorkloadOptions

SETTLE_S = 7.0
"""How long producers go on after the healing: appends are owed within 5 s of it, so that some
seconds of such are seen. What is owed within 10 s is, in the draining and the idling behind."""

SETTLE_BURST = 100
"""Most records of a call meanwhile, as of any seed's: it is calls that are costly to simulate, and
what is owed is owed to each, be it large or small."""

FAR_S = 0.002
"""One way between cities, at least; seven milliseconds in the mean, and one segment of a hundred
takes twenty times as long."""

ABSENT_SETTLE_S = 11.0
"""The same where nodes stay away meanwhile: the others owe all of it before they come back."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one run is made of.

    Attributes:
        length_s: simulated seconds with faults; settling comes after.
        plan: the faults; None draws them from the seed.
        link: of every link, where no fault says otherwise; None for a quiet network.
        turns: knobs that are turned, see `sim.knobs`.
        buggify: whether rare behaviour is made common, see `sim.buggify`.
        fills: whether the workload may fill the WALs: then appends may end as
            OVERLOADED for good, and no success is owed.
        absent: nodes that stay away when the faults are over: the first one hangs, the
            others are dead. The rest owes everything meanwhile; they come back at the end.
        paced: whether appends are timed with all nodes well and with one hampered (L7).
        loses: nodes that are lost for good at the end, see `sim.aftermath`: "" for none.
        loses_disks: whether disks are lost for good meanwhile, see `sim.disk_losses`.
        accepts: whether an operator accepts in the end what nodes lost.
        audited: whether all nodes are scanned for their copies when all is over.
        must_count: whether the workload goes on after the healing until the run counts;
            a scenario for a test need not.
    """

    length_s: float = 40.0
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    workload: WorkloadOptions = field(default_factory=WorkloadOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    plan: tuple[Fault, ...] | None = None
    link: LinkSettings | None = None
    turns: TurnedKnobs = ()
    buggify: bool = False
    fills: bool = False
    absent: tuple[NodeId, ...] = ()
    paced: bool = False
    loses: str = ""
    loses_disks: bool = False
    accepts: bool = False
    audited: bool = False
    must_count: bool = True

    @property
    def settle_s(self) -> float:
        """How long producers go on after the healing."""
        return ABSENT_SETTLE_S if self.absent else SETTLE_S

    @property
    def heals(self) -> bool:
        """Whether nodes heal what their WALs lost within the run."""
        return not any(name == HEALING for name, _ in self.turns)

    @property
    def is_far(self) -> bool:
        """Whether its nodes stand in different cities."""
        return self.link is not None and self.link.delay_min_s >= FAR_S

    @property
    def settle_burst(self) -> int:
        """Most records of a call then. Over far links those drawn are what a call has time for."""
        burst = self.workload.burst
        return burst if self.is_far else max(burst, SETTLE_BURST)

    def drawn_plan(self, seed: int) -> tuple[Fault, ...]:
        """The faults of this seed: as given, or as drawn."""
        if self.plan is not None:
            return self.plan
        nodes = tuple(range(1, self.cluster.nodes + 1))
        return draw_plan(self.faults, nodes, self.length_s, stream(seed, "plan"))


def demo_options(seed: int) -> RunOptions:
    """The demo's cluster, with an epoch's length drawn so that some runs cross many."""
    chance = stream(seed, "options")
    esns = chance.choice((ESN_ISSUED_MAX, 2000, 500))
    return RunOptions(
        cluster=ClusterOptions(sequencer=SequencerSettings(esns=esns)),
        workload=WorkloadOptions(logs=("/sim/a", "/sim/b"), producers=3, readers=3),
        faults=FaultOptions(kinds=(*KINDS, *CLIENT_KINDS)),
    )
