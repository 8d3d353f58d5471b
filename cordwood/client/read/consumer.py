"""A consumer: a reader with positions in the metadata store, which its members share.

It reads each log from its saved position, and saves the position after the processed records.
Records that `read` returned are processed once `read` or `save` is called next; a loop's record is
processed once the loop asks for the next. So a record may come again after a crash or an abandoned
loop, but no record is skipped.

As a member it reads the logs that fall to it. When a log moves to another member, this member saves
and releases it at its next turn, and the other member begins there. Both members get the same
record only if this member did not release the log in time. A member that was replaced without
knowing cannot save any more (`protocol.consumer_group`).

Source: docs/design.md §6, §7.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple

from cordwood.block import Gap, Record
from cordwood.client.admin.position_calls import Start
from cordwood.client.own_loop import check_loop
from cordwood.client.read.consumer_logs import Ask
from cordwood.client.read.hand import ReadResult
from cordwood.client.read.reader import Reader
from cordwood.errors import Closed, CordwoodError, Fenced, Rejected, Retryable, UnknownLog
from cordwood.layout.message import Reply
from cordwood.layout.message_consumers import (
    AskConsumers,
    BeatConsumer,
    ConsumerReply,
    ConsumersReply,
    JoinConsumer,
    LeaveConsumer,
    SaveCursors,
)
from cordwood.lsn import OLDEST, Lsn

logger = logging.getLogger(__name__)

MEMBER_TTL_S = 15.0
"""A member that is silent for this long loses its logs to other members. It is longer than a
failover of the metadata store and than most pauses, and shorter than a person's patience."""

BEATS = 3
"""Heartbeats in that time, so that a lost one does no harm."""

JOINS_MAX = 16
"""Tries to join. A try fails if a member of this name joined between the look and the write."""

BEGIN_AGAIN_S = 5.0
"""The pause before another try to begin a log: about as long as the replacement of a sequencer
takes. Each try delays the other logs, for the client's timeout at most."""

LOOP_TURN_S = 1.0
"""The longest time for which a loop gets its records from an opened block without a look at the
members, at resets and at the time to save. A block may have thousands of records, and a program may
work for seconds on each."""

HANDOVER_BEAT_S = 1.0
"""The time between two heartbeats while a log goes from this member to another: that member waits
for it."""


class _Reading(NamedTuple):
    """The reading to which positions belong: the member's generation, and the begin of each log;
    see `Consumer._begun`."""

    generation: int
    begun: Mapping[str, int]


