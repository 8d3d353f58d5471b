"""The two entries of a log: from its name to its number, and from its number to the log.

`logs/<name>` leads to a number, `log_ids/<number>` has the log's one name; see `log_tree`. A name
is claimed before its log goes to it and taken away after the log has left it. Calls of several
clients interleave at any step, and no call writes two entries at once. Still, a log never loses its
name to another log, and no other log claims the name.

Source: docs/design.md §6, §11; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from cordwood.errors import LogExists, OutcomeUnknown, Overloaded, UnknownLog
from cordwood.layout.json_text import read_json
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LogId
from cordwood.metadata.change import RACES_MAX, change, change_repeatably
from cordwood.metadata.log_numbers import LOG_ID_MAX
from cordwood.metadata.store import MetadataStore, Versioned

Stored = TypeVar("Stored")

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
        # By this reading alone: by a second reading, the first might be of a log that came back.
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


def _leads_to(name: str, found: Versioned | None) -> LogId | None:
    return LogId(decode(found.value, NameEntry, f"log {name}").log_id) if found else None


def name_key(name: str) -> str:
    return f"logs{name}"


def id_key(log_id: int) -> str:
    return f"log_ids/{log_id}"


def exists(name: str) -> LogExists:
    return LogExists(f"there is a log {name} already")


def unknown(name: str) -> UnknownLog:
    return UnknownLog(f"there is no log {name}")


def decode(value: bytes, kind: type[Stored], what: str) -> Stored:
    return read_json(value, kind, f"the metadata of {what}")
