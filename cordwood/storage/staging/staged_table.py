"""LogsDB's table of staged blocks; `layout.staged` has its keys and values.

It is made by the first flush that has some. Its flush comes before that of the metadata, as a
partition's does: what it holds of records behind the offset there is replayed over it.

Source: docs/design.md §9.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.layout.staged import HEADS, STAGED_TABLE, StagedHead, body_key, read_row
from cordwood.storage.logs_db.tables import Row, Tables

WRITE_BYTES = 1 << 20
"""Bytes of one write, as of blocks: about a millisecond that the loop waits for the GIL."""

SCAN_ROWS = 4096


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
        some: list[Row] = []
        size = 0
        for row in rows:
            some.append(row)
            size += len(row[1] or b"")
            if size >= WRITE_BYTES:
                await self._tables.write(STAGED_TABLE, some)
                some, size = [], 0
        await self._tables.write(STAGED_TABLE, some)
        await self._tables.flush(STAGED_TABLE)

    async def heads(self) -> list[tuple[StagedHead, str, int]]:
        """Every staged block, and the query and attempt that pinned it ("" and 0 for none).

        Raises:
            TablesFailed, Corrupt: it cannot be read.
        """
        found: list[tuple[StagedHead, str, int]] = []
        start, is_end = HEADS[0], not self.is_made
        while not is_end:
            rows, is_end = await self._tables.scan(
                STAGED_TABLE, start, HEADS[1], rows_max=SCAN_ROWS, bytes_max=WRITE_BYTES
            )
            found += [read_row(value) for _, value in rows]
            start = rows[-1][0] + b"\0" if rows else start
        return found

    async def body(self, stage: bytes) -> bytes | None:
        """A staged block's body, None if it is not here.

        Raises:
            TablesFailed, Corrupt: it cannot be read.
        """
        if not self.is_made:
            return None
        (body,) = await self._tables.get(STAGED_TABLE, [body_key(stage)])
        return body
