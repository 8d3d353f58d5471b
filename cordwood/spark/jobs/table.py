"""A table that batches are landed in: the common interface of its three formats.

A batch's files are written into a staging directory inside the table, where no reader looks,
and then *published* in one step that also notes (query, batch) and where in the logs the batch
ends. A batch that was published is never published again. So the table holds each record once, even
if a process dies in between.

Names that begin with an underscore are hidden from Spark, pyarrow, Delta and DuckDB alike.

Source: docs/sources/spark.md §5, §7 ("atomic offset and snapshot").
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from cordwood.durable import check_file, make_directories, open_private, publish, sync_files
from cordwood.errors import BadSetting, Corrupt, StoreInUse
from cordwood.spark.jobs.partitions import partition_value

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "delta", "iceberg")

OURS = "_cordwood"
"""The directory in which a table keeps the checkpoint, staged files and notes."""

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file in the staging directory.

    Attributes:
        path: where it is.
        directory: where below the table it goes, "" or `event_date=2026-01-01`.
        partition: values by column as text, None for null.
        rows, bytes: its contents.
    """

    path: Path
    directory: str
    partition: Mapping[str, str | None]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The contents of one commit.

    Attributes:
        query, batch: the batch's identity; the pair is published once.
        offset: where in the logs the batch ends, as `offsets` writes it.
        schema: of the table from now on, partition columns included.
    """

    query: str
    batch: int
    offset: Mapping[str, Any]
    files: Sequence[StagedFile]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: removed files, and the files in their place."""

    removed: int = 0
    added: int = 0


class LakeTable(Protocol):
    """One table of one format."""

    @property
    def partition_in_files(self) -> bool:
        """Whether partition columns must be in the files too, not only in directories."""

    def published(self, query: str) -> int:
        """The last batch of a query in the table; -1 for none."""

    def was_published(self, query: str) -> int:
        """The last batch of a query that ever was in the table, even if a restore removed it."""

    def landed(self, queries: Sequence[str]) -> dict[str, tuple[int, int]]:
        """As `published`, by query, even if another query landed since. Two batches for each query:
        all up to the first are surely in the table, and none after the second is."""

    def last_offset(self) -> Mapping[str, Any] | None:
        """Where in the logs the newest batch ends, of any query; None if nothing tells."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was landed in it yet."""

    @property
    def was_emptied(self) -> bool:
        """Whether it was restored to a version from before the first landing."""

    def publish(self, batch: StagedBatch) -> None:
        """Put a batch into the table, whole or not at all, and once."""

    def compact(self, target_bytes: int) -> Compacted:
        """Join small files to some of about `target_bytes`."""


def check_path(text: str) -> Path:
    """A table's directory.

    Raises:
        BadSetting: it is no directory of this machine.
    """
    scheme, colon, rest = text.partition("://")
    if colon and scheme != "file":
        raise BadSetting(
            f"{text}: a table is landed in a directory, of this machine or mounted on it and on "
            f"every executor; {scheme} is not built"
        )
    path = Path(os.path.abspath(os.path.expanduser(rest if colon else text)))
    if path.exists() and not path.is_dir():
        raise BadSetting(f"{text} is a file; a table is a directory")
    return path


def check_name(path: Path, format_: str) -> None:
    """Check that a format's library finds a table by the name of its directory.

    Trap: `deltalake` writes a table where it is told to, and decodes the name of the directory
    before it reads the table. It resolves symbolic links first, and decodes a URL twice, so no
    other name leads to the directory.

    Raises:
        BadSetting: it would read another directory.
    """
    if format_ == "delta" and (escape := _ESCAPE.search(str(path))):
        raise BadSetting(
            f"{path}: the library of Delta tables (deltalake) takes {escape[0]} in the name of a "
            f"directory for {unquote(escape[0])!r}, and reads another directory: choose a "
            "directory without it, or another format"
        )


@contextmanager
def only_writer(table: Path) -> Iterator[None]:
    """Hold the table: it has one committer at a time.

    Raises:
        StoreInUse: another process of this machine lands into it.
    """
    ours = table / OURS
    ours.mkdir(parents=True, exist_ok=True)
    with open(open_private(ours / "lock", os.O_RDWR | os.O_CREAT | os.O_APPEND), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUse(f"another job lands into {table}: wait for it, or stop it") from None
        yield


def staged_files(staging: Path, prefix: str = "") -> list[StagedFile]:
    """The files that Spark wrote below a staging directory, in order of their paths.

    Args:
        prefix: of the directories' columns, which is taken off.
    """
    import pyarrow.parquet as pq

    found = []
    for path in sorted(staging.rglob("*.parquet")):
        if any(map(is_hidden, path.relative_to(staging).parts)):
            continue
        rows = pq.read_metadata(path).num_rows
        parts = [part.removeprefix(prefix) for part in path.relative_to(staging).parts[:-1]]
        partition = dict(map(partition_value, parts))
        if rows:
            found.append(StagedFile(path, "/".join(parts), partition, rows, path.stat().st_size))
    return found


def is_hidden(part: str) -> bool:
    """Whether a name below a table or a staging directory holds none of its rows.

    A speculative task, or a task of a dead driver, continues to write below `_temporary` after the
    job's commit. The directory of a column's value may begin so too, as in `_day=1` and `.day=1`:
    left out, its rows would be lost.
    """
    return part.startswith(("_", ".")) and "=" not in part


def make_durable(table: Path, files: Sequence[StagedFile]) -> None:
    """Put staged files on stable storage, and the directories that name them, before anything
    says that they count."""
    sync_files([file.path for file in files], table)


def check_staged(path: Path, file: StagedFile, told_by: str) -> None:
    """Check that a data file, here or in its staging place, equals the published file.

    Raises:
        Corrupt: its length, its footer or its number of rows differs.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, file.bytes, told_by)
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{path} is no whole Parquet file ({error}), as {told_by} says") from error
    if rows != file.rows:
        raise Corrupt(f"{path} has {rows} rows, and {told_by} says {file.rows}")


def check_types(path: Path, known: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Check that a batch's columns have the types of the table's, before it is published.

    Files of two types under one name make the whole table unreadable, and not the batch alone.

    Args:
        known, given: types by name, as the table's format writes them.
    Raises:
        BadSetting: a column has another type.
    """
    for name, type_ in given.items():
        if (before := known.get(name, type_)) != type_:
            raise BadSetting(
                f"{path} has {name} as {before}, and this batch has it as {type_}: types of a "
                "table stay, so nothing of it is landed. Have the decode function give the type "
                "that was, or another name"
            )


def move_in(table: Path, files: Sequence[StagedFile], below: str = "") -> list[Path]:
    """Rename files to their final places; files already in place stay.

    Args:
        below: a directory of the table that they go into.
    """
    places = [table / below / file.directory / file.path.name for file in files]
    present = [file for file in files if file.path.exists()]
    make_durable(table, present)
    make_directories(table / below, 0o777)
    publish([(file.path, place) for file, place in zip(files, places, strict=True)])
    return places
