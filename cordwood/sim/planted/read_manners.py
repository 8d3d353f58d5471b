"""Bugs of readers that do not read everything by themselves: of keys, Arrow, several logs, polling,
and of what they learn about new epochs' nodes.

Source: docs/sources/reliability.md §6; docs/sources/logdevice.md 2.10.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from operator import length_hint
from typing import Any

import msgspec

from cordwood.block import BlockKind, Record
from cordwood.layout.message import EpochNodes, ReleasedReply
from cordwood.layout.reading import NodeGap
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Authority
from cordwood.protocol.gap_detection import Delivery
from cordwood.sim.planted import reading_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_CHOICE = "protocol.single_copy:SenderChoice"
_STREAMS = "storage.push.read_streams:ReadStreams"
_TAIL = "client.read.shared_tail:SharedTail"


def _one_more_filtered(right: Any) -> Any:
    def tell(self: Any, stream: Any, reason: Any, ranges: Sequence[tuple[int, int]]) -> None:
        more = 1 if reason is NodeGap.FILTERED else 0
        right(self, stream, reason, [(first, last + more) for first, last in ranges])

    return tell


def _first_key_only(right: Any) -> Any:
    return lambda keys: right(None if keys is None else list(keys)[:1])


def _keyless_pass(right: Any) -> Any:
    def with_keys(items: Any, keys: Any) -> Any:
        return right(items, frozenset({*keys, None}))

    return with_keys


def _rest_dropped(right: Any) -> Any:
    def take_portion(self: Any, count: int, make: Any) -> Any:
        taken = right(self, count, make)
        if taken.records:
            rest = self.rest()
            dropped = sum(1 for _ in itertools.takewhile(_is_record, rest))
            self._keep(rest[dropped:])
        return taken

    return take_portion


def _is_record(item: Any) -> bool:
    return isinstance(item, Record)


def _whole_block(right: Any) -> Any:
    def add(self: Any, name: str, delivery: Any) -> Any:
        return right(
            self, name, Delivery(delivery.block, delivery.block.header.first, delivery.last)
        )

    return add


def _numbered_is_released(right: Any) -> Any:
    def released(self: Any, ask: Any) -> Any:
        told: ReleasedReply = right(self, ask)
        for at, log in enumerate(ask.logs):
            row = self._rows.get(log)
            if row is not None and row.appender is not None and told.released[at]:
                told.released[at] = max(told.released[at], row.appender._window.next - 1)
        return told

    return released


def _newest_for_all(right: Any) -> Any:
    def nodesets(self: Any, log: int) -> tuple[int, list[EpochNodes]]:
        epoch, history = right(self, log)
        newest = history[-1:]
        return epoch, [msgspec.structs.replace(each, since=1) for each in newest]

    return nodesets


def _without_newest(right: Any) -> Any:
    def nodesets(self: Any, log: int) -> tuple[int, list[EpochNodes]]:
        epoch, history = right(self, log)
        return epoch, history[:-1] or history

    return nodesets


def _lost_are_down(right: Any) -> Any:
    def weigh_replies(heard: Any, nodeset: Any, replication: Any, statuses: Any) -> Any:
        down = {
            node: Authority.UNAVAILABLE if status is Authority.UNDER_REPLICATED else status
            for node, status in statuses.items()
        }
        return right(heard, nodeset, replication, down)

    return weigh_replies


def _told_is_forgotten(right: Any) -> Any:
    def replay(self: Any, offset: int, body: memoryview) -> None:
        right(self, offset, body)
        for held in self.cache.logs.values():
            held.nodesets = (0, b"")

    return replay


def _unknown_is_free(right: Any) -> Any:
    return lambda self, log, token: right(self, log, token) is not False


def _past_the_released(right: Any) -> Any:
    return lambda self, stream: min(stream.until, LSN_MAX)


class _Seen:
    """A block with another envelope, as far as a share looks at it."""

    def __init__(self, block: Any, copyset: tuple[int, ...]) -> None:
        self.header = block.header
        self.envelope = replace(block.envelope, copyset=copyset)


def _copyset_before(right: Any) -> Any:
    def part(self: Any, block: Any) -> Any:
        before = self._mine.get((), block.envelope.copyset)
        answer = right(self, _Seen(block, before))
        if block.header.kind == BlockKind.DATA:
            self._mine[()] = block.envelope.copyset
        return answer

    return part


def _nothing_missed(right: Any) -> Any:
    def queue(self: Any, member: Any) -> Any:
        made = right(self, member)
        while made is not None and made.take() is not None:
            pass
        return made

    return queue


def _slow_skip(right: Any) -> Any:
    def take(self: Any) -> Any:
        if self.is_over:
            while (last := right(self)) is not None:
                self.member._buffer.next = last.last + 1
            return None
        return right(self)

    return take


def _slow_untold(right: Any) -> Any:
    def give(self: Any, items: Any, size: int) -> None:
        right(self, items, size)
        if self.is_over:
            self._tail.leave(self)
            self.is_over = False

    return give


def _dropped_skip(right: Any) -> Any:
    def stop(self: Any) -> None:
        last = self._waiting[-1].last if self._waiting else 0
        right(self)
        if last and self.is_empty:
            self.member._buffer.next = last + 1

    return stop


def _at_work_is_done(right: Any) -> Any:
    def next_lsn(self: Any, after: int) -> Any:
        given = len(self.opened) - length_hint(self.items)
        if given and given < len(self.opened):
            item = self.opened[given]
            return int(item.lsn if _is_record(item) else item.first)
        return right(self, after)

    return next_lsn


def _cancelled_goes_on(right: Any) -> Any:
    async def fill(self: Any, timeout_s: float | None = None) -> Any:
        filling = asyncio.ensure_future(right(self, timeout_s))
        try:
            return await asyncio.shield(filling)
        except asyncio.CancelledError:
            # Its answer has nobody to come to.
            filling.add_done_callback(lambda done: done.cancelled() or self._reader.item())
            raise

    return fill


def _left_is_over(right: Any) -> Any:
    def portion(self: Any, count: int) -> Any:
        if self._up is not None and len(self._up.hand.rest()) < len(self._up.hand.opened):
            self._up.hand.take_rest()
        return right(self, count)

    return portion


FIRST_KEY_ONLY = PlantedBug(
    "first-key-only", "a block's header knows its first record's key only",
    changed({"client.append.pending_block:key_bits": _first_key_only}), scenario=scenarios.MANNERS,
)  # fmt: skip
"""A scenario of its own is a proof of filters by key as well
(tests/client/read/test_read_bugs.py)."""

BUGS = (
    PlantedBug("filters-one-more", "a node leaves out one record more than it tells of",
               changed({f"{_STREAMS}._tell_gaps": _one_more_filtered}), scenario=scenarios.MANNERS),
    FIRST_KEY_ONLY,
    PlantedBug("keyless-pass", "a reader of some keys is given the records without any",
               changed({"client.read.stream_items:with_keys": _keyless_pass}), scenario=scenarios.MANNERS),
    PlantedBug("rest-dropped", "what of a block does not fit into a portion is dropped",
               changed({"client.read.hand:Hand.take_portion": _rest_dropped}), scenario=scenarios.MANNERS),
    PlantedBug("arrow-not-clipped", "batches of a read that begins inside a block have all of it",
               changed({"client.read.arrow_batches:BatchGatherer.add": _whole_block}), scenario=scenarios.MANNERS),
    PlantedBug("numbered-is-released", "who polls is told of what is not acknowledged yet",
               changed({"sequencer.role:SequencerRole.released": _numbered_is_released}),
               scenario=scenarios.MANNERS),
    PlantedBug("newest-for-all", "nodes tell the newest nodeset as that of every epoch",
               changed({"storage.engine:StorageEngine.nodesets": _newest_for_all}), scenario=scenarios.NODESETS),
    PlantedBug("nodesets-lag", "nodes tell of a new epoch, and not of its nodes",
               changed({"storage.engine:StorageEngine.nodesets": _without_newest}), scenario=scenarios.NODESETS),
    PlantedBug("nodesets-forgotten", "a node forgets the nodesets of its logs when it restarts",
               changed({"storage.engine:StorageEngine._replay": _told_is_forgotten}),
               scenario=scenarios.NODESETS),
    PlantedBug("stale-copyset", "a node goes by the copyset of the block before; nobody asks all",
               changed({"storage.push.own_copies:OwnCopies.part": _copyset_before,
                        f"{_CHOICE}.on_suspicion": instead(lambda self: None)}),
               scenario=reading_scenarios.SPREAD),
    PlantedBug("ahead-unreleased", "a node reads ahead past what is released",
               changed({f"{_STREAMS}._readable": _past_the_released}), scenario=reading_scenarios.COLD),
    PlantedBug("missed-forgotten", "who joins a shared tail is not given what it came too late for",
               changed({f"{_TAIL}.subscribe": _nothing_missed}), scenario=reading_scenarios.CROWDED),
    PlantedBug("slow-skip", "who is too slow for a shared tail goes on where it left it",
               changed({"client.read.shared_tail:SubscriberQueue.take": _slow_skip}), scenario=reading_scenarios.CROWDED),
    PlantedBug("slow-untold", "who is too slow for a shared tail is given nothing more, and waits",
               changed({"client.read.shared_tail:SubscriberQueue.give": _slow_untold}),
               scenario=reading_scenarios.QUEUED),
    PlantedBug("dropped-skip", "who is too slow goes on after what there was no room to keep",
               changed({"client.read.shared_tail:SubscriberQueue._stop": _dropped_skip}),
               scenario=reading_scenarios.CRAMPED),
    PlantedBug("lost-are-down", "a reader waits for a node whose data is gone for good",
               changed({"client.read.read_stream:weigh_replies": _lost_are_down}), scenario=scenarios.LOST),
    PlantedBug("at-work-is-done", "a position passes the item that a loop still works on",
               changed({"client.read.hand:Hand.next_lsn": _at_work_is_done}), scenario=scenarios.CONSUMERS),
    PlantedBug("cancelled-goes-on", "a cancelled call takes an item later, and gives it to nobody",
               changed({"client.read.consumer:Consumer.fill": _cancelled_goes_on}),
               scenario=scenarios.CONSUMERS),
    PlantedBug("left-is-over", "what a loop that was left has before it is dropped by a read",
               changed({"client.read.reader:Reader.portion": _left_is_over}), scenario=scenarios.CONSUMERS),
    PlantedBug("rights-unchecked", "a node lets everybody read whose log it has not looked up yet",
               changed({"storage.push.read_rights:ReadRights.may_read": _unknown_is_free}),
               scenario=scenarios.RIGHTS),
)  # fmt: skip
