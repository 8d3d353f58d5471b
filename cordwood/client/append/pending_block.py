"""Records that become one block, and the callers that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cordwood.block import Buffer, Codec
from cordwood.client.append.producer import Producer
from cordwood.client.append.record_check import Headers, as_bytes, own_headers
from cordwood.errors import CordwoodError, Misplaced, OutcomeUnknown, OutOfSequence
from cordwood.layout.append_group import GroupPart
from cordwood.layout.body import encode_body, seal_body
from cordwood.layout.key_bits import key_bits
from cordwood.layout.waves import AppendEntry, AppendFlag
from cordwood.lsn import LogId, Lsn
from cordwood.protocol.producers import sure_s


def unknown(why: str, log: int) -> OutcomeUnknown:
    """The outcome of an append in flight that gets no answer."""
    return OutcomeUnknown(
        f"{why} while an append to log {log} was in flight: read the log to see whether it is "
        "stored. What is not there yet may still come; only a producer can send it again"
    )


class PendingBlock:
    """Records that become one block, and the futures that wait for it."""

    __slots__ = (
        "_late_at",
        "bytes",
        "codec",
        "count",
        "deadline",
        "entry",
        "expected_tail",
        "futures",
        "headers",
        "keys",
        "maybe",
        "refused",
        "sent_at",
        "times",
        "values",
    )  # fmt: skip

    def __init__(self, deadline: float) -> None:
        self.values: list[Buffer] = []
        self.keys: list[bytes | None] | None = None
        self.times: list[int] | None = None
        self.headers: list[Headers] | None = None
        # (future, offset, count). A count of 0 means that the future gets one Lsn, and otherwise a
        # range of them.
        self.futures: list[tuple[asyncio.Future[Lsn], int]] = []
        self.count = 0
        self.bytes = 0
        self.deadline = deadline
        self.entry: AppendEntry | None = None
        self.refused: CordwoodError | None = None
        self.sent_at = 0.0
        self.expected_tail: int | None = None
        self.codec: Codec | None = None
        self._late_at: float | None = None
        # Whether it may be stored already: a producer's block that was sent and not answered.
        self.maybe = False

    def put(
        self,
        value: Buffer,
        key: bytes | None,
        time_us: int | None,
        headers: Headers | None,
        size: int,
        now_us: Callable[[], int],
    ) -> None:
        """Take one record of `size` bytes. If it is the first record with a key, a time or headers,
        that column begins here."""
        if key is not None and self.keys is None:
            self.keys = [None] * self.count
        if time_us is not None and self.times is None:
            self.times = [now_us()] * self.count
        if headers is not None and self.headers is None:
            self.headers = [()] * self.count
        if self.keys is not None:
            self.keys.append(None if key is None else as_bytes(key))
        if self.times is not None:
            self.times.append(now_us() if time_us is None else time_us)
        if self.headers is not None:
            self.headers.append(own_headers(headers))
        self.values.append(value if type(value) is bytes else bytes(value))
        self.bytes += size
        self.count += 1

    def put_many(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        times_us: Sequence[int] | int | None,
        headers: Sequence[Headers] | None,
        size: int,
        now_us: Callable[[], int],
    ) -> None:
        """Take records of `size` bytes in all, as columns. Callers no longer change them
        (`record_check.own_values`)."""
        count, more = self.count, len(values)
        if keys is not None or self.keys is not None:
            self.keys = self.keys or [None] * count
            self.keys += [None] * more if keys is None else keys
        if times_us is not None or self.times is not None:
            now = now_us()
            self.times = self.times or [now] * count
            one_us = now if times_us is None else times_us
            self.times += [one_us] * more if isinstance(one_us, int) else one_us
        if headers is not None or self.headers is not None:
            self.headers = self.headers or [()] * count
            self.headers += [()] * more if headers is None else [each or () for each in headers]
        self.values += values
        self.bytes += size
        self.count = count + more

    def seal(
        self, log: LogId, codec: Codec, producer: Producer | None, now_us: Callable[[], int]
    ) -> None:
        """Close the block: make the entry that is sent."""
        times: Sequence[int] | int = now_us() if self.times is None else self.times
        raw = encode_body(self.values, timestamps_us=times, keys=self.keys, headers=self.headers)
        codec = codec if self.codec is None else self.codec
        stored, stored_crc, raw_crc = seal_body(raw, codec)
        who = (producer.producer, producer.epoch) if producer is not None else (0, 0)
        sequence = producer.take(log, self.count) if producer is not None else 0
        self.entry = AppendEntry(
            log, 0, self.count, codec, 0, 0, *who, key_bits(self.keys), sequence,
            len(stored), len(raw), stored_crc, raw_crc, stored, self.expected_tail or 0,
        )  # fmt: skip
        self.values = []
        self.keys = self.times = self.headers = None

    def seal_group(
        self, log: LogId, parts: Sequence[GroupPart], size: int, producer: Producer | None
    ) -> None:
        """Make it an atomic group of these sealed blocks, with records of `size` bytes."""
        self.count, self.bytes = sum(part.records for part in parts), size
        who = (producer.producer, producer.epoch) if producer is not None else (0, 0)
        sequence = producer.take(log, self.count) if producer is not None else 0
        self.entry = AppendEntry(
            log, 0, self.count, 0, AppendFlag.GROUP, 0, *who, 0, sequence,
            sum(part.stored_bytes for part in parts), 0, 0, 0, parts=tuple(parts),
        )  # fmt: skip

    def is_late(self, producer: Producer, now: float) -> bool:
        """Whether the block, if it is sent now, may be a repeat of a producer that its log has
        forgotten.

        See `protocol.producers`.
        """
        if self._late_at is None:
            late_at = producer.late_at
            self._late_at = now + sure_s(producer.producer) if late_at is None else late_at
        return now >= self._late_at

    def resolve(self, first: int) -> None:
        """All records are stored, from `first` on."""
        for future, offset in self.futures:
            if not future.done():
                future.set_result(Lsn(first + offset))

    def given_up(self, log: int, error: CordwoodError) -> CordwoodError:
        """The error of a block that is given up: OutcomeUnknown if it was ever sent,
        unless the log says up to where it has the producer's records."""
        is_stored = isinstance(error, OutOfSequence) and error.kind is Misplaced.STORED
        # What an earlier sequencer says of stored records is true in every later epoch too.
        if not self.maybe or is_stored:
            return error
        return OutcomeUnknown(f"an append to log {log} was sent before and not answered: {error}")

    def fail(self, error: CordwoodError) -> None:
        """End all records without an acknowledgement."""
        for future, _ in self.futures:
            if not future.done():
                future.set_exception(error)
                # A caller that went away must not leave a warning about this.
                future.exception()
