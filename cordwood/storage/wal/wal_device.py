"""A WAL's writes to its file. Each write ends exactly once, keeps to the budget, and has a
deadline.

These errors of the disk may happen, with these consequences:

- *EIO, or any error but those below*: the write's end, with that error. The blocks' contents are
  unknown, and a successful second try would prove nothing about pages that the first try dropped.
  So the WAL is poisoned and never tries again.
- *No space* (ENOSPC, EDQUOT). A ring is allocated and written beforehand, so this comes from below:
  a thin volume, a copy-on-write file system. The machine refused the bytes, so their state is not
  in doubt. The same bytes are written to the same place again until the machine takes all of them,
  and nothing is reported as durable before that. Meanwhile appends are refused.
- *A stall*: a write that has not ended within `stall_s`. Appends are refused until it ends; then
  its result counts, durable or failed. After `give_up_s` the write is reported as failed, and its
  real end is ignored.
- *A write cut short* is finished by the file itself (`host.direct_file`).

Deadlines are counted in ticks of a timer and not by the clock: if the process was stopped, or the
machine slept, the disk must not be blamed for it.

Source: Rebello et al., ATC 2020 (what a failed sync leaves); docs/sources/s3stream.md (a),
"Channels" (retries for ever, later 30 s and failed for good) and (f) 4 (#488).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections.abc import Callable, Sequence

from cordwood.block import Buffer
from cordwood.errors import CordwoodError, Overloaded
from cordwood.host.seams import DirectFile
from cordwood.layout.wal_block import align_up
from cordwood.protocol.write_pace import WritePace
from cordwood.storage.wal.wal_errors import WalNoSpace, WalStalled
from cordwood.storage.wal.wal_limits import WalLimits

logger = logging.getLogger(__name__)

OnWritten = Callable[[BaseException | None], None]
"""Called once for each write: with None when its bytes are on stable storage, otherwise with the
error."""

STALL_TICKS = 5
"""The number of ticks in `stall_s`. So a stall is noticed after `stall_s`, or at most a fifth of it
later."""

NO_SPACE_RETRY_S = 1.0
"""The pause before a write is repeated that found no space. A person, or a program that deletes
files, has to act first, and one write a second is little work for the disk."""

CLOSE_TIMEOUT_S = 10.0
"""If a file does not close within this time, it has a write that never ends, and the process has to
end."""

PACE_S_MIN = 0.001
"""uvloop's timers have whole milliseconds; a longer wait's surplus is spent after it."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class _Write:
    """One write. `began` is the tick at which it was handed over last."""

    __slots__ = ("began", "offset", "on_written", "parts", "refused")

    def __init__(self, offset: int, parts: Sequence[Buffer], on_written: OnWritten) -> None:
        self.offset = offset
        self.parts = parts
        self.on_written = on_written
        self.began = 0
        self.refused = 0


