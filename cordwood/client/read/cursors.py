"""Cursors: the positions of consumers. These calls show and move them, without reading records.

A cursor is a consumer's position in one log: the first LSN that it has not dealt with.

Source: docs/design.md §6, §7; `protocol.consumer_group`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import operator
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from cordwood.client.find.log_info import AnyLog, LogInfo, Unread, take_unread
from cordwood.client.find.several_logs import one_log
from cordwood.client.read.consumer_logs import Ask, named
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Fenced,
    OutcomeUnknown,
    Overloaded,
    Retryable,
)
from cordwood.host.delivery import if_undelivered
from cordwood.layout.log_names import normalise_name
from cordwood.layout.message_consumers import (
    AskConsumers,
    ConsumerReply,
    ConsumersReply,
    SaveCursors,
)
from cordwood.lsn import ESN_MAX, OLDEST, Lsn, format_lsn
from cordwood.protocol.consumer_group import MARKS_MAX

logger = logging.getLogger(__name__)

RESETS_MAX = 16
"""Tries of a reset. A try fails if a member saves between its read and its write; members save
every few seconds."""

UNANSWERED_MAX = 256
"""The number of compare-and-sets without an answer past which a store takes no new one: it could
not recognise the repeats of all of them."""

CLAIM_MARKS_MAX = MARKS_MAX
"""Equal compare-and-sets without an answer whose marks a store remembers; as many as a node."""

CALLERS = 2
"""Callers that equal claims without an answer, one after another, are taken to be of."""

ByLog = Mapping[str, int] | Mapping[int, int]
"""LSNs by the names of logs, or by their numbers."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind a log's tail.

    Attributes:
        position: the first unprocessed LSN.
        tail: the last readable LSN.
        records: the distance in records; None across epochs, where LSNs do not tell.
    """

    position: Lsn
    tail: Lsn

    @property
    def records(self) -> int | None:
        """Unprocessed records; holes count too."""
        if self.position > self.tail:
            return 0
        if self.position >> 32 != self.tail >> 32:
            return None
        return (self.tail & ESN_MAX) - max(1, self.position & ESN_MAX) + 1

    def __str__(self) -> str:
        if self.records is not None:
            return str(self.records)
        return f"{format_lsn(self.position)} to {format_lsn(self.tail)}"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A compare-and-set that got no answer.

    Attributes:
        consumer: whose positions it moves.
        asked: the calls, with logs as their callers named them, by name or by number, and where
            these led. Two spellings are one name. The same call means the same logs when it is made
            again, although a name may lead to another log by then. Empty once a caller was told of
            a position of the consumer: the same call is a new claim then.
        marks: by which the nodes recognise it. Equal calls at the same time have a mark each, and
            at most one of these calls was done. Empty while a repeat that took them is under way.
        calls: equal calls without an answer that were not made again yet.
        doubtful: of these, how many there are not if a repeat without an answer was one.
        under_way: repeats that are under way.
    """

    consumer: str
    asked: dict[bytes, dict[AnyLog, LogInfo]]
    marks: tuple[str, ...]
    calls: int
    doubtful: int = 0
    under_way: int = 0

    def taken(self) -> Unanswered:
        """While one of the calls is made again, or one that may be the first of another caller."""
        left = max(0, self.calls - 1)
        return dataclasses.replace(
            self,
            marks=(),
            calls=left,
            doubtful=min(self.doubtful, left),
            under_way=self.under_way + 1,
        )

    def and_also(self, later: Unanswered) -> Unanswered:
        """These and an equal claim that ended later, maybe with its logs named in another way."""
        return dataclasses.replace(
            self,
            asked=self.asked | later.asked,
            marks=(*self.marks, *later.marks)[-CLAIM_MARKS_MAX:],
            calls=self.calls + later.calls,
        )

    def and_another(self) -> Unanswered:
        """After a repeat without an answer. It may have been the first call of another caller: both
        will make theirs again then."""
        if self.calls + self.under_way >= CALLERS:
            return self
        return dataclasses.replace(self, calls=self.calls + 1, doubtful=self.doubtful + 1)


