"""The driver's questions about ledgers: the last confirmed entry, and the size of entries.

Source: docs/spark.md ("Ledgers").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cordwood.client.blocking.blocking_ledgers import BlockingReadableLedger
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.layout.entry_arrow import ledger_name
from cordwood.spark.ledger_offsets import entries_gone
from cordwood.spark.ledger_options import LedgerOptions
from cordwood.spark.runs import LsnRun
from cordwood.spark.splitting import Slice, Span


class LedgerEnds:
    """The driver's view of the ledgers; lives as long as the query."""

    def __init__(self, store: BlockingStore, options: LedgerOptions) -> None:
        self._store = store
        self._options = options
        self._opened: dict[int, BlockingReadableLedger] = {}

    @property
    def cluster(self) -> str:
        """The cluster's identity."""
        return self._store.cluster_id

    @property
    def open_ledgers(self) -> int:
        """The number of ledgers that are not known to be closed."""
        opened = self._opened
        return sum(
            each not in opened or not opened[each].is_closed for each in self._options.ledgers
        )

    def confirmed(self) -> dict[int, int]:
        """By ledger the first entry that is not read: all that was acknowledged is before it, but
        for what a writer has not told its nodes yet.

        Raises:
            UnknownLedger, AccessDenied: see `ledgers.open`.
            Unreachable: too few nodes said how far an open ledger is.
        """
        return {each: self._end(each, ask_all=True) for each in self._options.ledgers}

    def heard(self) -> dict[int, int]:
        """As `confirmed`, by the nodes that answer: it may be too low, and is never too high."""
        return {each: self._end(each, ask_all=False) for each in self._options.ledgers}

    def spans(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Span]:
        """Ranges of entries as they are planned, with the mean size of an entry.

        Raises:
            DataLoss: a ledger was closed before its range's end.
        """
        for ledger, (start, stop) in ranges.items():
            opened = self._open(ledger)
            if opened.is_closed and stop > opened.last_add_confirmed + 1:
                raise entries_gone(ledger, opened.last_add_confirmed + 1, stop)
            piece = Slice(ledger, ledger_name(ledger), start, stop)
            yield Span(piece, [LsnRun(start, stop)], self._entry_bytes(ledger, stop))

    def _end(self, ledger: int, *, ask_all: bool) -> int:
        opened = self._open(ledger)
        if not opened.is_closed and ask_all:
            opened.read_last_add_confirmed()
        elif not opened.is_closed:
            opened.refresh()
            if not opened.is_closed:
                opened.try_read_last_add_confirmed()
        end = opened.last_add_confirmed + 1
        return min(end, self._options.ends.get(ledger, end))

    def _entry_bytes(self, ledger: int, stop: int) -> float:
        """The mean size of an entry, from the bytes of all entries before `stop`. The last of these
        entries carries that sum.

        They are the same before the ledger is closed and after it, so that a repeated batch is cut
        the same: `deliveryMode=idempotent` counts the rows of each task.
        """
        opened = self._open(ledger)
        if opened.is_closed and stop == opened.last_add_confirmed + 1:
            return opened.length / stop
        for batch in opened.batches(stop - 1, stop - 1):
            return batch[-1].length / stop
        raise AssertionError("a batch of entries has one at least")

    def _open(self, ledger: int) -> BlockingReadableLedger:
        opened = self._opened.get(ledger)
        if opened is None:
            opened = self._store.ledgers.open(ledger, self._options.password)
            self._opened[ledger] = opened
        return opened
