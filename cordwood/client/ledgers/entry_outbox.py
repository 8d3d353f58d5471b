"""Entries of one ledger on their way to nodes: all entries that wait for a node go there in one
call.

Up to CALLS_AT_ONCE calls to a node are in flight, and entries posted meanwhile wait: so batches
grow with the load.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_calls import ask_to_keep
from cordwood.layout.message_ledgers import (
    ADD_ENTRIES_MAX,
    AddEntries,
    EntryItem,
    pack_items,
)
from cordwood.protocol.ledger_effects import Refusal

ADD_S = 5.0
"""How long a node may take for entries: a durable write, and a flush before it."""

CALL_BYTES = 1 << 20
"""Bodies of one call; a larger entry goes alone."""

CALLS_AT_ONCE = 4
"""Most calls in flight to one node."""


class EntryOutbox:
    """See the module."""

    def __init__(
        self,
        ledger: int,
        key: bytes,
        cluster: Cluster,
        tasks: asyncio.TaskGroup,
        on_answer: Callable[[int, list[EntryItem], Refusal | None, int], None],
        *,
        defers_sync: bool,
    ) -> None:
        """
        Args:
            key: of the ledger, see `layout.ledger_entry`.
            on_answer: called once for each call, with the node, the entries, why the node did not
                take them, and the node's run.
            defers_sync: whether nodes answer before their disks have the entries.
        """
        self._ledger = ledger
        self._key = key
        self._cluster = cluster
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self._defers_sync = defers_sync
        self._waiting: dict[int, list[EntryItem]] = {}
        self._on_way: dict[int, int] = {}
        self._flush_due = False
        # The entries that were packed last.
        self._packed: tuple[list[EntryItem], memoryview] = ([], memoryview(b""))

    def post(self, node: int, items: list[EntryItem]) -> None:
        """Send entries to a node, after those that wait for it."""
        queue = self._waiting.get(node)
        # Posted entries must not be changed: they may be posted to other nodes, too.
        self._waiting[node] = items if queue is None else queue + items
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def drop(self, node: int) -> list[EntryItem]:
        """Take back the entries that wait for a node, which are not sent any more."""
        return self._waiting.pop(node, [])

    def clear(self) -> None:
        """Send nothing any more."""
        self._waiting.clear()

    def _flush(self) -> None:
        self._flush_due = False
        for node in list(self._waiting):
            while self._on_way.get(node, 0) < CALLS_AT_ONCE and self._waiting.get(node):
                items = self._next_call(node)
                self._on_way[node] = self._on_way.get(node, 0) + 1
                self._tasks.create_task(self._send(node, items))

    def _next_call(self, node: int) -> list[EntryItem]:
        queue = self._waiting[node]
        sizes = accumulate([len(item.body) for item in queue[:ADD_ENTRIES_MAX]])
        count = max(1, bisect_right([*sizes], CALL_BYTES))
        if count == len(queue):
            del self._waiting[node]
            return queue
        self._waiting[node] = queue[count:]
        return queue[:count]

    def _pack(self, items: list[EntryItem]) -> memoryview:
        """Entries as a call has them; nodes of one ensemble are mostly sent the same."""
        if items is not self._packed[0]:
            self._packed = items, pack_items(items)
        return self._packed[1]

    async def _send(self, node: int, items: list[EntryItem]) -> None:
        try:
            packed = self._pack(items)
            call = AddEntries(
                self._ledger, self._key, len(items), packed, deferred=self._defers_sync
            )
            refusal, run = await ask_to_keep(self._cluster, node, call, timeout_s=ADD_S)
        finally:
            self._on_way[node] -= 1
        self._on_answer(node, items, refusal, run)
        self._flush()