class Consumer:
    """See the module. Made by `Store.consumer`; use it with `async with`, or `start` and `close`.

    A member that nothing refers to any more leaves at its next beat.

    Attributes:
        name: the consumer's.
        member: this member's name, "" without sharing.
        generation: the last generation that a node told.
    """

    def __init__(
        self,
        name: str,
        logs: Sequence[str],
        reader: Reader,
        ask: Ask,
        tasks: asyncio.TaskGroup,
        *,
        member: str = "",
        start: Start = "oldest",
        save_every_s: float | None = 5.0,
    ) -> None:
        self.name = name
        self.member = member
        self.generation = 0
        self._logs = tuple(logs)
        self._reader = reader
        self._ask = ask
        self._tasks = tasks
        self._start = start
        self._save_every_s = save_every_s
        self._loop = asyncio.get_running_loop()
        self._saved: dict[str, int] = {}
        self._saved_at = self._loop.time()
        self._beating: asyncio.Task[None] | None = None
        self._group: ConsumerReply | None = None
        self._error: CordwoodError | None = None
        # By log, the generation since which this member reads it, noted when the log was begun or
        # was found to be deleted. For a consumer without members, it is the number of resets.
        self._begun: dict[str, int] = {}
        # Logs that fell to this member and are not begun, and why; tried again at `_begin_at`.
        self._unbegun: dict[str, CordwoodError | None] = {}
        # Where such a log begins, once its tail was asked for.
        self._first: dict[str, Lsn] = {}
        self._begin_at = 0.0
        self._untold: deque[CordwoodError] = deque()
        # One save at a time: if an earlier save arrives later, it looks like another consumer's.
        self._saving = asyncio.Lock()
        # When a loop has to come to `fill` again, also with items left in the opened block; 0 until
        # it has an item, so that each turn gives one.
        self._turn_due = 0.0
        # One turn at a time: two calls would begin a log twice, and give its records twice.
        self._following = asyncio.Lock()

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(save=kind is None)

    async def start(self) -> None:
        """Join, and begin to read. After a failure the member has left, and may be started again.

        Raises:
            Closed: it was closed.
            BadSetting, UnknownLog, Retryable: see `Store.read`.
        """
        self._check_open()
        check_loop(self._loop)
        self._end()
        self._error = None  # of an earlier life, which was replaced
        try:
            await self._join()
            await self._follow(is_start=True)
        except BaseException as error:
            self._end()
            if isinstance(error, CordwoodError):  # cancelling it must not wait for more calls
                await self._leave()
            self._group = None
            raise

    async def _join(self) -> None:
        ttl_ms = round(MEMBER_TTL_S * 1000)
        if self.member:
            reply = await self._ask_to_join(ttl_ms)
        else:
            reply = await self._ask(SaveCursors(self.name, "", 0, {}, {}, False))
        assert isinstance(reply, ConsumerReply), "calls about a consumer are answered with it"
        self._group = reply
        if self.member:
            # Hold it weakly: a member that its application dropped must not keep a log.
            ended = asyncio.Event()
            self._reader.on_end = ended.set
            beating = _beat(weakref.ref(self), ended, self._ask, self.name, self.member)
            self._beating = self._tasks.create_task(beating)

    async def _ask_to_join(self, ttl_ms: int) -> Reply:
        """Join, on condition of the state that was read: a node that was stopped may execute the
        call late."""
        for again in reversed(range(JOINS_MAX)):
            seen = await self._ask(AskConsumers(self.name))
            assert isinstance(seen, ConsumersReply), "AskConsumers is answered with groups"
            known = seen.groups[0].generation
            call = JoinConsumer(self.name, self.member, [*self._logs], ttl_ms, known)
            try:
                return await self._ask(call)
            except Fenced:
                if not again:
                    raise
        raise AssertionError("the last try returns or raises")

    async def close(self, *, save: bool = True) -> None:
        """Save positions after the processed records, leave, and stop reading. Safe to call twice.

        Args:
            save: False leaves the positions where they were saved last.
        Raises:
            Retryable: the cluster did not answer; records that were not saved are read again.
        """
        if self._reader.is_closed:
            return
        check_loop(self._loop)
        is_cancelled = False
        try:
            if save:
                await self.save()
        except Fenced as error:
            logger.info("%s: %s", self.name, error)
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            self._end()
            self._reader.close()
            if is_cancelled:
                # Its caller does not wait for another call, which may take the client's timeout.
                self._leave_later()
            else:
                await self._leave()

    def _end(self) -> None:
        """Send no more heartbeats, and read nothing."""
        if self._beating is not None:
            self._beating.cancel()
        for log in self.logs:
            self._stop(log)
        self._begun.clear()
        self._unbegun.clear()
        self._first.clear()
        self._untold.clear()

    def _check_open(self) -> None:
        if self._reader.is_closed:
            raise Closed("this consumer was closed")

    async def _leave(self) -> None:
        if not self.member or self._group is None:
            return
        try:
            await self._ask(LeaveConsumer(self.name, self.member, self._group.generation))
        except Retryable as error:
            logger.info("%s leaves in %g s: %s", self.member, MEMBER_TTL_S, error)

    def _leave_later(self) -> None:
        async def leave() -> None:
            with contextlib.suppress(CordwoodError):  # it counts as gone in MEMBER_TTL_S anyway
                await self._leave()

        leaving = leave()
        try:
            self._tasks.create_task(leaving)
        except RuntimeError:  # the client was closed meanwhile
            leaving.close()

    # Reading.

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that this member reads now."""
        return self._reader.logs

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still, see `Reader.unhealthy`, or cannot be begun, and why."""
        unbegun = {log: str(error) for log, error in self._unbegun.items() if error is not None}
        return {**self._reader.unhealthy, **unbegun}

    async def read(self, count: int = 1000, timeout_s: float | None = None) -> ReadResult:
        """As `Reader.read`; records given out before count as processed from now on.

        Raises:
            Fenced: this member was replaced.
            UnknownLog: a log that fell to this member was deleted; told once.
            Rejected: it was not started.
            CordwoodError: as `Reader.read`; or saving failed for a reason that lasts.
        """
        await self.fill(timeout_s)
        return self._reader.portion(count)

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Get an item ready; see `Reader.fill`.

        Raises:
            CordwoodError: as `read`.
        """
        check_loop(self._loop)
        self._reader.ask()
        await self._on_turn()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            # In short turns, so that the member follows changes while no item comes.
            turn_ends = self._loop.time() + MEMBER_TTL_S / BEATS
            until = turn_ends if deadline is None else min(deadline, turn_ends)
            if self.logs and await self._reader.fill(max(0.0, until - self._loop.time())):
                self._turn_due = 0.0
                return True
            if not self.logs or self._reader.is_over:
                # Nothing is read here now, or every log is gone.
                await self._reader.rest(until)
            if deadline is not None and self._loop.time() >= deadline:
                return False
            await self._on_turn()

    def _leave_hands(self) -> None:
        """In a forked child: see `forked_child`."""
        self._reader._leave()

    def item(self) -> tuple[str, Record | Gap] | None:
        """See `Reader.item`. None also with items left, if it is time for `fill` to save, and to
        follow the members and resets."""
        now, due = self._loop.time(), self._turn_due
        if not due:
            self._turn_due = now + LOOP_TURN_S
        elif now >= due:
            return None
        return self._reader.item()

    def portion(self, count: int) -> ReadResult:
        """See `Reader.portion`."""
        return self._reader.portion(count)

    def __aiter__(self) -> AsyncIterator[tuple[str, Record | Gap]]:
        return self

    async def __anext__(self) -> tuple[str, Record | Gap]:
        while (given := self.item()) is None:
            await self.fill()
        return given

    async def save(self) -> dict[str, Lsn]:
        """Save positions after the processed records: all that `read` returned, and all records of
        a loop before its present record.

        Returns:
            By log, the first LSN not dealt with.
        Raises:
            Fenced: a log that was read here has another reader by now, or another consumer of
                this name has saved a later position. The other logs are saved.
            Retryable: the cluster did not answer; earlier saves stand.
            Closed: it was closed.
        """
        check_loop(self._loop)
        self._check_open()
        async with self._saving:
            return await self._save_all()

    async def _save_all(self) -> dict[str, Lsn]:
        positions = self._positions(self.logs)
        new = {log: int(lsn) for log, lsn in positions.items() if self._saved.get(log) != lsn}
        # Before the call: the member does not ask a silent cluster again at once.
        self._saved_at = self._loop.time()
        if not new:
            return positions
        # Race: a call that reads may begin a log anew meanwhile. These positions belong to the
        # present reading. If they were saved for the new reading, they would undo the reset.
        await self._save_each(new, new, self._reading(new))
        return positions

    async def _save_each(
        self, logs: Iterable[str], new: Mapping[str, int], reading: _Reading, *, go: bool = False
    ) -> None:
        """Save positions, and with `go` release the logs. All go in one call; if one is refused,
        each has a call of its own. Raises as `save`."""
        several = sorted(logs)
        try:
            return await self._save(new, reading, several if go else ())
        except Fenced:
            if len(several) == 1:
                raise
        refused: Fenced | None = None
        for log in several:
            own = {log: new[log]} if log in new else {}
            try:
                await self._save(own, reading, [log] if go else ())
            except Fenced as error:
                refused = error
        if refused is not None:
            raise refused from None

    # Inside.

    def _positions(self, logs: Iterable[str]) -> dict[str, Lsn]:
        return {log: self._reader.position(log) for log in logs}

    def _reading(self, logs: Iterable[str]) -> _Reading:
        return _Reading(self.generation, {log: self._begun.get(log, 0) for log in logs})

    async def _save(
        self, new: Mapping[str, int], reading: _Reading, let_go: Sequence[str] = ()
    ) -> None:
        """
        Args:
            reading: as it was when the positions were looked at.
        Raises:
            Fenced: as `save`.
            Retryable: the cluster did not answer.
        """
        # The assignment in use decides, not the newest one: a log that went to another member and
        # back is a new reading.
        resets = {} if self.member else {log: reading.begun[log] for log in new}
        call = SaveCursors(
            self.name, self.member, reading.generation, dict(new), {}, False, list(let_go), resets
        )
        try:
            reply = await self._ask(call)
        except Fenced:
            await self._look()
            raise
        except Rejected as error:
            if type(error) is not Rejected:
                raise
            raise Fenced(f"another consumer {self.name} is further: {error}") from error
        assert isinstance(reply, ConsumerReply), "calls about a consumer are answered with it"
        self._learn(reply)
        for log, lsn in new.items():
            if self._begun.get(log, 0) == reading.begun[log]:
                self._saved[log] = lsn

    def _learn(self, reply: ConsumerReply) -> None:
        """Ask for the consumer's state. An overtaken answer is ignored."""
        known = self._group
        if not self.member:
            self._group = reply
        elif known is None or reply.generation >= known.generation:
            self._group = reply
            if reply.generation != self.generation:
                self._reader.wake()

    async def _on_turn(self) -> None:
        """Between two portions: save if it is time, and follow the members."""
        self._check_open()
        if self._error is not None:
            raise self._error
        if self._group is None:
            raise Rejected(
                f"consumer {self.name} was not started: enter it with `async with`, or `start` it"
            )
        if self._has_to_follow:
            async with self._following:
                if self._has_to_follow:
                    await self._save_and_follow()
            self._check_open()
        if self._untold:
            raise self._untold.popleft()
        every_s = self._save_every_s
        if every_s is not None and self._loop.time() >= self._saved_at + every_s:
            await self._save_quietly()

    @property
    def _has_to_follow(self) -> bool:
        """Whether the members changed, or a log that could not be begun is to be tried again."""
        is_due = bool(self._unbegun) and self._loop.time() >= self._begin_at
        group = self._group
        if is_due or group is None:
            return is_due
        if self.member:
            return group.generation != self.generation
        return any(begun != _since(group, log, self.member) for log, begun in self._begun.items())

    async def _save_and_follow(self) -> None:
        await self._save_quietly()
        try:
            await self._follow()
        except Retryable as error:
            logger.info("%s could not let go of a log yet: %s", self.name, error)

    async def _look(self) -> None:
        """A consumer without members sends no heartbeats: learn here that a position was reset.

        Raises:
            Retryable: the cluster did not answer.
        """
        if not self.member:
            reply = await self._ask(SaveCursors(self.name, "", 0, {}, {}, False))
            assert isinstance(reply, ConsumerReply), "calls about a consumer are answered with it"
            self._learn(reply)

    async def _save_quietly(self) -> None:
        """Save. If the cluster does not answer, a later save tries again. A log that went to
        another member is not saved."""
        try:
            await self._look()
            await self.save()
        except (Retryable, Fenced) as error:
            logger.info("%s could not save: %s", self.name, error)

    async def _follow(self, *, is_start: bool = False) -> None:
        """Read this member's logs of the newest assignment, from their positions.

        Args:
            is_start: whether a log that cannot be begun is an error; otherwise the other logs go
                on.
        Raises:
            Retryable: it could not let go of a log; it reads on meanwhile.
            CordwoodError: `is_start`, and one cannot be begun.
        """
        group = self._group
        assert group is not None, "it was asked before"
        while True:
            mine = self._mine(group)
            for log in self.logs:
                # A log that went to another member and back begins anew at that member's saved
                # position.
                if log not in mine or self._begun.get(log) != _since(group, log, self.member):
                    self._stop(log)
            leaving = sorted(mine & group.successors.keys())
            if leaving:
                await self._let_go(leaving, group)
            wanted = [
                log
                for log in sorted(mine - {*leaving})
                if self._begun.get(log) != _since(group, log, self.member)
            ]
            # Noted before the first await: after a cancellation the next turn continues from it.
            self._unbegun = {log: self._unbegun.get(log) for log in wanted}
            self._first = {log: lsn for log, lsn in self._first.items() if log in wanted}
            self._begin_at = 0.0
            # Only now: an earlier save belongs to the earlier reading.
            self.generation = group.generation
            for log in wanted:
                await self._begin(log, group, is_start=is_start)
            self._begin_at = self._loop.time() + BEGIN_AGAIN_S
            # Letting go of a log made a new generation, which may give this member another log.
            if self._group is None or self._group is group or not leaving:
                break
            group = self._group

    async def _begin(self, log: str, group: ConsumerReply, *, is_start: bool) -> None:
        """
        Raises:
            CordwoodError: `is_start`, and it cannot be begun.
        """
        at = group.positions.get(log)
        # Trap: 0 is no absent position. A reset to 0 means the oldest record.
        start = self._first.get(log, self._start) if at is None else Lsn(max(at, OLDEST))
        try:
            await self._reader.start(log, start)
            if at is None and self._start == "tail":
                await self._save_first(log, _since(group, log, self.member))
        except CordwoodError as error:
            if is_start or self._reader.is_closed:
                raise
            logger.warning("%s cannot begin %s: %s", self.name, log, error)
            self._unbegun[log] = error
            if not isinstance(error, Retryable):
                is_gone = isinstance(error, UnknownLog)
                self._untold.append(UnknownLog(f"{log}: {error}") if is_gone else error)
                self._begun[log] = _since(group, log, self.member)
                del self._unbegun[log]
            return
        if at is not None:
            self._saved[log] = at
        self._begun[log] = _since(group, log, self.member)
        self._unbegun.pop(log, None)
        self._first.pop(log, None)

    async def _save_first(self, log: str, since: int) -> None:
        """Save where a log begins that has no position: after a crash before the first save, `tail`
        would be a later LSN. A log without that is not begun: its records are given out only once
        no later member passes over any of them.

        Raises:
            Retryable: the cluster did not answer.
        """
        first = self._first[log] = self._reader.position(log)
        self._begun[log] = since
        is_begun = False
        try:
            await self._save({log: int(first)}, self._reading([log]))
            is_begun = True
        except Fenced as error:
            logger.info("%s: %s", self.name, error)
            is_begun = True
        finally:
            if not is_begun:
                self._stop(log)

    def _mine(self, group: ConsumerReply) -> set[str]:
        if not self.member:
            return {*self._logs}
        return {log for log in self._logs if group.owners.get(log) == self.member}

    def _stop(self, log: str) -> None:
        self._reader.stop(log)
        self._saved.pop(log, None)
        self._begun.pop(log, None)

    async def _let_go(self, leaving: Sequence[str], group: ConsumerReply) -> None:
        """Save the positions of logs that another member waits for, and give out none of their
        records any more."""
        async with self._saving:
            read = [log for log in leaving if log in self.logs]
            new = {
                log: int(lsn)
                for log, lsn in self._positions(read).items()
                if self._saved.get(log) != lsn
            }
            # Race: with the newest state, this save would undo a reset that came meanwhile.
            reading = _Reading(group.generation, self._reading(new).begun)
            try:
                await self._save_each(leaving, new, reading, go=True)
            except Fenced as error:
                logger.info("%s: %s", self.name, error)
        for log in leaving:
            self._stop(log)

    def _known_generation(self) -> int:
        return self._group.generation if self._group is not None else self.generation

    def _fail(self, error: CordwoodError) -> None:
        """Have the next call raise `error`: this is no member any more."""
        self._error = error
        self._reader.wake()

    @property
    def _beat_s(self) -> float:
        group = self._group
        if group is not None and self.member in group.successors.values():
            return HANDOVER_BEAT_S
        return MEMBER_TTL_S / BEATS


