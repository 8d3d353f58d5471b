"""Builds a log's manifest from its objects alone: nodes, metadata store and head may all be lost.

Every object names in its name or footer its log and its range. All objects that cover a range hold
the same records, because a range is uploaded only after it is sealed and released. So a listing and
one footer for each object are enough. A listing may lack recent objects. So a survey also asks for
the objects that the present manifest names, as far as it can be read; repair while nothing uploads.

Records that no object covers are lost. `repair_log` then refuses, and names the ranges. If the
caller accepts the losses, it writes entries without an object (`LOST`), and readers get DATA_LOSS
there. If such an object is put back later, the next repair names it again.

Trap: objects do not say where the log ended. If the newest objects are lost, or the whole store was
restored from an older copy, the manifest ends below records that nodes no longer have, and readers
wait there. An operator gives the LSN up to which nodes let go (`end`).

Source: docs/objects.md, "Repair".
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cordwood.errors import BadSetting, Corrupt, NoObject
from cordwood.layout.manifest import parse_page_name
from cordwood.layout.object_file import entry_of
from cordwood.layout.object_names import (
    LOGS,
    SHARED,
    objects_prefix,
    pages_prefix,
    parse_object_name,
)
from cordwood.lsn import Lsn
from cordwood.protocol.manifest import in_order, is_merged, last_append_us, tile
from cordwood.tier.collect import CALL_S, list_all
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import load_footer
from cordwood.tier.object_store import ObjectInfo, ObjectStore
from cordwood.tier.presence import Presence, lost_entries
from cordwood.tier.verify import all_entries
from cordwood.tiered import LOST, MERGED, Entry, Head, is_lost

FOOTERS_AT_ONCE = 16
"""Gets in flight: 16 of 64 KiB."""

TURNS_SKIPPED = 1 << 20
"""The number of turns that a repair skips. A turn may have begun that has put no object yet, and
the repair's turn must be above it."""

_NUMBER = re.compile("[0-9a-f]{16}")


class Unrepairable(Corrupt):
    """Some ranges of a log are missing from all remaining objects."""


@dataclass(frozen=True, slots=True)
class Found:
    """The remains of a log.

    Attributes:
        entries: the entries that cover the most, in order, without overlap.
        holes: ranges between them, both ends included, that no object covers.
        damaged: objects that were left out, and why.
        fence, merges: the highest turns, at uploading and at merging, with anything left.
    """

    entries: tuple[Entry, ...]
    holes: tuple[tuple[int, int], ...]
    damaged: tuple[tuple[str, str], ...]
    fence: int
    merges: int


async def find_logs(store: ObjectStore) -> list[int]:
    """The numbers of all logs that have objects in a store, by the logs' own prefixes."""
    logs: list[int] = []
    after = ""
    while True:
        page = await store.list_page(LOGS, after=after, limit=1, timeout_s=CALL_S)
        if not page:
            return logs
        part = page[0].name.removeprefix(LOGS).partition("/")[0]
        if _NUMBER.fullmatch(part):
            logs.append(int(part, 16))
        # Behind all that begins with `part/`, ours or not: "0" comes next after "/".
        after = f"{LOGS}{part}0"


async def survey_log(
    store: ObjectStore, log: int, start: int = 0, end: int = 0, named: Iterable[str] = ()
) -> Found:
    """Look at all objects of a log: its own, and those that it shares with other logs.

    Args:
        start: records below it are trimmed, and not looked for.
        end: the last LSN that was uploaded; 0 for the last LSN of the found objects.
        named: names of objects that a manifest has; they are looked for also if they are not
            listed.
    """
    survey = _Survey(store, log)
    for prefix in (objects_prefix(log), SHARED):
        batch: list[ObjectInfo] = []
        async for info in list_all(store, prefix):
            batch.append(info)
            if len(batch) == FOOTERS_AT_ONCE:
                await survey.look_at(batch)
                batch = []
        await survey.look_at(batch)
    await survey.look_for(named)
    fences = [entry.fence for entry in survey.entries]
    async for info in list_all(store, pages_prefix(log)):
        try:
            fences.append(parse_page_name(info.name)[1].fence)
        except Corrupt:
            continue
    uploads = max((fence for fence in fences if not is_merged(fence)), default=0)
    merges = max((fence - MERGED for fence in fences if is_merged(fence)), default=0)
    chosen = tuple(tile(survey.entries, start))
    holes = tuple(
        (one.last + 1, other.first - 1)
        for one, other in pairwise(chosen)
        if other.first != one.last + 1
    )
    if start and chosen and chosen[0].first > start:
        holes = ((start, chosen[0].first - 1), *holes)
    told = chosen[-1].last if chosen else start - 1
    if start <= told + 1 <= end:
        holes = (*holes, (told + 1, int(end)))
    return Found(chosen, holes, tuple(sorted(survey.damaged)), uploads, merges)


