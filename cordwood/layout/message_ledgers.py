"""Control messages of ledgers; `layout.message` has all others, and the reading.

A writer sends the entries of one tick to a node as one call. All numbers are checked on arrival,
and a reply holds no more than a control frame.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from cordwood.block import Buffer
from cordwood.layout.entry_run import pack_run
from cordwood.layout.ledger_entry import BODY_BYTES_MAX, KEY_BYTES
from cordwood.layout.ledger_metadata import METADATA_BYTES_MAX
from cordwood.ledger import ENTRY_MAX, FRAGMENTS_MAX, LEDGER_MAX, NO_ENTRY

ADD_ENTRIES_MAX = 1024
"""The most entries in one call of AddEntries: some hundred kilobytes of small entries."""

READ_ENTRIES_MAX = 1024

RUN_ENTRIES_MAX = 2048
"""Entries of one reply to a reader: a millisecond of a node's loop, and of the reader's."""

READ_BYTES_MAX = 3 << 20
"""Bytes of bodies in one reply; the last body may exceed the bound."""

STEP_MAX = 255
"""The most nodes of an ensemble."""

POLL_MS_MAX = 20_000
"""A node answers within 30 s in any case."""

LEDGERS_MAX = 1000
"""Ledgers of one page."""

Ledger = Annotated[int, Meta(ge=0, le=LEDGER_MAX)]
AnyLedger = Annotated[int, Meta(ge=-1, le=LEDGER_MAX)]
Entry = Annotated[int, Meta(ge=0, le=ENTRY_MAX)]
Lac = Annotated[int, Meta(ge=NO_ENTRY, le=ENTRY_MAX)]
Length = Annotated[int, Meta(ge=0, le=ENTRY_MAX)]
Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Body = Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)]
Run = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SwitchVersion = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Value = Annotated[bytes, Meta(max_length=METADATA_BYTES_MAX)]


class AddRefusal(enum.StrEnum):
    """Why a node took none of the entries; "" if it has all of them on its disk."""

    NONE = ""
    FENCED = "fenced"
    GONE = "gone"
    OTHER = "other"
    """It has another entry of that number."""
    READ_ONLY = "read_only"
    FULL = "full"


class Found(enum.StrEnum):
    """A node's state of an entry or a ledger."""

    YES = "yes"
    NO_ENTRY = "no_entry"
    NO_LEDGER = "no_ledger"
    UNKNOWN = "unknown"
    """The node lost records, perhaps this entry or ledger."""
    DAMAGED = "damaged"
    TIERED = "tiered"
    """It let go of it: main storage has the ledger."""


class EntryItem(Struct, frozen=True, array_like=True):
    """An entry on the wire: see `layout.ledger_entry` for its body."""

    entry: Entry
    lac: Lac
    length: Length
    body: Body


class AddEntries(Struct, frozen=True, tag="add_entries"):
    """Store these entries durably, all of them or none.

    Attributes:
        count, packed: the entries, see `layout.entry_run`; their numbers may have gaps. A node
            writes these bytes to its WAL as they are.
        recovery: a recovery writes the entries again, so a fenced node takes them.
        mends: with `recovery`, the entries replace the node's entries with the same numbers. The
            caller has read those, and they failed their check.
        deferred: the node answers before the entries are durable. `ForceEntries` makes them
            durable.
    """

    ledger: Ledger
    key: Key
    count: Annotated[int, Meta(ge=1, le=ADD_ENTRIES_MAX)]
    packed: memoryview
    recovery: bool = False
    deferred: bool = False
    mends: bool = False


def pack_items(items: Sequence[EntryItem]) -> memoryview:
    """Entries as a run, the form that `AddEntries` carries."""
    heads = [(item.entry, item.lac, item.length, len(item.body)) for item in items]
    return memoryview(pack_run(heads, [item.body for item in items]))


class AddReply(Struct, frozen=True, tag="added"):
    """Says that the entries are durable, or why they are not. Deferred entries are on their way to
    the disk.

    Attributes:
        run: a number of the node's current run; each start of the node gets another number: see
            `ForceEntries`.
    """

    refusal: AddRefusal = AddRefusal.NONE
    run: Run = 0


