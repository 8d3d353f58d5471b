"""Reads some entries of a ledger: asks one node after another until a node has the entry whole.

If a node is slow, the next node is asked as well. When all nodes of an entry were asked in vain,
main storage is asked, if it has the ledger. Otherwise the metadata is read again and the nodes are
asked again, until the time is over. After main storage has given entries, it is asked first: nodes
let go of a whole ledger.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (a).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.client.ledgers.ledger_nodes import ask_together
from cordwood.client.ledgers.stray_copies import stray_copies
from cordwood.errors import (
    ChecksumMismatch,
    Corrupt,
    NoEntry,
    OutcomeUnknown,
    Rejected,
    Retryable,
    Unreachable,
)
from cordwood.layout.message_ledgers import EntriesReply, EntryAnswer, EntryItem, Found

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import LedgerEntry, ReadableLedger

logger = logging.getLogger(__name__)

SPECULATE_S = 0.3
"""After this time the next node is asked as well; BookKeeper's 2 s are longer than readers wait."""

AGAIN_S = 0.2
"""Pause before all nodes of an entry are asked again."""

MAIN_STORAGE_S = 1.0
"""Shortest time for a call to main storage: nodes may have used up the time of the read."""

OBJECTS_BYTES = 4 << 20
"""Approximate bytes of bodies that are taken from main storage at once: a row group."""


