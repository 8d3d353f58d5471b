"""Rare branches of a storage node and of a sequencer; see `sim.probes`.

Each row is a probe, what it means, and where it is met. They stand on functions that are
seldom called: what every frame passes is not watched, so that a run stays fast.
"""

from __future__ import annotations

from cordwood.errors import CordwoodError, Rejected, Unreachable
from cordwood.layout.waves import Refusal
from cordwood.sim.watch import Test, Watch, gave

Row = tuple[str, str, Watch]


def row(
    probe: str,
    means: str,
    place: str,
    test: Test | None = None,
    raises: type[BaseException] | None = None,
) -> Row:
    """A probe on `place`; see `watch.Watch`."""
    return probe, means, Watch(probe, place, test, raises=raises)


_CLAIMS = "storage.claims:Claims"
_CACHED = "storage.log_cache:CachedLog"
_DEVICE = "storage.wal.wal_device:WalDevice"
_FILES = "storage.data_directory:DataDirectory"
_LOGS = "storage.logs_db.logs_store:LogsStore"
_PUSH = "storage.push.read_streams:ReadStreams"
_SCAN = "protocol.wal_ring:WalScan"
_SCRUB = "storage.scrub.scrub:Scrub"
_STAGING = "storage.staging.staging:Staging"
_APPENDER = "sequencer.appender:LogAppender"
_TABLE_OF_SEQUENCERS = "sequencer.sequencer_table:SequencerTable"
_ROLE = "sequencer.role:SequencerRole"
_STATES = "protocol.node_states:NodeStates"

