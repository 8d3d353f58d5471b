"""LogsDB's table of ledgers: entries by ledger and number, and the state of each ledger.

The first flush with entries makes the table. Like a partition, it is flushed before the metadata.
So it may hold records after the WAL offset in the metadata; a start replays these over it.

Entries are sorted by ledger. Blocks of logs are partitioned by time instead. A ledger is deleted as
a whole, and its neighbours in time may stay for years.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (c).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cordwood.layout.ledger_records import (
    LEDGERS_TABLE,
    STATES,
    KeptEntry,
    LedgerRow,
    entry_range,
    entry_row_key,
    read_entry_row,
    read_state_row,
    read_state_row_key,
)
from cordwood.storage.logs_db.tables import WRITE_BYTES, Row, Tables, scan_all, write_durably

STEPS_FIRST = 4
"""Entries read at first, when their size is not known: a small part of an answer if they are
large."""

STEPS_MAX = 512
"""Entries read in one call, however small."""


class LedgerTable:
    """See the module.

    Attributes:
        is_made: whether the table is there.
    """

    def __init__(self, tables: Tables) -> None:
        self.is_made = False
        self._tables = tables

    async def flush(self, rows: Iterable[Row]) -> None:
        """Write rows; returns once they are durable.

        Raises:
            TablesFailed, TablesNoSpace: the same may be written again.
        """
        if not self.is_made:
            await self._tables.create(LEDGERS_TABLE)
            self.is_made = True
        await write_durably(self._tables, LEDGERS_TABLE, rows)

    async def states(self) -> dict[int, LedgerRow]:
        """The state of every ledger.

        Raises:
            TablesFailed, Corrupt: it cannot be read.
        """
        if not self.is_made:
            return {}
        rows = await scan_all(self._tables, LEDGERS_TABLE, *STATES, bytes_max=WRITE_BYTES)
        return {read_state_row_key(key): read_state_row(value) for key, value in rows}

    async def entries(self, ledger: int, entries: Sequence[int]) -> list[KeptEntry | None]:
        """Entries of a ledger, None for each missing one.

        Raises:
            TablesFailed, Corrupt: they cannot be read.
        """
        if not self.is_made or not entries:
            return [None] * len(entries)
        keys = [entry_row_key(ledger, entry) for entry in entries]
        found = await self._tables.get(LEDGERS_TABLE, keys)
        return [
            None if value is None else read_entry_row(entry, value)
            for entry, value in zip(entries, found, strict=True)
        ]

    async def run(
        self, ledger: int, first: int, count: int, bytes_max: int, step: int = 1
    ) -> list[KeptEntry]:
        """Entries `first`, `first + step` and so on, at most `count`, of about `bytes_max` bytes;
        none if the first is missing.

        Raises:
            TablesFailed, Corrupt: they cannot be read.
        """
        if not self.is_made:
            return []
        if step > 1:
            return await self._steps(ledger, range(first, first + count * step, step), bytes_max)
        rows, _ = await self._tables.scan(
            LEDGERS_TABLE, entry_row_key(ledger, first), entry_row_key(ledger, first + count),
            # A reader in order goes through a ledger once.
            rows_max=count, bytes_max=bytes_max, is_once=True,
        )  # fmt: skip
        found: list[KeptEntry] = []
        for entry, (key, value) in enumerate(rows, first):
            if key != entry_row_key(ledger, entry):
                break
            found.append(read_entry_row(entry, value))
        return found

    async def _steps(self, ledger: int, entries: range, bytes_max: int) -> list[KeptEntry]:
        """As `run`: a scan would read the entries between them, too."""
        found: list[KeptEntry] = []
        size, at_once = 0, STEPS_FIRST
        while len(found) < len(entries) and size < bytes_max:
            asked = entries[len(found) : len(found) + at_once]
            for kept in await self.entries(ledger, asked):
                if kept is None:
                    return found
                found.append(kept)
                size += len(kept.body)
            # As many as fit, if they are as large as those before.
            at_once = max(1, min(STEPS_MAX, (bytes_max - size) * len(found) // max(1, size)))
        return found

    async def drop(self, ledgers: Sequence[int]) -> None:
        """Delete all entries of some ledgers, and free their space. These ledgers have no readers
        any more.

        Raises:
            TablesFailed, TablesNoSpace: any of them may be left.
        """
        if self.is_made and ledgers:
            await self._tables.cut(LEDGERS_TABLE, [entry_range(ledger) for ledger in ledgers])
