"""Restarts nodes one after the other, each only when no service stops without it.

Each node gets a request for maintenance, and its restart waits until the request is granted. Then
the command restarts the node, waits until it answers as a new process, and takes the request back.
Nodes that are down count as absent, so the next request is granted once the previous node is back.

While a request is blocked, the progress names the cause. A run that is interrupted takes its
request back, unless its node may be away: then the request ends by its TTL, which is little more
than the time that the run may take for one node.

Source: docs/protocol/maintenance.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable

from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Retryable, Unreachable
from cordwood.impact.maintenance import TTL_S_MAX
from cordwood.layout.message_maintenance import MaintenanceRequest
from cordwood.nodes import NodeId

logger = logging.getLogger(__name__)

LOOK_S = 0.5
SAY_S = 15.0
"""Pause between two lines about the cause of a wait. The cause may change at each look."""

TTL_SPARE_S = 60
"""The time by which a request outlasts the longest time of its node. That time is two waits: for
the grant, and until the node is back. The request of a killed run ends after this."""

REASON = "rolling restart"
BLOCKED = "BLOCKED_UNTIL_SAFE"

Restart = Callable[[NodeId], Awaitable[None]]
Say = Callable[[str], None]


async def nodes_in_service(store: Store, say: Say) -> list[NodeId]:
    """All nodes, in order, but those that were taken out of service: no call removes a member, and
    such a node never comes back. It is empty, and does not run.

    Args:
        say: called with the nodes that are left out.
    Raises:
        CordwoodError: no node tells which nodes are empty.
    """
    empty = {entry.node for entry in (await store.rebuilding()).lost if entry.is_empty}
    answers = await store.status()
    out = [n for n in sorted(answers) if n in empty and isinstance(answers[n], CordwoodError)]
    for node in out:
        say(f"node {node}: it is empty and does not run, so it is left out")
    return [node for node in sorted(answers) if node not in out]


async def rolling_restart(
    store: Store, nodes: Iterable[int], restart: Restart, *, user: str, timeout_s: float, say: Say
) -> None:
    """Restart nodes in the order given; none, if one of them is unknown.

    Args:
        restart: has a node's process end, and another one start. Rejected and OSError say that
            nothing was done.
        timeout_s: the longest wait for a grant, and for a node to be restarted and back.
        say: called with the progress, and with what a node's restart waits for.
    Raises:
        BadSetting: a node does not exist, or no node is named.
        Retryable: a node did not become safe to restart in time. It and the nodes after it were not
            restarted.
        Unreachable: a node did not come back in time. Its request stays, so that no other node is
            taken for it. So it does where `restart` raises anything but Rejected and OSError, or is
            cancelled, if the node does not answer as a new process by then. Of a node that was left
            alone no request stays.
    """
    wanted = [NodeId(node) for node in dict.fromkeys(nodes)]
    unknown = [node for node in wanted if node not in store.members]
    if unknown or not wanted:
        known = ", ".join(map(str, sorted(store.members)))
        what = f"there is no node {unknown[0]}" if unknown else "name a node"
        raise BadSetting(f"{what}; there are {known}")
    for node in wanted:
        made = await _apply(store, node, user, timeout_s)
        try:
            await _wait_granted(store, made, timeout_s, say)
        except BaseException:
            await _take_back(store, made)
            raise
        began_s = asyncio.get_running_loop().time()
        try:
            say(f"node {node}: restarting")
            await _restart(restart, node, timeout_s)
            await _wait_back(store, node, began_s, timeout_s)
        except (Rejected, OSError):
            await _take_back(store, made)
            raise
        except asyncio.CancelledError:
            await _stop(store, made, node, began_s, say)
            raise
        await store.remove_maintenance(made.number)
        took_s = asyncio.get_running_loop().time() - began_s
        say(f"node {node}: back after {took_s:.1f} s")


async def _apply(store: Store, node: NodeId, user: str, timeout_s: float) -> MaintenanceRequest:
    """Make the request. If the caller is cancelled meanwhile, no request is left."""
    ttl_s = min(2 * math.ceil(timeout_s) + TTL_SPARE_S, TTL_S_MAX)
    asking = asyncio.create_task(
        store.apply_maintenance([node], reason=REASON, user=user, ttl_s=ttl_s)
    )
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # The node that was asked makes it all the same, and only its answer has the number.
        try:
            await _take_back(store, await asking)
        except CordwoodError as error:
            logger.info("whether there is a request for node %d is not known: %s", node, error)
        raise


async def _wait_granted(store: Store, made: MaintenanceRequest, timeout_s: float, say: Say) -> None:
    loop = asyncio.get_running_loop()
    ends_s, told, say_s = loop.time() + timeout_s, "", 0.0
    found, requests = made, {made.number: made}
    while found.state == BLOCKED:
        words = _words_of_wait(found, requests.values())
        if loop.time() >= ends_s:
            raise Retryable(
                f"nodes {list(made.nodes)} are not restarted: {words}. A restart without this "
                "command waits for nothing, and stops that until the node is back"
            )
        await asyncio.sleep(LOOK_S)
        requests = {each.number: each for each in await store.maintenance()}
        if made.number not in requests:
            raise Retryable(f"request {made.number} is gone: it was removed")
        found = requests[made.number]
        words = _words_of_wait(found, requests.values())
        if found.state == BLOCKED and words != told and loop.time() >= say_s:
            say(f"node {made.nodes[0]}: waits for up to {ends_s - loop.time():.0f} s: {words}")
            told, say_s = words, loop.time() + SAY_S


def _words_of_wait(found: MaintenanceRequest, requests: Iterable[MaintenanceRequest]) -> str:
    """The cause for which a blocked request waits, and the other requests that count against it."""
    others = [each for each in requests if each.number != found.number and each.state != BLOCKED]
    words = found.blocked
    if others:
        named = "; ".join(
            f"{each.number} takes nodes {', '.join(map(str, each.nodes))} ({each.reason}, "
            f"by {each.user})"
            for each in others
        )
        words += (
            f". Requests that stand: {named}. Remove those that are not needed any more "
            "(`cordwood maintenance remove`)"
        )
    return words


async def _restart(restart: Restart, node: NodeId, timeout_s: float) -> None:
    """
    Raises:
        Unreachable: it takes too long; its request would end before it.
    """
    try:
        async with asyncio.timeout(timeout_s) as limit:
            await restart(node)
    except TimeoutError:
        if not limit.expired():
            raise  # the command's own, which says that nothing was done
        raise Unreachable(
            f"node {node} is not restarted after {timeout_s:g} s; its request for maintenance "
            "stays (`cordwood maintenance show`)"
        ) from None


async def _stop(
    store: Store, made: MaintenanceRequest, node: NodeId, began_s: float, say: Say
) -> None:
    """The run is interrupted behind the beginning of a restart."""
    try:
        is_back = await _is_back(store, node, began_s)
    except CordwoodError as error:
        logger.info("whether node %d is back is not known: %s", node, error)
        is_back = False
    if is_back:
        await _take_back(store, made)
    else:
        say(
            f"node {node}: it is not back yet. Once it is, remove its request: `cordwood "
            f"maintenance remove {made.number}`"
        )


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
        if await _is_back(store, node, began_s):
            return
    raise Unreachable(
        f"node {node} is not back after {timeout_s:g} s; its request for maintenance stays "
        "(`cordwood maintenance show`)"
    )


async def _is_back(store: Store, node: NodeId, began_s: float) -> bool:
    answer = (await store.status())[node]
    now = asyncio.get_running_loop().time()
    return not isinstance(answer, CordwoodError) and answer.uptime_s < now - began_s
