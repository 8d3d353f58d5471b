"""The effects that a ledger's writer returns for events; see `protocol.ledger_writer`.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.ledger import LedgerMetadata


class Refusal(enum.Enum):
    """Why a node did not store an entry."""

    FENCED = "fenced"
    DENIED = "another password"
    ILLEGAL = "no request that may be made"
    READ_ONLY = "read-only"
    TOO_LARGE = "more than the node ever takes"
    FAILED = "an error, or no answer"


FATAL = frozenset({Refusal.FENCED, Refusal.DENIED, Refusal.ILLEGAL})
"""Another node would answer the same."""


class Outcome(enum.Enum):
    """Of an entry that was not acknowledged."""

    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


class End(enum.Enum):
    """The reason why a writer ended."""

    CLOSED = "closed"
    FENCED = "fenced"
    CLOSED_BY_OTHER = "closed by a recovery"
    DENIED = "denied"
    TOO_FEW_NODES = "too few nodes"
    TOO_MANY_CHANGES = "too many changes of the ensemble"
    TIMED_OUT = "no quorum in time"
    TOO_LARGE = "an entry is larger than a node's WAL takes"
    WRITE_FAILED = "a node failed, or started anew, under deferred sync"


class SendEntries(NamedTuple):
    """Send entries that were added at once to a node; `lac` goes along, the same in every copy.

    `entries` rise.
    """

    entries: Sequence[int]
    node: int
    lac: int


class SendEntry(NamedTuple):
    """Send an entry to one more node, with the LAC that its other copies have."""

    entry: int
    node: int
    lac: int


class Acked(NamedTuple):
    """These entries are stored, both included; told in the order of entries."""

    first: int
    last: int


class Failed(NamedTuple):
    """The entry will not be acknowledged any more."""

    entry: int
    outcome: Outcome


class PickNodes(NamedTuple):
    """Choose nodes for these places of the ensemble: none of those that stay or failed."""

    places: tuple[int, ...]
    taken: tuple[int, ...]


class WriteMetadata(NamedTuple):
    """Write `metadata` if the stored version is still `version`. The answer is
    `on_metadata_written`, or `on_metadata_found` with the stored value, also if the store's answer
    was lost. Each write gets one of the two, once: the shell drops a later answer."""

    version: int
    metadata: LedgerMetadata


class SendLac(NamedTuple):
    """Tell a node the LAC, as no entry does."""

    node: int
    lac: int


class SendForce(NamedTuple):
    """Ask a node to have on its disk all that it confirmed."""

    force: int
    node: int


class Forced(NamedTuple):
    """A force is done: all up to this entry is on the disks."""

    force: int
    through: int


class Ended(NamedTuple):
    """The writer has ended; `last` and `length` are the ledger's where the end is CLOSED."""

    end: End
    last: int
    length: int


Effect = (
    SendEntries | SendEntry | Acked | Failed | PickNodes | WriteMetadata | SendLac | SendForce
    | Forced | Ended
)  # fmt: skip
