"""Stores the nodeset of each epoch on storage nodes: the log's metadata log.

Readers learn from it, without the metadata store, where a new epoch's records are. So no record of
an epoch is released before R of its nodes, over as many racks as the log asks for, keep its nodeset
durably: a reader that can read a record of the epoch also finds a node that knows the nodeset. A
node's history is complete up to the epoch that sent it, so one answer is enough, if it is of the
wanted epoch or of a later epoch.

LogDevice keeps the same history as a log on nodes of its own. Here it is part of each node's state
of the log, so no data partition has to be kept for it.

Source: docs/sources/logdevice.md 2.7 (1), 2.8; docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import CordwoodError, Fenced
from cordwood.layout.message import DoneReply, Reply, TellNodesets
from cordwood.lsn import LogId
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.nodes import Member, NodeId
from cordwood.quorum.copyset import can_replicate
from cordwood.recovery.absent import refuse_absent, refuse_fenced
from cordwood.recovery.ask import ask_until
from cordwood.wire.peers import Peers

TELL_TIMEOUT_S = 3.0
"""One durable write, as for a seal."""


async def tell_nodesets(
    log: LogId,
    epoch: int,
    record: EpochRecord,
    members: Mapping[NodeId, Member],
    peers: Peers,
    *,
    begins: bool = False,
) -> None:
    """Tell all nodes that the log ever had; return when enough nodes of the epoch keep it.

    Args:
        record: the epoch store's record as it was when `epoch` was taken.
        begins: the epoch begins after this, and no seal has asked for its records.
    Raises:
        Fenced: with `begins`, a node that answered in time knows records of the epoch, or of a
            higher one.
        NoSequencer: too few nodes answered; the text names the absent ones.
    """
    entry = record.entry(epoch)
    nodeset, replication = entry.nodeset(members), entry.replication
    history = [each.told for each in record.history]
    # Old nodes too: a reader of old records asks them where the log goes on.
    audience = sorted({NodeId(node) for each in record.history for node in each.nodes})

    def enough(answers: Mapping[NodeId, Reply | CordwoodError]) -> bool:
        if any(isinstance(answer, Fenced) for answer in answers.values()):
            return True
        kept = {node for node, answer in answers.items() if isinstance(answer, DoneReply)}
        return can_replicate(kept, nodeset, replication)

    tell = TellNodesets(log, epoch, history, begins)
    answers = await ask_until(
        audience, lambda node: peers.call(node, tell, timeout_s=TELL_TIMEOUT_S), enough, grace_s=0.0
    )
    failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
    refuse_fenced(failures)
    if not enough(answers):
        refuse_absent(log, "telling nodesets", failures)
