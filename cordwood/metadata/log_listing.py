"""One reading of all logs at a path and below it, from the entries of names and of numbers.

Both kinds of entries are read in pages, because the entries of deleted logs stay and their number
has no bound. So an entry may change while the others are read. A log is shown where its entry and
its name's entry agree; where they do not, the number is to be read again.

All numbers are read before any name. An entry that its reader finds unchanged after the names were
therefore had its name at the time when the names were read, and that name led elsewhere. A log that
is there never loses its name to another, so this number had no log at that time. Its maker stopped,
or lost the race for the name.

Source: docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

from typing import NamedTuple

from cordwood.errors import Malformed
from cordwood.lsn import LogId
from cordwood.metadata.directories import is_at_or_below
from cordwood.metadata.log_entries import (
    IDS_PREFIX,
    NAMES_PREFIX,
    LogEntry,
    NameEntry,
    name_key,
    number_of,
    readable,
)
from cordwood.metadata.pages import pages
from cordwood.metadata.store import MetadataStore

Errors = dict[str, Malformed] | None
"""Gets the errors of entries that cannot be read, by their keys; None: the first one is raised."""


class Found(NamedTuple):
    """What one reading found.

    Attributes:
        logs: logs with names that lead to them.
        torn: numbers to read again, and the version of the entry that is enough to tell that the
            number has no log; 0 for none.
    """

    logs: dict[LogId, LogEntry]
    torn: dict[LogId, int]


class _Numbers(NamedTuple):
    """The entries of numbers.

    Attributes:
        logs: those at the path or below it that were not deleted, with their versions.
        unread: the errors of those that cannot be read.
    """

    logs: dict[LogId, tuple[LogEntry, int]]
    unread: dict[LogId, Malformed]


class _Names(NamedTuple):
    """The entries of names.

    Attributes:
        leads: the number that each name leads to.
        unread: names whose entries cannot be read.
    """

    leads: dict[str, LogId]
    unread: set[str]


async def read_logs(store: MetadataStore, path: str, errors: Errors) -> Found:
    """Read the logs at `path`, which is empty for all, and below it."""
    # Order matters; see the module.
    numbers = await _read_numbers(store, path, errors)
    names = await _read_names(store, path, errors)
    logs: dict[LogId, LogEntry] = {}
    # A name may lead to a log that was made or renamed since, or have been left by one.
    torn = dict.fromkeys(names.leads.values(), 0)
    for log_id, (log, version) in numbers.logs.items():
        if names.leads.get(log.name) == log_id:
            logs[log_id] = log
            torn.pop(log_id, None)
        else:
            torn[log_id] = 0 if log.name in names.unread else version
    for log_id, error in numbers.unread.items():
        # An unreadable entry that no name of this path leads to is another path's log.
        if errors is not None and (not path or log_id in torn):
            errors[f"{IDS_PREFIX}{log_id}"] = error
        torn.pop(log_id, None)
    return Found(logs, torn)


async def _read_numbers(store: MetadataStore, path: str, errors: Errors) -> _Numbers:
    numbers = _Numbers({}, {})
    async for page in pages(store, IDS_PREFIX):
        for key, found in page:
            log_id = number_of(key, errors)
            if log_id is None:
                continue
            unread: Errors = None if errors is None else {}
            log = readable(key, found.value, LogEntry, key, unread)
            if log is None:
                numbers.unread.update((log_id, error) for error in (unread or {}).values())
            elif not log.is_deleted and is_at_or_below(log.name, path):
                numbers.logs[log_id] = log, found.version
    return numbers


async def _read_names(store: MetadataStore, path: str, errors: Errors) -> _Names:
    names = _Names({}, set())
    async for page in pages(store, name_key(path) if path else NAMES_PREFIX):
        for key, found in page:
            name = key.removeprefix("logs")
            if not is_at_or_below(name, path):
                continue
            lead = readable(key, found.value, NameEntry, f"log {name}", errors)
            if lead is None:
                names.unread.add(name)
            else:
                names.leads[name] = LogId(lead.log_id)
    return names
