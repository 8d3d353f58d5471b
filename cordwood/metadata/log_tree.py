"""Logs by name and by number, and the attributes that they have and inherit.

Names are paths: `/orders/eu`, and `orders` is `/orders`. A path may be a log and have
logs below it; with a slash at its end it is the directory: `/orders/` is all that lies
below, and `/` is all there is. Numbers come from a counter and are never used twice.

Entries: `logs/<name>` leads to a log's number; `log_ids/<number>` has the log's one name, whether
it was deleted, and what was set on it. A log is found by a name if both entries agree, so that the
second one alone decides: a rename or a deletion is one write to it. A name whose log has
another one is what a rename left that stopped half-way: nobody finds a log by it, and making the
rename again or deleting the name frees it.
`next_log_id` is the counter (see `log_numbers`); `directories` has what was set on directories,
all in one value.
Making writes counter, number, name, so that a maker that stops on the way leaves a number
without a log. `log_changes/latest` is written after each change to a log that was there
already: nodes watch it, and nothing else of the tree.

Source: docs/design.md §6, §11; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec

from cordwood.errors import BadSetting, LogExists, OutcomeUnknown, UnknownLog
from cordwood.layout.json_text import read_json
from cordwood.layout.log_names import normalise_directory, normalise_name
from cordwood.log_attributes import DEFAULTS, LogAttributes, check_attributes, check_whole
from cordwood.lsn import LogId
from cordwood.metadata.change import change, change_repeatably
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_numbers import LOG_ID_MAX, LogNumbers
from cordwood.metadata.log_rights import Check, anybody
from cordwood.metadata.store import MetadataStore, Versioned

RENAMES_MAX = 4
"""Renames of one log between two readings of it, one behind the other; a person makes them."""

READ_AGAIN = 32
"""Logs that a listing reads again at once, by number, where names and numbers disagree."""

CHANGES_PREFIX = "log_changes/"
"""What to watch for changes to logs that are there."""

_CHANGES = "log_changes/latest"
_DIRECTORIES = "directories"

Directories = dict[str, LogAttributes]

Become = Callable[[LogAttributes], LogAttributes]

Stored = TypeVar("Stored")

_Id = Annotated[int, msgspec.Meta(ge=1, le=LOG_ID_MAX)]


class _Name(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`logs/<name>`."""

    log_id: _Id


class _Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`log_ids/<number>`: the name that its maker went on to claim, and its attributes."""

    name: str
    created_us: int
    attributes: LogAttributes
    is_deleted: bool = False
    mark: str = ""

    def is_at(self, name: str) -> bool:
        """Whether the log is to be found by this name; see the module."""
        return self.name == name and not self.is_deleted


class _Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`log_changes/latest`."""

    count: int = 0


def is_below(name: str, path: str) -> bool:
    """Whether what is set on `path`, a log or a directory, may concern the log `name`."""
    return name.startswith(path) if path.endswith("/") else name == path


def _is_at_or_below(name: str, path: str) -> bool:
    """Whether a listing of `path`, which is empty for all, shows the log `name`."""
    return name == path or name.startswith(f"{path}/")