def _since(group: ConsumerReply, log: str, member: str) -> int:
    """A value that changes when a log has to be begun anew."""
    return group.since.get(log, 0) if member else group.resets.get(log, 0)


async def _beat(
    known: weakref.ref[Consumer], ended: asyncio.Event, ask: Ask, name: str, member: str
) -> None:
    """Send a member's heartbeats and bring it the assignment, until its reader has ended.

    It holds the member weakly: a member that its application dropped leaves, and keeps no log.
    """
    generation = 0
    while (consumer := known()) is not None:
        pause_s, generation = consumer._beat_s, consumer._known_generation()
        del consumer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await ended.wait()
        if (consumer := known()) is None:
            break
        # Taken anew after the pause: a beat with an older generation would be refused.
        generation = consumer._known_generation()
        del consumer
        if ended.is_set():
            return
        try:
            reply = await ask(BeatConsumer(name, member, generation, round(MEMBER_TTL_S * 1000)))
        except Retryable as error:
            logger.info("%s: no beat: %s", name, error)
            continue
        except CordwoodError as error:
            if (consumer := known()) is not None:
                consumer._fail(error)
            return
        assert isinstance(reply, ConsumerReply), "calls about a consumer are answered with it"
        if (consumer := known()) is not None:
            consumer._learn(reply)
            del consumer
    logger.info("%s: nothing refers to member %s any more: it leaves", name, member)
    with contextlib.suppress(CordwoodError):  # it counts as gone in MEMBER_TTL_S anyway
        await ask(LeaveConsumer(name, member, generation))
