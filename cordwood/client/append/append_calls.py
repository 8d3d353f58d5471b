"""Calls that append: find the log, wait for room, and answer by the call's own deadline.

Source: docs/design.md §4, §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    nullcontext,
)
from typing import TypeVar

from cordwood.block import Buffer, Codec
from cordwood.client.append.appends import Appends
from cordwood.client.append.blocks import Columns, check_group, cut_blocks
from cordwood.client.append.line import turn_in
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.producer import Producer, ProducerCall, check_number
from cordwood.client.append.record_check import (
    Headers,
    Timestamp,
    as_bytes,
    check_columns,
    own_header_lists,
    own_headers,
    own_keys,
    own_values,
    times_of,
    to_us,
)
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.find.log_info import AnyLog
from cordwood.errors import (
    CordwoodError,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    UnknownLog,
    Unreachable,
)
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.settings import ClientSettings

Answer = TypeVar("Answer")

LATE_S = 0.1
"""If a call finds its log and free space within this time, its block gets the call's full
deadline."""


class AppendCalls:
    """See the module, and `store.Store` for what each call promises."""

    def __init__(
        self,
        appends: Appends,
        cluster: Cluster,
        find: Callable[[AnyLog], Awaitable[LogInfo]],
        settings: ClientSettings,
        now_us: Callable[[], int],
    ) -> None:
        self._appends = appends
        self._cluster = cluster
        self._find = find
        self._settings = settings
        self._now_us = now_us

    async def append(
        self,
        log: AnyLog,
        value: Buffer,
        key: bytes | None,
        timestamp: Timestamp | None,
        headers: Headers | None,
        producer: Producer | None,
        expected_tail: int | None,
    ) -> Lsn:
        """See `Store.append`."""
        if expected_tail is not None:
            check_number("expected_tail", expected_tail, 0, LSN_MAX)
        time_us = None if timestamp is None else to_us(timestamp)
        size = self._appends.check_record(value, key, time_us, headers)
        # Copy the value before the first wait: the caller may fill its buffer again meanwhile.
        value = as_bytes(value)
        key = None if key is None else as_bytes(key)
        headers = None if headers is None else own_headers(headers)
        deadline = self._appends.deadline()
        info = await self._found(log, producer)
        with _calling(producer, info.log_id) as call:
            lane = self._appends.log(info.log_id, producer)
            async with _in_turn(lane, deadline):
                is_late = await self._wait_open_space(deadline)
                if call is not None:
                    own = [headers] if headers else None
                    call.takes(lane.next_sequence, [value], [key], own, time_us)
                future = lane.add(value, key, time_us, headers, size, expected_tail)
            lsn = await (self._by(deadline, future) if is_late else future)
            if call is not None:
                call.ended_well()
        return lsn

    async def append_many(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        timestamps: Sequence[Timestamp] | Timestamp | None,
        headers: Sequence[Headers] | None,
        producer: Producer | None,
    ) -> list[Lsn]:
        """See `Store.append_many`."""
        check_columns(len(values), keys, headers)
        times_us = times_of(len(values), timestamps)
        sizes = self._sizes(values, keys, headers)
        values, keys = own_values(values), own_keys(keys)
        headers = own_header_lists(headers)
        deadline = self._appends.deadline()
        info = await self._found(log, producer)
        with _calling(producer, info.log_id) as call:
            appends = self._appends.log(info.log_id, producer)
            step = self._settings.block_records
            runs: list[tuple[asyncio.Future[Lsn], int]] = []
            ended: list[CordwoodError] = []
            is_late = False
            async with _in_turn(appends, deadline, is_long=len(values) > step):
                for at in range(0, len(values), step):
                    part = slice(at, at + step)
                    times = times_us
                    if times_us is not None and not isinstance(times_us, int):
                        times = times_us[part]
                    try:
                        is_late = await self._wait_open_space(deadline)
                        if call is not None and not runs:
                            call.takes(appends.next_sequence, values, keys, headers, times_us)
                        runs += appends.add_many(
                            values[part],
                            keys[part] if keys is not None else None,
                            times,
                            headers[part] if headers is not None else None,
                            sizes[part],
                        )
                    except CordwoodError as error:
                        # Blocks that the call added before stay in flight; the call's outcome
                        # counts them too.
                        ended.append(error)
                        break
            answers = asyncio.gather(*(future for future, _ in runs), return_exceptions=True)
            firsts = await (self._by(deadline, answers) if is_late else answers)
            failures = [first for first in firsts if isinstance(first, BaseException)]
            stored = len(firsts) - len(failures)
            failures += ended
            known = next(filter(None, map(_stored_to, failures)), None)
            if known is not None:
                # A call of more blocks than the log remembers is sent again. As an unknown outcome
                # it would be sent again for ever: its first blocks are never remembered.
                told, end = known
                if call is not None:
                    call.stored_to(end)
                raise told
            if failures and stored:
                raise OutcomeUnknown(
                    f"{stored} blocks are stored, the others were not acknowledged: {failures[0]}"
                ) from failures[0]
            if failures:
                raise next((e for e in failures if isinstance(e, OutcomeUnknown)), failures[0])
            if call is not None:
                call.ended_well()
        return [
            lsn
            for first, (_, records) in zip(firsts, runs, strict=True)
            if not isinstance(first, BaseException)
            for lsn in map(Lsn, range(first, first + records))
        ]

    def columns(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        timestamps: Sequence[Timestamp] | Timestamp | None,
        headers: Sequence[Headers] | None,
    ) -> Columns:
        """Check records by column: each can be encoded, and fits into a block.

        Raises:
            BadSetting, RecordTooLarge: they cannot.
        """
        check_columns(len(values), keys, headers)
        times_us = times_of(len(values), timestamps)
        sizes = self._sizes(values, keys, headers)
        owned = own_header_lists(headers)
        return Columns(own_values(values), own_keys(keys), times_us, owned, sizes)

    async def append_group(
        self, log: AnyLog, columns: Columns, producer: Producer | None
    ) -> list[Lsn]:
        """See `Store.append_many`, `atomic`."""
        if not columns.values:
            return []
        deadline = self._appends.deadline()
        info = await self._found(log, producer)
        settings = self._settings
        with _calling(producer, info.log_id) as call:
            lane = self._appends.log(info.log_id, producer)
            async with _in_turn(lane, deadline):
                is_late = await self._wait_open_space(deadline)
                parts = cut_blocks(
                    columns,
                    Codec[settings.codec.upper()],
                    settings.block_bytes,
                    settings.block_records,
                    self._now_us,
                )
                check_group(parts)
                if call is not None:
                    call.takes(
                        lane.next_sequence, columns.values, columns.keys, columns.headers,
                        columns.times_us,
                    )  # fmt: skip
                future = lane.add_group(parts, sum(columns.sizes))
            first = await (self._by(deadline, future) if is_late else future)
            if call is not None:
                call.ended_well()
        return [Lsn(lsn) for lsn in range(first, first + len(columns.values))]

    def _sizes(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers] | None,
    ) -> list[int]:
        """The bytes that each record counts; see `Appends.check_record`. The caller has checked the
        times."""
        if keys is None and headers is None and set(map(type, values)) == {bytes}:
            sizes = list(map(len, values))
            if max(sizes) <= self._settings.block_bytes:
                return sizes
        check = self._appends.check_record
        return [
            check(
                value,
                keys[at] if keys is not None else None,
                None,
                headers[at] if headers is not None else None,
            )
            for at, value in enumerate(values)
        ]

    async def _found(self, log: AnyLog, producer: Producer | None) -> LogInfo:
        if producer is None:
            return await self._find(log)
        with producer.seek():
            try:
                info = await self._find(log)
            except UnknownLog:
                if isinstance(log, int):
                    producer.note_gone(log)
                raise
        if isinstance(log, str):
            producer.check_led(log, info.log_id)
        return info

    async def _wait_open_space(self, deadline: float) -> bool:
        """Wait for free space until `deadline`; True if the call had to wait for it or for its
        log, and its block must answer by `deadline`.

        Raises:
            Overloaded, Closed: as `Window.wait_space`.
            Unreachable: `deadline` has passed; nothing may be added.
        """
        if not self._appends.window.has_space:
            await self._appends.window.wait_space(deadline)
        self._cluster.check_open()
        left_s = deadline - self._appends.loop.time()
        self._check_in_time(left_s)
        return left_s < self._settings.timeout_s - LATE_S

    def _check_in_time(self, left_s: float) -> None:
        # A look-up of a client that stood takes longer than the call has. A record that is added
        # now is stored, and its caller is told at once that its outcome is unknown.
        if left_s <= 0:
            raise Unreachable(
                f"{self._settings.timeout_s:g} s were over before this append was sent: nothing of "
                "it was stored"
            )

    async def _by(self, deadline: float, answer: Awaitable[Answer]) -> Answer:
        """The answer of a call that had to wait for its log or for free space; OutcomeUnknown if
        the answer has not come by then. Its block has a deadline of its own, up to a timeout after
        the call's.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            why = f"no answer within {self._settings.timeout_s:g} s, some of it before it was sent"
            raise OutcomeUnknown(
                f"{why}: read the log to see whether it is stored. What is not there yet may still "
                "come; only a producer can send it again"
            ) from None


def _stored_to(error: BaseException) -> tuple[OutOfSequence, int] | None:
    """The error that tells up to which sequence a producer's records are stored, and that
    sequence; 0 from a node that does not say. None for every other error."""
    if isinstance(error, OutOfSequence) and error.kind is Misplaced.STORED:
        return error, error.expected or 0
    return None


def _calling(producer: Producer | None, log: int) -> AbstractContextManager[ProducerCall | None]:
    """Note in a producer that an append to a log has not ended; see `Producer.again`."""
    return nullcontext() if producer is None else producer.call(log)


def _in_turn(
    lane: LogAppends, deadline: float, *, is_long: bool = False
) -> AbstractAsyncContextManager[None]:
    """Keeps the calls to a log in the order in which they were made.

    A call of several blocks waits for free space between them, and the blocks of the next call
    would pass. Short calls without a producer need no order among themselves: the window admits
    them in turn.
    """
    if lane.line.is_empty and not (is_long or lane.has_producer):
        return nullcontext()
    # A producer's call keeps its place until it has added, for `Appends` to keep its lane.
    return turn_in(lane.line, deadline, holds=is_long or lane.has_producer)
