"""Applies events to the rebuilding set, and derives from the set the status of each node's data.

This is a replicated state machine. All nodes that apply the same events in the order of their LSNs,
from the beginning or from a snapshot, have the same set. Nothing else is an input: no clock and no
member list. An event that needs the members carries them.

- **Versions.** A new version tells every donor to check its blocks again, with the new set. An
  `IsRebuilt` of an older version has no effect.
- **A donor that is done stays done**, with three exceptions. If a donor is lost before it was done,
  the donors after it take over its blocks, so these donors work again. A node that is back with
  its data is a donor for the other lost nodes, because it stands before donors that would have
  given its blocks. And a donor that was unsure works again when a node is back.
- **A node takes no block whose copyset names an entry of the set** (`storage.refusals`). So a node
  that joined after the event holds no such block, and need not be a donor. An event may also leave
  out a node that joined before it, because its writer had an old member list. So each donor looks
  at the member list before it reports that it is done (`left_out`).
- **Empty stays** until the node acks: readers no longer count on the node.

One thing differs from LogDevice: if no donor is left, a node is called empty only if no lost node
may come back.

A limit: a block whose copies were all on lost nodes is given up with them. If one of these nodes
comes back after another of them was acked, the block keeps too few copies.

Source: docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from cordwood.nodes import Authority, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_lose
from cordwood.rebuilding import (
    RANGES_MAX,
    Aborted,
    Acked,
    DonorProgress,
    Gave,
    IsRebuilt,
    LostNode,
    NeedsRebuild,
    Rebalance,
    Rebalancing,
    RebuildEvent,
    RebuildingSet,
    Restated,
    TimeRange,
    Undrained,
    Unrecoverable,
)

REBUILDING_MAX = 0.35
"""Share of all nodes. If more are away, the cause is the network or the power, and rebuilding would
fill the disks of the nodes that are left."""


def has_place(nodeset: Nodeset, replication: Replication) -> bool:
    """Say whether nodes can keep the replicated event log with any R - 1 of them lost.

    Otherwise the log could store neither its copies nor the end of an epoch, and so it could not
    record the loss. With one copy, a lost node takes events along.

    Args:
        nodeset: the members that take records.
        replication: of the log, R copies.
    Source: docs/protocol/event-log.md, "What the metadata store keeps".
    """
    lost = replication.copies - 1
    return lost > 0 and can_lose(lost, nodeset, replication)


def event_log_nodes(replication: Replication) -> int:
    """The size of the event log's nodeset: so few nodes that R - 1 of them seldom go at once."""
    return 2 * replication.copies + 1


def replication_with_place(nodeset: Nodeset, asked: Replication) -> Replication:
    """The replication of the event log among these nodes: the nearest to that of the root with
    which they can record a loss (`has_place`).

    The events do not move back. An operator may have changed the root since they moved into the
    log, may have removed nodes, or may have drained nodes for good.

    Args:
        nodeset: the members that take records by the metadata store, without the nodes whose data
            lies on other nodes. Those that the event log calls lost, or that a drain still empties,
            are among them: otherwise an order of an hour would change the replication.
        asked: of logs at the root.
    Returns:
        `asked` if it can be. Otherwise as many copies as can be, up to those asked for and at
        least two, over as many domains as can be. If these nodes cannot record a loss with any
        replication, the nearest that they can store: they can still record that a node is back.
        `asked` if they cannot keep two copies.
    Source: docs/protocol/event-log.md, "What the metadata store keeps".
    """
    for is_enough in (has_place, _can_store):
        for copies in range(max(asked.copies, 2), 1, -1):
            for domains in range(copies, 0, -1):
                wider = tuple((scope, min(count, domains)) for scope, count in asked.wider)
                found = Replication(copies, min(asked.racks, domains), wider if domains > 1 else ())
                if is_enough(nodeset, found):
                    return found
    return asked