class ForceEntries(Struct, frozen=True, tag="force_entries"):
    """Make all entries of a ledger that the node took durable. AddReply answers it.

    A node that has restarted since it took entries may have lost them, and does not know it. The
    run in its answer then differs from the run in earlier answers.
    """

    ledger: Ledger
    key: Key


class ReadEntries(Struct, frozen=True, tag="read_entries"):
    """Asks for these entries. The reply has as many, from the first on, as fit into it.

    Attributes:
        fence: the node fences the ledger first, durably, even if it never saw the ledger.
    """

    ledger: Ledger
    key: Key
    entries: Annotated[list[Entry], Meta(min_length=1, max_length=READ_ENTRIES_MAX)]
    fence: bool = False


class EntryAnswer(Struct, frozen=True, array_like=True):
    """A node's copy of one entry; fields other than `found` count only if `found` is YES."""

    entry: Entry
    found: Found
    lac: Lac = NO_ENTRY
    length: Length = 0
    body: Body = b""


class EntriesReply(Struct, frozen=True, tag="entries"):
    """Entries in the order asked for, the first of them at least.

    Attributes:
        lac: the highest LAC that the node was told of the ledger.
    """

    entries: Annotated[list[EntryAnswer], Meta(max_length=READ_ENTRIES_MAX)]
    lac: Lac


class ReadRun(Struct, frozen=True, tag="read_run"):
    """Asks for the entries `first`, `first + step` and so on: as many of `count` as the node has
    intact and as fit. A reader gets thousands of small entries in this way. `ReadEntries` tells why
    an entry is missing.

    Attributes:
        bytes_max: bytes of bodies; a single entry may exceed it.
        step: the distance between two entries. In a striped ledger, the entries of one write set
            are as far apart as the ensemble has nodes.
    """

    ledger: Ledger
    key: Key
    first: Entry
    count: Annotated[int, Meta(ge=1, le=RUN_ENTRIES_MAX)]
    bytes_max: Annotated[int, Meta(ge=1, le=READ_BYTES_MAX)]
    step: Annotated[int, Meta(ge=1, le=STEP_MAX)] = 1


class RunReply(Struct, frozen=True, tag="run"):
    """The first entries of the request; none if the node does not have the first entry.

    Attributes:
        packed: see `layout.entry_run`.
        lac: the highest LAC that the node was told of the ledger.
    """

    count: Annotated[int, Meta(ge=0, le=RUN_ENTRIES_MAX)]
    lac: Lac
    packed: memoryview


class SentRun(RunReply, frozen=True, tag="run"):
    """A RunReply as a node sends it: `packed` in parts, which are not copied from their places in
    memory."""

    parts: tuple[Buffer, ...] = ()


class AskLac(Struct, frozen=True, tag="ask_lac"):
    """Asks for the LAC of a ledger.

    Attributes:
        fence: as in `ReadEntries`.
        above, wait_ms: a node without a LAC higher than `above` waits this long for one, or until
            the ledger is fenced; 0 ms does not wait.
    """

    ledger: Ledger
    key: Key
    fence: bool = False
    above: Lac = NO_ENTRY
    wait_ms: Annotated[int, Meta(ge=0, le=POLL_MS_MAX)] = 0


class LacReply(Struct, frozen=True, tag="lac"):
    """The highest LAC that a node was told, and the last entry that it holds.

    Attributes:
        found: NO_LEDGER if it never heard of the ledger, UNKNOWN if it lost records.
    """

    found: Found
    lac: Lac
    last: Lac
    is_fenced: bool


class TellLac(Struct, frozen=True, tag="tell_lac"):
    """Tells the LAC of a ledger. DoneReply answers it when the LAC is durable."""

    ledger: Ledger
    key: Key
    lac: Lac


class AskLedger(Struct, frozen=True, tag="ask_ledger"):
    """Asks for the metadata of a ledger."""

    ledger: Ledger


