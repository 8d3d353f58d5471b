"""Streams of one client that wait at the tail of one log are fed by one.

A hundred readers of one log in one process had each block a hundred times from five nodes: each
stream has windows, credit and gap detection of its own, and all of them say the same at the tail.
Here one more stream, the *leader*, reads on from there, and whatever it concludes (blocks, gaps,
troubles) is given to all that share it. A member keeps what it was given until it takes it; one
that has more than QUEUE_BYTES_MAX waiting is slow, so it leaves, takes what it has, and asks the
nodes by itself from there on, until it comes to where others wait. So nobody waits for anybody.

A member joins where the leader stands, or at one of the places that it gave last: what is given
tiles, so its position is all that counts. Readers that were too slow at the same time stand at
one place again and share from there, however far behind the tail that is. It is no place to hold
others: so many as share one that wait further on for BEHIND_S take a leader of their own, and once
the first one has come to it, its members go over.

What is held is held once for all: a tail reserves what a queue may hold, and what slow members
have not taken is reserved block by block; where the client's budget has no room for that, it is
let go of, and asked for again.

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
from cordwood.client.cluster import LogInfo
from cordwood.client.read.senders import HeldBlock
from cordwood.errors import CordwoodError
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.read_budget import ReadBudget

if TYPE_CHECKING:
    from cordwood.client.read.read_stream import ReadStream

logger = logging.getLogger(__name__)

Taken = Delivery[HeldBlock] | Gap
"""What a stream gives out."""

MEMBERS_MIN = 8
"""So many streams at one log's tail share one; what a few cost beside the appends is little, and
they show by themselves at the nodes (`cordwood readers`)."""

QUEUE_BYTES_MAX = 4 << 20
QUEUE_ITEMS_MAX = 1024
"""What may wait for one member, less where the client's budget has no room for it."""

RECENT_BYTES_MAX = 1 << 20
RECENT_ITEMS_MAX = 256
"""What the leader gave last is kept, for those who come to the tail a moment later: they are as
many blocks behind as came in one tick."""

FLOOR_BYTES = 512 << 10
"""What a tail reserves at the least: its members give back as much, 64 KiB each for every node."""

TAKEN_ITEMS = 256
"""What the leader takes at a time before it lets others run: a quarter of what a queue holds."""

BEHIND_S = 1.0
"""So long a leader may be behind those who would share it: at the tail it is a tick."""


class Leftovers:
    """What slow members were given and have not taken, each block once, out of a budget."""

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        # By how many members each is held.
        self._held: dict[HeldBlock, int] = {}

    def keep(self, items: Collection[Taken]) -> bool:
        """Hold these for one member; False, and nothing is held, if the budget has no room."""
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
        """A member holds this no more."""
        if isinstance(item, Delivery):
            self._held[item.block] -= 1
            if not self._held[item.block]:
                del self._held[item.block]
                self._budget.give_back(item.block.size)


