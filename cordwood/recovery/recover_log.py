"""Log recovery: make every epoch below a new one clean, in order.

Seal, digest, mend, tell the nodes, record it: with an f-majority of the members,
so that any R-1 of them may be away. A member that was away purges what it holds
above the epoch's LNG before it serves any of it (`recovery.purge`).

The new epoch takes appends as soon as all below it is sealed (`seal_log`): from then on
no older sequencer can acknowledge anything, so what is acknowledged in the new epoch stands
after all that was acknowledged before. None of it is released before recovery has ended.

Source: LogDevice digest 2.7; seed logdevice-recovery; design.md §3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cordwood.block import Produced
from cordwood.errors import CordwoodError, NoSequencer, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.message import AskEpoch, Clean, DoneReply, EpochReply, Reply
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import format_lsn, make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.digest import Mend
from cordwood.protocol.producers import ProducerTable
from cordwood.protocol.seal import SealTally
from cordwood.recovery.absent import refuse_absent
from cordwood.recovery.ask import ask_all, ask_until
from cordwood.recovery.collect_digest import Collected, DigestReads, collect_digest
from cordwood.recovery.mend_tail import MendJob, mend_tail
from cordwood.recovery.seal_epoch import seal_epoch
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel

logger = logging.getLogger(__name__)

CLEAN_TIMEOUT_S = 3.0
"""One durable write, as for a seal."""


@dataclass(frozen=True, slots=True)
class RecoveryTools:
    """What recovery works with; one set for each node.

    Attributes:
        run_bytes: bytes stored at once while mending; with one more block they fit a
            WAL record.
        silent: the nodes that are dead now, or suspected to be.
    """

    host: Host
    peers: Peers
    channel: StoreChannel
    digests: DigestReads
    epochs: EpochStore
    run_bytes: int
    silent: Callable[[], frozenset[NodeId]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a sequencer must know of the epochs below its own.

    Attributes:
        producers: what is remembered of producers.
        tail: LSN of the last record, whatever epochs without one are above it; 0 for none.
    """

    producers: ProducerTable
    tail: int


async def seal_log(
    log: int,
    epoch: int,
    record: EpochRecord,
    members: dict[NodeId, Member],
    tools: RecoveryTools,
) -> int:
    """Seal all epochs of `log` in (clean epoch, `epoch`); the latest append time below, µs.

    Epochs that have one nodeset and replication are sealed by one question.

    Raises:
        Fenced: a higher epoch rules.
        NoSequencer: too many members are absent; all named.
    """
    time_us = record.clean_time_us
    unclean = range(record.clean_epoch + 1, epoch)
    for nodes, replication in dict.fromkeys(map(record.configuration, unclean)):
        nodeset = Nodeset(tuple(members.get(n) or Member(n, "") for n in nodes))
        tally = await seal_epoch(
            log, epoch, epoch - 1, nodeset, replication, tools.peers, silent=tools.silent()
        )
        time_us = max(time_us, tally.append_time_us)
    return time_us


async def recover_log(
    log: int,
    epoch: int,
    record: EpochRecord,
    members: dict[NodeId, Member],
    tools: RecoveryTools,
    begins_us: int,
) -> Recovered:
    """Recover all epochs of `log` in (clean epoch, `epoch`), lowest first.

    Args:
        epoch: the new sequencer's own epoch.
        record: the epoch store's record as it was when `epoch` was taken.
        members: where nodes are; a node without an entry cannot be asked.
        begins_us: no record of `epoch` is older. What ends the epochs below must not be
            younger, and nodes may have blocks of `epoch` by now.
    Raises:
        Fenced: a higher epoch rules.
        NoSequencer: too many members are absent; all named.
    """
    time_us, tail = record.clean_time_us, record.clean_tail
    produced, known = await _last_known(log, record, tools.peers)
    producers = ProducerTable(produced)
    for unclean in range(known + 1, epoch):
        nodes, replication = record.configuration(unclean)
        nodeset = Nodeset(tuple(members.get(n) or Member(n, "") for n in nodes))
        tally, found = await _seal_and_read(
            log, epoch, unclean, nodeset, replication, tools, begins_us
        )
        time_us = min(begins_us, max(time_us, tally.append_time_us))
        job = MendJob(
            log, epoch, found.lng, found.nodes, nodeset, replication, time_us, tools.run_bytes,
            found.holders,
        )  # fmt: skip
        mend = found.digest.mend()
        tally.note_produced(unclean, found.lng, producers)
        for copy in mend.blocks:
            if copy.header.producer:
                header = copy.header
                producers.note(header.producer, header.producer_epoch, header.place)
        if mend.bridge - 1 > make_lsn(unclean, 0):
            tail = max(tail, mend.bridge - 1)
        await _finish_epoch(unclean, job, mend, tail, pack_produced(producers.all()), tools)
    return Recovered(producers, tail)


