"""Cursors: where consumers stand, looked at and moved without reading.

A cursor is a consumer's position in one log: the first LSN that it has not dealt with.

Source: docs/design.md §6, §7; `protocol.consumer_group`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from cordwood.client.find.log_info import AnyLog, LogInfo
from cordwood.client.read.consumer_logs import Ask, named
from cordwood.errors import CordwoodError, Fenced, Retryable
from cordwood.layout.message_consumers import (
    AskConsumers,
    ConsumerReply,
    ConsumersReply,
    SaveCursors,
)
from cordwood.lsn import ESN_MAX, OLDEST, Lsn, format_lsn

RESETS_MAX = 16
"""Tries of a reset. A try fails if a member saves between its read and its write; members save
every few seconds."""

UNANSWERED_MAX = 256
"""Compare-and-sets without an answer that a store remembers, for when they are made again."""

ByLog = Mapping[str, int] | Mapping[int, int]
"""LSNs by the names of logs, or by their numbers."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind a log's tail.

    Attributes:
        position: the first unprocessed LSN. tail: the last readable LSN.
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


class Cursors:
    """The consumers of a cluster."""

    def __init__(
        self,
        ask: Ask,
        find: Callable[[AnyLog], Awaitable[LogInfo]],
        tail: Callable[[LogInfo], Awaitable[Lsn]],
        names: Callable[[], Awaitable[Mapping[int, str]]],
        new_mark: Callable[[], str],
    ) -> None:
        """
        Args:
            find: a log by name or number; tail: the last LSN of it that can be read.
            names: of all logs, by number. new_mark: see `Cluster.new_mark`.
        """
        self._ask = ask
        self._find = find
        self._tail = tail
        self._names = names
        self._new_mark = new_mark
        # By call, the marks of those without an answer, the oldest first.
        self._unanswered: dict[bytes, str] = {}

    async def list(self, consumer: str = "") -> list[ConsumerReply]:
        """The state of one consumer, or of all: positions, members, and which member reads which
        logs.

        Logs have their present names; a deleted log is its number, in digits.

        Raises:
            BadSetting: that names no consumer.
            Retryable: the cluster did not answer.
        """
        groups = await self._ask_groups(consumer)
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

    async def _ask_groups(self, consumer: str) -> Sequence[ConsumerReply]:
        reply = await self._ask(AskConsumers(consumer))
        assert isinstance(reply, ConsumersReply), "AskConsumers is answered with groups"
        return reply.groups

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
        asked: Sequence[AnyLog] = logs or sorted(map(int, {*group.positions, *group.owners}))
        behind: dict[str, Lag | CordwoodError] = {}
        for log in asked:
            name = str(log)
            try:
                info = await self._find(log)
                name = info.name
                position = Lsn(group.positions.get(str(info.log_id), OLDEST))
                behind[name] = Lag(position, await self._tail(info))
            except CordwoodError as error:
                behind[name] = error
        return dict(sorted(behind.items())) if not logs else behind

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
            All positions of this consumer: the given logs by name, others by number, in digits.
        Raises:
            Fenced: a member reads one of the logs, or a position is not the expected one, or was
                reset during the call.
            Rejected: one would go back, and `reset` was not asked for.
            Retryable: the cluster did not answer; it may be saved, and may be saved again. With
                `expected`, the same call of this store says then whether the position was moved by
                the first one.
        """
        asked: set[AnyLog] = {*positions, *(expected or ())}
        infos = {log: await self._find(log) for log in sorted(asked, key=str)}
        keys = {log: str(info.log_id) for log, info in infos.items()}
        new = {keys[log]: int(lsn) for log, lsn in positions.items()}
        if expected is None and reset:
            reply = await self.reset(consumer, new)
        else:
            was = {keys[log]: int(lsn) for log, lsn in (expected or {}).items()}
            resets = await self._resets(consumer, new)
            call = SaveCursors(consumer, "", 0, new, was, reset, resets=resets)
            reply = await (self._compare_and_set(call) if was else self._save(call))
        names = {keys[log]: info.name for log, info in infos.items()}
        return {names.get(log, log): Lsn(lsn) for log, lsn in reply.positions.items()}

    async def _compare_and_set(self, call: SaveCursors) -> ConsumerReply:
        """Save with a mark. A call that was not answered may be done; made again, it has the same
        mark."""
        claim = msgspec.json.encode(replace(call, resets={}), order="sorted")
        mark = self._mark_of(claim)
        try:
            return await self._save(replace(call, mark=mark))
        except (Retryable, asyncio.CancelledError):
            self._unanswered[claim] = mark
            while len(self._unanswered) > UNANSWERED_MAX:
                self._unanswered.pop(next(iter(self._unanswered)))
            raise

    def _mark_of(self, claim: bytes) -> str:
        """The mark for a compare-and-set. Of two calls at the same time that want the same, one at
        most has that of a call before."""
        return self._unanswered.pop(claim, "") or self._new_mark()

    async def _resets(self, consumer: str, logs: Iterable[str]) -> dict[str, int]:
        """The number of resets by log: a late save does not undo a newer reset."""
        if not logs:
            return {}
        known = (await self.by_number(consumer)).resets
        return {log: known.get(log, 0) for log in logs}

    async def reset(self, consumer: str, new: dict[str, int]) -> ConsumerReply:
        """Move positions as a compare-and-set: a stopped node may do the call late, and must not
        undo newer saves."""
        for again in reversed(range(RESETS_MAX)):
            group = await self.by_number(consumer)
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