class AllotLedgerId(Struct, frozen=True, tag="allot_ledger_id"):
    """Asks for an id that no other call gets. Each call takes another id, so a repeat wastes one.
    A client may have chosen the id itself before: then `CreateLedger` says so."""


class LedgerIdReply(Struct, frozen=True, tag="ledger_id"):
    """The id that was allotted."""

    ledger: Ledger


class CreateLedger(Struct, frozen=True, tag="create_ledger"):
    """Make a ledger of this metadata, in which the id is replaced.

    A repeat with the same creator in the metadata gets the answer of the first call, and so makes
    no other ledger.

    Attributes:
        ledger: its id. -1 allots one, for older clients only: a repeat makes another ledger.
    """

    ledger: AnyLedger
    value: Value


class SetLedger(Struct, frozen=True, tag="set_ledger"):
    """Replace a ledger's metadata if its version is still `version`."""

    ledger: Ledger
    version: Version
    value: Value


class DeleteLedger(Struct, frozen=True, tag="delete_ledger"):
    """Delete a ledger; a missing ledger counts as deleted. Answered with DoneReply."""

    ledger: Ledger


class ListLedgers(Struct, frozen=True, tag="list_ledgers"):
    """The ledgers above `after`, by id, at most this many."""

    after: AnyLedger
    limit: Annotated[int, Meta(ge=1, le=LEDGERS_MAX)]


class LedgerReply(Struct, frozen=True, tag="ledger"):
    """A ledger's present metadata; version 0 if the ledger does not exist.

    Attributes:
        is_written: whether the call wrote it.
    """

    version: Version
    value: Value
    is_written: bool = False


class LedgersReply(Struct, frozen=True, tag="ledgers"):
    """Ids of ledgers, ascending. They are fewer than requested only at the end of the list."""

    ledgers: Annotated[list[Ledger], Meta(max_length=LEDGERS_MAX)]


class AskAutorecovery(Struct, frozen=True, tag="ask_autorecovery"):
    """Asks whether ledgers that lack copies are repaired, and for the ids of the ledgers above
    `after` that lack copies, at most `limit`."""

    after: AnyLedger
    limit: Annotated[int, Meta(ge=1, le=LEDGERS_MAX)]


class SwitchAutorecovery(Struct, frozen=True, tag="switch_autorecovery"):
    """Switch the repair of ledgers that lack copies on or off. DoneReply answers it.

    Attributes:
        if_version: of the switch's entry when the client gave this order. If it was switched to the
            contrary since, the order is refused. -1 for an older client.
    """

    on: bool
    if_version: SwitchVersion = -1


class LackingLedger(Struct, frozen=True, array_like=True):
    """A ledger that lacks copies, the lost nodes that it names, and the time of the finding."""

    ledger: Ledger
    nodes: Annotated[tuple[int, ...], Meta(max_length=FRAGMENTS_MAX)]
    since_us: Annotated[int, Meta(ge=0, le=2**62)]


class AutorecoveryReply(Struct, frozen=True, tag="autorecovery"):
    """Whether ledgers are repaired, the auditor, and the ledgers that lack copies.

    Attributes:
        auditor: "" without an auditor.
        ledgers: fewer than requested only at the end.
        version: of the switch's entry; 0 if there is none, -1 for an older node, which does not
            say.
    """

    on: bool
    auditor: Annotated[str, Meta(max_length=255)]
    ledgers: Annotated[list[LackingLedger], Meta(max_length=LEDGERS_MAX)]
    version: SwitchVersion = -1


class OpenMainStorage(Struct, frozen=True, tag="open_main_storage"):
    """Open the node's main storage, which names its owner from then on. DoneReply answers it."""


AutorecoveryCall = AskAutorecovery | SwitchAutorecovery
LedgerEntryCall = AddEntries | ForceEntries | ReadEntries | ReadRun | AskLac | TellLac
LedgerMetadataCall = (
    AskLedger | AllotLedgerId | CreateLedger | SetLedger | DeleteLedger | ListLedgers
)
LedgerCall = LedgerEntryCall | LedgerMetadataCall | AutorecoveryCall | OpenMainStorage
