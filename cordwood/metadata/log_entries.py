"""The two entries of a log: from its name to its number, and from its number to the log.

`logs/<name>` leads to a number, `log_ids/<number>` has the log's one name; see `log_tree`. A name
is claimed before its log goes to it and taken away after the log has left it. Calls of several
clients interleave at any step, and no call writes two entries at once. Still, a log never loses its
name to another log, and no other log claims the name.

Source: docs/design.md §6, §11; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from cordwood.errors import (
    Fenced,
    LogExists,
    Malformed,
    OutcomeUnknown,
    Overloaded,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.json_text import read_json
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LogId
from cordwood.metadata.change import RACES_MAX, change, change_repeatably
from cordwood.metadata.log_numbers import LOG_ID_MAX
from cordwood.metadata.store import MetadataStore, Versioned

Stored = TypeVar("Stored")

NAMES_PREFIX = "logs/"
"""Before the names of logs, in the keys of their entries."""

IDS_PREFIX = "log_ids/"
"""Before the numbers of logs, in the keys of their entries."""

_Id = Annotated[int, msgspec.Meta(ge=1, le=LOG_ID_MAX)]


class NameEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`logs/<name>`."""

    log_id: _Id


class LogEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`log_ids/<number>`: the name that its maker went on to claim, and its attributes."""

    name: str
    created_us: int
    attributes: LogAttributes
    is_deleted: bool = False
    mark: str = ""

    def is_at(self, name: str) -> bool:
        """Whether the log is to be found by this name; see the module."""
        return self.name == name and not self.is_deleted


class LogEntries:
    """See the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def log(self, log_id: LogId) -> LogEntry | None:
        """The entry of a number; None where it has no entry. One round trip."""
        found = await self._store.get(id_key(log_id))
        return decode(found.value, LogEntry, f"log number {log_id}") if found else None

    async def leads_to(self, name: str) -> LogId | None:
        """The number that a name leads to. One round trip."""
        return _leads_to(name, await self._store.get(name_key(name)))

    async def check_free(self, name: str) -> None:
        """Raises LogExists for a name that cannot be claimed."""
        if await self._is_taken(name, await self._store.get(name_key(name)), None):
            raise exists(name)

    async def describe(self, log_id: LogId, log: LogEntry) -> None:
        """Write the entry of a new number."""
        value = msgspec.json.encode(log)

        def decide(found: bytes | None) -> bytes | None:
            assert found in (None, value), "a number is taken by one maker only"
            return value if found is None else None

        await change_repeatably(self._store, id_key(log_id), decide)

    async def claim(self, name: str, log_id: LogId) -> None:
        """Have a name lead to a log.

        Raises:
            LogExists: it leads to another log, or is on its way to it.
        """
        entry = msgspec.json.encode(NameEntry(log_id))
        found = await self._store.get(name_key(name))
        # Decide by this reading only. With a second reading, the log of the first reading might
        # have come back meanwhile.
        if await self._is_taken(name, found, log_id):
            raise exists(name)
        before = found.value if found else None

        def decide(value: bytes | None) -> bytes | None:
            if value not in (None, entry, before):
                raise exists(name)
            # An existing claim is written anew: a call that removes it has read the old version.
            return None if value == entry != before else entry

        try:
            await change(self._store, name_key(name), decide, (found,))
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"log {name} may have been made: {error}") from error

    async def give_up(self, name: str, log_id: LogId, log: LogEntry) -> None:
        """Mark the entry of a new number as deleted, because another log has its name.

        Listings pass over the number then. An entry that may be a log's stays as it is: if an
        answer was lost, `claim` does not know that it had the name for a while. A claim that is
        written later still gives the name to a deleted log, so that the name is free.

        Args:
            log: the entry as it was described.
        """
        found = await self._store.get(id_key(log_id))
        # Race: the number has a log, which another call renamed or deleted since.
        if found is None or found.value != msgspec.json.encode(log):
            return
        # Race: the other log is gone by now, and the lost claim was written after that.
        if await self.leads_to(name) == log_id:
            return
        gone = msgspec.json.encode(msgspec.structs.replace(log, is_deleted=True))
        await self._store.compare_and_set(id_key(log_id), gone, found.version)

    async def _is_taken(self, name: str, found: Versioned | None, log_id: LogId | None) -> bool:
        """Whether a name's entry, as it was read, leads to another log that was not deleted.

        That log may have another name: then a rename is on its way from there, or stopped. The
        state is unknown, so the name is not given away.
        """
        other = _leads_to(name, found)
        if other is None or other == log_id:
            return False
        log = await self.log(other)
        return log is None or not log.is_deleted

    async def remove_name(self, name: str, log_id: LogId) -> None:
        """Take a name away from a log that does not have it, or not any more.

        A rename to the name may be under way, of this log too: its caller gives the name back. A
        rename that claimed the name before this read finds the log's entry changed and begins
        again. A rename that claims it later changes the version, so this removal fails.
        """
        for _ in range(RACES_MAX):
            found = await self._store.get(name_key(name))
            if found is None or _leads_to(name, found) != log_id:
                return
            known = await self._store.get(id_key(log_id))
            log = decode(known.value, LogEntry, f"log number {log_id}") if known else None
            if log is not None and log.is_at(name):
                return
            try:
                if (
                    known is not None
                    and log is not None
                    and not log.is_deleted
                    and not await self._store.compare_and_set(
                        id_key(log_id), known.value, known.version
                    )
                ):
                    continue
                if await self._store.compare_and_set(name_key(name), None, found.version):
                    return
            except OutcomeUnknown:
                continue
        raise Overloaded(f"log {name}: {RACES_MAX} other writers in a row came first")

    async def overtaken(
        self, log_id: LogId, new_name: str | None, *, may_be_done: bool
    ) -> Fenced | Unreachable:
        """The error for a rename whose log has another version than its caller saw.

        Args:
            may_be_done: whether the outcome of an earlier write of this call is unknown. Race: the
                log was renamed, and then renamed back. If it was not, the claim on the new name
                would be in the way of others for good. After Fenced the caller removes it itself.
        """
        if may_be_done and new_name is not None:
            await self.remove_name(new_name, log_id)
        kind = Unreachable if may_be_done else Fenced
        return kind(f"{id_key(log_id)} was changed since it was looked at")


