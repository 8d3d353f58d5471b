"""The nodesets of a log's epochs, known to this node or from the epoch store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.storage.engine import StorageEngine

logger = logging.getLogger(__name__)

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
    known, history = engine.nodesets(log)
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
    """The history in the epoch store; None if it does not answer, or has no such log."""
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
