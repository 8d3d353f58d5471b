"""What clients ask of a node about consumers: join, beat, leave, save, look.

Logs are kept, and named in calls, by their numbers in digits. An entry that an older version kept
by names is told in today's form, and written so with its next change.

Source: docs/design.md §7; `protocol.consumer_group`.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import assert_never

from cordwood.errors import BadSetting, Fenced, Malformed, Rejected
from cordwood.layout.message import Reply
from cordwood.layout.message_consumers import (
    AskConsumers,
    BeatConsumer,
    ConsumerCall,
    ConsumerReply,
    ConsumersReply,
    JoinConsumer,
    LeaveConsumer,
    SaveCursors,
)
from cordwood.layout.message_fields import shown
from cordwood.metadata.consumers import LOGS_MAX, Consumers, EntryFull, check_consumer_name
from cordwood.metadata.log_entries import numbers_of
from cordwood.metadata.log_tree import LogTree
from cordwood.protocol.consumer_group import (
    SEEN_ALIVE_US,
    Group,
    beat,
    by_number,
    give_up_absent,
    is_by_name,
    join,
    leave,
    let_go,
    logs_left,
    names_in,
    save,
    shortened,
    without_logs,
)

FORGOTTEN_MAX = 100
"""Deleted logs that a full consumer gives up at a time: each is a call to the metadata store."""

SAVED_MAX = 4 * LOGS_MAX
"""Logs that one save may name: each up to four times, once in each of its four lists. Without a
bound a call of 4 MiB names half a million, and its node keeps them while the metadata store is
slow."""

LOOKED_AT_MAX = 1000
"""Consumers of which a node remembers the leases: 100 bytes a member."""


class ConsumerCalls:
    """Answers calls about the consumers of one cluster."""

    def __init__(self, consumers: Consumers, logs: LogTree, now_us: Callable[[], int]) -> None:
        """
        Args:
            now_us: µs since 1970 UTC.
        """
        self._consumers = consumers
        self._logs = logs
        self._now_us = now_us
        self._leases = SeenLeases()

    async def answer(self, call: ConsumerCall) -> Reply:
        """Do the call.

        Raises:
            Fenced, Rejected: see `protocol.consumer_group`.
            Retryable: the metadata store did not answer.
        """
        if isinstance(call, AskConsumers):
            if not call.consumer:
                return await self._all()
            return ConsumersReply([_reply(call.consumer, await self._get(call.consumer))])
        _check_by_number(call)
        numbers: dict[str, int] = {}
        asked: set[str] = set()

        def decide(group: Group) -> Group:
            if names_in(group) - asked:
                return group
            return self._decide(by_number(group, numbers) if names_in(group) else group, call)

        while True:
            try:
                group = await self._consumers.change(call.consumer, decide)
            except EntryFull:
                gone = await self._deleted(call.consumer, await self._get(call.consumer))
                if not gone:
                    raise
                await self._consumers.change(
                    call.consumer, partial(self._without, call.consumer, gone)
                )
                continue
            except Fenced:
                # What a refused call decided is not kept, and this has to be: see `shortened`.
                await self._consumers.change(call.consumer, self._shortened)
                raise
            wanted = names_in(group)
            if not wanted:
                return _reply(call.consumer, group)
            numbers, asked = await self._numbers_of(wanted), wanted

    async def _all(self) -> ConsumersReply:
        """Every consumer, and why some are left out: an entry that cannot be read hides no
        other."""
        groups: list[ConsumerReply] = []
        unread: list[str] = []
        for name in await self._consumers.names():
            try:
                groups.append(_reply(name, await self._get(name)))
            except (Malformed, BadSetting) as error:
                unread.append(shown(f"consumer {name}: {error}"))
        return ConsumersReply(groups, unread)

    async def _get(self, name: str) -> Group:
        group = await self._consumers.get(name)
        names = names_in(group)
        return by_number(group, await self._numbers_of(names)) if names else group

    async def _numbers_of(self, names: Iterable[str]) -> dict[str, int]:
        found = {name: await self._logs.get(name) for name in sorted(names)}
        return {name: int(info.log_id) for name, info in found.items() if info is not None}

    async def _deleted(self, consumer: str, group: Group) -> set[str]:
        """Some deleted logs of a consumer, the oldest first. A number never comes back."""
        # Killed members read nothing: without a living member, no call would remove them.
        group = self._with_present(consumer, group)
        unread: dict[str, Malformed] = {}
        there = {str(info.log_id) for info in await self._logs.list(unread=unread)}
        there.update(map(str, numbers_of(unread)))  # nobody knows whether they were deleted
        left = [log for log in logs_left(group) if log not in there][:FORGOTTEN_MAX]
        # A list may miss a log that is just being renamed; a look-up by number does not.
        return {log for log in left if await self._logs.is_deleted(int(log))}

    def _without(self, consumer: str, gone: Collection[str], group: Group) -> Group:
        return without_logs(self._with_present(consumer, group), gone)

    def _with_present(self, consumer: str, group: Group) -> Group:
        return give_up_absent(group, self._now_us(), self._leases.seen(consumer, group))

    def _shortened(self, group: Group) -> Group:
        return shortened(group, self._now_us())

    def _decide(
        self, group: Group, call: JoinConsumer | BeatConsumer | LeaveConsumer | SaveCursors
    ) -> Group:
        seen = self._leases.seen(call.consumer, group)
        if isinstance(call, JoinConsumer):
            name = check_consumer_name(call.member)
            ttl_us = call.ttl_ms * 1000
            return join(group, name, call.logs, self._now_us(), ttl_us, call.known, seen)
        if isinstance(call, BeatConsumer):
            ttl_us = call.ttl_ms * 1000
            return beat(group, call.member, call.generation, self._now_us(), ttl_us, seen)
        if isinstance(call, LeaveConsumer):
            return leave(group, call.member, call.generation, self._now_us())
        if isinstance(call, SaveCursors):
            if not call.member:
                group = give_up_absent(group, self._now_us(), seen)
            saved = save(
                group,
                call.positions,
                member=call.member,
                generation=call.generation,
                expected=call.expected,
                reset=call.reset,
                resets=call.resets,
                mark=call.mark,
            )
            return let_go(saved, call.member, call.let_go, call.generation)
        assert_never(call)


class SeenLeases:
    """Which members this node has lately seen to be alive, by its own passing of time.

    Nodes write leases by their clocks. If the clock of another node is behind by more than a lease,
    the leases that it writes have ended here when they come, and each call here would take a living
    member for absent. So a lease that changed since this node looked last is a sign of life. What
    this node sees for the first time counts by the clock.
    """

    def __init__(self) -> None:
        # By consumer and member: generation of its joining, lease, and when the lease was seen to
        # change, on the loop's clock.
        self._known: OrderedDict[str, dict[str, tuple[int, int, float]]] = OrderedDict()

    def seen(self, consumer: str, group: Group) -> set[str]:
        """Look at a consumer as it is stored; the members whose leases changed lately."""
        now = asyncio.get_running_loop().time()
        before = self._known.pop(consumer, {})
        known: dict[str, tuple[int, int, float]] = {}
        for name, member in group.members.items():
            joined, ends_us, at = before.get(name, (member.joined, member.expires_us, -math.inf))
            if (joined, ends_us) != (member.joined, member.expires_us):
                at = now
            known[name] = (member.joined, member.expires_us, at)
        self._known[consumer] = known
        while len(self._known) > LOOKED_AT_MAX:
            self._known.popitem(last=False)
        return {name for name, (_, _, at) in known.items() if now < at + SEEN_ALIVE_US / 1e6}


def _check_by_number(call: ConsumerCall) -> None:
    """Refuse an older client: it would go by names beside others that do not. Refuse more logs than
    a consumer may have, before they are dealt out.

    Raises:
        Rejected: it names logs by their names.
        EntryFull: it names too many logs.
    """
    logs: Collection[str] = ()
    if isinstance(call, JoinConsumer):
        logs = call.logs
    elif isinstance(call, SaveCursors):
        logs = [*call.positions, *call.expected, *call.let_go, *call.resets]
    if len(logs) > (LOGS_MAX if isinstance(call, JoinConsumer) else SAVED_MAX):
        raise EntryFull(
            f"{call.consumer} may have {LOGS_MAX} logs, and this call names {len(logs)}: divide "
            "the logs among several consumers"
        )
    if any(map(is_by_name, logs)):
        raise Rejected(
            f"this client keeps the positions of consumer {call.consumer} by the names of logs, "
            "and this cluster by their numbers: install the cluster's version of cordwood there"
        )


def _reply(name: str, group: Group) -> ConsumerReply:
    return ConsumerReply(
        name,
        group.generation,
        {member: list(value.logs) for member, value in sorted(group.members.items())},
        {log: own.member for log, own in sorted(group.owners.items()) if own.member},
        dict(sorted(group.positions.items())),
        {log: own.since for log, own in sorted(group.owners.items()) if own.member},
        {log: own.successor for log, own in sorted(group.owners.items()) if own.successor},
        dict(sorted(group.resets.items())),
    )
