"""Bugs of readers: what they conclude from silence, and what they leave out.

Source: reliability digest §1 (Jepsen's poll-skip), §6.
"""

from __future__ import annotations

from typing import Any

from cordwood.block import Gap, GapKind
from cordwood.lsn import ESN_MAX, Lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.quorum.authority import Hearing
from cordwood.sim.zoo.bug import PlantedBug, changed, instead

_BUFFER = "protocol.gap_detection:ReadBuffer"
_STREAM = "client.read_stream:ReadStream"
_SENDERS = "client.senders:Senders"
_CHOICE = "protocol.single_copy:SenderChoice"

HEARD = Hearing.COMPLETE

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


def _bridge_guessed(right: Any) -> Any:
    def take(self: Any, judge: Any, **rest: Any) -> Any:
        taken = right(self, judge, **rest)
        ahead = self._heap and self._heap[0][0] >> 32 > self.next >> 32
        if taken is None and ahead and not self.is_done:
            return self._gap((self.next | ESN_MAX) + 1, GapKind.BRIDGE)
        return taken

    return take


def _delivered_twice(right: Any) -> Any:
    def take(self: Any, judge: Any, **rest: Any) -> Any:
        before = self.next
        taken = right(self, judge, **rest)
        is_large = isinstance(taken, Delivery) and taken.last - taken.first + 1 >= TWICE_RECORDS_MIN
        if is_large and getattr(self, "_zoo_twice", None) != taken.first:
            self._zoo_twice = taken.first
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


BUGS = (
    PlantedBug("reader-skips", "a reader leaves out a block now and then",
               changed({f"{_BUFFER}.take": _skips})),
    PlantedBug("loss-without-all", "a reader concludes a loss from two nodes",
               changed({f"{_BUFFER}._lost": _loss_without_all})),
    PlantedBug("bridge-guessed", "a reader jumps to the next epoch without its bridge",
               changed({f"{_BUFFER}.take": _bridge_guessed})),
    PlantedBug("delivered-twice", "a reader delivers a large block twice",
               changed({f"{_BUFFER}.take": _delivered_twice})),
    PlantedBug("not-clipped", "a read that begins inside a block delivers all of it",
               changed({f"{_BUFFER}._deliver": _not_clipped})),
    PlantedBug("window-stands-still", "a reader never moves its window",
               changed({f"{_SENDERS}.move_window": instead(lambda self: None)})),
    PlantedBug("loss-of-single-copies", "a reader takes what others send for lost",
               changed({f"{_STREAM}._may_conclude": instead(lambda self: True),
                        f"{_STREAM}._is_grace_over": instead(lambda self: True)})),
    PlantedBug("gap-at-one-less", "one node fewer than an f-majority is enough for a loss",
               changed({"quorum.authority:_meets": _one_copy_more,
                        f"{_STREAM}._is_grace_over": instead(lambda self: True)})),
    PlantedBug("rewind-goes-back", "a rewind begins before what was given out already",
               changed({f"{_BUFFER}.rewind": _goes_back})),
    PlantedBug("marker-off-by-one", "a node counts as past the LSN that it comes to next",
               changed({f"{_BUFFER}._knows_upto": _one_farther})),
    PlantedBug("bridge-swallows-first", "a bridge covers the first record of the next epoch too",
               changed({f"{_BUFFER}._deliver": _bridge_too_long})),
    PlantedBug("credit-runs-out", "a reader never lets nodes send more",
               changed({f"{_SENDERS}._grant": instead(lambda self, source: None)})),
)  # fmt: skip