def _can_store(nodeset: Nodeset, replication: Replication) -> bool:
    return can_lose(0, nodeset, replication)


class Verdict(enum.Enum):
    """The effect of an event."""

    TAKEN = "it changed the set"
    SEEN = "it was looked at before"
    UNCHANGED = "the set says so already"
    STALE = "it is of another version than the set"
    UNKNOWN_NODE = "it names no node of the cluster, or one of which nothing is said"
    TOO_MANY = "too many nodes would be rebuilding"
    NOT_DONE = "the node is not rebuilt yet"
    DRAINED = "the node is to stay empty until it is undrained"
    DONE_ALREADY = "the node's data lies on other nodes by now"
    BUSY = "nodes are being rebuilt or drained, or another rebalance is under way"


class Outcome(NamedTuple):
    """The set after an event, and the effect of the event."""

    after: RebuildingSet
    verdict: Verdict


_Refused = Verdict | RebuildingSet


def apply(before: RebuildingSet, lsn: int, event: RebuildEvent) -> Outcome:
    """Apply the event at `lsn`. Events come in the order of their LSNs; some may come twice."""
    if lsn <= before.through:
        return Outcome(before, Verdict.SEEN)
    here = replace(before, through=lsn)
    match event:
        case NeedsRebuild():
            found = _needs_rebuild(here, lsn, event)
        case DonorProgress():
            found = _progress(here, event)
        case IsRebuilt():
            found = _is_rebuilt(here, event)
        case Acked():
            found = _acked(here, event)
        case Aborted():
            found = _aborted(here, lsn, event)
        case Undrained():
            found = _undrained(here, lsn, event)
        case Unrecoverable():
            found = _unrecoverable(here, event)
        case Rebalance():
            found = _rebalance(here, lsn, event)
        case Gave():
            found = _gave(here, event)
        case _:
            assert_never(event)
    if isinstance(found, Verdict):
        return Outcome(here, found)
    return Outcome(_settled(_only_whole(found)), Verdict.TAKEN)


def ends_in_vain(event: RebuildEvent, verdict: Verdict) -> bool:
    """Whether an event was to end a drain or a rebuilding that is not there. A lost node has an
    entry also without a drain."""
    vain = (Verdict.UNKNOWN_NODE, Verdict.UNCHANGED)
    return isinstance(event, Undrained | Aborted) and verdict in vain


def replay(
    events: Iterable[tuple[int, RebuildEvent]], snapshot: RebuildingSet | None = None
) -> RebuildingSet:
    """The set after many events."""
    found = snapshot or RebuildingSet()
    for lsn, event in events:
        found = apply(found, lsn, event).after
    return found


def begin_anew(said: Restated, lsn: int) -> RebuildingSet:
    """The set after the restated set at `lsn`, whatever a follower had before.

    Events behind `said.set` may be missing, so donors that were done before look again: a report of
    theirs may be missing, or an event behind it that gave them more work. Nodes that are called
    empty stay so: an ack of theirs would be in the set (docs/protocol/event-log.md).
    """
    before = said.set

    def asked(each: LostNode) -> LostNode:
        if each.is_empty:
            return each
        donors = _donors(before, said.nodes, each.node, relocates=each.relocates)
        return replace(each, donors=donors, done=(), is_certain=True)

    here = replace(before, through=lsn, lost=tuple(map(asked, before.lost)), restated=said.number)
    return _settled(_only_whole(_restarted(here, lsn)))


def authority_of(rebuilding: RebuildingSet, node: int) -> Authority:
    """The node's status, by which readers and recoveries judge its silence."""
    entry = rebuilding.entry(node)
    if entry is None or entry.ranges:
        # A node that lost only a range runs. It answers "not known" for that range.
        return Authority.FULLY_AUTHORITATIVE
    if entry.is_empty:
        return Authority.AUTHORITATIVE_EMPTY
    if entry.relocates:
        return Authority.FULLY_AUTHORITATIVE
    return Authority.UNAVAILABLE if entry.is_recoverable else Authority.UNDER_REPLICATED


