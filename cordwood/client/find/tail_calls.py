"""How a store finds logs, and where they end; `store.Store` has these calls.

A log is found once in a call, and asked about by its number from there on: its name may go to
another log meanwhile.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from cordwood.client.admin.log_tree import check_write_token
from cordwood.client.admin.positions import Positions
from cordwood.client.cluster import Cluster
from cordwood.client.find.ask_released import ReleasedAsker
from cordwood.client.find.ask_tail import ask_tail
from cordwood.client.find.log_info import AnyLog, LogInfo
from cordwood.client.opening import OpeningItems
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import UnknownLog, Unreachable
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.settings import ClientSettings

TAILS_AT_ONCE = 256
"""Questions in flight in `tails`: enough to hide the round trips, few to queue at a node."""


class TailCalls:
    """See the module."""

    _cluster: Cluster
    _settings: ClientSettings
    _asker: ReleasedAsker
    _positions: Positions

    def read(self, log: AnyLog, *args: Any, **options: Any) -> OpeningItems[ReadStream, Any]:
        """See `store.Store`."""
        raise NotImplementedError

    async def _find(self, log: AnyLog, *, create: bool = False) -> LogInfo:
        """Find a log. Only appends, and reads that wait for records, create a missing log: a mere
        question must not bring a deleted log back."""
        self._cluster.check_open()
        timeout_s = self._settings.timeout_s
        return await self._cluster.find_log(log, create=create, timeout_s=timeout_s)

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
            # The name led to a log that was deleted since; it may be another one's by now.
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

        A call a node for all the logs it sequences, so it is cheap to ask often. It may
        lie below `tail` for as long as a sequencer has not heard that another one took over;
        it is never above it. A log without a sequencer is asked for its `tail`.

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

    async def epoch_end(self, log: AnyLog, epoch: int) -> Lsn | None:
        """Where the records of a closed epoch end: the LSN of its bridge.

        Read from the bridge itself, so it is one round trip however long the epoch is.
        For planning only: recovery may have left holes below it.

        Args:
            epoch: an epoch whose end readers have seen, so below the tail's epoch.
        Returns:
            The bridge's first LSN; None if no copy of the bridge is left.
        Raises:
            UnknownLog: the log does not exist.
            Retryable: the nodes did not say within the client's timeout.
        """
        info = await self._find(log)  # a read up to an LSN would make it
        last = make_lsn(epoch, ESN_MAX)
        stream = await self.read(info.log_id, last, last)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await stream.next()
        except TimeoutError:
            raise Unreachable(f"no node says where epoch {epoch} of {log} ends") from None
        finally:
            stream.close()
        return stream.bridge or await self._positions.epoch_end(info, last)
