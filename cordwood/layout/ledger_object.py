"""An object of a ledger: a Parquet file with entries of it, which any engine reads.

It has all columns of an object of logs. Columns for which an entry has no value are null: `lsn` and
`offset` are the entry's number, `log_id` is the ledger, `log` is `ledger/<id>`. So one query reads
logs and ledgers. After these columns it has four more::

    lac, length     int64; as the writer sent them with the entry
    digest          binary; the bytes that go before the payload in the body
    body_crc        int64; CRC32C of the body, which is digest and payload

A body is rebuilt byte by byte, and its CRC proves it; the digest goes with it, so a reader checks
it as it checks a node's copy. Row groups lie back to back from byte 4 on. Cordwood's index is the
text `cordwood-ledger` of the footer's key-value metadata, JSON::

    {"version": 1, "ledger": 17, "attempt": 81…, "first": 0, "last": 99,
     "groups": [[start, stop, crc32c, rows], …]}

The footer's CRC32C is in the object's name and in the ledger's manifest.

Source: docs/objects.md, "Ledgers".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.layout.arrow import batch_schema
from cordwood.layout.entry_arrow import entries_to_batch
from cordwood.layout.ledger_entry import DIGEST_BYTES
from cordwood.layout.message_ledgers import EntryItem
from cordwood.layout.object_columns import SOURCE_COLUMNS
from cordwood.layout.object_file import (
    TRAILER_BYTES,
    Group,
    check_group_bytes,
    fault_in_groups,
    footer_bytes,
    read_group_rows,
    read_index,
)
from cordwood.layout.object_writer import COMPRESSION, GROUP_BYTES, ObjectSink
from cordwood.ledger import DigestKind

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_KEY = b"cordwood-ledger"
VERSION = 1

ENTRY_COLUMNS = ("lsn", "log_id", "value", "lac", "length", "digest", "body_crc")
"""The columns from which a reader builds entries."""

_NUMBERS = ("lac", "length", "body_crc")
_DICTIONARY = ["log", "log_id", "epoch"]
_DELTA = dict.fromkeys(("lsn", "offset", "lac", "length"), "DELTA_BINARY_PACKED")
_STATISTICS = ["log", "log_id", "lsn", "epoch", "offset", "lac", "length"]


class LedgerIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index of a ledger's object; see the module."""

    version: int
    ledger: int
    attempt: int
    first: int
    last: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class LedgerFooter:
    """A footer that was checked.

    Attributes:
        index: Cordwood's.
        metadata: pyarrow's.
        starts: the first entry of each row group.
    """

    index: LedgerIndex
    metadata: Any
    starts: tuple[int, ...]

    def group_of(self, entry: int) -> int:
        """The row group of an entry that the object has."""
        assert self.index.first <= entry <= self.index.last, "the object has the entry"
        return bisect_right(self.starts, entry) - 1


@dataclass(frozen=True, slots=True)
class FinishedLedgerObject:
    """An object that may be put.

    Attributes:
        content: its bytes.
        footer: as a reader finds it.
        footer_bytes, footer_crc: of it and what follows it.
    """

    content: Buffer
    footer: LedgerFooter
    footer_bytes: int
    footer_crc: int


@lru_cache(maxsize=1)
def ledger_object_schema() -> pa.Schema:
    """The schema of every object of a ledger."""
    import pyarrow as pa

    ours = [pa.field("digest", pa.binary()), *(pa.field(name, pa.int64()) for name in _NUMBERS)]
    return pa.schema([*batch_schema(SOURCE_COLUMNS), *ours])


