"""Consumers in the metadata store: positions, members, generations.

Each consumer has one entry, `consumers/<name>`, changed by compare-and-set, so that saves and
changes of the assignment have one order. The rules are `protocol.consumer_group`.

A write of unknown outcome is decided again from the present entry: joining twice makes one more
generation, and saving the same positions twice changes nothing.

Source: docs/design.md §6, §7.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec

from cordwood.errors import BadSetting
from cordwood.layout.json_text import read_json
from cordwood.lsn import LSN_MAX
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import VALUE_BYTES_MAX, MetadataStore
from cordwood.protocol.consumer_group import MARKS_MAX, Group, GroupMember, Owner

MEMBERS_MAX = 1000
LOGS_MAX = 4000
"""One member with a name of 100 bytes then keeps an entry below the store's bound. With more of
them the bytes decide: see `_room`."""

POSITION_BYTES = 24
"""The bytes of a position in an entry, without the number of its log: 19 digits, quotes, a colon
and a comma."""

RESETS_BYTES = 8
"""The bytes of a log's count of resets, without the number of the log, for counts up to 9,999."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Lsn = Annotated[int, msgspec.Meta(ge=0, le=LSN_MAX)]


class _Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    logs: tuple[str, ...]
    expires_us: _Count
    joined: _Count


class _Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    member: str
    since: _Count
    successor: str = msgspec.field(default="", name="heir")
    due_us: _Count = 0


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`consumers/<name>`."""

    generation: _Count
    members: dict[str, _Member]
    owners: dict[str, _Owner]
    positions: dict[str, _Lsn]
    resets: dict[str, _Count] = {}
    marks: dict[str, str] = {}


def check_consumer_name(name: str) -> str:
    """The name of a consumer or member.

    Raises:
        BadSetting: it is none.
    """
    if not _NAME.fullmatch(name):
        raise BadSetting(
            f"{name[:64]!r} names no consumer: up to 100 letters, digits, _ . and -, the first "
            "one no . or -"
        )
    return name


class EntryFull(BadSetting):
    """A consumer would have too many members or logs, or too many bytes of both."""


class Consumers:
    """The consumers of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (the entry
    cannot be read, or a newer version wrote it).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, name: str) -> Group:
        """A consumer; a missing consumer is empty. One round trip."""
        found = await self._store.get(_key(name))
        return read_group(name, found.value if found else None)

    async def names(self) -> list[str]:
        """Every consumer, by name."""
        listed = await self._store.list("consumers/")
        return [key.removeprefix("consumers/") for key, _ in listed]

    async def change(self, name: str, decide: Callable[[Group], Group]) -> Group:
        """Change a consumer. An error of `decide` ends the change and is raised.

        Returns:
            The consumer as stored.
        Raises:
            EntryFull: it would have too many members or logs.
            BadSetting: the name is wrong.
        """

        def decide_entry(found: bytes | None) -> bytes | None:
            group = read_group(name, found)
            wanted = decide(group)
            logs = max(len(wanted.positions), len(wanted.owners))
            if len(wanted.members) > MEMBERS_MAX or logs > LOGS_MAX:
                raise EntryFull(f"{name} may have {MEMBERS_MAX} members and {LOGS_MAX} logs")
            if wanted == group:
                return None
            encoded = _encode(wanted)
            # Trap: without this check, later saves of members would exceed the store's bound, and
            # members could do nothing about it. So a join must leave space for all later saves.
            room = _room(wanted) if _has_joined(group, wanted) else 0
            if len(encoded) + room <= VALUE_BYTES_MAX:
                return encoded
            marks_max = MARKS_MAX
            while marks_max > 1:  # by the newest mark, a second try of a call is recognised
                marks_max //= 2
                encoded = _encode(_with_marks(wanted, marks_max))
                if len(encoded) + room <= VALUE_BYTES_MAX:
                    return encoded
            raise EntryFull(
                f"{name} would need {len(encoded) + room} bytes for {logs} logs and what its "
                f"{len(wanted.members)} members list of them, and may have {VALUE_BYTES_MAX}: "
                "have fewer members, with shorter names, or divide the logs among several consumers"
            )

        return read_group(name, await change_repeatably(self._store, _key(name), decide_entry))


def _has_joined(before: Group, after: Group) -> bool:
    """Whether a member joined, or lists other logs than before."""
    return any(
        name not in before.members or before.members[name].logs != member.logs
        for name, member in after.members.items()
    )


def _room(group: Group) -> int:
    """The bytes by which a consumer may still grow while its members read, save and are reset."""
    room = 0
    for log in group.owners:
        if log not in group.positions:
            room += len(log) + POSITION_BYTES
        else:
            room += len(str(LSN_MAX)) - len(str(int(group.positions[log])))
        if log not in group.resets:
            room += len(log) + RESETS_BYTES
    return room


def _with_marks(group: Group, marks_max: int) -> Group:
    """A consumer with the newest marks of each log only."""
    return replace(group, marks={log: marks[-marks_max:] for log, marks in group.marks.items()})


def _key(name: str) -> str:
    return f"consumers/{check_consumer_name(name)}"


def _encode(group: Group) -> bytes:
    return msgspec.json.encode(
        _Entry(
            group.generation,
            {m: _Member(v.logs, v.expires_us, v.joined) for m, v in group.members.items()},
            {
                log: _Owner(own.member, own.since, own.successor, own.due_us)
                for log, own in group.owners.items()
            },
            {log: int(lsn) for log, lsn in group.positions.items()},
            {**group.resets},
            {log: " ".join(marks) for log, marks in group.marks.items()},
        )
    )


def read_group(name: str, value: bytes | None) -> Group:
    """A consumer as the store holds it; None for a missing consumer.

    Raises:
        Malformed: the entry cannot be read.
    """
    if value is None:
        return Group()
    entry = read_json(value, _Entry, f"the consumer {name}")
    return Group(
        entry.generation,
        {m: GroupMember(v.logs, v.expires_us, v.joined) for m, v in entry.members.items()},
        {
            log: Owner(own.member, own.since, own.successor, own.due_us)
            for log, own in entry.owners.items()
        },
        entry.positions,
        entry.resets,
        {log: tuple(marks.split()) for log, marks in entry.marks.items()},
    )
