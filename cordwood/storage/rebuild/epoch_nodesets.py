"""The nodesets of a log's epochs: known to this node, from the epoch store, or from other nodes.

A node that was down as an epoch began was not told its nodeset, and asks the epoch store. While
that is away it asks the other nodes: each has a history that is complete up to some epoch.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import CordwoodError, Malformed
from cordwood.layout.message import AskNodesets, NodesetsReply
from cordwood.layout.message_logs import EpochNodes
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.storage.engine import StorageEngine
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

HEARD_S = 2.0
"""A node answers from its memory."""

ReadRecord = Callable[[int], Awaitable[EpochRecord | None]]


class EpochNodesets(NamedTuple):
    """Nodesets of a log, with the first epoch of each, oldest first.

    Attributes:
        known: the history is complete up to this epoch.
    """

    known: int
    history: Sequence[tuple[int, Nodeset, Replication]]

    def of(self, epoch: int) -> tuple[Nodeset, Replication] | None:
        """The nodeset of an epoch; epochs before the first entry are trimmed and have the first
        entry's."""
        if epoch > self.known or not self.history:
            return None
        found = next((e for e in reversed(self.history) if e[0] <= epoch), self.history[0])
        return found[1:]


def told_nodesets(
    engine: StorageEngine, log: int, members: Mapping[NodeId, Member]
) -> EpochNodesets:
    """The nodesets that this node was told; some nodes hear of a nodeset late."""
    try:
        return _recorded(*engine.nodesets(log), members)
    except Malformed as error:
        # An earlier version took what it could not use. The epoch store and other nodes know.
        logger.warning("log %d: %s", log, error)
        return EpochNodesets(0, [])


async def heard_nodesets(
    peers: Peers, log: int, members: Mapping[NodeId, Member]
) -> EpochNodesets | None:
    """The longest history that another node was told; None if no node that answers has any."""

    async def ask(node: NodeId) -> NodesetsReply | None:
        try:
            reply = await peers.call(node, AskNodesets(log), timeout_s=HEARD_S)
        except CordwoodError as error:
            logger.debug("node %d does not say nodesets of log %d: %s", node, log, error)
            return None
        assert isinstance(reply, NodesetsReply), "AskNodesets has one kind of answer"
        return reply

    replies = await asyncio.gather(*map(ask, sorted(peers.up)))
    told = [each for each in replies if each is not None and each.history]
    longest = max(told, key=lambda each: each.epoch, default=None)
    return None if longest is None else _recorded(longest.epoch, longest.history, members)


def _recorded(
    known: int, history: Sequence[EpochNodes], members: Mapping[NodeId, Member]
) -> EpochNodesets:
    return EpochNodesets(
        known,
        [
            (each.since, Nodeset.recorded(each.nodes, each.locations, members), each.replication)
            for each in history
        ],
    )


async def asked_nodesets(
    read_record: ReadRecord, log: int, members: Mapping[NodeId, Member]
) -> EpochNodesets | None:
    """The history in the epoch store; None if it does not answer, or does not know the log."""
    try:
        record = await read_record(log)
    except CordwoodError as error:
        logger.info("log %d: its nodesets are not known here, and: %s", log, error)
        return None
    if record is None:
        return None
    return EpochNodesets(
        record.next_epoch - 1,
        [(each.since, each.nodeset(members), each.replication) for each in record.history],
    )
