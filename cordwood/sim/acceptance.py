"""The end of a run that damaged disks: an operator accepts what the nodes lost.

A node that cannot read some of its records reports this. Until an operator accepts the loss, a
missing record on that node proves nothing; after that the node counts again. The operator follows
the rules: all other nodes are up, and every epoch that the damage may have touched has been
recovered without that node's answers. So nothing is lost that another node has. Afterwards every
log is read from start to end, and appended to.

Source: `cordwood nodes accept-loss`; docs/sources/logdevice.md 2.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from cordwood.nodes import NodeId
from cordwood.sim.aftermath import (
    LastWords,
    append_on,
    damaged_nodes,
    read_what_is_left,
    still_takes,
)
from cordwood.sim.cluster import SimCluster
from cordwood.sim.crew import Crew
from cordwood.sim.operator_events import LossAccepted
from cordwood.sim.stored_file import StoredFile
from cordwood.sim.workload import Clients
from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED

STEP_S = 60.0
"""The longest time that one step may take: nodes start, logs are recovered, everything is read."""


async def accept_losses(cluster: SimCluster, crew: Crew, clients: Clients) -> str:
    """Accept the losses of nodes, and check that all logs go on. Returns a text on the logs that do
    not, "" if all do."""
    if not damaged_nodes(cluster):
        return ""
    try:
        async with asyncio.timeout(STEP_S):
            sequencing = [n for n in cluster.numbers if cluster.sequencing(n)]
            await restart(cluster, sequencing)
            await _append_everywhere("writer-before", cluster, crew, clients)
        async with asyncio.timeout(STEP_S):
            damaged = damaged_nodes(cluster)
            for node in damaged:
                cluster.kill(node)
                word = StoredFile.holding(ACCEPTED)
                cluster.machine(node).disk.tree.put(f"/node/{ACCEPT_LOSS}", word)
                clients.recorder.add(LossAccepted(clients.recorder.now_us, node))
                cluster.start(node)
            await cluster.wait_running()
            await restart(cluster, damaged)  # a loss stays accepted
            ends = await _append_everywhere("writer-behind", cluster, crew, clients)
        async with asyncio.timeout(STEP_S):
            readers = []
            for number, (log, end) in enumerate(ends.items(), start=1):
                readers.append(f"survivor-{number}")
                reads = partial(read_what_is_left, readers[-1], log, end, clients)
                crew.start(readers[-1], reads)
            await crew.wait(*readers)
    except TimeoutError:
        clients.giving_up = True
        return f"{STEP_S:g} s after losses were accepted not all goes on"
    return ""


async def restart(cluster: SimCluster, nodes: Iterable[NodeId]) -> None:
    """SIGKILL nodes, and wait until they run again."""
    for node in nodes:
        cluster.kill(node)
        cluster.start(node)
    await cluster.wait_running()


async def _append_everywhere(
    name: str, cluster: SimCluster, crew: Crew, clients: Clients
) -> dict[str, int]:
    """Append to every log that takes appends until a record is acknowledged. By then every lower
    epoch is recovered, or will be soon. Returns the record of each log."""
    words = LastWords()
    words.is_told = True
    words.writes = [log for log in clients.log_ids if await still_takes(cluster, clients, log)]
    crew.start(name, partial(append_on, name, words, clients))
    await crew.wait(name)
    for log, end in words.ends.items():
        clients.tails[clients.log_ids[log]] = end
    return words.ends
