"""A consumer: a reader whose positions are kept in the metadata store, shared by its members.

It reads each log on from its saved position, and saves what its application has dealt with:
what was given out before the last call of `read`. So a record may be given out again after
a crash, and none is passed over.

As a member it reads the logs that fall to it, and gives up those that fall to another; a
member that was replaced without knowing cannot save any more (`protocol.consumer_group`).

Source: design.md §6, §7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from cordwood.block import Gap, Record
from cordwood.client.cursors import Ask
from cordwood.client.position_calls import Start
from cordwood.client.reader import Portion, Reader
from cordwood.errors import CordwoodError, Fenced, Retryable
from cordwood.layout.message import (
    BeatGroup,
    GroupReply,
    JoinGroup,
    LeaveGroup,
    SaveCursors,
)
from cordwood.lsn import Lsn

logger = logging.getLogger(__name__)

MEMBER_TTL_S = 15.0
"""How long a member may say nothing before its logs go to others: longer than a failover
of the metadata store and than most pauses, shorter than a person's patience."""

BEATS = 3
"""Beats in that time, so that one may get lost."""


class Consumer:
    """See the module. Made by `Store.consumer`; use it with `async with`, or `start` and `close`.

    Attributes:
        name: the consumer's.
        member: this member's name, "" without sharing.
        generation: as told last.
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
        self._group: GroupReply | None = None
        self._error: CordwoodError | None = None

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(save=kind is None)

    async def start(self) -> None:
        """Join, and begin to read.

        Raises:
            BadSetting, UnknownLog, Retryable: see `Store.read`.
        """
        ttl_ms = round(MEMBER_TTL_S * 1000)
        if self.member:
            reply = await self._ask(JoinGroup(self.name, self.member, [*self._logs], ttl_ms))
        else:
            reply = await self._ask(SaveCursors(self.name, "", 0, {}, {}, False))
        assert isinstance(reply, GroupReply), "calls about a consumer are answered with it"
        self._group = reply
        await self._follow()
        if self.member:
            self._beating = self._tasks.create_task(self._beat())

    async def close(self, *, save: bool = True) -> None:
        """Save what was dealt with, leave, and stop reading. Safe to call twice.

        Args:
            save: False leaves the positions where they were saved last.
        Raises:
            Retryable: the cluster did not answer; what was not saved is read again.
        """
        if self._reader.is_closed:
            return
        if self._beating is not None:
            self._beating.cancel()
        try:
            if save:
                await self.save()
        except Fenced as error:
            logger.info("%s: %s", self.name, error)
        finally:
            self._reader.close()
            if self.member:
                await self._ask(LeaveGroup(self.name, self.member))

    # Reading.

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that this member reads now."""
        return self._reader.logs

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still; see `Reader.unhealthy`."""
        return self._reader.unhealthy

    async def read(self, count: int = 1000, timeout_s: float | None = None) -> Portion:
        """As `Reader.read`; what was given out before counts as dealt with from now on.

        Raises:
            Fenced: this member was replaced.
            CordwoodError: as `Reader.read`; or saving failed for a reason that lasts.
        """
        await self._on_turn()
        portion = Portion()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while not portion:
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                break
            # In short turns, so that a change of the members is followed while nothing comes.
            wait_s = MEMBER_TTL_S / BEATS if left is None else min(left, MEMBER_TTL_S / BEATS)
            portion = await self._reader.read(count, wait_s) if self.logs else Portion()
            if not portion and not self.logs:
                await asyncio.sleep(wait_s)
            if not portion:
                await self._on_turn()
        return portion

    async def __aiter__(self) -> AsyncIterator[tuple[str, Record | Gap]]:
        while True:
            for item in (portion := await self.read()):
                yield portion.log, item

    async def save(self) -> dict[str, Lsn]:
        """Save how far every log was given out; all of that counts as dealt with.

        Returns:
            By log, the first LSN not dealt with.
        Raises:
            Fenced: a log that was read here has another reader by now.
            Retryable: the cluster did not answer; what was saved before stands.
        """
        positions = {log: self._reader.position(log) for log in self.logs}
        new = {log: int(lsn) for log, lsn in positions.items() if self._saved.get(log) != lsn}
        self._saved_at = self._loop.time()
        if new:
            call = SaveCursors(self.name, self.member, self.generation, new, {}, False)
            await self._ask(call)
            self._saved.update(new)
        return positions

    # Inside.

    async def _on_turn(self) -> None:
        """Between two portions: save if it is time, and follow the members."""
        if self._error is not None:
            raise self._error
        if self._group is not None and self._group.generation != self.generation:
            await self._save_quietly()
            await self._follow()
        every_s = self._save_every_s
        if every_s is not None and self._loop.time() >= self._saved_at + every_s:
            await self._save_quietly()

    async def _save_quietly(self) -> None:
        """Save; a cluster that does not answer is asked again later, and a log that went to
        another member is that one's."""
        try:
            await self.save()
        except (Retryable, Fenced) as error:
            logger.info("%s could not save: %s", self.name, error)

    async def _follow(self) -> None:
        """Read the logs that are this member's by what was told last, from their positions."""
        group = self._group
        assert group is not None, "it was asked before"
        if self.member:
            mine = {log for log in self._logs if group.owners.get(log) == self.member}
        else:
            mine = set(self._logs)
        for log in self.logs:
            if log not in mine:
                self._reader.stop(log)
                self._saved.pop(log, None)
        for log in sorted(mine - set(self.logs)):
            at = group.positions.get(log)
            if at:
                self._saved[log] = at
            await self._reader.start(log, at or self._start)
        self.generation = group.generation

    async def _beat(self) -> None:
        """Say that this member is there, and learn who reads what."""
        ttl_ms = round(MEMBER_TTL_S * 1000)
        while True:
            await asyncio.sleep(MEMBER_TTL_S / BEATS)
            try:
                known = self._group.generation if self._group is not None else self.generation
                reply = await self._ask(BeatGroup(self.name, self.member, known, ttl_ms))
            except Retryable as error:
                logger.info("%s: no beat: %s", self.name, error)
                continue
            except CordwoodError as error:
                self._error = error
                return
            assert isinstance(reply, GroupReply), "calls about a consumer are answered with it"
            self._group = reply
