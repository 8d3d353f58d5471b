"""The logs of one consumer: by name for its application, by number in its stored positions.

Positions, owners and members are kept by the number of a log. So a consumer keeps its position when
its log is renamed, and starts anew in another log that takes the name. A consumer looks its logs up
once, when it is made. From there on it reads and saves by number, and its answers use the names
that it was made with.

Source: `protocol.consumer_group`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from msgspec.structs import replace

from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.find.log_info import AnyLog, LogInfo
from cordwood.client.read.read_stream import ReadStream
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_consumers import ConsumerReply, JoinConsumer, SaveCursors

Value = TypeVar("Value")


class Ask(Protocol):
    """Asks any node; see `Cluster.call_any`."""

    async def __call__(self, message: Call, /) -> Reply: ...


Read = Callable[[int, Start, Position | None], Awaitable[ReadStream]]
"""Opens a stream of a log by its number."""


def named(group: ConsumerReply, names: Mapping[str, str]) -> ConsumerReply:
    """A consumer with names for numbers; a number without one stays.

    Args:
        names: by number, in digits.
    """

    def by_name(by_log: Mapping[str, Value]) -> dict[str, Value]:
        return {names.get(log, log): value for log, value in by_log.items()}

    return replace(
        group,
        members={m: [names.get(log, log) for log in logs] for m, logs in group.members.items()},
        owners=by_name(group.owners),
        positions=by_name(group.positions),
        since=by_name(group.since),
        successors=by_name(group.successors),
        resets=by_name(group.resets),
    )


class ConsumerLogs:
    """See the module.

    Attributes:
        names: of the logs, in the order in which they were asked for.
    """

    def __init__(self, infos: Iterable[LogInfo], ask: Ask, read: Read) -> None:
        found = {info.log_id: info.name for info in infos}
        self.names = tuple(found.values())
        self._numbers = {name: number for number, name in found.items()}
        self._names = {str(number): name for number, name in found.items()}
        self._ask = ask
        self._read = read

    async def read(self, log: AnyLog, start: Start, until: Position | None) -> ReadStream:
        """Open a stream of one of the logs; see `reader.Open`."""
        number = log if isinstance(log, int) else self._numbers[log]
        return await self._read(number, start, until)

    async def ask(self, message: Call, /) -> Reply:
        """Ask about the consumer, in names; see `Cluster.call_any`."""
        if isinstance(message, JoinConsumer):
            message = replace(message, logs=[self.key_of(log) for log in message.logs])
        elif isinstance(message, SaveCursors):
            message = replace(
                message,
                positions={self.key_of(log): lsn for log, lsn in message.positions.items()},
                expected={self.key_of(log): lsn for log, lsn in message.expected.items()},
                resets={self.key_of(log): count for log, count in message.resets.items()},
                let_go=[self.key_of(log) for log in message.let_go],
            )
        reply = await self._ask(message)
        return named(reply, self._names) if isinstance(reply, ConsumerReply) else reply

    def key_of(self, log: str) -> str:
        return str(self._numbers[log])
