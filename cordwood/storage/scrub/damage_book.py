"""The copies in LogsDB that are known to be damaged, in memory and in the metadata table.

A damaged copy is never served and never reported as absent: reads report it as unknown
(`logs_read`). Its partition is not cut, because a cut would write only the readable copies again
and drop the damaged ones for good. The entry of a damaged copy goes with its partition.

Source: docs/design.md §2 ("a corrupt copy makes its node UNKNOWN"); `storage.scrub.scrub`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.decisions import DamageNoted, tell
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.scrub_rows import (
    DAMAGES,
    DamagedRange,
    damage_key,
    pack_why,
    read_damage_key,
    read_why,
)
from cordwood.storage.logs_db.tables import Row, Tables, scan_all

RANGES_MAX = 64
"""The most damaged ranges of one log in one partition that are kept apart. More are joined to one,
so that a disk that is rotten everywhere does not fill memory with ranges."""


class DamageBook:
    """See the module."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._whys: dict[DamagedRange, str] = {}

    async def open(self) -> None:
        """Read the damaged ranges that were known before.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        for key, value in await scan_all(self._tables, META_TABLE, *DAMAGES):
            self._whys[read_damage_key(key)] = read_why(value)

    def __len__(self) -> int:
        return len(self._whys)

    def all(self) -> list[tuple[DamagedRange, str]]:
        """Every damaged range and its cause, by partition, log and LSN."""
        return sorted(self._whys.items())

    def of_log(self, log: int) -> list[DamagedRange]:
        """The damaged ranges of a log."""
        if not self._whys:
            return []
        return sorted(each for each in self._whys if each.log == log)

    def holds(self, partition: int) -> bool:
        """Whether a partition has a damaged copy."""
        return any(each.partition == partition for each in self._whys)

    def joined(self, damaged: DamagedRange) -> tuple[DamagedRange, list[DamagedRange]] | None:
        """What to note so that `damaged` is known, and what that takes the place of; None where
        it is known already."""
        mine = [
            each
            for each in self._whys
            if (each.partition, each.log) == (damaged.partition, damaged.log)
        ]
        if any(each.first <= damaged.first and damaged.last <= each.last for each in mine):
            return None
        if len(mine) < RANGES_MAX:
            return damaged, []
        mine.append(damaged)
        first, last = min(each.first for each in mine), max(each.last for each in mine)
        return DamagedRange(damaged.partition, damaged.log, first, last), mine[:-1]

    async def note(self, damaged: DamagedRange, why: str) -> bool:
        """Know a range as damaged, durably; False if that is no news. Where it is called nobody
        else writes to the tables.

        Raises:
            TablesFailed, TablesNoSpace: it is known, but for this start only.
        """
        found = self.joined(damaged)
        if found is None:
            return False
        noted, gone = found
        tell(DamageNoted(damaged.log, damaged.first, damaged.last, why))
        for each in gone:
            del self._whys[each]
        self._whys[noted] = why
        rows: list[Row] = [(damage_key(each), None) for each in gone]
        rows.append((damage_key(noted), pack_why(why)))
        await self._tables.write(META_TABLE, rows)
        await self._tables.flush(META_TABLE)
        return True

    def forget(self, partition: int) -> Sequence[Row]:
        """A partition goes: forget what was damaged there; the rows that make that durable."""
        gone = [each for each in self._whys if each.partition == partition]
        for each in gone:
            del self._whys[each]
        return [(damage_key(each), None) for each in gone]
