"""Numbers for new logs, from a counter in the metadata store.

A number is taken by compare-and-set, and a client that makes a thousand logs at once would race
with itself for each of them. So creators take turns, and each turn takes numbers for all waiting
calls. A number that is taken but not used is lost: a number names one log forever, and there are
more than enough.

Source: docs/design.md §6, §11; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated

import msgspec

from cordwood.errors import Rejected
from cordwood.layout.json_text import read_json
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore

LOG_ID_MAX: int = EVENT_LOG
"""The first number of internal logs: handed-out numbers end below it."""

TAKEN_MAX = 1024
"""Numbers in one turn; beyond that a further round trip for this many logs costs nothing
noticeable."""

_COUNTER = "next_log_id"

_Id = Annotated[int, msgspec.Meta(ge=1, le=LOG_ID_MAX)]


class _Counter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`next_log_id`."""

    next_id: _Id


class LogNumbers:
    """One client's source of numbers.

    Args:
        store: that has the counter.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._turn = asyncio.Lock()
        self._spare: deque[int] = deque()
        self._waiting = 0

    async def take(self) -> LogId:
        """A number that no log has had or will have but the caller's.

        Raises:
            Rejected: all of them are used up.
            Corrupt: the counter is damaged.
            Unreachable, Overloaded: as `change.change_repeatably`; no number was given.
        """
        self._waiting += 1
        try:
            async with self._turn:
                if not self._spare:
                    self._spare.extend(await self._take_for(min(self._waiting, TAKEN_MAX)))
                return LogId(self._spare.popleft())
        finally:
            self._waiting -= 1

    async def _take_for(self, wanted: int) -> range:
        taken = range(0)

        def decide(found: bytes | None) -> bytes:
            nonlocal taken
            first = read_json(found, _Counter, "the counter of logs").next_id if found else 1
            if first >= LOG_ID_MAX:
                raise Rejected(f"all {LOG_ID_MAX} log numbers are used up")
            taken = range(first, min(first + wanted, LOG_ID_MAX))
            return msgspec.json.encode(_Counter(taken.stop))

        # After an unknown outcome it skips the numbers that it may have taken.
        await change_repeatably(self._store, _COUNTER, decide)
        return taken
