"""A log as a client knows it.

Source: docs/design.md §7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cordwood.errors import Malformed
from cordwood.layout.message_logs import EpochNodes, LogReply
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import Epoch, LogId
from cordwood.nodes import NodeId, Replication

AnyLog = str | int
"""A log's name, which leads to the log that has it when it is looked up; or a log's number, which
names the same log for ever."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log as a client knows it.

    Attributes:
        log_id: its number.
        name: its path.
        replication: for new epochs.
        created_us: µs since 1970 UTC.
        history: nodesets by epoch, oldest first.
        epoch: up to this epoch the history is known to be complete.
        own: attributes that were set on the log itself.
        attributes: all of them, as set or inherited.
    """

    log_id: LogId
    name: str
    replication: Replication
    created_us: int
    history: tuple[EpochNodes, ...] = ()
    epoch: Epoch = Epoch(0)  # noqa: RUF009
    own: LogAttributes = field(default_factory=LogAttributes)
    attributes: LogAttributes = DEFAULTS

    def nodes_of(self, epoch: int) -> tuple[NodeId, ...]:
        """The nodes that may hold records of `epoch`; empty if unknown."""
        for each in reversed(self.history):
            if each.since <= epoch:
                return tuple(map(NodeId, each.nodes))
        return ()

    @property
    def all_nodes(self) -> tuple[NodeId, ...]:
        """The nodes of every epoch."""
        return tuple(sorted({NodeId(node) for each in self.history for node in each.nodes}))


Unread = list[str]
"""Sentences about entries that a listing left out, for its caller."""

OnLearnt = Callable[[LogInfo], None]


def take_unread(unread: Unread | None, told: Sequence[str]) -> None:
    """Deal with what a listing says of entries that it left out.

    Args:
        unread: takes these sentences; without it they are an error.
    Raises:
        Malformed: the listing lacks some, and its caller takes no such listing.
    """
    if unread is not None:
        unread += told
    elif told:
        raise Malformed(f"the list is not whole, entries cannot be read: {'; '.join(told)}")


def log_info(reply: LogReply) -> LogInfo:
    """A log from the wire."""
    scopes = {**reply.wider, "node": reply.copies, "rack": reply.racks}
    return LogInfo(
        LogId(reply.log), reply.name, Replication.across(scopes), reply.created_us,
        tuple(reply.history), Epoch(reply.epoch), reply.own, reply.attributes,
    )  # fmt: skip
