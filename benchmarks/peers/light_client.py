"""A raw client as light as Python allows, for all peers with a simple protocol.

It has one connection on uvloop, answers each read by one write, and makes no object for a record.
With a client library, a run would measure the library instead of the server: nats-py reaches a
tenth of the rate that nats-server takes through this client.

Source: docs/sources/hotpath.md §5.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import cast

from benchmarks.peers.workload import (
    AppendLoad,
    AppendRun,
    Lag,
    TailLoad,
    Window,
    lag_of,
)
from cordwood.bench.pace import TIME, stamped
from cordwood.errors import Unreachable

CALL_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 60.0
"""The wait for answers after the last record was sent: a server may have to store 128 MiB first."""

READ_TIMEOUT_S = 120.0
TAIL_TIMEOUT_S = 30.0

QUIET_S = 2.0
"""A client that asks for records asks again after this time without a record: no peer pauses that
long."""

JOINED_BYTES_MAX = 4096
"""Records up to this size are joined to one buffer, larger ones are given to the kernel one by
one: a copy of them costs more than a piece of a writev."""


class LightClient(asyncio.Protocol):
    """One connection. A subclass knows the bytes, and calls the methods under "calls"."""

    name = "?"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self._window: Window | None = None
        self._done: asyncio.Future[None] | None = None
        self._value = b""
        self._take: Callable[[bytes], None] | None = None
        self._left = 0
        self._read: asyncio.Future[None] | None = None
        self._problem: Unreachable | None = None

    # ---- what a subclass knows ----

    def send_records(self, values: list[bytes]) -> None:
        """Send these records in one write; all have the same size."""
        raise NotImplementedError(f"{type(self).__name__} only reads")

    def send_same(self, value: bytes, count: int) -> None:
        """Send one value this many times; a subclass may know a cheaper way."""
        self.send_records([value] * count)

    # ---- what a transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"the connection was closed: {exc}")

    # ---- what a subclass calls ----

    def on_answered(self, count: int) -> None:
        """Count acknowledged records."""
        window = self._window
        if window is None:
            return  # at the tail no call waits for them
        more = window.on_answered(count, perf_counter())
        if more:
            self.send_same(self._value, more)
        elif window.is_done and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def on_record(self, value: bytes) -> None:
        """Count a record that came to the reader."""
        if self._take is None:
            return
        self._left -= 1
        self._take(value)
        if self._left == 0 and self._read is not None and not self._read.done():
            self._read.set_result(None)

    def fail(self, why: str) -> None:
        """End all present and later calls with this error."""
        self._problem = Unreachable(f"{self.name}: {why}")
        for waiting in (self._done, self._read):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self._problem)

    def write_parts(self, parts: list[bytes], size: int) -> None:
        """Write all parts at once, joined if they are small.

        Args:
            size: bytes of a typical part.
        """
        if size <= JOINED_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    # ---- the loads ----

    async def append(self, load: AppendLoad) -> AppendRun:
        """See `Session.append`."""
        self._check()
        window = self._window = Window(load)
        self._value = os.urandom(load.size)
        self._done = self.loop.create_future()
        self.send_same(self._value, window.begin(perf_counter()))
        try:
            async with asyncio.timeout(load.seconds + ANSWER_TIMEOUT_S):
                await self._done
        except TimeoutError:
            raise Unreachable(
                f"{self.name} left {window.unanswered} records without an answer"
            ) from None
        finally:
            self._done = self._window = None
        return window.run(perf_counter())

    async def take(
        self, take: Callable[[bytes], None], count: int, begin: Callable[[], object],
        timeout_s: float,
    ) -> None:  # fmt: skip
        """Give `take` the next `count` records. `begin` asks for them once the reader takes them.

        Raises:
            Unreachable: they did not come in time.
        """
        self._check()
        self._left = count
        self._take = take
        self._read = self.loop.create_future()
        begin()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_read(self._read)
        except TimeoutError:
            raise Unreachable(f"{self.name} did not send {self._left} of {count}") from None
        finally:
            self._read = self._take = None

    async def _all_read(self, read: asyncio.Future[None]) -> None:
        while True:
            left = self._left
            done, _ = await asyncio.wait({read}, timeout=QUIET_S)
            if done:
                return await read
            if self._left == left:
                self.on_quiet()

    def on_quiet(self) -> None:
        """No record came for QUIET_S during a wait: ask again, if the protocol asks for records."""

    def close(self) -> None:
        """Close the connection."""
        self._done = self._read = None
        self.transport.close()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem


async def read_seconds(reader: LightClient, count: int, begin: Callable[[], None]) -> float:
    """Seconds from asking to the last of `count` records."""

    def drop(_: bytes) -> None:
        """Take records as bytes objects, and keep none."""

    began = perf_counter()
    await reader.take(drop, count, begin, READ_TIMEOUT_S)
    return perf_counter() - began


async def follow(reader: LightClient, offer: Callable[[list[bytes]], None], load: TailLoad) -> Lag:
    """The lag of a reader that already waits at the tail, while `offer` sends records."""
    lags: list[float] = []

    def take(value: bytes) -> None:
        lags.append(perf_counter() - TIME.unpack_from(value)[0])

    async with asyncio.TaskGroup() as tasks:
        # Records are offered only after the reader takes them. It did not count records that were
        # delivered before its task began.
        await reader.take(
            take,
            load.ticks * load.batch,
            lambda: tasks.create_task(stamped(offer, load.ticks, load.batch, load.size)),
            load.seconds + TAIL_TIMEOUT_S,
        )
    return lag_of(lags[load.ticks_not_counted * load.batch :])
