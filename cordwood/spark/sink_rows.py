"""Rows that Spark hands to a task, as the columns that the client appends.

One batch of Arrow holds rows of several logs; each log's rows keep their order. They are gathered
into row blocks that are worth a call, because a batch of many logs has few rows of each.

Source: docs/sources/spark.md §6 ("Sink input").
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cordwood.errors import BadSetting
from cordwood.layout.log_names import normalise_name

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BLOCK_BYTES = 1 << 20
"""The bytes of one log in one call: a block of the client's default size, which hides the round
trip."""

ROW_BLOCK_RECORDS = 16_384
"""Likewise for small records: 1.6 MB of 100 B, and far fewer than a block may hold."""

CUT_BYTES = 4 << 20
"""Larger batches of Arrow are halved until they have at most this: a call is one atomic group in
`deliveryMode=idempotent`, and a group has 64 MiB at most. Ten thousand small records, as many as
Spark hands over at once, stay whole."""

HELD_BYTES = 32 << 20
"""The most bytes of waiting rows of all logs. Above it, the rows of the logs with the most bytes
are sent at once."""


@dataclass(slots=True)
class RowBlock:
    """Records of one log in order; the columns that no row has anything in are None.

    Attributes:
        number: of the log, if it goes there whatever the name leads to.
        bytes: of values.
        held: about the bytes of all columns: keys and headers may be larger than values.
    """

    log: str
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    timestamps: list[int] | None = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    bytes: int = 0
    held: int = 0
    number: int | None = None

    @property
    def target(self) -> str | int:
        """The log, as a call names it."""
        return self.log if self.number is None else self.number

    @property
    def is_full(self) -> bool:
        """Whether it is worth a call."""
        return self.held >= ROW_BLOCK_BYTES or len(self.values) >= ROW_BLOCK_RECORDS

    def after(self, count: int) -> RowBlock:
        """The records after the first `count`."""
        values = self.values[count:]
        return RowBlock(
            self.log,
            values,
            None if self.keys is None else self.keys[count:],
            None if self.timestamps is None else self.timestamps[count:],
            None if self.headers is None else self.headers[count:],
            sum(map(len, values)),
            number=self.number,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows to the waiting rows.

        Raises:
            BadSetting: a value is null.
        """
        count, values = len(self.values), _bytes(rows, "value")
        if rows.column("value").null_count:
            raise BadSetting("a value is null: a record of Cordwood has a value, perhaps empty")
        more = len(values)
        if _has(rows, "key") or self.keys is not None:
            keys = _bytes(rows, "key") if _has(rows, "key") else [None] * more
            self.keys = [*(self.keys or [None] * count), *keys]
        if _has(rows, "timestamp") or self.timestamps is not None:
            times = _times(rows) if _has(rows, "timestamp") else [now_us()] * more
            self.timestamps = [*(self.timestamps or [now_us()] * count), *times]
        if _has(rows, "headers") or self.headers is not None:
            headers = _headers(rows) if _has(rows, "headers") else [[] for _ in range(more)]
            self.headers = [*(self.headers or ([] for _ in range(count))), *headers]
        self.values += values
        self.bytes += sum(map(len, values))
        self.held += _size(rows)


def row_blocks(batches: Iterable[pa.RecordBatch], default_log: str) -> Iterator[RowBlock]:
    """Gather rows to row blocks; those of one log come in the order of its rows.

    Order is kept within a log, whatever way its name is spelled in. The cuts of a log's rows may
    differ when a task runs again: Spark may hand the same rows over in other batches.

    Raises:
        BadSetting: a value is null, or a row has no log.
    """
    held: dict[str, RowBlock] = {}
    size = 0
    for batch in batches:
        for log, rows in _by_log(batch, default_log):
            for part in _cut(rows):
                block = held.setdefault(log, RowBlock(log))
                before = block.held
                block.add(part)
                size += block.held - before
                if block.is_full:
                    size -= block.held
                    yield held.pop(log)
        while size > HELD_BYTES:
            largest = max(held.values(), key=lambda each: (each.held, each.log))
            size -= largest.held
            yield held.pop(largest.log)
    yield from held.values()


def now_us() -> int:
    """µs since 1970, for records without a timestamp."""
    return time.time_ns() // 1000


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows.num_rows, ROW_BLOCK_RECORDS):
        yield from _halved(rows.slice(at, ROW_BLOCK_RECORDS))


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = rows.num_rows
    if count < 2 or _size(rows) <= CUT_BYTES:
        yield rows
        return
    yield from _halved(rows.slice(0, count // 2))
    yield from _halved(rows.slice(count // 2))


def _size(rows: pa.RecordBatch) -> int:
    """The bytes of the columns that a record has, as Arrow holds them."""
    names = rows.schema.names
    return sum(rows.column(each).nbytes for each in ("value", "key", "headers") if each in names)


def _by_log(batch: pa.RecordBatch, default_log: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each log, in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    if "log" not in batch.schema.names:
        yield default_log, batch
        return
    logs = batch.column("log")
    # A log may be spelled in two ways, /orders and orders, and its rows are one sequence.
    spelled: dict[str, list[str | None]] = {}
    for log in pc.unique(logs).to_pylist():
        if not log and not default_log:
            raise BadSetting("a row's log is null, and there is no option log for such rows")
        spelled.setdefault(normalise_name(log or default_log), []).append(log)
    if len(spelled) == 1:
        yield next(iter(spelled)), batch
        return
    for name, spellings in spelled.items():
        yield name, batch.filter(pc.is_in(logs, value_set=pa.array(spellings, logs.type)))


def _has(rows: pa.RecordBatch, column: str) -> bool:
    """Whether a column is there and says anything."""
    if column not in rows.schema.names:
        return False
    found = rows.column(column)
    return bool(found.null_count < len(found))


def _bytes(rows: pa.RecordBatch, column: str) -> list[Any]:
    import pyarrow as pa

    found = rows.column(column)
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        found = found.cast(pa.binary())
    values: list[Any] = found.to_pylist()
    return values


def _times(rows: pa.RecordBatch) -> Sequence[int]:
    """µs since 1970; a null takes now, as a record without one does."""
    import pyarrow as pa

    stamps = rows.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found: Sequence[int] = stamps.fill_null(now_us()).to_pylist()
    return found


def _headers(rows: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    return [
        [(pair["key"], pair["value"]) for pair in pairs or ()]
        for pairs in rows.column("headers").to_pylist()
    ]
