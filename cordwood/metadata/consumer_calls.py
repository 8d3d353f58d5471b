"""What clients ask of a node about consumers: join, beat, leave, save, look.

Source: docs/design.md §7; `protocol.consumer_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from cordwood.layout.message import (
    AskGroups,
    BeatGroup,
    GroupCall,
    GroupReply,
    GroupsReply,
    JoinGroup,
    LeaveGroup,
    Reply,
    SaveCursors,
)
from cordwood.metadata.consumers import Consumers, check_consumer_name
from cordwood.protocol.consumer_group import Group, beat, join, leave, let_go, save


class ConsumerCalls:
    """Answers calls about the consumers of one cluster."""

    def __init__(self, consumers: Consumers, now_us: Callable[[], int]) -> None:
        """
        Args:
            now_us: µs since 1970 UTC.
        """
        self._consumers = consumers
        self._now_us = now_us

    async def answer(self, call: GroupCall) -> Reply:
        """Do what is asked.

        Raises:
            Fenced, Rejected: see `protocol.consumer_group`.
            Retryable: the metadata store did not answer.
        """
        if isinstance(call, AskGroups):
            names = [call.consumer] if call.consumer else await self._consumers.names()
            return GroupsReply([_reply(n, await self._consumers.get(n)) for n in names])
        return _reply(
            call.consumer,
            await self._consumers.change(call.consumer, lambda group: self._decide(group, call)),
        )

    def _decide(
        self, group: Group, call: JoinGroup | BeatGroup | LeaveGroup | SaveCursors
    ) -> Group:
        if isinstance(call, JoinGroup):
            name = check_consumer_name(call.member)
            return join(group, name, call.logs, self._now_us(), call.ttl_ms * 1000)
        if isinstance(call, BeatGroup):
            ttl_us = call.ttl_ms * 1000
            return beat(group, call.member, call.generation, self._now_us(), ttl_us)
        if isinstance(call, LeaveGroup):
            return leave(group, call.member, call.generation, self._now_us())
        if isinstance(call, SaveCursors):
            saved = save(
                group,
                call.positions,
                member=call.member,
                generation=call.generation,
                expected=call.expected,
                reset=call.reset,
            )
            return let_go(saved, call.member, call.let_go, call.generation)
        assert_never(call)


def _reply(name: str, group: Group) -> GroupReply:
    return GroupReply(
        name,
        group.generation,
        {member: list(value.logs) for member, value in sorted(group.members.items())},
        {log: own.member for log, own in sorted(group.owners.items()) if own.member},
        dict(sorted(group.positions.items())),
        {log: own.since for log, own in sorted(group.owners.items()) if own.member},
        {log: own.heir for log, own in sorted(group.owners.items()) if own.heir},
    )
