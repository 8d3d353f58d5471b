"""LogsDB's table of staged blocks; `layout.staged` has its keys and values.

The first flush with staged blocks makes the table. Like a partition, it is flushed before the
metadata. So it may hold records after the WAL offset in the metadata; a start replays these over
it.

Source: docs/design.md §9.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.layout.staged import HEADS, STAGED_TABLE, StagedHead, body_key, read_row
from cordwood.storage.logs_db.tables import WRITE_BYTES, Row, Tables, scan_all, write_durably


class StagedTable:
    """See the module.

    Attributes:
        is_made: whether the table is there.
    """

    def __init__(self, tables: Tables) -> None:
        self.is_made = False
        self._tables = tables

    async def flush(self, rows: Sequence[Row]) -> None:
        """Write rows; returns once they are durable.

        Raises:
            TablesFailed, TablesNoSpace: the same may be written again.
        """
        if not self.is_made:
            await self._tables.create(STAGED_TABLE)
            self.is_made = True
        await write_durably(self._tables, STAGED_TABLE, rows)

    async def heads(self) -> list[tuple[StagedHead, str, int]]:
        """Every staged block, and the query and attempt that pinned it ("" and 0 for none).

        Raises:
            TablesFailed, Corrupt: it cannot be read.
        """
        if not self.is_made:
            return []
        rows = await scan_all(self._tables, STAGED_TABLE, *HEADS, bytes_max=WRITE_BYTES)
        return [read_row(value) for _, value in rows]

    async def body(self, stage: bytes) -> bytes | None:
        """A staged block's body, None if it is not here.

        Raises:
            TablesFailed, Corrupt: it cannot be read.
        """
        if not self.is_made:
            return None
        (body,) = await self._tables.get(STAGED_TABLE, [body_key(stage)])
        return body
