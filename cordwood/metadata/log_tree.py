"""Logs by name and by number.

Names are paths: `/orders/eu`, and `orders` is `/orders`. A path may be a log and have
logs below it. Numbers come from a counter and are never used twice.

Three entries a log: `logs/<name>` is the log itself and decides; `log_ids/<number>`
leads from the number back to the name; `next_log_id` is the counter. They are written
in the order counter, number, name, so that a maker that stops on the way leaves a
number that leads nowhere, and no log. Attributes inherited along the path, deleting
and renaming come with the log tree's own work.

Source: design.md §6, §11; LogDevice digest 1 ("LogsConfig").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from cordwood.errors import BadSetting, LogExists, Malformed, OutcomeUnknown, Rejected
from cordwood.lsn import LogId
from cordwood.metadata.change import change, change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import COPIES_MAX, Replication

NAME_BYTES_MAX = 255
"""As a file name may have, the leading slash counted."""

LOG_ID_MAX = (1 << 62) - 1

_NAME = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)")
_COUNTER = "next_log_id"

Stored = TypeVar("Stored")

_Id = Annotated[int, msgspec.Meta(ge=1, le=LOG_ID_MAX)]
_Copies = Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)]


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log.

    Attributes:
        log_id: its number.
        name: its path, with the leading slash.
        replication: what its first nodeset was asked to keep; later epochs may differ.
        created_us: when it was made, µs since 1970 UTC, by its maker's clock.
    """

    log_id: LogId
    name: str
    replication: Replication
    created_us: int


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`logs/<name>`."""

    log_id: _Id
    copies: _Copies
    racks: _Copies
    created_us: int


class _Counter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`next_log_id`."""

    next_id: _Id


class _Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`log_ids/<number>`: the name that its maker went on to claim."""

    name: str


def normalise_name(text: str) -> str:
    """A log's name as it is kept, with its leading slash.

    Raises:
        BadSetting: it is no path of letters, digits, `_`, `.` and `-`, or is too long.
    """
    match = _NAME.fullmatch(text)
    if match is None or len(match[1]) + 1 > NAME_BYTES_MAX:
        raise BadSetting(
            f"{text[:64]!r} is no log name: write a path such as /orders/eu, of letters, digits, "
            f"_ . and -, no part beginning with . or -, {NAME_BYTES_MAX} bytes at most"
        )
    return f"/{match[1]}"


class LogTree:
    """The logs of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (an
    entry cannot be read, or a newer version wrote it).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, name: str, replication: Replication, *, created_us: int = 0) -> LogInfo:
        """Make a log.

        Args:
            created_us: now, µs since 1970 UTC.
        Raises:
            LogExists: the name is taken.
            BadSetting: the name is wrong.
            OutcomeUnknown: the store does not say whether the log was made; `get` does.
        """
        name = normalise_name(name)
        # Asked first, so that a name that is taken does not cost a number.
        if await self._store.get(_name_key(name)) is not None:
            raise _exists(name)
        log_id = await self._take_id()
        await self._point(log_id, name)
        info = LogInfo(log_id, name, replication, created_us)
        await self._claim(info)
        return info

    async def get(self, name: str) -> LogInfo | None:
        """A log by name, None if there is none. One round trip.

        Raises:
            BadSetting: the name is wrong.
        """
        name = normalise_name(name)
        found = await self._store.get(_name_key(name))
        return None if found is None else _info(name, found.value)

    async def by_id(self, log_id: int) -> LogInfo | None:
        """A log by number, None if there is none. Two round trips."""
        if not 1 <= log_id <= LOG_ID_MAX:
            return None
        found = await self._store.get(_id_key(log_id))
        if found is None:
            return None
        info = await self.get(_decode(found.value, _Pointer, f"log number {log_id}").name)
        # Its maker may have stopped, and another made the log under another number.
        return info if info is not None and info.log_id == log_id else None

    async def list(self, prefix: str = "/") -> list[LogInfo]:
        """Logs at the path `prefix` and below it, by name. One round trip.

        Raises:
            BadSetting: the path is wrong, or too many logs are there.
        """
        path = "" if prefix in ("", "/") else normalise_name(prefix.removesuffix("/"))
        listed = await self._store.list(_name_key(path) if path else "logs/")
        infos = [_info(key.removeprefix("logs"), found.value) for key, found in listed]
        return [info for info in infos if info.name == path or info.name.startswith(f"{path}/")]

    async def _take_id(self) -> LogId:
        def decide(found: bytes | None) -> bytes:
            next_id = _decode(found, _Counter, _COUNTER).next_id if found else 1
            if next_id >= LOG_ID_MAX:
                raise Rejected(f"all {LOG_ID_MAX} log numbers are used up")
            return msgspec.json.encode(_Counter(next_id + 1))

        stored = await change_repeatably(self._store, _COUNTER, decide)
        assert stored is not None, "the counter is never left or deleted"
        return LogId(_decode(stored, _Counter, _COUNTER).next_id - 1)

    async def _point(self, log_id: LogId, name: str) -> None:
        pointer = msgspec.json.encode(_Pointer(name))

        def decide(found: bytes | None) -> bytes | None:
            assert found in (None, pointer), "a number is taken by one maker only"
            return pointer if found is None else None

        await change_repeatably(self._store, _id_key(log_id), decide)

    async def _claim(self, info: LogInfo) -> None:
        entry = msgspec.json.encode(
            _Entry(info.log_id, info.replication.copies, info.replication.racks, info.created_us)
        )

        def decide(found: bytes | None) -> bytes | None:
            # The number is this maker's alone, so an entry with it is an earlier try of ours.
            if found is not None and found != entry:
                raise _exists(info.name)
            return entry if found is None else None

        try:
            await change(self._store, _name_key(info.name), decide)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"log {info.name} may have been made: {error}") from error


def _name_key(name: str) -> str:
    return f"logs{name}"


def _id_key(log_id: int) -> str:
    return f"log_ids/{log_id}"


def _exists(name: str) -> LogExists:
    return LogExists(f"there is a log {name} already")


def _info(name: str, value: bytes) -> LogInfo:
    entry = _decode(value, _Entry, f"log {name}")
    try:
        replication = Replication(entry.copies, entry.racks)
    except BadSetting as error:
        raise Malformed(f"the metadata of log {name} cannot be read: {error}") from error
    return LogInfo(LogId(entry.log_id), name, replication, entry.created_us)


def _decode(value: bytes, kind: type[Stored], what: str) -> Stored:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise Malformed(f"the metadata of {what} cannot be read: {error}") from error