class Cursors:
    """The consumers of a cluster."""

    def __init__(
        self,
        ask: Ask,
        find: Callable[[AnyLog], Awaitable[LogInfo]],
        find_now: Callable[[AnyLog], Awaitable[LogInfo]],
        find_several: Callable[[Iterable[AnyLog]], Awaitable[dict[AnyLog, LogInfo]]],
        tail: Callable[[LogInfo], Awaitable[Lsn]],
        names: Callable[[], Awaitable[Mapping[int, str]]],
        new_mark: Callable[[], str],
    ) -> None:
        """
        Args:
            find: a log by name or number.
            find_now: the same, not from memory.
            find_several: the logs of one call; see `several_logs`.
            tail: the last LSN of it that can be read.
            names: of all logs, by number.
            new_mark: see `Cluster.new_mark`.
        """
        self._ask = ask
        self._find = find
        self._find_now = find_now
        self._find_several = find_several
        self._tail = tail
        self._names = names
        self._new_mark = new_mark
        # By claim, those without an answer, the oldest first.
        self._unanswered: dict[bytes, Unanswered] = {}

    async def list(
        self, consumer: str = "", *, unread: Unread | None = None
    ) -> list[ConsumerReply]:
        """The state of one consumer, or of all: positions, members, and which member reads which
        logs.

        Logs have their present names; a deleted log is its number, in digits.

        Args:
            unread: takes a sentence for each consumer whose entry in the metadata store cannot be
                read, and which is left out. Without it such an entry is an error.
        Raises:
            BadSetting: that names no consumer.
            Malformed: an entry cannot be read.
            Retryable: the cluster did not answer.
        """
        groups = await self._ask_groups(consumer, unread)
        if not any(group.positions or group.owners or group.members for group in groups):
            return [*groups]
        names = {str(number): name for number, name in (await self._names()).items()}
        return [named(group, names) for group in groups]

    async def by_number(self, consumer: str) -> ConsumerReply:
        """The state of a consumer, each log by its number in digits.

        Raises:
            BadSetting: that names no consumer.
            Retryable: the cluster did not answer.
        """
        (group,) = await self._ask_groups(consumer)
        return group

    async def _ask_groups(
        self, consumer: str, unread: Unread | None = None
    ) -> Sequence[ConsumerReply]:
        reply = await self._look(consumer)
        take_unread(unread, reply.unread)
        self._told(consumer)
        return reply.groups

    async def _look(self, consumer: str) -> ConsumersReply:
        reply = await self._ask(AskConsumers(consumer))
        assert isinstance(reply, ConsumersReply), "AskConsumers is answered with groups"
        return reply

    def _told(self, consumer: str, asked: bytes = b"") -> None:
        """The caller is told of positions of a consumer, "" for all. By these it claims from now
        on, in the logs to which names lead now.

        Args:
            asked: the call that is answered. Callers of equal ones, which had no answer, wait.
        """
        for claim, each in self._unanswered.items():
            if consumer in ("", each.consumer) and asked not in each.asked:
                self._unanswered[claim] = dataclasses.replace(each, asked={})

    async def lag(self, consumer: str, *logs: str) -> dict[str, Lag | CordwoodError]:
        """A consumer's lag by log; an error where the lag is unknown.

        One log that was deleted, or has no sequencer just now, hides no other.

        Args:
            logs: by name; if empty, all logs in which the consumer has a position or a member. In
                a log without a position the consumer stands at the oldest record.
        Raises:
            BadSetting: that names no consumer.
            Retryable: the cluster did not answer.
        """
        group = await self.by_number(consumer)
        # A key that is no number is no log of this version's: nobody can look it up.
        held = {each for each in (*group.positions, *group.owners) if each.isdecimal()}
        asked: Sequence[AnyLog] = logs or sorted(map(int, held))
        # From memory, a name may lead to the log of another of them.
        find = self._find_now if len(logs) > 1 else self._find
        behind = await self._lags(group, asked, find)
        if len(behind) < len(asked):
            # Two may have one name, or lead to one log.
            behind = await self._lags(group, asked, self._find_now)
        return dict(sorted(behind.items())) if not logs else behind

    async def _lags(
        self,
        group: ConsumerReply,
        logs: Iterable[AnyLog],
        find: Callable[[AnyLog], Awaitable[LogInfo]],
    ) -> dict[str, Lag | CordwoodError]:
        behind: dict[str, Lag | CordwoodError] = {}
        for log in logs:
            name = str(log)
            try:
                info = await find(log)
                name = info.name
                position = Lsn(group.positions.get(str(info.log_id), OLDEST))
                behind[name] = Lag(position, await self._tail(info))
            except CordwoodError as error:
                behind[name] = error
        return behind

    async def save(
        self,
        consumer: str,
        positions: ByLog,
        expected: ByLog | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Lsn]:
        """Move a consumer's positions, all of them or none.

        Args:
            positions: by log (a name or a number), the first unprocessed LSN.
            expected: the required present positions, 0 for none: a compare-and-set. Of two callers
                that expect the same, one gets Fenced.
            reset: also move positions back, and while members read the logs. They begin again from
                there.
        Returns:
            All positions of this consumer: the given logs by name, others by number, in digits. So
            are given logs of which the client remembers the same name.
        Raises:
            BadSetting: two of the names lead to one log, or a log has two positions.
            Fenced: a member reads one of the logs, or a position is not the expected one, or was
                reset during the call.
            Rejected: one would go back, and `reset` was not asked for.
            Overloaded: with `expected`: too many such calls of this store had no answer and were
                not made again. Nothing was saved.
            Retryable: the cluster did not answer; it may be saved, and may be saved again: by
                number, if the logs may be renamed. With `expected`, the same call of this store
                says then whether the position was moved by the first one, in the same logs. If
                this store has told of positions of the consumer since, to any caller (as `lag`
                does), the same call is a new one, in the logs to which the names lead then.
        """
        asked = msgspec.json.encode([consumer, _given(positions), _given(expected or {}), reset])
        infos = self._earlier(asked)
        if infos is None:
            named: set[AnyLog] = {*positions, *(expected or ())}
            found = await self._find_several(sorted(named, key=str))
            infos = {_one_spelling(log): info for log, info in found.items()}
        new = _by_number(positions, infos)
        if expected is None and reset:
            reply = await self.reset(consumer, new)
        else:
            was = _by_number(expected or {}, infos)
            call = SaveCursors(consumer, "", 0, new, was, reset)
            if was:
                reply = await self._compare_and_set(call, asked, infos)
            else:
                reply = await self._save(replace(call, resets=await self._resets(consumer, new)))
        self._told(consumer, asked)
        names = {str(info.log_id): info.name for info in infos.values()}
        # Numbers are not looked up, and one of two logs may have the name that the other one had.
        taken = Counter(names.values())
        names = {log: name for log, name in names.items() if taken[name] == 1}
        return {names.get(log, log): Lsn(lsn) for log, lsn in reply.positions.items()}

    def _earlier(self, asked: bytes) -> dict[AnyLog, LogInfo] | None:
        """The logs of the same compare-and-set, if it was made before and got no answer."""
        earlier = (each.asked[asked] for each in self._unanswered.values() if asked in each.asked)
        return next(earlier, None)

    async def _compare_and_set(
        self, call: SaveCursors, asked: bytes, infos: dict[AnyLog, LogInfo]
    ) -> ConsumerReply:
        """Save with a mark. A call that was not answered may be done; made again, it has the same
        mark, and means the same logs.

        Raises:
            Overloaded: it is a new one, and too many had no answer.
        """
        claim = msgspec.json.encode(call, order="sorted")
        is_again = claim in self._unanswered
        marks = self._marks_of(claim)
        each = Unanswered(call.consumer, {asked: infos}, marks, calls=1)
        unanswered: Unanswered | None = None
        try:
            resets = await self._resets(call.consumer, call.positions)
            return await self._save_with(replace(call, resets=resets), marks)
        except (Retryable, OutcomeUnknown, asyncio.CancelledError):
            unanswered = each
            raise
        finally:
            self._end(claim, unanswered, is_again=is_again)
            if unanswered is None:
                if_undelivered(partial(self._end, claim, each, is_again=False))

    def _end(self, claim: bytes, unanswered: Unanswered | None, *, is_again: bool) -> None:
        """A compare-and-set has ended.

        Args:
            unanswered: without an answer.
            is_again: it counts as the repeat of an equal one.
        """
        # Equal calls may have ended meanwhile, without an answer either.
        kept = self._unanswered.pop(claim, None)
        if kept is not None and is_again:
            kept = dataclasses.replace(kept, under_way=kept.under_way - 1)
        if unanswered is not None:
            kept = unanswered if kept is None else kept.and_also(unanswered)
            kept = kept.and_another() if is_again else kept
        if kept is not None and (kept.calls or kept.under_way):
            self._unanswered[claim] = kept
        self._make_room(UNANSWERED_MAX)

    def _make_room(self, most: int) -> None:
        """Forget the oldest calls until `most` are left, but only calls that would be new ones when
        they are made again, because their callers were told of positions since, and calls of which
        it is not known that there are any. The repeat of another call would be refused, and nobody
        would have what it claimed."""
        # Trap: `_end` counts a repeat that is under way down again, and would count those of a
        # later, equal claim.
        for claim in [
            each
            for each, kept in self._unanswered.items()
            if not kept.under_way and (not kept.asked or kept.calls == kept.doubtful)
        ]:
            if len(self._unanswered) <= most:
                break
            del self._unanswered[claim]

    async def _save_with(self, call: SaveCursors, marks: Sequence[str]) -> ConsumerReply:
        """Save with the first of these marks that is not refused."""
        for mark in marks[:-1]:
            try:
                return await self._save(replace(call, mark=mark))
            except Fenced as error:
                logger.debug("%s was not claimed by the call %s: %s", call.consumer, mark, error)
        return await self._save(replace(call, mark=marks[-1]))

    def _marks_of(self, claim: bytes) -> tuple[str, ...]:
        """The marks for a compare-and-set: those of earlier, equal calls without an answer. Of two
        equal calls at the same time, at most one gets these marks.

        The logs are remembered for as long as one of the earlier calls was not made again, or is
        not answered. `_end` must follow.

        Raises:
            Overloaded: there were none, and too many others had no answer.
        """
        earlier = self._unanswered.get(claim)
        if earlier is None:
            self._make_room(UNANSWERED_MAX - 1)
            if len(self._unanswered) >= UNANSWERED_MAX:
                raise Overloaded(
                    f"{len(self._unanswered)} claims of this store had no answer: make them again, "
                    "or look at the positions of their consumers"
                )
            return (self._new_mark(),)
        # Race: it is not known yet whether this call is answered. Equal calls that are made again
        # meanwhile mean the same logs.
        self._unanswered[claim] = earlier.taken()
        return earlier.marks or (self._new_mark(),)

    async def _resets(self, consumer: str, logs: Iterable[str]) -> dict[str, int]:
        """The number of resets by log: a late save does not undo a newer reset."""
        if not logs:
            return {}
        (group,) = (await self._look(consumer)).groups
        known = group.resets
        return {log: known.get(log, 0) for log in logs}

    async def reset(self, consumer: str, new: dict[str, int]) -> ConsumerReply:
        """Move positions as a compare-and-set: a stopped node may do the call late, and must not
        undo newer saves."""
        for again in reversed(range(RESETS_MAX)):
            (group,) = (await self._look(consumer)).groups
            was = {log: group.positions.get(log, 0) for log in new}
            resets = {log: group.resets.get(log, 0) for log in new}
            mark = self._new_mark()
            try:
                return await self._save(
                    SaveCursors(consumer, "", 0, new, was, reset=True, resets=resets, mark=mark)
                )
            except Fenced:
                if not again:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _save(self, call: SaveCursors) -> ConsumerReply:
        reply = await self._ask(call)
        assert isinstance(reply, ConsumerReply), "calls about a consumer are answered with it"
        return reply


