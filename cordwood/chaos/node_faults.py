"""The faults of one node of a real cluster.

kill -9; SIGSTOP, after which a node is there and silent; isolation from all other nodes, which
needs network namespaces; and a slow disk, made by strace, which delays each of the node's writes.
Impossible faults are left out, and `missing` says why.

Source: docs/reliability.md, "Real processes"; docs/sources/reliability.md §5.1.
"""

from __future__ import annotations

import asyncio
import signal

from cordwood.chaos.namespaces import Namespaces
from cordwood.chaos.syscalls import SLOW_WRITES, let_go, tamper
from cordwood.local_cluster import LocalCluster
from cordwood.nodes import NodeId

KILL, STOP, CUT = "kill", "stop", "cut"
"""kill -9, SIGSTOP and isolation of the node that sequences."""

KILL_STORAGE, STOP_STORAGE, CUT_STORAGE = "kill-storage", "stop-storage", "cut-storage"
"""The same faults of a node that does not sequence, and holds copies."""

SLOW_DISK = "slow-disk"
"""A storage node's writes take `syscalls.DELAY_S` longer each."""

KINDS = (KILL, STOP, KILL_STORAGE, STOP_STORAGE, CUT, CUT_STORAGE, SLOW_DISK)

OF_SEQUENCERS = (KILL, STOP, CUT)


class NodeFaults:
    """See the module."""

    def __init__(self, cluster: LocalCluster, networks: Namespaces | None) -> None:
        """
        Args:
            networks: the nodes' networks; None if no node is cut off.
        """
        self._cluster = cluster
        self._networks = networks
        self._tracers: dict[NodeId, asyncio.subprocess.Process] = {}

    async def strike(self, kind: str, node: NodeId) -> None:
        """Begin a fault; `ease` ends it.

        Raises:
            Unreachable: the fault is impossible here.
        """
        if kind in (KILL, KILL_STORAGE):
            self._cluster.kill(node)
        elif kind in (STOP, STOP_STORAGE):
            self._cluster.send_signal(node, signal.SIGSTOP)
        elif kind == SLOW_DISK:
            self._tracers[node] = await self._slow_down(node)
        else:
            assert self._networks is not None, "a node is cut off from a network of its own"
            self._networks.cut(node)

    async def ease(self, kind: str, node: NodeId) -> None:
        """End the fault; a killed node runs again.

        Raises:
            Unreachable: it did not start.
        """
        if kind in (KILL, KILL_STORAGE):
            process = self._cluster.nodes[node].process
            assert process is not None, "it was killed and not forgotten"
            await process.wait()
            await self._cluster.start_node(node)
        elif kind in (STOP, STOP_STORAGE):
            self._cluster.send_signal(node, signal.SIGCONT)
        elif kind == SLOW_DISK:
            await let_go(self._tracers.pop(node))
        else:
            assert self._networks is not None, "it was cut off"
            self._networks.mend(node)

    async def close(self) -> None:
        """Release nodes that are still slowed down."""
        while self._tracers:
            await let_go(self._tracers.popitem()[1])

    async def _slow_down(self, node: NodeId) -> asyncio.subprocess.Process:
        process = self._cluster.nodes[node].process
        assert process is not None, "only a node that runs is slowed down"
        return await tamper(process.pid, SLOW_WRITES)
