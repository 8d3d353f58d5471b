"""A whole cluster in virtual time, for tests that need one: production nodes, a real client.

::

    def test_something() -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append("log", b"value")

        simulate(scenario, nodes=3)

Nodes run on simulated machines, clients in the scenario's own process; nothing waits for
real, and an exception that nobody handled anywhere fails the test.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from cordwood.block import Gap, Record
from cordwood.client.store import Store, connected
from cordwood.errors import Rejected
from cordwood.host.seams import Host
from cordwood.lsn import Lsn, make_lsn
from cordwood.metadata.memory import MemoryMetadata
from cordwood.node import running_node
from cordwood.nodes import Authority, NodeId, Replication
from cordwood.settings import (
    MIB,
    ClientSettings,
    SequencerSettings,
    StorageSettings,
    TierSettings,
)
from cordwood.sim.cluster import ClusterOptions, SimCluster
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.host import SimClock, SimMachine, Simulation, sim_host
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.logs_db.tables import MakeTables

Result = TypeVar("Result")

BUCKET = "sim://bucket"

SCENARIO_S = 3600
"""Virtual: a scenario that waits for what never comes fails, in a second or so."""


class ClusterAtHand:
    """The simulator's cluster, driven by hand: nodes 1 to `nodes`, a rack each; `copies` over
    `racks` of every record.

    No init system watches the nodes: one whose start is refused, or that ends, stays down.

    Attributes:
        simulation: faults of network and disks are asked for there.
        metadata: the store that all nodes share.
        running: the nodes that run, by number.
        weights: of nodes that start from now on, where it is not 1.
        locations: likewise, where it is not a rack of their own.
        wals: likewise, bytes of the WAL where they are not `wal_bytes`.
        storages: likewise, how it stores where that is not `storage`.
        bucket: main storage.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        nodes: int = 3,
        copies: int = 3,
        racks: int = 1,
        wal_bytes: int = 4 * MIB,
        sequencer: SequencerSettings | None = None,
        create_logs: bool = True,
        make_tables: MakeTables = memory_tables,
        storage: StorageSettings | None = None,
        locations: Mapping[int, str] | None = None,
        wals: Mapping[int, int] | None = None,
        storages: Mapping[int, StorageSettings] | None = None,
        rebuild_after_s: float = 1200.0,
        replicated_events: bool = False,
        tier: TierSettings | None = None,
    ) -> None:
        self.simulation = simulation
        self.weights: dict[int, float] = {}
        self.wals: dict[int, int] = dict(wals or {})
        self.storages: dict[int, StorageSettings] = dict(storages or {})
        options = ClusterOptions(
            nodes=nodes,
            racks=nodes,
            replication=Replication(copies, racks),
            wal_bytes=wal_bytes,
            storage=storage or StorageSettings(),
            refresh_s=0.5,
            sequencer=sequencer or SequencerSettings(),
            weights=self.weights,
            wals=self.wals,
            storages=self.storages,
            create_logs=create_logs,
            rebuild_after_s=rebuild_after_s,
            replicated_events=replicated_events,
            tier=tier or TierSettings(),
        )
        recorder = HistoryRecorder(lambda: round(simulation.loop.time() * 1e6))
        self._cluster = SimCluster(simulation, options, recorder, make_tables=make_tables)
        self.bucket = self._cluster.bucket
        self.metadata = self._cluster.metadata
        self.running = self._cluster.running
        self.locations = self._cluster.moved
        self.locations.update({NodeId(n): place for n, place in (locations or {}).items()})
        self.open_objects = self._cluster.open_objects
        self._names = itertools.count(1)

    @property
    def numbers(self) -> tuple[NodeId, ...]:
        return self._cluster.numbers

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._cluster.addresses

    def add_nodes(self, count: int) -> None:
        """More nodes, to be started, a rack each; they have the next numbers."""
        for number in range(len(self.numbers) + 1, len(self.numbers) + count + 1):
            self.locations.setdefault(NodeId(number), f"rack{number}")
            self._cluster.numbers += (NodeId(number),)

    def replicate_events(self) -> None:
        """Nodes that start from now on move events into the event log."""
        self._cluster.options = replace(self._cluster.options, replicated_events=True)

    def machine(self, number: int) -> SimMachine:
        return self._cluster.machine(NodeId(number))

    async def start(self, *numbers: int) -> None:
        """Start nodes (all of them unless told) and wait until they listen."""
        wanted = numbers or self.numbers
        for number in wanted:
            self.start_once(number)
        await until(lambda: all(number in self.running for number in wanted))

    def start_once(self, number: int) -> asyncio.Task[None]:
        """Start a node; the task ends with the error that refuses the start or ends the node."""
        node = NodeId(number)
        return self.machine(number).start(lambda host: self._cluster.live(node, host))

    def keep_starting(self, number: int) -> None:
        """Start a node, and again whenever it ends with an error, as an init system does."""
        self._cluster.start(NodeId(number))

    def kill(self, number: int) -> None:
        """SIGKILL."""
        assert number in self.running, f"node {number} does not run"
        self._cluster.kill(NodeId(number))

    async def start_with_own_way(self, number: int) -> MemoryMetadata:
        """Restart a node with a way of its own to the metadata store, which may fail alone."""
        own = MemoryMetadata(random.Random(f"metadata-{number}"), self.metadata.data)
        await self.stop(number)
        ending = self.machine(number).start(lambda host: self._live_with(NodeId(number), host, own))
        await until(lambda: number in self.running or ending.done())
        assert not ending.done(), f"node {number} did not start"
        return own

    async def _live_with(self, number: NodeId, host: Host, own: MemoryMetadata) -> None:
        async with running_node(
            self._cluster._settings(number), host, own, memory_tables, self.open_objects
        ) as node:
            self._cluster._on_running(number, node)
            await asyncio.Event().wait()

    async def stop(self, number: int) -> None:
        """A graceful end: settle the WAL, close connections."""
        await self.running.pop(NodeId(number)).close()
        self.machine(number).kill()

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[Store]:
        """A client of its own host."""
        chosen = ClientSettings(**settings)
        host, opener = self.client_host(), self.open_objects
        async with connected(self.addresses, host, chosen, opener) as store:
            yield store

    def client_host(self) -> Host:
        """A host whose process is the scenario itself."""
        name = f"client-{next(self._names)}"
        simulation = self.simulation
        machine = simulation.machine(name)
        return sim_host(
            simulation.loop.director,
            name,
            clock=SimClock(simulation.loop),
            network=simulation.network,
            disk=machine.disk,
            chance=random.Random(name),
        )

    def sequencer_of(self, log: int) -> int:
        """The node that sequences a log, 0 for none."""
        found = [n for n, node in self.running.items() if log in node._sequencer.sequencing()]
        return found[0] if found else 0

    def held(self, number: int, log: int) -> list[tuple[int, int, str]]:
        """First and last LSN and kind of all that a node holds of a log."""
        cached = self.running[number].engine.cache.log(log)
        found = [cached.at(index) for index in range(len(cached))]
        return [
            (block.header.first, block.header.last, block.header.kind.name)
            for block in found
            if block is not None
        ]


