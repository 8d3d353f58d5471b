"""Cursors: where consumers stand, looked at and moved without reading.

A cursor is a consumer's position in one log: the first LSN that it has not dealt with.

Source: docs/design.md §6, §7; `protocol.consumer_group`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cordwood.client.cluster import LogInfo
from cordwood.errors import CordwoodError
from cordwood.layout.message import AskGroups, Call, GroupReply, GroupsReply, Reply, SaveCursors
from cordwood.lsn import ESN_MAX, OLDEST, Lsn, format_lsn


class Ask(Protocol):
    """Asks any node; see `Cluster.call_any`."""

    async def __call__(self, message: Call, /) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind a log's tail.

    Attributes:
        position: the first LSN not dealt with.
        tail: the last one that can be read.
        records: how many that is; None across epochs, where LSNs do not say.
    """

    position: Lsn
    tail: Lsn

    @property
    def records(self) -> int | None:
        """Records not dealt with; holes, if there are any, count too."""
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
        find: Callable[[str], Awaitable[LogInfo]],
        tail: Callable[[LogInfo], Awaitable[Lsn]],
    ) -> None:
        """
        Args:
            find: a log by name; tail: the last LSN of it that can be read.
        """
        self._ask = ask
        self._find = find
        self._tail = tail

    async def list(self, consumer: str = "") -> list[GroupReply]:
        """What is known of a consumer, or of all: positions, members, who reads what.

        Raises:
            BadSetting: that names no consumer.
            Retryable: the cluster did not answer.
        """
        reply = await self._ask(AskGroups(consumer))
        assert isinstance(reply, GroupsReply), "AskGroups is answered with groups"
        return reply.groups

    async def lag(self, consumer: str, *logs: str) -> dict[str, Lag | CordwoodError]:
        """How far a consumer is behind, by log; where that is not known, why.

        One log that was deleted, or has no sequencer just now, hides no other.

        Args:
            logs: by name; without any, all that the consumer has a position in or a member for.
                In one without a position it stands at the oldest record.
        Raises:
            BadSetting: that names no consumer.
            Retryable: the cluster did not answer.
        """
        (group,) = await self.list(consumer)
        behind: dict[str, Lag | CordwoodError] = {}
        for name in logs or sorted({*group.positions, *group.owners}):
            try:
                info = await self._find(name)
                position = Lsn(group.positions.get(info.name, OLDEST))
                behind[info.name] = Lag(position, await self._tail(info))
            except CordwoodError as error:
                behind[name] = error
        return behind

    async def save(
        self,
        consumer: str,
        positions: Mapping[str, int],
        expected: Mapping[str, int] | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Lsn]:
        """Move a consumer's positions, all of them or none.

        Args:
            positions: by log, the first LSN not dealt with.
            expected: what they must be now, 0 for none: a compare-and-set.
            reset: let them go back, whoever reads the logs now.
        Returns:
            All positions of this consumer, by log.
        Raises:
            Fenced: a member reads one of the logs, or a position is not the expected one.
            Rejected: one would go back, and `reset` was not asked for.
            Retryable: the cluster did not answer; it may be saved, and may be saved again.
        """
        names = {log: (await self._find(log)).name for log in {**positions, **(expected or {})}}
        call = SaveCursors(
            consumer,
            "",
            0,
            {names[log]: int(lsn) for log, lsn in positions.items()},
            {names[log]: int(lsn) for log, lsn in (expected or {}).items()},
            reset,
        )
        reply = await self._ask(call)
        assert isinstance(reply, GroupReply), "calls about a consumer are answered with it"
        return {log: Lsn(lsn) for log, lsn in reply.positions.items()}
