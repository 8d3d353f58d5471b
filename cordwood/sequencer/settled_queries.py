"""The queries with a commit that is in all its logs, so that a log may forget the query.

A log remembers a limited number of queries. If it forgot a query before its commit is done, the
next publisher of the query would have the batch stored twice. The metadata store tells which
commits are done. A sequencer asks it only when a new query would replace an old query, never on the
path of an append: the new query is refused until the answer is here.

Source: docs/protocol/producers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from cordwood.errors import CordwoodError

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""The least time between two questions to the metadata store, each for all queries there are."""


AskSettled = Callable[[], Awaitable[Mapping[int, int]]]
"""Asks the metadata store for the last commit that is done, by the query's producer."""


class SettledQueries:
    """See the module. A commit that is done once is done for good, so answers are kept."""

    def __init__(self, ask: AskSettled) -> None:
        self._ask = ask
        self._done: Mapping[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._is_wanted = asyncio.Event()

    def is_settled(self, producer: int, commit: int) -> bool:
        """Whether a query's commit is known to be in all its logs; if not, the store is asked."""
        if self._done.get(producer, -1) >= commit:
            return True
        self._wanted[producer] = max(commit, self._wanted.get(producer, 0))
        self._is_wanted.set()
        return False

    async def run(self) -> None:
        """Ask the metadata store whenever something is wanted, until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted, self._wanted = self._wanted, {}
            try:
                known = await self._ask()
            except CordwoodError as error:
                logger.info("which queries are done is not known yet: %s", error)
            else:
                # A producer without a query cannot publish.
                unused = {each: commit for each, commit in wanted.items() if each not in known}
                self._done = {**known, **unused}
            await asyncio.sleep(LOOK_S)
