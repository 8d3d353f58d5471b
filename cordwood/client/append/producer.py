"""Producers: writers with an identity; the log stores their retries once.

A producer's blocks carry its id, its epoch and the sequence of their first record. The client sends
a block that may be stored again until it gets an answer, and the log answers a repeat with the LSN
that the block already has. So an append through a producer ends as unknown only if no answer comes
before its deadline.

Errors of its own: `UnknownProducer` (the log does not remember it, and this is not its first
block), `ProducerFenced` (a higher epoch of it has begun), `OutOfSequence` (records before these
are missing, or these were stored too long ago to say where: its `kind` and `expected` say which).

A *place* is an id, an epoch, a sequence and a number of records. The log does not compare the
content. If other records are sent with a place that the log remembers, the log takes them for a
repeat: it acknowledges them with the old records' LSNs and does not store them. So a producer that
does not know where it stopped begins a higher epoch.

Trap: a higher epoch begins at sequence 0. If it sends the records of an append of unknown outcome
again, they may be stored twice. `Producer.again` sends the same records at the same place.

An append with `expected_tail` is stored only if the log's last record stands there, which an
append or `tail` has answered; else it ends with `TailMoved`.

Source: docs/design.md §3 ("Producers").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from cordwood.block import Buffer
from cordwood.client.append.record_check import Headers
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    UnknownLog,
)
from cordwood.host.forked_child import process_number
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import EVENT_LOG
from cordwood.protocol.producers import QUERY_PRODUCERS

PRODUCER_MAX = QUERY_PRODUCERS - 1
EPOCH_MAX = (1 << 32) - 1
LOG_MAX = int(EVENT_LOG)
SEQUENCE_MAX = 1 << 62
"""The highest sequence at which a producer may begin. No program counts that far, and columns of 64
bits hold it. `cordwood append --resume` sends this sequence to find its place: the log answers with
the sequence that it expects."""


DOUBTS_MAX = 1_024
"""Calls of unknown outcome that a producer remembers for a log; with more it begins anew."""

KEPT_BYTES = 16 << 10
"""The last call's records are kept up to this size. Larger records are kept as a digest, at a
nanosecond for a byte."""


def check_number(what: str, number: object, least: int, most: int) -> None:
    """Refuse a number that does not fit into a frame. Without this check, packing the frame would
    fail and end the client.

    Raises:
        BadSetting: it is no integer, or out of its range.
    """
    if not isinstance(number, int) or not least <= number <= most:
        raise BadSetting(f"{what} {number!r}: it is an integer from {least} to {most}")


class Doubt(NamedTuple):
    """Records `[first, end)` of a call without an answer: they may be stored, now or later.

    Attributes:
        whole: the first sequence and the digest of the call of which these are the last records,
            or all.
    """

    first: int
    end: int
    digest: bytes
    whole: tuple[int, bytes]


@dataclass(slots=True, eq=False)
class ProducerPlace:
    """Where a producer stands in one log.

    Attributes:
        sequence: of the next record.
        calls: appends that have not ended.
        answered: the sequence after the last append that ended well.
        last: that append.
        has_failed: an append ended with an error.
        is_crossed: an append began while another append was under way, or after another append
            had ended with an error. Callers do not know which of them has which sequence.
        claims: calls of `Producer.again` that want to continue from here. The first of them does
            so, and this place then takes no more appends.
    """

    sequence: int = 0
    calls: int = 0
    answered: int = 0
    last: ProducerCall | None = None
    has_failed: bool = False
    is_crossed: bool = False
    claims: list[object] = field(default_factory=list)

    def may_be(self, sequence: int) -> bool:
        """Whether the last successful append began at this sequence."""
        is_last = self.last is not None and self.last.first == sequence
        return is_last and not (self.has_failed or self.is_crossed)


@dataclass(slots=True, eq=False)
class Lineage:
    """The parts that a producer shares with all that `again` makes of it.

    Attributes:
        places: by log number, for producers that were not begun again there. An append under way
            takes its sequence later, and no other append may take it.
        live: by log number, the newest place that `again` made.
        doubts: by log number.
        led: by name, the numbers of the logs to which appends by this name went.
        has_strayed: an append ended before its log was known. It may have meant any place.
    """

    places: dict[int, ProducerPlace]
    live: dict[int, ProducerPlace] = field(default_factory=dict)
    doubts: dict[int, set[Doubt]] = field(default_factory=dict)
    led: dict[str, set[int]] = field(default_factory=dict)
    has_strayed: bool = False


class ProducerCall:
    """An append that has not ended, and its place.

    Attributes:
        place: where it counts.
        first: the sequence of its first record; 0 until it has one.
    """

    __slots__ = ("_digest", "_doubts", "_end", "_headers", "_keys", "_times", "_values",
                 "_whole", "first", "place")  # fmt: skip

    def __init__(self, place: ProducerPlace, doubts: set[Doubt]) -> None:
        self.place = place
        self._doubts = doubts
        self.first = self._end = 0
        self._values: Sequence[Buffer] = ()
        self._keys: Sequence[bytes | None] | None = None
        self._headers: Sequence[Headers] | None = None
        self._times: Sequence[int] | int | None = None
        self._digest = b""
        self._whole: tuple[int, bytes] | None = None

    def takes(
        self,
        first: int,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers] | None = None,
        times_us: Sequence[int] | int | None = None,
    ) -> None:
        """Its records get the sequences from `first` on.

        Args:
            times_us: those that the caller gave. The client's own differ from try to try.
        Raises:
            OutOfSequence: other records may be stored there. The log would take these for a
                repeat.
        """
        self.first, self._end = first, first + len(values)
        self._values, self._keys = values, keys
        self._headers, self._times = headers, times_us
        near = [each for each in self._doubts if each.first < self._end and first < each.end]
        # The same records in the same call may be sent again, and so may its rest, see `stored_to`.
        # Other records would be acknowledged with the LSN of the earlier records, and not stored.
        if near and not self._is_again(near):
            self._values = ()
            raise OutOfSequence(
                f"other records than these may be stored from sequence {near[0].first} on: send "
                "the same records in the same calls, or read the log and begin a higher epoch",
                Misplaced.BEHIND,
            )

    def _is_again(self, near: Sequence[Doubt]) -> bool:
        """Whether these doubts are about its records alone, as one call that was sent before, or as
        the rest of that call."""
        mine = self.doubt()
        self._whole = next((each.whole for each in near if each[:3] == mine[:3]), None)
        return all(each.whole == self._whole for each in near)

    def ended_well(self) -> None:
        """Its records are stored."""
        place = self.place
        # Calls may end in another order than they began.
        if self._end > place.answered:
            if self._headers is not None or sum(map(len, self._values)) > KEPT_BYTES:
                self.doubt()
                self._values, self._keys, self._headers, self._times = (), None, None, None
            place.answered, place.last = self._end, self
        if len(self._doubts) < DOUBTS_MAX:  # beyond, some were not noted
            self._doubts -= {each for each in self._doubts if each.first < place.answered}

    def stored_to(self, end: int) -> None:
        """It was sent again, and the log has its records below sequence `end`, with the rest in
        doubt: the rest alone may be sent at its place. All of it would end in the same way."""
        whole = self.doubt()
        is_again = any(each[:3] == whole[:3] for each in self._doubts)
        if is_again and self.first < end < self._end and len(self._doubts) < DOUBTS_MAX:
            after = end - self.first
            rest, times = ProducerCall(self.place, self._doubts), self._times
            rest.first, rest._end, rest._values = end, self._end, self._values[after:]
            rest._keys = None if self._keys is None else self._keys[after:]
            rest._headers = None if self._headers is None else self._headers[after:]
            rest._times = times if times is None or isinstance(times, int) else times[after:]
            rest._whole = whole.whole
            self._doubts.add(rest.doubt())

    def failed(self, error: BaseException) -> None:
        """It ended with an error."""
        self.place.has_failed = True
        is_told = isinstance(error, CordwoodError) and not isinstance(error, OutcomeUnknown)
        if self._values and not is_told and len(self._doubts) < DOUBTS_MAX:
            self._doubts.add(self.doubt())

    def doubt(self) -> Doubt:
        """A `Doubt` about its records. Its digest does not depend on the form of the columns."""
        if not self._digest:
            digest = blake2b(digest_size=16)
            has_keys = any(key is not None for key in self._keys or ())
            for column in (self._values, self._keys if has_keys else None):
                for each in column or ():
                    digest.update(_packed(each))
            for number, headers in enumerate(self._headers or ()):
                for name, value in headers:
                    digest.update(b"h%d:" % number + _packed(name.encode()) + _packed(value))
            if self._times is not None:
                times = self._times
                one_each = [times] * len(self._values) if isinstance(times, int) else list(times)
                digest.update(b"t%b" % repr(one_each).encode())
            self._digest = digest.digest()
        return Doubt(self.first, self._end, self._digest, self._whole or (self.first, self._digest))


def _packed(each: Buffer | None) -> bytes:
    return b"-" if each is None else b"%d:%b" % (len(each), bytes(each))


class Producer:
    """An identity to append with, for one client at a time.

    Two clients with one identity shut each other out or mix their sequences. A producer belongs to
    the process that made it: a forked child, and a program with a copy, pickled or not, must make
    their own. After a restart, take the same id and a higher epoch, or give the sequence at which
    the old producer stopped. After an append that ended with an error, `again` sends the same
    records at the same place; a higher epoch could store a second copy of them.

    Args:
        producer: 1 to 2**62 - 1; the same over the lives of an application. Ids above are
            those of queries that publish.
        epoch: 0 and up; a higher epoch begins anew at sequence 0 and shuts lower epochs out.
        sequences: by log number, the sequence that comes next, to go on where an earlier
            life stopped; counted in records. Too low a sequence loses records: new records under a
            used sequence are acknowledged as the old records, and not stored.
    """

    _ids = (1, PRODUCER_MAX)

    late_at: float | None = None
    """When its first block begins to be late, on the loop's clock; None: some time after it was
    first sent. See `protocol.producers`."""

    def __init__(
        self, producer: int, epoch: int = 0, sequences: Mapping[int, int] | None = None
    ) -> None:
        check_number("producer", producer, *self._ids)
        check_number("producer epoch", epoch, 0, EPOCH_MAX)
        for log, at in (sequences or {}).items():
            check_number("log number", log, 1, LOG_MAX)
            check_number("sequence", at, 0, SEQUENCE_MAX)
        self.producer = producer
        self.epoch = epoch
        self._process = process_number()
        self._is_copy = False
        self._lineage = Lineage({log: ProducerPlace(at) for log, at in (sequences or {}).items()})
        # By log number, where `again` made this producer.
        self._own: dict[int, ProducerPlace] = {}

    def again(self, log: int, sequence: int) -> Producer:
        """This producer, to resend records whose append ended with an error.

        Send the same records in the same calls, one call after another, and nothing else before.
        Append by the log's number: its name may lead to another log by then.
        In this log, this producer appends nothing more, nor does any that was made of it before.

        Args:
            log: the log's number.
            sequence: of the first of these records: what `next_sequence` said before that append.
        Returns:
            A producer that continues there in this log, and at this producer's place in every other
            log.
        Raises:
            BadSetting: a number is out of its range. Or an append to the log has not ended. Or an
                append at that place ended well, and it may not be the append to be sent again: the
                log would take other records there for a repeat. Or this is another process; see
                `call`.
        """
        self._check_process()
        check_number("log number", log, 1, LOG_MAX)
        check_number("sequence", sequence, 0, SEQUENCE_MAX)
        own = self.place(log)
        place = self._lineage.live.get(log, own)
        doubts = self._lineage.doubts.setdefault(log, set())
        claim = object()
        # Race: another thread, or a signal's handler, may call this now, or begin an append, which
        # counts itself before it looks for claims. Appending to a list is one step.
        place.claims.append(claim)
        why = ""
        if place.claims[0] is not claim:
            why = "it is begun again elsewhere"
        elif place.calls:
            why = f"{place.calls} other appends of it have not ended"
        elif sequence < place.answered and (
            # A signal may have taken the answer of an append that ended well, if no other append
            # can have had this place in mind.
            place is not own or self._lineage.has_strayed or not place.may_be(sequence)
        ):
            why = f"an append that got this place ended well, up to {place.answered}"
        elif len(doubts) >= DOUBTS_MAX:
            why = f"{len(doubts)} appends of it may be stored. Begin a higher epoch"
        if why:
            place.claims.remove(claim)
            raise BadSetting(
                f"{self} cannot go on at sequence {sequence} of log {log}: {why}. Make one call "
                "after another"
            )
        successor = ProducerPlace(
            sequence, answered=min(sequence, place.answered), is_crossed=place.is_crossed
        )
        if sequence < place.answered and place.last is not None:
            doubts.add(place.last.doubt())
        self._lineage.live[log] = successor
        other = type(self)(self.producer, self.epoch)
        other._lineage = self._lineage
        other._own = {**self._own, log: successor}
        return other

    @contextmanager
    def seek(self) -> Iterator[None]:
        """An append looks for its log."""
        try:
            yield
        except BaseException:
            self._lineage.has_strayed = True
            raise

    def check_led(self, name: str, log: int) -> None:
        """An append by name found its log. If `again` was called for another log, to which the name
        led before, and nothing was sent there since, or not all of what may be stored there, these
        are the records to be sent again: here they could be stored a second time.

        Raises:
            BadSetting: that is so.
        """
        led = self._lineage.led.setdefault(normalise_name(name), set())
        for before in sorted(led - {log}):
            if (place := self._own.get(before)) is not None and self._owes(before, place):
                raise BadSetting(
                    f"{name} leads to log {log} now, and {self} was begun again for log {before}, "
                    f"to which {name} led before. This call stored nothing; an earlier one may "
                    f"have stored its records in log {before}. Send them again by the number of "
                    "that log"
                )
        led.add(log)

    def _owes(self, log: int, place: ProducerPlace) -> bool:
        """Whether records are to be sent again at a place that `again` made."""
        doubts = self._lineage.doubts.get(log, set())
        return place.last is None or any(each.first >= place.answered for each in doubts)

    def note_gone(self, log: int) -> None:
        """There is no log of this number: no record can be sent there again."""
        for led in self._lineage.led.values():
            led.discard(log)

    @contextmanager
    def call(self, log: int) -> Iterator[ProducerCall]:
        """Bracket an append for the length of the `with` statement. The caller tells which
        sequences the append takes, and whether it succeeded.

        Raises:
            OutOfSequence: `again` made another producer for this log.
            BadSetting: this is another process than the producer's, as a forked child is.
        """
        self._check_process()
        place = self.place(log)
        place.calls += 1
        # Before the claims are looked at: `again` counts the calls after it has put its claim.
        place.is_crossed |= place.calls > 1 or place.has_failed
        call = ProducerCall(place, self._lineage.doubts.setdefault(log, set()))
        try:
            if place.claims:
                raise OutOfSequence(
                    f"{self} is over in log {log}: append with the producer that Producer.again "
                    "gave",
                    Misplaced.BEHIND,
                )
            yield call
        except BaseException as error:
            call.failed(error)
            if isinstance(error, UnknownLog):
                self.note_gone(log)
            raise
        finally:
            place.calls -= 1

    def __getstate__(self) -> dict[str, Any]:
        return self._copied()

    def _copied(self) -> dict[str, Any]:
        """The attributes of a copy, pickled or not, which appends nothing.

        The number of its process would not tell: processes of two containers have the same, and a
        copy may come back to the process that made it.
        """
        return {**self.__dict__, "_is_copy": True}

    def _check_process(self) -> None:
        """Raise BadSetting in another process, and for a copy. Both would append at the same
        sequences, and the log would take the records of the second for repeats of the first."""
        if self._is_copy or self._process != process_number():
            of = "a copy of one that" if self._is_copy else f"of process {self._process}, which"
            raise BadSetting(
                f"{self} is {of} may append under it as well: make one of another id here, or of a "
                "higher epoch if the other is done with it"
            )

    def place(self, log: int) -> ProducerPlace:
        """Where it stands in a log; producers of one lineage share it until `again`."""
        return self._own.get(log) or self._lineage.places.setdefault(log, ProducerPlace())

    def __repr__(self) -> str:
        return f"Producer({self.producer}, {self.epoch})"

    def next_sequence(self, log: int) -> int:
        """The sequence that the next record appended to a log gets."""
        return self.place(log).sequence

    def take(self, log: int, count: int) -> int:
        """Give sequences to `count` records; the first of them."""
        place = self.place(log)
        first = place.sequence
        place.sequence = first + count
        return first


class QueryProducer(Producer):
    """A query that publishes batches. Its id is drawn at random, and each commit is an epoch.

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
