"""Asks nodes for their copies of a ledger's entries: whole, absent, damaged, or no answer.

Checks and repairs ask so; both compare each copy with its digest.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_nodes import ask_node, ask_together
from cordwood.errors import AccessDenied, ChecksumMismatch, CordwoodError
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import EntriesReply, EntryAnswer, Found, ReadEntries
from cordwood.protocol.ledger_check import Copy

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import ReadableLedger

logger = logging.getLogger(__name__)

ASK_S = 5.0
"""How long a node may take for some hundred entries; its disk may be busy."""


class CopyStates:
    """See the module; of one ledger."""

    def __init__(self, opened: ReadableLedger, cluster: Cluster) -> None:
        metadata = opened.metadata
        self._ledger = opened.ledger_id
        self._cluster = cluster
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)

    async def ask_all(
        self, nodes: Mapping[int, Sequence[int]], silent: set[int]
    ) -> dict[int, dict[int, Copy]]:
        """By entry and node, the state of the copy.

        Args:
            nodes: by entry, the nodes to ask.
            silent: nodes that do not answer; they are not asked again, and new ones are added.
        """
        wanted: dict[int, list[int]] = {}
        for entry, some in nodes.items():
            for node in some:
                wanted.setdefault(node, []).append(entry)
        answers = await ask_together(self.ask(node, some, silent) for node, some in wanted.items())
        told = dict(zip(wanted, answers, strict=True))
        return {
            entry: {node: told[node].get(entry, Copy.SILENT) for node in some}
            for entry, some in nodes.items()
        }

    async def ask(self, node: int, entries: Sequence[int], silent: set[int]) -> dict[int, Copy]:
        """By entry, the answer of a node; entries without an answer are left out."""
        told: dict[int, Copy] = {}
        left = list(entries)
        while left and node not in silent:
            try:
                reply = await ask_node(
                    self._cluster, node, ReadEntries(self._ledger, self._key, left),
                    timeout_s=ASK_S,
                )  # fmt: skip
            except AccessDenied:
                raise
            except CordwoodError as error:
                logger.debug("node %d does not say what it has: %s", node, error)
                break
            assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
            told |= {each.entry: self.state(f"node {node}", each) for each in reply.entries}
            # A reply holds as many of the first requested entries as fit.
            left = left[max(1, len(reply.entries)) :]
        return told

    def state(self, source: str, answer: EntryAnswer) -> Copy:
        """The state of a copy by an answer, with its digest compared."""
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


async def nodes_without(
    ledger: ReadableLedger, nodes: Sequence[int], entries: Collection[int]
) -> frozenset[int]:
    """Those of some nodes that say that they have no whole copy of any of these entries."""
    states = CopyStates(ledger, ledger._cluster)
    found: set[int] = set()
    for node in nodes:
        try:
            told = await states.ask(node, [*entries], set())
        except AccessDenied:
            continue  # it knows another password for this id; the repair does not end for that
        if all(told.get(each) in (Copy.ABSENT, Copy.DAMAGED) for each in entries):
            found.add(node)
    return frozenset(found)
