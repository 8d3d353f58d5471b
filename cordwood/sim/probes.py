"""Probes: named rare things that should happen somewhere in a sweep, and are counted.

A fault that never reaches the code it was meant for proves nothing. So each branch worth reaching
has a probe, and a sweep reports probes that it never hit. A probe counts decisions that the product
tells (`cordwood.decisions`). Pure rules tell no decisions; for these the probe wraps the function
for the length of a run. To add a probe, add a row to `probes_of_nodes` or `probes_of_clients`. If
the history tells of the case, add a line to `PROBES` and one to `probes_of`.

Source: FoundationDB's CODE_PROBE; docs/sources/reliability.md §1, §4.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from cordwood.admin.replicated_events import ReplicatedEventLog
from cordwood.block import Gap, GapKind
from cordwood.client.admin.positions import Positions
from cordwood.decisions import (
    LISTENERS,
    ActivationGivenUp,
    AnsweredLate,
    AnswerLost,
    AppendCameBack,
    AppendOverloaded,
    AppendsLost,
    CopyMet,
    DamageNoted,
    Decision,
    DigestWeighed,
    EpochDrained,
    EpochOvertaken,
    EpochPurged,
    GapConcluded,
    LateBlockDropped,
    LogTrimmed,
    MembersLacking,
    MendFenced,
    NodeFailed,
    OldOrderDropped,
    PartitionCut,
    PartitionDropped,
    RecoveryBegun,
    RecoveryFenced,
    RetentionTrimmed,
    RunOvertaken,
    SealRefused,
    SequencerFenced,
    StoreRefused,
    TailDecided,
    TailSought,
    TakenEpochKept,
    TooFewNodesUp,
    WaveRetried,
)
from cordwood.errors import (
    CordwoodError,
    Corrupt,
    OutcomeUnknown,
    Unreachable,
)
from cordwood.layout.waves import AmendedBlock, Refusal
from cordwood.lsn import ESN_MAX
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.node import Node
from cordwood.protocol.disk_space import DiskSpace
from cordwood.protocol.gap_detection import ReadBuffer
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.single_copy import Doubt, SenderChoice
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.sequencer.eligibility import Eligibility
from cordwood.sequencer.role import SequencerRole
from cordwood.sim.checkers.tried_again import first_tries
from cordwood.sim.history import (
    AppendFailed,
    AppendUnknown,
    EpochTaken,
    Event,
    HistoryRecorder,
    NodeDumped,
    ReadEnded,
    TailAnswered,
)
from cordwood.sim.node_events import EpochsNodes, NodesetsKnown
from cordwood.sim.noted_trims import (
    noting_event_trims,
    noting_retention,
    noting_tier_retention,
    noting_trims,
)
from cordwood.sim.operator_events import BlockKept, BlockNames, RebuildingKnown, StorageKnown
from cordwood.sim.planted.bug import find_owner
from cordwood.sim.probes_of_clients import CLIENT_ROWS, WIRE_ROWS
from cordwood.sim.probes_of_nodes import SEQUENCER_ROWS, STORAGE_ROWS
from cordwood.sim.recorded_metadata import current_node
from cordwood.sim.watch import Count, Sight, Watch
from cordwood.storage import log_search
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db import logs_read
from cordwood.storage.logs_db.index_search import search
from cordwood.storage.push.own_copies import OwnCopies
from cordwood.storage.space.retention import Retention
from cordwood.storage.wal.delta_wal import Wal
from cordwood.uploading.tend import Tend
from cordwood.wire.connection import Connection

_ROWS = (*STORAGE_ROWS, *SEQUENCER_ROWS, *CLIENT_ROWS, *WIRE_ROWS)

PROBES: Mapping[str, str] = MappingProxyType({
    "wave-retried": "a sequencer sent a run again",
    "wave-third": "a sequencer sent a run three times or more",
    "wave-lost": "a connection broke with unanswered stores on it",
    "old-wave-answered": "a node answered a wave after the sequencer gave it up",
    "run-overtaken": "a run was stored before an earlier run",
    "node-slow": "a wave timed out at a node",
    "node-probed": "a sequencer tried a slow node with an empty store",
    "node-failed": "a node said that it cannot store",
    "node-full": "a node said that it has no free space",
    "too-few-nodes": "an append found too few nodes for a copyset",
    "sequencer-fenced": "a sequencer learnt of a higher epoch",
    "epoch-used-up": "an epoch had no LSNs left",
    "append-redirected": "a node redirected an append to the log's node",
    "started-elsewhere": "a client asked a node to sequence another node's log",
    "activation-failed": "a sequencer could not start",
    "append-overloaded": "a sequencer refused appends because it was full",
    "taken-epoch-kept": "a sequencer tried again with the epoch that it took before",
    "epoch-overtaken": "a higher epoch was taken before a sequencer began",
    "records-mended": "recovery stored records again",
    "hole-plugged": "recovery plugged a hole",
    "empty-epoch-bridged": "recovery ended an epoch without a record",
    "earlier-recovery-found": "recovery found the work of an earlier recovery",
    "several-epochs-recovered": "one start recovered several epochs",
    "recovered-without-all": "recovery had an f-majority, but not all nodes",
    "recovered-non-authoritatively": "recovery ended an epoch with too few copies left",
    "recovery-lacks-members": "recovery refused because it lacked members",
    "recovery-fenced": "a recovery met a higher seal",
    "mend-fenced": "a recovery was fenced during its stores",
    "store-sealed": "a node refused a store of an older epoch",
    "recovery-store-sealed": "a node refused a store of an older recovery",
    "seal-refused": "a node refused a seal below its own",
    "epoch-purged": "a node that was down dropped records past an epoch's end",
    "late-block-dropped": "a block became durable only after its epoch ended",
    "copy-replaced": "a node replaced a copy",
    "copy-not-better": "a node dropped a new copy and kept the old one",
    "wal-poisoned": "a write failed, and the node stopped storing",
    "wal-hole": "a start read past a hole in the WAL",
    "wal-damage": "a start found durable records that cannot be read",
    "wal-window-grown": "the WAL's window grew",
    "scrub-found": "scrubbing found a damaged copy",
    "damage-served-around": "a read skipped a copy that the node knows as damaged",
    "reader-nudged": "a reader without news asked for the tail",
    "reader-reconnected": "a node came back to a reader",
    "reader-sees-damage": "a reader learnt that a node does not know its copies",
    "reader-rewound": "a reader began again at all nodes",
    "all-asked": "a reader that suspected a loss asked all nodes for all copies",
    "single-again": "a reader went back to single copies or to returned nodes",
    "silent-doubted": "a reader went on without a silent node",
    "slow-doubted": "a reader greylisted a slow node",
    "old-order-dropped": "a reader dropped blocks of an older order",
    "copy-left-out": "a node left out a block that another node sends",
    "hole-read": "a reader got a hole",
    "bridge-read": "a reader got a bridge",
    "read-inside-block": "a reader began inside a block",
    "append-tried-again": "a client sent a refused block again",
    "append-lost": "a client's connection broke with appends on it",
    "append-unknown": "an append ended with an unknown outcome",
    "append-failed": "an append ended with nothing stored",
    "again-was-stored": "a producer repeated an append that was stored",
    "again-was-not-stored": "a producer repeated an append that was not stored",
    "reader-failed": "a read ended with an error",
    "tail-answered": "a client got a tail",
    "epochs-many": "a log crossed ten epochs",
    "log-trimmed": "a node trimmed a log",
    "retained-no-longer": "a node trimmed a log by its retention",
    "disk-nearly-full": "a node refused records because its disk was nearly full",
    "disk-has-room-again": "a node had free space again and took records",
    "partition-dropped": "a node dropped a partition",
    "partition-cut": "a node removed trimmed records from a partition",
    "time-found": "a client found the LSN of a time",
    "time-inside-partition": "a node searched a partition for a time",
    "trim-read": "a reader got a trim gap",
    "trim-inside-block": "a trim point was inside a block",
    "second-wave-held": "a node held a second wave at the end",
    "frame-refused": "a connection was closed because a frame was damaged",
    "peer-silent": "a connection was closed because the other side was silent",
    "metadata-answer-lost": "an answer of the metadata store was lost",
    "metadata-raced": "a compare-and-set lost a race",
    "late-write-came": "a write arrived after its writer gave up",
    **{probe: means for probe, means, _ in _ROWS},
})  # fmt: skip
"""Every probe that some ordinary run can hit, and its meaning."""


def _refused(reason: Refusal) -> Callable[[StoreRefused], bool]:
    return lambda decision: decision.reason == reason.name


def is_gap(kind: GapKind) -> Callable[[GapConcluded], bool]:
    return lambda decision: decision.kind == kind.name


_ALL: tuple[Watch | Count[Any], ...] = (
    Count("wave-retried", WaveRetried),
    Count("wave-third", WaveRetried, lambda d: d.wave >= 3),
    Count("wave-lost", AnswerLost),
    Count("old-wave-answered", AnsweredLate),
    Count("run-overtaken", RunOvertaken),
    Watch("node-slow", NodeStates.on_slow),
    Watch("node-probed", NodeStates.on_probed),
    Watch("node-failed", NodeStates.on_failed),
    Watch("node-full", NodeStates.on_full),
    Count("too-few-nodes", TooFewNodesUp),
    Count("sequencer-fenced", SequencerFenced),
    Count("epoch-used-up", EpochDrained),
    Watch("append-redirected", Eligibility.elsewhere, lambda s: s.result),
    Watch("started-elsewhere", Eligibility.elsewhere, lambda s: s.args[2]),
    Count("activation-failed", ActivationGivenUp),
    Count("append-overloaded", AppendOverloaded),
    Count("taken-epoch-kept", TakenEpochKept),
    Count("epoch-overtaken", EpochOvertaken),
    Count("records-mended", TailDecided, lambda d: d.blocks),
    Count("hole-plugged", TailDecided, lambda d: d.holes),
    Count("empty-epoch-bridged", TailDecided, lambda d: d.bridge & ESN_MAX == 1),
    Count("earlier-recovery-found", TailDecided, lambda d: d.found),
    Count("several-epochs-recovered", RecoveryBegun, lambda d: d.epoch - d.clean > 2),
    Count(
        "recovered-without-all",
        DigestWeighed,
        lambda d: d.verdict == QuorumVerdict.INCOMPLETE.name,
    ),
    Count(
        "recovered-non-authoritatively",
        DigestWeighed,
        lambda d: d.verdict == QuorumVerdict.NON_AUTHORITATIVE.name,
    ),
    Count("recovery-lacks-members", MembersLacking),

    Count("recovery-fenced", RecoveryFenced),
    Count("mend-fenced", MendFenced),
    Count("store-sealed", StoreRefused, _refused(Refusal.SEALED)),
    Count(
        "recovery-store-sealed",
        StoreRefused,
        lambda d: d.seal and d.reason == Refusal.SEALED.name,
    ),
    Count("seal-refused", SealRefused),
    Count("epoch-purged", EpochPurged, lambda d: d.seal),
    Count("late-block-dropped", LateBlockDropped),
    Count("copy-replaced", CopyMet, lambda d: d.is_better),
    Count("copy-not-better", CopyMet, lambda d: not d.is_better),
    Count("wal-poisoned", NodeFailed),
    Watch("wal-hole", Wal.resume, lambda s: s.args[1].holes),
    Watch("wal-damage", Wal.resume, lambda s: s.args[1].damage),
    Watch("wal-window-grown", Wal._on_grown),
    Count("scrub-found", DamageNoted),
    Watch(
        "damage-served-around",
        logs_read._without_damaged,
        lambda s: s.result[1],
    ),
    Count("reader-nudged", TailSought),
    Watch("reader-reconnected", ReadBuffer.on_connected, lambda s: s.me._markers),
    Watch("reader-sees-damage", ReadBuffer.on_damaged),
    Watch("reader-rewound", SenderChoice.takes_rewind, lambda s: s.result),
    Watch("all-asked", SenderChoice.on_suspicion, lambda s: s.me.is_single, before=True),
    Watch("single-again", SenderChoice.on_slide, lambda s: s.me.is_rewind_due),
    Watch("silent-doubted", SenderChoice.on_doubt, lambda s: s.args[2] is Doubt.SILENT),
    Watch("slow-doubted", SenderChoice.on_doubt, lambda s: s.args[2] is Doubt.SLOW),
    Count("old-order-dropped", OldOrderDropped),
    Watch("copy-left-out", OwnCopies.part, lambda s: not s.result),
    Count("hole-read", GapConcluded, is_gap(GapKind.HOLE)),
    Count("bridge-read", GapConcluded, is_gap(GapKind.BRIDGE)),
    Watch(
        "disk-nearly-full", DiskSpace.on_free,
        lambda s: s.result and s.me.is_low,
    ),
    Watch(
        "disk-has-room-again", DiskSpace.on_free,
        lambda s: s.result and not s.me.is_low,
    ),
    Count("retained-no-longer", RetentionTrimmed),
    Count("partition-dropped", PartitionDropped),
    Count("partition-cut", PartitionCut),
    Watch("time-inside-partition", search, within=log_search),
    Watch("time-found", Positions.find_time),
    Count("log-trimmed", LogTrimmed),
    Watch(
        "trim-inside-block",
        CachedLog.trim_to,
        lambda s: (b := s.me.at(0)) is not None and b.header.first <= s.args[1] < b.header.last,
    ),
    Count("trim-read", GapConcluded, is_gap(GapKind.TRIM)),
    Watch(
        "read-inside-block",
        ReadBuffer.deliver_block,
        lambda s: not isinstance(s.result, Gap) and s.result.first > s.result.block.header.first,
    ),
    Count("append-tried-again", AppendCameBack),
    Count("append-lost", AppendsLost),
    Watch(
        "frame-refused",
        Connection.fail,
        lambda s: isinstance(s.args[1], Corrupt),
        before=True,
    ),
    Watch(
        "peer-silent",
        Connection.fail,
        lambda s: isinstance(s.args[1], Unreachable),
        before=True,
    ),
    Watch(
        "metadata-answer-lost", MemoryMetadata._lose, raises=OutcomeUnknown
    ),
    Watch("metadata-raced", MemoryData.compare_and_set, lambda s: not s.result),
    Watch("late-write-came", MemoryData.take_due, lambda s: s.result),
    *(watch for _, _, watch in _ROWS),
)  # fmt: skip

_WATCHES = [each for each in _ALL if isinstance(each, Watch)]
_COUNTS = [each for each in _ALL if isinstance(each, Count)]


COUNTED_MAX = 20
"""Highest count of a probe in one run; after that the probe is not watched any more."""


@contextmanager
def watched(counts: Counter[str], recorder: HistoryRecorder) -> Iterator[None]:
    """During the block, count probes, and record stores of nodes and releases of sequencers."""
    places: dict[tuple[Any, str], list[Watch]] = {}
    for watch in _WATCHES:
        places.setdefault(watch.place, []).append(watch)
    kinds: dict[type[Decision], list[Count[Any]]] = {}
    for each in _COUNTS:
        kinds.setdefault(each.kind, []).append(each)
    before: list[tuple[Any, str, Any]] = []

    def on_decision(decision: Decision) -> None:
        for each in kinds.get(type(decision), ()):
            if each.test is None or each.test(decision):
                counts[each.probe] += 1

    LISTENERS.append(on_decision)
    try:
        for (owner, name), watches in places.items():
            original = owner.__dict__[name]
            before.append((owner, name, original))
            setattr(owner, name, _wrapped(original, watches, counts))
        for (owner, name), noting in _NOTES:
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, noting(owner.__dict__[name], recorder))
        yield
    finally:
        LISTENERS.remove(on_decision)
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def _wrapped(original: Any, watches: Sequence[Watch], counts: Counter[str]) -> Any:
    first = [watch for watch in watches if watch.before]
    then = [watch for watch in watches if not (watch.before or watch.raises)]
    raised = [watch for watch in watches if watch.raises is not None]

    def look(at: list[Watch], sight: Sight) -> None:
        done = False
        for watch in at:
            if watch.test is None or watch.test(sight):
                counts[watch.probe] = count = counts[watch.probe] + 1
                done |= count >= COUNTED_MAX
        if done:
            at[:] = [watch for watch in at if counts[watch.probe] < COUNTED_MAX]

    def fail(error: BaseException) -> None:
        for watch in raised:
            if watch.raises is not None and isinstance(error, watch.raises):
                counts[watch.probe] += 1

    async def seen_async(*args: Any, **named: Any) -> Any:
        if first:
            look(first, Sight(args))
        try:
            result = await original(*args, **named)
        except BaseException as error:
            fail(error)
            raise
        if then:
            look(then, Sight(args, result))
        return result

    def seen_after(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        if then:
            look(then, Sight(args, result))
        return result

    def seen(*args: Any, **named: Any) -> Any:
        if first:
            look(first, Sight(args))
        try:
            result = original(*args, **named)
        except CordwoodError as error:
            fail(error)
            raise
        if then:
            look(then, Sight(args, result))
        return result

    if inspect.iscoroutinefunction(original):
        return seen_async
    # Some functions are called for every frame, so the wrapper does only what the probe needs.
    return seen if first or raised else seen_after


def _noting_releases(original: Any, recorder: HistoryRecorder) -> Any:
    def release(self: Any, log: int, audience: Any, lsn: int) -> None:
        recorder.released(log, lsn, by=f"node {self._node}, epoch {lsn >> 32}")
        original(self, log, audience, lsn)

    return release


def _noting_stores(original: Any, recorder: HistoryRecorder) -> Any:
    def insert(self: Any, offset: int, blocks: Any) -> None:
        node = current_node()
        for block in blocks:
            header = block.header
            is_end = _is_end(block)
            recorder.block_stored(node, header.log, header.first, header.last, is_end=is_end)
        original(self, offset, blocks)

    return insert


def _is_end(block: Any) -> bool:
    by_recovery = bool(block.envelope.seal_epoch)
    return by_recovery and (not block.body or isinstance(block, AmendedBlock))


def _noting_kept(original: Any, recorder: HistoryRecorder) -> Any:
    def insert(self: Any, offset: int, blocks: Any) -> None:
        if self.read_only:
            node = current_node()
            for block in [each for each in blocks if not _is_end(each)]:
                log, first, last = block.header.log, block.header.first, block.header.last
                recorder.add(BlockKept(recorder.now_us, node, log, first, last, offset))
        original(self, offset, blocks)

    return insert


def _noting_names(original: Any, recorder: HistoryRecorder) -> Any:
    def insert(self: Any, offset: int, blocks: Any) -> None:
        for block in blocks if self.rebuilding else ():
            header, names = block.header, self.rebuilding.intersection(block.envelope.copyset)
            if names:
                place = (current_node(), header.log, header.first, header.last)
                recorder.add(BlockNames(recorder.now_us, *place, tuple(sorted(names)), offset))
        original(self, offset, blocks)

    return insert


def _noting_rebuilding(original: Any, recorder: HistoryRecorder) -> Any:
    noted: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()

    def take_members(self: Any) -> None:
        original(self)
        known = self.engine.rebuilding
        if known != noted.get(self, frozenset()):
            noted[self] = known
            node, offset = self.settings.node, self.engine.wal._space.next
            recorder.add(RebuildingKnown(recorder.now_us, node, tuple(sorted(known)), offset))

    return take_members


def _noting_storage(original: Any, recorder: HistoryRecorder) -> Any:
    def note_storage(self: Any, mine: Any) -> bool:
        is_news: bool = original(self, mine)
        if is_news:
            node, offset = self.settings.node, self.engine.wal._space.next
            recorder.add(StorageKnown(recorder.now_us, node, mine.read_only, offset))
        return is_news

    return note_storage


def _noting_told_nodesets(original: Any, recorder: HistoryRecorder) -> Any:
    async def tell_nodesets(self: Any, log: int, epoch: int, history: Any) -> None:
        await original(self, log, epoch, history)
        _note_nodesets(recorder, log, *self.nodesets.__wrapped__(self, log))

    return tell_nodesets


def _noting_nodesets(original: Any, recorder: HistoryRecorder) -> Any:
    @functools.wraps(original)
    def nodesets(self: Any, log: int) -> Any:
        told = original(self, log)
        _note_nodesets(recorder, log, *told)
        return told

    return nodesets


def _note_nodesets(recorder: HistoryRecorder, log: int, epoch: int, history: Any) -> None:
    entries = tuple(
        EpochsNodes(e.since, tuple(e.nodes), e.copies, tuple(e.locations)) for e in history
    )
    recorder.add(NodesetsKnown(recorder.now_us, current_node(), log, epoch, entries))


_NOTES = tuple(
    (find_owner(target, None), noting)
    for target, noting in (
        (SequencerRole.release, _noting_releases),
        (StorageEngine._insert, _noting_stores),
        (StorageEngine._insert, _noting_kept),
        (StorageEngine._insert, _noting_names),
        (Node.note_storage, _noting_storage),
        (Node._take_members, _noting_rebuilding),
        (StorageEngine.on_trimmed, noting_trims),
        (StorageEngine.tell_nodesets, _noting_told_nodesets),
        (StorageEngine.nodesets, _noting_nodesets),
        (Retention._trim, noting_retention),
        (Tend._trim, noting_tier_retention),
        (ReplicatedEventLog._trim, noting_event_trims),
    )
)
"""Events that are recorded where they happen."""

EPOCHS_MANY = 10

_TELLING = {AppendUnknown, AppendFailed, ReadEnded, TailAnswered, EpochTaken, NodeDumped}
"""Events that are probes by themselves, or count for a probe."""


def probes_of(history: Sequence[Event]) -> Counter[str]:
    """The probes that a history tells of."""
    counts: Counter[str] = Counter()
    taken: Counter[int] = Counter()
    for event in history:
        if type(event) not in _TELLING:
            continue  # nearly all
        if isinstance(event, AppendUnknown):
            counts["append-unknown"] += 1
        elif isinstance(event, AppendFailed):
            counts["append-failed"] += 1
        elif isinstance(event, ReadEnded) and event.error:
            counts["reader-failed"] += 1
        elif isinstance(event, TailAnswered):
            counts["tail-answered"] += 1
        elif isinstance(event, EpochTaken):
            taken[event.log] += 1
        elif isinstance(event, NodeDumped):
            counts["second-wave-held"] += sum(slots.wave > 1 for slots in event.slots)
    for _, _, stored in first_tries(history):
        counts["again-was-stored" if stored else "again-was-not-stored"] += 1
    counts["epochs-many"] = sum(count >= EPOCHS_MANY for count in taken.values())
    return +counts


def never_hit(counts: Mapping[str, int]) -> list[str]:
    """Probes that were never hit, in the order of `PROBES`."""
    return [name for name in PROBES if not counts.get(name)]
