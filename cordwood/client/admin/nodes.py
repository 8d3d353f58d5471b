"""The client's calls about nodes; `Store` has them.

Source: docs/design.md §6, §7; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from cordwood.client.admin.orders import GIVEN_S
from cordwood.client.admin.rebalance import Rebalances
from cordwood.client.cluster import Cluster
from cordwood.errors import BadSetting, CordwoodError, Rejected, Unreachable
from cordwood.layout.log_questions import AskIfLost, IfLostReply
from cordwood.layout.message import AskStatus, AskStreams, Call, StatusReply, StreamsReply
from cordwood.layout.message_impact import AskImpact, ImpactReply
from cordwood.layout.message_maintenance import (
    ApplyMaintenance,
    AskMaintenance,
    MaintenanceCall,
    MaintenanceReply,
    MaintenanceRequest,
    RemoveMaintenance,
)
from cordwood.layout.message_nodes import (
    AskMembers,
    MembersReply,
    SetAuthority,
    SetStorage,
)
from cordwood.layout.message_rebuilding import (
    AskRebuilding,
    DonorState,
    HealState,
    RebuildingReply,
    RebuildOrder,
    SayRebuild,
)
from cordwood.layout.rebuild_events import read_set
from cordwood.nodes import Authority, NodeId
from cordwood.quorum.authority import HAS_DATA
from cordwood.rebuilding import LostNode, Rebalancing
from cordwood.settings import ClientSettings

Answer = TypeVar("Answer")

LOOK_S = 10.0
"""The deadline of one step in which a node looks at its blocks. A step takes some tenths of a
second."""

IMPACT_S = 60.0
"""The deadline of a look at all epochs of all logs: a hundred thousand epochs take some seconds."""

ASK_EACH_S = 2.0
"""A node has this long to report its status; a node that is down costs no more than that."""


@dataclass(frozen=True, slots=True)
class IfLost:
    """The blocks that a node would copy as a donor if the data of some nodes were gone.

    Attributes:
        blocks, bytes: how many blocks would get new copies, and how many bytes would be sent.
        stuck: blocks with too few nodes left for a new copy, or with nodes in too few domains.
        last: blocks with one copy left, of those to copy and those that are stuck.
        gone: blocks with no copy left.
        unknown: blocks on this node that could not be judged.
    """

    blocks: int = 0
    bytes: int = 0
    stuck: int = 0
    last: int = 0
    gone: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The state of rebuilding in the cluster.

    Attributes:
        lost: nodes that are lost, drained, or rebuilt and not back yet.
        donors: each node's work as a donor, or the reason why it did not answer, in node order.
        heals: nodes that lost records of their WAL, and their progress in getting these back.
        rebalancing: the last rebalance, None before the first.
    """

    lost: tuple[LostNode, ...]
    donors: dict[NodeId, DonorState | CordwoodError]
    heals: dict[NodeId, HealState] = field(default_factory=dict)
    rebalancing: Rebalancing | None = None


