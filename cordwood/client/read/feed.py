"""One log of a reader: its stream, what was taken of it and not given out, and how it ended.

Source: docs/sources/logdevice.md 1 ("Reading").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cordwood.block import Gap, GapKind
from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.find.log_info import AnyLog
from cordwood.client.read.hand import Hand, Taken
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import CordwoodError
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import LSN_MAX, Lsn

_LAST_GAPS = (GapKind.ACCESS, GapKind.NOT_IN_CONFIG)
"""After these nothing more comes."""

Open = Callable[[AnyLog, Start, Position | None], Awaitable[ReadStream]]
"""Opens a stream; see `Store.read`."""


@dataclass(slots=True, eq=False)
class Feed:
    """See the module.

    Attributes:
        log: its name as it was asked for; a log by two spellings is one, see `name`.
        hand: what was taken of it and not given out.
        waiting: the task that waits for more, or begins the log again.
        error: why the stream ended.
        refused: tries in a row that the callback refused; `retry_at` is when it gets the next.
        is_broken: its next block cannot be opened; it stays before it.
        is_to_begin: it ended with an error that may pass, and that was told.
        barred_at: where it ended because the log is gone, or may not be read: a reader that
            comes back when that has changed goes on there.
    """

    log: str
    stream: ReadStream
    until: Position | None
    hand: Hand
    waiting: asyncio.Task[None] | None = None
    is_over: bool = False
    error: CordwoodError | None = None
    refused: int = 0
    retry_at: float = 0.0
    barred_at: Lsn | None = None
    is_broken: bool = False
    is_to_begin: bool = False

    @property
    def name(self) -> str:
        """Its name in the log tree."""
        return self.stream.info.name

    @property
    def number(self) -> int:
        """The log itself, whatever its name is by now."""
        return self.stream.info.log_id

    @property
    def next_lsn(self) -> Lsn:
        """The first LSN that the application has not dealt with."""
        after = self.stream.taken_lsn if self.barred_at is None else self.barred_at
        return Lsn(self.hand.next_lsn(after))

    def is_of(self, log: str, number: int = 0) -> bool:
        """Whether it reads the log that was asked for by this name, or that has this number."""
        is_named = log == self.log or normalise_name(log) == normalise_name(self.log)
        return is_named or self.number == number

    def take(self, taken: Taken) -> None:
        """What the stream gave is here, to be given out."""
        self.hand.held.append(taken)
        if isinstance(taken, Gap) and taken.kind in _LAST_GAPS:
            self.barred_at = taken.first

    async def wait(self, news: asyncio.Event) -> None:
        """Wait for the next block or gap."""
        try:
            taken = await self.stream.next()
            if taken is None:
                self.is_over = True
            else:
                self.take(taken)
        except CordwoodError as error:
            self.error, self.is_over = error, True
        finally:
            self.waiting = None
            news.set()

    async def begin_again(self, open_stream: Open, news: asyncio.Event) -> None:
        """Have another stream go on where the application stands.

        It reads this very log, up to where it was to be read: the name may have gone to another
        log since, and `tail` would be a later one.
        """
        until = self.stream.until
        try:
            stream = await open_stream(
                self.number, self.next_lsn, None if until == LSN_MAX else Lsn(until)
            )
        except CordwoodError as error:
            self.error, self.is_over = error, True
        else:
            stream.on_health = self.stream.on_health
            self.stream = stream
        finally:
            self.waiting = None
            news.set()

    def end(self) -> None:
        """Read it no more."""
        if self.waiting is not None:
            self.waiting.cancel()
        self.stream.close()
