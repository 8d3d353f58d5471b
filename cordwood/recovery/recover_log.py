"""Log recovery: make every epoch below a new epoch clean, in order.

The steps are: seal, digest, mend, tell the nodes, and record the result. They take an f-majority of
the members, so any R-1 of them may be away. A member that was away purges its blocks above the
epoch's LNG before it serves them (`recovery.purge`).

If more nodes are gone for good than the copies survive (`recovery.heard`), recovery ends an epoch
non-authoritatively. It stores the records that are left again as well as possible, plugs no new
hole, and marks the epoch as clean, so that the log goes on. Readers get a loss where no record is
left. A node that comes back later with data of the epoch purges like any other node, with one
exception: up to its own LNG it keeps its records, because they were acknowledged, and later readers
get them. A producer's block there may be stored again.

The new epoch takes appends as soon as all lower epochs are sealed (`seal_log`). From then on no
older sequencer can acknowledge an append, so records of the new epoch follow all records that were
acknowledged before. None of them is released before recovery has ended.

Source: docs/sources/logdevice.md 2.7; docs/design.md §3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.block import Produced
from cordwood.decisions import RecoveryBegun, TailDecided, tell
from cordwood.errors import CordwoodError, Fenced, NoSequencer, Retryable, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.message import AskEpoch, Clean, DoneReply, EpochReply, Reply
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LogId, format_lsn, make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
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

STATUSES_TIMEOUT_S = 3.0
"""A question to the metadata store and one to the event log. A new epoch waits for them."""


@dataclass(frozen=True, slots=True)
class RecoveryTools:
    """The tools of recovery; one set for each node.

    Attributes:
        run_bytes: bytes stored at once while mending; with one more block they fit a
            WAL record.
        silent: the nodes that are dead or suspect now.
        statuses: by log, the reported status of nodes' data, as this node knows it. For the event
            log's own recovery it is the status that the metadata store has, not the event log.
        read_statuses: the same, read anew.
    """

    host: Host
    peers: Peers
    channel: StoreChannel
    digests: DigestReads
    epochs: EpochStore
    run_bytes: Callable[[], int]
    silent: Callable[[], frozenset[NodeId]]
    statuses: Callable[[int], Statuses]
    read_statuses: Callable[[int], Awaitable[Statuses]]


EMPTY_ATTEMPTS = 5
"""So many attempts may count on an empty node that answers: a node that is back with an empty disk
clears its status within a second or two, and attempts are at least half a second apart."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The facts that a sequencer needs about the epochs below its own.

    Attributes:
        producers: the producers that the log remembers.
        tail: LSN of the log's last record, 0 for none; empty epochs above it do not count.
    """

    producers: ProducerTable
    tail: int


class Begins(NamedTuple):
    """The known append times at the begin of an epoch, after all lower epochs are sealed.

    Attributes:
        time_us: the epoch has no older record.
        is_latest: whether no record that was acknowledged in a lower epoch is younger. False if
            that is not known: nodes whose data is reported as gone did not seal and may come back,
            or a node that sealed has lost records.
        quiet_us: for at least so long no record was stored before the seal, by no wall clock; 0
            if that is not known.
    """

    time_us: int
    is_latest: bool
    quiet_us: int = 0

    def idle_since(self, now_us: int) -> tuple[int, int]:
        """What is certain of the time after a producer's block of a lower epoch: up to which append
        time the log went on, and for how long it has rested since.

        Args:
            now_us: wall time. A record that is younger was stored with a clock ahead, and proves
                nothing of the time before it.
        """
        return (min(self.time_us, now_us), self.quiet_us) if self.is_latest else (0, 0)


@dataclass(slots=True)
class LowerEpochs:
    """What a new epoch's sequencer needs to recover the epochs below.

    Attributes:
        begins: the result of `seal_log`.
        attempts: recoveries that were begun. No other process ever rules this epoch, so each
            attempt under its seal has a number of its own.
    """

    log: LogId
    epoch: int
    begins: Begins
    attempts: int = 0


async def statuses_now(log: LogId, nodes: Iterable[int], tools: RecoveryTools) -> Statuses:
    """The statuses by which a recovery may do without members; call it after its epoch was taken.

    Race: this node may have known its list before the epoch was taken. A node that the list calls
    empty or gone may have come back since, and may have acknowledged records that no other member
    has. A node that comes back says so before it seals every log up to its newest epoch
    (`Membership.come_back`). So if it is called empty or gone even now, it will obey the epoch.

    Args:
        nodes: the members of the nodesets below the epoch.
    Returns:
        The statuses as this node knows them, if no member is called empty or gone. Otherwise they
        are read anew. If they cannot be read, no such status counts: the recovery waits for all
        members, and goes on if enough of them answer.
    """
    known = tools.statuses(log)
    if all(known.get(NodeId(node)) in (None, *HAS_DATA) for node in nodes):
        return known
    try:
        async with asyncio.timeout(STATUSES_TIMEOUT_S):
            return await tools.read_statuses(log)
    except (CordwoodError, TimeoutError) as error:
        logger.info("log %d: no member is taken for empty or gone: %s", log, error)
        return {node: status for node, status in known.items() if status in HAS_DATA}


async def seal_log(
    log: LogId,
    epoch: int,
    record: EpochRecord,
    members: dict[NodeId, Member],
    tools: RecoveryTools,
) -> Begins:
    """Seal all epochs of `log` in (clean epoch, `epoch`), before `epoch` gives out its first LSN.

    Consecutive epochs with the same nodeset and replication are sealed by one question. `epoch` has
    been taken, see `statuses_now`.

    Raises:
        Fenced: a higher epoch rules, or `epoch` was begun before (`SealTally.check_unbegun`).
        NoSequencer: too many members are absent; the text names all of them.
    """
    time_us, is_latest = record.clean_time_us, True
    unclean = map(record.entry, range(record.clean_epoch + 1, epoch))
    entries = {each.since: each for each in unclean}
    quiet: list[int] = []
    statuses = await statuses_now(log, _nodes_of(entries.values()), tools)
    for entry in entries.values():
        nodeset, replication = entry.nodeset(members), entry.replication
        tally = await seal_epoch(
            log, epoch, epoch - 1, nodeset, replication, tools.peers,
            statuses=statuses, silent=tools.silent(),
        )  # fmt: skip
        # Only here: at a later seal of this epoch's recovery, the epoch has records of its own.
        tally.check_unbegun(log, epoch)
        time_us = max(time_us, tally.append_time_us)
        quiet.append(tally.quiet_us)
        # Unsure members may have lost the newest record. This node's clock is the best guess then,
        # and `is_latest` says that it is a guess.
        if weigh(tally.sure, nodeset, replication, {}) is QuorumVerdict.NONE:
            time_us, is_latest = max(time_us, tools.host.clock.now_us()), False
    # Nodes of other nodesets do not know how long ago the last record was stored.
    tail_epoch = record.clean_tail >> 32
    if tail_epoch and not _is_covered(tail_epoch, entries, record):
        quiet.append(0)
    return Begins(time_us, is_latest, min(quiet, default=0))


def _nodes_of(entries: Iterable[NodesetSince]) -> frozenset[int]:
    return frozenset(node for each in entries for node in each.nodes)


def _is_covered(epoch: int, sealed: Mapping[int, NodesetSince], record: EpochRecord) -> bool:
    """Whether the nodes that sealed for entries of the history were those of `epoch` too."""
    return epoch >= record.history[0].since and record.entry(epoch).since in sealed


async def recover_log(
    log: LogId,
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
        begins: the result of `seal_log`. The ends of lower epochs must not be younger than the
            begin of `epoch`, and nodes may have blocks of `epoch` by now.
        attempt: above that of every earlier attempt of `epoch`'s recovery.
    Raises:
        Fenced: a higher epoch rules.
        NoSequencer: too many members are absent; the text names all of them.
        Retryable: another recovery has ended one of the epochs meanwhile; begin again.
    """
    tell(RecoveryBegun(log, epoch, record.clean_epoch))
    time_us, tail = record.clean_time_us, record.clean_tail
    # Race: a status may change while the members answer. One reading counts for the whole attempt,
    # and before the end of an epoch is told, the statuses that mattered are read anew.
    statuses = await statuses_now(log, _nodes_of(record.history), tools)
    empty = empty_nodes(statuses, attempt)
    produced, known = await _last_known(log, record, members, tools.peers, statuses)
    producers = ProducerTable(produced)
    for unclean in range(known + 1, epoch):
        entry = record.entry(unclean)
        nodeset, replication = entry.nodeset(members), entry.replication
        latest_us = latest_allowed_us(record, unclean, begins)
        tally, found = await _seal_and_read(
            log, epoch, unclean, nodeset, replication, tools, latest_us, statuses, empty
        )
        time_us = max(time_us, tally.append_time_us)
        # A node that stored a record with a clock ahead reports that record's time. The record was
        # never acknowledged if it is younger than the epoch above, so its time does not count.
        if latest_us is not None:
            time_us = min(latest_us, time_us)
        # Race: two recoveries of one log may run at once, and the other was faster.
        if found.over_by > unclean > record.clean_epoch:
            await _refuse_ended(log, unclean, found.over_by, tools)
        # Members without data count for nothing here: the copies spread as far as the members that
        # answered allow.
        nodes = tuple(node for node in found.nodes if node not in empty) or found.nodes
        job = MendJob(
            log, epoch, found.lng, nodes, nodeset, attainable(set(nodes), nodeset, replication),
            time_us, tools.run_bytes(), found.holders, attempt, _absent(nodes, nodeset, statuses),
        )  # fmt: skip
        mend = found.digest.mend(is_authoritative=found.is_authoritative)
        counts = len(mend.blocks), len(mend.holes), mend.bridge or 0
        tell(TailDecided(log, unclean, *counts, found.digest.earlier_marks))
        # In LSN order: first the blocks up to the LNG, which are on full copysets, then the kept
        # tail.
        tally.note_produced(unclean, found.lng, producers)
        for copy in mend.blocks:
            if copy.header.producer:
                header = copy.header
                producers.note(header.producer, header.producer_epoch, header.place)
        # An epoch without records ends at (E, 0), and must not raise the tail of the log.
        if mend.end > make_lsn(unclean, 0):
            tail = max(tail, mend.end)
        stored = await finish_epoch(unclean, job, mend, tail, pack_produced(producers.all()), tools)
        # The metadata store decides between two recoveries. If a higher epoch is recovered there,
        # this sequencer has been replaced.
        if stored.clean_epoch >= epoch:
            raise Fenced(f"log {log}: epoch {epoch} is recovered", stored.clean_epoch + 1)
        # An earlier recovery may have found records that are trimmed by now.
        tail = max(tail, stored.clean_tail)
    return Recovered(producers, tail)


