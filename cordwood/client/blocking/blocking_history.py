"""A log's history in an object store, read without a cluster, for callers that have no loop.

These calls need an address and credentials, but no node: Spark's tasks read history so.

Source: docs/objects.md, "Reading"; docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from cordwood.block import Gap
from cordwood.client.blocking.object_thread import ObjectThread
from cordwood.layout.object_rows import LogRows
from cordwood.lsn import LogId
from cordwood.tier.known_logs import KnownLogs
from cordwood.tier.row_history import RowHistory

RUN_BYTES = 4 << 20
"""Bytes of bodies after which a list of rows ends."""

Taken = LogRows | Gap


class BlockingHistory(ObjectThread):
    """See the module.

    Args:
        address: of the object store.
    Raises:
        BadSetting: it is no store that opens here.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, "cordwood-history")
        self._known = KnownLogs(self._objects, self._host)

    def runs(
        self, log: LogId, start: int, stop: int, columns: Sequence[str], *, made_us: int = 0
    ) -> Generator[list[Taken]]:
        """Rows and gaps of `[start, stop)`, in order, some at a time; fewer where main storage
        ends before.

        Args:
            columns: of the batches that the rows will be asked for.
            made_us: when the log was made; 0 if that is not known.
        Raises:
            BadSetting: the store holds another cluster's log of this number, or a column is not
                known.
            Corrupt: an object or the manifest differs from what was written.
            Retryable: the store does not answer.
        """
        reader = self._thread.call(self._begin(log, start, stop - 1, columns, made_us))
        try:
            while run := self._thread.call(_next_run(reader)):
                yield run
        finally:
            self._thread.call(reader.close())

    async def _begin(
        self, log: LogId, start: int, until: int, columns: Sequence[str], made_us: int
    ) -> RowHistory:
        manifest = await self._known.manifest(log, made_us)
        return RowHistory(self._objects, manifest, self._host, log, start, until, columns=columns)


async def _next_run(reader: RowHistory) -> list[Taken]:
    run: list[Taken] = []
    size = 0
    while size < RUN_BYTES and (item := await reader.next()) is not None:
        run.append(item)
        size += 0 if isinstance(item, Gap) else item.bytes
    return run
