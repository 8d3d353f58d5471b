"""The part of a flush that concerns ledgers: entries as they are in memory, and the states of
ledgers.

Each row is made just before it is written. With 100,000 small entries, making all rows at once held
up a node's loop for a fifth of a second.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.layout.ledger_records import KeptEntry, entry_row_key, pack_entry_row
from cordwood.storage.ledgers.held_runs import HeldRun
from cordwood.storage.logs_db.tables import Row


@dataclass(frozen=True, slots=True)
class LedgerCut:
    """The rows, in an order in which the last one of a key counts. They may be gone through again.

    Attributes:
        added: by ledger, the entries of each record, in the order of the WAL.
        states: rows of the states of ledgers.
        is_empty: whether nothing of a ledger is to be kept any more.
        runs: the same entries as they came, without those that came in no order.
    """

    added: Mapping[int, Sequence[Sequence[KeptEntry]]] = field(default_factory=dict)
    states: Sequence[Row] = ()
    is_empty: Callable[[int], bool] = lambda _: False
    runs: Sequence[HeldRun] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.states)

    def __iter__(self) -> Iterator[Row]:
        for ledger, records in self.added.items():
            # Race: while a flush waits for a full disk, a ledger is deleted and its space given
            # back. Nothing would delete entries that are written after that.
            for record in () if self.is_empty(ledger) else records:
                for kept in record:
                    yield entry_row_key(ledger, kept.entry), pack_entry_row(kept)
        yield from self.states
