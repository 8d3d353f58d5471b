"""The scenario's cluster in memory, and everything that can happen to it.

Times are virtual: `asyncio.sleep(30)` takes as long as the cluster has work for. Hosts
are named by node number, or by an application's name; `TEST` is the scenario itself.

Source: docs/sources/reliability.md §5.1; docs/simulator.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from cordwood.client.store import Store
from cordwood.errors import BadSetting
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings
from cordwood.sim.cluster import SimCluster
from cordwood.sim.fault_kinds import FAULT_KINDS, Stage
from cordwood.sim.fault_plan import KINDS, Fault
from cordwood.sim.history import FaultStruck
from cordwood.sim.host import SimMachine, Simulation, sim_host
from cordwood.sim.injector import Injector
from cordwood.sim.network_faults import NetworkFaults, pairs_between
from cordwood.sim.streams import stream
from cordwood.testing.application import Application, Applications, Door, Main
from cordwood.testing.record import CLIENT_NAME, RecordedStore, Recording

TEST = "test"
"""The scenario's own host, and its client's name in the history."""

Who = int | str
"""A node by its number, or an application by its name."""


class SimulatedCluster:
    """A running cluster; made by `ScenarioRun`.

    Attributes:
        random: the seed's chance, for the scenario's own draws.
        story: the actions on the cluster with their times, in words.
    """

    def __init__(
        self,
        simulation: Simulation,
        cluster: SimCluster,
        recording: Recording,
        settings: ClientSettings,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.random: random.Random = simulation.workload
        self.story: list[tuple[float, str]] = []
        self._simulation = simulation
        self._cluster = cluster
        self._recording = recording
        self._tasks = tasks
        self._door = Door(cluster.addresses, recording, settings)
        self._applications = Applications(simulation, recording.history, TEST, self._tell)
        self._clients: list[str] = [TEST]
        self._stores: list[RecordedStore] = []
        self._injector = Injector(
            simulation, cluster, self._clients, recording.history, self._applications
        )
        self._network = NetworkFaults(simulation.network)
        self._cuts: list[Callable[[], None]] = []
        self._plan: asyncio.Task[None] | None = None
        machine = simulation.machine(TEST)
        self._host = sim_host(
            simulation.loop.director,
            TEST,
            clock=machine.clock,
            network=simulation.network,
            disk=machine.disk,
            chance=stream(simulation.seed, "host", TEST),
        )

    # Looking.

    @property
    def nodes(self) -> tuple[int, ...]:
        """Every node's number, running or not."""
        return tuple(int(number) for number in self._cluster.numbers)

    @property
    def running(self) -> tuple[int, ...]:
        """The nodes whose process runs or is paused."""
        return tuple(n for n in self.nodes if self._cluster.machine(NodeId(n)).is_up)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the run began."""
        return self._simulation.loop.time()

    def sequencers(self) -> tuple[int, ...]:
        """The nodes that sequence some log now: the nodes most worth crashing."""
        return tuple(n for n in self.nodes if self._cluster.sequencing(NodeId(n)))

    # Clients and applications.

    async def connect(self, settings: ClientSettings | None = None) -> Store:
        """Connect from the scenario itself; closed when the scenario ends.

        Raises:
            Unreachable: no node answered within the settings' timeout.
        """
        store = await self._door.open(TEST, self._host, settings)
        self._stores.append(store)
        return store

    def start(self, name: str, main: Main) -> Application:
        """Run `main(application)` as a process of its own, on a machine of its own.

        An error of `main` ends the scenario with that error.

        Args:
            name: letters, digits, `.`, `_`, `-`; not a node's and not `test`.
        Raises:
            BadSetting: the name is not valid, or taken.
        """
        if not CLIENT_NAME.match(name) or name == TEST or name.startswith("node-"):
            raise BadSetting(f"no application can be called {name!r}")
        if name in self._applications.by_name:
            raise BadSetting(f"{name} is there: restart({name!r}) runs it again")
        machine = self._simulation.machine(name)
        application = Application(name, main, machine, self._door, self._tasks)
        self._applications.by_name[name] = application
        self._clients.append(name)
        application.start()
        self._tell(f"started {name}")
        return application

    # Processes and machines.

    def crash(self, *who: Who) -> None:
        """SIGKILL: the process ends at once; disks keep the bytes that they received."""
        self._struck("crash", who)
        for each in who:
            if isinstance(each, str):
                self._application(each).crash()
            else:
                self._cluster.kill(self._node(each))

    def power_cut(self, *who: Who) -> None:
        """The machine falls silent, and writes that were not synced are lost or torn."""
        self._struck("power_cut", who)
        for each in who:
            if isinstance(each, str):
                self._application(each).crash(power=True)
            else:
                self._cluster.cut_power(self._node(each))

    def restart(self, *who: Who) -> None:
        """Start machines that crashed or lost power.

        Raises:
            BadSetting: it runs.
        """
        for each in who:
            if isinstance(each, str):
                self._application(each).start()
            elif self._machine(each).is_up:
                raise BadSetting(f"node {each} runs already: crash it first")
            else:
                self._cluster.start(self._node(each))
        self._eased("crash", who, "restarted")

    def pause(self, *who: Who) -> None:
        """SIGSTOP: connections stay, but no answer comes."""
        self._struck("pause", who)
        for each in who:
            if isinstance(each, str):
                self._application(each).pause()
            else:
                self._machine(each).pause()

    def resume(self, *who: Who) -> None:
        """SIGCONT."""
        for each in who:
            self._machine(each).resume()
        self._eased("pause", who, "resumed")

    def clock_step(self, who: Who, by_s: float) -> None:
        """A machine's wall clock jumps, forwards or back."""
        self._struck("clock_step", (who,), f"{by_s:+g} s")
        self._machine(who).clock.step(round(by_s * 1e6))

    # The network.

    def partition(
        self, some: Who | Iterable[Who], others: Who | Iterable[Who] | None = None
    ) -> None:
        """Cut both directions between two groups of hosts; `others` is all other hosts by
        default."""
        one, other = self._groups("partition", some, others)
        self._cuts.append(self._network.cut_both(one, other))

    def cut(self, sources: Who | Iterable[Who], targets: Who | Iterable[Who] | None = None) -> None:
        """Cut one direction: the targets do not hear the sources any more."""
        one, other = self._groups("one_way_partition", sources, targets)
        self._cuts.append(self._network.cut(pairs_between(one, other)))

    def mend(self) -> None:
        """Undo every `partition` and `cut`."""
        while self._cuts:
            self._cuts.pop()()
        self._eased("partition", (), "cuts mended")

    def reset(self, some: Who | Iterable[Who], others: Who | Iterable[Who] | None = None) -> int:
        """Reset the connections between two groups of hosts; how many there were."""
        one, other = self._groups("reset", some, others)
        return self._simulation.network.reset(one, other)

    # The metadata store, and everything.

    def metadata_outage(self) -> None:
        """The metadata store answers no request until `metadata_back` or `heal`."""
        self._struck("metadata_outage", ())
        self._cluster.metadata.is_out = True

    def metadata_back(self) -> None:
        """The metadata store answers again."""
        self._cluster.metadata.is_out = False
        self._eased("metadata_outage", (), "metadata store back")

    def strike(self, kind: str, *nodes: int) -> Callable[[], None]:
        """Play any fault of the simulator, such as `slow_disk` or `lossy_links`.

        Args:
            kind: one of `cordwood.testing.KINDS`.
            nodes: hit by it; none for a kind that hits everything.
        Returns:
            A function that takes it back; `heal` does too.
        Raises:
            BadSetting: an unknown kind, or a kind that needs nodes and got none.
        """
        if kind not in KINDS:
            raise BadSetting(f"no fault is called {kind!r}; there are {', '.join(KINDS)}")
        if FAULT_KINDS[kind].hits_nodes != bool(nodes):
            raise BadSetting(f"{kind} hits {'no ' if nodes else ''}nodes")
        self._struck(kind, nodes)
        hit = [self._node(number) for number in nodes]
        undo = FAULT_KINDS[kind].strike(self._stage(), hit, self._simulation.faults)

        def ease() -> None:
            undo()
            self._eased(kind, nodes, f"{kind} eased")

        return ease

    async def heal(self) -> None:
        """Take every fault back and return once every node runs.

        Applications are resumed, and restarted if a plan crashed them. From here on
        the cluster owes liveness (L1, L2), until the next fault.
        """
        self._network.heal()
        self._cuts.clear()
        await self._injector.heal()
        self._recording.history.faults_healed()
        self._tell("everything healed")

    async def calm(self) -> None:
        """Wait until the plan of faults is over and healed; returns at once without a plan."""
        if self._plan is not None:
            await asyncio.shield(self._plan)

    # For the run.

    def play(self, plan: Sequence[Fault]) -> None:
        """Let a plan of faults strike from now on, and heal after it."""
        self._plan = self._tasks.create_task(self._play(tuple(plan)))

    async def stop(self) -> None:
        """The scenario is over: kill its applications, close its stores, end the plan."""
        if self._plan is not None:
            self._plan.cancel()
        for application in self._applications.by_name.values():
            if application.is_up:
                application.crash()
        for store in self._stores:
            await store.close()

    async def check_reader(self) -> Store:
        """A store for the last look at the logs, from the scenario's host."""
        return await self._door.open("last-look", self._host, None)

    @property
    def full_story(self) -> list[tuple[float, str]]:
        """The story with the plan's faults, by time."""
        struck = [
            (event.time_us / 1e6, _words(event.kind, event.nodes, event.text))
            for event in self._recording.history
            if isinstance(event, FaultStruck)
        ]
        return sorted({*struck, *self.story})

    async def _play(self, plan: tuple[Fault, ...]) -> None:
        await self._injector.run(plan)
        await self.heal()

    def _stage(self) -> Stage:
        return Stage(
            self._simulation, self._cluster, self._network, self._clients, self._applications
        )

    def _struck(self, kind: str, who: Sequence[Who], text: str = "") -> None:
        """Note a fault; what befalls an application alone is no fault of the cluster."""
        names = [each for each in who if isinstance(each, str)]
        nodes = [self._node(each) for each in who if not isinstance(each, str)]
        text = " ".join([*names, text] if text else names)
        if nodes or not names:
            self._recording.history.fault_struck(kind, nodes, text)
        else:
            self._tell(_words(kind, nodes, text))

    def _eased(self, kind: str, who: Sequence[Who], text: str) -> None:
        nodes = [self._node(each) for each in who if not isinstance(each, str)]
        if nodes or not who:
            self._recording.history.fault_eased(kind, nodes)
        self._tell(_words(text, who, ""))

    def _tell(self, text: str) -> None:
        self.story.append((self.now_s, text))

    def _groups(
        self, kind: str, some: Who | Iterable[Who], others: Who | Iterable[Who] | None
    ) -> tuple[list[str], list[str]]:
        one = [self._machine(who).name for who in _each(some)]
        everyone = self._stage().hosts()
        other = [self._machine(who).name for who in _each(others)] if others is not None else [
            name for name in everyone if name not in one
        ]  # fmt: skip
        self._recording.history.fault_struck(
            kind, (), f"between {', '.join(one)} and {', '.join(other)}"
        )
        return one, other

    def _node(self, number: int) -> NodeId:
        if number not in self.nodes:
            raise BadSetting(f"there is no node {number}; nodes are {self._known()}")
        return NodeId(number)

    def _application(self, name: str) -> Application:
        if name not in self._applications.by_name:
            raise BadSetting(f"there is no application {name!r}; there are {self._known()}")
        return self._applications.by_name[name]

    def _machine(self, who: Who) -> SimMachine:
        if isinstance(who, int):
            return self._cluster.machine(self._node(who))
        return self._simulation.machine(who if who == TEST else self._application(who).name)

    def _known(self) -> str:
        return ", ".join(map(str, (*self.nodes, *self._applications.by_name)))


def _each(who: Who | Iterable[Who]) -> Iterator[Who]:
    if isinstance(who, int | str):
        yield who
    else:
        yield from who


def _words(kind: str, who: Sequence[Who], text: str) -> str:
    nodes = ", ".join(f"node {each}" if isinstance(each, int) else each for each in who)
    return " ".join(part for part in (kind.replace("_", " "), nodes, text) if part)
