"""Have storage nodes keep which nodes may hold which epoch: the log's metadata log.

Readers learn from it where a new epoch's records are without the metadata store. So nothing
of an epoch is released before R of its nodes, over as many racks as it asks for, keep its
nodeset durably: whoever can read a record of it finds somebody who knows where to read. What
a node was told is complete up to the epoch that told it, and so one answer is enough, if it
is of the epoch that is asked for or of a later one.

LogDevice keeps the same history as a log on nodes of its own; here it is part of what each
node keeps of the log, which no partition of data has to live on for.

Source: docs/sources/logdevice.md 2.7 (1), 2.8; docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import CordwoodError
from cordwood.layout.message import DoneReply, Reply, TellNodesets
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.nodes import Member, NodeId
from cordwood.quorum.copyset import can_replicate
from cordwood.recovery.absent import refuse_absent
from cordwood.recovery.ask import ask_until
from cordwood.wire.peers import Peers

TELL_TIMEOUT_S = 3.0
"""One durable write, as for a seal."""


async def tell_nodesets(
    log: int, epoch: int, record: EpochRecord, members: Mapping[NodeId, Member], peers: Peers
) -> None:
    """Tell all nodes that the log ever had; return once enough of the epoch's own keep it.

    Args:
        record: the epoch store's record as it was when `epoch` was taken.
    Raises:
        NoSequencer: too few nodes answered; those absent are named.
    """
    entry = record.entry(epoch)
    nodeset, replication = entry.nodeset(members), entry.replication
    history = [each.told for each in record.history]
    audience = sorted({NodeId(node) for each in record.history for node in each.nodes})

    def enough(answers: Mapping[NodeId, Reply | CordwoodError]) -> bool:
        kept = {node for node, answer in answers.items() if isinstance(answer, DoneReply)}
        return can_replicate(kept, nodeset, replication)

    tell = TellNodesets(log, epoch, history)
    answers = await ask_until(
        audience, lambda node: peers.call(node, tell, timeout_s=TELL_TIMEOUT_S), enough, grace_s=0.0
    )
    if not enough(answers):
        failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
        refuse_absent(log, "telling nodesets", failures)
