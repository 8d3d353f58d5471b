"""Rare branches of clients, readers and connections; see `sim.probes`."""

from __future__ import annotations

import asyncio

from cordwood.errors import CordwoodError
from cordwood.sim.probes_of_nodes import Row, row
from cordwood.sim.watch import gave

_APPENDS = "client.append.log_appends:LogAppends"
_BUFFER = "protocol.gap_detection:ReadBuffer"
_CHOICE = "protocol.single_copy:SenderChoice"
_CLUSTER = "client.cluster:Cluster"
_FINDING = "client.find.log_finding:LogFinding"
_CONSUMER = "client.read.consumer:Consumer"
_LINK = "wire.connection:Connection"
_POSITIONS = "client.admin.positions:Positions"
_PUBLISHER = "client.publish.publishing:Publisher"
_QUEUE = "client.read.shared_tail:SubscriberQueue"
_SENDERS = "client.read.senders:Senders"
_SLOW = "protocol.slow_nodes:SlowNodes"
_STREAM = "client.read.read_stream:ReadStream"
_TAIL = "client.read.shared_tail:SharedTail"
_WRITER = "client.append.buffered_writer:BufferedWriter"

CLIENT_ROWS: tuple[Row, ...] = (
    row("append-group", "a client sent a group", f"{_APPENDS}.add_group"),
    row("appends-seek", "a client looked for a log's sequencer", f"{_APPENDS}._seek"),
    row("append-came-back", "a refused block came back to its client", f"{_APPENDS}._come_back"),
    row("append-block-failed", "a block's appends failed together", f"{_APPENDS}._fail"),
    row("appends-closed", "a client ended with appends waiting", f"{_APPENDS}.close"),
    row("writer-paused", "a buffered writer waits before it tries again", f"{_WRITER}._pause"),
    row("writer-retries", "a buffered writer may try a batch again", f"{_WRITER}._may_retry", gave),
    row("writer-failed", "a buffered writer gave a batch up", f"{_WRITER}._fail"),
    row("writer-waits", "a buffered writer had no room", f"{_WRITER}.wait_space"),
    row("consumer-saved", "a consumer saved its positions", f"{_CONSUMER}.save"),
    row(
        "consumer-save-refused",
        "a consumer could not save",
        f"{_CONSUMER}.save",
        raises=CordwoodError,
    ),
    row(
        "consumer-saved-at-work",
        "a consumer saved while its application worked on an item of a loop",
        f"{_CONSUMER}.save",
        lambda s: s.me._reader._up is not None,
    ),
    row(
        "consumer-cut-short",
        "a read of a consumer was cancelled",
        f"{_CONSUMER}.fill",
        raises=asyncio.CancelledError,
    ),
    row("consumer-followed", "a consumer took up its share", f"{_CONSUMER}._follow"),
    row("consumer-left", "a consumer left its group", f"{_CONSUMER}.close"),
    row("publish-rolled-forward", "a publish was carried on", f"{_PUBLISHER}._roll_forward"),
    row("publish-appended", "a publish appended its group", f"{_PUBLISHER}._append"),
    row(
        "publish-refused",
        "a publish was refused or broke off",
        f"{_PUBLISHER}.publish",
        raises=CordwoodError,
    ),
    row(
        "stage-elsewhere", "staging looked for a copyset", "client.publish.staging:Stager._copyset"
    ),
    row(
        "stage-failed",
        "staging failed",
        "client.publish.staging:Stager.stage",
        raises=CordwoodError,
    ),
    row("reader-rewinds", "a reader's rewind went out", f"{_SENDERS}._rewind"),
    row("reader-switches", "a reader began to switch its order", f"{_SENDERS}._begin_switch"),
    row("reader-told-gaps", "a reader was told what it is not sent", f"{_SENDERS}.on_gaps"),
    row("reader-stuck", "a reader got nowhere", f"{_STREAM}._on_stuck"),
    row(
        "reader-unhealthy",
        "a reader said why it gets nowhere",
        f"{_STREAM}._on_health",
        lambda s: s.args[1],
    ),
    row(
        "reader-healthy",
        "a reader that got nowhere is well again",
        f"{_STREAM}._on_health",
        lambda s: not s.args[1],
    ),
    row("tail-shared", "a reader subscribed to a shared tail", f"{_TAIL}.subscribe", gave),
    row(
        "tail-caught-up",
        "a reader came to a shared tail behind its lead",
        f"{_TAIL}.subscribe",
        lambda s: gave(s) and s.args[1].next_lsn != s.args[0].next,
    ),
    row("tail-left", "a reader left a shared tail", f"{_TAIL}.leave"),
    row(
        "subscriber-too-slow",
        "more waited for a reader than a queue holds",
        f"{_QUEUE}.give",
        lambda s: s.args[0].is_over,
    ),
    row("tail-followed", "a shared tail was left behind by another", f"{_TAIL}.follow"),
    row("tail-ended", "those who shared a tail went on alone", f"{_QUEUE}.end"),
    row("reader-ended", "a reader ended for good", f"{_STREAM}.fail"),
    row("reader-learnt-nodesets", "a reader learnt of more nodesets", f"{_STREAM}._learn"),
    row("reader-told-of-move", "a reader was told that data moved", f"{_STREAM}.on_statuses"),
    row("buffer-rewound", "a reader forgot what nodes said", f"{_BUFFER}.rewind"),
    row("buffer-node-gone", "a reader lost a node for good", f"{_BUFFER}.on_gone"),
    row("loss-judged", "a reader judged whether something is lost", f"{_BUFFER}._lost"),
    row("loss-told", "a reader told a loss", f"{_BUFFER}._lost", gave),
    row("trim-moved", "a reader learnt of a higher trim point", f"{_BUFFER}.on_trim", gave),
    row("left-out-passed", "a reader passed what it had not asked for", f"{_BUFFER}._left_out"),
    row("doubt-settled", "a node in doubt is trusted again", f"{_CHOICE}.on_settled"),
    row("choice-stuck", "a reader doubted those that are behind", f"{_CHOICE}.on_stuck"),
    row("slow-put-away", "a node was greylisted for slowness", f"{_SLOW}._put_away"),
    row("slow-rewound", "slowness was measured anew after a rewind", f"{_SLOW}.on_rewind"),
    row("slow-outliers", "a node was far slower than the others", f"{_SLOW}._outliers", gave),
    row("node-checked", "a client asked whether a node is there", f"{_CLUSTER}.check_node"),
    row("refusal-noted", "a client noted who is not a log's sequencer", f"{_FINDING}.note_refusal"),
    row("nodesets-from-nodes", "a client asked nodes for nodesets", f"{_FINDING}._ask_nodesets"),
    row(
        "name-asked-again",
        "a client asked where a name leads by now",
        f"{_FINDING}._must_wait",
        gave,
    ),
    row("key-looked-for", "a client looked a key up", f"{_POSITIONS}.find_key"),
    row(
        "node-scanned", "a node was asked for all its copies", "client.read.replica_scan:scan_node"
    ),
    row(
        "scan-damaged",
        "a node that was scanned said that it lost something",
        "client.read.replica_scan:scan_node",
        lambda s: s.result.is_damaged,
    ),
    row("trim-asked", "a client trimmed a log", f"{_POSITIONS}.trim"),
    row(
        "trim-partial",
        "a trim reached not every node",
        f"{_POSITIONS}.trim",
        lambda s: s.result.is_partial,
    ),
    row(
        "released-looked-up",
        "a client asked for what is released",
        "client.find.ask_released:ReleasedAsker.ask",
    ),
    row(
        "token-used",
        "a client appends under a fencing token",
        "client.publish.stages:Stages.use_fencing_token",
    ),
    row("fence-raised", "a client fenced the others", "client.publish.stages:Stages.fence"),
)

WIRE_ROWS: tuple[Row, ...] = (
    row("link-paused", "a connection took no more", f"{_LINK}.pause_writing"),
    row("link-resumed", "a connection takes more again", f"{_LINK}.resume_writing"),
    row("link-ended", "the other side closed a connection", f"{_LINK}.eof_received"),
    row(
        "greeting-late", "a connection that did not greet was closed", "wire.server:Server._expire"
    ),
    row("peer-waited-for", "a call waited for a peer", "wire.peers:Peers.wait_for"),
    row("peer-lost", "a connection to a peer went", "wire.peers:Peers._lost"),
    row("call-failed", "a call to a peer failed", "wire.peers:Peers.call", raises=CordwoodError),
    row(
        "stores-dropped",
        "a peer went with stores on the way",
        "wire.store_channel:StoreChannel.on_down",
    ),
)
