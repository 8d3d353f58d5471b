"""A node's data directory as a subject of crashes: the first start, a life, and later starts.

Its promises (`node.Node.start`): a crash at any point of a start, even of the very first, leaves a
directory from which the next start succeeds. The owner of the directory does not change, and stored
records are there. The directory is never regarded as an older copy, even if a start was cut short
between its write to the disk and its write to the metadata store.

The whole node runs, with its network and with a metadata store that survives. Crash states of an
SQLite file are SQLite's own to prove.

Source: `node`; docs/sources/reliability.md §3 (S17), §5.4.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cordwood.lsn import EPOCH_MAX
from cordwood.metadata.membership import Membership
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.node import running_node
from cordwood.nodes import NodeId
from cordwood.settings import MIB, NodeSettings, StorageSettings
from cordwood.sim.crash_states.disk_log import DiskLog
from cordwood.sim.crash_states.engine_promises import LOGS, EnginePromises
from cordwood.sim.crash_states.engine_subject import EngineScript, compare
from cordwood.sim.crash_states.explorer import Life
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.process import Process
from cordwood.storage.data_directory import INCARNATION, Incarnations

SETTINGS = NodeSettings(
    node=NodeId(1),
    directory="/data/node-1",
    metadata="",
    listen="node-1:4440",
    storage=StorageSettings(MIB, flush_age_s=0.01, reached_every_s=0.001),
)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The content of the metadata store."""

    data: MemoryData


@dataclass(frozen=True, slots=True)
class NodePromises:
    """The content of the metadata store and of the directory's storage engine."""

    data: MemoryData = field(default_factory=MemoryData)
    engine: EnginePromises = field(default_factory=EnginePromises)

    def after(self, facts: Sequence[object]) -> NodePromises:
        """See `Promised`."""
        agreed = [fact.data for fact in facts if isinstance(fact, Agreed)]
        stored = [fact for fact in facts if not isinstance(fact, Agreed)]
        return NodePromises(agreed[-1] if agreed else self.data, self.engine.after(stored))


class _MarkingMetadata(MemoryMetadata):
    """A metadata store that marks its content after each change: the next life's store starts from
    it."""

    def __init__(self, chance: random.Random, data: MemoryData, log: DiskLog) -> None:
        super().__init__(chance, data.copy())
        self._log = log

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        version = await super().compare_and_set(key, value, expected)
        self._log.promise(Agreed(self.data.copy()))
        return version


class NodeSubject:
    """See the module; a `Subject`."""

    name = "node"

    def nothing_promised(self) -> NodePromises:
        """See `Subject`."""
        return NodePromises()

    async def live(self, life: Life, promised: NodePromises) -> None:
        """See `Subject`. A life ends with a stop, and crashes come during the stop as well."""
        process = Process("node")
        host = life.host(process)
        metadata = _MarkingMetadata(life.chance, promised.data, life.log)
        life.probes["a first start"] += "/data/node-1/identity" not in life.log.base.names
        life.probes["a WAL without an identity"] += (
            "/data/node-1/wal" in life.log.base.names
            and "/data/node-1/identity" not in life.log.base.names
        )
        await self._note_claims(life, metadata)
        async with running_node(SETTINGS, host, metadata, memory_tables) as node:
            if node.engine.unheard is not None:
                for log in LOGS:  # no sequencer runs here, so the node knows all epochs
                    node.engine.unheard.tell(log, EPOCH_MAX)
            held = await compare(life, node.engine, promised.engine)
            await EngineScript(life, node.engine, node.flush, held).run(life.steps)

    async def _note_claims(self, life: Life, metadata: MemoryMetadata) -> None:
        """Find the point at which the last start was cut short."""
        stored = await life.disk.read_file(f"{SETTINGS.directory}/{INCARNATION}")
        if stored is None:
            return
        claims = msgspec.json.decode(stored, type=Incarnations).claims
        last = await Membership(metadata).claim(SETTINGS.node)
        life.probes["a start wrote its claim and made none"] += last.name in claims[:-1]
        life.probes["a start had claimed the node"] += last.name == claims[-1]
        life.probes["how far the WAL had come was noted"] += last.reached >= 0
