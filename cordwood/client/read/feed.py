"""One log of a reader: its stream, what was taken of it, and how it stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cordwood.block import Gap, GapKind
from cordwood.client.admin.position_calls import Position
from cordwood.client.read.hand import Hand, Taken
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import CordwoodError
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import Lsn

_LAST_GAPS = (GapKind.ACCESS, GapKind.NOT_IN_CONFIG)
"""After these nothing more comes."""


@dataclass(slots=True, eq=False)
class Feed:
    """One log of a reader.

    Attributes:
        log: its name as it was asked for; a log by two spellings is one, see `name`.
        hand: what was taken of it and not given out.
        waiting: the task that waits for more.
        error: why the stream ended.
        refused: tries in a row that the callback refused; `retry_at` is when it gets the next.
        is_broken: its next block cannot be opened; it stays before it.
        is_to_begin: it ended with an error that may pass, and that was told.
        begins: tries in a row to begin it again that failed or gave nothing; `begin_at` is when it
            gets the next.
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
    begins: int = 0
    begin_at: float = 0.0

    @property
    def name(self) -> str:
        """Its name in the log tree."""
        return self.stream.info.name

    @property
    def next_lsn(self) -> Lsn:
        """The first LSN that the application has not dealt with."""
        after = self.stream.taken_lsn if self.barred_at is None else self.barred_at
        return Lsn(self.hand.next_lsn(after))

    def take(self, taken: Taken) -> None:
        """Hold what was taken off the nodes."""
        self.hand.held.append(taken)
        if isinstance(taken, Gap) and taken.kind in _LAST_GAPS:
            self.barred_at = taken.first


def is_of(feed: Feed, log: str, number: int = 0) -> bool:
    """Whether it is the log of this name, in any spelling, or of this number."""
    is_named = log == feed.log or normalise_name(log) == normalise_name(feed.log)
    return is_named or feed.stream.info.log_id == number


async def wait_for_more(feed: Feed, news: asyncio.Event) -> None:
    """Wait for the next block or gap of one log."""
    try:
        taken = await feed.stream.next()
        if taken is None:
            feed.is_over = True
        else:
            feed.take(taken)
    except CordwoodError as error:
        feed.error, feed.is_over = error, True
    finally:
        feed.waiting = None
        news.set()


def end(feed: Feed) -> None:
    """Take nothing more."""
    if feed.waiting is not None:
        feed.waiting.cancel()
    feed.stream.close()
