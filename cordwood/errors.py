"""All errors that Cordwood raises on purpose, sorted by the caller's next step.

::

    CordwoodError
      Retryable        nothing was stored; the same call may be made again
        NoSequencer      no node can take appends for this log at the moment
        TooFewNodes      too few nodes are up to keep the replication promise
        Overloaded       a buffer, window or WAL is full; slow down
        Unreachable      a node or the cluster did not answer
        Undecided        too few nodes answered to say where a ledger ends
      Fenced           another epoch rules: find the new sequencer
      OutcomeUnknown   the append was in flight, and may or may not be stored
      Rejected         the request is wrong, and will be wrong again
        TailMoved        the log's tail is not where the caller expected it
        UnknownProducer  the log remembers no such producer, and this is not its first block
        ProducerFenced   a higher epoch of this producer has begun
        TokenFenced      a higher fencing token of this log has been given out
        OutOfSequence    a producer's block is not the one that comes next
        StageExpired     a staged block is gone, so it cannot be published
        RecordTooLarge   over the record or block limit
        UnknownLog       no log of this name
        LogExists        a log of this name exists already
        UnknownLedger    no ledger of this id
        LedgerExists     a ledger of this id exists already
        NoEntry          a ledger has no entry of this number
        LedgerFenced     a recovery has shut this writer of a ledger out
        NoObject         the object store has no object of this name
        ObjectChanged    an object is not the one that the caller expected to replace
        AccessDenied     this client may not do that
        BadSetting       an option, setting or argument is out of its range
        NotOurCluster    the other side is another cluster, node or version
        StoreInUse       another process owns this data directory
        Closed           the client, reader or node was closed
      Corrupt          bytes failed a check
        Malformed        a frame, message or layout that no Cordwood sender makes
        ChecksumMismatch stored or sent bytes differ from the bytes written
        TornBlock        a write that a crash cut short

Data loss is not an exception: a reader gets a `Gap`, in order.
"""

from __future__ import annotations

import enum


class CordwoodError(Exception):
    """The root of all errors that Cordwood raises on purpose."""

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether an append that ended with this error may be stored. If False, it is not stored,
        and will not be."""
        return not isinstance(self, (Retryable, Rejected, ChecksumMismatch))


class Retryable(CordwoodError):
    """Nothing was stored; the same call may be made again."""


class NoSequencer(Retryable):
    """No node can take appends for this log at the moment.

    Attributes:
        node: the node to ask instead, 0 for no particular one.
    """

    def __init__(self, message: str, node: int = 0) -> None:
        super().__init__(message)
        self.node = node


class TooFewNodes(Retryable):
    """Too few nodes are up to keep the log's replication promise."""


class Overloaded(Retryable):
    """A buffer, a window or a WAL is full: slow down and try again."""


class Unreachable(Retryable):
    """A node, or every node of the cluster, did not answer."""


class Undecided(Retryable):
    """Too few nodes answered to say where a ledger ends; it stays in recovery."""


class Fenced(CordwoodError):
    """Another epoch rules: find the new sequencer.

    Attributes:
        epoch: the epoch that won, 0 if it is not known.
    """

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


class OutcomeUnknown(CordwoodError):
    """The append is stored once or not at all, and may be stored later than it is looked for."""


class Rejected(CordwoodError):
    """The request is wrong, and will be wrong again."""


class TailMoved(Rejected):
    """The log's tail is not where the caller expected it; nothing was stored."""


class UnknownProducer(Rejected):
    """The log does not remember this producer, and this is not the producer's first block."""


class ProducerFenced(Rejected):
    """A higher epoch of this producer has begun; the lower epoch must stop."""


class TokenFenced(Rejected):
    """A higher fencing token of this log has been given out; the text names its holder."""


class Misplaced(enum.StrEnum):
    """Why a producer's block is out of sequence. The values go over the wire."""

    GAP = "gap"
    """The block is ahead of the sequence that the log expects: earlier records are missing. It is
    not stored."""
    STORED = "stored"
    """The log stored these sequences, too long ago to know their LSNs."""
    BEHIND = "behind"
    """The client did not send the block, because an earlier block of the producer failed."""


class OutOfSequence(Rejected):
    """A producer's block does not have the next sequence, and is no repeat that the log remembers.

    Attributes:
        kind: the reason, from `Misplaced`; None from a node of an older version.
        expected: the sequence that the log expects next from this producer in this epoch; every
            sequence below it is stored. None if the log was not asked.
    """

    def __init__(
        self, message: str, kind: Misplaced | None = None, expected: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.expected = expected

    @property
    def is_outcome_unknown(self) -> bool:
        """See `CordwoodError`. True for STORED: an earlier try of the append stored records."""
        return self.kind is Misplaced.STORED


class StageExpired(Rejected):
    """A staged block is gone or too old; no block was published."""


class RecordTooLarge(Rejected):
    """A record or a block is over its limit."""


class UnknownLog(Rejected):
    """No log has this name."""


class LogExists(Rejected):
    """A log of this name exists already."""


class UnknownLedger(Rejected):
    """No ledger has this id."""


class LedgerExists(Rejected):
    """A ledger of this id exists already."""


class NoEntry(Rejected):
    """The ledger has no entry of this number, or it is not confirmed yet."""


class LedgerFenced(Rejected):
    """A recovery has shut this writer of a ledger out: the ledger takes nothing more from it.

    Entries that the writer added before and that were not acknowledged end as OutcomeUnknown."""


class NoObject(Rejected):
    """The object store has no object of this name."""


class ObjectChanged(Rejected):
    """The object differs from the object that the caller expected to replace; nothing was
    stored."""


class AccessDenied(Rejected):
    """This client may not do that."""


class BadSetting(Rejected, ValueError):
    """An option, a setting or an argument is out of its range."""


class NotOurCluster(Rejected):
    """The other side is another cluster, another node or another version."""


class StoreInUse(Rejected):
    """Another process owns this data directory."""


class Closed(Rejected):
    """The client, reader or node was closed."""


class Corrupt(CordwoodError):
    """Bytes failed a check."""


class Malformed(Corrupt):
    """A frame, a message or a layout that no Cordwood sender makes."""


class ChecksumMismatch(Corrupt):
    """Stored or sent bytes differ from the bytes that were written."""


class TornBlock(Corrupt):
    """A write that a crash cut short."""
