"""Where a producer stands in one log, and which of its calls may be stored there.

A log knows a place by its numbers, and takes other records at the same place for a repeat. So a
client remembers each call that got a place and ended with an error, and the last one that ended
well. What is sent there again must be the same records.

Source: docs/design.md §3 ("Producers").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cordwood.block import Buffer
from cordwood.errors import BadSetting, CordwoodError, Misplaced, OutOfSequence

DOUBTS_MAX = 1024
"""Calls of unknown outcome that a producer remembers for a log; with more it begins anew."""

KEPT_BYTES = 16 << 10
"""Records of the last call are kept up to so many bytes. Of larger ones a digest is kept, which
costs a nanosecond for a byte."""


@dataclass(slots=True)
class ProducerPlace:
    """See the module.

    Attributes:
        sequence: of the next record.
        calls: appends that have not ended.
        answered: the sequence behind the last append that ended well.
        is_crossed: two appends were under way at once.
        is_over: `Producer.again` made another producer for this log.
        doubts: by the sequence of its first record, a call that may be stored.
        last: the sequence of the last append that ended well, and its records.
    """

    sequence: int = 0
    calls: int = 0
    answered: int = 0
    is_crossed: bool = False
    is_over: bool = False
    doubts: dict[int, Records] = field(default_factory=dict)
    last: tuple[int, Records] | None = None

    def again(self, sequence: int, who: str) -> ProducerPlace:
        """The place of a producer that begins again at `sequence`; this one is over.

        Raises:
            BadSetting: other records may have a place from there on.
        """
        was_over, self.is_over = self.is_over, True
        # Race: another thread may begin a call now. It counts itself before it looks at `is_over`.
        why = self.refusal(sequence)
        if why:
            self.is_over = was_over
            raise BadSetting(f"{who} cannot go on at sequence {sequence}: {why}")
        doubts = dict(self.doubts)
        if sequence < self.answered and self.last is not None:
            # A signal may have taken the answer of an append alone that ended well.
            doubts[sequence] = self.last[1]
        return ProducerPlace(sequence, doubts=doubts)

    def refusal(self, sequence: int) -> str:
        """Why `again` is refused, "" if it is not."""
        if self.calls:
            return f"{self.calls} other appends of it have not ended. Make one call after another"
        if len(self.doubts) >= DOUBTS_MAX:
            return f"{len(self.doubts)} appends of it may be stored. Begin a higher epoch"
        is_last = self.last is not None and self.last[0] == sequence and not self.is_crossed
        if sequence < self.answered and not is_last:
            return (
                f"an append that got this place ended well, up to {self.answered}. Make one call "
                "after another"
            )
        return ""

    @contextmanager
    def call(
        self, who: str, values: Sequence[Buffer], keys: Sequence[bytes | None] | None
    ) -> Iterator[ProducerCall]:
        """An append of these records begins, and ends as the block does.

        Raises:
            OutOfSequence: `Producer.again` made another producer for this log.
        """
        self.calls += 1
        self.is_crossed |= self.calls > 1
        call = ProducerCall(self, who, Records(values, keys))
        try:
            if self.is_over:
                raise OutOfSequence(
                    f"{who} is over in this log: append with the producer that Producer.again gave",
                    Misplaced.BEHIND,
                )
            yield call
        except BaseException as error:
            if not isinstance(error, CordwoodError) or error.is_outcome_unknown:
                call.on_unknown()
            raise
        finally:
            self.calls -= 1


class ProducerCall:
    """One append of a producer."""

    def __init__(self, place: ProducerPlace, who: str, records: Records) -> None:
        self._place = place
        self._who = who
        self._records = records
        self._wanted = 0
        self._first: int | None = None

    def begin(self, first: int) -> None:
        """The records are about to get sequences from `first` on.

        Raises:
            BadSetting: other records of the producer got these, and may be stored.
        """
        stop = first + self._records.count
        for at, others in self._place.doubts.items():
            if at >= stop or at + others.count <= first:
                continue
            if at != first or not self._records.is_same(others):
                raise BadSetting(
                    f"{self._who}: {others.count} other records got sequence {at} and may be "
                    "stored. Send these again first, in the same calls, or begin a higher epoch"
                )
        self._wanted = first

    def on_added(self) -> None:
        """The first of the records got its sequence."""
        self._first = self._wanted

    def on_answered(self, end: int) -> None:
        """The records are stored, up to the sequence `end`."""
        place = self._place
        assert self._first is not None, "what is answered was added"
        place.doubts.pop(self._first, None)
        if end > place.answered:
            place.answered = end
            place.last = (self._first, self._records.kept())

    def on_unknown(self) -> None:
        """Nobody knows what became of the records, if they got sequences."""
        if self._first is not None and len(self._place.doubts) < DOUBTS_MAX:
            self._place.doubts[self._first] = self._records.kept()


class Records:
    """The records of one call, or a digest of them: to see whether two calls have the same.

    Attributes:
        count: how many they are.
    """

    __slots__ = ("_digest", "_keys", "_values", "count")

    def __init__(self, values: Sequence[Buffer], keys: Sequence[bytes | None] | None) -> None:
        self.count = len(values)
        self._values = values
        self._keys = keys
        self._digest = b""

    def kept(self) -> Records:
        """The same, of at most KEPT_BYTES."""
        if not self._digest and sum(map(len, self._values)) > KEPT_BYTES:
            self._digest, self._values, self._keys = self._summed(), (), None
        return self

    def is_same(self, other: Records) -> bool:
        """Whether both have the same values and keys."""
        return self.count == other.count and self._summed() == other._summed()

    def _summed(self) -> bytes:
        if self._digest:
            return self._digest
        found = hashlib.blake2b(digest_size=16)
        for at, value in enumerate(self._values):
            key = self._keys[at] if self._keys is not None else None
            for part in (value, key):
                found.update(b"-" if part is None else b"%d:" % len(part))
                found.update(part or b"")
        return found.digest()
