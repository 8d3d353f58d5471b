"""The ledgers that name a node, by their metadata.

Marks do not answer this: there is none before an auditor has looked, nor while auto-recovery is
switched off. But a repair may have passed over an entry that only this node may have. Then the mark
alone names the node.

Source: docs/protocol/maintenance.md (replacing a node).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.client.ledgers.ledger_nodes import ask_together
from cordwood.errors import Corrupt, UnknownLedger
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_autorecovery import named

if TYPE_CHECKING:
    from cordwood.client.ledgers.ledgers import Ledgers


AT_ONCE = 64
"""Ledgers that a look asks for at the same time: a round trip each, one after another, would make a
look at a million ledgers last for hours."""


class NamedLedgers:
    """See the module; of one node.

    A look at all ledgers takes a call for each of them, AT_ONCE at the same time. So the next looks
    ask only for the first of the ledgers that named the node, up to a ledger that still does. Once
    none does, all are asked for again.
    """

    def __init__(self, ledgers: Ledgers, node: NodeId) -> None:
        self._ledgers = ledgers
        self._node = node
        self._left: list[int] = []

    async def look(self) -> list[int]:
        """Ids of ledgers that name the node, rising: the first does, the others did. After an empty
        list, no ledger names it.

        Raises:
            Unreachable, Overloaded: the metadata store did not answer; ask again.
        """
        while self._left and not await self._names(self._left[0]):
            self._left = self._left[1:]
        if not self._left:
            self._left = await self._all()
        return self._left

    async def _all(self) -> list[int]:
        found, some = list[int](), list[int]()
        async for ledger in self._ledgers.list():
            some.append(ledger)
            if len(some) == AT_ONCE:
                found += await self._naming(some)
                some = []
        return found + await self._naming(some)

    async def _naming(self, ledgers: list[int]) -> list[int]:
        named_it = await ask_together(self._names(each) for each in ledgers)
        return [ledger for ledger, is_named in zip(ledgers, named_it, strict=True) if is_named]

    async def _names(self, ledger: int) -> bool:
        try:
            if self._node in named(await self._ledgers.metadata(ledger)):
                return True
            marked = await self._ledgers.under_replicated_page(ledger - 1, 1)
            return any(each.ledger == ledger and self._node in each.nodes for each in marked)
        except UnknownLedger:
            return False  # it was deleted
        except Corrupt:
            return True  # the node may have its only copy
