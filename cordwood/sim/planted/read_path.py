"""Bugs of readers: what they conclude from silence, and what they leave out.

Source: docs/sources/reliability.md §1 (Jepsen's poll-skip), §6.
"""

from __future__ import annotations

import heapq
from typing import Any

from cordwood.block import BlockKind, Gap, GapKind
from cordwood.lsn import ESN_MAX, Lsn
from cordwood.nodes import Authority
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.slow_nodes import Change
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_BUFFER = "protocol.gap_detection:ReadBuffer"
_STREAM = "client.read.read_stream:ReadStream"
_SENDERS = "client.read.senders:Senders"
_CHOICE = "protocol.single_copy:SenderChoice"
_STREAMS = "storage.push.read_streams:ReadStreams"

HEARD = QuorumVerdict.COMPLETE

TWICE_RECORDS_MIN = 16
"""Blocks that are delivered twice have at least so many records."""


def _skips(right: Any) -> Any:
    def take(self: Any, judge: Any, **rest: Any) -> Any:
        taken = right(self, judge, **rest)
        if isinstance(taken, Delivery) and taken.first % 97 == 0:
            return right(self, judge, **rest)
        return taken

    return take


def _loss_without_all(right: Any) -> Any:
    def lost(self: Any, judge: Any, grace_over: bool) -> Gap | None:
        two = len(self._markers) >= 2
        gap: Gap | None = right(self, lambda heard: HEARD if two else judge(heard), grace_over)
        return gap

    return lost


def _delivered_twice(right: Any) -> Any:
    def take(self: Any, judge: Any, **rest: Any) -> Any:
        before = self.next
        taken = right(self, judge, **rest)
        is_large = isinstance(taken, Delivery) and taken.last - taken.first + 1 >= TWICE_RECORDS_MIN
        if is_large and getattr(self, "_planted_twice", None) != taken.first:
            self._planted_twice = taken.first
            self.next = before
            self.on_block(taken.block)
        return taken

    return take


def _not_clipped(right: Any) -> Any:
    def deliver(self: Any, block: Any) -> Any:
        taken = right(self, block)
        if isinstance(taken, Delivery):
            return Delivery(taken.block, taken.block.header.first, taken.last)
        return taken

    return deliver


def _one_copy_more(right: Any) -> Any:
    def meets(heard: Any, rest: Any, scope: str, copies: int) -> bool:
        return bool(right(heard, rest, scope, copies + 1))

    return meets


def _goes_back(right: Any) -> Any:
    def rewind(self: Any) -> None:
        right(self)
        if self.next & ESN_MAX > 1:
            self.next -= 1

    return rewind


def _one_farther(right: Any) -> Any:
    return lambda self, node: right(self, node) + 1


def _bridge_too_long(right: Any) -> Any:
    def deliver(self: Any, block: Any) -> Any:
        taken = right(self, block)
        if isinstance(taken, Gap) and taken.kind is GapKind.BRIDGE and self.next <= self.until:
            self.next += 1
            return Gap(taken.first, Lsn(taken.last + 1), taken.kind)
        return taken

    return deliver


def _stale_order(right: Any) -> Any:
    def on_blocks(self: Any, node: Any, connection: Any, head: Any, blocks: Any) -> Any:
        source = self.sources.get(node)
        if source is not None and source.connection is connection:
            source.version = self.choice.version
        return right(self, node, connection, head, blocks)

    return on_blocks


def _share_unseen(right: Any) -> Any:
    def find(self: Any, key: Any) -> Any:
        place = key[:2]
        return next((push for of, push in self._by_key.items() if of[:2] == place), None)

    return find


def _kept_says_all(right: Any) -> Any:
    def complete_from(self: Any, log: int) -> int | None:
        return None if right(self, log) is None else 1

    return complete_from


def _filter_kept(right: Any) -> Any:
    def start(self: Any, connection: Any, request: Any, *rest: Any) -> None:
        before = self._by_connection.get(connection, {}).get(request.stream)
        right(self, connection, request, *rest)
        stream = self._by_connection[connection][request.stream]
        if stream.share is None and before is not None and before.share is not None:
            stream.share = before.share
            stream.wanted = before.share.part

    return start


