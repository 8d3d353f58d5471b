"""A simulated audit: at the end of a run, each node is asked for all its copies of each log.

The checkers compare its answers with the dump of its disk (O2). The Spark job `audit` asks in the
same way, and relies on the answers.

Source: docs/sources/spark.md §7.
"""

from __future__ import annotations

import asyncio
from functools import partial

from cordwood.block import BlockKind
from cordwood.client.read.replica_scan import Copy, scan_copies
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST
from cordwood.nodes import NodeId
from cordwood.sim.crew import Crew
from cordwood.sim.history import DumpedSlots, SlotKind
from cordwood.sim.operator_events import NodeScanned
from cordwood.sim.workload import Clients

AUDITOR = "auditor"

AUDIT_S = 60.0
"""For the whole audit. A node that does not answer is given up after half of this time."""

_KINDS = {
    BlockKind.DATA: SlotKind.DATA,
    BlockKind.HOLE: SlotKind.HOLE,
    BlockKind.BRIDGE: SlotKind.BRIDGE,
}


async def audit(crew: Crew, clients: Clients, name: str = AUDITOR) -> None:
    """Have every log scanned on every node, up to its tail."""
    crew.start(name, partial(scan_all, name, clients))
    try:
        async with asyncio.timeout(AUDIT_S):
            await crew.wait(name)
    except TimeoutError:
        crew.kill(name)


async def scan_all(name: str, clients: Clients, host: Host) -> None:
    """Ask each node about each log. A node that cannot be asked is recorded as a failed call."""
    _, chance = clients.next_life(name)
    try:
        async with clients.connected(host, clients.settings(chance)) as store:
            for log, log_id in clients.log_ids.items():
                stop = clients.tails.get(log_id, 0) + 1
                for node in (await store.log(log)).all_nodes:
                    try:
                        told = await scan_copies(store, log, node, OLDEST, stop)
                    except CordwoodError as error:
                        clients.told(name, "scan_copies", error)
                        continue
                    _note(clients, node, log_id, stop, told.copies, is_damaged=told.is_damaged)
    except CordwoodError as error:
        clients.told(name, "connect", error)


def _note(
    clients: Clients, node: NodeId, log: int, stop: int, copies: list[Copy], *, is_damaged: bool
) -> None:
    slots = tuple(
        DumpedSlots(
            copy.first, copy.last, _KINDS[BlockKind(copy.kind)], (), copy.raw_crc,
            copy.is_intact, copy.seal_epoch, copy.wave,
        )
        for copy in copies
    )  # fmt: skip
    recorder = clients.recorder
    recorder.add(NodeScanned(recorder.now_us, node, log, stop, slots, is_damaged))
