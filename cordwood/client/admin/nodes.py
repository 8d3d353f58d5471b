"""The client's calls about nodes; `Store` has them.

Source: docs/design.md §6, §7; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from cordwood.client.cluster import Cluster
from cordwood.errors import CordwoodError
from cordwood.layout.message import AskStatus, AskStreams, Call, StatusReply, StreamsReply
from cordwood.layout.message_nodes import SetAuthority, SetStorage
from cordwood.nodes import Authority, NodeId
from cordwood.settings import ClientSettings

Answer = TypeVar("Answer")

ASK_EACH_S = 2.0
"""How long a node may take to say how it is; one that is down is not waited for longer."""


class Nodes:
    """See the module; made by whoever inherits it, which sets `_cluster` and `_settings`."""

    _cluster: Cluster
    _settings: ClientSettings

    @property
    def members(self) -> dict[NodeId, str]:
        """Addresses of the cluster's nodes."""
        return {node: member.address for node, member in sorted(self._cluster.members.items())}

    async def status(self) -> dict[NodeId, StatusReply | CordwoodError]:
        """What each node says of itself, or why it says nothing, in node order."""
        return await self._ask_each(AskStatus(), StatusReply)

    async def streams(self) -> dict[NodeId, StreamsReply | CordwoodError]:
        """The read streams at each node, or why it says nothing, in node order."""
        return await self._ask_each(AskStreams(), StreamsReply)

    async def authorities(self) -> dict[NodeId, Authority]:
        """What is said of each node's data, in node order.

        Raises:
            Unreachable: no node answered in time.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        return {node: member.authority for node, member in sorted(self._cluster.members.items())}

    async def set_authority(
        self, node: int, authority: Authority, expected: Authority | None = None
    ) -> None:
        """Say what became of the data of a node that is down: a compare-and-set.

        Nodes hear of it within a second, readers within some more, and those that waited for
        the node go on. A node that starts again takes it back by itself.

        Args:
            expected: what is said of it now; None takes what it is.
        Raises:
            Rejected: something else is said of it by now, the node is up, or the one cannot
                follow the other (`quorum.authority.BECOMES`).
            BadSetting: there is no such node.
            Unreachable: the cluster did not answer; it may be set, and may be set again.
        """
        if expected is None:
            full = Authority.FULLY_AUTHORITATIVE
            expected = (await self.authorities()).get(NodeId(node), full)
        call = SetAuthority(node, authority, expected)
        await self._cluster.call_any(call, timeout_s=self._settings.timeout_s)
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)

    async def set_storage(self, node: int, *, read_only: bool) -> None:
        """Have a node store nothing from now on, or store again; it is read all the same.

        Nodes hear of it within a second. A recovery reads such a node and stores on others.

        Raises:
            BadSetting: there is no such node.
            Unreachable: the cluster did not answer; it may be set, and may be set again.
        """
        call = SetStorage(node, read_only)
        await self._cluster.call_any(call, timeout_s=self._settings.timeout_s)
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)

    async def read_only(self) -> dict[NodeId, bool]:
        """Whether each node stores nothing because somebody said so, in node order.

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

        nodes = sorted(self._cluster.members)
        return dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))
