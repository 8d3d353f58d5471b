"""Events about ledgers: added entries, answers to writers, entries that readers got, and ends."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import HistoryEvent
from cordwood.sim.slots import PayloadMark

Ledger: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Entry: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
LastEntry: TypeAlias = Annotated[int, msgspec.Meta(ge=-1)]


class LedgerMade(HistoryEvent, frozen=True, gc=False, tag="ledger-made"):
    """A client was told that it made a ledger. It alone writes this ledger."""

    client: str
    ledger: Ledger


class EntryAdded(HistoryEvent, frozen=True, gc=False, tag="entry-added"):
    """A writer is about to add an entry; `number` counts its additions to the ledger, from 0."""

    client: str
    ledger: Ledger
    number: Entry
    payload: PayloadMark


class EntryAcked(HistoryEvent, frozen=True, gc=False, tag="entry-acked"):
    """An addition is acknowledged, as this entry."""

    client: str
    ledger: Ledger
    number: Entry
    entry: Entry


class EntryRefused(HistoryEvent, frozen=True, gc=False, tag="entry-refused"):
    """The writer was told that an addition is not stored, and will not be."""

    client: str
    ledger: Ledger
    number: Entry
    error: str


class EntryRead(HistoryEvent, frozen=True, gc=False, tag="entry-read"):
    """A reader was given an entry as confirmed."""

    client: str
    ledger: Ledger
    entry: Entry
    payload: PayloadMark


class LedgerEnds(HistoryEvent, frozen=True, gc=False, tag="ledger-ends"):
    """A client was told where a ledger ends: by its own close, by a recovery, or during a read.

    Attributes:
        length: bytes of all payloads.
    """

    client: str
    ledger: Ledger
    last: LastEntry
    length: Annotated[int, msgspec.Meta(ge=0)]


class LedgerAudited(HistoryEvent, frozen=True, gc=False, tag="ledger-audited"):
    """At the end of the run, a ledger was recovered and read whole. If it was not, `error` says
    why."""

    client: str
    ledger: Ledger
    error: str = ""


class LedgerChecked(HistoryEvent, frozen=True, gc=False, tag="ledger-checked"):
    """At the end of the run, a ledger in main storage was checked, and filled where possible.

    Attributes:
        short, lost, filled: entries that main storage does not give whole; entries of these that no
            node has either; copies that were made.
    """

    client: str
    ledger: Ledger
    short: Entry
    lost: Entry
    filled: Entry


LedgerEvent: TypeAlias = (
    LedgerMade
    | EntryAdded
    | EntryAcked
    | EntryRefused
    | EntryRead
    | LedgerEnds
    | LedgerAudited
    | LedgerChecked
)
