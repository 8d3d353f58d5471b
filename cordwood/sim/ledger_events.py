"""Events about ledgers: what writers added and were told, what readers got, where they end."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import HistoryEvent
from cordwood.sim.slots import PayloadMark

Ledger: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Entry: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
LastEntry: TypeAlias = Annotated[int, msgspec.Meta(ge=-1)]


class LedgerMade(HistoryEvent, frozen=True, gc=False, tag="ledger-made"):
    """A client was told that it made a ledger, which it alone writes."""

    client: str
    ledger: Ledger


class EntryAdded(HistoryEvent, frozen=True, gc=False, tag="entry-added"):
    """A writer is about to add an entry; `number` counts what it adds to the ledger, from 0."""

    client: str
    ledger: Ledger
    number: Entry
    payload: PayloadMark


class EntryAcked(HistoryEvent, frozen=True, gc=False, tag="entry-acked"):
    """What was added is acknowledged, as this entry."""

    client: str
    ledger: Ledger
    number: Entry
    entry: Entry


class EntryRefused(HistoryEvent, frozen=True, gc=False, tag="entry-refused"):
    """The writer was told that what it added is not stored, and will not be."""

    client: str
    ledger: Ledger
    number: Entry
    error: str


class EntryRead(HistoryEvent, frozen=True, gc=False, tag="entry-read"):
    """A reader was given an entry as one that is confirmed."""

    client: str
    ledger: Ledger
    entry: Entry
    payload: PayloadMark


class LedgerEnds(HistoryEvent, frozen=True, gc=False, tag="ledger-ends"):
    """A client was told where a ledger ends: by its own close, by a recovery, or as it read.

    Attributes:
        length: bytes of all payloads.
    """

    client: str
    ledger: Ledger
    last: LastEntry
    length: Annotated[int, msgspec.Meta(ge=0)]


class LedgerAudited(HistoryEvent, frozen=True, gc=False, tag="ledger-audited"):
    """When all was over, a ledger was recovered and read whole; `error` says why not, if not."""

    client: str
    ledger: Ledger
    error: str = ""


class LedgerChecked(HistoryEvent, frozen=True, gc=False, tag="ledger-checked"):
    """When all was over, a ledger that main storage has was checked, and filled where it could be.

    Attributes:
        short, lost, filled: entries that main storage does not give whole, those of them that no
            node has either, and copies that were made.
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
