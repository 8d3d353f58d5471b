"""The faults of a plan, done to the nodes of a real cluster and undone.

Each fault is a `with` block: its effect is undone when the block ends, and then the node runs.
Damaged frames, and those that were refused, are counted for the verdict.

Source: docs/sources/reliability.md §5.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial

from cordwood.chaos import frame_proxy, packets, syscalls
from cordwood.chaos.clocked_node import step_clock
from cordwood.chaos.current_sequencer import wait_sequencer
from cordwood.chaos.disks import Disks
from cordwood.chaos.namespaces import Namespaces
from cordwood.chaos.packets import Packets
from cordwood.errors import Unreachable
from cordwood.local_cluster import LocalCluster
from cordwood.nodes import NodeId

CLOCK_STEP_S = 3600.0
"""The longest step of a clock, forward or back."""

LOSS_PER_CENT = (5, 30)

RESET_S, RESET_EVERY_S = 0.15, (0.3, 1.0)
"""How long connections are reset, and the pause until the next resets."""

LATE_MS = (10, 80)

PROXY_PORT = 20_000
"""The proxy of node n listens here plus n, in the node's own network."""

PROXY_TIMEOUT_S = 10.0
"""A Python that imports little starts in a fraction of a second."""

STOPPED_TIMEOUT_S = 5.0
"""SIGSTOP takes effect when each thread is next scheduled."""

TURNS = 3
"""Sequencers killed in a row."""