def simulate(
    scenario: Callable[[ClusterAtHand], Awaitable[Result]], *, seed: int = 1, **options: Any
) -> Result:
    """Run a scenario on a cluster whose nodes all run, in virtual time."""
    simulation = Simulation(seed)

    async def main(simulation: Simulation) -> Result:
        cluster = ClusterAtHand(simulation, **options)
        async with asyncio.timeout(SCENARIO_S):
            await cluster.start()
            return await scenario(cluster)

    result = simulation.run(main)
    assert simulation.loop.unhandled == []
    return result


async def until(condition: Callable[[], bool], *, timeout_s: float = 60) -> None:
    """Look every 10 virtual ms until it holds; TimeoutError if it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.01)


async def say_of_dead(store: Store, node: int, authority: Authority) -> None:
    """Say what became of a node's data, as soon as the others take it for dead."""
    for _ in range(20):
        try:
            return await store.set_authority(node, authority)
        except Rejected:
            await asyncio.sleep(0.5)
    raise TimeoutError(f"node {node} is never taken for dead")


async def read_all(store: Store, log: str, **bounds: Any) -> list[Record | Gap]:
    """Everything that `read` gives."""
    return [item async for item in await store.read(log, **bounds)]


async def values(store: Store, log: str, **bounds: Any) -> list[bytes]:
    """The records' values that `read` gives."""
    items = await read_all(store, log, **bounds)
    return [item.value for item in items if isinstance(item, Record)]


def numbers(items: Iterable[object]) -> list[int]:
    """The records' values as numbers; gaps are left out."""
    return [int(item.value) for item in items if isinstance(item, Record)]


def others(cluster: ClusterAtHand, log: int = 1) -> list[int]:
    """The nodes that do not sequence a log, in order."""
    return [n for n in cluster.running if n != cluster.sequencer_of(log)]


def at(esn: int, epoch: int = 1) -> Lsn:
    """The LSN of a record."""
    return make_lsn(epoch, esn)
