"""The client's calls that move old data to emptier nodes; `Store` has them.

Source: docs/protocol/rebuilding.md ("A rebalance").
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from cordwood.client.admin.orders import GIVEN_S, Orders
from cordwood.client.cluster import Cluster
from cordwood.errors import BadSetting, CordwoodError
from cordwood.layout.message import Call
from cordwood.layout.message_rebuilding import (
    AskHeld,
    AskRebuilding,
    HeldReply,
    RebuildingReply,
    SayRebalance,
)
from cordwood.layout.rebuild_events import read_set
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.rebalance_plan import Group, plan_shares
from cordwood.rebuilding import PARTS, Transfer
from cordwood.settings import ClientSettings

HELD_S = 10.0
"""For one step in which a node looks over its blocks; a step takes some tenths of a second."""


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The moves that a rebalance would make.

    Attributes:
        shares: the parts that nodes give to other nodes; empty if the bytes are even enough.
        held: by node, the bytes that it holds now.
        moves: by source and target, the approximate bytes of the move.
        silent: nodes that take no part, with the reasons.
    """

    shares: tuple[Transfer, ...]
    held: Mapping[NodeId, int]
    moves: Mapping[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    silent: Mapping[NodeId, str] = field(default_factory=dict)


class Rebalances(Orders):
    """See the module. A subclass sets `_cluster` and `_settings`."""

    _cluster: Cluster
    _settings: ClientSettings

    async def rebalance_plan(self, nodes: Collection[int] = ()) -> RebalancePlan:
        """The moves after which each node holds its share of every nodeset by weight.

        Nothing is changed. Every block of every log is looked at.

        Args:
            nodes: the only nodes that get blocks; empty for all nodes that hold too little.
        Raises:
            BadSetting: a named node does not exist.
            Unreachable: no node answered in time.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        members = self._cluster.members
        unknown = sorted(set(nodes) - set(members))
        if unknown:
            known = ", ".join(map(str, sorted(members)))
            raise BadSetting(f"there is no node {unknown[0]}; there are {known}")
        silent: dict[NodeId, str] = {
            node: f"its data is {member.authority.value}"
            for node, member in members.items()
            if member.authority is not Authority.FULLY_AUTHORITATIVE
        }
        asked = [node for node in sorted(members) if node not in silent]
        held: dict[int, list[Group]] = {}
        for node, answer in zip(asked, await asyncio.gather(*map(self._held, asked)), strict=True):
            if isinstance(answer, CordwoodError):
                silent[node] = str(answer)
            else:
                held[node] = answer
        shares = plan_shares(held, members, nodes)
        moves = {
            (NodeId(each.source), NodeId(each.target)): each.parts
            * sum(group.bytes for group in held[each.source] if each.target in group.nodes)
            // PARTS
            for each in shares
        }
        sums = {NodeId(n): sum(group.bytes for group in groups) for n, groups in held.items()}
        return RebalancePlan(shares, sums, moves, silent)

    async def _held(self, node: NodeId) -> list[Group] | CordwoodError:
        found: list[Group] = []
        log = lsn = 0
        while True:
            try:
                reply = await self._cluster.call_node(node, AskHeld(log, lsn), timeout_s=HELD_S)
            except CordwoodError as error:
                return error
            assert isinstance(reply, HeldReply), "AskHeld has one kind of answer"
            found += (Group(each.nodes, each.copies, each.bytes) for each in reply.groups)
            if (reply.log, reply.lsn) <= (log, lsn):
                return found
            log, lsn = reply.log, reply.lsn

    async def rebalance(self, shares: Collection[Transfer]) -> None:
        """Let nodes give these shares to other nodes. `rebuilding` tells their progress.

        Args:
            shares: of a `rebalance_plan`. Without any, the rebalance that is under way ends, and
                finished moves stay.
        Raises:
            Rejected: another rebalance is under way, or nodes are being rebuilt or drained.
            Fenced: the nodes changed during the call, or another rebalance began or ended. The
                order may have been carried out: look again.
            BadSetting: a node does not exist.
            Unreachable: the cluster did not answer; it may have begun, and the call may be
                repeated.
        """
        call = SayRebalance(tuple((each.source, each.target, each.parts) for each in shares))

        def seen(reply: object) -> Call:
            assert isinstance(reply, RebuildingReply), "AskRebuilding has one kind of answer"
            mark = read_set(reply.set).rebalance_mark(begins=bool(call.shares))
            return replace(call, if_mark=mark)

        await self._order(AskRebuilding(), seen, lambda passed_s: passed_s <= GIVEN_S)
