"""The client's calls about places in a log, and about trimming it; `Store` has them.

Source: docs/sources/logdevice.md 1 ("Positions"); docs/design.md §7.
"""

from __future__ import annotations

import datetime

from cordwood.client.admin.positions import (
    Extent,
    KeyPosition,
    Point,
    Positions,
    Size,
    Tiered,
    TimePosition,
    Trimmed,
)
from cordwood.client.append.record_check import Timestamp, to_us
from cordwood.client.find.log_info import AnyLog
from cordwood.client.find.tail_calls import TailCalls
from cordwood.errors import BadSetting, Unreachable
from cordwood.lsn import ESN_MAX, LSN_MAX, OLDEST, Lsn, parse_lsn

Position = str | int
"""Where to read from or to: `oldest`, `tail`, an `Lsn`, or its text (`e7n123`)."""

Start = Position | datetime.datetime
"""The place to read from: an LSN, a name, or a time with its zone. A time means records that were
appended then or later."""

TIME_US_MAX = 1 << 62
"""A bound above every record's time. A time above it counts as this bound, and a time below its
negative counts as that."""


class PositionCalls(TailCalls):
    """See the module. A subclass sets `_positions`."""

    _positions: Positions

    async def _bounds(self, log: AnyLog, start: Start, until: Position | None) -> tuple[int, int]:
        """The first and the last LSN that a read from `start` to `until` means.

        Raises:
            BadSetting: the position is not valid, or a time has no zone.
            CordwoodError: as `tail`, and for a time as `find_time`.
        """
        tail = await self.tail(log) if "tail" in (start, until) else None
        if isinstance(start, datetime.datetime):
            first = int((await self.find_time(log, start)).lsn)
        elif start == "tail" and tail is not None:
            first = tail + 1
        else:
            first = OLDEST if start == "oldest" else to_lsn(start)
        if until == "tail" and tail is not None:
            return first, tail
        return first, LSN_MAX if until is None else to_lsn(until)

    async def trim(self, log: AnyLog, lsn: Position) -> Trimmed:
        """Delete a log's records up to `lsn`, it included, for good.

        A trim point never falls. A reader below it gets one TRIM gap, from the first node that
        reports it. After `Retryable`, some nodes may have trimmed; repeat the call, by the log's
        number (`LogInfo.log_id`): the name may lead to another log by then.

        Args:
            lsn: an LSN up to the tail; `tail` for all present records.
        Returns:
            Which nodes have let go of them; `is_partial` where some did not.
        Raises:
            Rejected: it is past the tail.
            UnknownLog: the log does not exist.
            AccessDenied: the log wants a write token, as to append.
            Retryable: no sequencer, or no node at all, answered.
        """
        return await self._positions.trim(log, None if lsn == "tail" else to_lsn(lsn))

    async def find_time(
        self, log: AnyLog, time: Timestamp, *, approximate: bool = False
    ) -> TimePosition:
        """The LSN at which to begin to read all records that were appended at `time` or later, and
        no earlier records.

        For a time before all records it is the LSN after the trim point. For a time after all
        records it is the next LSN to be given out.

        Args:
            time: of appends, by the sequencers' clocks; µs since 1970, or a datetime.
            approximate: use only the bounds of partitions, so that a node reads one entry of an
                index at most. The answer may then be too early, by the length of a partition at
                most.
        Raises:
            UnknownLog: the log does not exist.
            AccessDenied: the log wants a read token that this client does not have.
            Retryable: no sequencer, or no node at all, answered.
        """
        return await self._positions.find_time(log, _to_us(time), approximate=approximate)

    async def find_key(self, log: AnyLog, key: bytes) -> KeyPosition:
        """Find a key in a log with keys that never decrease.

        `before` is None if no record lies below the key, `at` is None if no record has it or a
        larger key. LogDevice returns LSN_INVALID and the LSN after the tail.

        A binary search: some 40 reads of one block each, within the client's timeout.

        Raises:
            Rejected: records have no keys.
            Unreachable: the records needed for the answer did not arrive in time.
            CordwoodError: as `find_time`.
        """
        return await self._positions.find_key(log, key)

    async def extent(self, log: AnyLog) -> Extent:
        """The first and the last record and their append times, the trim point and the tail.

        Raises:
            CordwoodError: as `find_time`.
        """
        return await self._positions.extent(log)

    async def head_attributes(self, log: AnyLog) -> tuple[Lsn, Point | None]:
        """The trim point, and the first record above it, None in an empty log.

        Raises:
            Unreachable: too few nodes answered to know; `extent` reports those nodes.
            CordwoodError: as `find_time`.
        """
        found = await self._positions.extent(log)
        if not found.is_first_known:
            raise _too_few("which record is the first", log, found)
        return found.trim, found.first

    async def tail_attributes(self, log: AnyLog) -> Point | None:
        """The last record that readers may see, None in an empty log.

        Bridges, holes and (E, 0) are no records, although `tail` may be their LSN. The answer has
        no byte offset, because nodes keep none; `data_size` tells the bytes between two times.

        Raises:
            Unreachable: as `head_attributes`.
            CordwoodError: as `find_time`.
        """
        found = await self._positions.extent(log)
        if not found.is_last_known:
            raise _too_few("which record is the last", log, found)
        return found.last

    async def is_empty(self, log: AnyLog) -> bool:
        """Whether a log has no untrimmed record. Bridges and holes are no records.

        LogDevice asks the sequencer, which knows its own epoch's records and the trim point. Here
        the nodes are asked, which also know of holes.

        Raises:
            Unreachable: no record was found, and too few nodes answered to be sure that there is
                none.
            CordwoodError: as `find_time`.
        """
        found = await self._positions.extent(log)
        if found.is_empty and found.is_partial:
            raise _too_few("that it is empty", log, found)
        return found.is_empty

    async def data_size(
        self, log: AnyLog, start: Timestamp | None = None, stop: Timestamp | None = None
    ) -> Size:
        """The approximate bytes that were appended in `[start, stop)`, as stored, with each record
        counted once.

        A partition that overlaps the range counts by the share of its time in the range; a
        partition that is partly trimmed counts in full. Blocks of recoveries count too, some 130
        bytes for each epoch's end. So a log that `is_empty` may have a size above 0.

        Raises:
            CordwoodError: as `find_time`.
        """
        start_us = -TIME_US_MAX if start is None else _to_us(start)
        stop_us = TIME_US_MAX if stop is None else _to_us(stop)
        return await self._positions.data_size(log, start_us, stop_us)

    async def tiered(self, log: AnyLog) -> Tiered:
        """The LSN up to which only main storage holds a log, and the address of main storage.

        Raises:
            CordwoodError: as `find_time`.
        """
        return await self._positions.tiered(log)


def _too_few(what: str, log: AnyLog, found: Extent) -> Unreachable:
    reasons = "; ".join(f"node {node}: {why}" for node, why in sorted(found.missing.items()))
    if not reasons:
        return Unreachable(
            f"main storage names less of {log} than nodes let go of, so it is not known {what}: "
            "`cordwood tier repair` writes its manifest anew"
        )
    return Unreachable(f"too few nodes answer to know of {log} {what}: {reasons}")


def to_lsn(position: Position) -> int:
    """The LSN that a position names. The position must not be `oldest` or `tail`.

    Raises:
        BadSetting: it is none.
    """
    if isinstance(position, str):
        return parse_lsn(position)
    if not isinstance(position, int):
        raise BadSetting(f"{position!r} is no LSN: only a start may be a time, and it has a zone")
    if not 0 <= position <= LSN_MAX:
        raise BadSetting(f"{position} is no LSN: they go from 0 to e{LSN_MAX >> 32}n{ESN_MAX}")
    return int(position)


def _to_us(time: Timestamp) -> int:
    return max(-TIME_US_MAX, min(TIME_US_MAX, to_us(time)))