def _leads_to(name: str, found: Versioned | None) -> LogId | None:
    return LogId(decode(found.value, NameEntry, f"log {name}").log_id) if found else None


def name_key(name: str) -> str:
    return f"logs{name}"


def id_key(log_id: int) -> str:
    return f"{IDS_PREFIX}{log_id}"


def exists(name: str) -> LogExists:
    return LogExists(f"there is a log {name} already")


def unknown(name: str) -> UnknownLog:
    return UnknownLog(f"there is no log {name}")


def decode(value: bytes, kind: type[Stored], what: str) -> Stored:
    return read_json(value, kind, f"the metadata of {what}")


def numbers_of(unread: Iterable[str]) -> frozenset[int]:
    """The numbers of the logs that a listing left out; see `log_tree.LogTree.list`."""
    return frozenset(number for key in unread if (number := _number_in(key)))


def number_of(key: str, errors: dict[str, Malformed] | None) -> LogId | None:
    """The number in the key of an entry; None if there is none and `errors` gets that.

    Raises:
        Malformed: there is none, and `errors` is None.
    """
    number = _number_in(key)
    if number:
        return LogId(number)
    error = Malformed(f"{key} in the metadata store is no log's entry")
    if errors is None:
        raise error
    errors[key] = error
    return None


def _number_in(key: str) -> int:
    """The number of a log in the key of its entry; 0 for a key that no version wrote."""
    text = key.removeprefix(IDS_PREFIX)
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LOG_ID_MAX))
    number = int(text) if is_number else 0
    return number if number <= LOG_ID_MAX and id_key(number) == key else 0


def readable(
    key: str, value: bytes, kind: type[Stored], what: str, errors: dict[str, Malformed] | None
) -> Stored | None:
    """An entry; None if it cannot be read and `errors` is there to get that.

    Raises:
        Malformed: it cannot be read, and `errors` is None.
    """
    try:
        return decode(value, kind, what)
    except Malformed as error:
        if errors is None:
            raise
        errors[key] = error
        return None
