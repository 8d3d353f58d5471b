"""Restarts nodes one after the other, each only when nothing stops without it.

Each node gets a request for maintenance, and its restart waits until the request is granted. Then
the node is restarted, and waited for until it answers as a new process. Then the request is taken
back. Nodes that are down count as absent, so the next request is granted once the previous node is
back.

Source: docs/protocol/maintenance.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Retryable, Unreachable
from cordwood.layout.message_maintenance import MaintenanceRequest
from cordwood.nodes import NodeId

logger = logging.getLogger(__name__)

LOOK_S = 0.5
TTL_S = 3600
"""A restart that was given up leaves no request for longer."""

REASON = "rolling restart"
BLOCKED = "BLOCKED_UNTIL_SAFE"

Restart = Callable[[NodeId], Awaitable[None]]
Say = Callable[[str], None]


async def rolling_restart(
    store: Store, nodes: Iterable[int], restart: Restart, *, user: str, timeout_s: float, say: Say
) -> None:
    """Restart nodes in the order given; none, if one of them is unknown.

    Args:
        restart: has a node's process end, and another one start. Rejected and OSError say that
            nothing was done.
        timeout_s: the longest wait for a grant, and for a node to be back.
        say: called with the progress.
    Raises:
        BadSetting: a node does not exist, or no node is named.
        Retryable: a node is not safe to take in time; it and those after it were left alone.
        Unreachable: a node did not come back in time. Its request stays, so that no other node is
            taken for it. So it does where `restart` raises anything but Rejected and OSError, or is
            cancelled. Of a node that was left alone no request stays.
    """
    wanted = [NodeId(node) for node in dict.fromkeys(nodes)]
    unknown = [node for node in wanted if node not in store.members]
    if unknown or not wanted:
        known = ", ".join(map(str, sorted(store.members)))
        what = f"there is no node {unknown[0]}" if unknown else "name a node"
        raise BadSetting(f"{what}; there are {known}")
    for node in wanted:
        made = await store.apply_maintenance([node], reason=REASON, user=user, ttl_s=TTL_S)
        try:
            await _wait_granted(store, made, timeout_s)
        except BaseException:
            await _take_back(store, made)
            raise
        say(f"node {node}: restarting")
        began_s = asyncio.get_running_loop().time()
        try:
            await restart(node)
        except (Rejected, OSError):
            await _take_back(store, made)
            raise
        await _wait_back(store, node, began_s, timeout_s)
        await store.remove_maintenance(made.number)
        took_s = asyncio.get_running_loop().time() - began_s
        say(f"node {node}: back after {took_s:.1f} s")


async def _wait_granted(store: Store, made: MaintenanceRequest, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + timeout_s
    found = made
    while found.state == BLOCKED:
        if loop.time() >= ends_s:
            raise Retryable(f"nodes {list(made.nodes)} are not restarted: {found.blocked}")
        await asyncio.sleep(LOOK_S)
        requests = {each.number: each for each in await store.maintenance()}
        if made.number not in requests:
            raise Retryable(f"request {made.number} is gone: somebody removed it")
        found = requests[made.number]


async def _take_back(store: Store, made: MaintenanceRequest) -> None:
    """No node is restarted: the request would hold up other requests for an hour. If no node
    answers now, its TTL ends it."""
    try:
        await store.remove_maintenance(made.number)
    except CordwoodError as error:
        logger.info("request %d for maintenance is not taken back: %s", made.number, error)


async def _wait_back(store: Store, node: NodeId, began_s: float, timeout_s: float) -> None:
    """Wait until a process answers that began after `began_s`."""
    loop = asyncio.get_running_loop()
    while loop.time() < began_s + timeout_s:
        await asyncio.sleep(LOOK_S)
        answer = (await store.status())[node]
        if not isinstance(answer, CordwoodError) and answer.uptime_s < loop.time() - began_s:
            return
    raise Unreachable(
        f"node {node} is not back after {timeout_s:g} s; its request for maintenance stays "
        "(`cordwood maintenance show`)"
    )
