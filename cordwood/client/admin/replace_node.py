"""Replaces a node's directory: its data goes to the others, and it joins again empty.

Each round asks the cluster for its state, and takes the step that `impact.replacement` chooses. So
the command can be repeated, wherever it was stopped.

Source: docs/protocol/maintenance.md (replacing a node).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cordwood.client.admin.named_ledgers import NamedLedgers
from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Retryable, Unreachable
from cordwood.impact.maintenance import Wanted, drained_words
from cordwood.impact.replacement import ReplaceStep, next_step
from cordwood.nodes import NodeId
from cordwood.rebuilding import LostNode

LOOK_S = 0.5
"""The pause between two rounds. A step of the cluster takes seconds or more."""

SETTLED_S = 10.0
"""The time that nodes may take to hear that a node is empty. Before, a client that does not know of
the drain may make a ledger on it. From then on the node takes no writer's entries, and re-adds only
of ledgers that it knows. A recovery or a repair may have chosen it before; such a client reads the
members once more after the node joined in the metadata, and before the first copy. So a look either
sees that the node joins, or the node gets no copies: unless the node that tells that client the
members has not heard for longer than this, and the drained node knows the ledger."""

STOPS = frozenset({"writes", "rebuilding"})
"""The services that must not stop. Without them a log would take no records, or copies would find
no place."""

Say = Callable[[str], None]


async def replace_node(
    store: Store,
    node: int,
    place: Callable[[], Awaitable[None]],
    is_placed: Callable[[], bool],
    *,
    timeout_s: float,
    say: Say,
    is_begun: Callable[[], bool] = lambda: False,
) -> None:
    """Bring a node to its new directory.

    Args:
        place: has the node's process end, and one start on the new directory.
        timeout_s: the longest time for all of it; finished steps stay.
        say: called with each step.
        is_begun: whether an earlier `place` was begun, and may have been stopped.
    Raises:
        BadSetting: the node does not exist.
        Rejected: some log would lack nodes without it, or a request for maintenance drains it,
            which would drain the new directory too. Or ledgers name it, and auto-recovery is off.
        Unreachable: it is not over in time. A repeated command continues.
    """
    who = NodeId(node)
    if who not in store.members:
        known = ", ".join(map(str, sorted(store.members)))
        raise BadSetting(f"there is no node {node}; there are {known}")
    await _check_requests(store, node)
    loop = asyncio.get_running_loop()
    ends_s, told, empty_s = loop.time() + timeout_s, None, None
    naming, ledgers = NamedLedgers(store.ledgers, who), list[int]()
    while loop.time() < ends_s:
        entry = await _entry(store, who)
        is_up = not isinstance((await store.status())[who], CordwoodError)
        waits, ledgers = False, []
        if entry is not None and entry.is_empty and not is_placed():
            empty_s = loop.time() if empty_s is None else empty_s
            waits = loop.time() < empty_s + SETTLED_S
            if not waits:
                try:
                    async with asyncio.timeout_at(ends_s):
                        ledgers = await naming.look()
                except TimeoutError:
                    break
                except (Retryable, Unreachable) as error:
                    say(f"node {node}: {error}")
                    waits = True
            if ledgers:
                await _check_autorecovery(store, node, ledgers)
        step = next_step(
            entry, is_up=is_up, is_placed=is_placed(), ledgers=len(ledgers) or int(waits),
            is_begun=is_begun(),
        )  # fmt: skip
        words = f"{step.value}: {_counted(ledgers)}" if ledgers else step.value
        if (step, bool(ledgers)) != told:
            say(f"node {node}: {words}")
            told = step, bool(ledgers)
        if step is ReplaceStep.DONE:
            return
        try:
            await _do(store, node, step, place)
        except (Retryable, Unreachable) as error:
            say(f"node {node}: {error}")
        await asyncio.sleep(LOOK_S)
    what = "`cordwood rebuild` tells what it waits for"
    if ledgers:
        what = f"{_counted(ledgers)} may need its directory (`cordwood ledgers list --node {node}`)"
    raise Unreachable(
        f"node {node} is not replaced after {timeout_s:g} s; {what}, and the same command goes on"
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
            pass  # the cluster is at work on the step


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


async def _check_autorecovery(store: Store, node: int, ledgers: list[int]) -> None:
    """Check that the ledgers that name a node will get copies elsewhere.

    Raises:
        Rejected: auto-recovery is off, so no node makes their copies.
    """
    if not (await store.ledgers.autorecovery()).on:
        raise Rejected(
            f"node {node} is not replaced: {_counted(ledgers)} may have their only copies there, "
            "and auto-recovery is off. Switch it on (`cordwood ledgers autorecovery on`), and give "
            "the command again"
        )


def _counted(ledgers: list[int]) -> str:
    return f"{len(ledgers):,} ledgers (the first is {ledgers[0]})"
