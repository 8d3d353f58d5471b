"""Reads a log's history from objects as rows, for readers that want columns and no blocks.

It is the reader of `tier.history`, with its read-ahead and its rules. One thing differs: it decodes
the wanted columns of a row group and makes no bodies.

Source: docs/objects.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.host.seams import Host
from cordwood.layout.object_file import Footer, read_group
from cordwood.layout.object_rows import LogRows, file_columns, piece_rows
from cordwood.lsn import LSN_MAX
from cordwood.tier.history import HistorySpans, Load, pieces_of
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore


class RowHistory(HistorySpans[LogRows]):
    """See the module.

    Args:
        columns: the columns that the caller will ask `LogRows.batches` for.
    Raises:
        BadSetting: a column is not known.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: LogManifest,
        host: Host,
        log: int,
        start: int,
        until: int = LSN_MAX,
        *,
        columns: Sequence[str],
    ) -> None:
        super().__init__(store, manifest, host, log, start, until)
        self._columns = file_columns(columns)

    async def _parts(self, name: str, number: int, load: Load) -> Sequence[LogRows]:
        def check(footer: Footer, content: Buffer) -> list[LogRows]:
            rows = read_group(footer, number, content, self._columns)
            pieces = pieces_of(footer, self._log, number)
            return [piece_rows(piece, rows, log=self._log) for piece in pieces]

        return await self._checked(load, check)