class EntryReading:
    """See the module; the state of one call.

    Attributes:
        items: the found entries, by number, as nodes keep them.
    """

    def __init__(
        self, ledger: ReadableLedger, entries: Sequence[int], timeout_s: float | None = None
    ) -> None:
        """
        Args:
            timeout_s: after this time no node is asked again; None for the client's timeout.
        """
        self._ledger = ledger
        self._timeout_s = ledger._timeout_s if timeout_s is None else timeout_s
        self._rounds = 0
        self._asks_strays = True
        # The metadata by which the nodes to ask were chosen.
        self._metadata = ledger.metadata
        self._left = ledger._orders(entries)
        self.items: dict[int, EntryItem] = {}
        self._found: dict[int, LedgerEntry] = {}
        # Entries that may exist: some node could not be asked for them, or had a damaged copy.
        self._doubtful: set[int] = set()
        self._bytes = 0
        # Whether a node let go of its copies, as main storage has them.
        self._let_go = False
        # The reason why main storage gave nothing.
        self._trouble = ""
        # Slow nodes; their answers still count if they come in time.
        self._late: dict[asyncio.Task[EntriesReply | None], int] = {}

    async def run(self, bytes_max: int | None = None) -> list[LedgerEntry]:
        """All entries, in order; or the first ones, at least one, once `bytes_max` have come."""
        try:
            return await self._run(bytes_max)
        finally:
            for task in self._late:
                task.cancel()
            await asyncio.gather(*self._late, return_exceptions=True)

    async def _run(self, bytes_max: int | None) -> list[LedgerEntry]:
        ledger, loop = self._ledger, asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while self._left:
            is_full = bytes_max is not None and self._bytes >= bytes_max
            # No entry after the first missing one may be given before it.
            wanted = [next(iter(self._left))] if is_full else [*self._left]
            if ledger._reads_objects and await self._take_objects(wanted, deadline):
                if bytes_max is not None and self._bytes >= bytes_max and self._left:
                    first = self._first()
                    # Trap: a faulty store may give the first entry damaged and later ones whole.
                    # A caller that got none of them would ask again at once, for ever.
                    if first:
                        return first
                continue
            by_node: dict[int, list[int]] = {}
            for entry, order in self._left.items():
                if order:
                    by_node.setdefault(order[0], []).append(entry)
                if is_full:
                    break
            await ask_together(self._ask(node, some) for node, some in by_node.items())
            self._take_late()
            if bytes_max is not None and self._bytes >= bytes_max and self._left:
                first = self._first()
                if first:
                    return first
            spent = [entry for entry, order in self._left.items() if not order]
            if spent and not await self._take_objects(spent, deadline):
                await self._begin_again(spent, deadline)
        return [self._found[entry] for entry in sorted(self._found)]

    def _first(self) -> list[LedgerEntry]:
        """The found entries before the first missing entry."""
        missing = next(iter(self._left))
        return [self._found[entry] for entry in sorted(self._found) if entry < missing]

    async def _take_objects(self, entries: list[int], deadline: float) -> bool:
        """Read entries from main storage, if it has the ledger. Returns whether it gave any."""
        ledger = self._ledger
        if self._let_go and not ledger.metadata.is_tiered:
            await (
                ledger.refresh()
            )  # a node lets go only of ledgers that the metadata says are in main storage
        metadata = ledger.metadata
        wanted = [entry for entry in entries if entry <= metadata.last]
        if not (metadata.is_tiered and wanted):
            return False
        left_s = max(MAIN_STORAGE_S, deadline - asyncio.get_running_loop().time())
        try:
            items = await ledger._from_objects(wanted, OBJECTS_BYTES, left_s)
        except (Corrupt, OutcomeUnknown, Rejected, Retryable) as error:
            logger.warning("ledger %d: main storage: %s", ledger.ledger_id, error)
            self._trouble = f"; main storage: {error}"
            self._doubtful.update(wanted)
            ledger._reads_objects = False
            return False
        ledger._reads_objects = True
        taken = [self._read_copy("main storage", item) for item in items]
        return any(taken)

    async def _ask(self, node: int, entries: list[int]) -> None:
        """Ask a node. If it is slow, the next node is asked as well."""
        asking = asyncio.ensure_future(self._ledger._ask_entries(node, entries))
        self._late[asking] = node
        await asyncio.wait({asking}, timeout=SPECULATE_S)
        if not asking.done():
            self._ledger._note_slow(node)
            self._pass_over(entries)
            return
        del self._late[asking]
        self._take(node, entries, asking.result())

    def _pass_over(self, entries: list[int]) -> None:
        self._doubtful.update(entries)
        for entry in entries:
            self._left[entry].pop(0)

    def _take_late(self) -> None:
        """Late answers of slow nodes."""
        for task in [task for task in self._late if task.done()]:
            node = self._late.pop(task)
            reply = task.result()
            for each in reply.entries if reply is not None else ():
                if each.found is Found.YES and each.entry in self._left:
                    self._read_copy(f"node {node}", _item(each))

    def _take(self, node: int, entries: list[int], reply: EntriesReply | None) -> None:
        if reply is None:
            self._pass_over(entries)
            return
        for each in reply.entries:
            if each.found is Found.YES:
                if self._read_copy(f"node {node}", _item(each)):
                    continue
            elif each.found in (Found.UNKNOWN, Found.DAMAGED, Found.TIERED):
                self._doubtful.add(each.entry)
                self._let_go = self._let_go or each.found is Found.TIERED
            self._left[each.entry].pop(0)

    def _read_copy(self, source: str, item: EntryItem) -> bool:
        """Keep an entry, if the copy is whole."""
        try:
            self._found[item.entry] = self._ledger._open_entry(item)
        except ChecksumMismatch as error:
            logger.warning("%s: %s", source, error)
            self._doubtful.add(item.entry)
            return False
        self._bytes += len(item.body)
        self.items[item.entry] = item
        del self._left[item.entry]
        return True

    async def _begin_again(self, spent: list[int], deadline: float) -> None:
        """All nodes of these entries were asked: report the entries as missing, or ask again."""
        ledger = self._ledger
        # Other nodes may have the entries by now: a writer, a recovery or a repair names other
        # nodes.
        asked, found = self._metadata, await ledger.refresh()
        self._metadata = found
        for entry in spent:
            is_sure = entry not in self._doubtful and found.nodes_at(entry) == asked.nodes_at(entry)
            # Behind the end no answer is needed: a silent node, or one that let go of the ledger,
            # would never give it.
            is_sure = is_sure or ledger.is_closed
            if is_sure and entry > ledger.last_add_confirmed:
                raise NoEntry(f"ledger {ledger.ledger_id} has no entry {entry}")
        is_over = asyncio.get_running_loop().time() + AGAIN_S >= deadline
        self._rounds += 1
        if self._asks_strays and (self._rounds > 1 or is_over):
            copies = await stray_copies(ledger._cluster, found, spent)
            self._asks_strays = bool(copies)
            for copy in copies:
                self._read_copy("a node that is not named", copy)
            if copies:
                # The next reply may have more of them.
                return
        if is_over:
            raise Unreachable(
                f"entry {spent[0]} of ledger {ledger.ledger_id} could not be read from any of its "
                f"nodes ({', '.join(map(str, found.nodes_at(spent[0])))}){self._trouble}"
            )
        if found == asked:
            await asyncio.sleep(AGAIN_S)
        self._doubtful.difference_update(spent)
        self._left.update(ledger._orders(spent))


def _item(answer: EntryAnswer) -> EntryItem:
    return EntryItem(answer.entry, answer.lac, answer.length, answer.body)
