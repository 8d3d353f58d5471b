"""One log, ready to append to record by record, without a call to wait for each.

Source: docs/sources/hotpath.md §1; docs/design.md §7.
"""

from __future__ import annotations

import asyncio

from cordwood.block import Buffer
from cordwood.client.append.appends import Appends
from cordwood.client.append.line import LetIn, turn_in
from cordwood.client.append.record_check import Headers
from cordwood.client.cluster import Cluster
from cordwood.errors import Overloaded
from cordwood.lsn import LogId, Lsn


class Appending:
    """One log, ready to append to without waiting; made by `Store.open_log`."""

    def __init__(self, appends: Appends, cluster: Cluster, log: LogId) -> None:
        self._appends = appends
        self._cluster = cluster
        self._log = self._appends.log(log)
        self._let_in = LetIn(appends.loop)

    def append_nowait(
        self,
        value: Buffer,
        key: bytes | None = None,
        time_us: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[Lsn]:
        """Append one record; the future is as `Store.append`.

        It passes no call that waits for room.

        Raises:
            Overloaded: the client's window is full, or calls wait for room in it: wait for
                `wait_space`.
            RecordTooLarge: over the client's block limit.
            BadSetting: it cannot be encoded.
            Closed: the client was closed.
        """
        size = self._appends.check_record(value, key, time_us, headers)
        self._cluster.check_not_closed()
        if not (self._appends.window.has_space and self._log.line.is_empty):
            self._check_let_in()
        return self._log.add(value, key, time_us, headers, size)

    def _check_let_in(self) -> None:
        """Raise Overloaded unless this call waited for its turn."""
        window = self._appends.window
        if not (window.fits and self._let_in.take()):
            raise Overloaded(
                f"{window.records} records, {window.bytes} bytes are in flight, or calls before "
                "this one wait for room: wait for some"
            )

    async def wait_space(self) -> None:
        """Wait until the client's window takes more: for one `append_nowait`, before anything else
        is awaited.

        Raises:
            Overloaded: it did not within the client's timeout.
            Closed: the client was closed.
        """
        self._cluster.check_open()
        window, line = self._appends.window, self._log.line
        if window.has_space and line.is_empty:
            return
        deadline = self._appends.deadline()
        async with turn_in(line, deadline, holds=False):
            await window.wait_space(deadline)
        self._let_in.note()