STORAGE_ROWS: tuple[Row, ...] = (
    row(
        "storage-said",
        "a node heard that it stores nothing, or stores again",
        "node:Node._note_storage",
        gave,
    ),
    row(
        "read-only-refused",
        "a read-only node refused a store",
        "storage.engine:refusal_of",
        lambda s: s.result is not None and s.args[0].read_only,
    ),
    row(
        "weight-zero-there",
        "a node without weight was there for a new epoch",
        "sequencer.activation:choose_nodeset",
        lambda s: any(not m.weight and not m.read_only for m in s.args[1]),
    ),
    row(
        "loss-accepted",
        "a start found a loss that was accepted",
        "storage.logs_db.logs_store:LogsStore.accept_loss",
    ),
    row(
        "copyset-refused",
        "a node refused what names a node that is given up",
        "storage.engine:refusal_of",
        lambda s: s.result is not None and s.result.reason == Refusal.REBUILDING,
    ),
    row("wal-trimmed", "the WAL let go of what is in LogsDB", "storage.wal.delta_wal:Wal.trim"),
    row("wal-bad-body", "a start read a record whose body is wrong", f"{_SCAN}.on_bad_body"),
    row("wal-write-refused", "the disk refused a write of the WAL", f"{_DEVICE}._on_refused"),
    row("wal-write-again", "a write of the WAL was tried again", f"{_DEVICE}._try_again"),
    row("wal-taken-again", "the disk took writes of the WAL again", f"{_DEVICE}._on_taken"),
    row(
        "store-of-nothing",
        "a store of no blocks was answered",
        "storage.engine:StorageEngine._store_nothing",
    ),
    row(
        "staging-written",
        "a node wrote down something staged",
        "storage.engine:StorageEngine.write_staging",
    ),
    row(
        "amend-stored", "a node took another envelope", "storage.engine:StorageEngine.append_amend"
    ),
    row(
        "amend-of-flushed",
        "an amend was of a block that only LogsDB holds",
        "storage.amends:Amends._find_of_log",
    ),
    row("amend-replayed", "a start replayed an amend", "storage.amends:Amends.restore"),
    row(
        "amend-sent-again",
        "a later wave sent an envelope alone",
        "wire.store_channel:StoreChannel.send_amend",
    ),
    row(
        "producers-full",
        "a log refused a producer for want of memory",
        "sequencer.producer_checks:_full",
    ),
    row(
        "nodesets-told",
        "a node was told a log's nodesets",
        "storage.engine:StorageEngine.tell_nodesets",
    ),
    row(
        "nodesets-asked",
        "a node was asked for a log's nodesets",
        "storage.engine:StorageEngine.nodesets",
    ),
    row(
        "epoch-closed-unknown",
        "an epoch was over whose end nobody could say",
        "storage.engine:StorageEngine._close_epoch",
        lambda s: s.args[3] is None,
    ),
    row(
        "epoch-closed",
        "a node learnt the end of an epoch",
        "storage.engine:StorageEngine._close_epoch",
        lambda s: s.args[3] is not None,
    ),
    row(
        "copy-not-counted",
        "a copy above an epoch's end does not count",
        f"{_CACHED}.counts_block",
        lambda s: not s.result,
    ),
    row("flush-failed", "a flush failed", "storage.logs_db.flusher:_settle", lambda s: s.args[1]),
    row("flushed", "a part of the WAL went to LogsDB", "storage.logs_db.flusher:Flusher._take"),
    row("partition-begun", "a new partition was begun", f"{_LOGS}._rolled", gave),
    row("partition-due", "a partition reached a limit", f"{_LOGS}._is_due", gave),
    row("read-from-logsdb", "a read went to LogsDB", f"{_LOGS}.read"),
    row("read-merged", "a read joined LogsDB and the log cache", "storage.log_reader:_merged"),
    row("lost-noted", "a start noted what it lost", f"{_LOGS}.note_lost", gave),
    row("damage-noted", "a damaged range was written down", f"{_LOGS}.note_damage", gave),
    row("scrubbed", "scrubbing went once over all", f"{_SCRUB}._pass"),
    row(
        "scrub-went-on",
        "scrubbing went on where an earlier start was",
        f"{_SCRUB}._progress_of_before",
        gave,
    ),
    row(
        "index-rot-found",
        "bad bytes were found in an index",
        "storage.scrub.rotten_rows:_readable_from",
        lambda s: s.result > s.args[3],
    ),
    row("scrub-orphan", "scrubbing looked at a body without an entry", f"{_SCRUB}._check_orphan"),
    row("scrub-part", "scrubbing read a log's part of a partition", f"{_SCRUB}._scrub_part"),
    row("staged", "a block was staged", f"{_STAGING}.stage"),
    row("staged-read", "a staged block was read", f"{_STAGING}.read"),
    row("pinned", "staged blocks were pinned", f"{_STAGING}.pin"),
    row("pin-refused", "a pin came too late", f"{_STAGING}.pin", raises=CordwoodError),
    row("unstaged", "staged blocks were given back", f"{_STAGING}.unstage"),
    row("staged-expired", "staged blocks expired", f"{_STAGING}.expired", gave),
    row(
        "retention-looked",
        "a node looked at what logs keep",
        "storage.space.retention:Retention.look",
    ),
    row(
        "retention-to-fit",
        "a node looked at a log's bytes",
        "storage.space.retention:Retention._trim_to_fit",
    ),
    row(
        "retention-asked-all",
        "nodes were asked what a log has above some LSNs",
        "storage.space.kept_bytes:KeptBytes.above",
        gave,
    ),
    row(
        "retention-waits-for-lng",
        "a block was counted by a later flush than its own",
        "storage.space.payload_count:PayloadCount.of_flush",
        lambda s: any(s.result[1].values()),
    ),
    row(
        "retention-deleted",
        "a node looked for deleted logs",
        "storage.space.retention:Retention._trim_deleted",
    ),
    row("stream-stopped", "a reader stopped a stream", f"{_PUSH}.stop"),
    row("stream-gaps-told", "a node told a reader what it is not sent", f"{_PUSH}._tell_gaps"),
    row("stream-fetched", "a stream read from LogsDB", f"{_PUSH}._fetch"),
    row(
        "stream-read-ahead",
        "a batch was read before its stream asked for it",
        "storage.push.read_ahead:ReadAhead.take",
        gave,
    ),
    row("streams-dropped", "a connection went with streams on it", f"{_PUSH}._drop"),
    row(
        "recent-dropped",
        "a block left the memory of recent ones",
        "storage.logs_db.recent_blocks:RecentBlocks._drop",
    ),
    row(
        "producers-dropped",
        "what producers wrote in an epoch was let go",
        "storage.produced_index:ProducedIndex.drop",
    ),
    row(
        "empty-refused",
        "a node without its data was refused",
        f"{_FILES}._refuse_empty",
        raises=CordwoodError,
    ),
    row(
        "older-refused",
        "a node with an older copy of its data was refused",
        f"{_FILES}._check_newest",
        raises=CordwoodError,
    ),
    row("claim-again", "a node claimed its number again", f"{_FILES}._claims_before", gave),
    row("reached-noted", "a node noted how far it got", f"{_FILES}.note"),
    row(
        "space-told",
        "a node told sequencers of its free space",
        "storage.role:StorageRole.tell_space",
    ),
    row(
        "epoch-end-asked",
        "a node was asked where an epoch ends",
        "storage.role:StorageRole.epoch_end",
    ),
)

