"""Recording what an application's clients do, so that the checkers can judge it.

A recorded store is a `Store` that writes every call and its end into a history. It
works on any store: a simulated cluster's, a real one's, an embedded one::

    recording = Recording()
    async with await cordwood.aio.connect(url) as plain:
        store = recording.wrap(plain, "worker-1")
        ...                             # use it as any store
    recording.save("history.jsonl")     # cordwood verify history.jsonl

A record's id travels in a header of its own (`sim.record_id`), so payloads stay unchanged.
Everything in the logs must come from recorded clients of this recording: any other record counts as
a record that no client sent.

Source: `sim.history` (which client records what); docs/sources/reliability.md §3.
"""

from __future__ import annotations

import asyncio
import datetime
import heapq
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from cordwood.block import Buffer, Gap, Record
from cordwood.client.admin.position_calls import Position, Start, to_lsn
from cordwood.client.admin.positions import Trimmed
from cordwood.client.append.open_log import Appending
from cordwood.client.append.producer import Producer
from cordwood.client.find.log_info import AnyLog
from cordwood.client.opening import OpeningItems
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Rejected, Retryable
from cordwood.lsn import Lsn, parse_lsn
from cordwood.sim.history import (
    GIVEN_UP,
    AppendInvoked,
    AppendUnknown,
    HistoryRecorder,
    to_jsonl,
)
from cordwood.sim.position_events import TrimAnswered, TrimAsked
from cordwood.sim.record_id import Headers, id_header, mark_record
from cordwood.testing.recorded_stream import RecordedStream

if TYPE_CHECKING:
    # Type checkers see a Store, so that an application's annotations hold; at run time
    # it is a proxy, because a Store is made by its own connection only.
    from cordwood.client.append.open_log import Appending as _Appending
    from cordwood.client.store import Store as _Store
else:
    _Store = _Appending = object

Timestamp = datetime.datetime | int

CLIENT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
"""Valid names of clients; the ids of a client's records begin with its name."""


