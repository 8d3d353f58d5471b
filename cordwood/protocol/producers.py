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

A log remembers so many users' producers and so many queries, each kind for itself. The one that
wrote longest ago makes room for a new one, if it was idle long enough for no retry of it to be
on its way any more; otherwise the new one is refused. Taking it would end the memory of a
producer that may still repeat its block, which would then be stored twice.

This holds because acknowledgements are in LSN order and recovery keeps no block of a
producer above an epoch's first hole: what follows a block that was lost is lost too.

Source: docs/design.md §3 ("Producers"); Kafka's idempotent producer (five batches remembered).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from cordwood.block import Place, Produced

PLACES_MAX = 5
"""Blocks remembered for each producer, and so those that it may have in flight."""


class Budget(NamedTuple):
    """How many producers of a kind a log remembers, and for how long at least.

    Attributes:
        most: producers; one more is refused, or has the one idle longest forgotten.
        idle_us: that one wrote so long ago, by append time.
    """

    most: int
    idle_us: int


USERS = Budget(1_000, 3_600_000_000)
"""Of users' producers: for an hour, longer than clients retry, and than a task that failed waits
for its next try. Their state travels with every recovery, up to 160 bytes each."""

QUERIES = Budget(2_000, 7_200_000_000)
"""Of queries: for two hours, because a batch may be in the log for long before the publication
says that it is done. A commit is an epoch of one block: 44 bytes each."""

QUERY_PRODUCERS = 1 << 62
"""Ids from here on are of queries that publish (`protocol.publishing`), users' are below."""


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
    FULL = "full"
    """It is a new producer's first, and all that are remembered wrote not long ago."""


def is_query(producer: int) -> bool:
    """Whether a producer is a query that publishes."""
    return producer >= QUERY_PRODUCERS


def budget_of(producer: int) -> Budget:
    """The budget of a producer's kind."""
    return QUERIES if is_query(producer) else USERS


class ProducerTable:
    """The producers of one log."""

    def __init__(self, known: Iterable[Produced] = ()) -> None:
        # Users and queries, each in the order of their last blocks.
        self._kinds: tuple[dict[int, Produced], dict[int, Produced]] = {}, {}
        for each in sorted(known, key=lambda each: each.last_first):
            self._kind(each.producer)[each.producer] = each

    def _kind(self, producer: int) -> dict[int, Produced]:
        return self._kinds[is_query(producer)]

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def all(self) -> tuple[Produced, ...]:
        """Every producer, by id."""
        users, queries = self._kinds
        return tuple(kind[producer] for kind in (users, queries) for producer in sorted(kind))

    def idle_us(self, producer: int, now_us: int) -> int:
        """How long the producer that makes room for a new one of this kind was idle."""
        kind = self._kind(producer)
        return now_us - next(iter(kind.values())).last_us if kind else now_us

    def _is_full(self, producer: int, now_us: int) -> bool:
        most, enough_us = budget_of(producer)
        return len(self._kind(producer)) >= most and self.idle_us(producer, now_us) < enough_us

    def expected(self, producer: int, epoch: int) -> int:
        """The sequence that comes next of a producer's epoch, 0 where none of it is known."""
        known = self._kind(producer).get(producer)
        return known.next_sequence if known is not None and known.epoch == epoch else 0

    def last_below(self, producer: int, epoch: int, end: int) -> int:
        """Up to which LSN a log has to be stored, for all of a producer's blocks that begin below
        sequence `end` to be; 0 where none is known.

        Blocks that are not remembered any more lie below the first that is.
        """
        known = self._kind(producer).get(producer)
        if known is None or known.epoch != epoch:
            return 0
        below = [each for each in known.places if each.sequence < end]
        return below[-1].first + below[-1].count - 1 if below else known.places[0].first - 1

    def look(
        self, producer: int, epoch: int, sequence: int, count: int, now_us: int = 0
    ) -> tuple[Turn, int]:
        """What a block is, and for a repeat the LSN of its first record, else 0.

        Args:
            now_us: the append time that it would get; by it those that were idle are known.
        """
        known = self._kind(producer).get(producer)
        if known is None:
            if sequence:
                return Turn.UNKNOWN, 0
            return (Turn.FULL if self._is_full(producer, now_us) else Turn.NEXT), 0
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
        kind = self._kind(producer)
        known = kind.get(producer)
        if known is not None and epoch < known.epoch:
            return
        places = known.places if known is not None and known.epoch == epoch else ()
        if places and place.first <= places[-1].first:
            return
        kind.pop(producer, None)  # it goes to the end: the first is the one to forget
        kind[producer] = Produced(producer, epoch, (*places, place)[-PLACES_MAX:])
        if len(kind) > budget_of(producer).most:
            del kind[next(iter(kind))]
