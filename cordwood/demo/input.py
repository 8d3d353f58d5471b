"""The input of the demo: records, in order, from a source of known size.

Two sources: the flights (`demo.flights`) and files of any kind (`demo.files`). A source says
beforehand how large its records can become, so that the WAL is made large enough and never full.

Source: docs/design.md §11; the records' columns are those of Kafka (docs/sources/spark.md §6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

BATCH_BYTES = 256 << 10
"""Bytes of values in one append. Larger appends are no faster (docs/sources/hotpath.md §4), and
some hundred of them make a smooth progress bar."""

BATCH_RECORDS = 1_000
"""Most records of an append: some milliseconds of work between two ticks, so that the tail keeps
up."""

BATCHES_WANTED = 16
"""A small input is divided into more batches, so that there is a middle at which to kill a node,
and batches are in flight when the sequencer's node is killed."""

Headers = tuple[tuple[str, bytes | None], ...]


class InputRecord(NamedTuple):
    """One record to append.

    Attributes:
        key: what the query groups by.
        value: the payload.
        timestamp_us: the record's own time, µs since 1970 UTC.
        headers: name and value pairs.
    """

    key: bytes
    value: bytes
    timestamp_us: int
    headers: Headers = ()


@dataclass(slots=True)
class Tally:
    """The counts of plain Python for one key, to compare with the query's answer.

    Attributes:
        records: records with this key.
        units: what the query counts: flights that arrived, or lines.
        total: what the query sums: minutes of delay, or bytes of the lines.
    """

    records: int = 0
    units: int = 0
    total: int = 0

    def add(self, amount: int) -> None:
        """Count one unit."""
        self.units += 1
        self.total += amount


class Source(Protocol):
    """Records, and the facts known about them beforehand.

    Attributes:
        log: the log they go to, and the name of its query.
        title: description for a person.
        unit: the unit of `size`.
        size: the whole input; `taken` counts up to it.
        taken: the part of `size` that went into the records given out so far.
        record_bytes_max: most bytes of keys, values and headers of all records.
        stored_bytes_max: most bytes of the compressed bodies of all their blocks.
        records_max: most records.
        tallies: by key, complete once all records were given out.
    """

    log: str
    title: str
    unit: str
    size: int
    taken: int
    record_bytes_max: int
    stored_bytes_max: int
    records_max: int
    tallies: dict[bytes, Tally]

    def records(self) -> Iterator[InputRecord]:
        """Every record, in order; to be called once.

        Raises:
            OSError: an input cannot be read any more.
        """
        ...


@dataclass(slots=True)
class InputChunk:
    """Records that are appended by one call.

    Attributes:
        bytes: of all keys and values.
    """

    records: list[InputRecord] = field(default_factory=list)
    bytes: int = 0


def batches(source: Source) -> Iterator[InputChunk]:
    """The records of a source in batches, each of a size for one append."""
    bytes_limit = min(BATCH_BYTES, source.record_bytes_max // BATCHES_WANTED)
    records_limit = max(1, min(BATCH_RECORDS, source.records_max // BATCHES_WANTED))
    batch = InputChunk()
    for record in source.records():
        batch.records.append(record)
        batch.bytes += len(record.key) + len(record.value)
        if batch.bytes >= bytes_limit or len(batch.records) >= records_limit:
            yield batch
            batch = InputChunk()
    if batch.records:
        yield batch
