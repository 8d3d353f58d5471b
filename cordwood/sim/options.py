"""The options of one simulated run: drawn by `sim.swarm`, or the demo's shape.

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
"""How long producers go on after the healing. Appends must succeed from 5 s after it, so that a run
sees some seconds of these. Promises with 10 s are due in the draining and idling that follow."""

SETTLE_BURST = 100
"""Most records of a call during that time, as in any seed. Calls are costly to simulate, and the
promises hold for each call, large or small."""

FAR_S = 0.002
"""Shortest time of one way between cities. The mean is seven milliseconds, and one segment of a
hundred takes twenty times as long."""

ABSENT_SETTLE_S = 11.0
"""The same for runs in which nodes stay away: the other nodes must keep all promises before these
nodes come back."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run.

    Attributes:
        length_s: simulated seconds with faults; settling comes after them.
        plan: the faults; None draws them from the seed.
        link: settings of every link, unless a fault changes them; None for a quiet network.
        turns: knobs that are turned, see `sim.knobs`.
        buggify: whether rare behaviour is made common, see `sim.buggify`.
        fills: whether the workload may fill the WALs: then appends may always end as OVERLOADED,
            and none must succeed.
        absent: nodes that stay away when the faults are over: the first one hangs, the others are
            dead. The other nodes must keep all promises meanwhile. Absent nodes come back at the
            end.
        cut_off: nodes that do not reach main storage from the first faults on. The other nodes
            must have uploaded everything at the end (L4).
        paced: whether the duration of appends is measured with all nodes well and with one node
            hampered (L7).
        loses: which nodes are lost for ever at the end, see `sim.aftermath`: "" for none.
        loses_events: whether records of the event log are lost then, see `sim.event_losses`.
        loses_disks: whether disks are lost for ever during the run, see `sim.disk_losses`.
        loses_metadata: whether the metadata store goes away with a lost disk, for longer than a
            dead node needs to count as lost.
        accepts: whether an operator accepts at the end what nodes lost.
        audited: whether all nodes are scanned for their copies at the end.
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
    cut_off: tuple[NodeId, ...] = ()
    paced: bool = False
    loses: str = ""
    loses_events: bool = False
    loses_disks: bool = False
    loses_metadata: bool = False
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
        """Whether its nodes are in different cities."""
        return self.link is not None and self.link.delay_min_s >= FAR_S

    @property
    def settle_burst(self) -> int:
        """Most records of a call during that time. Over far links a call has time for the drawn
        number only."""
        burst = self.workload.burst
        return burst if self.is_far else max(burst, SETTLE_BURST)

    def drawn_plan(self, seed: int) -> tuple[Fault, ...]:
        """The faults of this seed, given or drawn."""
        if self.plan is not None:
            return self.plan
        nodes = tuple(range(1, self.cluster.nodes + 1))
        return draw_plan(self.faults, nodes, self.length_s, stream(seed, "plan"))


def demo_options(seed: int) -> RunOptions:
    """The demo's cluster. The length of an epoch is drawn, so that some runs cross many epochs."""
    chance = stream(seed, "options")
    esns = chance.choice((ESN_ISSUED_MAX, 2000, 500))
    return RunOptions(
        cluster=ClusterOptions(sequencer=SequencerSettings(esns=esns)),
        workload=WorkloadOptions(logs=("/sim/a", "/sim/b"), producers=3, readers=3),
        faults=FaultOptions(kinds=(*KINDS, *CLIENT_KINDS)),
    )
