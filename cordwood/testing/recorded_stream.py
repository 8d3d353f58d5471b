"""A read stream that writes down the items that its reader was given.

A read counts as open while its reader asks. A store owes nothing to a reader that is busy with
earlier items. After AWAY_S the history records its read as stopped, and the next call is a new read
from the same position. So a slow application does not look like a store that does not deliver (L2).

Source: `sim.history` (a restart is a new `ReadStarted` under the same name).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cordwood.block import Gap, Record
from cordwood.client.read.delivered import records_of
from cordwood.client.read.hand import Hand, Taken
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.stream_items import StreamItems
from cordwood.errors import Closed, CordwoodError
from cordwood.lsn import Lsn
from cordwood.sim.history import EndReason, RecordDelivered
from cordwood.sim.record_id import mark_record, without_id

if TYPE_CHECKING:
    # As with RecordedStore: a ReadStream for type checkers, a proxy at run time, which gives out
    # the stream's items itself.
    from cordwood.client.read.read_stream import ReadStream as _ReadStream
    from cordwood.testing.record import ClientCalls, Recording
else:
    _ReadStream = StreamItems

AWAY_S = 1.0
"""A reader that has not asked for this long is busy elsewhere. Well below L2's bound of
10 s, and far above the pause of a loop that takes one block after another."""


class RecordedStream(_ReadStream):
    """A `ReadStream` whose records and gaps are recorded; see the module."""

    def __init__(
        self,
        stream: ReadStream,
        log: int,
        until: int | None,
        calls: ClientCalls,
        recording: Recording,
        *,
        gaps: bool = True,
    ) -> None:
        self._stream = stream
        self._log = log
        self._until = until
        self._calls = calls
        self._recording = recording
        self.hand = Hand(self.items_of, gaps=gaps)
        self._due = stream.next_lsn
        self._is_open = self._is_over = False
        self._away: asyncio.TimerHandle | None = None
        self._reader = calls.add_stream(self, log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def next_lsn(self) -> int:
        """See `StreamItems.next_lsn`."""
        return Lsn(self.hand.next_lsn(self._stream.taken_lsn))

    @property
    def taken_lsn(self) -> int:
        """See `StreamItems.taken_lsn`."""
        return self._stream.taken_lsn

    @property
    def wants_columns(self) -> bool:
        """See `StreamItems.wants_columns`. The stream behind this one reads main storage by it."""
        return self._stream.wants_columns

    @wants_columns.setter
    def wants_columns(self, wanted: bool) -> None:
        self._stream.wants_columns = wanted

    def take(self) -> Taken | None:
        """See `ReadStream.take`."""
        if (given := self.hand.block()) is not None:
            return given
        with self._asking():
            taken = self._stream.take()
            if taken is not None:
                self._note(taken)
            return taken

    async def next(self) -> Taken | None:
        """See `ReadStream.next`."""
        if (given := self.hand.block()) is not None:
            return given
        with self._asking():
            taken = await self._stream.next()
            if taken is None:
                self._over(EndReason.UNTIL)
            else:
                self._note(taken)
            return taken

    async def next_many(self, bytes_max: int, items_max: int = sys.maxsize) -> list[Taken]:
        """See `ReadStream.next_many`."""
        with self._asking():
            many = await self._stream.next_many(bytes_max, items_max)
            for taken in many:
                self._note(taken)
            if not many:
                self._over(EndReason.UNTIL)
            return many

    def items_of(self, taken: Taken) -> list[Record | Gap]:
        """See `StreamItems.items_of`; the ids that records were given stay out."""
        items = self._stream.items_of(taken)
        return [_as_appended(each) if isinstance(each, Record) else each for each in items]

    def close(self) -> None:
        """See `ReadStream.close`."""
        self._over(EndReason.STOPPED)
        self._stream.close()

    def interrupt(self) -> None:
        """The reader's process was killed or stopped: it asks no more, for now."""
        self._pause()

    def _note(self, taken: Taken) -> None:
        """Record the given items."""
        if not self._is_open:
            self._start()  # its process was stopped while it waited
        history = self._recording.history
        if isinstance(taken, Gap):
            history.gap_delivered(self._reader, taken.first, taken.last, taken.kind)
            self._due = taken.last + 1
            return
        for record in records_of(taken):
            assert isinstance(record, Record), "a block has records only"
            mark = mark_record(record.value, record.headers)
            now_us = self._recording.now_us()
            history.add(RecordDelivered(now_us, self._reader, int(record.lsn), mark))
        self._due = taken.last + 1

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The reader asks; afterwards it is away until it asks again."""
        if self._away is not None:
            self._away.cancel()
            self._away = None
        if not self._is_open and not self._is_over:
            self._start()
        try:
            yield
        except Closed:
            self._over(EndReason.STOPPED)
            raise
        except CordwoodError as error:
            self._over(EndReason.ERROR, error)
            raise
        finally:
            if self._is_open:
                self._away = asyncio.get_running_loop().call_later(AWAY_S, self._pause)

    def _start(self) -> None:
        self._recording.history.read_started(self._reader, self._log, self._due, self._until)
        self._is_open = True

    def _pause(self) -> None:
        if self._is_open:
            self._is_open = False
            self._recording.history.read_ended(self._reader, EndReason.STOPPED)

    def _over(self, reason: EndReason, error: CordwoodError | None = None) -> None:
        """The stream is over, and its reader's name is free again."""
        if self._is_over:
            return
        self._is_over = True
        if self._away is not None:
            self._away.cancel()
        if self._is_open:
            self._is_open = False
            self._recording.history.read_ended(self._reader, reason, error)
        self._calls.forget_stream(self)


def _as_appended(record: Record) -> Record:
    return Record(
        record.lsn,
        record.value,
        record.key,
        record.timestamp_us,
        without_id(record.headers),
        record.append_time_us,
    )