class Recording:
    """A history in the making, shared by all clients of one run in one process.

    Args:
        now_us: the run's one clock, µs, never falling; this machine's by default.
        copies, racks, wider, seed: see `sim.history.RunStarted`.

    Attributes:
        history: the events recorded so far; it also takes faults, see `HistoryRecorder`.
        logs: names of the logs that recorded clients used, by number.
    """

    def __init__(
        self,
        now_us: Callable[[], int] | None = None,
        *,
        copies: int = 3,
        racks: int = 1,
        wider: Mapping[str, int] | None = None,
        seed: int | None = None,
    ) -> None:
        started_ns = time.monotonic_ns()
        self.now_us = now_us or (lambda: (time.monotonic_ns() - started_ns) // 1000)
        self.history = HistoryRecorder(
            self.now_us, copies=copies, racks=racks, wider=wider, seed=seed
        )
        self.logs: dict[int, str] = {}
        self._ops = count(1)
        self._clients: dict[str, ClientCalls] = {}

    def wrap(self, store: Store, client: str, *, timeout_s: float = 0.0) -> RecordedStore:
        """The same store, recorded as `client`; a client that reconnects keeps its name.

        Args:
            client: letters, digits, `.`, `_`, `-`, at most 64.
            timeout_s: the store's `ClientSettings.timeout_s`, 0 if it is not known: the
                time that L5 gives each append.
        Raises:
            BadSetting: not a valid client name.
        """
        if not CLIENT_NAME.match(client):
            raise BadSetting(f"{client!r} cannot be a client's name in a history")
        if client not in self._clients:
            self._clients[client] = ClientCalls(client, self)
        return RecordedStore(store, self._clients[client], self, timeout_s)

    def next_op(self) -> int:
        """The number of a call, unique in the history."""
        return next(self._ops)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the history as JSON lines, for `cordwood verify`."""
        with open(path, "wb") as file:
            file.write(to_jsonl(self.history))


class ClientCalls:
    """One client's open appends, and its streams.

    Concurrent appends are sessions of their own, because a retried append may overtake the others.
    A caller that waits for each append has one session.
    """

    def __init__(self, client: str, recording: Recording) -> None:
        self.client = client
        self._recording = recording
        self._sequences = count()
        self._open: dict[int, int] = {}  # append to its session
        self._free_sessions: list[int] = []
        self._streams: dict[RecordedStream, tuple[int, int]] = {}

    def invoke(
        self,
        log: int,
        values: Sequence[Buffer],
        timeout_s: float,
        *,
        atomic: bool = False,
        producer: Producer | None = None,
        expected_tail: int | None = None,
    ) -> tuple[int, list[tuple[str, bytes]]]:
        """Note an append before it is made: its number, and each record's id header."""
        op = self._recording.next_op()
        session = heapq.heappop(self._free_sessions) if self._free_sessions else len(self._open)
        self._open[op] = session
        ids = [id_header(f"{self.client}/{next(self._sequences)}") for _ in values]
        marks = tuple(mark_record(v, (header,)) for v, header in zip(values, ids, strict=True))
        self._recording.history.add(
            AppendInvoked(
                self._recording.now_us(),
                op,
                self.client,
                log,
                marks,
                session,
                timeout_us=round(timeout_s * 1e6),
                atomic=atomic,
                producer=0 if producer is None else producer.producer,
                producer_epoch=0 if producer is None else producer.epoch,
                expected_tail=None if expected_tail is None else int(expected_tail),
            )
        )
        return op, ids

    def stored(self, op: int, lsns: Sequence[int]) -> None:
        """Note an acknowledgement."""
        if self._close(op):
            self._recording.history.append_ok(op, lsns)

    def raised(self, op: int, error: BaseException, *, closed: bool) -> None:
        """Note an append that raised; `closed`: its own client was closed meanwhile."""
        if not self._close(op):
            return
        by_caller = not isinstance(error, Exception) or closed
        if by_caller and not isinstance(error, Retryable | Rejected):
            self._give_up(op)
        else:
            self._recording.history.append_raised(op, error)

    def interrupt(self) -> None:
        """The client's process was killed or stopped: it waits for nothing any more.

        A stopped client may continue; later answers to these appends do not count.
        """
        for op in list(self._open):
            if self._close(op):
                self._give_up(op)
        for stream in list(self._streams):
            stream.interrupt()

    def add_stream(self, stream: RecordedStream, log: int) -> str:
        """Remember an open stream; returns the reader's name, an earlier reader's if it is free."""
        taken = {slot for known, slot in self._streams.values() if known == log}
        slot = next(slot for slot in count() if slot not in taken)
        self._streams[stream] = (log, slot)
        return f"{self.client}.log{log}" + (f".{slot}" if slot else "")

    def forget_stream(self, stream: RecordedStream) -> None:
        """It is closed."""
        self._streams.pop(stream, None)

    def _close(self, op: int) -> bool:
        session = self._open.pop(op, None)
        if session is None:
            return False
        heapq.heappush(self._free_sessions, session)
        return True

    def _give_up(self, op: int) -> None:
        self._recording.history.add(AppendUnknown(self._recording.now_us(), op, GIVEN_UP))


class RecordedStore(_Store):
    """A `Store` whose appends, reads, tails and trims are recorded; see `Recording.wrap`.

    The rest of a store passes through unrecorded.
    """

    def __init__(
        self, store: Store, calls: ClientCalls, recording: Recording, timeout_s: float
    ) -> None:
        self._store = store
        self._calls = calls
        self._recording = recording
        self._timeout_s = timeout_s
        self._ids: dict[AnyLog, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def __aenter__(self) -> RecordedStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def append(
        self,
        log: AnyLog,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
        producer: Producer | None = None,
        expected_tail: int | None = None,
    ) -> Lsn:
        """See `Store.append`."""
        op, ids = self._calls.invoke(
            await self._log_id(log),
            [value],
            self._timeout_s,
            producer=producer,
            expected_tail=expected_tail,
        )
        try:
            lsn = await self._store.append(
                log,
                value,
                key=key,
                timestamp=timestamp,
                headers=(*(headers or ()), *ids),
                producer=producer,
                expected_tail=expected_tail,
            )
        except BaseException as error:
            self._calls.raised(op, error, closed=self._store.is_closed)
            raise
        self._calls.stored(op, [lsn])
        return lsn

    async def append_many(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
    ) -> list[Lsn]:
        """See `Store.append_many`."""
        if not values or (headers is not None and len(headers) != len(values)):
            # Nothing to follow, or an error that the store raises itself.
            return await self._store.append_many(
                log, values, keys=keys, timestamps=timestamps, headers=headers,
                producer=producer, atomic=atomic,
            )  # fmt: skip
        op, ids = self._calls.invoke(
            await self._log_id(log), values, self._timeout_s, atomic=atomic, producer=producer
        )
        own = headers or [()] * len(values)
        marked = [(*each, one) for each, one in zip(own, ids, strict=True)]
        try:
            lsns = await self._store.append_many(
                log, values, keys=keys, timestamps=timestamps, headers=marked,
                producer=producer, atomic=atomic,
            )  # fmt: skip
        except BaseException as error:
            self._calls.raised(op, error, closed=self._store.is_closed)
            raise
        self._calls.stored(op, lsns)
        return lsns

    async def open_log(self, log: AnyLog) -> RecordedAppending:
        """See `Store.open_log`."""
        log_id = await self._log_id(log)
        return RecordedAppending(
            await self._store.open_log(log), log_id, self._calls, self._store, self._timeout_s
        )

    def read(
        self,
        log: AnyLog,
        start: Start = "oldest",
        until: Position | None = "tail",
        *,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
    ) -> OpeningItems[ReadStream, Record | Gap]:
        """See `Store.read`. A read that leaves something out is not recorded: records are
        identified by their contents."""
        if keys is not None or not (payloads and record_keys):
            return self._store.read(
                log, start, until, keys=keys, payloads=payloads, record_keys=record_keys, gaps=gaps
            )
        return OpeningItems(partial(self._recorded_read, log, start, until, gaps=gaps))

    async def _recorded_read(
        self, log: AnyLog, start: Start, until: Position | None, *, gaps: bool
    ) -> ReadStream:
        log_id = await self._log_id(log)
        if "tail" in (start, until):
            tail = await self.tail(log)
            start = Lsn(tail + 1) if start == "tail" else start
            until = tail if until == "tail" else until
        stream = await self._store.read(log, start, until)
        last = parse_lsn(until) if isinstance(until, str) else until
        return RecordedStream(stream, log_id, last, self._calls, self._recording, gaps=gaps)

    async def tail(self, log: AnyLog) -> Lsn:
        """See `Store.tail`."""
        return (await self.tails([log]))[0]

    async def tails(self, logs: Sequence[AnyLog]) -> list[Lsn]:
        """See `Store.tails`."""
        ids = [await self._log_id(log) for log in logs]
        invoked_us = self._recording.now_us()
        try:
            lsns = await self._store.tails(logs)
        except Exception as error:
            self._recording.history.call_failed(self._calls.client, "tail", error)
            raise
        for log_id, lsn in zip(ids, lsns, strict=True):
            self._recording.history.tail_answered(
                self._calls.client, log_id, lsn, invoked_us=invoked_us
            )
        return lsns

    async def trim(self, log: AnyLog, lsn: Position) -> Trimmed:
        """See `Store.trim`."""
        log_id = await self._log_id(log)
        position = int(await self._store.tail(log)) if lsn == "tail" else to_lsn(lsn)
        history, client = self._recording.history, self._calls.client
        history.add(TrimAsked(history.now_us, client, log_id, position))
        try:
            done = await self._store.trim(log, position)
        except Exception as error:
            history.call_failed(client, "trim", error)
            raise
        history.add(TrimAnswered(history.now_us, client, log_id, position, done.nodes))
        return done

    def interrupt(self) -> None:
        """Its process was killed or stopped; see `ClientCalls.interrupt`."""
        self._calls.interrupt()

    async def _log_id(self, log: AnyLog) -> int:
        """The log's number, made where looking it up may make it."""
        known = self._ids.get(log)
        if known is None:
            if isinstance(log, str):
                await self._store.open_log(log)
            info = await self._store.log(log)
            known = self._ids[log] = info.log_id
            self._recording.logs[known] = info.name
        return known


class RecordedAppending(_Appending):
    """An `Appending` whose appends are recorded."""

    def __init__(
        self, appending: Appending, log: int, calls: ClientCalls, store: Store, timeout_s: float
    ) -> None:
        self._appending = appending
        self._log_id = log
        self._calls = calls
        self._store = store
        self._timeout_s = timeout_s

    def append_nowait(
        self,
        value: Buffer,
        key: bytes | None = None,
        time_us: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[Lsn]:
        """See `Appending.append_nowait`."""
        op, ids = self._calls.invoke(self._log_id, [value], self._timeout_s)
        try:
            future = self._appending.append_nowait(value, key, time_us, (*(headers or ()), *ids))
        except BaseException as error:
            self._calls.raised(op, error, closed=self._store.is_closed)
            raise

        def ended(done: asyncio.Future[Lsn]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                self._calls.stored(op, [done.result()])
            else:
                self._calls.raised(op, error, closed=self._store.is_closed)

        # Before the caller's own callbacks, so that the caller learns nothing that is not recorded.
        future.add_done_callback(ended)
        return future

    async def wait_space(self) -> None:
        """See `Appending.wait_space`."""
        await self._appending.wait_space()
