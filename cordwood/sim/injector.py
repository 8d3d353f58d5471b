"""Carries out a fault plan on a simulated cluster, and takes every fault back.

Source: docs/sources/reliability.md §5.1.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from cordwood.errors import BadSetting
from cordwood.metadata.memory import DELAY_S
from cordwood.nodes import NodeId
from cordwood.sim.cluster import SimCluster
from cordwood.sim.crew import Crew
from cordwood.sim.fault_kinds import FAULT_KINDS, LOSSY, SLOW_DISK_FACTOR, Stage
from cordwood.sim.fault_plan import OTHERS, SEQUENCER, Fault
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.host import Simulation
from cordwood.sim.network_faults import NetworkFaults
from cordwood.sim.streams import stream

__all__ = ["LOSSY", "SLOW_DISK_FACTOR", "Injector"]


HANGS_S = 12.0
"""A client and a node notice within six seconds that a peer hangs. Then they need another
sequencer, which waits as long again for the peer to answer its seal."""

HEARD_LATE_S = 1.0
"""A node hears of a failed write within a second, even if its disk's answers come late."""


class Injector:
    """See the module.

    Args:
        clients: hosts that are no nodes, for faults of the network; may grow during the run.
        crew: the clients, where a plan may kill them.
    """

    def __init__(
        self,
        simulation: Simulation,
        cluster: SimCluster,
        clients: Sequence[str],
        recorder: HistoryRecorder,
        crew: Crew | None = None,
    ) -> None:
        network = NetworkFaults(simulation.network)
        self._stage = Stage(simulation, cluster, network, clients, crew)
        self._recorder = recorder
        self._spared: dict[int, NodeId] = {}

    async def run(self, plan: tuple[Fault, ...]) -> None:
        """Strike every fault at its time, counted from now, and ease it at its end.

        Raises:
            BadSetting: the plan names an unknown kind of fault.
        """
        for fault in plan:
            if fault.kind not in FAULT_KINDS:
                raise BadSetting(f"no fault is called {fault.kind!r}")
        start_s = self._stage.simulation.loop.time()
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                tasks.create_task(self._play(fault, start_s))

    async def heal(self, absent: Sequence[NodeId] = ()) -> None:
        """Take everything back: links mended, every node and client running, nothing slow.

        Args:
            absent: nodes that stay away: the first one hangs, the others are dead. The other nodes
                get HANGS_S to notice this, and must keep all promises from then on.
        """
        stage = self._stage
        stage.network.heal()
        stage.simulation.machine("stranger").kill()
        metadata = stage.cluster.metadata
        metadata.is_out, metadata.answer_loss, metadata.delay_s = False, 0.0, DELAY_S
        for number in stage.cluster.numbers:
            machine = stage.cluster.machine(number)
            machine.disk.heal()
            machine.clock.drift = 0.0
            machine.resume()
            if not machine.is_up and number not in absent[1:]:
                stage.cluster.start(number)
        present = [number for number in stage.cluster.numbers if number not in absent]
        stage.cluster.restart_failed(present)
        if stage.crew is not None:
            stage.crew.heal()
        if absent:
            self._take_away(absent)
            await asyncio.sleep(HANGS_S)
        await stage.cluster.wait_running(absent)
        # A node that was still starting when a write failed runs only now, and takes nothing. And a
        # node whose disk answers late hears of a failed write only later.
        asyncio.get_running_loop().call_later(HEARD_LATE_S, stage.cluster.restart_failed, present)
        stage.cluster.restart_failed(present)
        await stage.cluster.wait_running(absent)

    def _take_away(self, absent: Sequence[NodeId]) -> None:
        """Let the first node hang: its machine takes connections, and answers nothing."""
        stage = self._stage
        self._recorder.fault_struck("absent", absent, f"node {absent[0]} hangs")
        stage.machines(absent)[0].pause()
        for number in absent[1:]:
            stage.cluster.kill(number)

    async def _play(self, fault: Fault, start_s: float) -> None:
        # Each fault has its own stream, so that leaving other faults out does not change its draws.
        chance = self._chance(fault)
        await asyncio.sleep(start_s + fault.at_s - self._stage.simulation.loop.time())
        nodes = self._resolve(fault, chance)
        kind, text = FAULT_KINDS[fault.kind], ""
        if kind.needs_crew:
            _, text = self._stage.pick_client(self._chance(fault))
        self._recorder.fault_struck(fault.kind, nodes, text)
        ease = kind.strike(self._stage, nodes, chance)
        await asyncio.sleep(fault.for_s)
        ease()
        self._recorder.fault_eased(fault.kind, nodes, text)

    def _chance(self, fault: Fault) -> random.Random:
        return stream(self._stage.simulation.seed, "fault", fault.kind, repr(fault.at_s))

    def _resolve(self, fault: Fault, chance: random.Random) -> tuple[NodeId, ...]:
        """The nodes that a fault hits; a scene remembers its first sequencer."""
        cluster = self._stage.cluster
        if fault.nodes == (SEQUENCER,):
            found = self._sequencer(chance)
            self._spared.setdefault(fault.scene, found)
            return (found,)
        if fault.nodes == (OTHERS,):
            spared = self._spared.get(fault.scene) or self._sequencer(chance)
            return tuple(node for node in cluster.numbers if node != spared)
        return tuple(NodeId(node) for node in fault.nodes)

    def _sequencer(self, chance: random.Random) -> NodeId:
        """A node that sequences a log now."""
        cluster = self._stage.cluster
        busy = [node for node in cluster.numbers if cluster.sequencing(node)]
        return chance.choice(busy or cluster.numbers)
