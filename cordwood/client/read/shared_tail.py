"""The shared tail: one stream feeds all streams of a client that wait at the tail of one log.

Without a shared tail, a hundred readers of one log in one process got each block a hundred times
from five nodes: each stream has its own windows, credit and gap detection, and at the tail all of
them reach the same results. Here one more stream, the *leader*, reads on from the tail. It gives
its results (blocks, gaps, troubles) to all members. A member keeps its items in its queue until it
takes them. A member with more than QUEUE_BYTES_MAX in its queue is slow. It leaves, takes the items
that it has, and then asks the nodes by itself until it reaches a shared place again. So no member
waits for another.

A member joins at the leader's position, or at one of the leader's last items: the items tile, so
only the member's position counts. Readers that became slow at the same time stand at the same
position again. They share from there, however far behind the tail it is. If MEMBERS_MIN readers
wait ahead of the leader for BEHIND_S, they start a second leader. When the first leader reaches the
second one, its members move over.

A block is held once for all members. A tail reserves the bytes of one full queue. Blocks that slow
members have not taken are reserved one by one. If the client's budget has no space for them, they
are dropped, and the member asks the nodes for them again.

Source: docs/design.md §4 (what is alike is sent once); LogDevice (docs/sources/logdevice.md 2.11)
has a stream for each reader.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cordwood.block import Gap
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import LogInfo
from cordwood.errors import CordwoodError
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.read_budget import ReadBudget

if TYPE_CHECKING:
    from cordwood.client.read.read_stream import ReadStream

logger = logging.getLogger(__name__)

Taken = Delivery[HeldBlock] | Gap
"""A stream's result: records or a gap."""

MEMBERS_MIN = 8
"""This many streams at one log's tail share a leader. Fewer streams cost little beside the appends,
and each of them is listed at the nodes by itself (`cordwood readers`)."""

QUEUE_BYTES_MAX = 4 << 20
QUEUE_ITEMS_MAX = 1024
"""The most that a queue holds; less if the client's budget has no space for it."""

RECENT_BYTES_MAX = 1 << 20
RECENT_ITEMS_MAX = 256
"""The leader's last items, kept for readers that reach the tail a moment later: these are behind by
the blocks of one tick."""

FLOOR_BYTES = 512 << 10
"""The least that a tail reserves: its members give back as much, 64 KiB each for every node."""

TAKEN_ITEMS = 256
"""The items that the leader takes at once before others run: a quarter of a queue."""

BEHIND_S = 1.0
"""How long a leader may be behind readers that wait for it: at the tail it is behind by one
tick."""


class Leftovers:
    """Items that slow members have not taken, each block once, within a budget."""

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        # By block: the number of members that hold it.
        self._held: dict[HeldBlock, int] = {}

    def keep(self, items: Collection[Taken]) -> bool:
        """Hold these items for one member; False, and no item is held, if the budget is full."""
        blocks = [item.block for item in items if isinstance(item, Delivery)]
        size = sum(block.size for block in blocks if block not in self._held)
        got = self._budget.take(size, 0)
        if got < size:
            self._budget.give_back(got)
            return False
        for block in blocks:
            self._held[block] = self._held.get(block, 0) + 1
        return True

    def drop(self, item: Taken) -> None:
        """A member no longer holds this item."""
        if isinstance(item, Delivery):
            self._held[item.block] -= 1
            if not self._held[item.block]:
                del self._held[item.block]
                self._budget.give_back(item.block.size)


class SubscriberQueue:
    """The items of a shared tail that one member has not taken yet.

    Attributes:
        is_over: no more items will come: the member takes these, then asks the nodes by itself.
        leader: the stream that feeds this queue.
        is_dropped: the budget had no space for the items, so the member asks the nodes for them.
        trouble: why the leader stands still, "" if it does not; the member reports it in a tick of
            its own.
    """

    __slots__ = (
        "_bytes",
        "_member",
        "_tail",
        "_waiting",
        "is_dropped",
        "is_over",
        "leader",
        "trouble",
    )

    def __init__(self, tail: SharedTail, member: ReadStream, missed: Sequence[Taken]) -> None:
        self._tail = tail
        self._waiting = deque(missed)
        self._bytes = sum(map(_size, missed))
        # Trap: a strong reference would keep a stream alive that its application has dropped.
        self._member = weakref.ref(member)
        self.leader = tail.leader
        self.is_over = False
        self.is_dropped = False
        self.trouble = ""

    @property
    def member(self) -> ReadStream | None:
        """The member of this queue; None if its application has dropped it."""
        return self._member()

    def wake(self) -> None:
        """Tell the member that this queue changed."""
        if (member := self._member()) is not None:
            member.on_news()

    @property
    def is_empty(self) -> bool:
        """Whether no item waits here."""
        return not self._waiting

    def give(self, items: Sequence[Taken], size: int) -> None:
        """The leader gives `items`, of `size` bytes."""
        self._waiting.extend(items)
        self._bytes += size
        if self._bytes > self._tail.queue_bytes or len(self._waiting) > QUEUE_ITEMS_MAX:
            self.stop_queue()
        self.wake()

    def end(self) -> None:
        """The leader has ended."""
        self.stop_queue()
        self.wake()

    def stop_queue(self) -> None:
        self.is_over = True
        if not self._tail.leftovers.keep(self._waiting):
            self.is_dropped = True
            self._waiting.clear()

    def take(self) -> Taken | None:
        """The next item, None if no item is here."""
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._bytes -= _size(taken)
        if self.is_over:
            self._tail.leftovers.drop(taken)
        return taken

    def leave(self) -> None:
        """Stop feeding this member."""
        while self.is_over and self.take() is not None:
            pass
        self._tail.leave(self)


