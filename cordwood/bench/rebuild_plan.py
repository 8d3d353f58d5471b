"""The time and the memory of a donor's plan: which blocks of 100,000 logs it has to move.

A LogsDB is filled with logs of one block, each on three of 40 nodes, and one of these nodes is
lost. The donor looks at all blocks, as at the begin of a pass, and moves none. A process of its own
does this, because the growth of its memory counts.

As a program this module is that process: `python -m cordwood.bench.rebuild_plan DIR LOGS`.

Source: docs/protocol/rebuilding.md ("Donors").
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from time import perf_counter, process_time

from crc32c import crc32c

from cordwood.bench.alone import resident_bytes, run_alone
from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.block import BlockHeader, Envelope
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import LogState
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.nodesets import pack_nodesets
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LogId, make_lsn
from cordwood.nodes import Member, NodeId
from cordwood.protocol.rebuild_plan import Held, Losses
from cordwood.rebuilding import LostNode, RebuildingSet
from cordwood.settings import MIB, StorageSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import rocks_tables
from cordwood.storage.rebuild.donor_look import DonorLook
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.donor_pass import Pass
from cordwood.storage.wal.delta_wal import Wal

ME, LOST = NodeId(1), NodeId(2)
NODES, NODESET, RACKS, COPIES = 40, 12, 8, 3

BODY = bytes(100)

LOGS_A_FLUSH = 10_000
FILES_MAX = 10_000
"""One partition takes all: the logs have their blocks from the same hours."""

PLAN_S = 10.0
"""Longest time for the plan of 100,000 logs."""

PLAN_BYTES = 200.0
"""Most memory for a log of the plan."""

TIMEOUT_S = 600.0


async def bench_plan(logs: int, *, directory: str, repeats: int, say: Say) -> list[Figure]:
    """The figures of the module.

    Args:
        logs: number of logs, of one block each.
        directory: for the database; removed at the end.
    Raises:
        Unreachable: the process failed.
    """
    times, cpus, sizes = [], [], []
    for repeat in range(repeats):
        say(f"rebuild: plan of {logs:,} logs, {repeat + 1} of {repeats}")
        printed = await run_alone(
            "cordwood.bench.rebuild_plan", logs, directory=directory, timeout_s=TIMEOUT_S
        )
        took_s, cpu_s, grown, planned = json.loads(printed)
        say(f"rebuild: {planned:,} blocks planned in {took_s:.1f} s, {cpu_s:.1f} s of a core")
        bound_s = PLAN_S * logs / 100_000
        times.append(Sample(took_s, bound_s))
        cpus.append(Sample(cpu_s, bound_s))
        sizes.append(Sample(grown / logs, PLAN_BYTES))
    parameters: dict[str, int | float | str] = {
        "logs": logs, "nodes": NODES, "nodeset": NODESET, "cores": os.cpu_count() or 0,
    }  # fmt: skip
    told = [
        ("rebuild_plan", "s", times, "what it may take"),
        ("rebuild_plan_cpu", "s", cpus, "what it may take"),
        ("rebuild_plan_memory", "B a log", sizes, "what it may take"),
    ]
    return [
        make_figure(name, unit, samples, reference_is=words, parameters=parameters)
        for name, unit, samples, words in told
    ]


async def _no_answer(node: int, blocks: Sequence[Held]) -> None:
    return None


async def _plan(directory: str, logs: int) -> tuple[float, float, int, int]:
    """Seconds, seconds of a core, growth of the process in bytes, and planned blocks."""
    settings = StorageSettings(partition_files=FILES_MAX)
    path, wal_path = os.path.join(directory, "logsdb"), os.path.join(directory, "wal")
    async with real_host() as host:
        await _fill(path, settings, host, logs)
        await Wal.format(host.disk, wal_path, 64 * MIB, owner=ME)
        tables = rocks_tables(path, settings, host)
        try:
            store, states = await LogsStore.open(tables, settings, ME)
            wal = await Wal.open(host.disk, wal_path, owner=ME)
            engine = await StorageEngine.open(wal, store, states, settings, lambda log: None)
            members = {NodeId(n): Member(NodeId(n), "", _rack(n)) for n in range(1, NODES + 1)}
            # As on a node: the pace of a donor begins low, until a look finds no other work.
            pace = DonorPace(float(settings.rebuild_bytes_s), engine.waits)
            look = DonorLook(ME, engine, lambda: members, pace, _NoMainStorage, _no_answer)
            donors = tuple(sorted(members.keys() - {LOST}))
            lost = RebuildingSet(1, 1, (LostNode(LOST, 1, donors=donors),))
            now = Pass(lost, Losses.of(lost))
            before, began_s, cpu_s = resident_bytes(), perf_counter(), process_time()
            async with asyncio.TaskGroup() as tasks:
                pacing = tasks.create_task(pace.watch())
                await look.look_at_all(now, lambda: False)
                pacing.cancel()
            took_s, cpu_s = perf_counter() - began_s, process_time() - cpu_s
            grown = resident_bytes() - before
            return took_s, cpu_s, grown, sum(each.blocks for each in now.todo)
        finally:
            await tables.close()


class _NoMainStorage:
    """No log is in main storage."""

    is_used = False

    async def refresh(self, *, anew: bool) -> None:
        pass

    def may_have(self, log: int) -> bool:
        return False

    async def lacks(self, log: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
        return ()


async def _fill(path: str, settings: StorageSettings, host: Host, logs: int) -> None:
    chance = random.Random(1)
    tables = rocks_tables(path, settings, host)
    try:
        store, _ = await LogsStore.open(tables, settings, ME)
        for first in range(1, logs + 1, LOGS_A_FLUSH):
            some = range(first, min(first + LOGS_A_FLUSH, logs + 1))
            nodesets = {log: _nodeset(chance) for log in some}
            blocks = [_block(log, nodes, chance) for log, nodes in nodesets.items()]
            states = {log: _state(nodes) for log, nodes in nodesets.items()}
            await store.flush(blocks, states, store.offset + 1, 1)
    finally:
        await tables.close()


def _rack(node: int) -> str:
    return f"r{node % RACKS}"


def _nodeset(chance: random.Random) -> list[int]:
    """It has this node and the lost node."""
    return sorted({ME, LOST, *chance.sample(range(3, NODES + 1), NODESET - 2)})


def _block(log: int, nodes: Iterable[int], chance: random.Random) -> StoredBlock:
    lsn = make_lsn(1, 1)
    third = chance.choice([node for node in nodes if node not in (ME, LOST)])
    header = BlockHeader(
        LogId(log), lsn, 1, log, stored_bytes=len(BODY), raw_bytes=len(BODY),
        stored_crc=crc32c(BODY), raw_crc=crc32c(BODY),
    )  # fmt: skip
    envelope = Envelope((ME, LOST, third))
    return StoredBlock(header, envelope, pack_header(header) + pack_envelope(envelope), BODY)


def _state(nodes: list[int]) -> LogState:
    lsn = make_lsn(1, 1)
    told = [EpochNodes(1, nodes, COPIES, 2, {}, [_rack(node) for node in nodes])]
    return LogState(
        released=lsn, last=lsn, blocks=1, bytes=len(BODY), nodesets=(1, pack_nodesets(told))
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_plan(sys.argv[1], int(sys.argv[2])))))
