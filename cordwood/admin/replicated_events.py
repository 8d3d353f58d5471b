"""A node's view of the replicated event log, and its choice between the two event logs.

A node is a client of the log: it reads the log on and on, and appends its own events after the
record that it read last (`expected_tail`). So events of two nodes have one order, as with a
compare-and-set, and a late append of unknown outcome is refused if anything came in between.

`ClusterEvents` is the `EventLog` of a node. It asks the metadata store until the events have moved
into the log, and the log from then on.

Source: docs/protocol/event-log.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from cordwood.admin.restated_events import EventLogRestating
from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store, connected
from cordwood.errors import (
    CordwoodError,
    Corrupt,
    OutcomeUnknown,
    Retryable,
    TailMoved,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.hello import Hello
from cordwood.layout.message_rebuilding import EventsReply
from cordwood.layout.rebuild_events import (
    Base,
    pack_event,
    pack_restated,
    pack_set,
    read_record,
)
from cordwood.lsn import EVENT_LOG, Lsn, format_lsn
from cordwood.metadata.event_log import AtStart, EventsMoved, Holds, StoredEventLog
from cordwood.nodes import NodeId
from cordwood.protocol.event_log import Outcome, Verdict, ends_in_vain
from cordwood.protocol.event_log_follower import EventFollower
from cordwood.protocol.event_log_restating import Adopt, Heard, WaitFor, furthest
from cordwood.rebuilding import RebuildEvent, RebuildingSet, Restated
from cordwood.settings import ClientSettings

logger = logging.getLogger(__name__)

CLIENT = ClientSettings(timeout_s=5.0, read_memory_bytes=1 << 20)
"""A call to the log's nodes takes as long as one to the metadata store may; a set has some
kilobytes."""

READ_S = 5.0
"""The deadline for the records up to the tail."""

READ_ON_S = 2.0
"""How long an event without an effect waits for the tail: a caller waits for five seconds."""

SAY_S = 15.0
"""The deadline of an event: two calls without an answer, and a third."""

AGAIN_S = 0.5
"""Pause after the log could not be read."""

RACED_S = 1.0
"""An earlier record is read within this time. Otherwise the event is decided again without it."""

KEEP_S = 5.0
"""The time between two looks whether the base is behind. After its own event a node looks at
once."""

RESTATE_S = 2.0
"""Between two looks whether records are missing for ever: a loss is dealt with in seconds, and a
follower that reads on quickly is not asked about."""

START_S = 4.0
"""A starting node asks the others for this long before it uses the base: longer than they need to
replace a dead sequencer."""

MOVE_MAX_S = 30.0
"""Longest pause between two looks whether the events can move: nodes that are missing, or run an
older version, come minutes later."""

Addresses = Callable[[], Awaitable[Sequence[str]]]


class ReplicatedEventLog:
    """See the module; `run` follows the log.

    Attributes:
        on_change: called with the set after each change.
        restating: asks the other nodes when records are missing; None before this node serves.
    """

    def __init__(
        self,
        host: Host,
        stored: StoredEventLog,
        addresses: Addresses,
        greeting: Callable[[], Hello | None],
    ) -> None:
        """
        Args:
            stored: has the base.
            addresses: where nodes listen.
            greeting: of this node, None before it is a member; only members append.
        """
        self.on_change: Callable[[RebuildingSet], None] = lambda found: None
        self.restating: EventLogRestating | None = None
        self._host = host
        self._stored = stored
        self._addresses = addresses
        self._greeting = greeting
        self._follower: EventFollower | None = None
        self._store: Store | None = None
        self._joined = asyncio.Event()
        self._moved = asyncio.Event()
        self._saying = asyncio.Lock()
        self._kept = RebuildingSet()
        self._fence = 0
        self._tail = 0
        self._keep_now = asyncio.Event()

    # Following.

    async def run(self) -> None:
        """Follow the log, until cancelled."""
        while True:
            try:
                await self._begin()
                greeting = self._greeting()
                addresses = await self._addresses()
                if not addresses:
                    raise Unreachable("no other node is known")
                async with connected(addresses, self._host, CLIENT, member=greeting) as store:
                    self._store = store
                    self._tell_moved()
                    await self._follow_as(store, is_member=greeting is not None)
            except CordwoodError as error:
                logger.info("the event log is not followed yet: %s", error)
            finally:
                self._store = None
            await asyncio.sleep(AGAIN_S)

    def on_joined(self) -> None:
        """Note that this node is a member now, and may append."""
        self._joined.set()

    async def _follow_as(self, store: Store, *, is_member: bool) -> None:
        """Follow the log. A node that is no member yet stops when it becomes one."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(store))
            if not is_member:
                await self._joined.wait()
                following.cancel()

    async def _begin(self) -> EventFollower:
        """The follower; if there is none, a new follower that begins at the base."""
        if self._follower is None:
            base = await self._stored.read_base()
            if base is None:
                raise Retryable("the events have not moved into the event log")
            if self._follower is None:
                self._begin_at(base)
        assert self._follower is not None, "it has begun"
        return self._follower

    def _begin_at(self, base: Base) -> None:
        self._kept, self._fence = base.set, base.fence
        self._follower = EventFollower(base.set)
        self._on_set()

    async def _follow(self, store: Store) -> None:
        """Read on and on. Only errors of the client end it."""
        while not store.is_closed:
            try:
                follower = await self._begin()
                async with await store.read(EVENT_LOG, Lsn(follower.reached + 1), None) as items:
                    async for item in items:
                        self._take(follower, item)
                        if not follower.is_whole and isinstance(item, Gap):
                            await self._begin_later(follower)
                            if self._follower is not follower:
                                break
            except Corrupt as error:
                # Another node may have derived another set from the log.
                logger.error("the event log cannot be followed: %s", error)
                await asyncio.sleep(KEEP_S)
                self._follower = None
            except CordwoodError as error:
                logger.info("the event log is read again: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _begin_later(self, follower: EventFollower) -> None:
        """After missing records: look for a base that is later than these."""
        try:
            base = await self._stored.read_base()
        except CordwoodError as error:
            logger.warning("records of the event log are missing, and the base: %s", error)
            return
        if base is not None and base.set.through >= follower.reached:
            self._begin_at(base)

    def _take(self, follower: EventFollower, item: Record | Gap) -> None:
        if isinstance(item, Gap):
            follower.on_gap(int(item.last), item.kind)
            if item.kind is GapKind.DATA_LOSS:
                logger.error("records of the event log are lost, up to %s", item.last)
        else:
            follower.on_record(int(item.lsn), read_record(item.value))
        self._on_set()

    def _on_set(self) -> None:
        follower = self._follower
        assert follower is not None, "it has begun"
        self._tell_moved()
        self.on_change(follower.set)

    def _tell_moved(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._moved.wait()

    async def _connected(self) -> tuple[Store, EventFollower]:
        await self._until(lambda: self._store is not None and self._follower is not None)
        assert self._store is not None, "waited for"
        assert self._follower is not None, "waited for"
        return self._store, self._follower

    # What roles ask.

    async def known(self) -> RebuildingSet:
        """See `EventLog`.

        Raises:
            Unreachable: no record was read yet, and the metadata store does not answer.
        """
        return (await self._begin()).set

    async def read(self) -> RebuildingSet:
        """See `EventLog`: up to the tail of a sequencer that rules."""
        try:
            async with asyncio.timeout(READ_S):
                store, _ = await self._connected()
                tail = int(await store.tail(EVENT_LOG))
                await self._until(lambda: self._has_read(tail))
        except TimeoutError:
            raise Unreachable("the event log could not be read up to its tail") from None
        return self._whole().set

    def _has_read(self, tail: int) -> bool:
        return self._follower is not None and self._follower.has_read(tail)

    def _whole(self) -> EventFollower:
        follower = self._follower
        if follower is None or not follower.is_whole:
            raise Retryable("records of the event log are missing: a snapshot is waited for")
        return follower

    async def say(self, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        """See `EventLog`."""
        try:
            async with asyncio.timeout(SAY_S), self._saying:
                return await self._say(event, holds)
        except TimeoutError:
            raise Unreachable("the event log took no event in time; it may be said again") from None

    async def _say(self, event: RebuildEvent, holds: Holds | None) -> Outcome:
        is_read = False
        while True:
            store, _ = await self._connected()
            follower = self._whole()
            # The append names the last record of the set for which it holds.
            is_held = holds is None or holds(follower.set)
            outcome = follower.decide(event) if is_held else Outcome(follower.set, Verdict.STALE)
            if outcome.verdict is not Verdict.TAKEN:
                # Records that this node has not read yet may change the verdict.
                if not is_read and await self._read_on():
                    is_read = True
                    continue
                if not ends_in_vain(event, outcome.verdict):
                    return outcome
                # Written all the same: it makes an earlier order to begin this late.
            lsn = await self._append(store, follower, pack_event(event))
            if lsn is not None:
                await self._until(lambda lsn=lsn: self._has_read(lsn))  # type: ignore[misc]
                self._keep_now.set()
                return Outcome(self._whole().set, outcome.verdict)

    async def _read_on(self) -> bool:
        """Read up to the tail. False if no node tells the tail: then the records read so far have
        to do."""
        try:
            async with asyncio.timeout(READ_ON_S):
                await self.read()
        except (CordwoodError, TimeoutError) as error:
            why = str(error) or "no node tells its tail in time"
            logger.info("an event is answered by what was heard: %s", why)
            return False
        return True

    async def _append(self, store: Store, follower: EventFollower, value: bytes) -> int | None:
        """Append after the last record that was read; None if another record stands there, or
        may: then that is read first.

        Raises:
            Retryable: nothing was appended.
        """
        behind = follower.record
        # The last records may be lost: then the log ends in an empty epoch behind their epoch.
        tail = self._tail if follower.has_read(self._tail) else 0
        try:
            return int(await store.append(EVENT_LOG, value, expected_tail=max(behind, tail)))
        except (TailMoved, OutcomeUnknown) as error:
            logger.info("an event is decided again: %s", error)
        try:
            async with asyncio.timeout(RACED_S):
                await self._until(
                    lambda: self._follower is not follower or follower.record != behind
                )
        except TimeoutError:
            self._tail = int(await store.tail(EVENT_LOG))
        return None

    async def at_start(self) -> AtStart:
        """See `EventLog`. If no other node answers, the base has to do."""
        try:
            async with asyncio.timeout(START_S):
                if await self._addresses():
                    return AtStart(await self.read(), is_sure=True)
        except (CordwoodError, TimeoutError) as error:
            why = str(error) or "no node answers in time"
            logger.warning("the events of lost nodes cannot be read at this start: %s", why)
        return AtStart(await self.known(), is_sure=False)

    # Snapshots, and the base.

    async def keep(self) -> None:
        """See `EventLog`."""
        found = self._whole().set
        if found.through > self._kept.through or self._fence > found.restated:
            await self._keep_base(found)

    async def _keep_base(self, found: RebuildingSet) -> None:
        base = await self._stored.note_base(found)
        self._fence = base.fence
        if base.fence > found.restated:
            raise Retryable("the event log is being restated")
        self._kept = found

    async def keep_on(self) -> None:
        """Write a new base if the set has changed, and take a snapshot if it is due.

        Raises:
            CordwoodError: one of the two failed.
        """
        follower = self._follower
        if follower is None or not follower.is_whole:
            return
        if _what_counts(follower.set) != _what_counts(self._kept):
            await self._keep_base(follower.set)
        store = self._store
        if store is None or not self._joined.is_set() or not follower.wants_snapshot:
            return
        async with self._saying:
            # Race: a record may have been found missing meanwhile. The set lacks all that came
            # after it, and still names the log's last record.
            if self._follower is not follower or not follower.wants_snapshot:
                return
            behind = follower.record
            lsn = await self._append(store, follower, pack_set(follower.set))
        if lsn is not None:
            await self._trim(store, behind)
            logger.info("the event log begins with a snapshot at %s", format_lsn(lsn))

    async def _trim(self, store: Store, lsn: int) -> None:
        """Trim the records that a snapshot includes, up to `lsn`.

        Raises:
            Retryable: the trim failed; the next snapshot's trim includes it.
        """
        await store.trim(EVENT_LOG, Lsn(lsn))

    # Records that are lost.

    def heard(self) -> EventsReply:
        """How far this node has followed the log, for a node that misses records."""
        follower = self._follower
        if follower is None:
            return EventsReply(pack_set(RebuildingSet()), 0, is_whole=False)
        return EventsReply(pack_set(follower.set), follower.reached, follower.is_whole)

    async def restate(self) -> None:
        """Go on with the set of a node that is whole, or restate the furthest one, if records are
        missing that no snapshot behind them has, or a restatement was begun.

        Raises:
            CordwoodError: the event log, or the metadata store, does not answer, or the metadata
                store is a copy from before the move.
        """
        follower, store, restating = self._follower, self._store, self.restating
        if follower is None or store is None or restating is None:
            return
        if follower.is_whole and self._fence <= follower.set.restated:
            return
        tail = self._tail = int(await store.tail(EVENT_LOG))
        if not follower.has_read(tail):
            return
        base = await self._stored.read_moved_base()
        if follower.is_whole and base.fence <= follower.set.restated:
            return  # the restated set of another node was read meanwhile
        if follower.adopt(base.set, base.set.through):
            self._on_set()
            return
        record = follower.record
        mine = Heard(follower.set, follower.reached, follower.is_whole)
        members, step = await restating.ask(mine, base.set)

        def has_moved() -> bool:
            return self._follower is not follower or follower.reached != mine.reached

        if has_moved() or isinstance(step, WaitFor):
            return
        if isinstance(step, Adopt):
            if follower.adopt(step.said.set, step.said.reached):
                logger.warning("records of the event log are missing here, and another node told "
                               "what they amount to")  # fmt: skip
                self._on_set()
            return
        # From here on the word of a node that comes back is in the base that is read here, or the
        # node finds the fence and does not count before the restated set does.
        base = await self._stored.fence(tail)
        found = furthest([step.set, base.set])
        # The number stands for what is behind this tail. A restated set that was stored, and lost,
        # since the tail was asked has the same number.
        if base.fence <= found.restated or int(await store.tail(EVENT_LOG)) != tail:
            return
        nodes = tuple(sorted(int(each.node) for each in members))
        async with self._saying:
            if has_moved():
                return
            said = Restated(base.fence, found, nodes)
            lsn = await self._append(store, follower, pack_restated(said))
        if lsn is not None:
            logger.error("the event log lost records: it goes on at %s from the furthest set that "
                         "any node has. Orders after %s have to be given again",
                         format_lsn(lsn), format_lsn(found.through))  # fmt: skip
            await self._trim(store, record)

    async def run_restate(self) -> None:
        """Call `restate` at intervals, until cancelled."""
        while True:
            await asyncio.sleep(RESTATE_S)
            try:
                await self.restate()
            except CordwoodError as error:
                logger.warning("records of the event log are missing, and it cannot be restated "
                               "yet: %s", error)  # fmt: skip

    async def run_keep(self) -> None:
        """Call `keep_on` after each event of this node and at intervals, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(KEEP_S):
                    await self._keep_now.wait()
            except TimeoutError:
                pass
            self._keep_now.clear()
            try:
                await self.keep_on()
            except Corrupt as error:
                logger.error("the event log's snapshot or base cannot be kept: %s", error)
            except CordwoodError as error:
                logger.info("the event log's snapshot or base has to wait: %s", error)
                await asyncio.sleep(AGAIN_S)


def _what_counts(found: RebuildingSet) -> tuple[object, ...]:
    """What of a set the base is to have soon."""
    return found.lost, found.rebalancing, found.restated


class ClusterEvents:
    """A node's event log, wherever the cluster has it; see the module.

    Attributes:
        replicated: the log, followed after the move.
    """

    def __init__(
        self,
        stored: StoredEventLog,
        replicated: ReplicatedEventLog,
        *,
        moves: bool,
        may_move: Callable[[], Awaitable[bool]],
    ) -> None:
        """
        Args:
            moves: whether this node moves the events into the log.
            may_move: whether the cluster has nodes enough for the log, and all follow it.
        """
        self._may_move = may_move
        self.replicated = replicated
        self._stored = stored
        self._moves = moves
        self._has_moved = asyncio.Event()

    @property
    def has_moved(self) -> bool:
        """Whether the events are known to be in the log."""
        return self._has_moved.is_set()

    async def run(self) -> None:
        """Follow the log after the move, until cancelled."""
        await self._has_moved.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.replicated.run())
            tasks.create_task(self.replicated.run_keep())
            tasks.create_task(self.replicated.run_restate())

    async def run_move(self, node: NodeId, incarnation: int) -> None:
        """Say that this start of a node follows the log, and move the events there if this node is
        to; for a node that serves by now."""
        is_said = False
        pause_s = AGAIN_S
        while not self.has_moved:
            try:
                if not is_said:
                    await self._stored.note_follower(node, incarnation)
                    is_said = True
                if not self._moves:
                    return
                if await self._may_move():
                    await self._stored.move()
                    self._has_moved.set()
                    return
            except CordwoodError as error:
                logger.info("the events of lost nodes stay in the metadata store: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOVE_MAX_S)

    async def at_start(self) -> AtStart:
        """See `EventLog`."""
        if not self.has_moved:
            try:
                return await self._stored.at_start()
            except EventsMoved:
                self._has_moved.set()
        return await self.replicated.at_start()

    async def read(self) -> RebuildingSet:
        """See `EventLog`."""
        if not self.has_moved:
            try:
                return await self._stored.read()
            except EventsMoved:
                self._has_moved.set()
        return await self.replicated.read()

    async def known(self) -> RebuildingSet:
        """See `EventLog`."""
        if not self.has_moved:
            try:
                return await self._stored.known()
            except EventsMoved:
                self._has_moved.set()
        return await self.replicated.known()

    async def say(self, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        """See `EventLog`."""
        if not self.has_moved:
            try:
                return await self._stored.say(event, holds)
            except EventsMoved:
                self._has_moved.set()
        return await self.replicated.say(event, holds)

    def heard(self) -> EventsReply:
        """See `ReplicatedEventLog.heard`."""
        return self.replicated.heard()

    async def keep(self) -> None:
        """See `EventLog`."""
        if self.has_moved:
            await self.replicated.keep()
