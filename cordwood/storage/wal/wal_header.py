"""Writes the WAL's header to its two slots on disk, one write at a time. The slot with the higher
number counts.

Callers may request a change at any time. Changes that come during a write are merged into the next
write. So at most one slot is ever in doubt, and it is always the older slot.

Source: docs/sources/s3stream.md (a), "Header flush"; its "Traps" 1.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from cordwood.layout.wal_block import (
    WAL_SLOTS,
    WAL_UNIT_BYTES,
    WalHeader,
    pack_wal_header,
)
from cordwood.storage.wal.wal_device import WalDevice


class HeaderWriter:
    """Makes changes of the header durable, in order.

    Args:
        device: takes the writes.
        header: the valid header on disk now.
        on_durable: called, before waiting callers, for each header on stable storage.
        on_failure: called once after a failed write; nothing is written after it.
    """

    def __init__(
        self,
        device: WalDevice,
        header: WalHeader,
        *,
        on_durable: Callable[[WalHeader], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._waiting: list[asyncio.Future[None]] = []
        self._is_writing = False
        self._failure: BaseException | None = None
        self.durable = header
        self.wanted = header

    def write(self, **changes: Any) -> asyncio.Future[None]:
        """Change fields of the header; done once they are on stable storage.

        Fails with the disk's error. Cancelling the future cancels nothing else.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        self.wanted = dataclasses.replace(self.wanted, **changes)
        self._waiting.append(future)
        if not self._is_writing:
            self._start()
        return future

    def _start(self) -> None:
        header = dataclasses.replace(self.wanted, sequence=self.durable.sequence + 1)
        waiting, self._waiting = self._waiting, []
        slot = header.sequence % WAL_SLOTS
        self._is_writing = True
        self._device.write(
            slot * WAL_UNIT_BYTES,
            [pack_wal_header(header)],
            functools.partial(self._on_written, header, waiting),
        )

    def _on_written(
        self, header: WalHeader, waiting: list[asyncio.Future[None]], error: BaseException | None
    ) -> None:
        self._is_writing = False
        if error is not None:
            self._fail(error, waiting)
            return
        self.durable = header
        self._on_durable(header)
        for future in waiting:
            if not future.done():
                future.set_result(None)
        if self._waiting and not self._is_writing:
            self._start()

    def _fail(self, error: BaseException, waiting: list[asyncio.Future[None]]) -> None:
        self._failure = error
        waiting, self._waiting = waiting + self._waiting, []
        self._on_failure(error)
        for future in waiting:
            if not future.done():
                future.set_exception(error)
