"""Producers: writers with an identity, whose retries are stored once.

A producer's blocks carry its id, its epoch and the sequence of their first record. What may
have been stored is sent again until it is answered, and a repeat is answered with the place
that it has already. So an append through a producer ends as unknown only if nobody answers
before its deadline.

Errors of its own: `UnknownProducer` (the log does not remember it, and this is not its first
block), `ProducerFenced` (a higher epoch of it has begun), `OutOfSequence` (records before these
are missing, or these were stored too long ago to say where: its `kind` and `expected` say which).

A place is an id, an epoch, a sequence and a number of records; content is not compared. Other
records sent under a place that the log remembers are taken for a repeat: they are acknowledged
with the old records' LSNs and not stored. So a producer that does not know for sure where it
stopped begins a higher epoch.

Trap: a higher epoch is a new line, and stores again what an append of unknown outcome may have
stored, or may store yet. `Producer.again` sends the same records at the same place.

An append with `expected_tail` is stored only if the log's last record stands there, which an
append or `tail` has answered; else it ends with `TailMoved`.

Source: docs/design.md §3 ("Producers").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from cordwood.block import Buffer
from cordwood.client.append.producer_place import ProducerCall, ProducerPlace
from cordwood.errors import BadSetting
from cordwood.protocol.producers import QUERY_PRODUCERS

PRODUCER_MAX = QUERY_PRODUCERS - 1
EPOCH_MAX = (1 << 32) - 1


class Producer:
    """An identity to append with, for one client at a time.

    Two clients with one identity shut each other out or mix their sequences. After a restart,
    take the same id and a higher epoch, or say where the old one stopped. After an append that
    ended with an error, `again` sends the same records at the same place; a higher epoch would
    store a second copy of what may be stored.

    Args:
        producer: 1 to 2**62 - 1; the same over the lives of an application. Ids above are
            those of queries that publish.
        epoch: 0 and up; a higher one begins anew at sequence 0 and shuts lower ones out.
        sequences: by log number, the sequence that comes next, to go on where an earlier
            life stopped; counted in records. Too low a one loses records: other records under a
            sequence that was used are acknowledged as the old ones, and not stored.
    """

    _ids = (1, PRODUCER_MAX)

    late_at: float | None = None
    """When its first block begins to be late, on the loop's clock; None: some time after it was
    first sent. See `protocol.producers`."""

    def __init__(
        self, producer: int, epoch: int = 0, sequences: Mapping[int, int] | None = None
    ) -> None:
        if not self._ids[0] <= producer <= self._ids[1]:
            raise BadSetting(f"producer {producer}: ids go from {self._ids[0]} to {self._ids[1]}")
        if not 0 <= epoch <= EPOCH_MAX:
            raise BadSetting(f"producer epoch {epoch}: it goes from 0 to {EPOCH_MAX}")
        self.producer = producer
        self.epoch = epoch
        # By log number. The producers that `again` makes have the same places in other logs: an
        # append that is on its way there takes its sequence later, and no other one may take it.
        self._shared = {log: ProducerPlace(at) for log, at in (sequences or {}).items()}
        self._own: dict[int, ProducerPlace] = {}

    def again(self, log: int, sequence: int) -> Producer:
        """This producer, to send records again whose append ended with an error.

        Send the same records in the same calls, one call after another, and nothing else before:
        other records at a place that may be stored are refused. In this log, this producer appends
        nothing more.

        Args:
            log: the log's number.
            sequence: of the first of these records: what `next_sequence` said before that append.
        Returns:
            A producer that goes on there in this log, and in the others where this one is.
        Raises:
            BadSetting: an append of this producer to the log has not ended; or one that got that
                place or a later one ended well, and it is not the last one, or several were under
                way at once. Other records sent there would be taken for a repeat.
        """
        place = self._place(log).again(sequence, f"{self} of log {log}")
        other = type(self)(self.producer, self.epoch)
        other._shared = self._shared
        other._own = {**self._own, log: place}
        return other

    def call(
        self, log: int, values: Sequence[Buffer], keys: Sequence[bytes | None] | None
    ) -> AbstractContextManager[ProducerCall]:
        """An append of these records begins, and ends as the block does.

        Raises:
            OutOfSequence: `again` made another producer for this log.
        """
        return self._place(log).call(f"{self} of log {log}", values, keys)

    def _place(self, log: int) -> ProducerPlace:
        return self._own.get(log) or self._shared.setdefault(log, ProducerPlace())

    def __repr__(self) -> str:
        return f"Producer({self.producer}, {self.epoch})"

    def next_sequence(self, log: int) -> int:
        """The sequence that the next record appended to a log gets."""
        return self._place(log).sequence

    def take(self, log: int, count: int) -> int:
        """Give sequences to `count` records; the first of them."""
        place = self._place(log)
        first = place.sequence
        place.sequence = first + count
        return first


class QueryProducer(Producer):
    """A query that publishes batches: its id is drawn for it, each commit is an epoch.

    Args:
        late_at: see `Producer`; what others may have appended before is late from the begin.
    """

    _ids = (QUERY_PRODUCERS, (1 << 63) - 1)

    def __init__(
        self,
        producer: int,
        epoch: int = 0,
        sequences: Mapping[int, int] | None = None,
        late_at: float | None = None,
    ) -> None:
        super().__init__(producer, epoch, sequences)
        self.late_at = late_at
