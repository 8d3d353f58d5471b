"""The known damaged copies in LogsDB, in memory and in the metadata table.

A damaged copy is never served and never reported as absent: reads report it as unknown
(`logs_read`). Its partition is not cut, because a cut would write only the readable copies again
and drop the damaged ones for good. The entry of a damaged copy is deleted together with its
partition.

A range is *mended* once all blocks that this node should hold there are in the WAL again, and so in
a later partition (`storage.repair`). The rotten copies stay where they are and are still not read.
The range is not reported as unknown any more.

Source: docs/design.md §2 ("a corrupt copy makes its node UNKNOWN"); `storage.scrub.scrub`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.decisions import DamageNoted, RotMended, tell
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.scrub_rows import (
    DAMAGES,
    MENDED,
    DamagedRange,
    damage_key,
    mended_key,
    pack_why,
    read_damage_key,
    read_why,
)
from cordwood.lsn import LogId
from cordwood.storage.logs_db.tables import Row, Tables, scan_all

RANGES_MAX = 64
"""The most separate damaged ranges of one log in one partition. Further ranges are joined, so that
a fully rotten disk does not fill memory with ranges."""


class DamageBook:
    """See the module.

    Attributes:
        on_noted: called when a range became known as damaged.
    """

    def __init__(self, tables: Tables) -> None:
        self.on_noted: Callable[[], None] = lambda: None
        self._tables = tables
        self._whys: dict[DamagedRange, str] = {}
        self._mended: set[DamagedRange] = set()
        # The same ranges by log and by partition: a lost partition has ranges of every log.
        self._by_log: dict[int, set[DamagedRange]] = {}
        self._by_partition: dict[int, set[DamagedRange]] = {}

    async def open(self) -> None:
        """Read the damaged ranges that were known before.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        for key, value in await scan_all(self._tables, META_TABLE, *DAMAGES):
            self._know(read_damage_key(key), read_why(value))
        for key, _ in await scan_all(self._tables, META_TABLE, *MENDED):
            if (mended := read_damage_key(key)) in self._whys:
                self._mended.add(mended)

    def _know(self, damaged: DamagedRange, why: str) -> None:
        self._whys[damaged] = why
        self._by_log.setdefault(damaged.log, set()).add(damaged)
        self._by_partition.setdefault(damaged.partition, set()).add(damaged)

    def _forget(self, damaged: DamagedRange) -> None:
        del self._whys[damaged]
        for index, key in ((self._by_log, damaged.log), (self._by_partition, damaged.partition)):
            index[key].discard(damaged)
            if not index[key]:
                del index[key]

    def all(self) -> list[tuple[DamagedRange, str]]:
        """Every damaged range and its cause, by partition, log and LSN; without those mended."""
        return sorted(each for each in self._whys.items() if each[0] not in self._mended)

    @property
    def mended(self) -> int:
        """How many damaged ranges were mended."""
        return len(self._mended)

    def is_mended(self, damaged: DamagedRange) -> bool:
        """Whether a damaged range was mended."""
        return damaged in self._mended

    def of_log(self, log: int) -> list[DamagedRange]:
        """The damaged ranges of a log, those mended among them."""
        return sorted(self._by_log.get(log, ()))

    def holds(self, partition: int) -> bool:
        """Whether a partition has a damaged copy."""
        return partition in self._by_partition

    def joined(self, damaged: DamagedRange) -> tuple[DamagedRange, list[DamagedRange]] | None:
        """The range to note so that `damaged` is known, and the ranges that it replaces. None if it
        is known already."""
        mine = [
            each
            for each in self._by_log.get(damaged.log, ())
            if each.partition == damaged.partition
        ]
        if any(each.first <= damaged.first and damaged.last <= each.last for each in mine):
            return None
        if len(mine) < RANGES_MAX:
            return damaged, []
        mine.append(damaged)
        first, last = min(each.first for each in mine), max(each.last for each in mine)
        return DamagedRange(damaged.partition, damaged.log, first, last), mine[:-1]

    async def note(self, damaged: DamagedRange, why: str) -> bool:
        """Note a range as damaged, durably; False if it changes nothing. Callers see to it that no
        other task writes to the tables meanwhile.

        Raises:
            TablesFailed, TablesNoSpace: it is known, but for this start only.
        """
        return await self.note_all([damaged], why)

    async def note_all(self, found: Sequence[DamagedRange], why: str) -> bool:
        """As `note`, for many ranges, in one write."""
        rows: list[Row] = []
        for damaged in found:
            new = self.joined(damaged)
            if new is None:
                continue
            noted, gone = new
            tell(DamageNoted(LogId(damaged.log), damaged.first, damaged.last, why))
            rows += self._without(gone)
            self._know(noted, why)
            rows.append((damage_key(noted), pack_why(why)))
        if not rows:
            return False
        self.on_noted()
        await self._tables.write(META_TABLE, rows)
        await self._tables.flush(META_TABLE)
        return True

    async def note_mended(self, damaged: DamagedRange, start: int, last: int | None = None) -> bool:
        """Note that all blocks of `[start, last]` are durable in other partitions; False if the
        range is not known any more. Callers see to it that no other task writes to the tables
        meanwhile.

        Args:
            start, last: LSNs of the range; the parts below and above stay damaged. None for all
                from `start` on.
        Raises:
            TablesFailed, TablesNoSpace: the range is taken for damaged as before.
        """
        if damaged not in self._whys:
            return False
        why, last = self._whys[damaged], damaged.last if last is None else last
        mended = damaged._replace(first=start, last=last)
        # A range that is mended part by part leaves one mended range, and not many.
        before = next((each for each in self._mended_of(damaged) if each.last == start - 1), None)
        if before is not None:
            mended = mended._replace(first=before.first)
        rest = [
            damaged._replace(first=first, last=end)
            for first, end in ((damaged.first, start - 1), (last + 1, damaged.last))
            if first <= end
        ]
        gone = [each for each in (damaged, before) if each is not None and each != mended]
        rows: list[Row] = [(damage_key(each), None) for each in gone]
        rows += [(mended_key(each), None) for each in gone if each is before]
        rows += [(damage_key(each), pack_why(why)) for each in (*rest, mended)]
        await self._tables.write(META_TABLE, [*rows, (mended_key(mended), b"")])
        await self._tables.flush(META_TABLE)
        for each in gone:
            self._forget(each)
            self._mended.discard(each)
        for each in (*rest, mended):
            self._know(each, why)
        self._mended.add(mended)
        tell(RotMended(LogId(mended.log), start, last))
        return True

    def _mended_of(self, damaged: DamagedRange) -> Sequence[DamagedRange]:
        """The mended ranges of a damaged range's log and partition."""
        return [
            each
            for each in self._by_log.get(damaged.log, ())
            if each.partition == damaged.partition and each in self._mended
        ]

    def _without(self, gone: Sequence[DamagedRange]) -> list[Row]:
        rows: list[Row] = []
        for each in gone:
            self._forget(each)
            rows.append((damage_key(each), None))
            if each in self._mended:
                self._mended.discard(each)
                rows.append((mended_key(each), None))
        return rows

    def forget(self, partition: int) -> Sequence[Row]:
        """A partition is dropped: forget its damage; returns the rows that make this durable."""
        return self._without(sorted(self._by_partition.get(partition, ())))
