"""Replaces a node's directory: its data goes to the others, and it joins again empty.

Each round asks the cluster, and does what `impact.replacement` says. So the command can be given
again after it was stopped anywhere.

Source: docs/protocol/maintenance.md (replacing a node).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Retryable, Unreachable
from cordwood.impact.maintenance import Wanted, drained_words
from cordwood.impact.replacement import ReplaceStep, next_step
from cordwood.nodes import NodeId
from cordwood.rebuilding import LostNode

LOOK_S = 0.5

AUDITED_S = 45.0
"""What the auditor of ledgers may take to mark those that name a node that became empty: it looks
every 30 s."""

STOPS = frozenset({"writes", "rebuilding"})
"""What may not stop: without these a log would take no records, or copies find no place."""

Say = Callable[[str], None]


async def replace_node(
    store: Store,
    node: int,
    place: Callable[[], Awaitable[None]],
    is_placed: Callable[[], bool],
    *,
    timeout_s: float,
    say: Say,
) -> None:
    """Bring a node to its new directory.

    Args:
        place: has the node's process end, and one start on the new directory.
        timeout_s: the longest time for all of it; finished steps stay.
        say: called with each step.
    Raises:
        BadSetting: the node does not exist.
        Rejected: some log would lack nodes without it, or a request for maintenance drains it,
            which would drain the new directory too.
        Unreachable: it is not over in time. Giving the command again goes on.
    """
    who = NodeId(node)
    if who not in store.members:
        known = ", ".join(map(str, sorted(store.members)))
        raise BadSetting(f"there is no node {node}; there are {known}")
    await _check_requests(store, node)
    loop = asyncio.get_running_loop()
    ends_s, told, empty_s = loop.time() + timeout_s, None, None
    while loop.time() < ends_s:
        entry = await _entry(store, who)
        is_up = not isinstance((await store.status())[who], CordwoodError)
        ledgers = 0
        if entry is not None and entry.is_empty and not is_placed():
            empty_s = loop.time() if empty_s is None else empty_s
            ledgers = await _ledgers(store, node)
            ledgers = ledgers or int(loop.time() < empty_s + AUDITED_S)
        step = next_step(entry, is_up=is_up, is_placed=is_placed(), ledgers=ledgers)
        if step is not told:
            say(f"node {node}: {step.value}")
            told = step
        if step is ReplaceStep.DONE:
            return
        try:
            await _do(store, node, step, place)
        except (Retryable, Unreachable) as error:
            say(f"node {node}: {error}")
        await asyncio.sleep(LOOK_S)
    raise Unreachable(
        f"node {node} is not replaced after {timeout_s:g} s; `cordwood rebuild` tells what it "
        "waits for, and the same command goes on"
    )


async def _do(
    store: Store, node: int, step: ReplaceStep, place: Callable[[], Awaitable[None]]
) -> None:
    match step:
        case ReplaceStep.DRAIN:
            await _check(store, node)
            await store.say_rebuild(node, "drain")
        case ReplaceStep.LOST:
            await _check(store, node)
            await store.say_rebuild(node, "start")
        case ReplaceStep.LEAVE:
            await store.say_rebuild(node, "undrain")
        case ReplaceStep.PLACE:
            await place()
        case _:
            pass  # the cluster works at it


async def _check(store: Store, node: int) -> None:
    """
    Raises:
        Rejected: some log would lack nodes without it.
    """
    for found in (await store.check_impact([node])).findings:
        if found.stops in STOPS:
            raise Rejected(
                f"node {node} is not replaced: {found.stops} would stop for {found.logs} logs. "
                f"First: {found.first}"
            )


async def _check_requests(store: Store, node: int) -> None:
    """
    Raises:
        Rejected: a request drains the node, or will.
    """
    for each in await store.maintenance():
        if each.wanted == Wanted.DRAINED and node in each.nodes:
            raise Rejected(drained_words(node, each.number))


async def _entry(store: Store, node: NodeId) -> LostNode | None:
    lost = (await store.rebuilding(donors=False)).lost
    return next((each for each in lost if each.node == node), None)


async def _ledgers(store: Store, node: int) -> int:
    return sum([1 async for each in store.ledgers.under_replicated() if node in each.nodes])
