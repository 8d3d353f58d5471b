"""A directory of Parquet files, landed in so that any reader finds each record once.

A manifest, `_cordwood/batches/QUERY/N.json`, publishes a batch: it names the staged files and their
targets. Once it is written, the batch counts; then the files are renamed one by one. After a crash
between the two, the next job that opens the table renames the rest. A reader without manifests sees
every record at most once at any time, and each once when the job is done; while files are renamed,
for some milliseconds, it may see part of a batch.

All files that a manifest names are on stable storage before the manifest is, so a power cut leaves
a batch whole or not at all. Before a file is renamed after a crash, it is compared with the
manifest: length, footer, rows. A file that differs ends the job with an error.

Compaction has no atomic step: the small files go, then the joined file comes, which was durable
before its note was. Run it while no reader is active, or land in Delta or Iceberg. From then on the
files of earlier batches may be gone; `_cordwood/moved.json` says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from cordwood.durable import make_directories, remove, write_whole
from cordwood.errors import Corrupt
from cordwood.spark.jobs.notes import (
    count_of,
    damaged,
    objects_of,
    offset_of,
    place_of,
    read_note,
    text_of,
)
from cordwood.spark.jobs.table import (
    OURS,
    Compacted,
    StagedBatch,
    StagedFile,
    check_staged,
    check_types,
    is_hidden,
    make_durable,
    move_in,
    only_writer,
)

JOIN_FILES_MAX = 1000
"""Files joined into one at a time; they are read one after another."""


class ParquetTable:
    """See the module; opened by the one job that writes to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes = _notes(path)
        self._compactions = _compactions(path)
        self._moved = path / OURS / "moved.json"
        # The newest manifest of each query. With a batch a minute, a landing has half a million
        # manifests after a year.
        self._newest = dict(_newest_manifests(path))
        self._roll_forward()

    @property
    def partition_in_files(self) -> bool:
        """False: directories hold the partition, as every reader of these tables expects."""
        return False

    def published(self, query: str) -> int:
        """See `table.LakeTable`."""
        newest = self._newest.get(query)
        return -1 if newest is None else int(newest["batch"])

    def was_published(self, query: str) -> int:
        """See `table.LakeTable`; nothing takes a batch away."""
        return self.published(query)

    def landed(self, queries: Sequence[str]) -> dict[str, tuple[int, int]]:
        """See `table.LakeTable`."""
        return {query: (self.published(query),) * 2 for query in queries}

    def last_offset(self) -> Mapping[str, Any] | None:
        """See `table.LakeTable`."""
        newest = self._last()
        return None if newest is None else newest["offset"]

    def _last(self) -> dict[str, Any] | None:
        return max(
            self._newest.values(),
            key=lambda manifest: (manifest["turn"], manifest["batch"]),
            default=None,
        )

    @property
    def is_empty(self) -> bool:
        """See `table.LakeTable`."""
        return not self._newest

    @property
    def was_emptied(self) -> bool:
        """See `table.LakeTable`; nothing takes a batch away."""
        return False

    def publish(self, batch: StagedBatch) -> None:
        """See `table.LakeTable`."""
        if batch.batch <= self.published(batch.query):
            self._roll_forward()
            return
        known = columns_of(self._last() or {})
        given = {field.name: str(field.type).replace(" not null", "") for field in batch.schema}
        check_types(self._path, known, given)
        manifest = {
            "query": batch.query,
            "batch": batch.batch,
            "turn": self._turn(batch.query),
            "columns": {**known, **given},
            "offset": dict(batch.offset),
            "files": [
                {
                    "from": str(file.path.relative_to(self._path)),
                    "directory": file.directory,
                    "rows": file.rows,
                    "bytes": file.bytes,
                }
                for file in batch.files
            ],
        }
        make_durable(self._path, batch.files)
        place = self._notes / batch.query / f"{batch.batch:012}.json"
        write_whole(place, json.dumps(manifest, sort_keys=True).encode())
        self._newest[batch.query] = manifest
        move_in(self._path, batch.files)

    def compact(self, target_bytes: int) -> Compacted:
        """See `table.LakeTable`."""
        self._note_moved()
        removed = added = 0
        for small in self._small_files(target_bytes):
            self._join(small)
            removed += len(small)
            added += 1
        return Compacted(removed, added)

    def _turn(self, query: str) -> int:
        """Counts the queries that landed here, so that the newest offset is known."""
        turns = {name: int(manifest["turn"]) for name, manifest in self._newest.items()}
        return turns.get(query, max(turns.values(), default=0) + 1)

    def _roll_forward(self) -> None:
        """Finish what a crash interrupted. Only the newest manifest of a query can be open."""
        moved = self._moved_batches()
        for query, newest in self._newest.items():
            if newest["batch"] <= moved.get(query, -1):
                continue
            note = self._notes / query / f"{newest['batch']:012}.json"
            files = [self._staged(file) for file in newest["files"]]
            for file in files:
                self._check(file, note)
            move_in(self._path, files)
        for note in sorted(self._compactions.glob("*.json")):
            self._finish_join(note)

    def _check(self, file: StagedFile, note: Path) -> None:
        """Check a published file before it is used.

        Raises:
            Corrupt: it is gone or damaged, with the way out.
        """
        place = self._path / file.directory / file.path.name
        try:
            check_staged(file.path if file.path.exists() else place, file, str(note))
        except Corrupt as error:
            raise Corrupt(
                f"{error}. The batch was published, and this file of it is not whole: restore the "
                "file from a copy, or land its logs into another directory, where the records are"
            ) from error

    def _note_moved(self) -> None:
        """Note that all batches are moved in: a join may remove their files from here on."""
        moved = {query: newest["batch"] for query, newest in self._newest.items()}
        write_whole(self._moved, json.dumps(moved, sort_keys=True).encode())

    def _moved_batches(self) -> dict[str, int]:
        found = read_note(self._moved) or {}
        return {query: count_of(self._moved, found, query) for query in found}

    def _staged(self, file: Mapping[str, Any]) -> StagedFile:
        path = self._path / file["from"]
        return StagedFile(path, file["directory"], {}, file["rows"], file["bytes"])

    def _small_files(self, target_bytes: int) -> Iterator[list[Path]]:
        """Groups of two or more files of one directory that fit into one of the target's size."""
        directories: dict[Path, list[Path]] = {}
        for path in sorted(self._path.rglob("*.parquet")):
            if not any(map(is_hidden, path.relative_to(self._path).parts)):
                directories.setdefault(path.parent, []).append(path)
        for files in directories.values():
            group: list[Path] = []
            size = 0
            for path in files:
                bytes_ = path.stat().st_size
                if bytes_ >= target_bytes:
                    continue
                if group and (size + bytes_ > target_bytes or len(group) >= JOIN_FILES_MAX):
                    if len(group) > 1:
                        yield group
                    group, size = [], 0
                group.append(path)
                size += bytes_
            if len(group) > 1:
                yield group

    def _join(self, files: list[Path]) -> None:
        # A name of its own: one made of the old names grows with every join.
        name = f"joined-{uuid4().hex}"
        staged = self._path / OURS / "staging" / f"{name}.parquet"
        make_directories(staged.parent)
        joint = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in files])
        # Files without a column get nulls, even if files with the column forbid nulls.
        schema = pa.schema([field.with_nullable(True) for field in joint])
        rows = 0
        with pq.ParquetWriter(staged, schema) as writer:
            for path in files:
                table = pq.ParquetFile(path).read()
                rows += table.num_rows
                writer.write_table(_with_all(table, schema))
        directory = str(files[0].parent.relative_to(self._path))
        joined = StagedFile(staged, directory, {}, rows, staged.stat().st_size)
        # From the note on the small files go, so the joined file is durable before it.
        make_durable(self._path, [joined])
        note = {
            "from": str(staged.relative_to(self._path)),
            "directory": directory,
            "rows": joined.rows,
            "bytes": joined.bytes,
            "remove": [str(path.relative_to(self._path)) for path in files],
        }
        place = self._compactions / f"{name}.json"
        write_whole(place, json.dumps(note, sort_keys=True).encode())
        self._finish_join(place)

    def _finish_join(self, note: Path) -> None:
        join = _found(note)
        gone = join.get("remove")
        if not isinstance(gone, list):
            raise damaged(note, "remove is no list")
        for each in (*gone, join.get("from"), join.get("directory")):
            place_of(note, each)
        joined = self._staged(
            {**join, "rows": count_of(note, join, "rows"), "bytes": count_of(note, join, "bytes")}
        )
        self._check(joined, note)
        remove(self._path / each for each in gone)
        move_in(self._path, [joined])
        remove([note])


