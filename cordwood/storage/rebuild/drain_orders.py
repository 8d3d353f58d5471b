"""Orders of operators and of requests that begin or end the drain of a node, or end its rebuilding.

Each event is tied to the set by which its order was judged: between the judgement and the event,
another node may order another drain.

A client that gets no answer gives its order to another node, and may have taken it back since. So
an order names the version of the set that its client saw, and what it saw of the node
(`RebuildingSet.mark`). No node carries it out by another set: this is decided for the very set to
which the event is added, because this node may be paused after any earlier check. Older clients
name neither, and requests at most the version: if such an order is late, it is not judged by a
later set.

Source: docs/protocol/rebuilding.md, rule 4; docs/protocol/maintenance.md, rules 8 and 10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec.structs import replace

from cordwood.errors import CordwoodError, Fenced, Rejected
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.lsn import EVENT_LOG
from cordwood.nodes import Member, NodeId
from cordwood.protocol.event_log import Verdict, refuses
from cordwood.quorum.copyset import can_replicate
from cordwood.rebuilding import Aborted, NeedsRebuild, RebuildEvent, RebuildingSet, Undrained
from cordwood.storage.rebuild.order_events import (
    empty_words,
    end_of_drain,
    is_carried_out,
    is_there,
    late_words,
    there_words,
)

if TYPE_CHECKING:
    from cordwood.metadata.event_log import Holds
    from cordwood.storage.rebuild.epoch_nodesets import ReadRecord

logger = logging.getLogger(__name__)

CHANGED_MAX = 8
"""Changes of the set between the check of an order and its event. Each is an order, or a loss."""

LATE_S = 1.0
"""After this time a client may have given an order to another node: it does so once the others call
this node dead. So this node may have been paused, and the order may have been taken back."""

CheckPlaces = Callable[[NodeId, RebuildingSet], Awaitable[None]]


class Say(Protocol):
    """Adds an event if a condition holds for the very set that it follows; see `EventLog.say`."""

    async def __call__(self, event: RebuildEvent, holds: Holds | None = None) -> Verdict: ...


class Came(NamedTuple):
    """An order as it came to this node.

    Attributes:
        version: of the entry of `node`, by the set at that time; 0 without one.
        seen: the version of the set by which it was given; None if that is not known.
        mark: of the node in that set; None if that is not known.
        of_drain: as in `RebuildingSet.mark`.
    """

    node: int
    version: int
    time_s: float
    seen: int | None = None
    mark: int | None = None
    of_drain: bool = False

    def is_late(self) -> bool:
        """Whether another node may have carried it out by now."""
        return asyncio.get_running_loop().time() > self.time_s + LATE_S

    def holds(self, known: RebuildingSet) -> bool:
        """Whether the order may be carried out by this set."""
        if self.seen is None:
            return not self.is_late() or _version(known, self.node) == self.version
        mark = known.mark(self.node, of_drain=self.of_drain)
        return known.version == self.seen and self.mark in (None, mark)


class DrainOrders:
    """See the module."""

    def __init__(
        self,
        known: Callable[[], RebuildingSet],
        refresh: Callable[..., Awaitable[None]],
        say: Say,
        read_record: ReadRecord,
        members: Callable[[], Mapping[NodeId, Member]],
        dead: Callable[[], Set[NodeId]],
        check_places: CheckPlaces,
    ) -> None:
        """
        Args:
            known, refresh, say: the rebuilding set, and what reads it and adds to it; as
                `RebuildRole` has them.
            check_places: raises Rejected if, by this set, the drain of the node would have no end.
        """
        self._known = known
        self._refresh = refresh
        self._say = say
        self._read_record = read_record
        self._members = members
        self._dead = dead
        self._check_places = check_places

    async def begin(self, event: NeedsRebuild, came: Came | None = None) -> Verdict:
        """Order a drain by the set by which it was checked: either of two drains may have a place,
        and both together none.

        Args:
            came: the order; None for an order of this node itself.
        Raises:
            Rejected: see `_check_event_log`, and `check_places`. Or the set has changed, and the
                order is late.
            Fenced: see `check_same`.
        """
        came = came or self._own(event.node)
        for tries in range(CHANGED_MAX):
            known = self._known()
            # By this set the drain may have begun and ended since.
            if self.has_changed(came):
                if is_carried_out(RebuildOrder.DRAIN, known.entry(event.node)):
                    return Verdict.UNCHANGED
                raise Fenced(late_words(event.node))
            if tries and came.is_late():
                raise Rejected(late_words(event.node))
            entry = known.entry(event.node)
            if entry is None or entry.ranges:  # it is not drained already, nor lost
                await self._check_event_log(NodeId(event.node))
                if not event.forced:
                    await self._check_places(NodeId(event.node), known)
            verdict = await self._say(replace(event, if_version=known.version), came.holds)
            if verdict is not Verdict.STALE:
                return verdict
            if self._known() is known:
                await self._refresh()  # a first try of this call may have been done
        return Verdict.STALE

    async def end(self, came: Came, *, unless_empty: bool) -> Verdict:
        """End a drain.

        Args:
            unless_empty: only that of a node that is not empty. The last donor may be done between
                any look at the set and the event, and no version tells of it.
        Raises:
            Rejected: the node is empty and was not to be. Or see `check_same`.
            Fenced: see `check_same`.
        """
        node = came.node
        for _ in range(CHANGED_MAX):
            if unless_empty:
                await self._refresh(strictly=True)
            known = self._known()
            if self.has_changed(came) and is_carried_out(RebuildOrder.UNDRAIN, known.entry(node)):
                return Verdict.UNCHANGED
            self.check_same(came)
            event = end_of_drain(known, node)
            verdict = event if isinstance(event, Verdict) else await self._say(event, came.holds)
            if verdict is Verdict.DONE_ALREADY and unless_empty:
                raise Rejected(empty_words(node))
            is_unsaid = isinstance(event, Verdict) or verdict is Verdict.DONE_ALREADY
            if is_unsaid and not unless_empty:
                # This node may not have heard of the drain yet.
                verdict = await self._say(Undrained(node), came.holds)
            if verdict is not Verdict.STALE:
                return verdict
            if self._known() is known:
                await self._refresh()
        return Verdict.STALE

    async def abort(self, came: Came) -> Verdict:
        """End the rebuilding of a node that is not empty yet.

        Raises:
            Rejected, Fenced: see `check_same`.
        """
        node = came.node
        for _ in range(CHANGED_MAX):
            known = self._known()
            if self.has_changed(came) and is_carried_out(RebuildOrder.ABORT, known.entry(node)):
                return Verdict.UNCHANGED
            self.check_same(came)
            # Without an entry it may not have heard of the rebuilding yet.
            version = known.version if known.entry(node) is not None else None
            verdict = await self._say(Aborted(node, version), came.holds)
            if verdict is not Verdict.STALE:
                return verdict
            if self._known() is known:
                await self._refresh()
        return Verdict.STALE

    async def give(self, event: RebuildEvent, order: RebuildOrder, came: Came) -> Verdict:
        """Call a node lost, or its data gone.

        Raises:
            Rejected, Fenced: see `check_same`. Or the node, whose data is to be called gone, is not
                called lost.
        """
        verdict = Verdict.STALE
        if not self.has_changed(came):
            self.check_same(came)
            verdict = await self._say(event, came.holds)
        entry = self._known().entry(came.node)
        if verdict is Verdict.UNCHANGED and order is RebuildOrder.GONE and is_there(entry):
            raise Rejected(there_words(came.node))
        if verdict is not Verdict.STALE:
            return verdict
        if is_carried_out(order, entry):
            return Verdict.UNCHANGED
        self.check_same(came)
        return verdict

    def came(self, call: SayRebuild) -> Came:
        """An order, as it comes."""
        return self._own(call.node)._replace(
            seen=call.if_version, mark=call.if_mark, of_drain=call.order.is_of_drain
        )

    def _own(self, node: int) -> Came:
        """An order that begins here."""
        return Came(node, _version(self._known(), node), asyncio.get_running_loop().time())

    def has_changed(self, came: Came) -> bool:
        """Whether the set is known to be another one than the one by which an order was given."""
        return came.seen is not None and not came.holds(self._known())

    def check_same(self, came: Came) -> None:
        """
        Raises:
            Rejected: the order is late, and the set has another entry of its node than when the
                order came. Another node has carried it out meanwhile, and it may have been taken
                back.
            Fenced: the set is another one than the one by which the order was given.
        """
        if self.has_changed(came):
            raise Fenced(late_words(came.node))
        if not came.holds(self._known()):
            raise Rejected(late_words(came.node))

    async def _check_event_log(self, node: NodeId) -> None:
        """
        Raises:
            Rejected: the event log could store nothing without the node, not even the end of its
                drain.
        """
        try:
            record = await self._read_record(EVENT_LOG)
        except CordwoodError as error:
            # Drains go on without the metadata store.
            logger.info(
                "whether the event log can do without node %d is not known: %s", node, error
            )
            return
        if record is None:
            return
        away = {*refuses(self._known()), *self._dead(), node}
        members = self._members()
        # A recovery stores the end of an epoch on that epoch's own nodes.
        is_open = range(max(record.clean_epoch + 1, record.history[0].since), record.next_epoch)
        for entry in map(record.entry, is_open):
            nodeset = entry.nodeset(members)
            left = {each for each in nodeset.nodes if each not in away}
            if node in nodeset.nodes and not can_replicate(left, nodeset, entry.replication):
                raise Rejected(
                    f"node {node} is not drained: the event log has {entry.replication}, and could "
                    f"store no event on nodes {sorted(map(int, left))}, not even the end of this "
                    "drain. Wait some minutes: it goes on with fewer copies once other drained "
                    "nodes are empty. Or end another drain (`cordwood nodes undrain`), or add nodes"
                )


def _version(known: RebuildingSet, node: int) -> int:
    entry = known.entry(node)
    return entry.version if entry is not None else 0
