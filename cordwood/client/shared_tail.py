"""Streams of one client that wait at the tail of one log are fed by one.

A hundred readers of one log in one process had each block a hundred times from five nodes: each
stream has windows, credit and gap detection of its own, and all of them say the same at the tail.
Here one more stream, the *lead*, reads on from there, and whatever it concludes (blocks, gaps,
troubles) is given to all that share it. A member keeps what it was given until it takes it; one
that has more than SEAT_BYTES_MAX waiting is slow, so it leaves, takes what it has, and asks the
nodes by itself from there on, until it is at the tail again. So nobody waits for anybody.

A member joins where the lead stands, or at one of the places that it gave last: what is given
tiles, so its position is all that counts.

Source: design.md §4 (what is alike is sent once); LogDevice digest 2.11 has a stream for each
reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cordwood.block import Gap
from cordwood.client.cluster import LogInfo
from cordwood.client.senders import HeldBlock
from cordwood.errors import CordwoodError
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    from cordwood.client.read_stream import ReadStream

logger = logging.getLogger(__name__)

Taken = Delivery[HeldBlock] | Gap
"""What a stream gives out."""

MEMBERS_MIN = 8
"""So many streams at one log's tail share one; what a few cost beside the appends is little, and
they show by themselves at the nodes (`cordwood readers`)."""

SEAT_BYTES_MAX = 4 << 20
SEAT_ITEMS_MAX = 1024
"""What may wait for one member. Blocks are held once for all of them, and once more by nobody but
the slow ones."""

RECENT_BYTES_MAX = 1 << 20
RECENT_ITEMS_MAX = 256
"""What the lead gave last is kept, for those who come to the tail a moment later: they are as many
blocks behind as came in one turn of the loop."""

TAKEN_BYTES = 1 << 20
"""What the lead takes at a time before it lets others run."""


class Seat:
    """What a member of a shared tail was given and has not taken.

    Attributes:
        is_over: nothing more will come: what is here is to be taken, and then asked for alone.
        lead: the stream that feeds it.
    """

    __slots__ = ("_bytes", "_tail", "_waiting", "is_over", "lead", "member")

    def __init__(self, tail: SharedTail, member: ReadStream, missed: Sequence[Taken]) -> None:
        self._tail = tail
        self._waiting = deque(missed)
        self._bytes = sum(map(_size, missed))
        self.member = member
        self.lead = tail.lead
        self.is_over = False

    def give(self, items: Sequence[Taken], size: int) -> None:
        """The lead went on by `items`, of `size` bytes."""
        self._waiting.extend(items)
        self._bytes += size
        self.is_over = self._bytes > SEAT_BYTES_MAX or len(self._waiting) > SEAT_ITEMS_MAX
        self.member.on_news()

    def end(self) -> None:
        """The lead goes on no more."""
        self.is_over = True
        self.member.on_news()

    def take(self) -> Taken | None:
        """What comes next, None if nothing is here."""
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._bytes -= _size(taken)
        return taken

    def leave(self) -> None:
        """Give this member nothing any more."""
        self._tail.leave(self)


class SharedTail:
    """One log's lead and those that it feeds.

    Attributes:
        next: what the lead gives next begins here.
    """

    def __init__(self, lead: ReadStream) -> None:
        self.lead = lead
        self.next = lead.next_lsn
        self._seats: dict[Seat, None] = {}
        # Those that came past the lead, as it had not had its turn, and so could not join.
        self._ahead: dict[ReadStream, None] = {}
        self._recent: deque[Taken] = deque()
        self._recent_bytes = 0
        lead.on_health = self._on_health

    def seat(self, member: ReadStream) -> Seat | None:
        """A seat for one that stands where the lead stands, or stood a moment ago."""
        missed: deque[Taken] = deque()
        at = self.next
        for item in reversed(self._recent):
            if at <= member.next_lsn:
                break
            missed.appendleft(item)
            at = item.first
        if at != member.next_lsn:
            if member.next_lsn > self.next:
                self._ahead[member] = None
            return None
        seat = Seat(self, member, missed)
        self._seats[seat] = None
        return seat

    def leave(self, seat: Seat) -> None:
        """One goes; the last one closes the lead."""
        self._seats.pop(seat, None)
        if not self._seats:
            self.lead.close()

    def forget(self, member: ReadStream) -> None:
        """One that has no seat was closed."""
        self._ahead.pop(member, None)

    async def run(self) -> None:
        """Give what the lead concludes to all, until it ends or nobody is left.

        Raises:
            CordwoodError: the lead failed, or was closed.
        """
        while items := await self.lead.next_many(TAKEN_BYTES):
            self.next = items[-1].last + 1
            size = self._keep(items)
            for seat in list(self._seats):
                seat.give(items, size)
                if seat.is_over:
                    self.leave(seat)
            ahead, self._ahead = self._ahead, {}
            for member in ahead:
                member.on_news()  # to try again

    def end(self) -> None:
        """All go on alone."""
        for seat in self._seats:
            seat.end()
        self._seats.clear()
        self.lead.close()

    def _keep(self, items: Sequence[Taken]) -> int:
        size = sum(map(_size, items))
        self._recent.extend(items)
        self._recent_bytes += size
        recent = self._recent
        while recent and (self._recent_bytes > RECENT_BYTES_MAX or len(recent) > RECENT_ITEMS_MAX):
            self._recent_bytes -= _size(recent.popleft())
        return size

    def _on_health(self, lead: ReadStream, trouble: str) -> None:
        for seat in list(self._seats):
            seat.member.tell_health(trouble)


class SharedTails:
    """Every shared tail of one client.

    Args:
        open_lead: makes a plain stream that follows a log from an LSN on, and opens it.
        number_anew: gives a stream another number, since nodes may still send under the old one.
        tasks: the client's.
    """

    def __init__(
        self,
        open_lead: Callable[[LogInfo, int], ReadStream],
        number_anew: Callable[[ReadStream], int],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._open_lead = open_lead
        self.number_anew = number_anew
        self._tasks = tasks
        self._by_log: dict[int, SharedTail] = {}
        # Those that wait at a tail that nobody shares yet.
        self._alone: dict[int, dict[ReadStream, None]] = {}

    def join(self, stream: ReadStream) -> Seat | None:
        """A stream has nothing to give and knows of nothing to wait for: whether it can share."""
        log = stream.info.log_id
        tail = self._by_log.get(log)
        if tail is None or tail.lead.is_closed:
            alone = self._alone.setdefault(log, {})
            alone[stream] = None
            if len(alone) < MEMBERS_MIN:
                return None
            del self._alone[log]
            tail = self._by_log[log] = SharedTail(self._open_lead(stream.info, stream.next_lsn))
            logger.debug("log %d: %d readers share one stream", log, MEMBERS_MIN)
            self._tasks.create_task(self._run(log, tail))
            for each in alone:
                each.on_news()  # to join it, too
        return None if tail.lead.trouble else tail.seat(stream)

    def forget(self, stream: ReadStream) -> None:
        """A stream was closed."""
        log = stream.info.log_id
        if (tail := self._by_log.get(log)) is not None:
            tail.forget(stream)
        if (alone := self._alone.get(log)) is not None:
            alone.pop(stream, None)
            if not alone:
                del self._alone[log]

    async def _run(self, log: int, tail: SharedTail) -> None:
        try:
            await tail.run()
        except CordwoodError as error:
            # Whoever shares it meets the same by itself.
            logger.debug("log %d: the stream that readers share ended: %s", log, error)
        finally:
            if self._by_log.get(log) is tail:
                del self._by_log[log]
            tail.end()


def _size(item: Taken) -> int:
    return item.block.header.stored_bytes if isinstance(item, Delivery) else 0
