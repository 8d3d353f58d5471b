"""Rare branches of a storage node and of a sequencer; see `sim.probes`.

Each row has a probe, its meaning, and the thing that is counted: a decision, or calls of a function
that is seldom called. Functions that every frame passes are not watched, so that a run stays fast.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from cordwood import node
from cordwood.decisions import (
    AppendsRefused,
    ClaimRefused,
    EpochClosed,
    EpochEnded,
    EpochRestarted,
    GroupNumbered,
    LogGivenUp,
    MendAnswered,
    NoSpaceAnywhere,
    NotRecoveredTold,
    RecoveryEnded,
    RefusalHeard,
    ReleaseHeld,
    RuleQuestioned,
    SpaceAwaited,
    StoreRefused,
)
from cordwood.errors import CordwoodError, LogExists, Rejected, UnknownLog, Unreachable
from cordwood.layout.waves import Refusal
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.log_entries import LogEntries
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.membership import Membership
from cordwood.node import Node
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.nodeset_growth import NodesetGrowth
from cordwood.protocol.wal_ring import WalScan
from cordwood.quorum.nodeset_selection import choose_nodeset
from cordwood.recovery import recover_log
from cordwood.recovery.collect_digest import DigestReads
from cordwood.recovery.purge import Purges
from cordwood.sequencer import activation, producer_checks
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.eligibility import Eligibility
from cordwood.sequencer.log_watch import LogWatch
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.releases import Releases
from cordwood.sequencer.role import SequencerRole
from cordwood.sim.watch import Count, D, Test, Watch, gave
from cordwood.storage import log_reader
from cordwood.storage.amends import Amends
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db import flusher
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.recent_blocks import RecentBlocks
from cordwood.storage.produced_index import ProducedIndex
from cordwood.storage.push.read_ahead import ReadAhead
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.rebuild.admission import Admission
from cordwood.storage.rebuild.moves import Moves
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.storage.role import StorageRole
from cordwood.storage.scrub import rotten_rows
from cordwood.storage.scrub.scrub import Scrub
from cordwood.storage.space.kept_bytes import KeptBytes
from cordwood.storage.space.payload_count import PayloadCount
from cordwood.storage.space.retention import Retention
from cordwood.storage.staging.staging import Staging
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_device import WalDevice
from cordwood.wire.for_nodes import check_call
from cordwood.wire.server import Server
from cordwood.wire.store_channel import StoreChannel

Row = tuple[str, str, Watch | Count[Any]]


def counted(
    probe: str, means: str, kind: type[D], test: Callable[[D], object] | None = None
) -> Row:
    """A probe on decisions; see `watch.Count`."""
    return probe, means, Count(probe, kind, test)


def row(
    probe: str,
    means: str,
    place: Callable[..., Any],
    test: Test | None = None,
    raises: type[BaseException] | None = None,
    within: ModuleType | None = None,
) -> Row:
    """A probe on `place`; see `watch.Watch`."""
    return probe, means, Watch(probe, place, test, raises=raises, within=within)


STORAGE_ROWS: tuple[Row, ...] = (
    row(
        "trim-behind",
        "a node was asked to trim what it had trimmed",
        StorageEngine.trim,
        lambda s: s.args[2] < s.result,
    ),
    row(
        "storage-said",
        "a node heard that it stores nothing, or stores again",
        Node.note_storage,
        gave,
    ),
    counted(
        "read-only-refused", "a read-only node refused a store", StoreRefused, lambda d: d.read_only
    ),
    row(
        "nodeset-due",
        "logs were due to take in nodes that joined",
        NodesetGrowth.due,
        gave,
    ),
    row(
        "weight-zero-there",
        "a node without weight was there for a new epoch",
        choose_nodeset,
        lambda s: any(not m.weight and not m.read_only for m in s.args[1]),
        within=activation,
    ),
    row(
        "loss-accepted",
        "a start found a loss that was accepted",
        LogsStore.accept_loss,
    ),
    counted(
        "copyset-refused",
        "a node refused what names a node that is given up",
        StoreRefused,
        lambda d: d.reason == Refusal.REBUILDING.name,
    ),
    row("wal-trimmed", "the WAL let go of what is in LogsDB", Wal.trim),
    row("wal-bad-body", "a start read a record whose body is wrong", WalScan.on_bad_body),
    row("wal-write-refused", "the disk refused a write of the WAL", WalDevice._on_refused),
    row("wal-write-again", "a write of the WAL was tried again", WalDevice._try_again),
    row("wal-taken-again", "the disk took writes of the WAL again", WalDevice._on_taken),
    row(
        "store-of-nothing",
        "a store of no blocks was answered",
        StorageEngine._store_nothing,
    ),
    row(
        "staging-written",
        "a node wrote down something staged",
        StorageEngine.write_beside,
    ),
    row("amend-stored", "a node took another envelope", StorageEngine.append_amend),
    row(
        "amend-of-flushed",
        "an amend was of a block that only LogsDB holds",
        Amends._find_of_log,
    ),
    row("amend-replayed", "a start replayed an amend", Amends.restore),
    row(
        "amend-sent-again",
        "a later wave sent an envelope alone",
        StoreChannel.send_amend,
    ),
    row(
        "producers-full",
        "a log refused a producer for want of memory",
        producer_checks._full,
    ),
    row(
        "rename-lost",
        "a rename or a deletion found that another call had come first",
        LogTree.move,
        raises=UnknownLog,
    ),
    row(
        "name-refused",
        "a name was not given away, for a log has it or was on its way to it",
        LogEntries.claim,
        raises=LogExists,
    ),
    row(
        "query-kept",
        "a log kept a query whose commit was not known to be done, and refused another",
        producer_checks._unsettled,
    ),
    row(
        "nodesets-told",
        "a node was told a log's nodesets",
        StorageEngine.tell_nodesets,
    ),
    row(
        "nodesets-asked",
        "a node was asked for a log's nodesets",
        StorageEngine.nodesets,
    ),
    counted(
        "epoch-closed-unknown",
        "an epoch was over whose end nobody could say",
        EpochClosed,
        lambda d: not d.is_known,
    ),
    counted("epoch-closed", "a node learnt the end of an epoch", EpochClosed, lambda d: d.is_known),
    row(
        "copy-not-counted",
        "a copy above an epoch's end does not count",
        CachedLog.counts_block,
        lambda s: not s.result,
    ),
    row("flush-failed", "a flush failed", flusher._settle, lambda s: s.args[1]),
    row("flushed", "a part of the WAL went to LogsDB", Flusher.take_batch),
    row("partition-begun", "a new partition was begun", LogsStore._rolled, gave),
    row("partition-due", "a partition reached a limit", LogsStore._is_due, gave),
    row("read-from-logsdb", "a read went to LogsDB", LogsStore.read),
    row("read-merged", "a read joined LogsDB and the log cache", log_reader._merged),
    row("lost-noted", "a start noted what it lost", LogsStore.note_lost, gave),
    row("loss-healed", "a node healed what its WAL had lost", StorageEngine.heal_loss),
    row("rot-mended", "a range that rotted was mended", LogsStore.note_mended, gave),
    row("damage-noted", "a damaged range was written down", LogsStore.note_damage, gave),
    row("scrubbed", "scrubbing went once over all", Scrub._pass),
    row(
        "scrub-went-on",
        "scrubbing went on where an earlier start was",
        Scrub._progress_of_before,
        gave,
    ),
    row(
        "index-rot-found",
        "bad bytes were found in an index",
        rotten_rows._readable_from,
        lambda s: s.result > s.args[3],
    ),
    row("scrub-orphan", "scrubbing looked at a body without an entry", Scrub._check_orphan),
    row("scrub-part", "scrubbing read a log's part of a partition", Scrub._scrub_part),
    row("staged", "a block was staged", Staging.stage),
    row("staged-read", "a staged block was read", Staging.read),
    row("pinned", "staged blocks were pinned", Staging.pin),
    row("pin-refused", "a pin came too late", Staging.pin, raises=CordwoodError),
    row("unstaged", "staged blocks were given back", Staging.unstage),
    row("staged-expired", "staged blocks expired", Staging.expired, gave),
    row(
        "retention-looked",
        "a node looked at what logs keep",
        Retention.look,
    ),
    row(
        "retention-to-fit",
        "a node looked at a log's bytes",
        Retention._trim_to_fit,
    ),
    row(
        "retention-asked-all",
        "nodes were asked what a log has above some LSNs",
        KeptBytes.above,
        gave,
    ),
    row(
        "retention-waits-for-lng",
        "a block was counted by a later flush than its own",
        PayloadCount.of_flush,
        lambda s: any(s.result[1].values()),
    ),
    row(
        "retention-deleted",
        "a node looked for deleted logs",
        Retention._trim_deleted,
    ),
    row("stream-stopped", "a reader stopped a stream", ReadStreams.stop),
    row("stream-gaps-told", "a node told a reader what it is not sent", ReadStreams.tell_gaps),
    row("stream-fetched", "a stream read from LogsDB", ReadStreams._fetch),
    row(
        "stream-read-ahead",
        "a batch was read before its stream asked for it",
        ReadAhead.take,
        gave,
    ),
    row("streams-dropped", "a connection went with streams on it", ReadStreams._drop),
    row(
        "recent-dropped",
        "a block left the memory of recent ones",
        RecentBlocks._drop,
    ),
    row(
        "producers-dropped",
        "what producers wrote in an epoch was let go",
        ProducedIndex.drop,
    ),
    row(
        "empty-refused",
        "a node without its data was refused",
        Admission._empty_words,
    ),
    row(
        "older-refused",
        "a node with an older copy of its data was refused",
        DataDirectory._check_newest,
        raises=CordwoodError,
    ),
    row(
        "staged-moved",
        "a donor made a staged block of a lost node anew",
        StagedMoves._give,
    ),
    row(
        "rebalance-given",
        "a donor moved a block to an emptier node",
        Moves._plan_given,
        gave,
    ),
    row("claim-again", "a node claimed its number again", DataDirectory._claims_before, gave),
    row("reached-noted", "a node noted how far it got", DataDirectory.note),
    row(
        "space-told",
        "a node told sequencers of its free space",
        StorageRole.tell_space,
    ),
    row(
        "epoch-end-asked",
        "a node was asked where an epoch ends",
        StorageRole.epoch_end,
    ),
)

SEQUENCER_ROWS: tuple[Row, ...] = (
    counted("log-given-up", "a sequencer gave its log to another node", LogGivenUp),
    row(
        "sequencer-isolated",
        "a node that sees too few others stopped sequencing",
        SequencerRole.on_isolated,
        lambda s: s.args[1],
    ),
    row(
        "sequencing-refused",
        "a node would not sequence",
        Eligibility.refusal,
        gave,
    ),
    counted("sequencer-restarted", "a log's sequencer began again", EpochRestarted),
    counted("sequencer-ended", "a sequencer ended", EpochEnded),
    counted("not-recovered-told", "appends that need recovery were refused", NotRecoveredTold),
    counted(
        "recovered-while-appending",
        "a recovery ended under a sequencer that appends",
        RecoveryEnded,
    ),
    counted("run-waits-for-room", "a sequencer waited for room on nodes", SpaceAwaited),
    counted("group-numbered", "a group of blocks was numbered at once", GroupNumbered),
    counted("pending-refused", "appends that wait were refused together", AppendsRefused),
    counted("store-refused", "a node refused a store", RefusalHeard),
    counted("no-roomy-copyset", "no copyset had room", NoSpaceAnywhere),
    row(
        "producer-refused",
        "a producer's block came out of sequence",
        ProducerChecks.check,
        raises=Rejected,
    ),
    row(
        "append-repeated",
        "a producer's block came twice",
        ProducerChecks.check,
        lambda s: s.result is not None,
    ),
    row(
        "repeat-acked",
        "a repeat was acknowledged with its first LSN",
        ProducerChecks.take_repeats,
        gave,
    ),
    row(
        "tail-not-expected",
        "a conditional append found another tail",
        ProducerChecks.check_tail,
        raises=CordwoodError,
    ),
    row(
        "sequencer-found-over",
        "a look at the epochs ended a sequencer",
        LogWatch._end_late,
    ),
    row("release-reminded", "what is released was said again", Releases.remind),
    row(
        "release-to-peer",
        "a node that came up was told what is released",
        Releases.on_peer_up,
    ),
    counted(
        "rule-questioned",
        "a tail was asked of a sequencer that had to look whether it rules",
        RuleQuestioned,
    ),
    counted(
        "rule-lost",
        "a tail was asked of a sequencer that no longer rules",
        RuleQuestioned,
        lambda d: not d.rules,
    ),
    row("frame-late", "a frame that was begun did not end in time", Server._cut),
    row(
        "number-refused",
        "a caller said to be a node, and is no member",
        Node.check_node,
        raises=Unreachable,
    ),
    counted("claim-refused", "an epoch was claimed that was never handed out", ClaimRefused),
    counted("release-asked-about", "a release waited for the epoch store", ReleaseHeld),
    row(
        "call-of-nodes-refused",
        "a client made a call that is for nodes",
        check_call,
        raises=Rejected,
        within=node,
    ),
    row("released-asked", "a sequencer was asked what is released", SequencerRole.released),
    row(
        "epoch-not-newest",
        "a started epoch was not the newest any more",
        Activation.is_newest,
        lambda s: not s.result,
    ),
    row("node-has-room", "a full node said that it has room", NodeStates.on_space),
    row("node-no-space", "a node said that its disk is nearly full", NodeStates.on_no_space),
    row("node-up-again", "a node that failed is up again", NodeStates.on_up),
    row("node-timed-out", "a store timed out", NodeStates.on_timed_out),
    row(
        "producers-known",
        "a recovery learnt what producers wrote",
        recover_log._last_known,
        lambda s: bool(s.result[0]),
    ),
    row(
        "digest-cut-off",
        "a node went while recovery read from it",
        DigestReads.on_down,
    ),
    counted("mend-answered", "a node stored what a recovery mended", MendAnswered),
    row("purge-begun", "a node that was away looked for what does not count", Purges._purge),
    row("purge-stopped", "purging stopped with its node", Purges.close),
    row(
        "nodesets-trimmed",
        "nodesets went with their data",
        EpochStore.trim_history,
    ),
    row("seals-renewed", "a node that lost seals asked for them anew", Node._renew_seals),
    row("token-raised", "a fencing token was raised", EpochStore.raise_token),
    row(
        "epoch-taken-again",
        "an epoch was taken by another meanwhile",
        EpochStore.take_epoch,
        raises=CordwoodError,
    ),
    row(
        "authority-set",
        "it was said what became of a node's data",
        Membership.set_authority,
    ),
)
