"""Control messages about consumers; see `protocol.consumer_group`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from cordwood.layout.message_fields import U32, AnyLsn, Mark, Name, Sentence, Sequence


class AskConsumers(Struct, frozen=True, tag="ask_groups"):
    """Asks for the consumer of this name, or for all consumers with ""."""

    consumer: Name


class JoinConsumer(Struct, frozen=True, tag="join_group"):
    """A member starts to read. If it sends no beat for `ttl_ms`, it counts as gone.

    Attributes:
        known: the consumer's generation when the member looked. If a member of this name joined
            since then, nothing is done. None for a member that did not look.
    """

    consumer: Name
    member: Name
    logs: list[Name]
    ttl_ms: U32
    known: int | None = None


class BeatConsumer(Struct, frozen=True, tag="beat_group"):
    """A member's heartbeat: it is alive, and knows this generation."""

    consumer: Name
    member: Name
    generation: int
    ttl_ms: U32


class LeaveConsumer(Struct, frozen=True, tag="leave_group"):
    """A member stops reading. It knows this generation."""

    consumer: Name
    member: Name
    generation: int


class SaveCursors(Struct, frozen=True, tag="save_cursors"):
    """Move a consumer's positions, and let go of logs; see `protocol.consumer_group.save`."""

    consumer: Name
    member: Name
    generation: int
    positions: dict[Name, AnyLsn]
    expected: dict[Name, AnyLsn]
    reset: bool
    let_go: list[Name] = []
    resets: dict[Name, Sequence] = {}
    mark: Mark = ""


class ConsumerReply(Struct, frozen=True, tag="group"):
    """A consumer; see `protocol.consumer_group.Group`.

    Attributes:
        members: by name, the logs that each is willing to read.
        owners: by log, the member that reads it.
        positions: by log, the first LSN not dealt with.
        since: by log, the generation since which its owner reads it.
        successors: by log, the member that waits for its owner to let go of it.
        resets: by log, how often its position was reset.
    """

    consumer: Name
    generation: int
    members: dict[Name, list[Name]]
    owners: dict[Name, Name]
    positions: dict[Name, AnyLsn]
    since: dict[Name, int] = {}
    successors: dict[Name, Name] = msgspec.field(default_factory=dict, name="heirs")
    resets: dict[Name, Sequence] = {}


class ConsumersReply(Struct, frozen=True, tag="groups"):
    """Consumers by name.

    Attributes:
        unread: why consumers are left out: a sentence for each entry that cannot be read.
    """

    groups: list[ConsumerReply]
    unread: list[Sentence] = []


ConsumerCall = AskConsumers | JoinConsumer | BeatConsumer | LeaveConsumer | SaveCursors