def _batch_says_all(right: Any) -> Any:
    def read_cached(self: Any, log: Any, start: Any, bound: int, *rest: Any, **limits: Any) -> Any:
        run = right(self, log, start, bound, *rest, **limits)
        return run._replace(next=max(run.next, bound + 1)) if run.blocks else run

    return read_cached


def _asked_again(right: Any) -> Any:
    def on_connected(self: Any, node: Any) -> None:
        seen = self.__dict__.setdefault("_planted_seen", set())
        if node in seen:
            self.__dict__.setdefault("_planted_again", set()).add(node)
        seen.add(node)
        right(self, node)

    return on_connected


def _out_of_order(right: Any) -> Any:
    def take(self: Any, judge: Any, **rest: Any) -> Any:
        taken = right(self, judge, **rest)
        if taken is not None or not self._heap or self.is_done:
            return taken
        block = self._heap[0][3]
        again = getattr(block, "node", None) in self.__dict__.get("_planted_again", ())
        if not again or block.header.kind != BlockKind.DATA or block.header.last > self.until:
            return taken
        heapq.heappop(self._heap)
        return Delivery(block, block.header.first, block.header.last)

    return take


def _down_not_told(right: Any) -> Any:
    def on_doubt(self: Any, node: Any, why: Any) -> None:
        due = self._due
        right(self, node, why)
        self._due = due

    return on_doubt


def _epoch_guessed(right: Any) -> Any:
    def nodeset_of(self: Any, info: Any, epoch: int) -> Any:
        return right(self, info, min(epoch, info.epoch))

    return nodeset_of


def _empty_is_full(right: Any) -> Any:
    def weigh_replies(heard: Any, nodeset: Any, replication: Any, statuses: Any) -> Any:
        there = {n: s for n, s in statuses.items() if s is not Authority.AUTHORITATIVE_EMPTY}
        return right(heard, nodeset, replication, there)

    return weigh_replies


def _saved_before(right: Any) -> Any:
    async def read(self: Any, *given: Any, **named: Any) -> Any:
        portion = await right(self, *given, **named)
        await self.save()
        return portion

    return read


def _trim_is_silence(right: Any) -> Any:
    return lambda self, trim: False


BUGS = (
    PlantedBug("reader-skips", "a reader leaves out a block now and then",
               changed({f"{_BUFFER}.take": _skips})),
    PlantedBug("loss-without-all", "a reader concludes a loss from two nodes",
               changed({f"{_BUFFER}._lost": _loss_without_all}), scenario=scenarios.READERS),
    PlantedBug("delivered-twice", "a reader delivers a large block twice",
               changed({f"{_BUFFER}.take": _delivered_twice}),
               scenario=scenarios.LARGE_BLOCKS),
    PlantedBug("not-clipped", "a read that begins inside a block delivers all of it",
               changed({f"{_BUFFER}._deliver": _not_clipped})),
    PlantedBug("window-stands-still", "a reader never moves its window",
               changed({f"{_SENDERS}.move_window": instead(lambda self: None)})),
    PlantedBug("loss-of-single-copies", "a reader takes what others send for lost",
               changed({f"{_STREAM}._may_conclude": instead(lambda self: True),
                        f"{_STREAM}._is_grace_over": instead(lambda self: True)}),
               scenario=scenarios.READERS),
    PlantedBug("gap-at-one-less", "one node fewer than an f-majority is enough for a loss",
               changed({"quorum.f_majority:_meets": _one_copy_more,
                        f"{_STREAM}._is_grace_over": instead(lambda self: True)}),
               scenario=scenarios.READERS),
    PlantedBug("rewind-goes-back", "a rewind begins before what was given out already",
               changed({f"{_BUFFER}.rewind": _goes_back}), scenario=scenarios.READERS),
    PlantedBug("marker-off-by-one", "a node counts as past the LSN that it comes to next",
               changed({f"{_BUFFER}._knows_upto": _one_farther}), scenario=scenarios.READERS),
    PlantedBug("bridge-swallows-first", "a bridge covers the first record of the next epoch too",
               changed({f"{_BUFFER}._deliver": _bridge_too_long})),
    PlantedBug("trim-is-loss", "a reader takes what was trimmed for lost",
               changed({f"{_BUFFER}.on_trim": _trim_is_silence}), scenario=scenarios.TRIMS),
    PlantedBug("credit-runs-out", "a reader never lets nodes send more",
               changed({f"{_SENDERS}._grant": instead(lambda self, source: None)})),
    PlantedBug("window-update-lost", "a node never hears that a reader's window moved",
               changed({f"{_STREAMS}.move_window": instead(lambda *_: None)})),
    PlantedBug("wake-up-lost", "what is released later wakes no reader at the tail",
               changed({f"{_STREAMS}.on_change": instead(lambda self, log: None)})),
    PlantedBug("batch-says-all", "a node that sent a batch says that it has sent all it may",
               changed({"storage.log_reader:LogReader.read_cached": _batch_says_all})),
    PlantedBug("reorder-on-reconnect", "what comes from a node asked again is given out at once",
               changed({f"{_BUFFER}.on_connected": _asked_again,
                        f"{_BUFFER}.take": _out_of_order}), scenario=scenarios.READERS),
    PlantedBug("share-unseen", "a stream that asks for all is sent the share of one beside it",
               changed({"storage.push.shared_push:Pushes.find": _share_unseen,
                        f"{_STREAM}._is_grace_over": instead(lambda self: True)}),
               scenario=scenarios.READERS),
    PlantedBug("kept-says-all", "what stayed in memory after a flush counts as all there is",
               changed({"storage.logs_db.recent_blocks:RecentBlocks.complete_from": _kept_says_all})),
)  # fmt: skip

