"""Asks the nodes of a ledger for every copy, and stores missing copies of settled fragments.

The rule is `protocol.ledger_check`. A missing copy is read from another node, checked, and added to
the node as a recovery adds it. The nodes of a fragment do not change: `ledger_repair` replaces a
lost node. For a ledger in main storage, main storage is asked in place of nodes.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_nodes import ask_node
from cordwood.client.ledgers.ledger_repair import OnProgress, write_copies
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.errors import AccessDenied, ChecksumMismatch, CordwoodError, Corrupt, NoObject
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import (
    EntriesReply,
    EntryAnswer,
    Found,
    ReadEntries,
)
from cordwood.ledger import LedgerMetadata
from cordwood.protocol.ledger_check import Copy, LedgerCheck, Part, begun, nodes_of, parts
from cordwood.quorum.copyset import Chance

logger = logging.getLogger(__name__)

ASK_S = 5.0
"""How long a node may take for some hundred entries; its disk may be busy."""

AT_ONCE = 256
"""Number of entries in one call."""


class LedgerChecking:
    """See the module; of one ledger."""

    def __init__(
        self,
        opened: ReadableLedger,
        cluster: Cluster,
        chance: Chance,
        *,
        share: float,
        fills: bool,
        settled: bool = False,
        on_progress: OnProgress,
    ) -> None:
        """
        Args:
            share: share of the entries between the ends of each fragment to check.
            fills: whether to store missing copies of settled fragments.
            settled: whether to check settled fragments only, and not the newest one.
        """
        metadata = opened.metadata
        self._opened = opened
        self._cluster = cluster
        self._chance = chance
        self._share = share
        self._fills = fills
        self._settled = settled
        self._on_progress = on_progress
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)

    async def run(self) -> LedgerCheck:
        """Check the whole ledger, or the sample.

        Raises:
            UnknownLedger: it was deleted.
            Unreachable: too few nodes report the LAC of an open ledger, or a copy that was whole
                could not be read again.
        """
        metadata, last = await self._confirmed()
        check = begun(metadata, last)
        for part in parts(metadata, last, self._share, self._chance):
            for at in range(0, len(part.entries), AT_ONCE):
                some = part.entries[at : at + AT_ONCE]
                if check.is_tiered:
                    await self._look_at_objects(check, part, some)
                else:
                    await self._look(check, part, some)
                self._on_progress(check.entries)
        return check

    async def _confirmed(self) -> tuple[LedgerMetadata, int]:
        """The metadata, and the last confirmed entry of the fragments to check."""
        if self._settled:
            # All entries of settled fragments are confirmed, whatever the nodes report.
            metadata = await self._opened.refresh()
            self._opened._raise_to(metadata.settled_last)
            return metadata, metadata.settled_last
        await self._opened.read_last_add_confirmed()
        # Race: the writer may begin a new fragment before the nodes report the LAC. Now the
        # metadata has the fragment of each confirmed entry.
        metadata = await self._opened.refresh()
        return metadata, self._opened.last_add_confirmed

    async def _look(self, check: LedgerCheck, part: Part, entries: Sequence[int]) -> None:
        metadata = self._opened.metadata
        nodes = {entry: nodes_of(part, metadata, entry) for entry in entries}
        wanted: dict[int, list[int]] = {}
        for entry, some in nodes.items():
            for node in some:
                wanted.setdefault(node, []).append(entry)
        answers = await asyncio.gather(
            *(self._ask(node, some, check.silent) for node, some in wanted.items())
        )
        told = dict(zip(wanted, answers, strict=True))
        lacks: dict[int, list[int]] = {}
        for entry, some in nodes.items():
            states = {node: told[node].get(entry, Copy.SILENT) for node in some}
            for node in check.add(entry, states):
                lacks.setdefault(node, []).append(entry)
        if self._fills:
            for node, missing in lacks.items():
                check.filled += await self._fill(node, missing)

    async def _look_at_objects(
        self, check: LedgerCheck, part: Part, entries: Sequence[int]
    ) -> None:
        """Read entries from main storage. Nodes are asked for entries that it does not give, and
        get no copies: they may have let go of the whole ledger."""
        stored = await self._stored(entries)
        missing = [entry for entry in entries if stored[entry] is not Copy.WHOLE]
        wanted: dict[int, list[int]] = {}
        for entry in missing:
            for node in nodes_of(part, self._opened.metadata, entry):
                wanted.setdefault(node, []).append(entry)
        told = {node: await self._ask(node, some, check.silent) for node, some in wanted.items()}
        for entry in entries:
            nodes = [node for node, some in wanted.items() if entry in some]
            elsewhere = [told[node].get(entry, Copy.SILENT) for node in nodes]
            check.add_tiered(entry, stored[entry], elsewhere)

    async def _stored(self, entries: Sequence[int]) -> dict[int, Copy]:
        """By entry, the answer of main storage."""
        told: dict[int, Copy] = {}
        left = list(entries)
        while left:
            try:
                items = await self._opened._stored_copies(left)
            except CordwoodError as error:
                # The entries beside it cannot be read either.
                logger.warning("ledger %d: main storage: %s", self._opened.ledger_id, error)
                state = Copy.SILENT
                if isinstance(error, Corrupt | NoObject):
                    state = Copy.DAMAGED if isinstance(error, Corrupt) else Copy.ABSENT
                beside = self._opened._stored_together(left[0])
                failed = [entry for entry in left if entry in beside] or left[:1]
                told |= dict.fromkeys(failed, state)
                left = [entry for entry in left if entry not in told]
                continue
            for item in items:
                answer = EntryAnswer(item.entry, Found.YES, item.lac, item.length, item.body)
                told[item.entry] = self._state("main storage", answer)
            left = left[len(items) :]
        return told

    async def _ask(self, node: int, entries: Sequence[int], silent: set[int]) -> dict[int, Copy]:
        """By entry, the answer of a node; entries without an answer are left out."""
        told: dict[int, Copy] = {}
        left = list(entries)
        while left and node not in silent:
            try:
                reply = await ask_node(
                    self._cluster, node, ReadEntries(self._opened.ledger_id, self._key, left),
                    timeout_s=ASK_S,
                )  # fmt: skip
            except AccessDenied:
                raise
            except CordwoodError as error:
                logger.debug("node %d does not say what it has: %s", node, error)
                break
            assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
            told |= {each.entry: self._state(f"node {node}", each) for each in reply.entries}
            # A reply holds as many of the first requested entries as fit.
            left = left[max(1, len(reply.entries)) :]
        return told

    def _state(self, source: str, answer: EntryAnswer) -> Copy:
        match answer.found:
            case Found.YES:
                try:
                    self._seal.read(answer.entry, answer.lac, answer.length, answer.body)
                except ChecksumMismatch as error:
                    logger.warning("%s: %s", source, error)
                    return Copy.DAMAGED
                return Copy.WHOLE
            case Found.DAMAGED:
                return Copy.DAMAGED
            case Found.TIERED:
                return Copy.LET_GO
            case _:  # also on a node that lost records: a missing copy is missing
                return Copy.ABSENT

    async def _fill(self, node: int, entries: Sequence[int]) -> int:
        """Add copies to a node. Returns the number that it took."""
        filled = 0
        while filled < len(entries):
            copies = await self._opened.copies(entries[filled:])
            try:
                await write_copies(self._cluster, self._opened.metadata, node, copies)
            except AccessDenied:
                raise
            except CordwoodError as error:
                logger.warning(
                    "ledger %d: node %d does not take what it lacks: %s",
                    self._opened.ledger_id, node, error,
                )  # fmt: skip
                return filled
            filled += len(copies)
        return filled
