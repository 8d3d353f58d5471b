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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from cordwood.block import Gap, Record
from cordwood.client.store import Store, connected
from cordwood.errors import Rejected
from cordwood.host.seams import Host
from cordwood.metadata.memory import MemoryMetadata
from cordwood.node import Node, running_node
from cordwood.nodes import Authority, NodeId, Replication
from cordwood.settings import (
    MIB,
    ClientSettings,
    NodeSettings,
    SequencerSettings,
    StorageSettings,
    TierSettings,
)
from cordwood.sim.host import SimClock, SimMachine, Simulation, sim_host
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.object_store import Bucket
from cordwood.sim.streams import stream
from cordwood.storage.logs_db.tables import MakeTables
from cordwood.tier.patient_store import PatientStore

Result = TypeVar("Result")

PORT = 4440

BUCKET = "sim://bucket"

SCENARIO_S = 3600
"""Virtual: a scenario that waits for what never comes fails, in a second or so."""


class ClusterAtHand:
    """Nodes 1 to `nodes`, a rack each; `copies` over `racks` of every record.

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
        tier: TierSettings | None = None,
    ) -> None:
        self.simulation = simulation
        self.bucket = Bucket(stream(simulation.seed, "bucket"))
        self.metadata = MemoryMetadata(stream(simulation.seed, "metadata"))
        self.running: dict[int, Node] = {}
        self.weights: dict[int, float] = {}
        self.locations: dict[int, str] = dict(locations or {})
        self.wals: dict[int, int] = dict(wals or {})
        self.storages: dict[int, StorageSettings] = dict(storages or {})
        self.numbers = range(1, nodes + 1)
        self._replication = Replication(copies, racks)
        self._sequencer = sequencer or SequencerSettings()
        self._create_logs = create_logs
        self._names = itertools.count(1)
        self._make_tables = make_tables
        self._rebuild_after_s = rebuild_after_s
        self._tier = tier or TierSettings()
        self._storage = replace(storage or StorageSettings(), wal_bytes=wal_bytes)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"node-{number}:{PORT}" for number in self.numbers)

    def machine(self, number: int) -> SimMachine:
        return self.simulation.machine(f"node-{number}")

    async def start(self, *numbers: int) -> None:
        """Start nodes (all of them unless told) and wait until they listen."""
        wanted = numbers or tuple(self.numbers)
        for number in wanted:
            self.machine(number).start(self._main(number))
        await until(lambda: all(number in self.running for number in wanted))

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.running.pop(number)
        self.machine(number).kill()

    async def stop(self, number: int) -> None:
        """A graceful end: settle the WAL, close connections."""
        await self.running.pop(number).close()
        self.machine(number).kill()

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[Store]:
        """A client of its own host."""
        chosen = ClientSettings(**settings)
        host, opener = self.client_host(), self.open_objects
        async with connected(self.addresses, host, chosen, opener) as store:
            yield store

    async def open_objects(self, host: Host, address: str) -> PatientStore:
        """The bucket, for nodes and clients."""
        assert address == BUCKET
        return PatientStore(self.bucket.store(), host.random)

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

    def _main(self, number: int) -> Callable[[Host], Any]:
        settings = NodeSettings(
            node=NodeId(number),
            directory="/node",
            metadata="",
            listen=f"node-{number}:{PORT}",
            location=self.locations.get(number, f"rack{number}"),
            weight=self.weights.get(number, 1.0),
            default_replication=self._replication,
            create_logs=self._create_logs,
            refresh_s=0.5,
            rebuild_after_s=self._rebuild_after_s,
            sequencer=self._sequencer,
            tier=self._tier,
            storage=replace(
                self.storages.get(number, self._storage),
                wal_bytes=self.wals.get(number, self._storage.wal_bytes),
            ),
        )

        async def main(host: Host) -> None:
            async with running_node(
                settings, host, self.metadata, self._make_tables, self.open_objects
            ) as node:
                self.running[number] = node
                await asyncio.Event().wait()

        return main


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
