"""Which objects hold a range of a log, for readers that scan Parquet files by themselves.

Spark's own Parquet reader knows no manifest. It needs the names of files, and of each file whether
all of its rows are wanted. An object may have more rows than the manifest counts: records of other
logs, trimmed records, and records that a merge or a repair took from another object. So a *part*
says which LSNs of the log count in its file.

The *rest* is all ranges that no file gives: ranges below the manifest's start and from its end on,
lost ranges, and trimmed ranges inside objects. The nodes decide about these, as for every reader.

Source: docs/objects.md, "Read leases"; docs/spark.md, "Spark's own Parquet reader".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.block import Gap, GapKind
from cordwood.errors import Malformed, NoObject, Overloaded
from cordwood.host.seams import Host
from cordwood.layout.object_file import ObjectRun
from cordwood.layout.object_names import SHARED, parse_object_name
from cordwood.lsn import Lsn
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.read_leases import hold_objects
from cordwood.tiered import Entry, is_lost

GET_S = 60.0
"""One get of a footer, with all its tries."""

FOOTERS_AT_ONCE = 16
"""Gets at the same time. A footer has 25 KB, and a store answers in tens of milliseconds."""

TRIES_MAX = 5
"""A merge or a trim may change the manifest between the plan and the lease. Each takes seconds, so
five in a row do not happen by chance."""

_HARMLESS = frozenset({GapKind.BRIDGE, GapKind.HOLE})
"""The kinds of gaps in which nothing was ever acknowledged."""


class FilePart(NamedTuple):
    """Records of a log in one object.

    Attributes:
        name: the object's.
        first, last: the LSNs that count, both included.
        is_whole: all rows of the log in this object count.
        is_shared: the object has rows of other logs, too.
        rows: records of the log in the object; more than count if it is not whole.
    """

    name: str
    first: int
    last: int
    is_whole: bool
    is_shared: bool
    rows: int


class LogFiles(NamedTuple):
    """A range of a log, by files; parts and rest together cover it, with bridges and holes.

    Attributes:
        parts: by LSN.
        rest: ranges `[start, stop)` that no file gives, by LSN; none follows another directly.
    """

    parts: list[FilePart]
    rest: list[tuple[int, int]]

    def up_to(self, until: int, stop: int) -> LogFiles:
        """The same, which ends at `stop` in place of `until`; what lies between is rest."""
        rest = [*self.rest]
        if until < stop:
            _add(rest, until, stop)
        return LogFiles(self.parts, rest)


def needs_footer(entry: Entry) -> bool:
    """Whether the entry alone does not tell its object's first LSN, or may hide a loss.

    An object of one log has its range in its name. If it also has a row for each LSN, there is no
    gap in it.
    """
    if entry.name.startswith(SHARED):
        return True
    name = parse_object_name(entry.name)
    is_cut = (name.first, name.last) != (entry.first, entry.last)
    return is_cut or entry.rows != entry.last - entry.first + 1


def plan_files(
    entries: Sequence[Entry],
    runs: Mapping[str, ObjectRun],
    start: int,
    stop: int,
    kept_from: int = 0,
) -> LogFiles:
    """Divide `[start, stop)` of a log into parts of files, and the rest.

    Args:
        entries: of the manifest, in order, each beginning where the one before it ended.
        runs: the log's run in each object that `needs_footer`, by the object's name.
        kept_from: the manifest's start. The first entry may begin before it, with trimmed records.
    """
    parts: list[FilePart] = []
    rest: list[tuple[int, int]] = []
    at, stop = int(start), int(stop)  # an `Lsn` writes itself as e1n5, not as a number
    for entry in entries:
        low, high = max(entry.first, at, kept_from), min(entry.last, stop - 1)
        if low > high:
            continue
        if low > at:
            _add(rest, at, low)
        at = high + 1
        if is_lost(entry):
            _add(rest, low, at)
            continue
        run = runs.get(entry.name)
        if entry.rows:
            first, last = (run.first, run.last) if run else (entry.first, entry.last)
            is_whole = low <= first and last <= high
            is_shared = entry.name.startswith(SHARED)
            parts.append(FilePart(entry.name, low, high, is_whole, is_shared, entry.rows))
        for gap in _losses(run, low, high):
            _add(rest, int(gap.first), int(gap.last) + 1)
    if at < stop:
        _add(rest, at, stop)
    return LogFiles(parts, rest)


def _losses(run: ObjectRun | None, low: int, high: int) -> list[Gap]:
    """The gaps of `[low, high]` in which records were, by LSN."""
    gaps = run.gap_list() if run is not None else []
    lost = [
        Gap(Lsn(max(gap.first, low)), Lsn(min(gap.last, high)), gap.kind)
        for gap in gaps
        if gap.kind not in _HARMLESS and gap.first <= high and gap.last >= low
    ]
    return sorted(lost, key=lambda gap: gap.first)


def _add(rest: list[tuple[int, int]], start: int, stop: int) -> None:
    if rest and rest[-1][1] == start:
        rest[-1] = (rest[-1][0], stop)
    else:
        rest.append((start, stop))


class FileScan:
    """Reads the plan of a log's range; footers that were read once are kept."""

    def __init__(self, store: ObjectStore, manifest: LogManifest, log: int) -> None:
        self._store = store
        self._manifest = manifest
        self._log = log
        self._runs: dict[str, ObjectRun] = {}

    async def files(self, start: int, stop: int) -> LogFiles:
        """The files of `[start, stop)`, by the present manifest.

        Raises:
            Corrupt: the manifest or a footer differs from what was written.
            Retryable: the store does not answer.
        """
        await self._manifest.load()
        entries: list[Entry] = []
        at = start
        while at < stop and (page := await self._manifest.entries(at)):
            entries += page
            at = page[-1].last + 1
        wanted = [e for e in entries if e.first < stop and not is_lost(e) and needs_footer(e)]
        await self._read_footers([entry for entry in wanted if entry.name not in self._runs])
        # Trap: the nodes that answer may not know of the trim that moved the manifest's start. A
        # page that was gone may have led to a newer head meanwhile, so the start is read last.
        head = self._manifest.head
        return plan_files(entries, self._runs, start, stop, head.start if head is not None else 0)

    async def _read_footers(self, entries: Sequence[Entry]) -> None:
        for at in range(0, len(entries), FOOTERS_AT_ONCE):
            some = entries[at : at + FOOTERS_AT_ONCE]
            # All are waited for, also if one fails: nothing is left running.
            found = await asyncio.gather(*map(self._read_run, some), return_exceptions=True)
            for entry, run in zip(some, found, strict=True):
                if isinstance(run, BaseException):
                    raise run
                self._runs[entry.name] = run

    async def _read_run(self, entry: Entry) -> ObjectRun:
        footer = await entry_footer(self._store, entry, timeout_s=GET_S)
        run = footer.index.run(self._log)
        if run is None or run.first > entry.first or run.last < entry.last:
            raise Malformed(f"{entry.name} does not hold log {self._log} from {entry.first} on")
        return run


async def hold_files(
    store: ObjectStore,
    manifest: LogManifest,
    host: Host,
    log: int,
    start: int,
    stop: int,
    *,
    holder: str,
    lease_s: float,
    leases: list[str],
) -> LogFiles:
    """The files of `[start, stop)` of a log, under a lease.

    Args:
        holder: of the lease, for people.
        lease_s: how long the files stay at least, in seconds; 0 for no lease.
        leases: gets the names of the leases, also before an error.
    Raises:
        Corrupt: the manifest or a footer differs from what was written.
        Overloaded: the manifest changed all the time.
        OutcomeUnknown, Retryable: the store does not answer.
    """
    scan = FileScan(store, manifest, log)
    leased: set[str] = set()
    for _ in range(TRIES_MAX):
        try:
            found = await scan.files(start, stop)
        except NoObject:
            continue  # a merge or a trim removed it after the manifest was read
        new = {part.name for part in found.parts} - leased
        if not new or not lease_s:
            return found
        # Race: a merge before the lease may have let go of a file whose grace is over soon. So the
        # manifest is read again under the lease, until it names no other files.
        await hold_objects(store, host, holder, new, lease_s, leases)
        leased |= new
    raise Overloaded(f"the manifest of log {log} changes too often: try again")