class LogTree:
    """The logs of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (an
    entry cannot be read, or a newer version wrote it).

    Args:
        defaults: what holds where nothing is set on the way up; all attributes.
    """

    def __init__(self, store: MetadataStore, defaults: LogAttributes = DEFAULTS) -> None:
        self._store = store
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
        # Asked first, so that a name that is taken does not cost a number.
        if await self._is_taken(name, None):
            raise _exists(name)
        log_id = await self._numbers.take()
        await self._describe(log_id, _Log(name, created_us, own, mark=mark))
        await self._claim(name, log_id)
        return LogInfo(log_id, name, created_us, own, whole, mark)

    async def planned(self, name: str, attributes: LogAttributes | None = None) -> LogAttributes:
        """The attributes that a log of this name would have.

        Raises:
            BadSetting: the name or an attribute is wrong.
        """
        name = normalise_name(name)
        whole = self._whole(name, attributes or LogAttributes(), await self.directories())
        check_whole(whole)
        return whole

    async def get(self, name: str) -> LogInfo | None:
        """A log by name, None if there is none. Two round trips.

        Raises:
            BadSetting: the name is wrong.
        """
        name = normalise_name(name)
        found = await self._store.get(_name_key(name))
        if found is None:
            return None
        log_id = LogId(_decode(found.value, _Name, f"log {name}").log_id)
        log, directories = await asyncio.gather(self._log(log_id), self.directories())
        return self._info(log_id, log, directories) if log and log.is_at(name) else None

    async def by_id(self, log_id: int) -> LogInfo | None:
        """A log by number, None if there is none. Three round trips."""
        if not 1 <= log_id <= LOG_ID_MAX:
            return None
        # Again where it was renamed between the readings: the name just read has gone.
        for _ in range(RENAMES_MAX):
            log = await self._log(LogId(log_id))
            # Its maker may have stopped, another made the log, or it was deleted since.
            if log is None or log.is_deleted:
                return None
            found = await self._store.get(_name_key(log.name))
            if found and _decode(found.value, _Name, f"log {log.name}").log_id == log_id:
                return self._info(LogId(log_id), log, await self.directories())
        return None

    async def _log(self, log_id: LogId) -> _Log | None:
        found = await self._store.get(_id_key(log_id))
        return _decode(found.value, _Log, f"log number {log_id}") if found else None

    async def is_deleted(self, log_id: int) -> bool:
        """Whether a number that was given out has no log any more, for good. One round trip."""
        log = await self._log(LogId(log_id))
        return log is None or log.is_deleted

    async def described(self, log_id: LogId) -> LogInfo | None:
        """A log by number, for callers that know that it is there. One round trip."""
        log, directories = await asyncio.gather(self._log(log_id), self.directories())
        return None if log is None else self._info(log_id, log, directories)

    async def list(self, prefix: str = "/") -> list[LogInfo]:
        """Logs at the path `prefix` and below it, by name.

        Raises:
            BadSetting: the path is wrong, or too many logs are there.
        """
        path = "" if prefix in ("", "/") else normalise_name(prefix.removesuffix("/"))
        names, logs, directories = await asyncio.gather(
            self._store.list(_name_key(path) if path else "logs/"),
            self._store.list("log_ids/"),
            self.directories(),
        )
        infos: dict[str, LogInfo] = {}
        leads = {
            name: LogId(_decode(found.value, _Name, f"log {name}").log_id)
            for name, found in ((key.removeprefix("logs"), found) for key, found in names)
            if _is_at_or_below(name, path)
        }
        # Names and numbers are read apart: a log that was made or renamed between the two
        # readings, or while one went on, is at no name that leads to it.
        torn = set(leads.values())
        for key, found in logs:
            log = _decode(found.value, _Log, key)
            log_id = LogId(int(key.removeprefix("log_ids/")))
            if log.is_deleted or leads.get(log.name) == log_id:
                torn.discard(log_id)
                if not log.is_deleted:
                    infos[log.name] = self._info(log_id, log, directories)
            elif _is_at_or_below(log.name, path):
                torn.add(log_id)
        again = sorted(torn)
        for start in range(0, len(again), READ_AGAIN):
            some = again[start : start + READ_AGAIN]
            for info in await asyncio.gather(*map(self.by_id, some)):
                if info is not None and _is_at_or_below(info.name, path):
                    infos[info.name] = info
        return [infos[name] for name in sorted(infos)]

    # Changing.

    async def directories(self) -> Directories:
        """What is set on directories, by path. One round trip."""
        found = await self._store.get(_DIRECTORIES)
        return _decode(found.value, Directories, "directories") if found else {}

    async def inherited(self, path: str) -> LogAttributes:
        """All attributes of a directory, as set or inherited.

        Raises:
            BadSetting: the path is wrong.
        """
        return self._whole(normalise_directory(path), LogAttributes(), await self.directories())

    async def version(self, log_id: int | None) -> int:
        """Of the entry that setting attributes of a log, None for a directory, changes."""
        found = await self._store.get(_DIRECTORIES if log_id is None else _id_key(log_id))
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
            unset: names that are inherited again.
            check: whether the caller may; see `log_rights`.
            log_id: the log that the caller means, whichever log has the path by now.
            version: what the caller saw, see `version`; None takes any.
        Raises:
            Fenced: it has another version.
            AccessDenied: `check` says so.
            UnknownLog: there is no such log.
            BadSetting: the path or an attribute is wrong, or some log below could not be so.
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
                raise _unknown(path)
            await self._set_log(info, become, check, version)
        await self.note_change()

    async def _set_log(
        self, info: LogInfo, become: Become, check: Check, version: int | None
    ) -> None:
        name, directories = info.name, await self.directories()

        def decide(found: bytes | None) -> bytes:
            if found is None:
                raise _unknown(name)
            log = _decode(found, _Log, f"log {name}")
            if not log.is_at(name):
                raise _unknown(name)
            own = become(log.attributes)
            whole = self._whole(name, own, directories)
            check_whole(whole)
            check(name, self._whole(name, log.attributes, directories), whole)
            return msgspec.json.encode(msgspec.structs.replace(log, attributes=own))

        await change_repeatably(self._store, _id_key(info.log_id), decide, version=version)

    async def _set_directory(
        self, path: str, become: Become, check: Check, version: int | None
    ) -> None:
        logs = [info for info in await self.list(path) if is_below(info.name, path)]

        def decide(found: bytes | None) -> bytes:
            known = _decode(found, Directories, "directories") if found else {}
            own = become(known.get(path, LogAttributes()))
            planned = {**known, path: own}
            none = LogAttributes()
            whole = self._whole(path, none, planned)
            check_whole(whole)
            check(path, self._whole(path, none, known), whole)
            for info in logs:
                whole = self._whole(info.name, info.own, planned)
                _check_log(info, whole)
                check(info.name, self._whole(info.name, info.own, known), whole)
            return msgspec.json.encode({k: v for k, v in planned.items() if v.as_set()})

        await change_repeatably(self._store, _DIRECTORIES, decide, version=version)

    async def delete(
        self, name: str, check: Check = anybody, log_id: int | None = None
    ) -> LogInfo | None:
        """Delete a log: its name is free again, its number is not.

        Args:
            check: whether the caller may; see `log_rights`.
            log_id: the log that the caller means; 0 for what a change left that stopped half-way.
                Without it the log that has the name by now.
        Returns:
            What it was; None if a rename had left the name, whose log goes on under its other one.
        Raises:
            AccessDenied: `check` says so.
            UnknownLog: there is no such log.
        """
        name = normalise_name(name)
        info = await self._meant(name, log_id)
        if info is None:
            # A deletion that stopped half-way is finished; of a rename only the name is taken away.
            left = LogId(log_id) if log_id else await self._leads_to(name)
            log = await self._log(left)
            if log is not None and log.is_deleted:
                info = self._info(left, log, await self.directories())
            elif log_id or (log_id == 0 and log is not None and log.is_at(name)):
                raise _unknown(name)
            await self._remove_name(name, left)
        else:
            await self._move(info.log_id, info.name, None, check)
            await self._remove_name(info.name, info.log_id)
        await self.note_change()
        return info

    async def rename(
        self, name: str, new_name: str, check: Check = anybody, log_id: int | None = None
    ) -> LogInfo:
        """Give a log another name; what it inherits changes with it.

        A rename that stopped half-way changed nothing or is done, and may be made again. Of two
        at once one is done.

        Args:
            check: whether the caller may; see `log_rights`.
            log_id: as in `delete`.
        Raises:
            AccessDenied: `check` says so.
            UnknownLog: there is no such log.
            LogExists: the new name is taken.
            BadSetting: a name is wrong, or the log could not be so there.
        """
        name, new_name = normalise_name(name), normalise_name(new_name)
        info = await self._meant(name, log_id)
        if info is None:
            left = LogId(log_id) if log_id else await self._leads_to(name)
            return await self._finish_rename(name, new_name, left)
        if new_name == name:
            return info
        planned = await self.planned(new_name, info.own)
        # Before the new name is claimed, which would be in the way of others for good.
        _check_rename(name, info.attributes, planned, check)
        await self._claim(new_name, info.log_id)
        await self._move(info.log_id, name, new_name, check)
        return await self._finish_rename(name, new_name, info.log_id)

    async def _meant(self, name: str, log_id: int | None) -> LogInfo | None:
        """The log that has a name, if it is the one that the caller means."""
        info = await self.get(name)
        return info if info is not None and log_id in (None, info.log_id) else None

    async def _leads_to(self, name: str) -> LogId:
        """Raises UnknownLog for a name that leads nowhere."""
        found = await self._store.get(_name_key(name))
        if found is None:
            raise _unknown(name)
        return LogId(_decode(found.value, _Name, f"log {name}").log_id)

    async def _finish_rename(self, name: str, new_name: str, log_id: LogId) -> LogInfo:
        """Take the old name away from the log that has the new one; UnknownLog if it does not."""
        log = await self._log(log_id)
        if log is None or not log.is_at(new_name):
            raise _unknown(name)
        # Once more: somebody may have deleted the name while its log was on its way to it.
        try:
            await self._claim(new_name, log_id)
        except LogExists:
            # And made another log of it: this one goes back, as it would have no name at all.
            await self._claim(name, log_id)
            await self._move(log_id, new_name, name, anybody)
            raise
        await self._remove_name(name, log_id)
        await self.note_change()
        renamed = await self.get(new_name)
        if renamed is None:
            raise _unknown(new_name)
        return renamed

    async def _move(self, log_id: LogId, name: str, new_name: str | None, check: Check) -> None:
        """Give a log its new name, or delete it: the one write that decides.

        Raises:
            UnknownLog: the log has gone from `name` meanwhile.
            AccessDenied: `check` says so.
        """
        directories = await self.directories()

        def decide(found: bytes | None) -> bytes | None:
            log = _decode(found, _Log, f"log {name}") if found else None
            if log is None:
                raise _unknown(name)
            # What an earlier try wrote, of which the store did not say whether it did.
            if log.is_deleted if new_name is None else log.is_at(new_name):
                return None
            if not log.is_at(name):
                raise _unknown(name)
            was = self._whole(name, log.attributes, directories)
            if new_name is None:
                check(name, was, None)
                changed = msgspec.structs.replace(log, is_deleted=True)
            else:
                becomes = self._whole(new_name, log.attributes, directories)
                _check_rename(name, was, becomes, check)
                changed = msgspec.structs.replace(log, name=new_name)
            return msgspec.json.encode(changed)

        await change_repeatably(self._store, _id_key(log_id), decide)

    async def _remove_name(self, name: str, log_id: LogId) -> None:
        """Take a name away from a log, if it still has it."""
        while True:
            found = await self._store.get(_name_key(name))
            if found is None or _decode(found.value, _Name, f"log {name}").log_id != log_id:
                return
            try:
                if await self._store.compare_and_set(_name_key(name), None, found.version):
                    return
            except OutcomeUnknown:
                continue

    # Telling nodes.

    async def note_change(self) -> None:
        """Tell those who watch that a log or a directory changed."""

        def decide(found: bytes | None) -> bytes:
            count = _decode(found, _Changes, _CHANGES).count if found else 0
            return msgspec.json.encode(_Changes(count + 1))

        await change_repeatably(self._store, _CHANGES, decide)

    async def changes(self) -> int:
        """How many changes there were. One round trip."""
        found = await self._store.get(_CHANGES)
        return _decode(found.value, _Changes, _CHANGES).count if found else 0

    # Entries.

    def _info(self, log_id: LogId, log: _Log, directories: Directories) -> LogInfo:
        whole = self._whole(log.name, log.attributes, directories)
        return LogInfo(log_id, log.name, log.created_us, log.attributes, whole, log.mark)

    def _whole(self, path: str, own: LogAttributes, directories: Directories) -> LogAttributes:
        whole = self._defaults
        # By length, so that what is nearer to the log comes later.
        for directory in sorted(directories, key=len):
            if path.startswith(directory):
                whole = directories[directory].over(whole)
        return own.over(whole)

    async def _describe(self, log_id: LogId, log: _Log) -> None:
        value = msgspec.json.encode(log)

        def decide(found: bytes | None) -> bytes | None:
            assert found in (None, value), "a number is taken by one maker only"
            return value if found is None else None

        await change_repeatably(self._store, _id_key(log_id), decide)

    async def _claim(self, name: str, log_id: LogId) -> None:
        """Have a name lead to a log.

        Raises:
            LogExists: it leads to another one, or is on its way to it.
        """
        entry = msgspec.json.encode(_Name(log_id))
        found = await self._store.get(_name_key(name))
        free = {None, entry, found.value if found else None}
        if await self._is_taken(name, log_id):
            raise _exists(name)

        def decide(value: bytes | None) -> bytes | None:
            if value not in free:
                raise _exists(name)
            return entry if value != entry else None

        try:
            await change(self._store, _name_key(name), decide)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"log {name} may have been made: {error}") from error

    async def _is_taken(self, name: str, log_id: LogId | None) -> bool:
        """Whether a name leads to another log than this that was not deleted.

        That log may have another name: then a rename is on its way from there, or stopped. Nobody
        can tell, so the name is not given away.
        """
        found = await self._store.get(_name_key(name))
        other = _decode(found.value, _Name, f"log {name}").log_id if found else log_id
        if other is None or other == log_id:
            return False
        log = await self._log(LogId(other))
        return log is None or not log.is_deleted