def empty_nodes(statuses: Statuses, attempt: int) -> frozenset[NodeId]:
    """The nodes that store no epoch's end, even if they answer.

    A node that was drained runs on, and every node refuses a copyset that names it. It counts as
    away: the other members have to be enough without it.
    """
    empty = Authority.AUTHORITATIVE_EMPTY
    if attempt <= EMPTY_ATTEMPTS:
        return frozenset()
    return frozenset(node for node, status in statuses.items() if status is empty)


def _absent(nodes: tuple[NodeId, ...], nodeset: Nodeset, statuses: Statuses) -> tuple[NodeId, ...]:
    """The members without data, by `statuses`, that are not among `nodes`."""
    return tuple(
        node
        for node in nodeset.nodes
        if node not in nodes and statuses.get(node) not in (None, *HAS_DATA)
    )


def latest_allowed_us(record: EpochRecord, unclean: int, begins: Begins) -> int | None:
    """The time after which epoch `unclean` has no acknowledged record; None if it is not known.

    Each higher epoch that began has recorded its own time, and the lowest of these counts. An epoch
    begins at the newest record that its seal found. If a seal could not ask a node with a clock
    ahead, its epoch began below the time that a later seal found on that node.
    """
    known = [] if (lowest := record.latest_us(unclean)) is None else [lowest]
    return min([*known, begins.time_us] if begins.is_latest else known, default=None)