def authorities(rebuilding: RebuildingSet) -> dict[NodeId, Authority]:
    """The nodes that are not fully authoritative."""
    found = {NodeId(each.node): authority_of(rebuilding, each.node) for each in rebuilding.lost}
    return {node: it for node, it in found.items() if it is not Authority.FULLY_AUTHORITATIVE}


def refuses(rebuilding: RebuildingSet) -> frozenset[int]:
    """Nodes that no copyset of a new block may name."""
    return frozenset(each.node for each in rebuilding.lost if not each.ranges)


def leaving(rebuilding: RebuildingSet) -> frozenset[NodeId]:
    """Nodes that are there and give their copies away, and are not empty yet."""
    return frozenset(drains(rebuilding))


def drains(rebuilding: RebuildingSet) -> dict[NodeId, int]:
    """The nodes of `leaving`, each with the LSN of the event that asked for it last."""
    return {
        NodeId(each.node): each.version
        for each in rebuilding.lost
        if each.relocates and not each.is_empty
    }


def work_of(rebuilding: RebuildingSet, donor: int) -> tuple[int, ...]:
    """The lost nodes for which `donor` still has to give, in node order."""
    return tuple(
        each.node
        for each in rebuilding.lost
        if not each.is_empty and donor in each.donors and donor not in each.done
    )


def left_out(
    rebuilding: RebuildingSet,
    members: Iterable[int],
    donor: int,
    joined: Mapping[int, int] | None = None,
) -> NeedsRebuild | None:
    """The event that begins the work of `donor` for a node anew, with all members that have data;
    None if no entry of its work leaves a member out.

    The donors of an entry are the nodes that its writer knew. A writer that is cut off from the
    metadata store does not know a node that has joined, and blocks of the lost node may lie there.

    Args:
        members: read after the set, so that each node that started before the events is there.
        joined: by node, the LSN up to which it knew the events as it joined. A node that knew the
            entry has no block that names its node, and is left out: it may have died since, and
            rebuilding would wait for it.
    """
    members, joined = tuple(members), joined or {}
    for node in work_of(rebuilding, donor):
        entry = rebuilding.entry(node)
        assert entry is not None, "the donor has work for it"
        asked = (each for each in members if joined.get(each, -1) < entry.version)
        nodes = tuple(sorted({node, *entry.donors, *asked}))
        donors = _donors(rebuilding, nodes, node, relocates=entry.relocates)
        if not entry.ranges and set(donors) - set(entry.donors):
            return NeedsRebuild(
                node, nodes, drain=entry.relocates, if_version=rebuilding.version, restart=True
            )
    return None


def with_holder(
    rebuilding: RebuildingSet, short_of: Iterable[int], holder: int
) -> NeedsRebuild | None:
    """The event that makes a donor of a node that joined after a loss, and that has blocks with too
    few copies of which a recovery made none on the lost node; None if there is nothing to say.

    No other node may have these blocks, and without a donor the lost node would join empty.

    Args:
        short_of: the lost nodes of which copies are missing.
    """
    for node in sorted(short_of):
        entry = rebuilding.entry(node)
        if entry is None or entry.is_empty or entry.relocates or entry.ranges:
            continue
        nodes = tuple(sorted({node, holder, *entry.donors}))
        # A node that is lost itself becomes no donor by it.
        if holder in set(_donors(rebuilding, nodes, node, relocates=False)) - set(entry.donors):
            return NeedsRebuild(node, nodes, if_version=rebuilding.version, restart=True)
    return None


