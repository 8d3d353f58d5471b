"""An object: a Parquet file that any engine reads, and an index that makes it a log again.

The file is plain Parquet: row groups, a footer, its length, `PAR1`. Row groups follow blocks: none
is cut in two. They lie back to back from byte 4 on, so each is one ranged get. Cordwood's index is
the text `cordwood` of the footer's key-value metadata, JSON::

    {"version": 1,
     "groups": [[start, stop, crc32c, rows], …],
     "runs": [{"log": 7, "name": "/orders", "fence": 3, "first": lsn, "last": lsn,
               "pieces": [[group, row, rows, first, last,
                           append_first_us, append_last_us, time_min_us, time_max_us, bytes,
                           payload], …],
               "gaps": [[first, last, "hole"], …]}, …]}

A *run* is the object's part of one log: pieces (blocks in one row group) and gaps tile `[first,
last]`. Runs come by the log's number; a log has one. `fence` is the number of the turn in which it
was uploaded.

Damage is found: each group's bytes have a CRC32C in the index. The footer's CRC32C is in the
object's name and in the manifest, and covers all bytes after the last group. Bodies have CRCs of
their own as well. The four bytes `PAR1` at the start are compared.

A reader without Cordwood needs none of this: `SELECT * FROM 'logs/*/objects/*.parquet'`.

Source: docs/objects.md, "Objects"; Apache Parquet, "File format".
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from cordwood.block import BlockHeader, Buffer, Gap, GapKind
from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.layout.object_columns import OBJECT_COLUMNS, object_schema, rows_to_blocks
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.tiered import Entry

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
Index = TypeVar("Index", bound=msgspec.Struct)

INDEX_KEY = b"cordwood"
VERSION = 1

TRAILER_BYTES = 8
"""The footer's length and the magic, after it."""

FOOTER_BYTES_MAX = 16 << 20
"""A footer of 64 MiB of small logs' records is 1 MiB."""

GAP_KINDS = {kind.value: kind for kind in (GapKind.BRIDGE, GapKind.HOLE, GapKind.TRIM,
                                           GapKind.DATA_LOSS)}  # fmt: skip
"""The kinds of permanent gaps in a log. DATA_LOSS is among them only if an operator accepted the
loss."""


class Group(NamedTuple):
    """A row group: its bytes `[start, stop)`, their CRC32C, its rows."""

    start: int
    stop: int
    crc: int
    rows: int


class Piece(NamedTuple):
    """Blocks of one log in one row group.

    Attributes:
        group, row, rows: where its rows are.
        first, last: the LSNs of its records.
        append_first_us, append_last_us: append times, which never fall along a log.
        time_min_us, time_max_us: the records' own.
        bytes: of the bodies, uncompressed.
        payload: bytes of the records as nodes stored them (`layout.body.payload_bytes`); 0 where
            the object was written before that was noted.
    """

    group: int
    row: int
    rows: int
    first: int
    last: int
    append_first_us: int
    append_last_us: int
    time_min_us: int
    time_max_us: int
    bytes: int
    payload: int = 0


class ObjectRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an object that belongs to one log; see the module."""

    log: int
    name: str
    fence: int
    first: int
    last: int
    pieces: tuple[Piece, ...]
    gaps: tuple[tuple[int, int, str], ...]

    def gap_list(self) -> list[Gap]:
        """The gaps of the run, as readers get them."""
        return [Gap(Lsn(first), Lsn(last), GAP_KINDS[kind]) for first, last, kind in self.gaps]


class ObjectIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index of an object; see the module."""

    version: int
    groups: tuple[Group, ...]
    runs: tuple[ObjectRun, ...]

    def run(self, log: int) -> ObjectRun | None:
        """The run of a log in this object; None if the object has none."""
        return next((run for run in self.runs if run.log == log), None)


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer that was checked.

    Attributes:
        index: Cordwood's.
        metadata: pyarrow's.
        bytes: of the footer and what follows it.
    """

    index: ObjectIndex
    metadata: Any
    bytes: int


def pack_index(index: ObjectIndex) -> bytes:
    """Write an index."""
    return msgspec.json.encode(index)


def footer_bytes(trailer: Buffer) -> int:
    """The bytes of a footer and of the rest after it, from the file's last TRAILER_BYTES.

    Raises:
        Malformed: the file does not end as Parquet does, or the footer is too large.
    """
    end = bytes(trailer)[-TRAILER_BYTES:]
    if len(end) != TRAILER_BYTES or end[4:] != MAGIC:
        raise Malformed("the object does not end as a Parquet file does")
    size = int.from_bytes(end[:4], "little") + TRAILER_BYTES
    if size > FOOTER_BYTES_MAX:
        raise Malformed(f"a footer of {size} bytes; it has at most {FOOTER_BYTES_MAX}")
    return size


def read_footer(tail: Buffer, crc: int, size: int) -> Footer:
    """Check a footer and read it.

    Args:
        tail: the object's end, from the footer's first byte.
        crc: CRC32C of it, from the object's name or its manifest.
        size: bytes of the object.
    Raises:
        ChecksumMismatch: it is not the footer that was written.
        Malformed: it is no footer of ours.
    """
    index, metadata = read_index(tail, crc, "an object", INDEX_KEY, ObjectIndex, object_schema())
    _check_index(index, metadata, size - len(tail))
    return Footer(index, metadata, len(tail))


def read_index(
    tail: Buffer, crc: int, what: str, key: bytes, kind: type[Index], schema: pa.Schema
) -> tuple[Index, Any]:
    """The index in a footer, and Parquet's own metadata.

    Args:
        tail, crc: as of `read_footer`.
        what: the kind of object, in words.
        key, kind: the place of the index in the footer, and its type.
        schema: the columns that the object must have.
    Raises:
        ChecksumMismatch, Malformed: as `read_footer`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tail = bytes(tail)
    if crc32c(tail) != crc:
        raise ChecksumMismatch(f"the footer of {what}: its checksum is wrong")
    if len(tail) != footer_bytes(tail):
        raise Malformed(f"a footer of {footer_bytes(tail)} bytes in {len(tail)}")
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        columns = metadata.schema.to_arrow_schema()
        text = (metadata.metadata or {})[key]
        index = msgspec.json.decode(text, type=kind)
    except (pa.ArrowException, OSError, KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the footer of {what} cannot be read: {error}") from error
    if not columns.equals(schema):
        raise Malformed(f"{what} has other columns than ours")
    return index, metadata


def check_object(content: Buffer, crc: int) -> Footer:
    """Check all of an object: footer, groups, every body.

    Raises:
        ChecksumMismatch, Malformed: bytes differ from the written ones.
    """
    view = memoryview(content)
    tail = view[max(0, len(view) - footer_bytes(view[-TRAILER_BYTES:])) :]
    footer = read_footer(tail, crc, len(view))
    if view[: len(MAGIC)] != MAGIC:
        raise Malformed("the object does not begin as a Parquet file does")
    for number in range(len(footer.index.groups)):
        check_group(footer, number, _bytes_of(footer, number, view))
    for number in range(len(footer.index.groups)):
        for _ in rows_to_blocks(read_group(footer, number, _bytes_of(footer, number, view))):
            pass
    return footer


def _bytes_of(footer: Footer, number: int, content: memoryview) -> memoryview:
    group = footer.index.groups[number]
    return content[group.start : group.stop]


def check_group(footer: Footer, number: int, content: Buffer) -> None:
    """Check that bytes are those of a row group.

    Raises:
        ChecksumMismatch, Malformed: they are not.
    """
    check_group_bytes(footer.index.groups[number], number, content)


def check_group_bytes(group: Group, number: int, content: Buffer) -> None:
    """As `check_group`, of any file that has row groups of this form.

    Raises:
        ChecksumMismatch, Malformed: they are not the group's.
    """
    if len(content) != group.stop - group.start:
        raise Malformed(f"{len(content)} bytes of a row group of {group.stop - group.start}")
    if crc32c(content) != group.crc:
        raise ChecksumMismatch(f"row group {number} of an object: its checksum is wrong")


def read_group(
    footer: Footer, number: int, content: Buffer, columns: Sequence[str] = OBJECT_COLUMNS
) -> pa.Table:
    """Check the bytes of a row group and read its rows.

    Args:
        content: its bytes, `[start, stop)` of `footer.index.groups[number]`.
    Raises:
        ChecksumMismatch: they are not the bytes that were written.
        Malformed: they are no row group of ours.
    """
    group = footer.index.groups[number]
    return read_group_rows(footer.metadata, group, number, content, columns)


def read_group_rows(
    metadata: Any, group: Group, number: int, content: Buffer, columns: Sequence[str]
) -> pa.Table:
    """As `read_group`, of any file that has row groups of this form.

    Args:
        metadata: pyarrow's, of the file.
    Raises:
        ChecksumMismatch, Malformed: they are not the group's.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_group_bytes(group, number, content)
    window = pa.PythonFile(_Window(content, group.start), mode="r")
    try:
        with pq.ParquetFile(window, metadata=metadata) as file:
            rows = file.read_row_group(number, columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"row group {number} of an object cannot be read: {error}") from error
    if rows.num_rows != group.rows:
        raise Malformed(f"row group {number} of an object has other rows than its index says")
    return rows.select(list(columns))


def piece_blocks(
    piece: Piece, rows: pa.Table, *, log: int, verify: bool = True
) -> Iterator[tuple[BlockHeader, Buffer]]:
    """The blocks of a piece.

    Args:
        rows: its row group's rows.
        log: the log of the piece.
    Raises:
        ChecksumMismatch, Malformed: as `rows_to_blocks`, or they are other blocks.
    """
    expected = piece.first
    for header, raw in rows_to_blocks(rows.slice(piece.row, piece.rows), verify=verify):
        check_place(piece, header, expected, log=log)
        expected = header.last + 1
        yield header, raw
    check_end(piece, expected, log=log)


def check_place(piece: Piece, header: BlockHeader, expected: int, *, log: int) -> None:
    """Check that a block of a piece is the one that begins at the LSN `expected`.

    Raises:
        Malformed: it is not.
    """
    if header.log != log or header.first != expected or header.last > piece.last:
        raise Malformed(
            f"a block of log {header.log} at {Lsn(header.first)} stands where one of log {log} "
            f"at {Lsn(expected)} should"
        )


def check_end(piece: Piece, expected: int, *, log: int) -> None:
    """Check that a piece ends before the LSN `expected`.

    Raises:
        Malformed: it does not.
    """
    if expected != piece.last + 1:
        raise Malformed(f"a piece of log {log} ends at {Lsn(expected)}, before {Lsn(piece.last)}")


def entry_of(
    run: ObjectRun, name: str, size: int, footer_bytes: int, footer_crc: int, after_us: int = 0
) -> Entry:
    """A manifest's entry of an object, for one log.

    Args:
        size, footer_bytes, footer_crc: the object's.
        after_us: append time of the entry before it. Append times never fall along a manifest, and
            a run that has only gaps has no time of its own.
    """
    pieces = run.pieces
    return Entry(
        run.first,
        run.last,
        run.fence,
        name,
        footer_crc,
        size,
        footer_bytes,
        sum(piece.rows for piece in pieces),
        sum(piece.bytes for piece in pieces),
        pieces[0].append_first_us if pieces else after_us,
        max([after_us, *(piece.append_last_us for piece in pieces)]),
        min((piece.time_min_us for piece in pieces), default=after_us),
        max((piece.time_max_us for piece in pieces), default=after_us),
        sum(piece.payload for piece in pieces),
    )


class _Window(io.RawIOBase):
    """A file of which only one range of bytes is in memory. Reads outside this range return no
    bytes."""

    def __init__(self, content: Buffer, start: int) -> None:
        self._content = memoryview(content)
        self._start = start
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._start + len(self._content))
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        return bytes(self._cut(size))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """As `read`, without a copy: what pyarrow calls."""
        import pyarrow as pa

        return pa.py_buffer(self._cut(size))

    def _cut(self, size: int) -> memoryview:
        start = self._at - self._start
        if start < 0:
            return memoryview(b"")
        stop = len(self._content) if size < 0 else start + size
        found = self._content[start:stop]
        self._at += len(found)
        return found


# ---- what an index must say ----


def _check_index(index: ObjectIndex, metadata: Any, groups_end: int) -> None:
    """Check that an index belongs to this file, so that later code may use its numbers without
    checks.

    Raises:
        Malformed: it is not.
    """
    fault = (
        _fault_in_version(index)
        or fault_in_groups(index.groups, metadata, groups_end)
        or _fault_in_order(index)
        or next(filter(None, (_fault_in_run(run, index) for run in index.runs)), "")
    )
    if fault:
        raise Malformed(f"the index of an object: {fault}")


def _fault_in_version(index: ObjectIndex) -> str:
    if index.version == VERSION:
        return ""
    return f"version {index.version}, and this program reads {VERSION}"


def fault_in_groups(groups: Sequence[Group], metadata: Any, groups_end: int) -> str:
    """The reason why these are not the row groups of a file; "" if they are.

    Args:
        metadata: pyarrow's, of the file.
        groups_end: where its footer begins.
    """
    if metadata.num_row_groups != len(groups):
        return f"{len(groups)} row groups, and the file has {metadata.num_row_groups}"
    at = len(MAGIC)
    for number, group in enumerate(groups):
        if group.start != at or group.stop <= at or group.rows < 1:
            return f"row group {number} does not follow the one before it"
        if metadata.row_group(number).num_rows != group.rows:
            return f"row group {number} has other rows than the file says"
        at = group.stop
    return "" if at == groups_end else "the footer does not follow the last row group"


def _fault_in_order(index: ObjectIndex) -> str:
    logs = [run.log for run in index.runs]
    if not logs or any(log < 1 for log in logs) or logs != sorted(set(logs)):
        return "its runs are not one for each log, by number"
    at = (0, 0)
    for run in index.runs:
        for piece in run.pieces:
            if (piece.group, piece.row) != at or piece.group >= len(index.groups):
                return f"a piece of log {run.log} does not follow the one before it"
            end = piece.row + piece.rows
            whole = end == index.groups[piece.group].rows
            if piece.rows < 1 or end > index.groups[piece.group].rows:
                return f"a piece of log {run.log} leaves its row group"
            at = (piece.group + 1, 0) if whole else (piece.group, end)
    return "" if at == (len(index.groups), 0) else "rows belong to no log"


def _fault_in_run(run: ObjectRun, index: ObjectIndex) -> str:
    spans: list[tuple[int, int]] = []
    for piece in run.pieces:
        if piece.last - piece.first + 1 != piece.rows:
            return f"a piece of log {run.log} has {piece.rows} rows for another range"
        spans.append((piece.first, piece.last))
    for first, last, kind in run.gaps:
        if kind not in GAP_KINDS:
            return f"a gap of log {run.log} of the kind {kind[:32]!r}"
        spans.append((first, last))
    expected = run.first
    for first, last in sorted(spans):
        if first != expected or last < first:
            return f"log {run.log} is not told from {Lsn(expected)} on"
        expected = last + 1
    if expected != run.last + 1 or not 0 < run.first <= run.last <= LSN_MAX:
        return f"log {run.log} is not told up to its last LSN"
    return ""


def gap_row(gap: Gap) -> tuple[int, int, str]:
    """A gap in the form of an index.

    Raises:
        BadSetting: its kind is not permanent, such as the gap of a filter.
    """
    if gap.kind.value not in GAP_KINDS:
        raise BadSetting(f"a gap of the kind {gap.kind.value} is no part of a log's history")
    return int(gap.first), int(gap.last), gap.kind.value