EMPTY_IS_FULL = PlantedBug(
    "empty-is-full", "a node whose data lies elsewhere by now is waited for",
    changed({"client.read.read_stream:weigh_replies": _empty_is_full}),
)  # fmt: skip
EPOCH_GUESSED = PlantedBug(
    "epoch-guessed", "an epoch whose nodeset is not known is taken to have the one before it",
    changed({"client.cluster:Cluster.nodeset_of": _epoch_guessed}),
)  # fmt: skip
BAD_COPY_IS_ABSENT = PlantedBug(
    "bad-copy-is-absent", "a node whose copy is damaged counts as one that has none",
    changed({f"{_BUFFER}.on_bad_copy": instead(lambda self, node, first, last: None)}),
)  # fmt: skip
NEVER_GREYLISTED = PlantedBug(
    "never-greylisted", "a slow node is counted on for ever",
    changed({"protocol.slow_nodes:SlowNodes.decide": instead(lambda *_: Change())}),
)  # fmt: skip
STALE_ORDER = PlantedBug(
    "stale-order", "what a node sent by an older order counts for the present one",
    changed({f"{_SENDERS}.on_blocks": _stale_order,
             f"{_STREAM}._is_grace_over": instead(lambda self: True)}),
)  # fmt: skip
KNOWN_DOWN_NOT_TOLD = PlantedBug(
    "known-down-not-told", "nodes are not asked anew when one is counted on no more",
    changed({f"{_CHOICE}.on_doubt": _down_not_told,
             f"{_CHOICE}.on_suspicion": instead(lambda self: None)}),
)  # fmt: skip
SAVED_BEFORE = PlantedBug(
    "saved-before", "what a consumer is about to be given counts as dealt with",
    changed({"client.read.consumer:Consumer.read": _saved_before}),
)  # fmt: skip
FILTER_KEPT = PlantedBug(
    "filter-kept", "a node that is asked for all goes on to send its share only",
    changed({f"{_STREAMS}.start": _filter_kept,
             f"{_STREAM}._is_grace_over": instead(lambda self: True)}),
)  # fmt: skip

SCENES = (
    EMPTY_IS_FULL, EPOCH_GUESSED, BAD_COPY_IS_ABSENT, NEVER_GREYLISTED, SAVED_BEFORE,
    STALE_ORDER, KNOWN_DOWN_NOT_TOLD, FILTER_KEPT,
)  # fmt: skip
"""Each needs what a seed does not do, or seldom: a status set by hand, a damaged copy on every
node, a consumer that dies, a reader that stays while a node is gone. Scenarios of their own
catch them (tests/client/read/test_read_bugs.py)."""