def _check_rename(name: str, was: LogAttributes, becomes: LogAttributes, check: Check) -> None:
    """A rename takes the name away, and what is inherited changes with it."""
    check(name, was, None)
    check(name, was, becomes)


def _check_log(info: LogInfo, whole: LogAttributes) -> None:
    try:
        check_whole(whole)
    except BadSetting as error:
        raise BadSetting(f"{info.name} could not be so: {error}") from None


def root_attributes(attributes: LogAttributes, known: Mapping[str, Versioned]) -> dict[str, bytes]:
    """What setting the root's attributes writes, for who holds the store itself.

    Args:
        known: what the store has.
    """
    found = known.get(_CHANGES)
    count = _decode(found.value, _Changes, _CHANGES).count if found else 0
    return {
        _DIRECTORIES: msgspec.json.encode({"/": attributes}),
        _CHANGES: msgspec.json.encode(_Changes(count + 1)),
    }


def _name_key(name: str) -> str:
    return f"logs{name}"


def _id_key(log_id: int) -> str:
    return f"log_ids/{log_id}"


def _exists(name: str) -> LogExists:
    return LogExists(f"there is a log {name} already")


def _unknown(name: str) -> UnknownLog:
    return UnknownLog(f"there is no log {name}")


def _decode(value: bytes, kind: type[Stored], what: str) -> Stored:
    return read_json(value, kind, f"the metadata of {what}")
