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
from cordwood.protocol.event_log_follower import EventFollower
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
        "a node got a trim below its trim point",
        StorageEngine.trim,
        lambda s: s.args[2] < s.result,
    ),
    row(
        "storage-said",
        "a node learnt that it became read-only or writable",
        Node.note_storage,
        gave,
    ),
    counted(
        "read-only-refused", "a read-only node refused a store", StoreRefused, lambda d: d.read_only
    ),
    row(
        "nodeset-due",
        "a log's nodeset was due to grow",
        NodesetGrowth.due,
        gave,
    ),
    row(
        "weight-zero-there",
        "a node without weight was up at the start of an epoch",
        choose_nodeset,
        lambda s: any(not m.weight and not m.read_only for m in s.args[1]),
        within=activation,
    ),
    row(
        "loss-accepted",
        "a start found an accepted loss",
        LogsStore.accept_loss,
    ),
    counted(
        "copyset-refused",
        "a node refused a copyset with a lost node",
        StoreRefused,
        lambda d: d.reason == Refusal.REBUILDING.name,
    ),
    row("wal-trimmed", "the WAL trimmed records that LogsDB holds", Wal.trim),
    row("wal-bad-body", "a start read a WAL record with a wrong body", WalScan.on_bad_body),
    row("wal-write-refused", "the disk refused a WAL write", WalDevice._on_refused),
    row("wal-write-again", "a node tried a WAL write again", WalDevice._try_again),
    row("wal-taken-again", "the disk took WAL writes again", WalDevice._on_taken),
    row(
        "store-of-nothing",
        "a node answered an empty store",
        StorageEngine._store_nothing,
    ),
    row(
        "staging-written",
        "a node wrote a staged block",
        StorageEngine.write_beside,
    ),
    row("amend-stored", "a node stored an amended envelope", StorageEngine.append_amend),
    row(
        "amend-of-flushed",
        "an amend found its block only in LogsDB",
        Amends._find_of_log,
    ),
    row("amend-replayed", "a start replayed an amend", Amends.restore),
    row(
        "amend-sent-again",
        "a later wave sent only an envelope",
        StoreChannel.send_amend,
    ),
    row(
        "producers-full",
        "a log refused a producer because its table was full",
        producer_checks._full,
    ),
    row(
        "rename-lost",
        "a rename or a deletion lost to another call",
        LogTree.move,
        raises=UnknownLog,
    ),
    row(
        "name-refused",
        "a claim of a name failed because a log has it or moves to it",
        LogEntries.claim,
        raises=LogExists,
    ),
    row(
        "query-kept",
        "a log refused a query because an older one was not settled",
        producer_checks._unsettled,
    ),
    row(
        "nodesets-told",
        "a node learnt a log's nodesets",
        StorageEngine.tell_nodesets,
    ),
    row(
        "nodesets-asked",
        "a node answered a log's nodesets",
        StorageEngine.nodesets,
    ),
    counted(
        "epoch-closed-unknown",
        "a node learnt that an epoch ended, but not where",
        EpochClosed,
        lambda d: not d.is_known,
    ),
    counted("epoch-closed", "a node learnt the end of an epoch", EpochClosed, lambda d: d.is_known),
    row(
        "copy-not-counted",
        "a node held a copy above an epoch's end",
        CachedLog.counts_block,
        lambda s: not s.result,
    ),
    row("flush-failed", "a flush failed", flusher._settle, lambda s: s.args[1]),
    row("flushed", "a node flushed a part of the WAL to LogsDB", Flusher.take_batch),
    row("partition-begun", "LogsDB began a partition", LogsStore._rolled, gave),
    row("partition-due", "a partition reached a limit", LogsStore._is_due, gave),
    row("read-from-logsdb", "a read went to LogsDB", LogsStore.read),
    row("read-merged", "a read merged LogsDB and the log cache", log_reader._merged),
    row("lost-noted", "a start noted lost records", LogsStore.note_lost, gave),
    row("loss-healed", "a node healed a loss of its WAL", StorageEngine.heal_loss),
    row("rot-mended", "a node mended a rotten range", LogsStore.note_mended, gave),
    row("damage-noted", "a node noted a damaged range", LogsStore.note_damage, gave),
    row("scrubbed", "scrubbing ended a pass", Scrub._pass),
    row(
        "scrub-went-on",
        "scrubbing resumed after a restart",
        Scrub._progress_of_before,
        gave,
    ),
    row(
        "index-rot-found",
        "a node found rot in an index",
        rotten_rows._readable_from,
        lambda s: s.result > s.args[3],
    ),
    row("scrub-orphan", "scrubbing checked a body without an entry", Scrub._check_orphan),
    row("scrub-part", "scrubbing read a log's part of a partition", Scrub._scrub_part),
    row("staged", "a block was staged", Staging.stage),
    row("staged-read", "a staged block was read", Staging.read),
    row("pinned", "staged blocks were pinned", Staging.pin),
    row("pin-refused", "a node refused a late pin", Staging.pin, raises=CordwoodError),
    row("unstaged", "a client gave back staged blocks", Staging.unstage),
    row("staged-expired", "staged blocks expired", Staging.expired, gave),
    row(
        "retention-looked",
        "a node checked the retention of its logs",
        Retention.look,
    ),
    row(
        "retention-to-fit",
        "a node checked a log's size",
        Retention._trim_to_fit,
    ),
    row(
        "retention-asked-all",
        "a node asked others how many bytes a log has",
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
    row("stream-gaps-told", "a node told a reader of gaps", ReadStreams.tell_gaps),
    row("stream-fetched", "a stream read from LogsDB", ReadStreams._fetch),
    row(
        "stream-read-ahead",
        "a node read a batch ahead of its stream",
        ReadAhead.take,
        gave,
    ),
    row("streams-dropped", "a connection broke with streams on it", ReadStreams._drop),
    row(
        "recent-dropped",
        "a block left the memory of recent blocks",
        RecentBlocks._drop,
    ),
    row(
        "producers-dropped",
        "a node dropped an epoch's producers",
        ProducedIndex.drop,
    ),
    row(
        "empty-refused",
        "admission refused a node without its data",
        Admission._empty_words,
    ),
    row(
        "older-refused",
        "a node refused to start on an older copy of its data",
        DataDirectory._check_newest,
        raises=CordwoodError,
    ),
    row(
        "staged-moved",
        "a donor rebuilt a staged block of a lost node",
        StagedMoves._give,
    ),
    row(
        "rebalance-given",
        "a donor moved a block to an emptier node",
        Moves._plan_given,
        gave,
    ),
    row("claim-again", "a node claimed its number again", DataDirectory._claims_before, gave),
    row("reached-noted", "a node noted its progress in its data directory", DataDirectory.note),
    row(
        "space-told",
        "a node told sequencers of its free space",
        StorageRole.tell_space,
    ),
    row(
        "epoch-end-asked",
        "a node answered an epoch's end",
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
        "a node refused to sequence",
        Eligibility.refusal,
        gave,
    ),
    counted("sequencer-restarted", "a sequencer began a new epoch of its log", EpochRestarted),
    counted("sequencer-ended", "a sequencer ended", EpochEnded),
    counted("not-recovered-told", "appends failed because recovery failed", NotRecoveredTold),
    counted(
        "recovered-while-appending",
        "a recovery ended while its sequencer appended",
        RecoveryEnded,
    ),
    counted("run-waits-for-room", "a sequencer waited for free space on nodes", SpaceAwaited),
    counted("group-numbered", "a sequencer numbered a group of blocks at once", GroupNumbered),
    counted("pending-refused", "a sequencer refused all waiting appends", AppendsRefused),
    counted("store-refused", "a node refused a store", RefusalHeard),
    counted("no-roomy-copyset", "no copyset had free space", NoSpaceAnywhere),
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
        "a node checked for epochs that drain too long",
        LogWatch._end_late,
    ),
    row("release-reminded", "a sequencer repeated its release", Releases.remind),
    row(
        "release-to-peer",
        "a sequencer told the release to a node that came up",
        Releases.on_peer_up,
    ),
    counted(
        "rule-questioned",
        "a sequencer checked its epoch before it answered a tail",
        RuleQuestioned,
    ),
    counted(
        "rule-lost",
        "a client asked an overtaken sequencer for a tail",
        RuleQuestioned,
        lambda d: not d.rules,
    ),
    row("frame-late", "a frame did not end in time", Server._cut),
    row(
        "number-refused",
        "a caller claimed the number of a node that is no member",
        Node.check_node,
        raises=Unreachable,
    ),
    counted("claim-refused", "a caller claimed an epoch that no sequencer took", ClaimRefused),
    counted("release-asked-about", "a release waited for the epoch store", ReleaseHeld),
    row(
        "call-of-nodes-refused",
        "a client made a call that is for nodes",
        check_call,
        raises=Rejected,
        within=node,
    ),
    row("released-asked", "a client asked a sequencer for the release", SequencerRole.released),
    row(
        "epoch-not-newest",
        "a higher epoch was taken during an activation",
        Activation.is_newest,
        lambda s: not s.result,
    ),
    row("node-has-room", "a full node said that it has free space", NodeStates.on_space),
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
        "a connection broke while recovery read a digest",
        DigestReads.on_down,
    ),
    counted("mend-answered", "a node answered a store of a recovery", MendAnswered),
    row(
        "events-restated",
        "a follower of the event log began anew with a restated set",
        EventFollower._on_restated,
    ),
    row("purge-begun", "a node that was down began to purge a log", Purges._purge),
    row("purge-stopped", "purging stopped with its node", Purges.close),
    row(
        "nodesets-trimmed",
        "the epoch store dropped nodesets without data",
        EpochStore.trim_history,
    ),
    row("seals-renewed", "a node that lost seals asked for them again", Node._renew_seals),
    row("token-raised", "a fencing token was raised", EpochStore.raise_token),
    row(
        "epoch-taken-again",
        "another sequencer took the epoch first",
        EpochStore.take_epoch,
        raises=CordwoodError,
    ),
    row(
        "authority-set",
        "a status of a node's data was set",
        Membership.set_authority,
    ),
)
