"""Orders of operators that begin or end a rebalance.

A client that gets no answer gives its order to another node, and may have given a later one since.
So an order names what its client saw (`RebuildingSet.rebalance_mark`), and no node carries it out
by a set with another mark. This is decided for the very set to which the event is added.

Source: docs/protocol/rebuilding.md ("A rebalance").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from cordwood.errors import BadSetting, Fenced, Rejected
from cordwood.layout.message_rebuilding import SayRebalance
from cordwood.protocol.event_log import Verdict
from cordwood.rebuilding import Rebalance, RebuildingSet, Transfer

if TYPE_CHECKING:
    from cordwood.storage.rebuild.drain_orders import Say

LATE = (
    "this order about a rebalance took long, and another node may have carried it out, or the "
    "nodes have changed since: see `cordwood rebuild`, and give it again if it is needed"
)


async def obey_rebalance(
    call: SayRebalance,
    members: Iterable[int],
    known: Callable[[], RebuildingSet],
    refresh: Callable[[], Awaitable[None]],
    say: Say,
) -> None:
    """Begin a rebalance, or end the one that is under way.

    Args:
        members: every node of the cluster.
        known, refresh, say: the rebuilding set, what reads all events, and what adds one.
    Raises:
        BadSetting: nothing can be given so.
        Rejected: nodes are being rebuilt or drained, or another rebalance is under way.
        Fenced: the set is another one than the one by which the order was given.
        CordwoodError: the set cannot be read or changed.
    """
    event = Rebalance(_shares_of(call, frozenset(members)))

    def holds(now: RebuildingSet) -> bool:
        mark = now.rebalance_mark(begins=bool(event.shares))
        return call.if_mark in (None, mark)

    if not holds(known()):
        await refresh()
    verdict = await say(event, holds)
    if verdict is Verdict.STALE:
        await refresh()  # a first try of this call may have been done
        if not is_rebalanced(known(), event):
            raise Fenced(LATE)
    elif verdict not in (Verdict.TAKEN, Verdict.UNCHANGED):
        raise Rejected(f"nothing is rebalanced: {verdict.value}; see `cordwood rebuild`")


def is_rebalanced(known: RebuildingSet, event: Rebalance) -> bool:
    """Whether an order about a rebalance changes nothing any more."""
    now = known.rebalancing
    if not event.shares:
        return now is None or not now.left or now.is_stopped
    return now is not None and bool(now.left) and now.shares == event.shares


def _shares_of(call: SayRebalance, members: frozenset[int]) -> tuple[Transfer, ...]:
    try:
        shares = tuple(Transfer(*each) for each in call.shares)
        msgspec.convert(msgspec.to_builtins(shares), tuple[Transfer, ...])
    except (ValueError, msgspec.ValidationError) as error:
        raise BadSetting(f"nothing can be given so: {error}") from None
    unknown = {node for each in shares for node in (each.source, each.target)} - members
    if unknown:
        names = ", ".join(map(str, sorted(members)))
        raise BadSetting(f"there is no node {min(unknown)}; there are {names}")
    return shares
