"""An operator's order about a node: the event that carries it out, and the words of its refusal.
And the words of the effect of a node's own report.

Source: docs/protocol/rebuilding.md ("Messages").
"""

from __future__ import annotations

import enum

from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.protocol.event_log import Verdict
from cordwood.rebuilding import (
    Aborted,
    LostNode,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    Undrained,
    Unrecoverable,
)
from cordwood.settings import NodeSettings


class Obeyed(enum.Enum):
    """The effect of an order that was not refused."""

    TAKEN = "it changed the set by which it was given"
    UNCHANGED = "the set by which it was given says so already"
    SINCE = "a later set says so: this order, or another one, was carried out since"


def event_of(call: SayRebuild, nodes: tuple[int, ...], *, anew: bool = False) -> RebuildEvent:
    """The event of an order.

    Args:
        nodes: every node of the cluster.
        anew: a drain that is under way begins anew.
    """
    node = call.node
    match call.order:
        case RebuildOrder.START:
            return NeedsRebuild(node, nodes, forced=call.forced)
        case RebuildOrder.DRAIN:
            return NeedsRebuild(node, nodes, drain=True, restart=anew, forced=call.forced)
        case RebuildOrder.GONE:
            return Unrecoverable(node)
        case RebuildOrder.UNDRAIN:
            return Undrained(node)
        case RebuildOrder.ABORT:
            return Aborted(node)


def end_of_drain(known: RebuildingSet, node: int) -> RebuildEvent | Verdict:
    """The event that ends a node's drain unless the node is empty by then; or why there is none.

    Args:
        known: with all events from before the order.
    """
    entry = known.entry(node)
    if entry is None:
        return Verdict.UNKNOWN_NODE
    if entry.is_empty:
        return Verdict.DONE_ALREADY if entry.drain else Verdict.UNCHANGED
    if entry.relocates:
        # It does the same as `Undrained`, but not to an empty node. A condition of `Undrained`
        # would be a field that earlier versions do not know.
        return Aborted(node, if_version=known.version)
    return Undrained(node)  # it is lost, and stays so


def carried_out(order: RebuildOrder) -> tuple[Verdict, ...]:
    """Verdicts that mean that an order was already carried out.

    A client sends an order a second time if the first node does not answer in time. With `Rejected`
    as the answer, the client would believe that the order had no effect.
    """
    takes_back = order in (RebuildOrder.UNDRAIN, RebuildOrder.ABORT)
    return (Verdict.UNKNOWN_NODE,) if takes_back else ()


def is_carried_out(order: RebuildOrder, entry: LostNode | None) -> bool:
    """Whether an order changes nothing any more in a node's entry."""
    match order:
        case RebuildOrder.START:
            return entry is not None and not entry.relocates and not entry.ranges
        case RebuildOrder.DRAIN:
            return entry is not None and entry.drain
        case RebuildOrder.GONE:
            return entry is not None and not entry.is_recoverable
        case RebuildOrder.UNDRAIN:
            return entry is None or not entry.drain
        case RebuildOrder.ABORT:
            return entry is None


def is_there(entry: LostNode | None) -> bool:
    """Whether the set counts a node as there with its data: the word that the data is gone has no
    effect on it (`Unrecoverable`)."""
    return entry is not None and not entry.is_empty and (entry.relocates or bool(entry.ranges))


def there_words(node: int) -> str:
    """Why the data of a node is not called gone, and the way out."""
    return (
        f"node {node} is not called lost yet: it was being drained, or only a part of its data was "
        f"lost. Give `cordwood rebuild start {node}` first, and then `cordwood rebuild gone {node}`"
    )


def empty_words(node: int) -> str:
    """Why the drain of an empty node goes on, and the way out."""
    return (
        f"node {node} is empty by now, so it stays drained: with the end of its drain it stops, "
        f"and ledgers may have their only copies there. `cordwood nodes undrain {node}` looks for "
        "them, and ends the drain"
    )


def late_words(node: int) -> str:
    """Why an order is not carried out by a set that is later than the order."""
    return (
        f"node {node}: this order took long, and another node may have carried it out: see "
        "`cordwood rebuild`, and give it again if it is needed"
    )


def words_of_refusal(node: int, verdict: Verdict) -> str:
    """Why an order was refused, and the way out."""
    hints = {
        Verdict.TOO_MANY: "; bring nodes back first, or insist with --force",
        Verdict.UNKNOWN_NODE: "; see `cordwood rebuild`",
        Verdict.DONE_ALREADY: "; start it with an empty directory",
    }
    return f"node {node}: {verdict.value}{hints.get(verdict, '')}"


def words_of_report(node: int, verdict: Verdict) -> str:
    """The effect of a report that a node is lost, and the way out if it was refused."""
    if verdict is not Verdict.TOO_MANY:
        return str(verdict.value)
    return (
        f"{verdict.value}. Bring lost nodes back. If their data is gone, insist: `cordwood rebuild "
        f"start {node} --force`"
    )


def stale_words(settings: NodeSettings) -> str:
    """The error of a node that must not serve its old copies."""
    node, directory = settings.node, settings.directory
    return (
        f"node {node} was away, and the data of its logs was made anew on other nodes meanwhile. "
        f"If `cordwood ledgers list --node {node}` lists any ledger, its only copies may be in "
        f"{directory}: give `cordwood nodes keep-ledgers {directory}`, and start the node again. "
        "It drops the blocks of its logs, and joins with its ledgers. "
        f"Otherwise move {directory} away, and start the node again. It joins empty"
    )