class Faults:
    """See the module.

    Args:
        networks, disks: None where the machine has none.
        sequencer: returns the node that sequences now, or None if none is known.
        wait_acked: returns after an acknowledgement.

        Attributes:
            proxied: the counts of the proxies, by harm.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        networks: Namespaces | None,
        disks: Disks | None,
        sequencer: Callable[[], Awaitable[NodeId | None]],
        wait_acked: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._networks = networks
        self._packets = None if networks is None else Packets(networks)
        self._disks = disks
        self._sequencer = sequencer
        self._wait_acked = wait_acked
        self.proxied: dict[str, frame_proxy.Told] = {}

    def processes(self) -> dict[NodeId, int]:
        """The nodes' processes."""
        return {
            number: node.process.pid
            for number, node in self._cluster.nodes.items()
            if node.process is not None
        }

    async def play(
        self, kind: str, nodes: Sequence[NodeId], length_s: float, chance: random.Random
    ) -> None:
        """Begin a fault, keep it for this long, and end it; then all of these nodes run.

        Args:
            nodes: the nodes that it hits; for `link` and `split` the second node is the other end.

        Raises:
            Unreachable: the fault could not begin or end, or a node did not come back.
        """
        node = nodes[0]
        if kind == "rolling-restart":
            await self._rolling_restart()
        elif kind == "ping-pong":
            await self._ping_pong(length_s)
        elif kind == "blackout":
            await self._cut_power(nodes, length_s)
        elif kind == "power-cut":
            await self._cut_power(nodes[:1], length_s)
        elif kind == "reset":
            await self._reset(node, length_s, chance)
        else:
            async with self._blocks(chance)[kind](nodes):
                await asyncio.sleep(length_s)

    def _blocks(self, chance: random.Random) -> Mapping[str, _Block]:
        """Faults that last for a while, by kind."""
        blocks: dict[str, _Block] = {
            "kill": self._killed,
            "stop": self._stopped,
            "cut-off": self._cut_off,
            "deaf": lambda nodes: self._ruled(nodes[:1], [packets.deaf()]),
            "mute": lambda nodes: self._ruled(nodes[:1], [packets.mute()]),
            "split": self._split,
            "link": lambda nodes: self._ruled(nodes[:1], [self._apart([nodes[1]])]),
            "loss": lambda nodes: self._ruled(
                nodes[:1], [packets.lossy(chance.randint(*LOSS_PER_CENT))]
            ),
            "jitter": lambda nodes: self._late(nodes[0], chance.randint(*LATE_MS)),
            "clock-step": lambda nodes: self._clock_stepped(
                nodes[0], chance.uniform(-CLOCK_STEP_S, CLOCK_STEP_S)
            ),
            "slow-writes": lambda nodes: self._tampered(nodes[0], syscalls.SLOW_WRITES),
            "slow-reads": lambda nodes: self._tampered(nodes[0], syscalls.SLOW_READS),
            "fsync-eio": lambda nodes: self._failing(nodes[0], syscalls.FSYNC_EIO),
            "write-eio": lambda nodes: self._failing(nodes[0], syscalls.WRITE_EIO),
            "full-disk": self._filled,
        }
        for harm in frame_proxy.HARMS:
            blocks[f"proxy-{harm}"] = partial(self._proxied, harm, chance.getrandbits(32))
        return blocks

    # Processes.

    @asynccontextmanager
    async def _killed(self, nodes: Sequence[NodeId]) -> AsyncIterator[None]:
        self._cluster.kill(nodes[0])
        yield
        await self._start(nodes[0])

    async def _start(self, node: NodeId) -> None:
        """Start a node that is dead or dying."""
        process = self._cluster.nodes[node].process
        if process is not None:
            await process.wait()
        await self._cluster.start_node(node)

    @asynccontextmanager
    async def _stopped(self, nodes: Sequence[NodeId]) -> AsyncIterator[None]:
        self._cluster.send_signal(nodes[0], signal.SIGSTOP)
        try:
            yield
        finally:
            self._cluster.send_signal(nodes[0], signal.SIGCONT)

    async def _rolling_restart(self) -> None:
        for node in self._cluster.nodes:
            await self._cluster.stop_node(node)
            await self._cluster.start_node(node)
            await self._wait_acked()

    async def _ping_pong(self, length_s: float) -> None:
        """Kill the node that sequences. As soon as another node does, kill that node, back and
        forth."""
        for _ in range(TURNS):
            node = await wait_sequencer(self._sequencer)
            self._cluster.kill(node)
            await asyncio.sleep(length_s)
            await self._wait_acked()
            await self._start(node)

    @asynccontextmanager
    async def _clock_stepped(self, node: NodeId, step_s: float) -> AsyncIterator[None]:
        directory = self._cluster.nodes[node].directory
        step_clock(directory, round(step_s * 1e6))
        try:
            yield
        finally:
            step_clock(directory, 0)

    # The network.

    @asynccontextmanager
    async def _cut_off(self, nodes: Sequence[NodeId]) -> AsyncIterator[None]:
        assert self._networks is not None, "a node is cut off from a network of its own"
        self._networks.cut(nodes[0])
        try:
            yield
        finally:
            self._networks.mend(nodes[0])

    def _apart(self, others: Sequence[NodeId]) -> str:
        assert self._networks is not None, "packets are dropped in networks of the nodes' own"
        return packets.apart(map(self._networks.host, others))

    def _split(self, nodes: Sequence[NodeId]) -> AbstractAsyncContextManager[None]:
        here = nodes[:2]
        there = [node for node in self._cluster.nodes if node not in here]
        return self._ruled(here, [self._apart(there)] * len(here))

    @asynccontextmanager
    async def _ruled(self, nodes: Sequence[NodeId], rules: Sequence[str]) -> AsyncIterator[None]:
        assert self._packets is not None, "packets are dropped in networks of the nodes' own"
        try:
            for node, chains in zip(nodes, rules, strict=True):
                await self._packets.rule(node, chains)
            yield
        finally:
            for node in nodes:
                await self._packets.leave(node)

    async def _reset(self, node: NodeId, length_s: float, chance: random.Random) -> None:
        until_s = asyncio.get_running_loop().time() + length_s
        while True:
            async with self._ruled([node], [packets.resetting()]):
                await asyncio.sleep(RESET_S)
            if asyncio.get_running_loop().time() > until_s:
                return
            await asyncio.sleep(chance.uniform(*RESET_EVERY_S))

    @asynccontextmanager
    async def _late(self, node: NodeId, late_ms: int) -> AsyncIterator[None]:
        assert self._packets is not None, "packets are late in networks of the nodes' own"
        await self._packets.be_late(node, late_ms)
        try:
            yield
        finally:
            await self._packets.be_on_time(node)

    @asynccontextmanager
    async def _proxied(self, harm: str, seed: int, nodes: Sequence[NodeId]) -> AsyncIterator[None]:
        node = nodes[0]
        assert self._networks is not None, "frames are redirected in networks of the nodes' own"
        port = int(self._cluster.nodes[node].address.rpartition(":")[2])
        listen = PROXY_PORT + node
        process = await asyncio.create_subprocess_exec(
            *self._networks.command(node), sys.executable, "-m", "cordwood.chaos.frame_proxy",
            "--listen", f"0.0.0.0:{listen}", "--to", self._cluster.nodes[node].address,
            "--harm", harm, "--seed", str(seed),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None, "its standard output is a pipe"
        assert process.stdin is not None, "its standard input is a pipe"
        try:
            async with asyncio.timeout(PROXY_TIMEOUT_S):
                if await process.stdout.readline() != b"ready\n":
                    raise Unreachable(f"the proxy before node {node} did not start")
            async with self._ruled([node], [packets.resetting()]):
                await asyncio.sleep(RESET_S)
            async with self._ruled([node], [packets.redirected(port, listen)]):
                yield
            process.stdin.close()
            async with asyncio.timeout(PROXY_TIMEOUT_S):
                self._note_told(harm, await process.stdout.readline())
                await process.wait()
        except TimeoutError:
            raise Unreachable(f"the proxy before node {node} does not answer") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _note_told(self, harm: str, line: bytes) -> None:
        told = frame_proxy.Told(**json.loads(line))
        known = self.proxied.setdefault(harm, frame_proxy.Told())
        known.frames += told.frames
        known.harmed += told.harmed
        known.refused += told.refused

    # The disk.

    @asynccontextmanager
    async def _tampered(self, node: NodeId, injection: str) -> AsyncIterator[None]:
        process = self._cluster.nodes[node].process
        assert process is not None, "only a node that runs is traced"
        tracer = await syscalls.tamper(process.pid, injection)
        try:
            yield
        finally:
            await syscalls.let_go(tracer)

    @asynccontextmanager
    async def _failing(self, node: NodeId, injection: str) -> AsyncIterator[None]:
        """A node whose disk has failed does not use it again, so it is killed and restarted."""
        async with self._tampered(node, injection):
            yield
        self._cluster.kill(node)
        await self._start(node)

    @asynccontextmanager
    async def _filled(self, nodes: Sequence[NodeId]) -> AsyncIterator[None]:
        """A node that ended because its disk was full is restarted when there is free space."""
        assert self._disks is not None, "a disk is filled that is the node's own"
        try:
            self._disks.fill(nodes[0])
            yield
        finally:
            self._disks.empty(nodes[0])
        if not self._cluster.nodes[nodes[0]].is_running:
            await self._start(nodes[0])

    async def _cut_power(self, nodes: Sequence[NodeId], length_s: float) -> None:
        assert self._disks is not None, "power is cut from a disk that is the node's own"
        for node in nodes:
            self._cluster.send_signal(node, signal.SIGSTOP)
        for node in nodes:
            await self._wait_stopped(node)
        # From here on nothing more is acknowledged, and all acknowledged records are on the disks.
        for node in nodes:
            self._disks.clone(node)
        for node in nodes:
            self._cluster.kill(node)
        for node in nodes:
            process = self._cluster.nodes[node].process
            assert process is not None, "it was stopped and not forgotten"
            await process.wait()
            await self._disks.lose_power(node)
        await asyncio.sleep(length_s)
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(self._start(node))

    async def _wait_stopped(self, node: NodeId) -> None:
        """Wait until no thread of a node runs; a thread in the kernel leaves it first."""
        process = self._cluster.nodes[node].process
        assert process is not None, "only a node that runs is stopped"
        async with asyncio.timeout(STOPPED_TIMEOUT_S):
            while not _is_stopped(process.pid):  # noqa: ASYNC110  the kernel tells nobody
                await asyncio.sleep(0.002)


_Block = Callable[[Sequence[NodeId]], AbstractAsyncContextManager[None]]


def _is_stopped(process: int) -> bool:
    """Whether all threads are stopped (T), by proc(5)."""
    states = set()
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(FileNotFoundError), open(f"/proc/{process}/task/{thread}/stat") as file:
            states.add(file.read().rpartition(")")[2].split()[0])
    return states <= {"T", "t"}