def finish_moves(path: Path) -> None:
    """Finish what a killed landing left open, for a job that reads the files of a table.

    A published batch counts before its files are renamed, and a join removes its small files
    before the joined file comes. A reader of the files lacks these rows until the next landing.

    Raises:
        StoreInUse: another process lands into the table, and renames files now.
        Corrupt: a published file is gone or damaged.
    """
    if _has_open_moves(path):
        with only_writer(path):
            ParquetTable(path)


def _has_open_moves(path: Path) -> bool:
    """Whether published files are not in their places; nothing is written to find that."""
    if any(_compactions(path).glob("*.json")):
        return True
    files = [file for _, newest in _newest_manifests(path) for file in newest["files"]]
    return any((path / file["from"]).exists() for file in files)


def _notes(path: Path) -> Path:
    return path / OURS / "batches"


def _compactions(path: Path) -> Path:
    return path / OURS / "compactions"


def _newest_manifests(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The newest manifest of each query; numbers are padded, so names sort as they do."""
    for query in sorted(_notes(path).glob("*")):
        names = [name for name in os.listdir(query) if name.endswith(".json")]
        if names:
            yield query.name, _read_manifest(query / max(names))


def _with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with every column of the schema; those that it lacks are null."""
    columns = [
        table[field.name] if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]  # fmt: skip
    return pa.table(columns, schema=schema)


def _read_manifest(note: Path) -> dict[str, Any]:
    """A batch's manifest, each field checked.

    Raises:
        Malformed: it is none.
    """
    found = _found(note)
    if (text_of(note, found, "query"), note.stem) != (
        note.parent.name,
        f"{count_of(note, found, 'batch'):012}",
    ):
        raise damaged(note, "it is of another batch than its name says")
    count_of(note, found, "turn")
    offset_of(note, found.get("offset"))
    columns = columns_of(found)
    if not isinstance(columns, dict):
        raise damaged(note, "columns is no object")
    for name in columns:
        text_of(note, columns, name)
    for file in objects_of(note, found, "files"):
        place_of(note, file.get("from"))
        place_of(note, file.get("directory"))
        count_of(note, file, "rows")
        count_of(note, file, "bytes")
    return found


def columns_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Types of the table's columns by name; an earlier version noted none."""
    columns: Mapping[str, str] = manifest.get("columns", {})
    return columns


def _found(note: Path) -> dict[str, Any]:
    found = read_note(note)
    if found is None:
        raise damaged(note, "it went while the table was opened")
    return found


def remove_staging(table: Path) -> None:
    """Delete staged files that were never published."""
    shutil.rmtree(table / OURS / "staging", ignore_errors=True)