class _Survey:
    """Reads footers, some at once."""

    def __init__(self, store: ObjectStore, log: int) -> None:
        self.entries: list[Entry] = []
        self.damaged: list[tuple[str, str]] = []
        self._store = store
        self._log = log
        self._seen: set[str] = set()

    async def look_for(self, names: Iterable[str]) -> None:
        """Look at objects by name, as far as they are there and have not been looked at.

        Trap: a listing may be older than the manifest (`tier.object_store`), so it lacks the newest
        objects. These are not lost: all nodes may have let go of their records.
        """
        left = [name for name in dict.fromkeys(names) if name not in self._seen]
        for first in range(0, len(left), FOOTERS_AT_ONCE):
            some = left[first : first + FOOTERS_AT_ONCE]
            infos = await asyncio.gather(
                *(self._store.head(name, timeout_s=CALL_S) for name in some)
            )
            await self.look_at([info for info in infos if info is not None])

    async def look_at(self, batch: list[ObjectInfo]) -> None:
        """Note the log's records in some objects."""
        self._seen.update(info.name for info in batch)
        # Trap: a task group would end with a group of errors, which no caller expects.
        looks = [asyncio.create_task(self._look_at(info)) for info in batch]
        try:
            await asyncio.gather(*looks)
        finally:
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)

    async def _look_at(self, info: ObjectInfo) -> None:
        try:
            crc = parse_object_name(info.name).footer_crc
            footer = await load_footer(self._store, info.name, info.size, crc, timeout_s=CALL_S)
        except Corrupt as error:
            self.damaged.append((info.name, str(error)))
            return
        except NoObject:
            return  # deleted since it was listed, or the listing is stale
        run = footer.index.run(self._log)
        if run is not None:
            self.entries.append(entry_of(run, info.name, info.size, footer.bytes, crc))


async def repair_log(
    store: ObjectStore,
    manifest: LogManifest,
    log: int,
    *,
    start: int = 0,
    end: int = 0,
    accept: bool = False,
) -> Found:
    """Write a log's manifest anew if it has none, if it cannot be read, if it names objects that
    are gone (it may be an older copy, and other objects have their records), or if an object has
    records again that it calls lost.

    Args:
        start: the log's first LSN, if its beginning was trimmed.
        end: the LSN up to which nodes let go of the log, if the log's newest objects are lost; 0 if
            none are lost. A readable manifest is then continued up to this LSN. If an earlier
            repair declared LSNs lost that the log never had, or did not have yet, the manifest is
            shortened to end here again.
        accept: continue although ranges are lost; readers get DATA_LOSS there.
    Raises:
        Unrepairable: ranges are lost, and the operator did not accept the loss.
        BadSetting: the log has a manifest that can be read, and reaches `end`, and no object has
            records that it calls lost; or the log was deleted.
        ObjectChanged: an uploader committed meanwhile; call again.
    """
    head = await manifest.load_whole()
    if head is not None:
        if head.fence >= MERGED:
            raise BadSetting(f"log {head.log} was deleted: there is nothing to repair")
        missing = await Presence(store).first_missing(manifest, head.start, head.end - 1)
        losses: Sequence[Entry] | None = None
        if missing is None:
            losses = await lost_entries(manifest, max(start, head.start), head.end - 1)
        if losses is None or losses:
            rebuilt = await _rebuild(store, manifest, head, start, end, losses, accept=accept)
            if rebuilt is not None:
                return rebuilt
    if end and head is not None:
        return await _continue_log(store, manifest, head, end, accept=accept)
    found = await survey_log(store, log, start, end, await _names_left(manifest))
    if not found.entries and not found.holes:
        raise Unrepairable(f"log {log}: no readable object of it is left")
    _check_accepted(log, found, accept=accept)
    await manifest.write_anew(
        _with_holes(found), found.fence + TURNS_SKIPPED, found.merges + TURNS_SKIPPED
    )
    return found


async def _rebuild(
    store: ObjectStore,
    manifest: LogManifest,
    head: Head,
    start: int,
    end: int,
    losses: Sequence[Entry] | None,
    *,
    accept: bool,
) -> Found | None:
    """Write a manifest anew that can be read, and names objects that are gone, or calls records
    lost that an object has again.

    What it names stays in its range: what no object has any more is lost.

    Args:
        losses: what it calls lost, if nothing else is wrong with it.
    Returns:
        None if no object has any record of `losses`: the manifest stays as it is.
    """
    end = max(end, await end_of_objects(manifest) - 1) if end else head.end - 1
    named = [entry.name async for entry in all_entries(manifest) if not is_lost(entry)]
    found = await survey_log(store, head.log, max(start, head.start), end, named)
    if losses is not None and not _takes_back(found, losses):
        return None
    _check_accepted(head.log, found, accept=accept)
    await manifest.write_anew(
        _with_holes(found),
        max(head.fence, found.fence) + TURNS_SKIPPED,
        max(head.merging.number, found.merges) + TURNS_SKIPPED,
        head,
    )
    return found


