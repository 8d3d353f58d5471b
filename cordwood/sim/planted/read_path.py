"""Bugs of readers: wrong conclusions from silence, and omitted records.

Source: docs/sources/reliability.md §1 (Jepsen's poll-skip), §6.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any

from cordwood.block import BlockKind, Gap, GapKind
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import Cluster
from cordwood.client.find.log_info import LogInfo as LogInfo
from cordwood.client.read import counted_out
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.senders import Senders
from cordwood.layout.reading import BlocksHead, ReadRequest
from cordwood.lsn import ESN_MAX, Lsn
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.gap_detection import Delivery, Item, Judge, ReadBuffer, _LeftOut
from cordwood.protocol.single_copy import Doubt, SenderChoice
from cordwood.protocol.slow_nodes import Change, SlowNodes
from cordwood.quorum import f_majority
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.recent_blocks import RecentBlocks
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.push.shared_push import Pushes
from cordwood.wire.connection import Connection

HEARD = QuorumVerdict.COMPLETE

TWICE_RECORDS_MIN = 16
"""Blocks that are delivered twice have at least this many records."""


def _skips(right: Any, self: ReadBuffer[Any], judge: Judge | None, **rest: Any) -> Any:
    taken = right(self, judge, **rest)
    if isinstance(taken, Delivery) and taken.first % 97 == 0:
        return right(self, judge, **rest)
    return taken


def _loss_without_all(
    right: Any, self: ReadBuffer[Any], judge: Judge, grace_over: bool
) -> Gap | None:
    two = len(self._markers) >= 2
    gap: Gap | None = right(self, lambda heard: HEARD if two else judge(heard), grace_over)
    return gap


def _delivered_twice(right: Any, self: ReadBuffer[Any], judge: Judge | None, **rest: Any) -> Any:
    before = self.next
    taken = right(self, judge, **rest)
    is_large = isinstance(taken, Delivery) and taken.last - taken.first + 1 >= TWICE_RECORDS_MIN
    if is_large and notes_of(self).get("twice") != taken.first:
        notes_of(self)["twice"] = taken.first
        self.next = before
        self.on_block(taken.block)
    return taken


def _not_clipped(right: Any, self: ReadBuffer[Any], block: Item | _LeftOut) -> Any:
    taken = right(self, block)
    if isinstance(taken, Delivery):
        return Delivery(taken.block, taken.block.header.first, taken.last)
    return taken


def _one_copy_more(
    right: Any,
    heard: Set[NodeId],
    rest: Iterable[tuple[Member, Authority]],
    scope: str,
    copies: int,
) -> bool:
    return bool(right(heard, rest, scope, copies + 1))


def _goes_back(right: Any, self: ReadBuffer[Any]) -> None:
    right(self)
    if self.next & ESN_MAX > 1:
        self.next -= 1


def _one_farther(right: Any, self: ReadBuffer[Any], node: NodeId) -> Any:
    return right(self, node) + 1


def _bridge_too_long(right: Any, self: ReadBuffer[Any], block: Item | _LeftOut) -> Any:
    taken = right(self, block)
    if isinstance(taken, Gap) and taken.kind is GapKind.BRIDGE and self.next <= self.until:
        self.next += 1
        return Gap(taken.first, Lsn(taken.last + 1), taken.kind)
    return taken


def _stale_order(
    right: Any,
    self: Senders,
    node: NodeId,
    connection: Connection,
    head: BlocksHead,
    blocks: Sequence[HeldBlock],
) -> Any:
    source = self.sources.get(node)
    if source is not None and source.connection is connection:
        source.version = self.choice.version
    return right(self, node, connection, head, blocks)


def _share_unseen(right: Any, self: Pushes, key: Hashable) -> Any:
    def place(of: Any) -> Any:
        return of[:2]

    return next((push for of, push in self._by_key.items() if place(of) == place(key)), None)


def _kept_says_all(right: Any, self: RecentBlocks, log: int) -> int | None:
    return None if right(self, log) is None else 1


def _filter_kept(
    right: Any,
    self: ReadStreams,
    connection: Connection,
    request: ReadRequest,
    *rest: Any,
    **named: Any,
) -> None:
    before = self._by_connection.get(connection, {}).get(request.stream)
    right(self, connection, request, *rest, **named)
    stream = self._by_connection[connection][request.stream]
    if stream.share is None and before is not None and before.share is not None:
        stream.share = before.share
        stream.wanted = before.share.part


def _batch_says_all(
    right: Any, self: LogReader, log: int, start: int, bound: int, *rest: Any, **limits: Any
) -> Any:
    run = right(self, log, start, bound, *rest, **limits)
    return run._replace(next=max(run.next, bound + 1)) if run.blocks else run


def _asked_again(right: Any, self: ReadBuffer[Any], node: NodeId) -> None:
    seen = notes_of(self).setdefault("seen", set())
    if node in seen:
        notes_of(self).setdefault("again", set()).add(node)
    seen.add(node)
    right(self, node)


def _out_of_order(right: Any, self: ReadBuffer[Any], judge: Judge | None, **rest: Any) -> Any:
    taken = right(self, judge, **rest)
    if taken is not None or not self._heap or self.is_done:
        return taken
    block = self._heap[0][3]
    again = getattr(block, "node", None) in notes_of(self).get("again", ())
    if not again or block.header.kind != BlockKind.DATA or block.header.last > self.until:
        return taken
    heapq.heappop(self._heap)
    return Delivery(block, block.header.first, block.header.last)


def _down_not_told(right: Any, self: SenderChoice, node: NodeId, why: Doubt) -> None:
    due = self._due
    right(self, node, why)
    self._due = due


def _epoch_guessed(right: Any, self: Cluster, info: LogInfo, epoch: int) -> Any:
    return right(self, info, min(epoch, info.epoch))


def _empty_is_full(
    right: Any,
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> Any:
    there = {n: s for n, s in statuses.items() if s is not Authority.AUTHORITATIVE_EMPTY}
    return right(heard, nodeset, replication, there)


async def _saved_before(right: Any, self: Consumer, *given: Any, **named: Any) -> Any:
    portion = await right(self, *given, **named)
    await self.save()
    return portion


def _trim_is_silence(right: Any, self: ReadBuffer[Any], trim: int) -> Any:
    return False


BUGS = (
    PlantedBug("reader-skips", "a reader leaves out a block now and then",
               at(ReadBuffer.take).around(_skips)),
    PlantedBug("loss-without-all", "a reader concludes a loss from two nodes",
               at(ReadBuffer.judge_loss).around(_loss_without_all), scenario=scenarios.READERS),
    PlantedBug("delivered-twice", "a reader delivers a large block twice",
               at(ReadBuffer.take).around(_delivered_twice),
               scenario=scenarios.LARGE_BLOCKS),
    PlantedBug("not-clipped", "a read that begins inside a block delivers all of it",
               at(ReadBuffer.deliver_block).around(_not_clipped)),
    PlantedBug("window-stands-still", "a reader never moves its window",
               at(Senders.move_window).instead(lambda self: None)),
    PlantedBug("loss-of-single-copies", "a reader reports records as lost that other nodes send",
               together(at(ReadStream.may_conclude).instead(lambda self: True),
                        at(ReadStream.is_grace_over).instead(lambda self: True)),
               scenario=scenarios.READERS),
    PlantedBug("gap-at-one-less", "one node fewer than an f-majority is enough for a loss",
               together(at(f_majority.meets).around(_one_copy_more),
                        at(ReadStream.is_grace_over).instead(lambda self: True)),
               scenario=scenarios.READERS),
    PlantedBug("rewind-goes-back", "a rewind begins below records that were already given out",
               at(ReadBuffer.rewind).around(_goes_back), scenario=scenarios.READERS),
    PlantedBug("marker-off-by-one", "a node counts as having passed the next LSN that it will "
                                    "send",
               at(ReadBuffer.knows_upto).around(_one_farther), scenario=scenarios.READERS),
    PlantedBug("bridge-swallows-first", "a bridge covers the first record of the next epoch too",
               at(ReadBuffer.deliver_block).around(_bridge_too_long)),
    PlantedBug("trim-is-loss", "a reader reports trimmed records as lost",
               at(ReadBuffer.on_trim).around(_trim_is_silence), scenario=scenarios.TRIMS),
    PlantedBug("credit-runs-out", "a reader never lets nodes send more",
               at(Senders.grant_credit).instead(lambda self, source: None)),
    PlantedBug("window-update-lost", "nodes never hear that a reader's window moved",
               at(ReadStreams.move_window).instead(lambda *_: None)),
    PlantedBug("wake-up-lost", "a later release does not wake a reader at the tail",
               at(ReadStreams.on_change).instead(lambda self, log: None)),
    PlantedBug("batch-says-all", "a node that sent one batch reports that it sent everything "
                                 "released",
               at(LogReader.read_cached).around(_batch_says_all)),
    PlantedBug("reorder-on-reconnect", "records from a node that was asked again are given out "
                                       "at once",
               together(at(ReadBuffer.on_connected).around(_asked_again),
                        at(ReadBuffer.take).around(_out_of_order)), scenario=scenarios.READERS),
    PlantedBug("share-unseen", "a stream that asks for all copies is sent the share of another "
                               "stream",
               together(at(Pushes.find).around(_share_unseen),
                        at(ReadStream.is_grace_over).instead(lambda self: True)),
               scenario=scenarios.READERS),
    PlantedBug("kept-says-all", "the blocks that stayed in memory after a flush count as all "
                                "blocks of the log",
               at(RecentBlocks.complete_from).around(_kept_says_all)),
)  # fmt: skip

EMPTY_IS_FULL = PlantedBug(
    "empty-is-full", "a reader waits for a node whose data was rebuilt elsewhere",
    at(weigh_replies, within=counted_out).around(_empty_is_full),
)  # fmt: skip
EPOCH_GUESSED = PlantedBug(
    "epoch-guessed", "a reader treats an unknown nodeset as equal to the nodeset before",
    at(Cluster.nodeset_of).around(_epoch_guessed),
)  # fmt: skip
BAD_COPY_IS_ABSENT = PlantedBug(
    "bad-copy-is-absent", "a node with a damaged copy counts as a node without a copy",
    at(ReadBuffer.on_bad_copy).instead(lambda self, node, first, last: None),
)  # fmt: skip
NEVER_GREYLISTED = PlantedBug(
    "never-greylisted", "a reader counts on a slow node for ever",
    at(SlowNodes.decide).instead(lambda *_: Change()),
)  # fmt: skip
STALE_ORDER = PlantedBug(
    "stale-order", "records that a node sent by an older order count for the present order",
    together(at(Senders.on_blocks).around(_stale_order),
                        at(ReadStream.is_grace_over).instead(lambda self: True)),
)  # fmt: skip
KNOWN_DOWN_NOT_TOLD = PlantedBug(
    "known-down-not-told", "nodes are not asked again when the reader stops counting on a node",
    together(at(SenderChoice.on_doubt).around(_down_not_told),
                        at(SenderChoice.on_suspicion).instead(lambda self: None)),
)  # fmt: skip
SAVED_BEFORE = PlantedBug(
    "saved-before", "records that a consumer is about to be given count as dealt with",
    at(Consumer.read).around(_saved_before),
)  # fmt: skip
FILTER_KEPT = PlantedBug(
    "filter-kept", "a node that is asked for all copies still sends only its share",
    together(at(ReadStreams.start).around(_filter_kept),
                        at(ReadStream.is_grace_over).instead(lambda self: True)),
)  # fmt: skip

SCENES = (
    EMPTY_IS_FULL, EPOCH_GUESSED, BAD_COPY_IS_ABSENT, NEVER_GREYLISTED, SAVED_BEFORE,
    STALE_ORDER, KNOWN_DOWN_NOT_TOLD, FILTER_KEPT,
)  # fmt: skip
"""Each of these bugs needs a case that seeds do not have, or seldom: a status set by hand, a
damaged copy on every node, a consumer that dies, a reader that stays while a node is gone. Special
scenarios catch them (tests/client/read/test_read_bugs.py)."""
