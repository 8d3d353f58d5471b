"""Ensembles of ledgers: where an entry lies, when it is acknowledged, and when it is absent.

Entry i is written to the members (i+k) mod E for k < Qw: its *write set*. So only E different
write sets exist, the *windows* of Qw neighbours on a ring of E members. An entry is acknowledged
once Qa members of its write set have it.

From this follow the two rules by which a ledger is recovered:

- *Coverage.* Fenced nodes take no more entries from the writer. If every window has (Qw-Qa)+1
  fenced members, no window has Qa members that still take entries. So no further entry can be
  acknowledged.
- *Absence.* An entry that (Qw-Qa)+1 members of its write set do not have was never acknowledged.
  Only a member's explicit answer counts. Silence, a failed checksum, a disk error, and the answer
  of a node that lost data are *unknown*: this member may have acknowledged the entry.

Members are counted by their place in the ensemble, 0 to E-1; an ensemble has distinct nodes.

Source: docs/sources/bookkeeper.md (b); BookKeeper #2908 (a rotten copy called absent cut a ledger).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from functools import lru_cache

from cordwood.ledger import ENTRY_MAX, Striping


class Answer(enum.Enum):
    """How a member answered a question of a recovery about a ledger or an entry."""

    FOUND = "found"
    NO_ENTRY = "no such entry"
    NO_LEDGER = "no such ledger"
    LOST_DATA = "unknown: the node lost data"
    DAMAGED = "damaged"
    FAILED = "an error"
    SILENT = "no answer"
    REFUSED = "refused"

    @property
    def is_negative(self) -> bool:
        """Whether the answer says that the member does not have the entry and never confirmed
        it."""
        return self in (Answer.NO_ENTRY, Answer.NO_LEDGER)

    @property
    def is_known(self) -> bool:
        """Whether the member answered as a node that has all that it ever confirmed."""
        return self is Answer.FOUND or self.is_negative


def write_set(entry: int, striping: Striping) -> tuple[int, ...]:
    """The members that an entry is sent to, in the order of the ring.

    The remainder is taken first: ids reach 2^63 - 1, and a sum or a cast in 32 bits would give
    another write set to an entry above 2^31.
    """
    assert 0 <= entry <= ENTRY_MAX, "an entry is numbered in 63 bits"
    return _window(entry % striping.ensemble, striping)


def bits_of(members: Iterable[int]) -> int:
    """A set of members as a number: bit 0 stands for the first."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def write_sets(striping: Striping) -> tuple[int, ...]:
    """Every write set as `bits_of` its members, by the remainder of an entry's id by E."""
    return tuple(bits_of(_window(first, striping)) for first in range(striping.ensemble))


def is_written_to(member: int, entry: int, striping: Striping) -> bool:
    """Whether a member is in the write set of an entry."""
    return (member - entry) % striping.ensemble < striping.write


def negatives_needed(striping: Striping) -> int:
    """The number of members of a window without which fewer than Qa are left."""
    return striping.write - striping.ack + 1


def is_acknowledged(stored: Set[int], entry: int, striping: Striping) -> bool:
    """Whether enough members of the entry's write set have it."""
    return len(stored & _members(entry % striping.ensemble, striping)) >= striping.ack


def proves_absence(negative: Set[int], entry: int, striping: Striping) -> bool:
    """Whether an entry cannot have been acknowledged, because these members do not have it."""
    return len(negative & {*write_set(entry, striping)}) >= negatives_needed(striping)


def covers(answered: Set[int], striping: Striping) -> bool:
    """Whether these members leave fewer than Qa others in every window."""
    needed = negatives_needed(striping)
    windows = (_window(first, striping) for first in range(striping.ensemble))
    return all(len(answered & {*window}) >= needed for window in windows)


@lru_cache(4096)
def _members(first: int, striping: Striping) -> frozenset[int]:
    return frozenset(_window(first, striping))


@lru_cache(4096)
def _window(first: int, striping: Striping) -> tuple[int, ...]:
    return tuple((first + k) % striping.ensemble for k in range(striping.write))