async def _last_known(
    log: int, record: EpochRecord, peers: Peers
) -> tuple[tuple[Produced, ...], int]:
    """The producers as of the end of the last clean epoch, and that epoch.

    The members that took part in its recovery know; there are more of them than may be away.
    Where every single one is there and none knows, all of them lost it, and a person accepted
    that: else they would not say so. Then the epoch is recovered once more, of what is left,
    as are those below it of which nobody knows either; or no node could ever be purged.

    Raises:
        NoSequencer: some of them did not answer, and the others do not know.
    """
    for clean in range(record.clean_epoch, 0, -1):
        nodes, _ = record.configuration(clean)
        answers = await _ask_end(log, clean, nodes, peers)
        ends = [a for a in answers.values() if isinstance(a, EpochReply) and a.known]
        if ends:
            return read_produced(max(ends, key=lambda end: end.seal).produced), clean
        if any(isinstance(answer, CordwoodError) for answer in answers.values()):
            failures = {
                node: answer if isinstance(answer, CordwoodError) else Unreachable("was not told")
                for node, answer in answers.items()
            }
            refuse_absent(log, f"learning the producers of epoch {clean}", failures)
        logger.warning(
            "log %d: nodes %s have all forgotten how epoch %d ended: it is recovered once more",
            log, nodes, clean,
        )  # fmt: skip
    return (), 0


async def _ask_end(
    log: int, epoch: int, nodes: Sequence[NodeId], peers: Peers
) -> Mapping[NodeId, Reply | CordwoodError]:
    def is_known(answers: Mapping[NodeId, Reply | CordwoodError]) -> bool:
        return any(isinstance(each, EpochReply) and each.known for each in answers.values())

    return await ask_until(
        nodes,
        lambda node: peers.call(node, AskEpoch(log, epoch), timeout_s=CLEAN_TIMEOUT_S),
        is_known,
        grace_s=0.0,
    )


async def _seal_and_read(
    log: int,
    epoch: int,
    unclean: int,
    nodeset: Nodeset,
    replication: Replication,
    tools: RecoveryTools,
    begins_us: int,
) -> tuple[SealTally, Collected]:
    """Seal, and read the tail from those that sealed.

    Among the first that seal may be some that cannot tell what they hold. Only if nobody
    else is left to seal is that a reason to give up: the same ones may be first each time.
    """
    everyone = False
    while True:
        tally = await seal_epoch(
            log, epoch, unclean - 1, nodeset, replication, tools.peers, silent=tools.silent(),
            everyone=everyone,
        )  # fmt: skip
        sealed = Nodeset(tuple(nodeset[node] for node in tally.sealed))
        try:
            return tally, await collect_digest(
                log, unclean, tally.lng(unclean), sealed, nodeset, replication, tools.digests,
                begins_us,
            )  # fmt: skip
        except NoSequencer:
            if everyone or len(tally.sealed) == len(nodeset.nodes):
                raise
            everyone = True


async def _finish_epoch(
    unclean: int, job: MendJob, mend: Mend[StoredBlock], tail: int, produced: bytes,
    tools: RecoveryTools,
) -> None:  # fmt: skip
    """Store the outcome, tell the nodes that the epoch is over, and record it.

    Args:
        tail: LSN of the last record up to the end of `unclean`.
    """
    logger.info(
        "log %d epoch %d: LNG %s, %d blocks kept, %d holes, bridge at %s, with nodes %s",
        job.log, unclean, format_lsn(job.lng), len(mend.blocks), len(mend.holes),
        format_lsn(mend.bridge), job.nodes,
    )  # fmt: skip
    await mend_tail(job, mend, tools.channel, tools.host)
    clean = Clean(job.log, unclean, job.seal, job.lng, produced)
    answers = await ask_all(
        job.nodes, lambda node: tools.peers.call(node, clean, timeout_s=CLEAN_TIMEOUT_S)
    )
    failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
    if failures:
        refuse_absent(job.log, f"cleaning epoch {unclean}", failures)
    assert all(isinstance(answer, DoneReply) for answer in answers.values()), "Clean is answered"
    await tools.epochs.set_clean(job.log, unclean, tail, job.append_time_us)