class SharedTail:
    """One log's leader and the members that it feeds.

    Attributes:
        next: the first LSN of the leader's next item.
        queue_bytes: the most bytes that a queue holds.
        followed_by: a second shared tail of the log, further on; this tail ends when it reaches it.
    """

    def __init__(self, leader: ReadStream, budget: ReadBudget, leftovers: Leftovers) -> None:
        self.leader = leader
        self.leftovers = leftovers
        self.next = leader.taken_lsn
        self.queue_bytes = 0
        self.followed_by: SharedTail | None = None
        self._queues: dict[SubscriberQueue, None] = {}
        # Streams that could not join because they are ahead of the leader: their LSN, and since
        # when.
        self._ahead: WeakKeyDictionary[ReadStream, tuple[int, float]] = WeakKeyDictionary()
        self._recent: deque[Taken] = deque()
        self._recent_bytes = 0
        self._budget = budget
        self._reserved = 0
        self._taken_bytes = 0
        self._reserve()
        leader.on_health = self._on_health

    def subscribe(self, member: ReadStream) -> SubscriberQueue | None:
        """A queue for a stream at the leader's position, or at one of its last positions."""
        missed: deque[Taken] = deque()
        at = self.next
        for item in reversed(self._recent):
            if at <= member.taken_lsn:
                break
            missed.appendleft(item)
            at = item.first
        if at != member.taken_lsn:
            if member.taken_lsn > self.next and member not in self._ahead:
                self._ahead[member] = member.taken_lsn, asyncio.get_running_loop().time()
            return None
        queue = SubscriberQueue(self, member, missed)
        self._queues[queue] = None
        self._ahead.pop(member, None)
        return queue

    def leave(self, queue: SubscriberQueue) -> None:
        """A member leaves; the last one closes the leader."""
        self._queues.pop(queue, None)
        if not self._queues:
            self.leader.close()

    def forget(self, member: ReadStream) -> None:
        """A stream without a queue was closed."""
        self._ahead.pop(member, None)

    def is_behind(self, member: ReadStream) -> bool:
        """Whether MEMBERS_MIN streams have waited ahead of the leader for BEHIND_S, and `member` is
        the furthest of them: then they need a second leader."""
        since = asyncio.get_running_loop().time() - BEHIND_S
        waiting = [each for each, (_, at) in list(self._ahead.items()) if at <= since]
        return len(waiting) >= MEMBERS_MIN and is_furthest(member, waiting)

    def follow(self, tail: SharedTail) -> None:
        """`tail` is a second shared tail, ahead of this one."""
        self.followed_by = tail
        self._wake([*self._ahead])

    async def run(self) -> None:
        """Give the leader's items to all members, until the leader ends or no member is left.

        Raises:
            CordwoodError: the leader failed, or was closed.
        """
        while items := await self.leader.next_many(self._taken_bytes, TAKEN_ITEMS):
            self.next = items[-1].last + 1
            size = self._keep(items)
            for queue in list(self._queues):
                queue.give(items, size)
                if queue.is_over:
                    self.leave(queue)
            self._wake([each for each, (at, _) in list(self._ahead.items()) if at <= self.next])
            if self.followed_by is not None and self.next >= self.followed_by.next:
                return
            self._reserve()
            await asyncio.sleep(0)  # quick members take their items before more come

    def end(self) -> None:
        """All members go on alone, or at the second shared tail."""
        self.leader.on_health = None
        self.leader.close()
        self._budget.give_back(self._reserved)
        self._reserved = 0
        self._recent.clear()
        queues, self._queues = self._queues, {}
        for queue in queues:
            queue.end()
        self._wake([*self._ahead])

    def _wake(self, members: Collection[ReadStream]) -> None:
        """Streams ahead of the leader may try to join again."""
        for member in list(members):
            del self._ahead[member]
            member.on_news()

    def _reserve(self) -> None:
        """Reserve the bytes of a full queue and of the recent items, as far as the budget
        allows."""
        wanted = QUEUE_BYTES_MAX + RECENT_BYTES_MAX
        if self._reserved < wanted:
            floor = max(0, FLOOR_BYTES - self._reserved)
            self._reserved += self._budget.take(wanted - self._reserved, floor)
            self.queue_bytes = min(QUEUE_BYTES_MAX, self._reserved * 4 // 5)
            self._taken_bytes = self.queue_bytes // 4

    def _keep(self, items: Sequence[Taken]) -> int:
        size = sum(map(_size, items))
        self._recent.extend(items)
        self._recent_bytes += size
        recent = self._recent
        bytes_max = min(RECENT_BYTES_MAX, self._reserved - self.queue_bytes)
        while recent and (self._recent_bytes > bytes_max or len(recent) > RECENT_ITEMS_MAX):
            self._recent_bytes -= _size(recent.popleft())
        return size

    def _on_health(self, leader: ReadStream, trouble: str) -> None:
        for queue in self._queues:
            queue.trouble = trouble
            queue.wake()


class SharedTails:
    """Every shared tail of one client.

    Args:
        open_leader: makes a plain stream that follows a log from an LSN on, and opens it.
        number_anew: gives a stream another number, because nodes may still send under the old one.
        tasks: the client's.
        budget: the bytes that nodes may send ahead, for all streams of the client.
    """

    def __init__(
        self,
        open_leader: Callable[[LogInfo, int], ReadStream],
        number_anew: Callable[[ReadStream], int],
        tasks: asyncio.TaskGroup,
        budget: ReadBudget,
    ) -> None:
        self._open_leader = open_leader
        self.number_anew = number_anew
        self._tasks = tasks
        self._budget = budget
        self._leftovers = Leftovers(budget)
        self._is_closed = False
        self._by_log: dict[int, SharedTail] = {}
        # By log: streams that wait at a tail without a leader.
        self._alone: dict[int, WeakKeyDictionary[ReadStream, None]] = {}

    def join(self, stream: ReadStream) -> SubscriberQueue | None:
        """A queue for a stream that has reached the tail; None if it has to go on alone."""
        log = stream.info.log_id
        if self._is_closed:
            return None
        if (tail := self._open_tail(log)) is not None:
            queue = self.join_again(stream)
            if queue is not None or not tail.is_behind(stream):
                return queue
            made = self._share(stream)
            tail.follow(made)
            return made.subscribe(stream)
        alone = self._alone.setdefault(log, WeakKeyDictionary())
        alone[stream] = None
        # Only the furthest stream starts a leader. The others read on to it by themselves, and no
        # stream waits for them.
        if len(alone) < MEMBERS_MIN or not is_furthest(stream, [*alone]):
            return None
        del self._alone[log]
        made = self._share(stream)
        for each in list(alone):
            each.on_news()  # so that it joins too
        return made.subscribe(stream)

    def join_again(self, stream: ReadStream) -> SubscriberQueue | None:
        """A queue at a leader that exists already; None if the stream cannot join it."""
        tail = self._open_tail(stream.info.log_id)
        return None if tail is None or tail.leader.trouble else tail.subscribe(stream)

    def close(self) -> None:
        """The client closes: no stream shares from now on."""
        self._is_closed = True

    def _open_tail(self, log: int) -> SharedTail | None:
        tail = self._by_log.get(log)
        return None if tail is None or tail.leader.is_closed else tail

    def _share(self, stream: ReadStream) -> SharedTail:
        """Make a leader that begins at the position of `stream`."""
        log = stream.info.log_id
        leader = self._open_leader(stream.info, stream.taken_lsn)
        tail = self._by_log[log] = SharedTail(leader, self._budget, self._leftovers)
        logger.debug("log %d: %d readers share one stream", log, MEMBERS_MIN)
        self._tasks.create_task(self._run(log, tail))
        return tail

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
            # Each member meets the same error by itself.
            logger.debug("log %d: the stream that readers share ended: %s", log, error)
        finally:
            if self._by_log.get(log) is tail:
                del self._by_log[log]
            tail.end()


def is_furthest(stream: ReadStream, others: Collection[ReadStream]) -> bool:
    """Whether no other stream is further on."""
    return all(each.taken_lsn <= stream.taken_lsn for each in others)


def _size(item: Taken) -> int:
    return item.block.size if isinstance(item, Delivery) else 0
