"""The present files of a table, for a job that reads tables of three formats.

A Delta or Iceberg table says in its own log which files count; others lie there as well, of
older versions and of commits that never came about. If a table's metadata says more, such as
deleted rows or renamed columns, the files alone are not the table, and it is refused.

Source: docs/sources/spark.md §5, §7; Delta protocol, "Reader features"; Iceberg's
spec, "Scan Planning".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import BadSetting
from cordwood.lsn import LSN_MAX
from cordwood.spark.jobs.partitions import partition_value
from cordwood.spark.jobs.table import FORMATS, OURS, check_name, is_hidden

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BEYOND_FILES = ("deletionVectors", "columnMapping")
"""Delta's features that make a file differ from its rows in the table."""


def table_files(path: Path, format_: str) -> list[Path]:
    """The data files of a table, in an order that does not change.

    Raises:
        BadSetting: the table does not exist, is not of this format, has files that alone do not
            give its rows (as with deletes), or the library that reads it is not installed.
    """
    if format_ not in FORMATS:
        raise BadSetting(f"a table is {', '.join(FORMATS)}, not {format_!r}")
    check_name(path, format_)
    try:
        files = _FINDERS[format_](path)
    except ImportError as error:
        raise BadSetting(
            f"reading {format_} needs `pip install 'cordwood[lake]'` ({error})"
        ) from error
    if not files:
        raise BadSetting(f"{path} holds no {format_} table, or an empty one")
    return sorted(files)


def steps(files: Sequence[Path], step_bytes: int) -> Iterator[list[Path]]:
    """Files in runs of about `step_bytes`, one at least."""
    step: list[Path] = []
    size = 0
    for file in files:
        file_bytes = file.stat().st_size
        if step and size + file_bytes > step_bytes:
            yield step
            step, size = [], 0
        step.append(file)
        size += file_bytes
    if step:
        yield step


def ordered_steps(table: Path, files: Sequence[Path], step_bytes: int) -> Iterator[list[Path]]:
    """As `steps`, for rows that are written by log and LSN: those of a step come after those of the
    steps before it.

    Spark names files by task and by chance, so their paths are in no order. Files of which the LSNs
    overlap are in one step, however large it is. Without LSNs the order is that of the paths.
    """
    found = [_Rows.of(table, file) for file in files]
    if not any(each.has_lsns for each in found):
        yield from steps(files, step_bytes)
        return
    runs: list[list[Path]] = []
    reached = (-1, -1)
    for each in sorted(found):
        if each.first > reached:
            runs.append([])
        runs[-1].append(each.file)
        reached = max(reached, each.last)
    step: list[Path] = []
    size = 0
    for run in runs:
        run_bytes = sum(file.stat().st_size for file in run)
        if step and size + run_bytes > step_bytes:
            yield step
            step, size = [], 0
        step += run
        size += run_bytes
    yield step


Span = tuple[int, int, int, int]
"""The first log and LSN of a file's rows, and the last: it has no row outside of them."""


def span_of(table: Path, file: Path) -> Span | None:
    """The span of a file's rows by its footer; None if it does not tell LSNs."""
    rows = _Rows.of(table, file)
    return (*rows.first, *rows.last) if rows.has_lsns else None


class _Rows(NamedTuple):
    """The rows of a file, by log and LSN.

    Attributes:
        first, last: it has no row outside of them.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    file: Path
    has_lsns: bool

    @classmethod
    def of(cls, table: Path, file: Path) -> _Rows:
        """Read the statistics in a file's footer."""
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(file)
        parts = [part for part in file.relative_to(table).parts[:-1] if "=" in part]
        named = dict(map(partition_value, parts))
        logs = _bounds(metadata, named, "log_id") or (0, 0)
        told = _bounds(metadata, named, "lsn")
        lsns = told if told is not None and logs[0] == logs[1] else _ANY
        return cls((logs[0], lsns[0]), (logs[1], lsns[1]), file, told is not None)


_ANY = (0, LSN_MAX)


def _bounds(
    metadata: pq.FileMetaData, named: Mapping[str, str | None], column: str
) -> tuple[int, int] | None:
    """The least and the greatest value of a column of numbers; None if the file has no such column.

    Args:
        named: the values in the names of directories.
    """
    if column in named:
        value = named[column] or ""
        return (int(value), int(value)) if value.isascii() and value.isdigit() else _ANY
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if column not in paths:
        return None
    found: list[int] = []
    for group in range(metadata.num_row_groups):
        told = metadata.row_group(group).column(paths.index(column)).statistics
        if told is None or not told.has_min_max or not isinstance(told.min, int):
            return _ANY
        found += (told.min, told.max)
    return (min(found), max(found)) if found else _ANY


def _parquet_files(path: Path) -> list[Path]:
    for other, sign in (("delta", path / "_delta_log"), ("iceberg", path / "metadata")):
        if sign.is_dir():
            raise BadSetting(
                f"{path} is a table of {other}, in which not every file counts: "
                f"say --format {other}"
            )
    return [
        file
        for file in path.rglob("*.parquet")
        if not any(map(is_hidden, file.relative_to(path).parts))
    ]


def _delta_files(path: Path) -> list[Path]:
    from deltalake import DeltaTable

    from cordwood.spark.jobs.delta_paths import paths_of

    if not DeltaTable.is_deltatable(str(path)):
        return []
    table = DeltaTable(str(path))
    used = set(table.protocol().reader_features or ())
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        used.add("columnMapping")
    if beyond := sorted(used.intersection(_BEYOND_FILES)):
        raise BadSetting(
            f"{path} has Delta's {' and '.join(beyond)}, so its files alone are not the table: "
            "copy it to a table without, and give that"
        )
    # Trap: `file_uris` writes the table's own directory as a URL has it, and the rest as it is.
    return [_local(file) if "://" in file else path / file for file in paths_of(table)]


def _iceberg_files(path: Path) -> list[Path]:
    from pyiceberg.table import StaticTable

    metadata = _iceberg_metadata(path)
    if metadata is None:
        return []
    found = []
    for task in StaticTable.from_metadata(str(metadata)).scan().plan_files():
        if task.delete_files:
            raise BadSetting(
                f"{path} has rows that are deleted beside its files, so the files alone are not "
                "the table: have an engine rewrite them (rewrite_data_files), or copy the table"
            )
        found.append(_local(task.file.file_path))
    return found


def _iceberg_metadata(path: Path) -> Path | None:
    """The table's present metadata file: from a landing's catalog, else by file names.

    Raises:
        BadSetting: the catalog knows no table of this directory.
    """
    if (path / OURS / "catalog.db").exists():
        from cordwood.spark.jobs.iceberg_table import IcebergTable

        location = IcebergTable(path, ()).metadata_location()
        return None if location is None else _local(location)
    named = {
        int(number[1]): file
        for file in path.glob("metadata/*.metadata.json")
        if (number := _NUMBER.match(file.name))
    }
    return named[max(named)] if named else None


_NUMBER = re.compile(r"v?(\d{1,18})[.-]")
"""`v3.metadata.json` of a table in a directory, `00003-….metadata.json` of one in a catalog."""


def _local(place: str) -> Path:
    scheme, colon, rest = place.partition("://")
    if colon and scheme != "file":
        raise BadSetting(f"{place} is not in a directory of this machine; {scheme} is not built")
    return Path(rest if colon else place)


_FINDERS = {"parquet": _parquet_files, "delta": _delta_files, "iceberg": _iceberg_files}
