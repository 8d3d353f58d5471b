"""Asks the nodes of a ledger for every copy, and stores missing copies of settled fragments.

The rule is `protocol.ledger_check`. A missing copy is read from another node, checked, and added to
the node as a recovery adds it. The nodes of a fragment do not change: `ledger_repair` replaces a
lost node. For a ledger in main storage, main storage is asked in place of nodes.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.copy_states import CopyStates
from cordwood.client.ledgers.ledger_repair import OnProgress, write_copies
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.stray_copies import stray_entries
from cordwood.errors import AccessDenied, CordwoodError, Corrupt, NoObject
from cordwood.layout.message_ledgers import EntryAnswer, Found
from cordwood.ledger import LedgerMetadata
from cordwood.nodes import Member, NodeId
from cordwood.protocol.ledger_check import (
    Copy,
    LedgerCheck,
    Part,
    begun,
    nodes_of,
    parts,
    parts_with,
)
from cordwood.quorum.copyset import Chance
from cordwood.quorum.ensemble_choice import DOMAINS_MIN, windows_in_one

logger = logging.getLogger(__name__)

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
        entries: Collection[int] | None = None,
        turn: tuple[int, int] | None = None,
        on_progress: OnProgress,
    ) -> None:
        """
        Args:
            entries: the only entries to look at; None for those that `share` and
                `turn` give.
            turn: see `protocol.ledger_check.parts`.
            share: share of the entries between the ends of each fragment to check.
            fills: whether to store missing copies of settled fragments.
            settled: whether to check settled fragments only, and not the newest one.
        """
        self._opened = opened
        self._cluster = cluster
        self._chance = chance
        self._share = share
        self._fills = fills
        self._settled = settled
        self._entries = entries
        self._turn = turn
        self._on_progress = on_progress
        self._states = CopyStates(opened, cluster)

    async def run(self) -> LedgerCheck:
        """Check the whole ledger, or the sample.

        Raises:
            UnknownLedger: it was deleted.
            Unreachable: too few nodes report the LAC of an open ledger, or a copy that was whole
                could not be read again.
        """
        metadata, last = await self._confirmed()
        check = begun(metadata, last)
        if self._entries is None:
            looked_at = parts(metadata, last, self._share, self._chance, self._turn)
        else:
            looked_at = parts_with(metadata, last, self._entries)
        for part in looked_at:
            for at in range(0, len(part.entries), AT_ONCE):
                some = part.entries[at : at + AT_ONCE]
                if check.is_tiered:
                    await self._look_at_objects(check, part, some)
                else:
                    await self._look(check, part, some)
                self._on_progress(check.entries)
        check.narrow = self._narrow(self._opened.metadata)
        return check

    def _narrow(self, metadata: LedgerMetadata) -> list[int]:
        """First entries of the fragments with entries in only one domain of the ledger's scope."""
        if metadata.is_tiered:
            return []  # it is only in main storage, or soon will be
        members = self._cluster.members
        if len({member.domain(metadata.scope) for member in members.values()}) < DOMAINS_MIN:
            return []  # no choice would be better
        write, found = metadata.striping.write, []
        for each in metadata.fragments:
            known = [members.get(NodeId(n)) or Member(NodeId(n), "") for n in each.nodes]
            if windows_in_one(known, write, metadata.scope):
                found.append(each.first)
        return found

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
        told = await self._states.ask_all(nodes, check.silent)
        bare = [entry for entry, states in told.items() if Copy.WHOLE not in states.values()]
        # A reader finds these entries, so they are not lost.
        strays = await stray_entries(self._cluster, metadata, bare)
        lacks: dict[int, list[int]] = {}
        for entry, states in told.items():
            for node in check.add(entry, states, elsewhere=entry in strays):
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
        told = {
            node: await self._states.ask(node, some, check.silent) for node, some in wanted.items()
        }
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
                told[item.entry] = self._states.state("main storage", answer)
            left = left[len(items) :]
        return told

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
