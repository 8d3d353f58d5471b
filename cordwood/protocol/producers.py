"""Producers: a retried block is answered with the place that it has already.

A producer is a writer with an id and an epoch of its own. It counts its records, and each
block says the sequence of its first one. For every producer a log remembers the epoch, the
sequence that comes next, and where the last few blocks stand; so a sequencer can tell a new
block from one that it, or a sequencer before it, numbered already. Blocks of one group count
as one.

A block that is not the next one is a repeat, if it is one of the last few; else its outcome
cannot be told any more, or something before it is missing. Of a producer that nobody
remembers only the very first block is taken. A higher epoch of the producer begins anew at 0
and shuts the lower one out.

This holds because acknowledgements are in LSN order and recovery keeps no block of a
producer above an epoch's first hole: what follows a block that was lost is lost too.

Source: design.md §3 ("Producers"); Kafka's idempotent producer (five batches remembered).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from cordwood.block import Place, Produced

PLACES_MAX = 5
"""Blocks remembered for each producer, and so those that it may have in flight."""

PRODUCERS_MAX = 1_000
"""Producers remembered by a log; the one whose last block is oldest is forgotten first. Their
state travels with every recovery, 100 bytes each."""

QUERY_PRODUCERS = 1 << 62
"""Ids from here on are of queries that publish batches (`protocol.publishing`), users' are below.
They are forgotten last: a batch may be in the log for long before it is known to be."""


class Turn(enum.Enum):
    """What a block is."""

    NEXT = "next"
    REPEAT = "repeat"
    FENCED = "fenced"
    """A higher epoch of the producer has begun."""
    UNKNOWN = "unknown"
    """The producer is not remembered, and this is not its first block."""
    GAP = "gap"
    """Something before it is missing."""
    FORGOTTEN = "forgotten"
    """It was stored, perhaps, too long ago to say where."""


def forgotten_first(each: Produced) -> tuple[bool, int]:
    """Sorts producers in the order in which they are forgotten."""
    return each.producer >= QUERY_PRODUCERS, each.last_first


class ProducerTable:
    """The producers of one log."""

    def __init__(self, known: Iterable[Produced] = ()) -> None:
        self._known = {each.producer: each for each in known}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> tuple[Produced, ...]:
        """Every producer, by id."""
        return tuple(self._known[producer] for producer in sorted(self._known))

    def expected(self, producer: int, epoch: int) -> int:
        """The sequence that comes next of a producer's epoch, 0 where none of it is known."""
        known = self._known.get(producer)
        return known.next_sequence if known is not None and known.epoch == epoch else 0

    def look(self, producer: int, epoch: int, sequence: int, count: int) -> tuple[Turn, int]:
        """What a block is, and for a repeat the LSN of its first record, else 0."""
        known = self._known.get(producer)
        if known is None:
            return (Turn.UNKNOWN if sequence else Turn.NEXT), 0
        if epoch < known.epoch:
            return Turn.FENCED, 0
        if epoch > known.epoch:
            return (Turn.GAP if sequence else Turn.NEXT), 0
        if sequence == known.next_sequence:
            return Turn.NEXT, 0
        if sequence > known.next_sequence:
            return Turn.GAP, 0
        for place in known.places:
            if (place.sequence, place.count) == (sequence, count):
                return Turn.REPEAT, place.first
        return Turn.FORGOTTEN, 0

    def note(self, producer: int, epoch: int, place: Place) -> None:
        """A block has its place. Noting one again, or one before the last, changes nothing."""
        known = self._known.get(producer)
        if known is not None and epoch < known.epoch:
            return
        places = known.places if known is not None and known.epoch == epoch else ()
        if places and place.first <= places[-1].first:
            return
        self._known[producer] = Produced(producer, epoch, (*places, place)[-PLACES_MAX:])
        if len(self._known) > PRODUCERS_MAX:
            del self._known[min(self._known.values(), key=forgotten_first).producer]