class Nodes(Rebalances):
    """See the module. A subclass sets `_cluster` and `_settings`."""

    _cluster: Cluster
    _settings: ClientSettings

    @property
    def members(self) -> dict[NodeId, str]:
        """Addresses of the cluster's nodes."""
        return {node: member.address for node, member in sorted(self._cluster.members.items())}

    async def status(self) -> dict[NodeId, StatusReply | CordwoodError]:
        """The status that each node reports of itself, or the error if it did not answer, in node
        order."""
        return await self._ask_each(AskStatus(), StatusReply)

    async def streams(self) -> dict[NodeId, StreamsReply | CordwoodError]:
        """The read streams at each node, or the error if it did not answer, in node order."""
        return await self._ask_each(AskStreams(), StreamsReply)

    async def authorities(self) -> dict[NodeId, Authority]:
        """The reported status of each node's data, in node order.

        Raises:
            Unreachable: no node answered in time.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        return {node: member.authority for node, member in sorted(self._cluster.members.items())}

    async def set_authority(
        self, node: int, authority: Authority, expected: Authority | None = None
    ) -> None:
        """Set the authoritative status of a node that is down: a compare-and-set.

        Nodes learn the status within a second and readers a few seconds later. Readers and
        recoveries that waited for the node go on. A node that starts again clears the status
        itself.

        Args:
            expected: its present status; None accepts any.
        Raises:
            Rejected: the status is not `expected`, the node is up, or the new status cannot follow
                the present status (`quorum.authority.BECOMES`).
            Fenced: the node's entry changed during the call. It may have been set and taken back:
                look again.
            BadSetting: the node does not exist.
            Unreachable: the cluster did not answer; it may be set, and may be set again.
        """
        if expected is None:
            full = Authority.FULLY_AUTHORITATIVE
            expected = (await self.authorities()).get(NodeId(node), full)
        # A node that runs changes its entry often. No reader is told of a loss if it has data.
        call = SetAuthority(node, authority, expected)
        await self._change_entry(call, may_repeat=authority in HAS_DATA)

    async def set_storage(self, node: int, *, read_only: bool) -> None:
        """Make a node read-only, or let it store again. Readers read from it in both cases.

        Nodes hear of it within a second. Recoveries read from a read-only node and store on others.

        Raises:
            BadSetting: the node does not exist.
            Fenced: the node's entry changed during the call. It may have been set and taken back:
                look again.
            Unreachable: the cluster did not answer; it may be set, and may be set again.
        """
        await self._change_entry(SetStorage(node, read_only), may_repeat=True)

    async def _change_entry(self, call: SetAuthority | SetStorage, *, may_repeat: bool) -> None:
        """Change a node's entry as it is now.

        Args:
            may_repeat: whether to give the order again if the entry changed on the way.
        """

        def seen(reply: object) -> Call:
            assert isinstance(reply, MembersReply), "AskMembers is answered with members"
            return replace(call, if_version=reply.version)

        def again(passed_s: float) -> bool:
            return may_repeat and passed_s <= GIVEN_S

        await self._order(AskMembers(call.node), seen, again)
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)

    async def if_lost(self, nodes: Collection[int]) -> dict[NodeId, IfLost | CordwoodError]:
        """What each node would have to give if the data of `nodes` were gone, in node order.

        Nothing is changed. One node counts each block, so the answers add up. If a node does not
        answer, the blocks that it would copy are missing from the sum.

        Raises:
            BadSetting: no node is named, or a named node does not exist.
            Unreachable: no node answered in time.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        asked = sorted(self._cluster.members)
        lost = tuple(sorted(set(nodes)))
        unknown = [node for node in lost if node not in self._cluster.members]
        if unknown or not lost:
            known = ", ".join(map(str, asked))
            what = f"there is no node {unknown[0]}" if unknown else "name a node"
            raise BadSetting(f"{what}; there are {known}")
        answers = await asyncio.gather(*(self._if_lost(node, lost) for node in asked))
        return dict(zip(asked, answers, strict=True))

    async def _if_lost(self, node: NodeId, lost: tuple[int, ...]) -> IfLost | CordwoodError:
        found = IfLost()
        log = lsn = 0
        while True:
            call = AskIfLost(lost, log, lsn)
            try:
                reply = await self._cluster.call_node(node, call, timeout_s=LOOK_S)
            except CordwoodError as error:
                return error
            assert isinstance(reply, IfLostReply), "AskIfLost has one kind of answer"
            found = IfLost(
                found.blocks + reply.blocks, found.bytes + reply.bytes,
                found.stuck + reply.stuck, found.last + reply.last,
                found.gone + reply.gone, found.unknown + reply.unknown,
            )  # fmt: skip
            if (reply.log, reply.lsn) <= (log, lsn):
                return found
            log, lsn = reply.log, reply.lsn

    async def check_impact(
        self, nodes: Collection[int] = (), racks: Collection[str] = ()
    ) -> ImpactReply:
        """The logs that would stop if `nodes`, and all nodes of `racks`, were absent. Nothing is
        changed.

        Args:
            racks: locations of racks, or of wider domains: all nodes below are meant.
        Raises:
            BadSetting: no node is named, or a named node does not exist.
            Unreachable: no node answered in time.
        """
        call = AskImpact(tuple(sorted(set(nodes))), tuple(sorted(set(racks))))
        timeout_s = max(IMPACT_S, self._settings.timeout_s)
        reply = await self._cluster.call_any(call, timeout_s=timeout_s)
        assert isinstance(reply, ImpactReply), "AskImpact has one kind of answer"
        return reply

    async def apply_maintenance(
        self,
        nodes: Collection[int] = (),
        racks: Collection[str] = (),
        *,
        wanted: str = "MAY_DISAPPEAR",
        reason: str,
        user: str,
        ttl_s: int = 0,
    ) -> MaintenanceRequest:
        """Request maintenance: take nodes out of service. Returns the request, which may be blocked
        until the step is safe.

        Args:
            racks: locations of racks, or of wider domains: all nodes below are meant.
            wanted: `MAY_DISAPPEAR` or `DRAINED`.
            ttl_s: seconds after which the request ends by itself; 0 for never.
        Raises:
            BadSetting: it makes no sense, and the text says why.
            Rejected: it was there, and is over already.
            Unreachable: the cluster did not answer; the request may be there.
        """
        named = tuple(sorted(set(nodes))), tuple(sorted(set(racks)))
        mark = self._cluster.new_mark()
        reply = await self._maintenance(ApplyMaintenance(*named, wanted, reason, user, ttl_s, mark))
        made = [each for each in reply.requests if each.number == reply.applied]
        if not made:
            raise Rejected(f"request {reply.applied} is over: it was taken back, or its TTL ended")
        return made[0]

    async def maintenance(self) -> list[MaintenanceRequest]:
        """All requests, oldest first. Requests that became safe are granted first.

        Raises:
            Unreachable: the cluster did not answer.
        """
        return (await self._maintenance(AskMaintenance())).requests

    async def remove_maintenance(self, number: int) -> None:
        """Take a request back: its nodes are in service again, unless another request names them.

        Raises:
            BadSetting: no request has this number.
            Unreachable: the cluster did not answer; the request may be gone.
        """
        await self._maintenance(RemoveMaintenance(number, self._cluster.new_mark()))

    async def _maintenance(self, call: MaintenanceCall) -> MaintenanceReply:
        timeout_s = max(IMPACT_S, self._settings.timeout_s)
        reply = await self._cluster.call_any(call, timeout_s=timeout_s)
        assert isinstance(reply, MaintenanceReply), "these calls have one kind of answer"
        return reply

    async def rebuilding(self, *, donors: bool = True) -> Rebuilding:
        """Which nodes are being rebuilt, and how far each donor is.

        Args:
            donors: also ask each node for its work as a donor; otherwise one node answers for all.
        Raises:
            Unreachable: no node answered.
        """
        if not donors:
            reply = await self._cluster.call_any(
                AskRebuilding(), timeout_s=self._settings.timeout_s
            )
            assert isinstance(reply, RebuildingReply), "AskRebuilding has one kind of answer"
            told = read_set(reply.set)
            return Rebuilding(told.lost, {}, {}, told.rebalancing)
        answers = await self._ask_each(AskRebuilding(), RebuildingReply)
        replies = [each for each in answers.values() if isinstance(each, RebuildingReply)]
        if not replies:
            raise Unreachable("no node tells which nodes are being rebuilt")
        newest = max(map(read_set, (each.set for each in replies)), key=lambda each: each.through)
        states = {
            node: each if isinstance(each, CordwoodError) else each.donor
            for node, each in answers.items()
        }
        heals = {
            node: each.heal
            for node, each in sorted(answers.items())
            if isinstance(each, RebuildingReply) and each.heal.lost
        }
        return Rebuilding(newest.lost, states, heals, newest.rebalancing)

    async def say_rebuild(
        self, node: int, order: str, *, forced: bool = False, unless_empty: bool = False
    ) -> None:
        """Give an order about the rebuilding of a node's data.

        Args:
            order: `start`, for a node that is down; `abort`, `gone` (its data never comes back),
                `drain` and `undrain`.
            forced: the order is carried out even if many nodes are being rebuilt.
            unless_empty: `undrain` is refused if the node is empty by then: with the end of its
                drain an empty node stops.
        Raises:
            Rejected: the order makes no sense now, and the text says why.
            Fenced: other nodes were lost, drained or back during the call. The order may have been
                carried out and taken back: look again.
            BadSetting: the node or the order does not exist.
            Unreachable: the cluster did not answer; the order may be in effect, and may be given
                again.
        """
        orders = {each.value: each for each in RebuildOrder}
        if order not in orders:
            raise BadSetting(f"there is no order {order[:32]!r}; there are {', '.join(orders)}")
        call = SayRebuild(node, orders[order], forced, unless_empty)

        def seen(reply: object) -> Call:
            assert isinstance(reply, RebuildingReply), "AskRebuilding has one kind of answer"
            known = read_set(reply.set)
            mark = known.mark(node, of_drain=call.order.is_of_drain)
            return replace(call, if_version=known.version, if_mark=mark)

        await self._order(AskRebuilding(), seen, lambda passed_s: passed_s <= GIVEN_S)

    async def read_only(self) -> dict[NodeId, bool]:
        """Whether an operator made each node read-only, in node order.

        Raises:
            Unreachable: no node answered in time.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        return {node: member.read_only for node, member in sorted(self._cluster.members.items())}

    async def _ask_each(
        self, message: Call, kind: type[Answer]
    ) -> dict[NodeId, Answer | CordwoodError]:
        async def ask(node: NodeId) -> Answer | CordwoodError:
            try:
                reply = await self._cluster.call_node(node, message, timeout_s=ASK_EACH_S)
            except CordwoodError as error:
                return error
            assert isinstance(reply, kind), f"{type(message).__name__} has one kind of answer"
            return reply

        self._cluster.check_open()
        nodes = sorted(self._cluster.members)
        return dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))
