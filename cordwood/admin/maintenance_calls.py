"""Take requests for maintenance, grant safe requests, and have their nodes drained. Answer what the
absence of nodes would stop.

Any node answers. It reads the set, judges it, and writes it back over the version that it read.
If another node was quicker, it begins anew. The living nodes also look by themselves, one after
another: TTLs end, and blocked requests become safe, without any call. They take turns because a
node may be cut off from the metadata store, alone and for long.

Source: docs/protocol/maintenance.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import Protocol

from msgspec.structs import replace

from cordwood.admin.impact_calls import AskFit, add_all, add_log, impact_reply, living_records
from cordwood.errors import BadSetting, CordwoodError, Fenced, Rejected
from cordwood.impact.check import (
    FIT,
    Finding,
    Fitness,
    ImpactCheck,
    ImpactReport,
    Placement,
    Stops,
    find_absent,
)
from cordwood.impact.maintenance import (
    Drains,
    MaintenanceSet,
    Request,
    Wanted,
    advanced,
    drained_words,
    drains_of,
    drains_or_will,
    ended_drains,
    kept_drain,
    noted_words,
    request_of,
    stray_drains,
    with_request,
    without_request,
)
from cordwood.layout.message_fields import shown
from cordwood.layout.message_impact import AskImpact, ImpactReply
from cordwood.layout.message_maintenance import (
    ApplyMaintenance,
    AskMaintenance,
    MaintenanceCall,
    MaintenanceReply,
    MaintenanceRequest,
    RemoveMaintenance,
)
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.maintenance import MaintenanceStore
from cordwood.nodes import Authority, Member, NodeId
from cordwood.protocol.event_log import leaving
from cordwood.rebuilding import RebuildingSet
from cordwood.storage.rebuild.order_events import Obeyed

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""The time between two looks of nodes that look by themselves, and the length of a turn."""

TRIES_MAX = 16
"""Each lost race is another caller's success."""

STUCK = frozenset({Stops.WRITES, Stops.REBUILDING})
"""The kinds of work without which a drain does not end. A node that is drained serves readers."""

Change = Callable[[MaintenanceSet], MaintenanceSet]


class Obey(Protocol):
    """Carries out an order about a node; see `RebuildRole.obey`."""

    async def __call__(self, call: SayRebuild, *, anew: bool = False) -> Obeyed: ...


class _Adding:
    """Adds a request once. A write of unknown outcome may have been done, and so may an earlier try
    of this call, at this node or at another."""

    def __init__(self, call: ApplyMaintenance, nodes: frozenset[NodeId], now_us: int) -> None:
        self.number = 0
        self._call = call
        self._nodes = nodes
        self._now_us = now_us

    def __call__(self, known: MaintenanceSet) -> MaintenanceSet:
        call = self._call
        made = request_of(known, call.mark)
        if made is not None:
            self.number = made.number
            return known
        details = Wanted(call.wanted), call.reason, call.user, call.ttl_s, self._now_us, call.mark
        after = with_request(known, self._nodes, *details)
        mine = after.requests[-1]
        for each in known.requests:
            if each.number == self.number and _is_same(each, mine):
                return known
        self.number = mine.number
        return after


def _is_same(one: Request, other: Request) -> bool:
    """Whether two values are the same request, in any states."""
    bare = {"number": 0, "is_granted": False, "blocked": ""}
    return replace(one, **bare) == replace(other, **bare)


class _Removing:
    """Removes a request once; see `_Adding`."""

    def __init__(self, number: int, mark: str) -> None:
        self._number = number
        self._mark = mark
        self._was_there = False

    def __call__(self, known: MaintenanceSet) -> MaintenanceSet:
        is_there = any(each.number == self._number for each in known.requests)
        if self._was_there and not is_there:
            return known
        self._was_there = True
        return without_request(known, self._number, self._mark)


