"""One block of the WAL in memory: its records, in order, and their waiting callers.

Bodies are not copied: a block keeps the caller's buffers and puts a header before
each. Headers are made when the block is written, because only then is it known
which record is the block's last.

Source: docs/sources/s3stream.md (a), "Blocks".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cordwood.block import Buffer
from cordwood.errors import CordwoodError
from cordwood.layout.wal_block import (
    WAL_RECORD_HEADER_BYTES,
    Unplaced,
    WalKind,
    align_up,
    pack_wal_block,
)

OnDurable = Callable[[CordwoodError | None], None]
"""Called once, on the loop: with None when a record and all records before it are durable,
otherwise with the error."""


class WalBlock:
    """The records of one write, from logical offset `start` on.

    Attributes:
        start: a multiple of WAL_UNIT_BYTES.
        waiters: told in this order once it is durable, or failed.
        writes_left: writes in flight for it once it is being written; 0 then means durable.
    """

    __slots__ = ("_end", "_records", "start", "waiters", "writes_left")

    def __init__(self, start: int) -> None:
        self.start = start
        self.waiters: list[OnDurable] = []
        self.writes_left = 0
        self._end = start
        self._records: list[Unplaced] = []

    @property
    def stop(self) -> int:
        """Where the next block starts."""
        return align_up(self._end)

    def add(self, kind: int, parts: Sequence[Buffer], length: int, checksum: int) -> None:
        """Put a record of `length` bytes at the end; `parts` must not change from now on."""
        self._records.append((kind, length, checksum, parts))
        self._end += WAL_RECORD_HEADER_BYTES + length

    def add_padding(self, stop: int) -> None:
        """Skip everything up to `stop`, writing the header only."""
        length = stop - self._end - WAL_RECORD_HEADER_BYTES
        self._records.append((WalKind.PADDING, length, 0, ()))
        self._end = stop

    def seal(self, *, durable: int, incarnation: int, salt: int) -> list[Buffer]:
        """The bytes to write at `start`: headers and bodies. The caller pads them with zeros."""
        records, self._records = self._records, []
        return pack_wal_block(
            self.start, records, durable=durable, incarnation=incarnation, salt=salt
        )


def cut_writes(
    position: int, parts: Sequence[Buffer], bytes_max: int
) -> Iterator[tuple[int, Sequence[Buffer]]]:
    """Cut `parts` into writes of at most `bytes_max` bytes (a multiple of WAL_UNIT_BYTES).

    Yields the position and the parts of each write. No write is empty.
    """
    if sum(map(len, parts)) <= bytes_max:
        yield position, parts
        return
    write: list[Buffer] = []
    room = bytes_max
    for part in parts:
        view = memoryview(part)
        while len(view) > room:
            write.append(view[:room])
            yield position, write
            view, write, room, position = view[room:], [], bytes_max, position + bytes_max
        if view:
            write.append(view)
            room -= len(view)
    if write:
        yield position, write