def gives_last(rebuilding: RebuildingSet, node: int) -> bool:
    """Whether a node is no drained node, or all other donors of its copies are done, and all nodes
    are empty whose drains were asked for earlier.

    A drained node leaves blocks to members before it, and to main storage. Both may lose them while
    the drain goes on for other donors. So it looks once more when it is the last one. It holds back
    only the report about itself, and a later drain waits for an earlier one: none waits in a
    circle.

    Source: docs/protocol/rebuilding.md ("How a loss is healed", 5).
    """
    entry = rebuilding.entry(node)
    if entry is None or not entry.relocates or entry.is_empty:
        return True
    # Race: a block that is left to another drained node is on no other node once that one is empty.
    if _follows_a_drain(rebuilding, entry):
        return False
    return set(entry.donors) - set(entry.done) <= {node}


def _follows_a_drain(rebuilding: RebuildingSet, entry: LostNode) -> bool:
    return any(version < entry.version for version in drains(rebuilding).values())


def gives(rebuilding: RebuildingSet, donor: int) -> bool:
    """Whether `donor` still has to give its part of a rebalance."""
    return rebuilding.rebalancing is not None and donor in rebuilding.rebalancing.left


def _rebalance(here: RebuildingSet, lsn: int, event: Rebalance) -> _Refused:
    known = here.rebalancing
    if not event.shares:
        if known is None or not known.left or known.is_stopped:
            return Verdict.UNCHANGED
        # Its donors go on until they have finished the moves that they noted.
        return _restarted(
            replace(here, rebalancing=replace(known, shares=(), is_stopped=True)), lsn
        )
    is_busy = any(not each.is_empty and not each.ranges for each in here.lost)
    if known is not None and known.left:
        # The same order twice, where the first answer was lost.
        return Verdict.UNCHANGED if known.shares == event.shares else Verdict.BUSY
    if is_busy:
        return Verdict.BUSY
    donors = tuple(sorted({each.source for each in event.shares}))
    return _restarted(replace(here, rebalancing=Rebalancing(lsn, event.shares, donors)), lsn)


def _gave(here: RebuildingSet, event: Gave) -> _Refused:
    known = here.rebalancing
    if known is None or event.donor not in known.donors:
        return Verdict.UNKNOWN_NODE
    if event.version != known.version:
        return Verdict.STALE
    if event.donor not in known.left:
        return Verdict.UNCHANGED
    told = tuple(sorted([*known.gave, event], key=lambda each: each.donor))
    return replace(here, rebalancing=replace(known, gave=told))


def _only_whole(here: RebuildingSet) -> RebuildingSet:
    """A node that is lost or drained gives nothing to a rebalance any more, and gets nothing."""
    known = here.rebalancing
    if known is None or not known.left:
        return here
    away = {each.node for each in here.lost if not each.ranges}
    shares = tuple(e for e in known.shares if not {e.source, e.target} & away)
    donors = tuple(node for node in known.donors if node not in away or node not in known.left)
    return replace(here, rebalancing=replace(known, shares=shares, donors=donors))


def _needs_rebuild(here: RebuildingSet, lsn: int, event: NeedsRebuild) -> _Refused:
    if event.if_version not in (None, here.version):
        return Verdict.STALE
    if event.node not in event.nodes:
        return Verdict.UNKNOWN_NODE
    known = here.entry(event.node)
    if known is not None and known.is_empty:
        # Other nodes hold its data, and it took no block since.
        is_news = event.drain and not known.drain
        return _with(here, replace(known, drain=True)) if is_news else Verdict.UNCHANGED
    if known is not None and not known.ranges and not event.restart:
        if not known.relocates:
            # A lost node cannot give blocks. Only an order to stay empty changes its entry.
            is_news = event.drain and not known.drain
            return _with(here, replace(known, drain=True)) if is_news else Verdict.UNCHANGED
        if event.drain:
            return Verdict.UNCHANGED
    is_more = not event.ranges and (known is None or bool(known.ranges))
    if is_more and not event.forced and _too_many(here, event):
        return Verdict.TOO_MANY
    entry = _entry(here, lsn, event, known)
    if known is not None and entry.ranges and entry.ranges == known.ranges and not event.restart:
        return Verdict.UNCHANGED
    if not entry.relocates:
        others = tuple(_asked_again(each, entry) for each in here.lost)
        here = replace(here, lost=others)
    return _restarted(_with(here, entry), lsn)


