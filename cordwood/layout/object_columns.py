"""The columns of an object: turn blocks into rows, and rows back into bodies.

::

    key, value       binary; no key is null
    log, log_id      the log's name when it was uploaded, and its number, which never changes
    lsn              int64; with epoch (int32) and offset (int64), the two halves of it
    timestamp        the record's own, µs UTC
    append_time      the sequencer's, µs UTC
    headers          list of (key, value); null for none
    producer, producer_epoch, producer_sequence    int64; null for none
    block            the block's header (`layout.block_header`), in the row of its first record
    body             all of a body that its columns do not give back, in that row; mostly null

Rows come by (log_id, lsn). `block` marks where blocks begin and says all else about them: codec,
group, flags, CRCs of the body. A body is rebuilt from its rows, byte for byte as `encode_body`
writes it, and its uncompressed CRC proves that it equals the appended body. Some bodies that
`parse_body` accepts differ from that form (a column of equal values, bytes under a null): these are
kept whole in `body`, beside their columns.

pyarrow is imported inside functions.

Source: docs/objects.md, "Objects".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from cordwood.block import BlockHeader, BlockKind, Buffer, Record
from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.layout.arrow import batch_schema, body_to_batch, records_to_batch
from cordwood.layout.block_header import HEADER_BYTES, pack_header, unpack_header
from cordwood.layout.body import FLAG_HEADERS, FLAG_KEYS, FLAG_TIMESTAMPS, Body, encode_body
from cordwood.layout.columns import BytesColumn
from cordwood.lsn import Lsn

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_COLUMNS = (
    "key", "value", "log", "log_id", "lsn", "epoch", "offset", "timestamp", "append_time",
    "headers",
)  # fmt: skip
PRODUCER_COLUMNS = ("producer", "producer_epoch", "producer_sequence")
OBJECT_COLUMNS = (*SOURCE_COLUMNS, *PRODUCER_COLUMNS, "block", "body")

BODY_COLUMNS = ("key", "value", "timestamp", "headers", "block", "body")
"""The columns from which blocks are built."""

SMALL_RECORDS = 16
"""Blocks with at most this many records go through records, larger blocks through columns."""

_FIXED = struct.Struct("<IBBHq")
"""As in `layout.body`: count, version, flags, reserved, first timestamp."""
_VERSION = 1


def object_schema() -> pa.Schema:
    """The schema of every object."""
    return _object_schema()


@lru_cache(maxsize=1)
def _object_schema() -> pa.Schema:
    import pyarrow as pa

    producers = [pa.field(name, pa.int64()) for name in PRODUCER_COLUMNS]
    blocks = [pa.field(name, pa.binary()) for name in ("block", "body")]
    return pa.schema([*batch_schema(SOURCE_COLUMNS), *producers, *blocks])


# ---- from blocks to rows ----


def block_to_rows(header: BlockHeader, body: Body, log_name: str) -> pa.RecordBatch:
    """The rows of a block.

    Args:
        body: what `open_body` returned for `header`.
    """
    import pyarrow as pa

    schema = object_schema()
    rows = body_to_batch(header, body, log_name, columns=SOURCE_COLUMNS)
    count = body.count
    producers = _producer_columns(header, count)
    whole = None if is_plain(body) else bytes(body.raw)
    blocks = [_in_first_row(pack_header(header), count), _in_first_row(whole, count)]
    return pa.RecordBatch.from_arrays([*rows.columns, *producers, *blocks], schema=schema)


def small_blocks_to_rows(
    blocks: Sequence[tuple[BlockHeader, Body]], log_name: str
) -> pa.RecordBatch:
    """The rows of blocks of one log, which have SMALL_RECORDS at most.

    It gives the same rows as `block_to_rows`. `block_to_rows` takes 150 µs for each block, even for
    a block with few records. This function takes 15 µs for each block and 2 µs for each record.
    """
    import pyarrow as pa

    schema = object_schema()
    records: list[Record] = []
    lists: dict[str, list[Any]] = {name: [] for name in (*PRODUCER_COLUMNS, "block", "body")}
    for header, body in blocks:
        records += body.records(header.first, header.append_time_us)
        rest = [None] * (body.count - 1)
        lists["block"] += [pack_header(header), *rest]
        lists["body"] += [None if is_plain(body) else bytes(body.raw), *rest]
        for name, column in zip(PRODUCER_COLUMNS, _producer_lists(header), strict=True):
            lists[name] += column
    rows = records_to_batch(blocks[0][0].log, log_name, records, columns=SOURCE_COLUMNS)
    others = [pa.array(column, schema.field(name).type) for name, column in lists.items()]
    return pa.RecordBatch.from_arrays([*rows.columns, *others], schema=schema)


def is_plain(body: Body) -> bool:
    """Whether a body is written as `encode_body` would write its records."""
    if body.stamps is None and body.keys is None and body.header_columns is None:
        return True
    if body.stamps is not None:
        stamps = np.frombuffer(body.stamps, "<i8")
        if bool((stamps == stamps[0]).all()):
            return False
    if body.keys is not None and not (_any_valid(body.keys) and _nulls_are_empty(body.keys)):
        return False
    columns = body.header_columns
    return columns is None or (columns.names.count > 0 and _nulls_are_empty(columns.values))


def _any_valid(column: BytesColumn) -> bool:
    return column.validity is None or any(column.validity)


def _nulls_are_empty(column: BytesColumn) -> bool:
    if column.validity is None:
        return True
    valid = _bits(column.validity, column.count)
    sizes = np.diff(np.frombuffer(column.offsets, "<i4"))
    return not bool(sizes[~valid].any())


def _bits(bitmap: memoryview, count: int) -> Any:
    unpacked = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=count, bitorder="little")
    return unpacked.astype(np.bool_)


def _producer_columns(header: BlockHeader, count: int) -> list[pa.Array]:
    import pyarrow as pa

    if not header.producer:
        return [pa.nulls(count, pa.int64()) for _ in PRODUCER_COLUMNS]
    # Unsigned numbers of 64 bits are stored as signed numbers: many engines have no unsigned type.
    producer = np.full(count, header.producer, np.uint64)
    epoch = np.full(count, header.producer_epoch, np.uint64)
    sequence = np.arange(count, dtype=np.uint64) + np.uint64(header.producer_sequence)
    return [pa.array(column.view(np.int64)) for column in (producer, epoch, sequence)]


def _producer_lists(header: BlockHeader) -> list[list[int | None]]:
    """As `_producer_columns`, as plain lists."""
    count = header.count
    if not header.producer:
        return [[None] * count for _ in PRODUCER_COLUMNS]
    sequences = range(header.producer_sequence, header.producer_sequence + count)
    columns = ([header.producer] * count, [header.producer_epoch] * count, sequences)
    return [[_signed(number) for number in column] for column in columns]


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _in_first_row(value: bytes | None, count: int) -> pa.Array:
    """A column of `count` rows with a value in the first row and nulls in the others."""
    import pyarrow as pa

    if value is None:
        return pa.nulls(count, pa.binary())
    offsets = np.full(count + 1, len(value), np.int32)
    offsets[0] = 0
    valid = bytearray((count + 7) >> 3)
    valid[0] = 1
    buffers = [pa.py_buffer(bytes(valid)), pa.py_buffer(offsets), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, count - 1)


# ---- from rows to blocks ----


def rows_to_blocks(rows: pa.Table, *, verify: bool = True) -> Iterator[tuple[BlockHeader, Buffer]]:
    """The headers and uncompressed bodies of the blocks in these rows. The first row must begin a
    block.

    A body has the uncompressed length and CRC that its header names. `stored_bytes`, `stored_crc`
    and `codec` describe the body as nodes kept it.

    Args:
        rows: BODY_COLUMNS at least.
        verify: whether bodies are compared with their CRC.
    Raises:
        Malformed: the rows are no blocks.
        ChecksumMismatch: a body differs from the appended one.
    """
    if rows.num_rows == 0:
        return
    columns = {name: _whole(rows, name) for name in BODY_COLUMNS}
    found = block_starts(rows)
    wholes = columns["body"].take([start for _, start in found]).to_pylist()
    reader = _RowReader(columns)
    for (header, start), whole in zip(found, wholes, strict=True):
        raw = whole if whole is not None else reader.body(start, start + header.count)
        if len(raw) != header.raw_bytes or (verify and crc32c(raw) != header.raw_crc):
            raise ChecksumMismatch(
                f"the body of log {header.log} at {Lsn(header.first)} does not come back from its "
                "rows: its checksum is another"
            )
        yield header, raw


def block_starts(rows: pa.Table) -> list[tuple[BlockHeader, int]]:
    """The header and the first row of each block in these rows. The first row must begin a block.

    Args:
        rows: with the column `block`; at least one.
    Raises:
        Malformed: the rows are no blocks.
    """
    marks = _whole(rows, "block")
    starts = np.flatnonzero(_valid(marks)).tolist()
    if not starts or starts[0] != 0:
        raise Malformed("rows of an object do not begin with a block")
    headers = [_header_of(packed) for packed in marks.drop_null().to_pylist()]
    stops = [*starts[1:], rows.num_rows]
    for header, start, stop in zip(headers, starts, stops, strict=True):
        if header.count != stop - start:
            raise Malformed(f"{header.count} records of a block in {stop - start} rows")
    return list(zip(headers, starts, strict=True))


def _header_of(packed: bytes) -> BlockHeader:
    if len(packed) != HEADER_BYTES:
        raise Malformed(f"a block's header of {len(packed)} bytes in a row")
    header = unpack_header(packed)
    if header.kind is not BlockKind.DATA:
        raise Malformed(f"a {header.kind.name} is in a row of records")
    return header


def _whole(rows: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    import pyarrow as pa

    column = rows.column(name)
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        raise Malformed(f"the column {name} of an object is too large to be one")
    return whole


def _valid(column: pa.Array) -> Any:
    """For each row, whether it is not null."""
    return column.is_valid().to_numpy(zero_copy_only=False)


class _RowReader:
    """Columns whose rows become bodies again, in the layout of `layout.body`."""

    def __init__(self, columns: dict[str, pa.Array]) -> None:
        import pyarrow as pa

        headers = columns["headers"]
        pairs = headers.values
        full = (columns["value"], columns["timestamp"], pairs, pairs.field(0))
        if any(column.null_count for column in full):
            raise Malformed("a row of an object lacks its value, its time or a header's name")
        self._values = _Cut(columns["value"])
        self._keys = _Cut(columns["key"])
        self._stamps = columns["timestamp"].cast(pa.int64()).to_numpy(zero_copy_only=False)
        self._has_headers = _valid(headers)
        self._any_headers = bool(self._has_headers.any())
        self._any_key = columns["key"].null_count < len(columns["key"])
        self._starts = headers.offsets.to_numpy(zero_copy_only=False)
        self._names = _Cut(pairs.field(0))
        self._header_values = _Cut(pairs.field(1))

    def body(self, start: int, stop: int) -> bytes:
        """The body of the rows `[start, stop)`."""
        if stop - start <= SMALL_RECORDS:
            return self._small_body(start, stop)
        flags = 0
        columns: list[Buffer] = [_padded(self._values.offsets(start, stop))]
        stamps = self._stamps[start:stop]
        if not bool((stamps == stamps[0]).all()):
            flags |= FLAG_TIMESTAMPS
            columns.append(stamps.astype("<i8").tobytes())
        if self._keys.any_valid(start, stop):
            flags |= FLAG_KEYS
            columns += self._keys.nullable(start, stop)
        if bool(self._has_headers[start:stop].any()):
            flags |= FLAG_HEADERS
            first, last = int(self._starts[start]), int(self._starts[stop])
            columns.append(_padded((self._starts[start : stop + 1] - first).astype("<i4")))
            columns += self._names.plain(first, last)
            columns += self._header_values.nullable(first, last)
        fixed = _FIXED.pack(stop - start, _VERSION, flags, 0, int(stamps[0]))
        return b"".join((fixed, *columns, self._values.data(start, stop)))

    def _small_body(self, start: int, stop: int) -> bytes:
        """Make a body by way of records. This takes 3 µs for a lone record; cutting columns takes
        25 µs."""
        stamps: int | list[int] = self._stamps[start:stop].tolist()
        if isinstance(stamps, list) and len(stamps) == 1:
            stamps = stamps[0]
        keys = self._keys.items(start, stop) if self._any_key else None
        headers = None
        if self._any_headers and bool(self._has_headers[start:stop].any()):
            starts = self._starts[start : stop + 1].tolist()
            names = map(bytes.decode, self._names.items(starts[0], starts[-1]))  # type: ignore[arg-type]
            values = self._header_values.items(starts[0], starts[-1])
            pairs = list(zip(names, values, strict=True))
            headers = [pairs[at - starts[0] : to - starts[0]] for at, to in pairwise(starts)]
        if keys is not None and all(key is None for key in keys):
            keys = None
        values_ = self._values.items(start, stop)
        return encode_body(values_, timestamps_us=stamps, keys=keys, headers=headers)  # type: ignore[arg-type]


class _Cut:
    """A column of bytes or text, from which callers cut runs of rows."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()[-3:]
        count = len(column)
        if offsets is None or count == 0:
            self._offsets = np.zeros(count + 1, np.int32)
        else:
            self._offsets = np.frombuffer(offsets, np.int32, count + 1, 4 * column.offset)
        self._data = memoryview(data if data is not None else b"")
        self._valid = _valid(column)

    def offsets(self, start: int, stop: int) -> Any:
        """Offsets from 0 of the rows `[start, stop)`."""
        return (self._offsets[start : stop + 1] - self._offsets[start]).astype("<i4")

    def data(self, start: int, stop: int) -> memoryview:
        """The bytes of these values, back to back."""
        return self._data[int(self._offsets[start]) : int(self._offsets[stop])]

    def items(self, start: int, stop: int) -> list[bytes | None]:
        """These values as a list; a null is None."""
        offsets = self._offsets[start : stop + 1].tolist()
        valid = self._valid[start:stop].tolist()
        return [
            bytes(self._data[at:to]) if there else None
            for (at, to), there in zip(pairwise(offsets), valid, strict=True)
        ]

    def any_valid(self, start: int, stop: int) -> bool:
        """Whether a value in the rows `[start, stop)` is not null."""
        return bool(self._valid[start:stop].any())

    def plain(self, start: int, stop: int) -> list[Buffer]:
        """The buffers of a column without nulls."""
        data = self.data(start, stop)
        return [_padded(self.offsets(start, stop)), data, bytes(-len(data) & 7)]

    def nullable(self, start: int, stop: int) -> list[Buffer]:
        """The buffers of a column that may hold nulls."""
        bitmap = np.packbits(self._valid[start:stop], bitorder="little").tobytes()
        return [bitmap, bytes(-len(bitmap) & 7), *self.plain(start, stop)]


def _padded(column: Any) -> bytes:
    packed: bytes = column.tobytes()
    return packed + bytes(-len(packed) & 7)
