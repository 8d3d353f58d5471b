"""The durable state of every ledger on one node, and the entries that LogsDB does not have yet.

Records come here in the order of the WAL, once they are durable. The next flush takes the changes
to LogsDB's table of ledgers, and then their bodies leave memory, unless there is space for them
beside the recent blocks of logs.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cordwood.layout.ledger_records import (
    KeptEntry,
    LedgerChanges,
    LedgerEntries,
    LedgerFlag,
    LedgerRecord,
    LedgerRow,
    entries_bytes,
    pack_state_row,
    state_row_key,
)
from cordwood.ledger import NO_ENTRY
from cordwood.storage.ledgers.held_runs import HeldRun, HeldRuns
from cordwood.storage.ledgers.ledger_cut import LedgerCut
from cordwood.storage.recent_room import RecentRoom


class HeldLedger:
    """One ledger.

    Attributes:
        key: the digest of its password.
        flags: its permanent states on this node.
        lac: the highest LAC that this node received, with an entry or alone.
        last: the highest entry that this node holds, here or in LogsDB.
        entries: those that LogsDB does not have yet.
        runs: these, and some that it has.
    """

    __slots__ = ("entries", "flags", "key", "lac", "last", "runs")

    def __init__(self, key: bytes, flags: LedgerFlag, lac: int, last: int) -> None:
        self.key = key
        self.flags = flags
        self.lac = lac
        self.last = last
        self.entries: dict[int, KeptEntry] = {}
        self.runs = HeldRuns()

    @property
    def row(self) -> LedgerRow:
        """The state as LogsDB keeps it."""
        return LedgerRow(self.key, self.flags, self.lac, self.last)


class LedgerIndex:
    """See the module.

    Attributes:
        held: by ledger.
        stored_entries: entries stored since the start.
        recent_room: the memory for runs that LogsDB has.
    """

    def __init__(self, stored: Mapping[int, LedgerRow] | None = None) -> None:
        """
        Args:
            stored: the states in LogsDB.
        """
        self.held = {ledger: HeldLedger(*row) for ledger, row in (stored or {}).items()}
        self.stored_entries = 0
        self.recent_room = RecentRoom(0)
        self._changed: dict[int, None] = {}
        # By ledger, the entries of each record since the last cut; and the runs of these records.
        self._added: dict[int, list[Sequence[KeptEntry]]] = {}
        self._runs: list[HeldRun] = []

    def get(self, ledger: int) -> HeldLedger | None:
        """A ledger's state, None if this node never heard of it."""
        return self.held.get(ledger)

    def apply(self, record: LedgerRecord) -> int:
        """Apply a durable or replayed record; LogsDB may have it already.

        Returns:
            The additional bytes of entries in memory.
        """
        if isinstance(record, LedgerEntries):
            return self._add(record)
        assert isinstance(record, LedgerChanges)
        for change in record.changes:
            held = self._ledger(change.ledger, change.key)
            held.flags |= change.flags
            held.lac = max(held.lac, change.lac)
            if change.flags.is_empty:
                held.entries.clear()
                held.runs.clear()
            self._changed[change.ledger] = None
        return 0

    def _ledger(self, ledger: int, key: bytes) -> HeldLedger:
        found = self.held.get(ledger)
        if found is None:
            found = self.held[ledger] = HeldLedger(key, LedgerFlag(0), NO_ENTRY, NO_ENTRY)
        return found

    def _add(self, record: LedgerEntries) -> int:
        held = self._ledger(record.ledger, record.key)
        self._changed[record.ledger] = None
        if held.flags.is_empty:
            return 0
        entries = {each.entry: each for each in record.entries}
        held.entries.update(entries)
        run = HeldRun.of(record)
        held.runs.replace(min(entries), max(entries), run)
        if run is not None:
            self._runs.append(run)
        held.last = max(held.last, *entries)
        held.lac = max(held.lac, max([each.lac for each in record.entries]))
        self._added.setdefault(record.ledger, []).append(record.entries)
        self.stored_entries += len(record.entries)
        return entries_bytes(record.entries)

    def note_dropped(self, ledgers: Iterable[int]) -> None:
        """Note that LogsDB has no entries of these ledgers any more. This is not durable: the next
        start drops their entries once more."""
        for ledger in ledgers:
            self.held[ledger].last = NO_ENTRY
            self._changed[ledger] = None

    def cut(self) -> LedgerCut:
        """The changes since the last cut, for LogsDB."""
        changed, self._changed = self._changed, {}
        added, self._added = self._added, {}
        runs, self._runs = self._runs, []
        # A flag may have taken all of a ledger away since.
        kept = {each: added[each] for each in added if not self._is_empty(each)}
        states = [(state_row_key(each), pack_state_row(self.held[each].row)) for each in changed]
        return LedgerCut(kept, states, self._is_empty, runs)

    def _drop_run(self, run: HeldRun) -> None:
        self.held[run.ledger].runs.drop(run)

    def _is_empty(self, ledger: int) -> bool:
        return self.held[ledger].flags.is_empty

    def evict(self, cut: LedgerCut) -> None:
        """LogsDB has these rows: drop their entries from memory, except entries that arrived
        again."""
        for ledger, records in cut.added.items():
            entries = self.held[ledger].entries
            for record in records:
                for kept in record:
                    if entries.get(kept.entry) is kept:
                        del entries[kept.entry]
        for run in cut.runs:
            if self.held[run.ledger].runs.has(run):
                self.recent_room.add(self._drop_run, run, len(run.packed))
        self.recent_room.trim()