class SubscriberQueue:
    """What a member of a shared tail was given and has not taken.

    Attributes:
        is_over: nothing more will come: what is here is to be taken, and then asked for alone.
        leader: the stream that feeds it.
        is_dropped: there was no room for what it had not taken, which is to be asked for alone.
        trouble: why the leader stands still, "" if it does not: for the member to tell, in a turn
            of its own.
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
        # Nothing here keeps a stream that its application has let go of.
        self._member = weakref.ref(member)
        self.leader = tail.leader
        self.is_over = False
        self.is_dropped = False
        self.trouble = ""

    @property
    def member(self) -> ReadStream | None:
        """Who sits here; None once nobody has it any more."""
        return self._member()

    def wake(self) -> None:
        """There is something to see to."""
        if (member := self._member()) is not None:
            member.on_news()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._waiting

    def give(self, items: Sequence[Taken], size: int) -> None:
        """The leader went on by `items`, of `size` bytes."""
        self._waiting.extend(items)
        self._bytes += size
        if self._bytes > self._tail.queue_bytes or len(self._waiting) > QUEUE_ITEMS_MAX:
            self._stop()
        self.wake()

    def end(self) -> None:
        """The leader goes on no more."""
        self._stop()
        self.wake()

    def _stop(self) -> None:
        self.is_over = True
        if not self._tail.leftovers.keep(self._waiting):
            self.is_dropped = True
            self._waiting.clear()

    def take(self) -> Taken | None:
        """What comes next, None if nothing is here."""
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._bytes -= _size(taken)
        if self.is_over:
            self._tail.leftovers.drop(taken)
        return taken

    def leave(self) -> None:
        """Give this member nothing any more."""
        while self.is_over and self.take() is not None:
            pass
        self._tail.leave(self)


class SharedTail:
    """One log's leader and those that it feeds.

    Attributes:
        next: what the leader gives next begins here.
        queue_bytes: what may wait for one member.
        followed_by: another one of the log, further on: this one ends where it comes to it.
    """

    def __init__(self, leader: ReadStream, budget: ReadBudget, leftovers: Leftovers) -> None:
        self.leader = leader
        self.leftovers = leftovers
        self.next = leader.taken_lsn
        self.queue_bytes = 0
        self.followed_by: SharedTail | None = None
        self._queues: dict[SubscriberQueue, None] = {}
        # Those that came past the leader, and so could not join: where and when that was.
        self._ahead: WeakKeyDictionary[ReadStream, tuple[int, float]] = WeakKeyDictionary()
        self._recent: deque[Taken] = deque()
        self._recent_bytes = 0
        self._budget = budget
        self._reserved = 0
        self._taken_bytes = 0
        self._reserve()
        leader.on_health = self._on_health

    def subscribe(self, member: ReadStream) -> SubscriberQueue | None:
        """A queue for a reader that stands where the leader stands, or stood a moment ago."""
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
        """One goes; the last one closes the leader."""
        self._queues.pop(queue, None)
        if not self._queues:
            self.leader.close()

    def forget(self, member: ReadStream) -> None:
        """A reader without a queue was closed."""
        self._ahead.pop(member, None)

    def is_behind(self, member: ReadStream) -> bool:
        """Whether so many wait further on, and `member` the furthest, that it is time for another
        leader."""
        since = asyncio.get_running_loop().time() - BEHIND_S
        waiting = [each for each, (_, at) in list(self._ahead.items()) if at <= since]
        return len(waiting) >= MEMBERS_MIN and is_furthest(member, waiting)

    def follow(self, tail: SharedTail) -> None:
        """`tail` is shared from now on, further on than this one."""
        self.followed_by = tail
        self._wake([*self._ahead])

    async def run(self) -> None:
        """Give what the leader concludes to all, until it ends or nobody is left.

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
            await asyncio.sleep(0)  # those who are quick take it before more is given

    def end(self) -> None:
        """All go on alone, or where another one feeds them."""
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
        """Some that are ahead may try again."""
        for member in list(members):
            del self._ahead[member]
            member.on_news()

    def _reserve(self) -> None:
        """Take of the budget what a full queue and the recent ones may hold, once it is there."""
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
        number_anew: gives a stream another number, since nodes may still send under the old one.
        tasks: the client's.
        budget: what all streams of the client may have sent ahead.
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
        # Those that wait at a tail that nobody shares yet.
        self._alone: dict[int, WeakKeyDictionary[ReadStream, None]] = {}

    def join(self, stream: ReadStream) -> SubscriberQueue | None:
        """A stream has nothing to give and knows of nothing to wait for: whether it can share."""
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
        # Whoever stands further back reads on to the others; none of them waits for it.
        if len(alone) < MEMBERS_MIN or not is_furthest(stream, [*alone]):
            return None
        del self._alone[log]
        made = self._share(stream)
        for each in list(alone):
            each.on_news()  # to join it, too
        return made.subscribe(stream)

    def join_again(self, stream: ReadStream) -> SubscriberQueue | None:
        """Whether a stream can share what others share already."""
        tail = self._open_tail(stream.info.log_id)
        return None if tail is None or tail.leader.trouble else tail.subscribe(stream)

    def close(self) -> None:
        """Nobody shares anything from now on: the client closes."""
        self._is_closed = True

    def _open_tail(self, log: int) -> SharedTail | None:
        tail = self._by_log.get(log)
        return None if tail is None or tail.leader.is_closed else tail

    def _share(self, stream: ReadStream) -> SharedTail:
        """Make a leader that begins where a stream stands."""
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
            # Whoever shares it meets the same by itself.
            logger.debug("log %d: the stream that readers share ended: %s", log, error)
        finally:
            if self._by_log.get(log) is tail:
                del self._by_log[log]
            tail.end()


def is_furthest(stream: ReadStream, others: Collection[ReadStream]) -> bool:
    """Whether no other one stands further on."""
    return all(each.taken_lsn <= stream.taken_lsn for each in others)


def _size(item: Taken) -> int:
    return item.block.size if isinstance(item, Delivery) else 0
