"""Rare branches of clients, readers and connections; see `sim.probes`."""

from __future__ import annotations

import asyncio

from cordwood.block import GapKind
from cordwood.client.admin.positions import Positions
from cordwood.client.append.buffered_writer import BufferedWriter
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.cluster import Cluster
from cordwood.client.find.ask_released import ReleasedAsker
from cordwood.client.find.log_finding import LogFinding
from cordwood.client.publish.publishing import Publisher
from cordwood.client.publish.stages import Stages
from cordwood.client.publish.staging import Stager
from cordwood.client.read import replica_scan
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.cursors import Cursors
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.senders import Senders
from cordwood.client.read.shared_tail import SharedTail, SubscriberQueue
from cordwood.decisions import (
    AppendCameBack,
    AppendGivenUp,
    GapConcluded,
    OrderSwitched,
    ReaderEnded,
    ReaderHealth,
    ReaderStuck,
    Rewound,
    SequencerSought,
)
from cordwood.errors import CordwoodError
from cordwood.protocol.gap_detection import ReadBuffer
from cordwood.protocol.single_copy import SenderChoice
from cordwood.protocol.slow_nodes import SlowNodes
from cordwood.sim.probes_of_nodes import Row, counted, row
from cordwood.sim.watch import gave
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers
from cordwood.wire.server import Server
from cordwood.wire.store_channel import StoreChannel

