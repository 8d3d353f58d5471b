"""The definition of a landing: the logs, the table, and the ranges that it would read now.

Source: docs/sources/spark.md §7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordwood.durable import write_whole
from cordwood.errors import BadSetting
from cordwood.lsn import OLDEST
from cordwood.spark.bounds import batch_ranges, initial_places, stream_stops
from cordwood.spark.catalog import Catalog
from cordwood.spark.checkpoint import Checkpoint
from cordwood.spark.jobs.notes import damaged, read_note
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.jobs.partitions import check_partition_columns
from cordwood.spark.jobs.table import FORMATS, OURS, LakeTable, check_name, check_path
from cordwood.spark.offsets import check_cluster, parse_offset
from cordwood.spark.options import parse_options
from cordwood.spark.runs import records_in

EVENT_DATE = "event_date"

TRIGGER_S = 60.0
"""The time between micro-batches of a landing that follows. One file a minute gives few files, and
they are not small."""


@dataclass(frozen=True, slots=True)
class Landing:
    """What to land, where and how.

    Attributes:
        source: options of the source; `startingOffsets` is earliest unless it says otherwise.
        table: a directory.
        format: one of `table.FORMATS`.
        partition_by: `event_date`, or columns of the table; none for a table in one piece.
        decode: "" for raw records, `json`, or a user's `module:function`.
        schema: of the JSON fields, as Spark's DDL; "" to infer them.
        follow: continue until stopped; otherwise land the present records, and end.
        trigger_s: seconds between micro-batches of a following landing.
        compact: join small files at the end.
    """

    source: Mapping[str, str]
    table: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = (EVENT_DATE,)
    decode: str = ""
    schema: str = ""
    follow: bool = False
    trigger_s: float = TRIGGER_S
    compact: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise BadSetting(f"format is {self.format!r}; it is one of {', '.join(FORMATS)}")
        check_partition_columns(self.partition_by)
        if self.format == "parquet" and (
            hidden := [n for n in self.partition_by if n.startswith((".", "_"))]
        ):
            raise BadSetting(
                f"cannot partition by {hidden[0]}: readers of Parquet take a directory whose name "
                "begins with a dot or an underscore for a hidden one. Give the column another "
                "name, or land in delta or iceberg"
            )
        if self.schema and self.decode != "json":
            raise BadSetting("a schema is for decode json")
        if self.compact and self.format == "iceberg":
            raise BadSetting("small files of an Iceberg table are joined by other engines")


@dataclass(frozen=True, slots=True)
class Planned:
    """The range that a landing would read of one log: `[first, stop)`, with at most `records`
    records."""

    log: str
    log_id: int
    first: int
    stop: int
    records: int


def table_path(landing: Landing) -> Path:
    """The table's directory.

    Raises:
        BadSetting: it is none of this machine, or its name is none for the format.
    """
    path = check_path(landing.table)
    check_name(path, landing.format)
    return path


def open_table(path: Path, landing: Landing) -> LakeTable:
    """The adapter of a landing's format.

    Raises:
        BadSetting: a needed package is not installed.
    """
    if landing.format == "parquet":
        return ParquetTable(path)
    try:
        if landing.format == "delta":
            from cordwood.spark.jobs.delta_table import DeltaLake

            return DeltaLake(path, landing.partition_by)
        from cordwood.spark.jobs.iceberg_table import IcebergTable

        return IcebergTable(path, landing.partition_by)
    except ImportError as error:
        raise BadSetting(
            f"landing in {landing.format} needs `pip install 'cordwood[lake]'` ({error})"
        ) from error


def settle(path: Path, landing: Landing) -> None:
    """Store the table's definition, or check that it has not changed.

    Raises:
        BadSetting: it is another.
    """
    if _check_same(path, landing):
        return
    if any(path.glob("*.parquet")) or any(path.glob("*=*")):
        raise BadSetting(f"{path} holds a table that no landing made: give another directory")
    write_whole(path / OURS / "table.json", json.dumps(_made_of(landing), indent=1).encode())


def _made_of(landing: Landing) -> dict[str, Any]:
    return {
        "format": landing.format,
        "partition_by": list(landing.partition_by),
        "decode": landing.decode,
        "source": {
            name: value
            for name, value in sorted(landing.source.items())
            if name.lower() in ("subscribe", "subscribepattern", "assign")
        },
    }


def _check_same(path: Path, landing: Landing) -> bool:
    """Whether the table is there, made as this landing makes it.

    Raises:
        BadSetting: it is another.
        Malformed: the stored definition cannot be read.
    """
    note = path / OURS / "table.json"
    theirs = read_note(note)
    if theirs is None:
        return False
    if missing := sorted(_made_of(landing).keys() - theirs.keys()):
        raise damaged(note, f"it lacks {', '.join(missing)}")
    for name, value in _made_of(landing).items():
        if theirs.get(name) != value:
            raise BadSetting(
                f"{path} was landed with {name} {json.dumps(theirs.get(name))}, and this landing "
                f"says {json.dumps(value)}: say the same, or give another directory"
            )
    return True


def dry_run(landing: Landing) -> list[Planned]:
    """What `land` would read if it ran now; nothing is written, and no Spark is started.

    Raises:
        BadSetting: an option of the landing is wrong.
    """
    path = table_path(landing)
    _check_same(path, landing)
    last = Checkpoint(path / OURS / "checkpoint").done()
    if last is None and (path / OURS).exists():
        last = dict(open_table(path, landing).last_offset() or {}) or None
    return _planned(landing.source, last)


def planned_reads(source: Mapping[str, str], checkpoint: str) -> list[Planned]:
    """The ranges that a query with this checkpoint would read now; from the earliest if it is
    new."""
    return _planned(source, Checkpoint(check_path(checkpoint)).done())


def planned_batch(source: Mapping[str, str]) -> list[Planned]:
    """The range that a batch would read of each log with new records."""
    options = parse_options(source)
    options.check_batch()
    catalog = Catalog(options)
    logs = catalog.selected()
    tails = catalog.tails(logs)
    return [
        Planned(logs[log], log, first, stop, records_in(catalog.runs(log, first, stop)))
        for log, (first, stop) in batch_ranges(catalog.placed(logs, tails), logs, tails).items()
    ]


def _planned(source: Mapping[str, str], last: Mapping[str, Any] | None) -> list[Planned]:
    """The ranges between the offset `last`, or the source's start, and the source's end."""
    options = parse_options({"startingOffsets": "earliest", **source})
    options.check_stream()
    catalog = Catalog(options, may_miss=last is not None)
    logs = catalog.selected()
    tails = catalog.tails(logs)
    if last is None:
        places: Mapping[int, int] = initial_places(catalog.placed(logs, tails), logs, tails)
    else:
        before = parse_offset(last)
        check_cluster(before.cluster, catalog.cluster)
        catalog.check_missing(catalog.all_logs(), before)
        places = {**dict.fromkeys(logs, int(OLDEST)), **before.logs}
    stops = stream_stops(options, logs, tails)
    return [
        Planned(name, log, first, stop, records_in(catalog.runs(log, first, stop)))
        for log, name in logs.items()
        if (stop := stops[log]) > (first := places[log])
    ]