def _entry(here: RebuildingSet, lsn: int, event: NeedsRebuild, known: LostNode | None) -> LostNode:
    """The node's entry from now on."""
    ranges: tuple[TimeRange, ...] = ()
    if known is None or known.ranges:
        ranges = event.ranges
    if known is not None and ranges:
        ranges = (*known.ranges, *ranges)
    # The other nodes rebuild all data of a node that lost a part: it cannot give the lost part.
    relocates = event.drain and (known is None or known.relocates)
    donors = _donors(here, event.nodes, event.node, relocates=relocates)
    done: tuple[int, ...] = ()
    is_certain = True
    if known is not None and known.relocates and known.node in known.done and not event.restart:
        # The node gave all its own blocks before it was lost, so the other donors stay done.
        done = tuple(node for node in known.done if node in donors)
        is_certain = known.is_certain
    return LostNode(
        event.node, lsn, relocates, event.drain or (known is not None and known.drain),
        _joined(ranges), known is None or known.is_recoverable, donors, done, is_certain,
    )  # fmt: skip


def _donors(
    here: RebuildingSet, nodes: Iterable[int], node: int, *, relocates: bool
) -> tuple[int, ...]:
    """Those of `nodes` that have data, and give what `node` lost or is to give away."""
    gone = {e.node for e in here.lost if not e.ranges and (e.is_empty or not e.relocates)}
    gone = gone - {node} if relocates else gone | {node}
    return tuple(sorted(set(nodes) - gone))


def _too_many(here: RebuildingSet, event: NeedsRebuild) -> bool:
    rebuilding = sum(not each.is_empty and not each.ranges for each in here.lost)
    return rebuilding + 1 > REBUILDING_MAX * len(set(event.nodes))


def _asked_again(each: LostNode, lost: LostNode) -> LostNode:
    """The entry `each` after `lost`, one of its donors, lost all or a part of its own blocks."""
    if each.node == lost.node or each.is_empty or lost.node not in each.donors:
        return each
    was_done = lost.node in each.done
    if not lost.ranges:
        each = replace(each, donors=_but(each.donors, lost.node), done=_but(each.done, lost.node))
    # The donors after it in the copysets of its blocks have more to give now.
    return each if was_done else replace(each, done=(), is_certain=True)


def _but(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node)


def _progress(here: RebuildingSet, event: DonorProgress) -> _Refused:
    if event.version != here.version:
        return Verdict.STALE
    if not (gives(here, event.donor) or any(event.donor in each.donors for each in here.lost)):
        return Verdict.UNKNOWN_NODE
    others = [each for each in here.progress if each.donor != event.donor]
    told = sorted([*others, event], key=lambda each: each.donor)
    return replace(here, progress=tuple(told))


def _is_rebuilt(here: RebuildingSet, event: IsRebuilt) -> _Refused:
    entry = here.entry(event.node)
    if entry is None or event.donor not in entry.donors:
        return Verdict.UNKNOWN_NODE
    if event.version != here.version:
        return Verdict.STALE
    if event.donor in entry.done or entry.is_empty:
        return Verdict.UNCHANGED
    done = tuple(sorted((*entry.done, event.donor)))
    is_certain = entry.is_certain and event.is_authoritative
    return _with(here, replace(entry, done=done, is_certain=is_certain))


def _acked(here: RebuildingSet, event: Acked) -> _Refused:
    entry = here.entry(event.node)
    if entry is None:
        return Verdict.UNKNOWN_NODE
    if event.version != entry.version:
        return Verdict.STALE
    is_over = entry.is_empty or (entry.ranges and _is_over(here, entry))
    if not is_over:
        return Verdict.NOT_DONE
    if entry.drain:
        return Verdict.DRAINED
    return _leaving(here, event.node)