SEQUENCER_ROWS: tuple[Row, ...] = (
    row("log-given-up", "a sequencer gave its log to another node", f"{_ROLE}.give_up"),
    row(
        "sequencer-isolated",
        "a node that sees too few others stopped sequencing",
        f"{_ROLE}.on_isolated",
        lambda s: s.args[1],
    ),
    row(
        "sequencing-refused",
        "a node would not sequence",
        "sequencer.eligibility:Eligibility.refusal",
        gave,
    ),
    row("sequencer-restarted", "a log's sequencer began again", f"{_TABLE_OF_SEQUENCERS}.restart"),
    row("sequencer-ended", "a sequencer ended", f"{_TABLE_OF_SEQUENCERS}.end"),
    row(
        "not-recovered-told",
        "appends that need recovery were refused",
        f"{_TABLE_OF_SEQUENCERS}._tell_not_recovered",
    ),
    row(
        "recovered-while-appending",
        "a recovery ended under a sequencer that appends",
        f"{_TABLE_OF_SEQUENCERS}._on_recovered",
    ),
    row(
        "run-waits-for-room", "a sequencer waited for room on nodes", f"{_APPENDER}._wait_for_space"
    ),
    row(
        "sequencer-drained",
        "a sequencer that ends had nothing in flight",
        f"{_APPENDER}._check_drained",
    ),
    row("group-numbered", "a group of blocks was numbered at once", f"{_APPENDER}._number_group"),
    row(
        "pending-refused", "appends that wait were refused together", f"{_APPENDER}._refuse_pending"
    ),
    row("store-refused", "a node refused a store", f"{_APPENDER}._on_refused"),
    row(
        "no-roomy-copyset",
        "no copyset had room",
        f"{_APPENDER}._fitting_copyset",
        lambda s: s.result is None,
    ),
    row(
        "producer-refused",
        "a producer's block came out of sequence",
        "sequencer.producer_checks:ProducerChecks.check",
        raises=Rejected,
    ),
    row(
        "append-repeated",
        "a producer's block came twice",
        "sequencer.producer_checks:ProducerChecks.check",
        lambda s: s.result is not None,
    ),
    row(
        "repeat-acked",
        "a repeat was acknowledged with its first LSN",
        "sequencer.producer_checks:ProducerChecks.take_repeats",
        gave,
    ),
    row(
        "tail-not-expected",
        "a conditional append found another tail",
        "sequencer.producer_checks:ProducerChecks._check_tail",
        raises=CordwoodError,
    ),
    row(
        "sequencer-found-over",
        "a look at the epochs ended a sequencer",
        "sequencer.log_watch:LogWatch._end_late",
    ),
    row(
        "release-reminded", "what is released was said again", "sequencer.releases:Releases.remind"
    ),
    row(
        "release-to-peer",
        "a node that came up was told what is released",
        "sequencer.releases:Releases.on_peer_up",
    ),
    row(
        "rule-questioned",
        "a tail was asked of a sequencer that had to look whether it rules",
        f"{_ROLE}._still_rules",
    ),
    row(
        "rule-lost",
        "a tail was asked of a sequencer that no longer rules",
        f"{_ROLE}._still_rules",
        lambda s: not s.result,
    ),
    row("frame-late", "a frame that was begun did not end in time", "wire.server:Server._cut"),
    row(
        "number-refused",
        "a caller said to be a node, and is no member",
        "node:Node._check_node",
        raises=Unreachable,
    ),
    row(
        "claim-refused",
        "an epoch was claimed that was never handed out",
        f"{_CLAIMS}._check_handed_out",
        raises=Rejected,
    ),
    row("release-asked-about", "a release waited for the epoch store", f"{_CLAIMS}._settle"),
    row(
        "call-of-nodes-refused",
        "a client made a call that is for nodes",
        "node:check_call",
        raises=Rejected,
    ),
    row("released-asked", "a sequencer was asked what is released", f"{_ROLE}.released"),
    row(
        "epoch-not-newest",
        "a started epoch was not the newest any more",
        "sequencer.activation:Activation.is_newest",
        lambda s: not s.result,
    ),
    row("node-has-room", "a full node said that it has room", f"{_STATES}.on_space"),
    row("node-no-space", "a node said that its disk is nearly full", f"{_STATES}.on_no_space"),
    row("node-up-again", "a node that failed is up again", f"{_STATES}.on_up"),
    row("node-timed-out", "a store timed out", f"{_STATES}.on_timed_out"),
    row(
        "producers-known",
        "a recovery learnt what producers wrote",
        "recovery.recover_log:_last_known",
        lambda s: bool(s.result[0]),
    ),
    row(
        "digest-cut-off",
        "a node went while recovery read from it",
        "recovery.collect_digest:DigestReads.on_down",
    ),
    row("mend-answered", "a node stored what a recovery mended", "recovery.mend_tail:_check"),
    row(
        "purge-begun",
        "a node that was away looked for what does not count",
        "recovery.purge:Purges._purge",
    ),
    row("purge-stopped", "purging stopped with its node", "recovery.purge:Purges.close"),
    row(
        "nodesets-trimmed",
        "nodesets went with their data",
        "metadata.epoch_store:EpochStore.trim_history",
    ),
    row("seals-renewed", "a node that lost seals asked for them anew", "node:Node._renew_seals"),
    row(
        "token-raised", "a fencing token was raised", "metadata.epoch_store:EpochStore.raise_token"
    ),
    row(
        "epoch-taken-again",
        "an epoch was taken by another meanwhile",
        "metadata.epoch_store:EpochStore.take_epoch",
        raises=CordwoodError,
    ),
    row(
        "authority-set",
        "it was said what became of a node's data",
        "metadata.membership:Membership.set_authority",
    ),
)
