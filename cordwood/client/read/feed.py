"""One log of a reader: its stream, the items taken from it, and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cordwood.block import Gap, GapKind
from cordwood.client.admin.position_calls import Position
from cordwood.client.find.several_logs import one_log
from cordwood.client.read.hand import Hand, Taken
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import CordwoodError
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import Lsn

_LAST_GAPS = (GapKind.ACCESS, GapKind.NOT_IN_CONFIG)
"""Kinds of gaps after which a log has no more items."""


@dataclass(slots=True, eq=False)
class Feed:
    """One log of a reader.

    Attributes:
        log: its name as the application spelled it; `name` is the same for all spellings.
        hand: items taken from the stream and not given out.
        waiting: the task that waits for more.
        error: why the stream ended.
        refused: how often in a row the callback refused its item; `retry_at` is the time of the
            next try.
        is_broken: its next block cannot be opened; it stays in front of the block.
        is_to_begin: it ended with a passing error that the application received.
        begins: how often in a row a new begin failed or gave nothing; `begin_at` is the time of the
            next.
        barred_at: where it ended because the log is gone or may not be read: a reader that returns
            after a change continues there.
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
        """The first LSN that the application has not processed."""
        after = self.stream.taken_lsn if self.barred_at is None else self.barred_at
        return Lsn(self.hand.next_lsn(after))

    def take(self, taken: Taken) -> None:
        """Hold items that the stream delivered."""
        self.hand.held.append(taken)
        if isinstance(taken, Gap) and taken.kind in _LAST_GAPS:
            self.barred_at = taken.first


def is_of(feed: Feed, log: str) -> bool:
    """Whether it is the log of this name, in any spelling."""
    return log == feed.log or normalise_name(log) == normalise_name(feed.log)


def refuse_second_name(feeds: Iterable[Feed], log: str, stream: ReadStream) -> None:
    """Close a stream that a name led to, if a feed reads its log under another name: in the place
    of that feed, it would leave the log out that the application means by the other name.

    Raises:
        BadSetting: there is such a feed.
    """
    number = stream.info.log_id
    for feed in feeds:
        if feed.stream.info.log_id == number and not is_of(feed, log):
            stream.close()
            raise one_log(feed.log, log, number)


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
    # Also nothing of what is here: a loop over batches may be in the middle of this log's turn.
    feed.hand.leave(feed.stream.taken_lsn)


def end_all(feeds: Iterable[Feed], on_end: Callable[[], object]) -> None:
    """The reader of these logs is gone."""
    for feed in feeds:
        end(feed)
    on_end()