class WalDevice:
    """See the module.

    Args:
        file: the WAL's file; the device closes it.
        path: for messages.
        limits: budget and deadlines.
        on_free: told when nothing holds writes back any more.

    Attributes:
        writes, bytes: handed to the disk so far, padding and repeats included.
    """

    def __init__(
        self, file: DirectFile, path: str, limits: WalLimits, on_free: Callable[[], None]
    ) -> None:
        self.writes = 0
        self.bytes = 0
        self._file = file
        self._path = path
        self._limits = limits
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._pace = (
            WritePace(limits.budget, self._loop.time()) if limits.budget.is_limited else None
        )
        # The writes in flight, in the order in which they were handed over. The caller bounds their
        # number.
        self._in_flight: dict[_Write, None] = {}
        self._waiting: list[_Write] = []
        self._refused = 0
        self._retry: asyncio.TimerHandle | None = None
        self._tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pace_timer: asyncio.TimerHandle | None = None
        self._is_stalled = False
        self._is_closed = False

    @property
    def is_troubled(self) -> bool:
        """Whether nothing more should be written just now."""
        return self._is_stalled or self._refused > 0

    def trouble(self) -> Overloaded:
        """Why it is troubled."""
        if self._is_stalled:
            return WalStalled(
                f"{self._path}: a write has not ended for over {self._limits.stall_s:g} s; "
                "nothing is taken until it does"
            )
        return WalNoSpace(
            f"{self._path}: the disk below the WAL has no space left for it; nothing is "
            "taken until it has"
        )

    def holds_back(self) -> bool:
        """Whether nothing more should be written now; then `on_free` will be called."""
        if self.is_troubled or self._pace_timer is not None:
            return True
        wait_s = 0.0 if self._pace is None else self._pace.wait_s(self._loop.time())
        if wait_s > 0:
            self._pace_timer = self._loop.call_later(max(wait_s, PACE_S_MIN), self._on_pace)
        return wait_s > 0

    def _on_pace(self) -> None:
        self._pace_timer = None
        self._on_free()

    def write(self, offset: int, parts: Sequence[Buffer], on_written: OnWritten) -> None:
        """Write `parts` back to back; `on_written` is told of the end, perhaps at once.

        It is charged to the budget and does not wait for it: see `holds_back`. `parts` must
        not change until the end.
        """
        self._start(_Write(offset, parts, on_written))

    def _start(self, write: _Write) -> None:
        length = align_up(sum(map(len, write.parts)))
        self.writes += 1
        self.bytes += length
        if self._pace is not None:
            self._pace.on_write(self._loop.time(), length)
        write.began = self._tick
        try:
            future = self._file.write(write.offset, write.parts)
        except CordwoodError as error:
            write.on_written(error)
            return
        self._in_flight[write] = None
        if self._timer is None:
            self._arm()
        future.add_done_callback(functools.partial(self._on_ended, write))

    def _on_ended(self, write: _Write, done: asyncio.Future[None]) -> None:
        if done.cancelled():
            error: BaseException | None = OSError(errno.ECANCELED, "the write was cancelled")
        else:
            error = done.exception()
        # Race: `_give_up` has already reported the write as failed, and a late success must not be
        # reported after that.
        if write not in self._in_flight:
            return  # given up before
        del self._in_flight[write]
        if isinstance(error, OSError) and error.errno in _NO_SPACE and not self._is_closed:
            self._on_refused(write, error)
            return
        # One write of several may end while the disk still holds up the others.
        if self._is_stalled and not self._has_aged(STALL_TICKS):
            self._is_stalled = False
            logger.warning("%s: the disk ends writes again", self._path)
            # Call it later: `on_free` starts writes, and the end of this write is not reported yet.
            self._loop.call_soon(self._on_free)
        if write.refused:
            self._on_taken()
        write.on_written(error)

    # ---- no space ----

    def _on_refused(self, write: _Write, error: OSError) -> None:
        if not write.refused:
            self._refused += 1
        # Once for a full disk, not once for each write or retry.
        if not self._waiting and not write.refused:
            logger.error("%s: %s; nothing is taken until there is space", self._path, error)
        write.refused += 1
        self._waiting.append(write)
        if self._retry is None:
            self._retry = self._loop.call_later(NO_SPACE_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            self._start(write)

    def _on_taken(self) -> None:
        """A write that was refused for want of space has ended."""
        self._refused -= 1
        if not self._refused:
            logger.warning("%s: there is space again", self._path)
            self._loop.call_soon(self._on_free)

    # ---- stalls ----

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._limits.stall_s / STALL_TICKS, self._on_tick)

    def _on_tick(self) -> None:
        self._timer = None
        self._tick += 1
        if not self._in_flight:
            return
        if not self._is_stalled and self._has_aged(STALL_TICKS):
            self._is_stalled = True
            logger.warning("%s", self.trouble())
        if self._has_aged(round(STALL_TICKS * self._limits.give_up_s / self._limits.stall_s)):
            self._give_up()
        elif self._in_flight:
            self._arm()

    def _has_aged(self, ticks: int) -> bool:
        """Whether the oldest write in flight has lasted this many whole ticks."""
        oldest = next(iter(self._in_flight), None)
        return oldest is not None and self._tick - oldest.began > ticks

    def _give_up(self) -> None:
        error = OSError(
            errno.ETIMEDOUT, f"a write did not end within {self._limits.give_up_s:g} s", self._path
        )
        writes, self._in_flight = list(self._in_flight), {}
        for write in writes:
            write.on_written(error)

    # ---- the end ----

    async def close(self) -> None:
        """Close the file after its writes in flight have ended. Writes that wait for space fail."""
        self.stop_waiting()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._file.close()
        except TimeoutError:
            logger.error("%s: not closed, a write in it does not end", self._path)
        finally:
            for timer in (self._timer, self._pace_timer):
                if timer is not None:
                    timer.cancel()

    def stop_waiting(self) -> None:
        """Fail all writes that wait for space, now and from now on, because there is no time left
        for them."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            write.on_written(OSError(errno.ENOSPC, "no space left", self._path))
