"""A store's calls that find logs and their ends; `store.Store` has them.

A call finds a log once, and asks about its number from there on: its name may go to another log
meanwhile. The store's other calls about logs build on these.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cordwood.client.admin.log_tree import LogTree, check_write_token
from cordwood.client.admin.positions import Positions
from cordwood.client.cluster import Cluster
from cordwood.client.find.ask_released import ReleasedAsker
from cordwood.client.find.ask_tail import ask_tail
from cordwood.client.find.log_info import AnyLog, LogInfo, log_info, take_unread
from cordwood.client.find.several_logs import find_now, find_several
from cordwood.errors import UnknownLog
from cordwood.layout.message_logs import ListLogs, LogsReply
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import Lsn
from cordwood.settings import ClientSettings

TAILS_AT_ONCE = 256
"""Questions in flight in `tails`: enough to hide the round trips, few to queue at a node."""


class TailCalls:
    """See the module."""

    _cluster: Cluster
    _settings: ClientSettings
    _asker: ReleasedAsker
    _positions: Positions

    async def _find(self, log: AnyLog, *, create: bool = False) -> LogInfo:
        """Find a log. Only appends, and reads that wait for records, create a missing log: a mere
        question must not bring a deleted log back."""
        self._cluster.check_open()
        timeout_s = self._settings.timeout_s
        return await self._cluster.find_log(log, create=create, timeout_s=timeout_s)

    async def _find_now(self, log: AnyLog, *, create: bool) -> LogInfo:
        """A log as it is now; see `several_logs.find_now`."""
        self._cluster.check_open()
        timeout_s = self._settings.timeout_s
        return (await find_now(self._cluster, log, create=create, timeout_s=timeout_s))[0]

    async def _find_several(
        self, logs: Iterable[AnyLog], *, create: bool = False, may_remember: bool = False
    ) -> dict[AnyLog, LogInfo]:
        """The logs of one call; see `several_logs.find_several`."""
        self._cluster.check_open()
        timeout_s = self._settings.timeout_s
        return await find_several(
            self._cluster, logs, create=create, timeout_s=timeout_s, may_remember=may_remember
        )

    async def _find_to_append(self, log: AnyLog) -> LogInfo:
        info = await self._find(log, create=True)
        check_write_token(info, self._settings.write_tokens)
        return info

    async def tail(self, log: AnyLog) -> Lsn:
        """The last LSN that readers may see; (E, 0) while epoch E is empty.

        Raises:
            UnknownLog: the log does not exist.
            Retryable: no sequencer answered within the client's timeout.
        """
        info = await self._find(log)
        try:
            return await self._tail_of(info)
        except UnknownLog as error:
            # The name led to a log that was deleted since; another log may have it by now.
            self._cluster.note_refusal(info.log_id, error)
            if isinstance(log, int):
                raise
        return await self._tail_of(await self._find(log))

    async def _tail_of(self, info: LogInfo) -> Lsn:
        return await ask_tail(self._cluster, info, timeout_s=self._settings.timeout_s)

    async def tails(self, logs: Sequence[AnyLog]) -> list[Lsn]:
        """The tails of several logs, in their order, asked for at the same time.

        Raises:
            CordwoodError: as `tail`, for the first that failed.
        """
        asking = asyncio.Semaphore(TAILS_AT_ONCE)

        async def ask(log: AnyLog) -> Lsn:
            async with asking:
                return await self.tail(log)

        answers = await asyncio.gather(*map(ask, logs), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def released(self, logs: Sequence[AnyLog]) -> list[Lsn]:
        """The last readable LSN of each log, in the order of `logs`, from the logs' sequencers.

        It makes one call to each node for all logs that the node sequences, so it is cheap to ask
        often. The answer may be below `tail` for as long as a replaced sequencer has not heard of
        its successor, and is never above it. A log without a sequencer is asked for its `tail`.

        Raises:
            CordwoodError: as `tail`, for the first that failed.
        """
        numbers = {log: (await self._find(log)).log_id for log in dict.fromkeys(logs)}
        known = await self.released_by_number(numbers.values())
        return [known[numbers[log]] for log in logs]

    async def released_by_number(self, logs: Iterable[int]) -> dict[int, Lsn]:
        """As `released`, of many logs by their numbers."""
        self._cluster.check_open()
        numbers = list(logs)
        known: dict[int, int] = await self._asker.ask(numbers)
        left = [log for log in numbers if log not in known]
        known.update(zip(left, await self.tails(left), strict=True))
        return {log: Lsn(known[log]) for log in numbers}

    async def create_log(
        self, log: str, *, copies: int = 0, racks: int = 0, attributes: LogAttributes | None = None
    ) -> LogInfo:
        """Make a log; see `log_tree.LogTree.create`."""
        return await self.log_tree.create(log, copies, racks, attributes or LogAttributes())

    @property
    def log_tree(self) -> LogTree:
        """Attributes, directories, names and epochs of logs, to look at and to change."""
        return LogTree(self._cluster, self._settings)

    async def log(self, log: AnyLog) -> LogInfo:
        """One log, by name or number, as the log tree has it now.

        Raises:
            UnknownLog: it is not there.
        """
        return await self._cluster.find_log(
            log, create=False, timeout_s=self._settings.timeout_s, fresh=True
        )

    async def logs(self, prefix: str = "/", *, unread: list[str] | None = None) -> list[LogInfo]:
        """All logs below a path, by name.

        Args:
            unread: takes a sentence for each entry in the metadata store that cannot be read; the
                logs of these entries are left out. Without it such an entry is an error.
        Raises:
            Malformed: an entry cannot be read, because a newer version or a hand wrote it.
        """
        reply = await self._cluster.call_any(ListLogs(prefix), timeout_s=self._settings.timeout_s)
        assert isinstance(reply, LogsReply), "ListLogs is answered with logs"
        take_unread(unread, reply.unread)
        return [log_info(each) for each in reply.logs]