async def _last_known(
    log: LogId,
    record: EpochRecord,
    members: dict[NodeId, Member],
    peers: Peers,
    statuses: Statuses,
) -> tuple[tuple[Produced, ...], int]:
    """The producers as of the end of the last clean epoch, and that epoch.

    The members that took part in its recovery know them; there are more of these members than may
    be away. A member that heard of the end only from an earlier recovery or attempt may know less.
    Its answer does not count while a member that took part may still answer.
    If all members with data answer and none knows, all of them lost this knowledge, and an operator
    accepted that, or reported the other members as gone. Then the epoch is recovered once more from
    the records that are left. So are lower epochs that no member knows and that are not trimmed.
    Otherwise no node could ever be purged.

    Raises:
        NoSequencer: some of them did not answer, and the others do not know.
    """
    lowest = record.history[0].since
    least = record.clean_seal, record.clean_attempt
    for clean in range(record.clean_epoch, lowest - 1, -1):
        entry = record.entry(clean)
        nodeset, replication = entry.nodeset(members), entry.replication
        answers = await _ask_end(log, clean, nodeset.nodes, least, peers)
        ends = [a for a in answers.values() if isinstance(a, EpochReply) and a.known]
        best = max(ends, key=_place, default=None)
        # A lower place is the answer of a member that heard of the end from an earlier attempt,
        # which may have kept other records.
        if best is not None and _place(best) >= least:
            return read_produced(best.produced), clean
        heard = {n for n, answer in answers.items() if isinstance(answer, EpochReply)}
        verdict = weigh(heard, nodeset, replication, statuses)
        if verdict not in (QuorumVerdict.COMPLETE, QuorumVerdict.NON_AUTHORITATIVE):
            failures = {
                node: answer if isinstance(answer, CordwoodError) else Unreachable("was not told")
                for node, answer in answers.items()
            }
            refuse_absent(log, f"learning the producers of epoch {clean}", failures)
        if best is not None:
            return read_produced(best.produced), clean  # no member knows more
        # Only the last clean epoch has its place in the metadata store. For lower epochs any answer
        # counts.
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
    """The place of the recovery that reported an end, in the order of recoveries."""
    return end.seal, end.attempt


