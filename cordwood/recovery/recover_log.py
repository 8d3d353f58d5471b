"""Log recovery: make every epoch below a new one clean, in order.

Seal, digest, mend, tell the nodes, record it: with an f-majority of the members,
so that any R-1 of them may be away. A member that was away purges what it holds
above the epoch's LNG before it serves any of it (`recovery.purge`).

With more nodes gone for good than the copies survive (`recovery.heard`) an epoch is ended
non-authoritatively: what is left of it is stored again as well as can be, nothing is plugged,
and it is clean, so that the log goes on. Readers are told of a loss where nothing is left. A
node that comes back later with data of it purges like any that was away, but for what it knows to
have been acknowledged: up to its own LNG it keeps what it has, and later readers get that. What a
producer had there may be stored again.

The new epoch takes appends as soon as all below it is sealed (`seal_log`): from then on
no older sequencer can acknowledge anything, so what is acknowledged in the new epoch stands
after all that was acknowledged before. None of it is released before recovery has ended.

Source: docs/sources/logdevice.md 2.7; docs/design.md §3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.block import Produced
from cordwood.errors import CordwoodError, Fenced, NoSequencer, Retryable, Unreachable
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
from cordwood.quorum.authority import HAS_DATA
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.recovery.absent import refuse_absent
from cordwood.recovery.ask import ask_all, ask_until
from cordwood.recovery.collect_digest import Collected, DigestReads, collect_digest
from cordwood.recovery.heard import Statuses, attainable, weigh
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
        statuses: what this node knows of nodes' data.
        read_statuses: the same, asked of the metadata store.
    """

    host: Host
    peers: Peers
    channel: StoreChannel
    digests: DigestReads
    epochs: EpochStore
    run_bytes: Callable[[], int]
    silent: Callable[[], frozenset[NodeId]]
    statuses: Callable[[], Statuses]
    read_statuses: Callable[[], Awaitable[Statuses]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a sequencer must know of the epochs below its own.

    Attributes:
        producers: what is remembered of producers.
        tail: LSN of the last record, whatever epochs without one are above it; 0 for none.
    """

    producers: ProducerTable
    tail: int


class Begins(NamedTuple):
    """What is known of append times when an epoch begins, once all below it is sealed.

    Attributes:
        time_us: the epoch has no older record.
        is_latest: no record that was acknowledged below is younger. Not known where nodes whose
            data is said to be gone did not seal, for these may come back, nor where some that
            sealed have lost records.
    """

    time_us: int
    is_latest: bool


async def seal_log(
    log: int,
    epoch: int,
    record: EpochRecord,
    members: dict[NodeId, Member],
    tools: RecoveryTools,
) -> Begins:
    """Seal all epochs of `log` in (clean epoch, `epoch`).

    Epochs that have one nodeset and replication are sealed by one question.

    Raises:
        Fenced: a higher epoch rules.
        NoSequencer: too many members are absent; all named.
    """
    time_us, is_latest = record.clean_time_us, True
    unclean = map(record.entry, range(record.clean_epoch + 1, epoch))
    for entry in {each.since: each for each in unclean}.values():
        nodeset, replication = entry.nodeset(members), entry.replication
        tally = await seal_epoch(
            log, epoch, epoch - 1, nodeset, replication, tools.peers,
            statuses=tools.statuses(), silent=tools.silent(),
        )  # fmt: skip
        time_us = max(time_us, tally.append_time_us)
        if weigh(tally.sure, nodeset, replication, {}) is QuorumVerdict.NONE:
            time_us, is_latest = max(time_us, tools.host.clock.now_us()), False
    return Begins(time_us, is_latest)


async def recover_log(
    log: int,
    epoch: int,
    record: EpochRecord,
    members: dict[NodeId, Member],
    tools: RecoveryTools,
    begins: Begins,
    attempt: int = 1,
) -> Recovered:
    """Recover all epochs of `log` in (clean epoch, `epoch`), lowest first.

    Args:
        epoch: the new sequencer's own epoch.
        record: the epoch store's record as it was when `epoch` was taken.
        members: where nodes are; a node without an entry cannot be asked.
        begins: as `seal_log` told it. What ends the epochs below must not be younger than
            what `epoch` begins with, and nodes may have blocks of `epoch` by now.
        attempt: above that of every earlier attempt of `epoch`'s recovery.
    Raises:
        Fenced: a higher epoch rules.
        NoSequencer: too many members are absent; all named.
        Retryable: another recovery has ended one of them meanwhile; begin anew.
    """
    time_us, tail = record.clean_time_us, record.clean_tail
    produced, known = await _last_known(log, record, members, tools)
    producers = ProducerTable(produced)
    for unclean in range(known + 1, epoch):
        entry = record.entry(unclean)
        nodeset, replication = entry.nodeset(members), entry.replication
        latest_us = _latest_us(record, unclean, begins)
        tally, found = await _seal_and_read(
            log, epoch, unclean, nodeset, replication, tools, latest_us
        )
        time_us = max(time_us, tally.append_time_us)
        if latest_us is not None:
            time_us = min(latest_us, time_us)
        if found.over_by > unclean > record.clean_epoch:
            await _refuse_ended(log, unclean, found.over_by, tools)
        job = MendJob(
            log, epoch, found.lng, found.nodes, nodeset,
            attainable(set(found.nodes), nodeset, replication), time_us, tools.run_bytes(),
            found.holders, attempt,
        )  # fmt: skip
        mend = found.digest.mend(is_authoritative=found.is_authoritative)
        tally.note_produced(unclean, found.lng, producers)
        for copy in mend.blocks:
            if copy.header.producer:
                header = copy.header
                producers.note(header.producer, header.producer_epoch, header.place)
        if mend.end > make_lsn(unclean, 0):
            tail = max(tail, mend.end)
        stored = await _finish_epoch(
            unclean, job, mend, tail, pack_produced(producers.all()), tools
        )
        if stored.clean_epoch >= epoch:
            raise Fenced(f"log {log}: epoch {epoch} is recovered", stored.clean_epoch + 1)
        # Who recovered it before this one found records that may be trimmed by now.
        tail = max(tail, stored.clean_tail)
    return Recovered(producers, tail)


def _latest_us(record: EpochRecord, unclean: int, begins: Begins) -> int | None:
    """No acknowledged record of epoch `unclean` is younger; None if that is not known.

    Each epoch above it that was begun says so, and the lowest time counts: epochs begin where
    their seal found the newest record, and one that could not ask a node with a clock ahead
    began below what a later one found there.
    """
    known = [] if (lowest := record.latest_us(unclean)) is None else [lowest]
    return min([*known, begins.time_us] if begins.is_latest else known, default=None)


async def _last_known(
    log: int, record: EpochRecord, members: dict[NodeId, Member], tools: RecoveryTools
) -> tuple[tuple[Produced, ...], int]:
    """The producers as of the end of the last clean epoch, and that epoch.

    The members that took part in its recovery know; there are more of them than may be away.
    One that only an earlier recovery or attempt told of the end may know less, and is not
    believed while any of the others may answer.
    Where all that have data are there and none knows, all of them lost it, and a person accepted
    that, or said that the others are gone. Then the epoch is recovered once more, of what is left,
    as are those below it of which nobody knows either, and that are not trimmed; or no node
    could ever be purged.

    Raises:
        NoSequencer: some of them did not answer, and the others do not know.
    """
    lowest = record.history[0].since
    least = record.clean_seal, record.clean_attempt
    for clean in range(record.clean_epoch, lowest - 1, -1):
        entry = record.entry(clean)
        nodeset, replication = entry.nodeset(members), entry.replication
        answers = await _ask_end(log, clean, nodeset.nodes, least, tools.peers)
        ends = [a for a in answers.values() if isinstance(a, EpochReply) and a.known]
        best = max(ends, key=_place, default=None)
        if best is not None and _place(best) >= least:
            return read_produced(best.produced), clean
        heard = {n for n, answer in answers.items() if isinstance(answer, EpochReply)}
        verdict = weigh(heard, nodeset, replication, tools.statuses())
        if verdict not in (QuorumVerdict.COMPLETE, QuorumVerdict.NON_AUTHORITATIVE):
            failures = {
                node: answer if isinstance(answer, CordwoodError) else Unreachable("was not told")
                for node, answer in answers.items()
            }
            refuse_absent(log, f"learning the producers of epoch {clean}", failures)
        if best is not None:
            return read_produced(best.produced), clean  # all that anybody knows
        least = 0, 0
        logger.warning(
            "log %d: nodes %s have all forgotten how epoch %d ended: it is recovered once more",
            log, nodeset.nodes, clean,
        )  # fmt: skip
    return (), lowest - 1


async def _ask_end(
    log: int, epoch: int, nodes: Sequence[NodeId], least: tuple[int, int], peers: Peers
) -> Mapping[NodeId, Reply | CordwoodError]:
    def is_known(answers: Mapping[NodeId, Reply | CordwoodError]) -> bool:
        return any(
            isinstance(each, EpochReply) and each.known and _place(each) >= least
            for each in answers.values()
        )

    return await ask_until(
        nodes,
        lambda node: peers.call(node, AskEpoch(log, epoch), timeout_s=CLEAN_TIMEOUT_S),
        is_known,
        grace_s=0.0,
    )


def _place(end: EpochReply) -> tuple[int, int]:
    """Where the recovery that told of an end stands in the order of recoveries."""
    return end.seal, end.attempt


async def _refuse_ended(log: int, unclean: int, over_by: int, tools: RecoveryTools) -> None:
    """A member knows a release of epoch `over_by`, so another recovery has ended `unclean`.

    What that one kept may be trimmed by now. Taken for holes, the rest would go with it. The
    record told of the end before that release was sent: who reads it again begins above.

    Raises:
        Retryable: it does tell of it.
        Unreachable: the metadata store does not answer.
    """
    now = await tools.epochs.read(log)
    if now is None or now.clean_epoch >= unclean:
        raise Retryable(
            f"log {log}: epoch {unclean} was ended by another recovery, and epoch {over_by} is "
            "released: this one begins anew"
        )
    logger.warning(
        "log %d: nodes have releases of epoch %d, and the metadata store does not know that epoch "
        "%d is over: is it an older copy?", log, over_by, unclean,
    )  # fmt: skip


async def _seal_and_read(
    log: int,
    epoch: int,
    unclean: int,
    nodeset: Nodeset,
    replication: Replication,
    tools: RecoveryTools,
    latest_us: int | None,
) -> tuple[SealTally, Collected]:
    """Seal, and read the tail from those that sealed.

    Among the first that seal may be some that cannot tell what they hold. Only if nobody
    else is left to seal is that a reason to give up: the same ones may be first each time.
    """
    everyone = False
    while True:
        tally = await seal_epoch(
            log, epoch, unclean - 1, nodeset, replication, tools.peers,
            statuses=tools.statuses(), silent=tools.silent(), everyone=everyone,
        )  # fmt: skip
        try:
            return tally, await collect_digest(
                log, unclean, tally.lng(unclean), tally.sealed, nodeset, replication,
                tools.digests, latest_us, tools.statuses(),
            )  # fmt: skip
        except NoSequencer:
            if everyone or len(tally.sealed) == len(nodeset.nodes):
                raise
            everyone = True


async def _finish_epoch(
    unclean: int, job: MendJob, mend: Mend[StoredBlock], tail: int, produced: bytes,
    tools: RecoveryTools,
) -> EpochRecord:  # fmt: skip
    """Store the outcome, tell the nodes that the epoch is over, and record it.

    Args:
        tail: LSN of the last record up to the end of `unclean`.
    Returns:
        What is recorded: of another recovery, if that was before this one.
    """
    if mend.is_authoritative:
        logger.info(
            "log %d epoch %d: LNG %s, %d blocks kept, %d holes, end %s, with nodes %s, attempt %d",
            job.log, unclean, format_lsn(job.lng), len(mend.blocks), len(mend.holes),
            format_lsn(mend.end), job.nodes, job.attempt,
        )  # fmt: skip
    else:
        logger.warning(
            "log %d epoch %d: of more nodes than it has copies the data is gone; LNG %s, %d blocks "
            "kept with nodes %s, and readers are told of a loss where nothing is left",
            job.log, unclean, format_lsn(job.lng), len(mend.blocks), job.nodes,
        )  # fmt: skip
    await mend_tail(job, mend, tools.channel, tools.host)
    await _check_absent(unclean, job, tools)
    clean = Clean(job.log, unclean, job.seal, job.lng, produced, job.attempt)
    answers = await ask_all(
        job.nodes, lambda node: tools.peers.call(node, clean, timeout_s=CLEAN_TIMEOUT_S)
    )
    failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
    if failures:
        refuse_absent(job.log, f"cleaning epoch {unclean}", failures)
    assert all(isinstance(answer, DoneReply) for answer in answers.values()), "Clean is answered"
    return await tools.epochs.set_clean(
        job.log, unclean, tail, job.append_time_us, (job.seal, job.attempt)
    )


async def _check_absent(unclean: int, job: MendJob, tools: RecoveryTools) -> None:
    """Whoever was not heard because its data is gone, or lies elsewhere, must still be away.

    A node that comes back says so before it takes or sends anything, and seals itself up to
    the newest epoch then. So it is seen here, or obeys this recovery's epoch.

    Raises:
        NoSequencer: one of them came back, and what it holds counts.
        Unreachable: the metadata store does not say.
    """
    statuses = tools.statuses()
    absent = [
        node
        for node in job.nodeset.nodes
        if node not in job.nodes and statuses.get(node) not in (None, *HAS_DATA)
    ]
    if absent:
        now = await tools.read_statuses()
        back = [node for node in absent if now.get(node) in (None, *HAS_DATA)]
        if back:
            raise NoSequencer(
                f"log {job.log}: nodes {back}, which were said to have no data, came back while "
                f"epoch {unclean} was recovered without them: it is recovered with them"
            )
