"""One RocksDB database that is opened on demand.

Source: `rocks_logs`, which says why a partition has a database of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import rocksdict

from cordwood.host import forked_child
from cordwood.host.seams import Host
from cordwood.storage.logs_db.rocks_calls import RocksCalls
from cordwood.storage.logs_db.tables import TablesFailed, TablesNoSpace

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MakeOptions = Callable[[bool], Any]
"""Makes the options of a database. The argument says whether the database may be created."""


class RocksDatabase:
    """See the module.

    Attributes:
        holds_unflushed: something was written to it that no flush has made durable: closing the
            database would flush this data without our order, or lose it.
    """

    def __init__(self, path: str, host: Host, make_options: MakeOptions) -> None:
        self.holds_unflushed = False
        self._path = path
        self._calls = RocksCalls(host, path)
        self._make_options = make_options
        self._db: Any = None
        self._users = 0
        self._is_gone = False
        # Held while it is opened or closed.
        self._moving = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the database is open, and so takes memory and open files."""
        return self._db is not None

    @property
    def is_unused(self) -> bool:
        """Whether it may be closed."""
        return not (self._users or self.holds_unflushed) and self._calls.is_idle

    async def make(self) -> None:
        """Make an empty database, durably, except its parent directory; continue an attempt that
        ended halfway.

        Raises:
            TablesFailed, TablesNoSpace: it cannot be made.
        """
        await self._open(may_make=True)

    async def call(self, function: Callable[[Any], Result]) -> Result:
        """Call `function` with the open database, in a thread of the host, and return its result.

        Raises:
            TablesFailed, TablesNoSpace, Corrupt: RocksDB says so, or it was dropped.
        """
        self._users += 1
        try:
            while (db := self._db) is None:
                await self._open(may_make=False)
            return await self._calls.make(lambda: function(db))
        finally:
            self._users -= 1

    async def _open(self, *, may_make: bool) -> None:
        async with self._moving:
            await self._calls.ended()  # a call that was cancelled may still have opened it
            if self._is_gone:
                raise TablesFailed(f"{self._path} was dropped")
            if self._db is None:
                await self._calls.make(lambda: self._take(may_make))

    def _take(self, may_make: bool) -> None:
        forked_child.note(self)  # before the threads of RocksDB begin
        # Set here and not by the caller: a cancelled caller would leave it locked.
        self._db = rocksdict.Rdict(self._path, self._make_options(may_make))

    def handles(self) -> list[Any]:
        """See `forked_child.Owner`."""
        return [] if self._db is None else [self._db]

    async def close(self) -> None:
        """Let go of memory and files; the next call opens it again. Safe to call twice.

        Unflushed data may be lost.
        """
        async with self._moving:
            await self._calls.ended()
            db, self._db = self._db, None
            self.holds_unflushed = False
            if db is not None:
                # Closing flushes written data; the database is closed even if the flush fails.
                with contextlib.suppress(TablesNoSpace):
                    await self._calls.make(db.close)

    async def destroy(self) -> None:
        """Delete it from the disk; calls under way end first, later calls fail.

        Raises:
            TablesFailed: some of it may be left; the same may be tried again.
        """
        self._is_gone = True
        await self.close()
        await self._calls.make(
            lambda: rocksdict.Rdict.destroy(self._path, self._make_options(True))
        )