CLIENT_ROWS: tuple[Row, ...] = (
    row("append-group", "a client sent an atomic group", LogAppends.add_group),
    counted("appends-seek", "a client looked for a log's sequencer", SequencerSought),
    counted("append-came-back", "a client got a refused block back", AppendCameBack),
    counted("append-block-failed", "a block's appends failed together", AppendGivenUp),
    row("appends-closed", "a client ended with open appends", LogAppends.close),
    row("writer-paused", "a buffered writer waited before another try", BufferedWriter._pause),
    row(
        "writer-retries",
        "a buffered writer may try a batch again",
        BufferedWriter._may_retry,
        gave,
    ),
    row("writer-failed", "a buffered writer gave up a batch", BufferedWriter._fail),
    row("writer-waits", "a buffered writer waited for free space", BufferedWriter.wait_space),
    row("consumer-saved", "a consumer saved its positions", Consumer.save),
    row(
        "consumer-save-refused",
        "a consumer's save failed",
        Consumer.save,
        raises=CordwoodError,
    ),
    row(
        "consumer-saved-at-work",
        "a consumer saved while its application worked on a record",
        Consumer.save,
        lambda s: s.me._reader._up is not None,
    ),
    row(
        "consumer-cut-short",
        "a read of a consumer was cancelled",
        Consumer.fill,
        raises=asyncio.CancelledError,
    ),
    row("consumer-reset", "a consumer's positions were reset", Cursors.reset),
    row("consumer-followed", "a consumer began to read its share", Consumer._follow),
    row("consumer-left", "a consumer left its group", Consumer.close),
    row("publish-rolled-forward", "a client carried on a publish", Publisher.roll_forward),
    row("publish-appended", "a publish appended its group", Publisher.append_share),
    row(
        "publish-refused",
        "a publish failed",
        Publisher.publish,
        raises=CordwoodError,
    ),
    row("stage-elsewhere", "staging chose a copyset", Stager._copyset),
    row(
        "stage-failed",
        "staging failed",
        Stager.stage,
        raises=CordwoodError,
    ),
    counted("reader-rewinds", "a reader sent a rewind", Rewound),
    counted("reader-switches", "a reader began to switch its order of nodes", OrderSwitched),
    row("reader-told-gaps", "a node told a reader of gaps in its stream", Senders.on_gaps),
    counted("reader-stuck", "a reader was stuck", ReaderStuck),
    counted(
        "reader-unhealthy", "a reader reported why it was stuck", ReaderHealth, lambda d: d.trouble
    ),
    counted(
        "reader-healthy",
        "a stuck reader reported progress",
        ReaderHealth,
        lambda d: not d.trouble,
    ),
    row("tail-shared", "a reader subscribed to a shared tail", SharedTail.subscribe, gave),
    row(
        "tail-caught-up",
        "a reader joined a shared tail behind its leader",
        SharedTail.subscribe,
        lambda s: gave(s) and s.args[1].next_lsn != s.args[0].next,
    ),
    row("tail-left", "a reader left a shared tail", SharedTail.leave),
    row(
        "subscriber-too-slow",
        "a subscriber's queue overflowed",
        SubscriberQueue.give,
        lambda s: s.args[0].is_over,
    ),
    row("tail-followed", "a shared tail followed another one", SharedTail.follow),
    row("tail-ended", "the subscribers of a shared tail went on alone", SubscriberQueue.end),
    counted("reader-ended", "a reader ended for good", ReaderEnded),
    row("reader-learnt-nodesets", "a reader learnt more nodesets", ReadStream._learn),
    row("reader-told-of-move", "a reader learnt new statuses of nodes", ReadStream.on_statuses),
    row("buffer-rewound", "a reader forgot its nodes' answers", ReadBuffer.rewind),
    row("buffer-node-gone", "a reader lost a node for good", ReadBuffer.on_gone),
    row("loss-judged", "a reader judged whether records are lost", ReadBuffer.judge_loss),
    counted(
        "loss-told",
        "a reader reported a data loss",
        GapConcluded,
        lambda d: d.kind == GapKind.DATA_LOSS.name,
    ),
    row("trim-moved", "a reader learnt of a higher trim point", ReadBuffer.on_trim, gave),
    row("left-out-passed", "a reader passed records with other keys", ReadBuffer._left_out),
    row("doubt-settled", "a reader trusted a doubted node again", SenderChoice.on_settled),
    row("choice-stuck", "a stuck reader doubted the nodes that were behind", SenderChoice.on_stuck),
    row("slow-put-away", "a reader greylisted a node that stayed slow", SlowNodes._put_away),
    row("slow-rewound", "a reader measured slowness again after a rewind", SlowNodes.on_rewind),
    row("slow-outliers", "a node was far slower than the others", SlowNodes._outliers, gave),
    row("node-checked", "a client checked whether a node is up", Cluster.check_node),
    row(
        "refusal-noted",
        "a client noted a node's refusal of a log",
        LogFinding.note_refusal,
    ),
    row("nodesets-from-nodes", "a client asked nodes for nodesets", LogFinding._ask_nodesets),
    row(
        "name-asked-again",
        "a client looked up a log's name again",
        LogFinding._must_wait,
        gave,
    ),
    row("key-looked-for", "a client looked for a key", Positions.find_key),
    row("node-scanned", "a client scanned a node's copies", replica_scan.scan_node),
    row(
        "scan-damaged",
        "a scanned node reported lost copies",
        replica_scan.scan_node,
        lambda s: s.result.is_damaged,
    ),
    row("extent-told", "a client asked for a log's first and last record", Positions.extent),
    row(
        "extent-unsure",
        "too few nodes answered for a log's first and last record",
        Positions.extent,
        lambda s: s.result.is_partial,
    ),
    row("trim-asked", "a client trimmed a log", Positions.trim),
    row(
        "trim-partial",
        "a trim did not reach all nodes",
        Positions.trim,
        lambda s: s.result.is_partial,
    ),
    row(
        "released-looked-up",
        "a client asked for the release",
        ReleasedAsker.ask,
    ),
    row(
        "token-used",
        "a client used a fencing token",
        Stages.use_fencing_token,
    ),
    row("fence-raised", "a client fenced other clients", Stages.fence),
)

WIRE_ROWS: tuple[Row, ...] = (
    row("link-paused", "a connection paused its writer", Connection.pause_writing),
    row("link-resumed", "a connection resumed its writer", Connection.resume_writing),
    row("link-ended", "the other side closed a connection", Connection.eof_received),
    row("greeting-late", "a server closed a connection without a greeting", Server._expire),
    row("peer-waited-for", "a call waited for a peer", Peers.wait_for),
    row("peer-lost", "a connection to a peer broke", Peers._lost),
    row("call-failed", "a call to a peer failed", Peers.call, raises=CordwoodError),
    row(
        "stores-dropped",
        "a connection to a peer broke with stores on the way",
        StoreChannel.on_down,
    ),
)