async def _names_left(manifest: LogManifest) -> list[str]:
    """The youngest objects that a manifest names of which something cannot be read; none if that is
    its head.

    The head itself names the youngest of all, and pages of level 0 name some thousands before them:
    a listing has what is older.
    """
    head = manifest.head
    if head is None:
        return []
    entries: list[Entry] = []
    for item in in_order(head):
        if isinstance(item, Entry):
            entries.append(item)
        elif item.level == 0:
            with contextlib.suppress(Corrupt):
                entries += await manifest.page_entries(item)
    return [entry.name for entry in entries if not is_lost(entry)]


def _takes_back(found: Found, losses: Sequence[Entry]) -> bool:
    """Whether an object has a record of what a manifest calls lost."""
    return any(
        entry.first <= lost.last and lost.first <= entry.last
        for lost in losses
        for entry in found.entries
    )


async def _continue_log(
    store: ObjectStore, manifest: LogManifest, head: Head, end: int, *, accept: bool
) -> Found:
    """Continue a manifest that can be read up to an LSN; see `repair_log`."""
    if end < head.end:
        return await _shorten_log(manifest, head, end)
    found = await survey_log(store, head.log, head.end, end)
    _check_accepted(head.log, found, accept=accept)
    await manifest.extend(
        _with_holes(found, last_append_us(head)),
        max(head.fence, found.fence) + TURNS_SKIPPED,
        max(head.merging.number, found.merges) + TURNS_SKIPPED,
    )
    return found


async def _shorten_log(manifest: LogManifest, head: Head, end: int) -> Found:
    """Take back a loss that was accepted too far: LSNs that the log never had were declared lost.

    Without this, records that later get these LSNs would never be uploaded, and nodes would never
    let go of them.

    Raises:
        BadSetting: an entry behind `end` is no accepted loss, or is trimmed.
    """
    held = await end_of_objects(manifest)
    if not max(held, head.start) - 1 <= end < head.end - 1:
        raise BadSetting(
            f"the manifest of log {head.log} is readable and reaches {Lsn(head.end - 1)}: there "
            f"is nothing to repair up to {Lsn(end)}"
        )
    fence, merges = head.fence + TURNS_SKIPPED, head.merging.number + TURNS_SKIPPED
    await manifest.shorten(end, head, fence, merges)
    return Found((), (), (), head.fence, head.merging.number)


async def end_of_objects(manifest: LogManifest) -> int:
    """The first LSN behind all objects that a manifest names; accepted losses at its end do not
    count. 0 if it names none.

    Raises:
        Corrupt, Retryable: the manifest cannot be read.
    """
    head = manifest.head if manifest.head is not None else await manifest.load()
    if head is None:
        return 0
    lsn = head.end - 1
    while (entry := await manifest.find(lsn)) is not None:
        if not is_lost(entry):
            return entry.last + 1
        lsn = entry.first - 1
    return 0


def _check_accepted(log: int, found: Found, *, accept: bool) -> None:
    """Check that nothing is lost, or that the operator accepts the loss.

    Raises:
        Unrepairable: ranges are lost.
    """
    if found.holes and not accept:
        named = ", ".join(f"{Lsn(first)} to {Lsn(last)}" for first, last in found.holes[:5])
        more = ", …" if len(found.holes) > 5 else ""
        is_first = not found.entries or found.holes[0][0] < found.entries[0].first
        trimmed = ", or say where the log begins if its beginning was trimmed" if is_first else ""
        raise Unrepairable(
            f"log {log}: {len(found.holes)} ranges are in no object any more ({named}{more}); "
            f"accept the loss to repair the rest{trimmed}"
        )


def _with_holes(found: Found, after_us: int = 0) -> list[Entry]:
    """The entries, with an entry without an object for each hole.

    Args:
        after_us: the append time that theirs may not fall below.
    """
    at_us = max(after_us, found.entries[0].append_first_us) if found.entries else after_us
    lost = [_lost(first, last, at_us) for first, last in found.holes]
    filled = sorted([*found.entries, *lost])
    at_us = max(after_us, filled[0].append_last_us)
    for index, entry in enumerate(filled):
        # Append times do not fall along a manifest, so a hole gets the time of the entry before it.
        at_us = max(at_us, entry.append_last_us)
        filled[index] = entry._replace(append_last_us=at_us)
    return filled


def _lost(first: int, last: int, at_us: int) -> Entry:
    return Entry(first, last, 0, LOST, 0, 0, 0, 0, 0, at_us, at_us, at_us, at_us)
