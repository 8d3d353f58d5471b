"""Producers: the answer to a retried block is the LSN that the block already has.

A producer is a writer with an id and an epoch. It counts its records, and each block carries the
sequence of its first record. For every producer, a log remembers the epoch, the next sequence, and
the LSNs of the last few blocks. So a sequencer can tell a new block from a block that it, or an
earlier sequencer, has numbered. Blocks of one group count as one block.

A block with the next sequence is stored. A block that is one of the last few is a repeat. For any
other block, the outcome is forgotten or an earlier block is missing. An unknown producer must begin
with its first block. A higher epoch of a producer begins again at 0 and fences the lower epoch.

Idle time alone says nothing of a query: a commit that waits for another log may rest for long. So
the sequencer has a query replaced only after its commit is done (`sequencer.settled_queries`).

A *late* block may have been sent before, longer ago than `sure_s`. If the log has forgotten some
producer, an unknown producer's late first block may be a repeat, and is not taken.

A log remembers a limited number of users' producers and of queries; the two kinds are counted
apart. A new producer replaces the one that wrote longest ago, or is refused.

Repeats are found reliably because acknowledgements are in LSN order, and because recovery keeps no
block of a producer above an epoch's first hole: if a block is lost, the blocks after it are lost.

Source: docs/design.md §3 ("Producers"); Kafka's idempotent producer (five batches remembered).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from cordwood.block import Produced, ProducedBlock

PLACES_MAX = 5
"""Blocks remembered for each producer; so it may have this many blocks in flight."""


class Budget(NamedTuple):
    """The number of producers of a kind that a log remembers, and the shortest time for it.

    Attributes:
        most: producers. One more producer is refused, or replaces the one that is idle longest.
        idle_us: a producer that is idle for this long may be replaced; by append time.
    """

    most: int
    idle_us: int


USERS = Budget(1_000, 3_600_000_000)
"""Users' producers: remembered for an hour, longer than clients retry and than a failed task waits
for its next try. Every recovery sends their state, up to 160 bytes each."""

QUERIES = Budget(2_000, 7_200_000_000)
"""Queries: remembered for two hours, because a batch may be in the log long before its publication
is marked as done. A commit is an epoch of one block: 44 bytes each."""

QUERY_PRODUCERS = 1 << 62
"""Ids from here on belong to queries that publish (`protocol.publishing`); users' are below."""


class ProducerVerdict(enum.Enum):
    """The verdict on a producer's block."""

    NEXT = "next"
    REPEAT = "repeat"
    FENCED = "fenced"
    """A higher epoch of the producer has begun."""
    UNKNOWN = "unknown"
    """The producer is not remembered, and this is not its first block, or it may be a repeat."""
    GAP = "gap"
    """An earlier block is missing."""
    FORGOTTEN = "forgotten"
    """The block may be stored, but too long ago for the log to know its LSN."""
    FULL = "full"
    """It is the first block of a new producer, and all producers that the log remembers wrote
    lately."""


def is_query(producer: int) -> bool:
    """Whether a producer is a query that publishes."""
    return producer >= QUERY_PRODUCERS


def sure_s(producer: int) -> float:
    """The time after its first sending in which a producer's first block is not late.

    A log remembers a producer for twice this time, so it recognises a repeat that is not late.
    """
    return budget_of(producer).idle_us / 2_000_000


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

    def __contains__(self, producer: int) -> bool:
        return producer in self._kind(producer)

    def all(self) -> tuple[Produced, ...]:
        """Every producer, by id."""
        users, queries = self._kinds
        return tuple(kind[producer] for kind in (users, queries) for producer in sorted(kind))

    def idle_us(self, producer: int, now_us: int) -> int:
        """The idle time of the producer that a new producer of this kind would replace."""
        kind = self._kind(producer)
        return now_us - next(iter(kind.values())).last_us if kind else now_us

    def replaced_by(self, producer: int) -> Produced | None:
        """The producer that is forgotten if a block of `producer` is noted; None if none is."""
        kind = self._kind(producer)
        if producer in kind or len(kind) < budget_of(producer).most:
            return None
        return next(iter(kind.values()))

    def _is_full(self, producer: int, now_us: int) -> bool:
        most, enough_us = budget_of(producer)
        # Trap: a retry of a forgotten producer would be stored twice. So a producer is replaced
        # only after it was idle for longer than a retry may be on its way.
        return len(self._kind(producer)) >= most and self.idle_us(producer, now_us) < enough_us

    def expected(self, producer: int, epoch: int) -> int:
        """The next sequence of a producer's epoch; 0 if the epoch is not known."""
        known = self._kind(producer).get(producer)
        return known.next_sequence if known is not None and known.epoch == epoch else 0

    def last_below(self, producer: int, epoch: int, end: int) -> int:
        """The LSN up to which a log has to be stored, so that all of a producer's blocks that begin
        below sequence `end` are stored; 0 if none is known.

        Forgotten blocks are below the first remembered block.
        """
        known = self._kind(producer).get(producer)
        if known is None or known.epoch != epoch:
            return 0
        below = [each for each in known.places if each.sequence < end]
        return below[-1].first + below[-1].count - 1 if below else known.places[0].first - 1

    def look(
        self,
        producer: int,
        epoch: int,
        sequence: int,
        count: int,
        now_us: int = 0,
        *,
        is_late: bool = False,
    ) -> tuple[ProducerVerdict, int]:
        """The verdict on a block; for a repeat also the LSN of its first record, else 0.

        Args:
            now_us: the append time that the block would get; idle times are measured by it.
            is_late: see the module.
        """
        known = self._kind(producer).get(producer)
        if known is None:
            # Trap: the first blocks may be in the log and forgotten, and this one may be a repeat.
            if sequence:
                return ProducerVerdict.UNKNOWN, 0
            if self._is_full(producer, now_us):
                return ProducerVerdict.FULL, 0
            # A memory that was never full has forgotten no producer, and a memory that was full
            # stays full.
            has_forgotten = len(self._kind(producer)) >= budget_of(producer).most
            return ProducerVerdict.UNKNOWN if is_late and has_forgotten else ProducerVerdict.NEXT, 0
        # Before the sequence: an older life may repeat no block either, because it is fenced.
        if epoch < known.epoch:
            return ProducerVerdict.FENCED, 0
        if epoch > known.epoch:
            return (ProducerVerdict.GAP if sequence else ProducerVerdict.NEXT), 0
        if sequence == known.next_sequence:
            return ProducerVerdict.NEXT, 0
        if sequence > known.next_sequence:
            return ProducerVerdict.GAP, 0
        for place in known.places:
            # The count is compared too: a block that was cut otherwise is no repeat, and its LSNs
            # would be wrong.
            if (place.sequence, place.count) == (sequence, count):
                return ProducerVerdict.REPEAT, place.first
        return ProducerVerdict.FORGOTTEN, 0

    def note(self, producer: int, epoch: int, place: ProducedBlock) -> None:
        """Note a block's place. A block that is noted already, or an older one, has no effect."""
        kind = self._kind(producer)
        known = kind.get(producer)
        if known is not None and epoch < known.epoch:
            return
        places = known.places if known is not None and known.epoch == epoch else ()
        # Recoveries and donors tell blocks again, and in any order.
        if places and place.first <= places[-1].first:
            return
        kind.pop(producer, None)  # move it to the end: the first in the order is forgotten first
        kind[producer] = Produced(producer, epoch, (*places, place)[-PLACES_MAX:])
        if len(kind) > budget_of(producer).most:
            del kind[next(iter(kind))]
