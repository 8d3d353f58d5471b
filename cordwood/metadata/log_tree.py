"""Logs by name and by number, and the attributes that they have and inherit.

Names are paths: `/orders/eu`, and `orders` is `/orders`. A path may be a log and have
logs below it; with a slash at its end it is the directory: `/orders/` is all that lies
below, and `/` is all there is. Numbers come from a counter and are never used twice.

Entries: `logs/<name>` leads to a log's number; `log_ids/<number>` has the log's one name, whether
it was deleted, and the attributes set on it. A log is found by a name if both entries agree, so
that the second one alone decides: a rename or a deletion is one write to it. If a name's log has
another name, a rename stopped half-way: the name leads to no log, and repeating the rename or
deleting the name frees it. `next_log_id` is the counter (see `log_numbers`); `directories` has the
attributes set on directories, all in one value. Making writes counter, number, name, so that a
maker that stops on the way leaves a number without a log; if another maker got the name, the number
is marked as deleted. Numbers keep their entries for good. `log_changes/latest` is written after
each change to a log that was there already: nodes watch it, and nothing else of the tree.

Source: docs/design.md §6, §11; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import msgspec

from cordwood.errors import (
    CordwoodError,
    Fenced,
    LogExists,
    Malformed,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    Unreachable,
)
from cordwood.layout.log_names import normalise_directory, normalise_name
from cordwood.log_attributes import DEFAULTS, LogAttributes, check_attributes, check_whole
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.change import RACES_MAX, UNKNOWN_MAX, change_repeatably
from cordwood.metadata.directories import (
    DIRECTORIES_KEY,
    Directories,
    check_below,
    directories_of,
    is_at_or_below,
    is_below,
    whole_of,
)
from cordwood.metadata.log_changes import CHANGES_KEY, count_changes, note_change, one_more
from cordwood.metadata.log_entries import LogEntries, LogEntry, decode, id_key, unknown
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_listing import read_logs
from cordwood.metadata.log_numbers import LOG_ID_MAX, LogNumbers
from cordwood.metadata.log_rights import Check, anybody, check_rename
from cordwood.metadata.store import MetadataStore, Versioned
from cordwood.protocol.event_log import event_log_nodes

RENAMES_MAX = 4
"""The most renames of one log between two readings, one after the other. People make renames, so
more cannot happen."""

READ_AGAIN = 32
"""Logs that a listing reads again at once, by number, where names and numbers disagree."""

READINGS_MAX = 8
"""Readings in a row during which directories, or the log that is read, changed. People change
them, so more cannot happen."""

EVENT_LOG_NAME = "the event log"
"""Its name in messages. No path has this form, so no call finds it by name."""

Infos = list[LogInfo]
"""A class with a method `list` cannot write that itself."""

Become = Callable[[LogAttributes], LogAttributes]


class LogTree:
    """The logs of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (an
    entry cannot be read, or a newer version wrote it).

    Args:
        defaults: the value of each attribute that is set neither on a log nor on a directory above
            it. It has all attributes.
    """

    def __init__(self, store: MetadataStore, defaults: LogAttributes = DEFAULTS) -> None:
        self._store = store
        self._entries = LogEntries(store)
        self._numbers = LogNumbers(store)
        self._defaults = defaults

    # Making and finding.

    async def create(
        self,
        name: str,
        attributes: LogAttributes | None = None,
        *,
        created_us: int = 0,
        mark: str = "",
    ) -> LogInfo:
        """Make a log.

        Args:
            attributes: set on the log itself.
            created_us: now, µs since 1970 UTC.
            mark: of the call, kept with the log.
        Raises:
            LogExists: the name is taken.
            BadSetting: the name or an attribute is wrong.
            OutcomeUnknown: the store does not say whether the log was made; `get` does.
        """
        name, own = normalise_name(name), attributes or LogAttributes()
        whole = self._whole(name, own, await self.directories())
        check_whole(whole)
        # Look first, so that a taken name does not cost a number.
        await self._entries.check_free(name)
        log_id = await self._numbers.take()
        entry = LogEntry(name, created_us, own, mark=mark)
        await self._entries.describe(log_id, entry)
        try:
            await self._entries.claim(name, log_id)
        except LogExists:
            # An entry that stays costs each listing a reading. An error here changes nothing for
            # the caller.
            with contextlib.suppress(CordwoodError):
                await self._entries.give_up(name, log_id, entry)
            raise
        return LogInfo(log_id, name, created_us, own, whole, mark)

    async def planned(
        self,
        name: str,
        attributes: LogAttributes | None = None,
        was: LogAttributes | None = None,
    ) -> LogAttributes:
        """The attributes that a log of this name would have.

        Args:
            was: the attributes of an existing log that has another name now.
        Raises:
            BadSetting: the name or an attribute is wrong.
        """
        name = normalise_name(name)
        whole = self._whole(name, attributes or LogAttributes(), await self.directories())
        check_whole(whole, was)
        return whole

    async def get(self, name: str) -> LogInfo | None:
        """A log by name, None if it does not exist. Three round trips.

        Raises:
            BadSetting: the name is wrong.
        """
        name = normalise_name(name)
        log_id = await self._entries.leads_to(name)
        if log_id is None:
            return None
        log, _, directories = await self._still(log_id)
        return self._info(log_id, log, directories) if log and log.is_at(name) else None

    async def by_id(self, log_id: int) -> LogInfo | None:
        """A log by number, None if it does not exist. Three round trips."""
        if log_id == EVENT_LOG:
            return await self.event_log()
        if not 1 <= log_id <= LOG_ID_MAX:
            return None
        unled = 0
        for _ in range(RENAMES_MAX):
            log, version, directories = await self._still(LogId(log_id))
            # Its maker may have stopped, another made the log, or it was deleted since. A log that
            # is there has its name's lead all the while that its entry does not change.
            if log is None or log.is_deleted or version == unled:
                return None
            if await self._entries.leads_to(log.name) == log_id:
                return self._info(LogId(log_id), log, directories)
            # Race: if the log was renamed between the readings, the name just read does not lead to
            # it any more.
            unled = version
        raise Overloaded(f"log number {log_id} changed during each of {RENAMES_MAX} readings")

    async def is_deleted(self, log_id: int) -> bool:
        """Whether a number that was given out has no log any more, for good. One round trip."""
        if log_id == EVENT_LOG:
            return False
        log = await self._entries.log(LogId(log_id))
        return log is None or log.is_deleted

    async def described(self, log_id: LogId) -> LogInfo | None:
        """A log by number, for callers that know that it is there, or was. One round trip.

        If an attribute moves between the log and its directory meanwhile, the caller may get
        attributes that the log never had: it must hear of that change and ask again.
        """
        if log_id == EVENT_LOG:
            return await self.event_log()
        log, directories = await asyncio.gather(self._entries.log(log_id), self.directories())
        return self._info(log_id, log, directories) if log is not None else None

    async def of_one_moment(self, log_id: LogId) -> LogInfo | None:
        """As `described`, with attributes of one moment. Two round trips."""
        if log_id == EVENT_LOG:
            return await self.event_log()
        log, _, directories = await self._still(log_id)
        return self._info(log_id, log, directories) if log is not None else None

    async def event_log(self) -> LogInfo:
        """The event log, which has no entry and is always there: it is replicated as logs at the
        root are, over so few nodes that R - 1 of them seldom go at once. One round trip."""
        scopes = self._whole("/", LogAttributes(), await self.directories()).replicate_across
        replication = LogAttributes(replicate_across=scopes).over(DEFAULTS).replication
        own = LogAttributes(replicate_across=scopes, nodeset_size=event_log_nodes(replication))
        return LogInfo(EVENT_LOG, EVENT_LOG_NAME, own=own, attributes=own.over(DEFAULTS))

    async def list(
        self,
        prefix: str = "/",
        *,
        only_readable: bool = False,
        unread: dict[str, Malformed] | None = None,
    ) -> list[LogInfo]:
        """Logs at the path `prefix` and below it, by name.

        Args:
            only_readable: leave out logs with entries that cannot be read. A newer version may have
                written them, and its logs must not hold up those of all others.
            unread: likewise, and it gets the errors of these entries, by their keys. A log that is
                left out is not deleted: `log_entries.numbers_of` tells which logs these are.
        Raises:
            BadSetting: the path is wrong.
            Overloaded: directories changed all the time.
        """
        path = "" if prefix in ("", "/") else normalise_name(prefix.removesuffix("/"))
        takes_unread = only_readable or unread is not None
        found = await self._store.get(DIRECTORIES_KEY)
        for _ in range(READINGS_MAX):
            errors: dict[str, Malformed] | None = {} if takes_unread else None
            infos = await self._listed(path, directories_of(found), errors)
            # Race: an attribute may move between a log and its directory while the logs are read.
            # Together they would give attributes that the log never had, and retention would trim
            # by them.
            before, found = found, await self._store.get(DIRECTORIES_KEY)
            if (before and before.version) == (found and found.version):
                if unread is not None:
                    unread |= errors or {}
                return infos
        raise Overloaded(f"directories changed during each of {READINGS_MAX} listings")

    async def _listed(
        self, path: str, directories: Directories, errors: dict[str, Malformed] | None
    ) -> Infos:
        """Read the logs at `path` and below it once; see `list`."""
        found = await read_logs(self._store, path, errors)
        infos = {
            log.name: self._info(log_id, log, directories) for log_id, log in found.logs.items()
        }
        again = sorted(found.torn)
        while again:
            replaced: list[LogId] = []
            for start in range(0, len(again), READ_AGAIN):
                some = again[start : start + READ_AGAIN]
                asked = (self._read_again(each, found.torn.get(each, 0), errors) for each in some)
                for info in await asyncio.gather(*asked):
                    if info is not None and is_at_or_below(info.name, path):
                        # Race: the log that had this name before has another one by now.
                        before = infos.get(info.name, info).log_id
                        replaced += {before} - {info.log_id}
                        infos[info.name] = info
            again = replaced
        return [infos[name] for name in sorted(infos)]

    async def _read_again(
        self, log_id: LogId, version: int, errors: dict[str, Malformed] | None
    ) -> LogInfo | None:
        """Read a log at no name that leads to it again; see `log_listing`."""
        if version:
            found = await self._store.get(id_key(log_id))
            if found is not None and found.version == version:
                return None
        return await self._by_id_if_readable(log_id, errors)

    async def _by_id_if_readable(
        self, log_id: LogId, errors: dict[str, Malformed] | None
    ) -> LogInfo | None:
        """As `by_id`; None also if an entry cannot be read and `errors` is there to get that."""
        try:
            return await self.by_id(log_id)
        except Malformed as error:
            if errors is None:
                raise
            errors[id_key(log_id)] = error
            return None

    async def _still(self, log_id: LogId) -> tuple[LogEntry | None, int, Directories]:
        """The entry of a number, its version, and the directories at that moment. Two round trips.

        Raises:
            Overloaded: they changed all the time.
        """
        versions: list[int] = []
        for _ in range(READINGS_MAX):
            log, above = await asyncio.gather(
                self._store.get(id_key(log_id)), self._store.get(DIRECTORIES_KEY)
            )
            before, versions = versions, [each.version if each else 0 for each in (log, above)]
            # Race: an attribute may move between a log and its directory meanwhile. Together they
            # would give attributes that the log never had: no token, or another's retention.
            if versions == before:
                entry = decode(log.value, LogEntry, f"log number {log_id}") if log else None
                return entry, versions[0], directories_of(above)
        raise Overloaded(
            f"log number {log_id} or directories changed during each of {READINGS_MAX} readings"
        )

    # Changing.

    async def directories(self) -> Directories:
        """The attributes set on directories, by path. One round trip."""
        return directories_of(await self._store.get(DIRECTORIES_KEY))

    async def inherited(self, path: str) -> LogAttributes:
        """All attributes of a directory, as set or inherited.

        Raises:
            BadSetting: the path is wrong.
        """
        return self._whole(normalise_directory(path), LogAttributes(), await self.directories())

    async def version(self, log_id: int | None) -> int:
        """Of the entry that a change of a log, None for a directory, changes."""
        found = await self._store.get(DIRECTORIES_KEY if log_id is None else id_key(log_id))
        return found.version if found else 0

    async def set_attributes(
        self,
        path: str,
        attributes: LogAttributes,
        unset: tuple[str, ...] = (),
        check: Check = anybody,
        log_id: int | None = None,
        version: int | None = None,
    ) -> None:
        """Set attributes of a log, or, if the path ends with a slash, of a directory.

        Args:
            unset: names of attributes to inherit again.
            check: the caller's right; see `log_rights`.
            log_id: the log that the caller means, even if another log has the path by now.
            version: the version that the caller saw, see `version`; None takes any.
        Raises:
            Fenced: it has another version.
            AccessDenied: `check` says so.
            UnknownLog: the log does not exist.
            BadSetting: the path or an attribute is wrong, or some log below could not have these
                attributes.
        """
        check_attributes(attributes)

        def become(own: LogAttributes) -> LogAttributes:
            return attributes.over(own.without(unset))

        if path.endswith("/"):
            path = normalise_directory(path)
            await self._set_directory(path, become, check, version)
        else:
            path = normalise_name(path)
            info = await self._meant(path, log_id)
            if info is None:
                raise unknown(path)
            await self._set_log(info, become, check, version)
        await self.note_change()

    async def _set_log(
        self, info: LogInfo, become: Become, check: Check, version: int | None
    ) -> None:
        name, directories = info.name, await self.directories()

        def decide(found: bytes | None) -> bytes:
            if found is None:
                raise unknown(name)
            log = decode(found, LogEntry, f"log {name}")
            if not log.is_at(name):
                raise unknown(name)
            own = become(log.attributes)
            was = self._whole(name, log.attributes, directories)
            whole = self._whole(name, own, directories)
            check_whole(whole, was)
            check(name, was, whole)
            return msgspec.json.encode(msgspec.structs.replace(log, attributes=own))

        await change_repeatably(self._store, id_key(info.log_id), decide, version=version)

    async def _set_directory(
        self, path: str, become: Become, check: Check, version: int | None
    ) -> None:
        logs = [info for info in await self.list(path) if is_below(info.name, path)]

        def decide(found: bytes | None) -> bytes:
            known = decode(found, Directories, "directories") if found else {}
            own = become(known.get(path, LogAttributes()))
            planned = {**known, path: own}
            none = LogAttributes()
            was = self._whole(path, none, known)
            whole = self._whole(path, none, planned)
            check_whole(whole, was)
            check(path, was, whole)
            for info in logs:
                was = self._whole(info.name, info.own, known)
                whole = self._whole(info.name, info.own, planned)
                check_below(info.name, whole, was)
                check(info.name, was, whole)
            return msgspec.json.encode({k: v for k, v in planned.items() if v.as_set()})

        await change_repeatably(self._store, DIRECTORIES_KEY, decide, version=version)

    async def delete(
        self, name: str, check: Check = anybody, log_id: int | None = None
    ) -> LogInfo | None:
        """Delete a log: its name is free again, its number is not.

        Args:
            check: the caller's right; see `log_rights`.
            log_id: the log that the caller means; 0 for the remains of a change that stopped
                half-way. Without it the log that has the name by now.
        Returns:
            The deleted log; None if a rename had left the name; the log continues under its other
                name.
        Raises:
            AccessDenied: `check` says so.
            UnknownLog: the log does not exist.
        """
        name = normalise_name(name)
        info = await self._meant(name, log_id)
        if info is None:
            # A deletion that stopped half-way is finished; of a rename only the name is taken away.
            left = LogId(log_id) if log_id else await self._left(name)
            log = await self._entries.log(left)
            if log is not None and log.is_deleted:
                info = self._info(left, log, await self.directories())
            elif log_id or (log is not None and log.is_at(name)):
                raise unknown(name)
            await self._entries.remove_name(name, left)
        else:
            await self.move(info.log_id, info.name, None, check, None)
            await self._entries.remove_name(info.name, info.log_id)
        await self.note_change()
        return info

    async def rename(
        self,
        name: str,
        new_name: str,
        check: Check = anybody,
        log_id: int | None = None,
        version: int | None = None,
    ) -> LogInfo:
        """Rename a log; it inherits from its new directory.

        A rename that stopped half-way changed nothing or is done, and may be made again. Of two
        concurrent renames one happens.

        Args:
            check: whether the caller may; see `log_rights`.
            log_id: as in `delete`.
            version: as in `set_attributes`.
        Raises:
            Fenced, AccessDenied: as in `set_attributes`.
            UnknownLog: the log does not exist.
            LogExists: the new name is taken.
            BadSetting: a name is wrong, or the log could not have its attributes there.
        """
        name, new_name = normalise_name(name), normalise_name(new_name)
        info = await self._meant(name, log_id)
        if info is None:
            left = LogId(log_id) if log_id else await self._left(name)
            return await self._finish_rename(name, new_name, left)
        if new_name == name:
            return info
        await self.planned(new_name, info.own, info.attributes)
        try:
            await self.move(info.log_id, name, new_name, check, version)
        except (Rejected, Fenced):
            # Another call came first: the log has gone or changed, or asks for a token now. The
            # claim on the new name would be in the way of others for good.
            await self._entries.remove_name(new_name, info.log_id)
            raise
        return await self._finish_rename(name, new_name, info.log_id)

    async def _meant(self, name: str, log_id: int | None) -> LogInfo | None:
        """The log with this name, if it is the log that the caller means."""
        info = await self.get(name)
        return info if info is not None and log_id in (None, info.log_id) else None

    async def _left(self, name: str) -> LogId:
        """The log that a rename or a deletion left this name; UnknownLog for none."""
        left = await self._entries.leads_to(name)
        if left is None:
            raise unknown(name)
        return left

    async def _finish_rename(self, name: str, new_name: str, log_id: LogId) -> LogInfo:
        """Take the old name away from a log that has the new name; UnknownLog if it does not."""
        log = await self._entries.log(log_id)
        if log is None or not log.is_at(new_name):
            raise unknown(name)
        await self._entries.remove_name(name, log_id)
        await self.note_change()
        renamed = await self.get(new_name)
        if renamed is None:
            raise unknown(new_name)
        return renamed

    async def move(
        self, log_id: LogId, name: str, new_name: str | None, check: Check, version: int | None
    ) -> None:
        """Give a log its new name, or delete it, by the one write that decides.

        The entry is read, then the new name is claimed, then the entry is written if it has not
        changed since. So a name that was removed meanwhile is claimed again; see `remove_name`.

        Raises:
            Fenced, UnknownLog: the log has changed, or gone from `name`, meanwhile.
            LogExists: the new name is taken.
            AccessDenied: `check` says so.
        """
        unknowns = 0
        for _ in range(RACES_MAX):
            found = await self._store.get(id_key(log_id))
            # Order matters: as they are while the entry is as found, or nothing is written. A token
            # that moved to a directory meanwhile would not be asked for.
            directories = await self.directories()
            log = decode(found.value, LogEntry, f"log {name}") if found else None
            if found is None or log is None:
                raise unknown(name)
            # The entry that an earlier try of unknown outcome may have written.
            if log.is_deleted if new_name is None else log.is_at(new_name):
                return
            if not log.is_at(name):
                raise unknown(name)
            # Not by the name: a rename back looks like what the caller of a late rename saw.
            if version not in (None, found.version):
                raise await self._entries.overtaken(log_id, new_name, may_be_done=unknowns > 0)
            was = self._whole(name, log.attributes, directories)
            if new_name is None:
                check(name, was, None)
                changed = msgspec.structs.replace(log, is_deleted=True)
            else:
                # Before the new name is claimed, which would be in the way of others for good.
                becomes = self._whole(new_name, log.attributes, directories)
                check_rename(name, was, becomes, check)
                await self._entries.claim(new_name, log_id)
                changed = msgspec.structs.replace(log, name=new_name)
            value = msgspec.json.encode(changed)
            try:
                if await self._store.compare_and_set(id_key(log_id), value, found.version):
                    return
            except OutcomeUnknown as error:
                unknowns += 1
                if unknowns == UNKNOWN_MAX:
                    raise Unreachable(f"{error}; it may be asked again") from error
        raise Overloaded(f"log {name}: {RACES_MAX} other writers in a row came first")

    # Telling nodes.

    async def note_change(self) -> None:
        """Tell watchers that a log or a directory changed."""
        await note_change(self._store)

    async def changes(self) -> int:
        """The number of changes so far. One round trip."""
        return await count_changes(self._store)

    # Entries.

    def _info(self, log_id: LogId, log: LogEntry, directories: Directories) -> LogInfo:
        whole = self._whole(log.name, log.attributes, directories)
        own = log.attributes
        return LogInfo(log_id, log.name, log.created_us, own, whole, log.mark, log.is_deleted)

    def _whole(self, path: str, own: LogAttributes, directories: Directories) -> LogAttributes:
        return whole_of(path, own, directories, self._defaults)


def root_attributes(attributes: LogAttributes, known: Mapping[str, Versioned]) -> dict[str, bytes]:
    """The write that sets the root's attributes, for a holder of the store itself.

    Args:
        known: the store's present value.
    """
    found = known.get(CHANGES_KEY)
    return {
        DIRECTORIES_KEY: msgspec.json.encode({"/": attributes}),
        CHANGES_KEY: one_more(found.value if found else None),
    }
