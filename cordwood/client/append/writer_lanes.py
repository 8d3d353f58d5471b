"""The records of a buffered writer, by log: gathered, queued as blocks, or in flight.

Source: docs/sources/logdevice.md 1 ("BufferedWriter").
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from cordwood.block import Buffer
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.producer import Producer
from cordwood.client.append.record_check import Headers
from cordwood.lsn import Lsn


class Gathered:
    """Records of one log that become one block.

    Attributes:
        contexts: each record's context, as its caller gave it.
        futures: one for each record, None if no caller waits.
        tries: how often the block was resent.
        ended: set once every record has its outcome.
    """

    __slots__ = (
        "bytes", "contexts", "ended", "futures", "headers", "keys", "times", "tries", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: list[Buffer] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: list[Headers] = []
        self.contexts: list[Any] = []
        self.futures: list[asyncio.Future[Lsn] | None] = []
        self.bytes = 0
        self.tries = 0
        self.ended = asyncio.Event()


class Lane:
    """One log of the writer: gathered records, queued blocks, and the sending task.

    Attributes:
        number: the log's number, once found: records go to this number, even if the name moves,
            until the number is gone.
        stream: where a stream's blocks are queued and sent, once it has sent any.
    """

    def __init__(self, log: str) -> None:
        self.log = log
        self.number: int | None = None
        self.open: Gathered | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.queue: deque[Gathered] = deque()
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.producer: Producer | None = None
        self.stream: LogAppends | None = None
