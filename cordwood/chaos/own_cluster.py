"""The same load, readers and checkers on the user's own cluster, struck by a command.

Only the command strikes the cluster. It is called as `COMMAND strike NODE` and, when that fault is
over, `COMMAND ease NODE`: it may stop a service by ssh, pull a cable or drop packets. The seed
decides the times and nodes, and no more nodes are struck at once than the log's copies allow. The
load goes to two logs made for it, deleted at the end if all is well.

Source: docs/reliability.md, "Real processes" (on a cluster of your own).
"""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from cordwood.chaos.chaos_clients import LOAD
from cordwood.chaos.chaos_run import Play, Progress, Ran
from cordwood.chaos.commands import run_beside
from cordwood.chaos.frame_proxy import Told
from cordwood.chaos.plan import plan_of
from cordwood.client.address import SCHEME
from cordwood.client.store import Store, connected
from cordwood.errors import BadSetting
from cordwood.host.real import real_host
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings

COMMAND_KIND = "command"

JOIN_S = 5.0
"""A node that has started is in every member list within a second or two."""


class Commanded:
    """Faults by a command; see the module."""

    def __init__(self, command: str) -> None:
        self.proxied: dict[str, Told] = {}
        self._words = shlex.split(command)

    def processes(self) -> dict[NodeId, int]:
        """No processes: the nodes may be on any machine."""
        return {}

    async def play(
        self, kind: str, nodes: Sequence[NodeId], length_s: float, chance: random.Random
    ) -> None:
        """Strike, wait, ease. A struck node is eased in every case.

        Raises:
            Unreachable: the command failed; the text quotes it.
        """
        try:
            await run_beside(*self._words, "strike", str(nodes[0]))
            await asyncio.sleep(length_s)
        finally:
            await run_beside(*self._words, "ease", str(nodes[0]))


async def run_against(
    url: str, *, seed: int, seconds: float, command: str = "", progress: Progress | None = None
) -> Ran:
    """Put load on a running cluster for this long, strike it with the command, and judge.

    Args:
        url: `cordwood://host:port,…`.
        command: "" for load and checkers without faults.
    Raises:
        BadSetting: not a cluster's address, or a cluster to be struck whose logs have a single
            copy.
        Unreachable: the cluster cannot be reached.
    """
    if not url.startswith(SCHEME):
        raise BadSetting(f"{url}: name a cluster, {SCHEME}host:port,…: a directory runs no nodes")
    addresses = tuple(url.removeprefix(SCHEME).split(","))
    shown = progress or Progress(seconds)
    logs = tuple(f"/chaos-{seed}-{time.time_ns() // 1_000_000}/{name}" for name in "ab")
    async with real_host(seed) as host:
        async with connected(addresses, host, ClientSettings()) as store:
            nodes = await _members(store, len(addresses))
            replication = (await store.create_log(logs[0])).replication
            await store.create_log(logs[1])
        if command and (replication.copies < 2 or len(nodes) < 2):
            raise BadSetting(
                f"{replication.copies} copies on {len(nodes)} nodes cannot do without any of them: "
                "leave --strike out"
            )
        kinds = (COMMAND_KIND,) if command else ()
        plan = plan_of(
            seed, seconds, kinds, nodes=len(nodes), away_max=max(1, replication.copies - 1)
        )
        shown.planned = len(plan)
        load = replace(LOAD, logs=logs)
        play = Play(nodes, addresses, replication, host, seed, shown, load, own=False)
        play.blows = Commanded(command)
        ran = await play.run(plan, seconds)
        if not ran.problems:
            async with connected(addresses, host, ClientSettings()) as store:
                for log in logs:
                    await store.log_tree.delete(log)
    return ran


async def _members(store: Store, named: int) -> tuple[NodeId, ...]:
    """The cluster's nodes, after as many are there as were named; nodes of a young cluster join
    soon."""
    deadline_s = time.monotonic() + JOIN_S
    while len(store.members) < named and time.monotonic() < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return tuple(store.members)
