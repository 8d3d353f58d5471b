"""The members of the cluster as they are now, for a donor that is about to report that it is done.

The metadata store knows them all. While it is away, the donor takes the nodes that it knows and
those that other nodes know: a node that takes part in an epoch was known to the epoch's sequencer.

Source: docs/protocol/rebuilding.md, rule 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError
from cordwood.layout.message_nodes import AskMembers, MembersReply
from cordwood.nodes import NodeId
from cordwood.wire.peers import Peers

if TYPE_CHECKING:
    from cordwood.metadata.joins import Joins
    from cordwood.metadata.membership import Membership

logger = logging.getLogger(__name__)

HEARD_S = 2.0
"""A node answers from its memory."""


async def members_now(
    membership: Membership, peers: Peers, known: Iterable[NodeId]
) -> frozenset[NodeId]:
    """Every member; while the metadata store does not answer, every member that is known.

    Args:
        known: the members that this node knows.
    """
    try:
        return frozenset(member.node for member in await membership.members())
    except CordwoodError as error:
        logger.info("the members are as nodes know them: %s", error)
    heard = await asyncio.gather(*(_heard(peers, node) for node in sorted(peers.up)))
    return frozenset(known).union(*heard)


async def joined_now(joins: Joins) -> dict[int, int]:
    """How far nodes knew the event log as they joined; empty if the metadata store does not
    answer."""
    try:
        return await joins.read()
    except CordwoodError as error:
        logger.info("which events nodes knew as they joined is not known: %s", error)
        return {}


async def _heard(peers: Peers, node: NodeId) -> frozenset[NodeId]:
    """The members that another node knows; none if it does not answer."""
    try:
        reply = await peers.call(node, AskMembers(), timeout_s=HEARD_S)
    except CordwoodError as error:
        logger.debug("node %d does not say which members it knows: %s", node, error)
        return frozenset()
    assert isinstance(reply, MembersReply), "AskMembers has one kind of answer"
    return frozenset(NodeId(each.node) for each in reply.members)
