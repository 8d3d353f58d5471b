"""Bugs of special reads: reads by keys, as Arrow, of several logs, by polling; and bugs of learning
the nodes of new epochs.

Source: docs/sources/reliability.md §6; docs/sources/logdevice.md 2.10.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from operator import length_hint
from typing import Any

import msgspec

from cordwood import node
from cordwood.block import BlockKind, Gap, Record
from cordwood.client.admin.positions import Positions
from cordwood.client.append import pending_block
from cordwood.client.blocks import HeldBlock
from cordwood.client.read import counted_out, stream_items
from cordwood.client.read.arrow_batches import BatchGatherer
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.counted_out import CountedOut
from cordwood.client.read.delivered import with_keys
from cordwood.client.read.hand import Hand, Made
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.reader import Reader
from cordwood.client.read.shared_tail import SharedTail, SubscriberQueue, Taken
from cordwood.errors import Malformed
from cordwood.layout.key_bits import key_bits
from cordwood.layout.message import AskReleased, ReleasedReply
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.object_rows import LogRows
from cordwood.layout.reading import NodeGap
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX, LogId
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Authority, NodeId, Nodeset, Replication
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.single_copy import SenderChoice
from cordwood.quorum.authority import may_be_back
from cordwood.quorum.f_majority import weigh_replies
from cordwood.sequencer.role import SequencerRole
from cordwood.sim.planted import reading_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.log_search import LogSearch
from cordwood.storage.push.own_copies import OwnCopies
from cordwood.storage.push.push_stream import PushStream
from cordwood.storage.push.read_rights import ReadRights
from cordwood.storage.push.read_streams import ReadStreams


def _one_more_filtered(
    right: Any,
    self: ReadStreams,
    stream: PushStream,
    reason: NodeGap,
    ranges: Sequence[tuple[int, int]],
) -> None:
    more = 1 if reason is NodeGap.FILTERED else 0
    right(self, stream, reason, [(first, last + more) for first, last in ranges])


def _first_key_only(
    right: Any, keys: Iterable[bytes | bytearray | memoryview | None] | None
) -> Any:
    return right(None if keys is None else list(keys)[:1])


def _keyless_pass(right: Any, items: list[Record | Gap], keys: Set[bytes]) -> Any:
    return right(items, frozenset({*keys, None}))


def _rest_dropped(
    right: Any, self: Hand, count: int, make: Callable[[tuple[Record, ...], Gap | None], Made]
) -> Any:
    taken = right(self, count, make)
    if taken.records:
        rest = self.rest()
        dropped = sum(1 for _ in itertools.takewhile(_is_record, rest))
        self._keep(rest[dropped:])
    return taken


def _is_record(item: Any) -> bool:
    return isinstance(item, Record)


def _from_the_beginning(right: Any, self: LogRows, first: int, last: int) -> Any:
    cut = right(self, first, last)
    return replace(cut, rows=self.rows.slice(0, last - first + 1))


def _counts_as_given(
    right: Any, self: BatchGatherer, name: str, piece: LogRows, first: int, last: int
) -> Any:
    self._gathered = last + 1
    return right(self, name, piece, first, last)


def _whole_block(right: Any, self: BatchGatherer, name: str, delivery: Delivery[HeldBlock]) -> Any:
    return right(self, name, Delivery(delivery.block, delivery.block.header.first, delivery.last))


def _numbered_is_released(right: Any, self: SequencerRole, ask: AskReleased) -> Any:
    told: ReleasedReply = right(self, ask)
    for index, log in enumerate(ask.logs):
        row = self._rows.get(log)
        if row is not None and row.appender is not None and told.released[index]:
            told.released[index] = max(told.released[index], row.appender._window.next - 1)
    return told


def _newest_for_all(right: Any, self: StorageEngine, log: int) -> tuple[int, list[EpochNodes]]:
    epoch, history = right(self, log)
    newest = history[-1:]
    return epoch, [msgspec.structs.replace(each, since=1) for each in newest]


def _without_newest(right: Any, self: StorageEngine, log: int) -> tuple[int, list[EpochNodes]]:
    epoch, history = right(self, log)
    return epoch, history[:-1] or history


def _lost_are_down(
    right: Any,
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> Any:
    down = {
        node: Authority.UNAVAILABLE if status is Authority.UNDER_REPLICATED else status
        for node, status in statuses.items()
    }
    return right(heard, nodeset, replication, down)


def _told_is_forgotten(right: Any, self: StorageEngine, offset: int, body: memoryview) -> None:
    right(self, offset, body)
    for held in self.cache.logs.values():
        held.nodesets = (0, b"")


async def _learnt_only_in_use(self: ReadRights) -> None:
    changes = self._changes
    logs = dict.fromkeys(self.in_use())
    await self._learn([*logs])
    self._seen = changes
    self._digests = {log: each for log, each in self._digests.items() if log in logs}
    self._current = {*logs}
    for log in logs:
        self.on_known(log)


async def _one_unread_fails_all(right: Any, self: ReadRights, logs: list[int]) -> Any:
    for log in logs:
        await self._tree.of_one_moment(LogId(log))
    return await right(self, logs)


async def _listed_whole_or_not_at_all(
    right: Any,
    self: LogTree,
    prefix: str = "/",
    *,
    only_readable: bool = False,
    unread: dict[str, Malformed] | None = None,
) -> Any:
    return await right(self, prefix)


def _unknown_is_free(right: Any, self: ReadRights, log: int, token: str) -> Any:
    return right(self, log, token) is not False


def _past_the_released(right: Any, self: ReadStreams, stream: PushStream) -> Any:
    return min(stream.until, LSN_MAX)


class _Seen:
    """A block with another envelope, as far as a share looks at it."""

    def __init__(self, block: Any, copyset: Any) -> None:
        self.header = block.header
        self.envelope = replace(block.envelope, copyset=copyset)


def _copyset_before(right: Any, self: OwnCopies, block: StoredBlock) -> Any:
    mine: dict[Any, Any] = self._mine
    before = mine.get((), block.envelope.copyset)
    answer = right(self, _Seen(block, before))
    if block.header.kind == BlockKind.DATA:
        mine[()] = block.envelope.copyset
    return answer


def _nothing_missed(right: Any, self: SharedTail, member: ReadStream) -> Any:
    made = right(self, member)
    while made is not None and made.take() is not None:
        pass
    return made


def _slow_skip(right: Any, self: SubscriberQueue) -> Any:
    if self.is_over:
        while self.member is not None and (last := right(self)) is not None:
            self.member._buffer.next = last.last + 1
        return None
    return right(self)


def _slow_untold(right: Any, self: SubscriberQueue, items: Sequence[Taken], size: int) -> None:
    right(self, items, size)
    if self.is_over:
        self._tail.leave(self)
        self.is_over = False


def _dropped_skip(right: Any, self: SubscriberQueue) -> None:
    last = self._waiting[-1].last if self._waiting else 0
    right(self)
    if last and self.is_empty and self.member is not None:
        self.member._buffer.next = last + 1


def _at_work_is_done(right: Any, self: Hand, after: int) -> Any:
    given = len(self.opened) - length_hint(self.items)
    if given and given < len(self.opened):
        item = self.opened[given]
        return int(item.lsn if isinstance(item, Record) else item.first)
    return right(self, after)


async def _cancelled_goes_on(right: Any, self: Consumer, timeout_s: float | None = None) -> Any:
    filling = asyncio.ensure_future(right(self, timeout_s))
    try:
        return await asyncio.shield(filling)
    except asyncio.CancelledError:
        # No caller receives its answer.
        filling.add_done_callback(lambda done: done.cancelled() or self._reader.item())
        raise


def _left_is_over(right: Any, self: Reader, count: int) -> Any:
    if self._up is not None and len(self._up.hand.rest()) < len(self._up.hand.opened):
        self._up.hand.take_rest()
    return right(self, count)


async def _cached_only(right: Any, self: LogSearch, log: int, held: CachedLog, until: int) -> Any:
    blocks = [b.header for b in held.blocks if b.header.kind == BlockKind.DATA]
    return next((each for each in reversed(blocks) if each.first <= until), None)


def _always_enough(right: Any, self: Positions, info: Any, tail: Any, heard: Any) -> bool:
    return True


FIRST_KEY_ONLY = PlantedBug(
    "first-key-only", "a block's header has the key bits of its first record only",
    at(key_bits, within=pending_block).around(_first_key_only), scenario=scenarios.MANNERS,
)  # fmt: skip
"""A special scenario also proves filters by key (tests/client/read/test_read_bugs.py)."""

BUGS = (
    PlantedBug("filters-one-more", "a node leaves out one record more than it reports as filtered",
               at(ReadStreams.tell_gaps).around(_one_more_filtered), scenario=scenarios.MANNERS),
    FIRST_KEY_ONLY,
    PlantedBug("keyless-pass", "a reader that filters by key is also given records without a key",
               at(with_keys, within=stream_items).around(_keyless_pass), scenario=scenarios.MANNERS),
    PlantedBug("rest-dropped", "the part of a block that does not fit into a batch is dropped",
               at(Hand.take_portion).around(_rest_dropped), scenario=scenarios.MANNERS),
    PlantedBug("arrow-not-clipped", "the first batch of a read that begins inside a block has "
                                    "the whole block",
               at(BatchGatherer.add).around(_whole_block), scenario=scenarios.MANNERS),
    PlantedBug("run-not-cut", "a batch of rows of main storage has the rows from the piece's "
                              "beginning",
               at(LogRows.cut).around(_from_the_beginning),
               scene="tests/tier/test_columns_of_objects.py"),
    PlantedBug("run-counts-as-given", "blocks of main storage count as given out while their rows "
                                      "wait for a batch",
               at(BatchGatherer._add_to_run).around(_counts_as_given),
               scene="tests/tier/test_columns_of_objects.py"),
    PlantedBug("numbered-is-released", "a client that polls is told an LSN that is not "
                                       "acknowledged yet",
               at(SequencerRole.released).around(_numbered_is_released),
               scenario=scenarios.MANNERS),
    PlantedBug("extent-of-cache", "a node reports its last record in memory as the last record "
                                  "of the log",
               at(LogSearch.last_record).around(_cached_only), scenario=scenarios.TIMES),
    PlantedBug("extent-for-sure", "a client treats a log's bounds as certain although few nodes "
                                  "answered",
               at(Positions.is_enough).around(_always_enough), scenario=reading_scenarios.BOUNDS),
    PlantedBug("newest-for-all", "nodes report the newest nodeset for every epoch",
               at(StorageEngine.nodesets).around(_newest_for_all), scenario=scenarios.NODESETS),
    PlantedBug("nodesets-lag", "nodes report a new epoch without its nodeset",
               at(StorageEngine.nodesets).around(_without_newest), scenario=scenarios.NODESETS),
    PlantedBug("nodesets-forgotten", "a node forgets the nodesets of its logs when it restarts",
               at(StorageEngine.replay).around(_told_is_forgotten),
               scenario=scenarios.NODESETS),
    PlantedBug("stale-copyset", "a node uses the copyset of the block before, and readers never "
                                "ask all nodes",
               together(at(OwnCopies.part).around(_copyset_before),
                        at(SenderChoice.on_suspicion).instead(lambda self: None)),
               scenario=reading_scenarios.SPREAD),
    PlantedBug("ahead-unreleased", "a node reads ahead past the last released LSN",
               at(ReadStreams.readable_upto).around(_past_the_released), scenario=reading_scenarios.COLD),
    PlantedBug("missed-forgotten", "a reader that joins a shared tail misses the records before "
                                   "its arrival",
               at(SharedTail.subscribe).around(_nothing_missed), scenario=reading_scenarios.CROWDED),
    PlantedBug("slow-skip", "a reader too slow for a shared tail skips the records in its queue",
               at(SubscriberQueue.take).around(_slow_skip), scenario=reading_scenarios.CROWDED),
    PlantedBug("slow-untold", "a reader too slow for a shared tail gets nothing more, and waits",
               at(SubscriberQueue.give).around(_slow_untold),
               scenario=reading_scenarios.QUEUED),
    PlantedBug("dropped-skip", "a reader too slow for a shared tail skips the records that its "
                               "queue dropped",
               at(SubscriberQueue.stop_queue).around(_dropped_skip),
               scenario=reading_scenarios.CRAMPED),
    PlantedBug("old-statuses", "a node that has long not heard of the members calls a node empty that "
                               "is back with its data",
               at(may_be_back, within=node).instead(lambda members, sure: tuple(members)),
               scene="tests/client/read/test_authoritative_status.py"),
    PlantedBug("counted-out-long-ago", "a reader counts nodes out by statuses from before their return",
               at(CountedOut.upto).instead(lambda self: LSN_MAX + 1),
               scene="tests/client/read/test_old_statuses.py"),
    PlantedBug("lost-are-down", "a reader waits for a node whose data is permanently lost",
               at(weigh_replies, within=counted_out).around(_lost_are_down), scenario=reading_scenarios.LOST),
    PlantedBug("at-work-is-done", "a consumer's position passes the item that a loop still "
                                  "works on",
               at(Hand.next_lsn).around(_at_work_is_done), scenario=scenarios.CONSUMERS),
    PlantedBug("cancelled-goes-on", "a cancelled call later takes an item, which is then lost",
               at(Consumer.fill).around(_cancelled_goes_on),
               scenario=scenarios.CONSUMERS),
    PlantedBug("left-is-over", "the remaining items of a loop that was left are dropped by the "
                               "next read",
               at(Reader.portion).around(_left_is_over), scenario=scenarios.CONSUMERS),
    PlantedBug("idle-rights-forgotten", "a node forgets the read tokens of logs without readers: a "
               "read that begins in an outage of the metadata store waits for the end of the outage",
               at(ReadRights._learn_again).instead(_learnt_only_in_use),
               scene="tests/client/read/test_read_rights.py"),
    PlantedBug("one-unread-fails-all", "a log whose entry a node cannot read holds up the reads, and "
               "the changes, of all other logs there",
               together(at(ReadRights._learn).around(_one_unread_fails_all),
                        at(LogTree.list).around(_listed_whole_or_not_at_all)),
               scene="tests/client/read/test_read_rights.py"),
    PlantedBug("rights-unchecked", "a node lets every reader in until it has looked the log's "
                                   "read token up",
               at(ReadRights.may_read).around(_unknown_is_free),
               scenario=scenarios.RIGHTS),
)  # fmt: skip
