"""Let go of the configurations of epochs of which nothing can be read any more.

A log's history of nodesets grows with its epochs and is read, told and kept whole, so it is
trimmed with the data. An entry may go once
- the last clean epoch is above all that it covers: recovery asks the nodes of that epoch how it
  ended, and of those above what they hold, and of none below;
- every node that may have held a record of it answers that it has none: a node that is away
  and comes back would have records that nobody looks for;
- somebody was asked to trim that far, and all nodes that stay know it, so that a reader that
  begins below is told TRIM.

It is looked at when a log was recovered, since histories grow with epochs alone.

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
"""A look into an index, and a durable write."""


def trimmed_since(
    record: EpochRecord, extents: Mapping[NodeId, ExtentReply], statuses: Statuses
) -> int:
    """The epoch since when the first entry holds that has to stay.

    Args:
        extents: what nodes hold up to the last clean epoch; nodes that did not answer are left
            out.
        statuses: of nodes whose data is gone, or elsewhere, nothing is asked.
    """
    trim = max((each.trim for each in extents.values()), default=0)
    since = record.history[0].since
    for before, entry in zip(record.history, record.history[1:], strict=False):
        end = make_lsn(entry.since - 1, ESN_MAX)
        if entry.since > record.clean_epoch or end > trim:
            break
        there = [NodeId(n) for n in before.nodes if statuses.get(NodeId(n)) in (None, *HAS_DATA)]
        if not all(node in extents and not 0 < extents[node].first <= end for node in there):
            break
        since = entry.since
    return since


async def trim_nodesets(
    log: int, epoch: int, epochs: EpochStore, peers: Peers, statuses: Statuses
) -> EpochRecord | None:
    """Trim what may go; the log's record after that, None if there is none.

    Args:
        epoch: the sequencer's own; all below it is recovered.
    Raises:
        CordwoodError: the metadata store or a node did not answer; nothing was lost.
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
        if isinstance(answer, CordwoodError) and statuses.get(node) in (None, *HAS_DATA):
            raise answer
        assert isinstance(answer, CordwoodError | TrimReply), "Trim is answered with TrimReply"
    logger.info("log %d: its nodesets of epochs below %d are trimmed", log, since)
    return await epochs.trim_history(log, since)


def _audience(history: Sequence[NodesetSince]) -> list[NodeId]:
    return sorted({NodeId(node) for each in history for node in each.nodes})