def _given(positions: ByLog) -> list[tuple[bool, str, int]]:
    spelt = ((_one_spelling(log), at) for log, at in positions.items())
    return sorted((isinstance(log, str), str(log), _position(at)) for log, at in spelt)


def _one_spelling(log: AnyLog) -> AnyLog:
    """
    Raises:
        BadSetting: that is no name.
    """
    return normalise_name(log) if isinstance(log, str) else log


def _by_number(positions: ByLog, infos: Mapping[AnyLog, LogInfo]) -> dict[str, int]:
    """
    Args:
        infos: the logs by number, and by name in one spelling.
    Raises:
        BadSetting: a log is there twice, in two spellings, or by name and by number.
    """
    found: dict[str, int] = {}
    by_number: dict[int, AnyLog] = {}
    for log, lsn in positions.items():
        number = infos[_one_spelling(log)].log_id
        if (first := by_number.setdefault(number, log)) != log:
            raise one_log(first, log, number)
        found[str(number)] = _position(lsn)
    return found


def _position(lsn: object) -> int:
    """
    Raises:
        BadSetting: it is no whole number.
    """
    try:
        return operator.index(lsn)  # type: ignore[arg-type]
    except TypeError:
        text = f"{str(lsn)[:64]!r} is no position: it is an LSN, a whole number"
        raise BadSetting(text) from None
