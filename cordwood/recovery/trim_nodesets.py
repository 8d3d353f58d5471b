"""Drops the configurations of epochs that have no readable record any more.

A log's history of nodesets grows with its epochs. It is read, sent and kept as a whole, so it is
trimmed with the data. An entry may go when all of these hold:
- The last clean epoch is above all epochs of the entry. Recovery asks the nodes of the last clean
  epoch how it ended, and the nodes of higher epochs for their blocks. It asks no node of lower
  epochs.
- Every node that may have held a record of these epochs answers that it has none. A node that is
  away might come back with records for which no reader looks.
- The log was trimmed that far, and all nodes that stay know it, so that a reader that begins below
  gets TRIM.

The check runs after each recovery of a log, because histories grow only with epochs.

Source: docs/sources/logdevice.md 2.8 (trimmed once the data trim point passed an entry's range).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from cordwood.errors import CordwoodError
from cordwood.layout.log_questions import AskExtent, ExtentReply, Trim, TrimReply
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.nodes import NodeId
from cordwood.quorum.authority import HAS_DATA
from cordwood.recovery.ask import ask_all
from cordwood.recovery.heard import Statuses
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 3.0
"""The answer takes a search in an index and a durable write."""


def trimmed_since(
    record: EpochRecord, extents: Mapping[NodeId, ExtentReply], statuses: Statuses
) -> int:
    """The first epoch of the first entry that has to stay.

    Args:
        extents: the records that nodes hold up to the last clean epoch; nodes that did not answer
            are left out.
        statuses: of nodes' data. A node need not answer if its data is gone or lies elsewhere.
    """
    trim = max((each.trim for each in extents.values()), default=0)
    since = record.history[0].since
    for before, entry in zip(record.history, record.history[1:], strict=False):
        end = make_lsn(entry.since - 1, ESN_MAX)
        # Entries go from the oldest on. The first entry that must stay keeps all later entries.
        if entry.since > record.clean_epoch or end > trim:
            break
        there = [NodeId(n) for n in before.nodes if statuses.get(NodeId(n)) in (None, *HAS_DATA)]
        # Trap: a silent node counts as a holder of records. With its entry gone, readers would not
        # ask it, and would take its records for a gap.
        if not all(node in extents and not 0 < extents[node].first <= end for node in there):
            break
        since = entry.since
    return since


async def trim_nodesets(
    log: int, epoch: int, epochs: EpochStore, peers: Peers, statuses: Statuses
) -> EpochRecord | None:
    """Trim the entries that may go; return the log's record after that, None if there is none.

    Args:
        epoch: the sequencer's own epoch; all lower epochs are recovered.
    Raises:
        CordwoodError: the metadata store or a node did not answer; no entry was lost.
    """
    record = await epochs.read(log)
    if record is None or len(record.history) < 2 or record.history[1].since > record.clean_epoch:
        return record
    ask = AskExtent(log, int(make_lsn(record.clean_epoch, 0)))
    answers = await ask_all(
        _audience(record.history), lambda node: peers.call(node, ask, timeout_s=ASK_TIMEOUT_S)
    )
    extents = {n: each for n, each in answers.items() if isinstance(each, ExtentReply)}
    since = trimmed_since(record, extents, statuses)
    if since == record.history[0].since:
        return record
    trim = Trim(log, int(make_lsn(since - 1, ESN_MAX)), int(make_lsn(epoch, 0)))
    stay = _audience([each for each in record.history if each.since >= since])
    told = await ask_all(stay, lambda node: peers.call(node, trim, timeout_s=ASK_TIMEOUT_S))
    for node, answer in told.items():
        # Trap: the entry may go only after every remaining node keeps the trim point. A reader that
        # begins below it would otherwise look for nodes that no answer can name.
        if isinstance(answer, CordwoodError) and statuses.get(node) in (None, *HAS_DATA):
            raise answer
        assert isinstance(answer, CordwoodError | TrimReply), "Trim is answered with TrimReply"
    logger.info("log %d: its nodesets of epochs below %d are trimmed", log, since)
    return await epochs.trim_history(log, since)


def _audience(history: Sequence[NodesetSince]) -> list[NodeId]:
    return sorted({NodeId(node) for each in history for node in each.nodes})
