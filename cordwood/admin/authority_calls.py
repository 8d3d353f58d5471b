"""Sets the authoritative status of nodes' data for an operator; a node clears its own status.

Only a node that is down can be declared without its data: a running node takes new records, and
readers would then not wait for them. A running node that finds a status of its own data clears it:
at its start, when it registers, and also after it was only stopped. It does so in two steps:
`read_members` has the others wait for it, and `end_return` clears the rest.

Source: docs/protocol/rebuilding.md, rule 19; docs/sources/logdevice.md 2.9; `quorum.authority`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Set

from cordwood.errors import CordwoodError, Rejected
from cordwood.layout.message_nodes import SetAuthority
from cordwood.metadata.membership import Membership
from cordwood.nodes import Member, NodeId
from cordwood.quorum.authority import HAS_DATA

logger = logging.getLogger(__name__)


async def set_authority(membership: Membership, call: SetAuthority, dead: Set[NodeId]) -> None:
    """Do the call.

    Args:
        dead: the nodes that the failure detector calls dead.
    Raises:
        Rejected, Fenced: the node is up, or see `Membership.set_authority`.
        BadSetting: the node does not exist.
        Retryable: the metadata store did not answer; it may be asked again.
    """
    node = NodeId(call.node)
    members = {member.node for member in await membership.members()}
    if call.authority not in HAS_DATA and node in members and node not in dead:
        raise Rejected(
            f"node {node} is up, so it cannot be said to be {call.authority.value}: stop it, and "
            "wait some seconds until the others take it for dead"
        )
    await membership.set_authority(node, call.authority, call.expected, call.if_version)
    logger.info("node %d is %s from now on: asked for", node, call.authority.value)


async def read_members(
    membership: Membership, me: NodeId, seal: Callable[[], Awaitable[None]]
) -> tuple[Member, ...]:
    """Every member. Node `me` runs, so the others wait for it from now on if its data was said to
    be gone or elsewhere.

    Args:
        seal: seals every log up to its newest epoch: some may have been recovered without
            this node.
    Raises:
        CordwoodError: the metadata store did not answer.
    """
    members = await membership.members()
    mine = next((member for member in members if member.node == me), None)
    if mine is None or mine.authority in HAS_DATA:
        return members
    logger.warning(
        "this node was reported as %s, and is here with its data: it reports its return",
        mine.authority.value,
    )
    try:
        await membership.come_back(me)
        await seal()
    except CordwoodError as error:
        # The status as read counts: the next look tries again.
        logger.warning("that this node is here could not be written down: %s", error)
        return members
    return await membership.members()


async def end_return(
    membership: Membership,
    me: NodeId,
    is_counted_on: Callable[[], Awaitable[bool]],
    seal: Callable[[], Awaitable[None]],
) -> bool:
    """Clear the note that node `me` owes seals, if its return is over.

    Trap: the note may be there for an entry of the rebuilding set that ends only later, and this
    node may not have heard of the entry. An epoch that is taken before that end does without this
    node, so only seals behind the end are enough.

    Args:
        is_counted_on: whether recoveries count on this node, by all events from before the call.
        seal: as in `read_members`.
    Returns:
        Whether the note is cleared. Otherwise the next look tries again.
    Raises:
        CordwoodError: the metadata store, or the event log, did not answer. Or an entry of the set
            is about to end (Fenced).
    """
    # Race: the next entry may come, and be about to end, behind the look at the set. Whoever ends
    # it owes seals first, and gives this another version.
    version = await membership.version(me)
    if not await is_counted_on():
        return False
    await seal()
    await membership.end_return(me, version)
    return True
