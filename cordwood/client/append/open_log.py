"""One log, ready to append to record by record, without a call to wait for each.

Source: docs/sources/hotpath.md §1; docs/design.md §7.
"""

from __future__ import annotations

import asyncio

from cordwood.block import Buffer
from cordwood.client.append.appends import Appends
from cordwood.client.append.record_check import Headers
from cordwood.client.cluster import Cluster
from cordwood.lsn import Lsn


class Appending:
    """One log, ready to append to without waiting; made by `Store.open_log`."""

    def __init__(self, appends: Appends, cluster: Cluster, log: int) -> None:
        self._appends = appends
        self._cluster = cluster
        self._log = self._appends.log(log)

    def append_nowait(
        self,
        value: Buffer,
        key: bytes | None = None,
        time_us: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[Lsn]:
        """Append one record; the future is as `Store.append`.

        Raises:
            Overloaded: the client's window is full; wait for `wait_space`.
            RecordTooLarge: over the client's block limit.
            BadSetting: it cannot be encoded.
            Closed: the client was closed.
        """
        size = self._appends.check_record(value, key, time_us, headers)
        self._cluster.check_not_closed()
        self._appends.window.check_space()
        return self._log.add(value, key, time_us, headers, size)

    async def wait_space(self) -> None:
        """Wait until the client's window takes more.

        Raises:
            Overloaded: it did not within the client's timeout.
            Closed: the client was closed.
        """
        self._cluster.check_open()
        await self._appends.window.wait_space()