async def _refuse_ended(log: int, unclean: int, over_by: int, tools: RecoveryTools) -> None:
    """A member knows a release of epoch `over_by`, so another recovery has ended `unclean`.

    Records that the other recovery kept may be trimmed by now. This recovery would take them for
    holes, and would then drop the rest with them. The epoch store had the end of `unclean` before
    that release was sent, so a recovery that reads it again begins above `unclean`.

    Raises:
        Retryable: the epoch store has the end.
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
    log: LogId,
    epoch: int,
    unclean: int,
    nodeset: Nodeset,
    replication: Replication,
    tools: RecoveryTools,
    latest_us: int | None,
    statuses: Statuses,
    empty: frozenset[NodeId],
) -> tuple[SealTally, Collected]:
    """Seal, and read the tail from the members that sealed.

    Some of the first members that seal may not know all that they hold. The same members may be
    first each time, so recovery gives up only if no other member is left to seal.
    """
    everyone = False
    while True:
        tally = await seal_epoch(
            log, epoch, unclean - 1, nodeset, replication, tools.peers,
            statuses=statuses, silent=tools.silent(), empty=empty, everyone=everyone,
        )  # fmt: skip
        try:
            return tally, await collect_digest(
                log, unclean, tally.lng(unclean), tally.sealed, nodeset, replication,
                tools.digests, latest_us, statuses, empty,
            )  # fmt: skip
        except NoSequencer:
            if everyone or len(tally.sealed) == len(nodeset.nodes):
                raise
            # Number: the second round waits SEAL_TIMEOUT_S for silent members, and the first one
            # does not.
            everyone = True


async def finish_epoch(
    unclean: int, job: MendJob, mend: Mend[StoredBlock], tail: int, produced: bytes,
    tools: RecoveryTools,
) -> EpochRecord:  # fmt: skip
    """Store the outcome, tell the nodes that the epoch is over, and record it.

    Args:
        tail: LSN of the last record up to the end of `unclean`.
    Returns:
        The record in the epoch store; another recovery's record, if that recovery was first.
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
    # The outcome is durable before any node hears that the epoch is over. A node that hears it
    # drops what the outcome does not keep.
    await mend_tail(job, mend, tools.channel, tools.host)
    await _check_absent(unclean, job, tools)
    clean = Clean(job.log, unclean, job.seal, job.lng, produced, job.attempt)
    answers = await ask_all(
        job.nodes, lambda node: tools.peers.call(node, clean, timeout_s=CLEAN_TIMEOUT_S)
    )
    failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
    # Trap: a member that misses `Clean` would purge by another member's answer later. Every member
    # that was read must know the end, because recoveries of higher epochs ask these members for the
    # producers.
    if failures:
        refuse_absent(job.log, f"cleaning epoch {unclean}", failures)
    assert all(isinstance(answer, DoneReply) for answer in answers.values()), "Clean is answered"
    return await tools.epochs.set_clean(
        job.log, unclean, tail, job.append_time_us, (job.seal, job.attempt)
    )


async def _check_absent(unclean: int, job: MendJob, tools: RecoveryTools) -> None:
    """Check that the members without data, which recovery did not ask, are still away.

    Race: a member may come back meanwhile. It reports that before it takes or sends a block, and
    it then seals itself up to the newest epoch. So either this check sees it, or it has the seal of
    this recovery's epoch.

    Raises:
        NoSequencer: a member came back, and the records that it holds count.
        Unreachable: the metadata store does not answer.
    """
    if job.absent:
        now = await tools.read_statuses(job.log)
        back = [node for node in job.absent if now.get(node) in (None, *HAS_DATA)]
        if back:
            raise NoSequencer(
                f"log {job.log}: nodes {back}, which were said to have no data, came back while "
                f"epoch {unclean} was recovered without them: it is recovered with them"
            )