class MaintenanceCalls:
    """See the module."""

    def __init__(
        self,
        me: NodeId,
        store: MaintenanceStore,
        epochs: EpochStore,
        logs: LogTree,
        members: Callable[[], Mapping[NodeId, Member]],
        dead: Callable[[], Set[NodeId]],
        rebuilding: Callable[[], RebuildingSet],
        refresh: Callable[[], Awaitable[None]],
        obey: Obey,
        now_us: Callable[[], int],
        ask: AskFit,
        said: Callable[[], Iterable[Member]],
    ) -> None:
        """
        Args:
            ask: asks nodes for their states.
            said: the members with the statuses of the metadata store alone.
            obey: carries out an order to drain a node, or to take a drain back.
            refresh: `rebuilding` has all events from before its call then.
        """
        self._me = me
        self._store = store
        self._epochs = epochs
        self._logs = logs
        self._members = members
        self._dead = dead
        self._rebuilding = rebuilding
        self._refresh = refresh
        self._obey = obey
        self._now_us = now_us
        self._ask = ask
        self._said = said
        # By node: why its drain was refused when this node ordered it last.
        self._refused: dict[int, str] = {}

    async def answer(self, call: MaintenanceCall) -> MaintenanceReply:
        """Answer an operator.

        Raises:
            BadSetting: the request makes no sense, or no request has that number.
            CordwoodError: the metadata store does not answer.
        """
        match call:
            case ApplyMaintenance():
                adding = self._adds(call)
                return self._told(await self._advance(adding), adding.number)
            case RemoveMaintenance():
                return self._told(await self._advance(_Removing(call.number, call.mark)))
            case AskMaintenance():
                return self._told(await self._advance(_as_it_is))

    def _adds(self, call: ApplyMaintenance) -> _Adding:
        if call.wanted not in Wanted.__members__:
            known = ", ".join(Wanted)
            raise BadSetting(f"nodes cannot be {call.wanted!r} by maintenance: say one of {known}")
        nodes = find_absent(self._members(), call.nodes, call.racks)
        return _Adding(call, nodes, self._now_us())

    async def _advance(self, change: Change) -> MaintenanceSet:
        """Change the set, grant safe requests, and order their drains.

        Raises:
            BadSetting: raised by `change`.
            CordwoodError: the metadata store does not answer.
        """
        for _ in range(TRIES_MAX):
            known, version = await self._store.read()
            after = await self._judged(change(known))
            try:
                if after != known:
                    await self._store.write(after, version)
                if not after.requests and not after.drained:
                    return after
                return await self._drained()
            except Fenced:
                continue  # Race: another node changed the set
        raise Rejected("the requests for maintenance change all the time: try again")

    async def _judged(self, known: MaintenanceSet) -> MaintenanceSet:
        records: Mapping[int, EpochRecord] = {}
        fitness = FIT
        if _waits(known):
            records = await living_records(self._epochs, self._logs)
            fitness = await self._ask(self._members().keys() - self._dead() - known.absent)
        placements: dict[tuple[object, ...], Placement] = {}

        def judge(nodes: frozenset[NodeId], away: Set[NodeId]) -> ImpactReport:
            check = self._check(nodes, away, fitness, self._rebuilding())
            for log, record in sorted(records.items()):
                add_log(check, log, record, placements)
            return check.report()

        empty = {each.node for each in self._rebuilding().lost if each.is_empty}
        return advanced(known, self._now_us(), judge, empty)

    def _check(
        self,
        absent: frozenset[NodeId],
        away: Set[NodeId],
        fitness: Fitness,
        rebuilding: RebuildingSet,
    ) -> ImpactCheck:
        leave = leaving(rebuilding)
        empty = {m.node for m in self._said() if m.authority is Authority.AUTHORITATIVE_EMPTY}
        return ImpactCheck(self._members(), absent, self._dead() | away, fitness, leave, empty)

    async def answer_impact(self, call: AskImpact) -> ImpactReply:
        """Answer a person what the absence of nodes would stop. The nodes of granted requests count
        as absent too.

        Raises:
            BadSetting: no node is named, or a named node does not exist.
            CordwoodError: the metadata store does not answer.
        """
        absent = find_absent(self._members(), call.nodes, call.racks)
        return await impact_reply(await self._impact(absent, self._rebuilding()), self._logs)

    async def _impact(self, absent: frozenset[NodeId], rebuilding: RebuildingSet) -> ImpactReport:
        known, _ = await self._store.read()
        away = known.absent - absent
        fitness = await self._ask(self._members().keys() - self._dead() - away - absent)
        check = self._check(absent, away, fitness, rebuilding)
        await add_all(check, await living_records(self._epochs, self._logs), {})
        return check.report()

    async def _drained(self) -> MaintenanceSet:
        """Order the drains that follow from the set, and cancel drains that do not follow from it
        any more.

        Raises:
            Fenced: another node changed the set meanwhile.
            CordwoodError: the metadata store or the event log does not answer.
        """
        known, version = await self._store.read()
        drains, empty = self._drains_now(known)
        if not {*drains.noted.drained} <= {*known.drained}:
            # Race: an operator may have ordered the drain before this read, and this node may not
            # have heard so. Later drains of operators change the value that is written over.
            await self._refresh()
            drains, empty = self._drains_now(known)
        for number in sorted(empty & ({*known.drained} - {*drains.noted.drained})):
            logger.warning(
                "maintenance: node %d is empty, and stays drained without a request: `cordwood "
                "nodes undrain %d` ends its drain, and stops it", number, number,
            )  # fmt: skip
        for node in self._refused.keys() - {*drains.begin}:
            del self._refused[node]
        if drains.noted != known:
            await self._store.write(drains.noted, version)
        ordered = {}
        for node in drains.begin:
            done = await self._order(node, RebuildOrder.DRAIN)
            entry = self._rebuilding().entry(node)
            # A drain that another word began is not this node's to take back.
            if done is Obeyed.TAKEN and entry is not None:
                ordered[node] = entry.version
        await self._take_back(ordered)
        for node in drains.end:
            await self._end_drain(node, lambda now, each: each in drains_of(now, set()).end)
        if not drains.end:
            return drains.noted
        now, version = await self._store.read()
        after = ended_drains(now, drains.end)
        await self._store.write(after, version)
        return after

    def _drains_now(self, known: MaintenanceSet) -> tuple[Drains, Set[int]]:
        """What follows from the requests by the known set, and the drained nodes that are empty."""
        lost = [each for each in self._rebuilding().lost if each.drain]
        empty = {each.node for each in lost if each.is_empty}
        return drains_of(known, {each.node for each in lost}, empty), empty

    async def _take_back(self, ordered: Mapping[int, int]) -> None:
        """Cancel drains that no request wants any more.

        Race: another node ended the request while its drain was ordered here, found no drain to
        cancel, and forgot the note of it.

        Args:
            ordered: the nodes whose drains were begun here, with the versions of their entries.
        """

        def is_over(now: MaintenanceSet, node: int) -> bool:
            entry = self._rebuilding().entry(node)
            is_same = entry is not None and entry.version == ordered[node]
            return is_same and bool(stray_drains(now, [node]))

        for node in ordered:
            for _ in range(TRIES_MAX):
                try:
                    await self._end_drain(node, is_over)
                except Fenced:
                    continue  # Trap: no later look finds this drain, so it is looked at again here
                break

    async def _end_drain(self, node: int, is_over: Callable[[MaintenanceSet, int], bool]) -> None:
        """End a drain that no request wants any more.

        Race: this node may be paused after it read the requests. Another node has ended the drain
        since, and an operator may have ordered the next one. So the order names the version of the
        rebuilding set from before it read them, and the mark of the node.

        Args:
            is_over: whether the drain is to end, by the requests.
        Raises:
            Fenced: the rebuilding set has changed since.
        """
        seen = self._rebuilding()
        known, _ = await self._store.read()
        if is_over(known, node):
            await self._order(node, RebuildOrder.UNDRAIN, seen)

    async def _order(
        self, node: int, order: RebuildOrder, seen: RebuildingSet | None = None
    ) -> Obeyed | None:
        """Give an order of a request. None if it was refused."""
        # This node may not have heard yet that the drained node is empty.
        call = SayRebuild(node, order, unless_empty=True)
        if seen is not None:
            mark = seen.mark(node, of_drain=True)
            call = replace(call, if_version=seen.version, if_mark=mark)
        try:
            done = await self._obey(call)
        except Rejected as error:
            # A drain is ordered again at the next look, and its request tells why it waits. The
            # drain of an empty node stays, and is an operator's from now on.
            if self._refused.get(node) != str(error):
                logger.warning("maintenance: node %d: %s: %s", node, order.value, error)
            if order is RebuildOrder.DRAIN:
                self._refused[node] = str(error)
            return None
        self._refused.pop(node, None)
        return done

    async def obey_operator(self, call: SayRebuild) -> None:
        """Carry out an operator's order, which requests do not undo.

        Raises:
            Rejected, BadSetting: it makes no sense, or a request drains a node that is to be
                undrained. Or a drain is refused, see `DrainOrders`.
            Fenced: see `_keep_drain`.
            CordwoodError: as `obey` says.
        """
        if self._ends_drain(call):
            await self._check_undrain(call.node)
        if call.order is not RebuildOrder.DRAIN:
            await self._obey(call)
            return
        seen = await self._requests(f"a request's end may end the drain of node {call.node}")
        # Race: the end of a request's drain may be under way by the set that this order sees. A
        # drain that begins anew is not that drain any more.
        is_noted = seen is not None and call.node in seen[0].drained
        done = await self._obey(call, anew=is_noted)
        await self._keep_drain(call.node, seen if done is not Obeyed.SINCE else None)

    async def _requests(self, unknown: str) -> tuple[MaintenanceSet, int] | None:
        """The set, and the version to write over; None if the metadata store does not answer:
        drains go on without it, and requests do not.

        Args:
            unknown: what is not known then.
        """
        try:
            return await self._store.read()
        except CordwoodError as error:
            logger.info("%s: %s", unknown, error)
            return None

    def _ends_drain(self, call: SayRebuild) -> bool:
        """Whether an order ends a drain. An abort does while the node itself gives its copies. The
        rebuilding of a node that was lost while it was drained may be aborted."""
        if call.order is RebuildOrder.ABORT:
            return NodeId(call.node) in leaving(self._rebuilding())
        return call.order is RebuildOrder.UNDRAIN

    async def _keep_drain(self, node: int, seen: tuple[MaintenanceSet, int] | None) -> None:
        """Have no request's end end the drain that an operator ordered. A request may have ordered
        the same drain first.

        A request that is to drain the node may be about to note this, by a rebuilding set without
        the operator's drain. So the value gets a new version even if it stays the same.

        Race: this node may be paused before. The operator may have taken the drain back since, and
        a request may have ordered the next one. So only the requests from before the order are
        written over. By later requests this node cannot tell whose drain it is.

        Args:
            seen: the requests from before the order; None if they are not known, or if the drain
                was there by a later rebuilding set than that of the order.
        Raises:
            Fenced: a request drains the node. The operator's drain may have been taken back.
            Rejected: the requests change all the time.
        """
        if seen is not None and not drains_or_will(seen[0], node):
            seen = None  # Race: it may have been granted since
        for _ in range(TRIES_MAX):
            try:
                known, version = seen or await self._store.read()
                is_theirs = seen is None and node in known.drained
                if not is_theirs and drains_or_will(known, node):
                    await self._store.write(kept_drain(known, node), version)
            except Fenced:
                seen = None  # Race: another node changed the set
                continue
            except CordwoodError as error:
                # Drains go on without the metadata store, and requests do not.
                logger.warning("a request's end may end the drain of node %d: %s", node, error)
                return
            if is_theirs:
                raise Fenced(noted_words(node))
            return
        raise Rejected("the requests for maintenance change all the time: give the order again")

    async def check_places(self, node: NodeId, rebuilding: RebuildingSet) -> None:
        """Check that a drain can end. Until it ends, no recovery can store the end of an epoch that
        cannot do without the node, so the log would have no sequencer and no reader.

        Args:
            rebuilding: the set that the order of the drain follows.
        Raises:
            Rejected: some log has an epoch whose other nodes cannot keep its copies.
        """
        try:
            report = await self._impact(frozenset({node}), rebuilding)
        except CordwoodError as error:
            # Drains go on without the metadata store.
            logger.info("whether all logs can do without node %d is not known: %s", node, error)
            return
        for found in report.findings:
            if found.stops in STUCK and not _is_of_event_log(found):
                raise Rejected(
                    f"node {node} is not drained: {found.stops} would stop for {found.logs} logs "
                    f"(`cordwood check-impact {node}` names them), and the drain would not end. "
                    f"First: {found.first}"
                )

    async def _check_undrain(self, node: int) -> None:
        """A request that stands would order the drain again within seconds, and drain what the node
        has by then, such as a new directory.

        Raises:
            Rejected: a request drains the node.
        """
        found = await self._requests(f"whether a request drains node {node} is not known")
        for each in found[0].requests if found is not None else ():
            if each.is_granted and each.wanted is Wanted.DRAINED and node in each.nodes:
                raise Rejected(drained_words(node, each.number))

    async def run(self) -> None:
        """Look periodically, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._has_turn():
                continue
            try:
                await self._advance(_as_it_is)
            except CordwoodError as error:
                logger.info("maintenance has to wait: %s", error)

    def _has_turn(self) -> bool:
        """Whether this node is to look now. Turns follow the clock, which is about the same on all
        nodes; if it is not, two nodes look at once, or no node for a turn."""
        living = sorted(node for node in self._members() if node not in self._dead())
        turn = self._now_us() // round(LOOK_S * 1e6)
        return not living or living[turn % len(living)] == self._me

    def _told(self, found: MaintenanceSet, applied: int = 0) -> MaintenanceReply:
        requests = [
            MaintenanceRequest(
                each.number, each.nodes, each.wanted.value, self._state(each), each.reason,
                each.user, each.made_us, each.ends_us, each.blocked or self._waits(each),
            )
            for each in found.requests
        ]  # fmt: skip
        return MaintenanceReply(requests, applied)

    def _waits(self, request: Request) -> str:
        """Why drains of a granted request have not begun, or which nodes they wait for; "" if none
        waits, or it asks for none."""
        if not request.is_granted or request.wanted is not Wanted.DRAINED:
            return ""
        words = (self._refused.get(node, "") or self._donors_left(node) for node in request.nodes)
        return shown("; ".join(dict.fromkeys(filter(None, words))))

    def _donors_left(self, node: int) -> str:
        entry = self._rebuilding().entry(node)
        if entry is None or entry.is_empty:
            return ""
        left = ", ".join(str(each) for each in entry.donors if each not in entry.done)
        return f"node {node} waits for nodes {left}: `cordwood rebuild` tells why" if left else ""

    def _state(self, request: Request) -> str:
        if not request.is_granted:
            return "BLOCKED_UNTIL_SAFE"
        if request.wanted is Wanted.MAY_DISAPPEAR:
            return "GRANTED"
        entries = [self._rebuilding().entry(node) for node in request.nodes]
        is_empty = all(entry is not None and entry.is_empty for entry in entries)
        return "DRAINED" if is_empty else "DRAINING"


def _is_of_event_log(found: Finding) -> bool:
    """Whether a finding is about the event log alone, which goes on with fewer copies: the check
    for it is `RebuildRole`'s."""
    return found.logs == 1 and found.examples[0].log == EVENT_LOG


def _as_it_is(known: MaintenanceSet) -> MaintenanceSet:
    return known


def _waits(known: MaintenanceSet) -> bool:
    return any(not each.is_granted for each in known.requests)