class LedgerObjectWriter:
    """Writes entries of one ledger, in order and without leaving an entry out.

    Attributes:
        next: the entry that comes next.
        raw_bytes: of the bodies that were given.
    """

    def __init__(
        self,
        ledger: int,
        digest: DigestKind,
        attempt: int,
        first: int,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        import pyarrow.parquet as pq

        self.next = first
        self.raw_bytes = 0
        self._ledger = ledger
        self._digest_bytes = DIGEST_BYTES[digest]
        self._attempt = attempt
        self._first = first
        self._group_bytes = group_bytes
        self._sink = ObjectSink()
        self._file = pq.ParquetWriter(
            self._sink,
            ledger_object_schema(),
            compression=COMPRESSION,
            use_dictionary=_DICTIONARY,
            column_encoding=_DELTA,
            write_statistics=_STATISTICS,
            store_schema=False,
        )
        self._groups: list[Group] = []
        self._items: list[EntryItem] = []
        self._pending_bytes = 0

    def add(self, items: Sequence[EntryItem]) -> None:
        """Add entries as nodes keep them.

        Raises:
            BadSetting: they do not follow the entries before, or one is shorter than its digest.
        """
        for item in items:
            if item.entry != self.next or len(item.body) < self._digest_bytes:
                raise BadSetting(f"entry {item.entry} of ledger {self._ledger} at {self.next}")
            self.next += 1
            self._items.append(item)
            self.raw_bytes += len(item.body)
            self._pending_bytes += len(item.body)
            if self._pending_bytes >= self._group_bytes:
                self._close_group()

    def finish(self) -> FinishedLedgerObject:
        """Close the object, and read all of it back.

        Raises:
            BadSetting: nothing was added.
            Corrupt: it does not read as it was written.
        """
        self._close_group()
        if not self._groups:
            raise BadSetting("an object of nothing")
        index = LedgerIndex(
            VERSION, self._ledger, self._attempt, self._first, self.next - 1, tuple(self._groups)
        )
        self._file.add_key_value_metadata({INDEX_KEY: msgspec.json.encode(index)})
        self._file.close()
        content = memoryview(b"".join(self._sink.parts))
        size = footer_bytes(content[-TRAILER_BYTES:])
        tail = content[len(content) - size :]
        crc = crc32c(tail)
        footer = read_ledger_footer(tail, crc, len(content))
        for number, group in enumerate(footer.index.groups):
            read_ledger_group(footer, number, content[group.start : group.stop])
        return FinishedLedgerObject(content, footer, size, crc)

    def _close_group(self) -> None:
        import pyarrow as pa

        items, self._items = self._items, []
        if not items:
            return
        self._pending_bytes = 0
        cut = self._digest_bytes
        payloads = [memoryview(item.body)[cut:] for item in items]
        rows = entries_to_batch(self._ledger, items[0].entry, payloads, SOURCE_COLUMNS)
        columns = [
            pa.array([item.body[:cut] for item in items], pa.binary()),
            pa.array([item.lac for item in items], pa.int64()),
            pa.array([item.length for item in items], pa.int64()),
            pa.array([crc32c(item.body) for item in items], pa.int64()),
        ]
        table = pa.Table.from_arrays([*rows.columns, *columns], schema=ledger_object_schema())
        start, self._sink.crc = self._sink.size, 0
        self._file.write_table(table, row_group_size=table.num_rows)
        self._groups.append(Group(start, self._sink.size, self._sink.crc, table.num_rows))


def read_ledger_footer(tail: Buffer, crc: int, size: int) -> LedgerFooter:
    """Check a footer and read it.

    Args:
        tail: the object's end, from the footer's first byte.
        crc: CRC32C of it, from the manifest.
        size: bytes of the object.
    Raises:
        ChecksumMismatch: it is not the footer that was written.
        Malformed: it is no footer of a ledger's object.
    """
    index, metadata = read_index(
        tail, crc, "a ledger's object", INDEX_KEY, LedgerIndex, ledger_object_schema()
    )
    fault = fault_in_groups(index.groups, metadata, size - len(tail))
    if index.version != VERSION:
        fault = f"version {index.version}, and this program reads {VERSION}"
    starts = [*accumulate((group.rows for group in index.groups), initial=index.first)]
    if fault or starts.pop() != index.last + 1:
        raise Malformed(f"the index of a ledger's object: {fault or 'other rows than entries'}")
    return LedgerFooter(index, metadata, tuple(starts))


def check_ledger_group(footer: LedgerFooter, number: int, content: Buffer) -> None:
    """Check that bytes are those of a row group.

    Raises:
        ChecksumMismatch, Malformed: they are not.
    """
    check_group_bytes(footer.index.groups[number], number, content)


def read_ledger_group(footer: LedgerFooter, number: int, content: Buffer) -> list[EntryItem]:
    """The entries of a row group, as nodes kept them.

    Args:
        content: its bytes.
    Raises:
        ChecksumMismatch: a byte differs from the written one.
        Malformed: it is no row group of a ledger's object.
    """
    index, first = footer.index, footer.starts[number]
    rows = read_group_rows(footer.metadata, index.groups[number], number, content, ENTRY_COLUMNS)
    found: list[EntryItem] = []
    columns = (rows.column(name).to_pylist() for name in ENTRY_COLUMNS)
    for at, (lsn, ledger, payload, lac, length, digest, crc) in enumerate(
        zip(*columns, strict=True)
    ):
        if (lsn, ledger) != (first + at, index.ledger) or None in (payload, lac, length, digest):
            raise Malformed(
                f"entry {first + at} of ledger {index.ledger} is not where it should be"
            )
        body = digest + payload
        if crc32c(body) != crc:
            raise ChecksumMismatch(f"entry {lsn} of ledger {ledger}: its checksum is wrong")
        found.append(EntryItem(lsn, lac, length, body))
    return found