def _aborted(here: RebuildingSet, lsn: int, event: Aborted) -> _Refused:
    if event.if_version not in (None, here.version):
        return Verdict.STALE
    entry = here.entry(event.node)
    if entry is None:
        return Verdict.UNKNOWN_NODE
    if entry.is_empty:
        return Verdict.DONE_ALREADY
    return _back(here, lsn, event.node)


def _undrained(here: RebuildingSet, lsn: int, event: Undrained) -> _Refused:
    entry = here.entry(event.node)
    if entry is None:
        return Verdict.UNKNOWN_NODE
    if entry.relocates and not entry.is_empty:
        return _back(here, lsn, event.node)
    return _with(here, replace(entry, drain=False)) if entry.drain else Verdict.UNCHANGED


def _unrecoverable(here: RebuildingSet, event: Unrecoverable) -> _Refused:
    entry = here.entry(event.node)
    if entry is None:
        return Verdict.UNKNOWN_NODE
    is_there = entry.relocates or bool(entry.ranges)
    if entry.is_empty or not entry.is_recoverable or is_there:
        return Verdict.UNCHANGED
    return _with(here, replace(entry, is_recoverable=False))


def _back(here: RebuildingSet, lsn: int, node: int) -> RebuildingSet:
    """A node is back with its data, and becomes a donor for every other lost node."""

    def with_donor(each: LostNode) -> LostNode:
        if each.is_empty:
            return each
        donors = tuple(sorted({*each.donors, node}))
        if each.is_certain:
            return replace(each, donors=donors)
        return replace(each, donors=donors, done=(), is_certain=True)

    rest = _leaving(here, node)
    return _restarted(replace(rest, lost=tuple(map(with_donor, rest.lost))), lsn)


def _leaving(here: RebuildingSet, node: int) -> RebuildingSet:
    return replace(here, lost=tuple(each for each in here.lost if each.node != node))


def _with(here: RebuildingSet, entry: LostNode) -> RebuildingSet:
    rest = [each for each in here.lost if each.node != entry.node]
    lost = sorted([*rest, entry], key=lambda each: each.node)
    return replace(here, lost=tuple(lost))


def _restarted(here: RebuildingSet, lsn: int) -> RebuildingSet:
    return replace(here, version=lsn, progress=())


def _settled(here: RebuildingSet) -> RebuildingSet:
    """Call empty the nodes for which no donor has work left; each may end another node's wait."""
    empty = next(
        (e for e in here.lost if not e.is_empty and not e.ranges and _is_over(here, e)), None
    )
    if empty is None:
        return here
    # A drained node has no blocks any more, so it is no donor for others either.
    lost = tuple(
        each
        if each.is_empty
        else replace(each, donors=_but(each.donors, empty.node), done=_but(each.done, empty.node))
        for each in here.lost
    )
    return _settled(
        _with(replace(here, lost=lost), replace(empty, is_empty=True, donors=(), done=()))
    )


def _is_over(here: RebuildingSet, entry: LostNode) -> bool:
    """Whether every donor is done, and no other node may still bring blocks back."""
    if not entry.is_done:
        return False
    if entry.relocates or (entry.is_certain and entry.donors):
        return True
    return not any(
        each.is_recoverable and not (each.is_empty or each.relocates or each.ranges)
        for each in here.lost
    )


def _joined(ranges: Iterable[TimeRange]) -> tuple[TimeRange, ...]:
    """The ranges in order; ranges that touch become one."""
    found: list[TimeRange] = []
    for each in sorted(ranges):
        if found and each.first_us <= found[-1].last_us + 1:
            last_us = max(found[-1].last_us, each.last_us)
            found[-1] = TimeRange(found[-1].first_us, last_us)
        else:
            found.append(each)
    if len(found) > RANGES_MAX:
        return (TimeRange(found[0].first_us, found[-1].last_us),)
    return tuple(found)
