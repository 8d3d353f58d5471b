"""Ends a compaction of a Delta table that a crash interrupted.

`deltalake` writes joined files and commits them in one call, and syncs nothing. A power cut after
it may leave the commit and not the bytes: no reader can read the table then, and a vacuum days
later deletes the small files, which are the only intact files. So a note says that a compaction
runs, and from which version. The next job that opens the table reads all of the joined files. If a
joined file is damaged, the table is restored to the version before, which has all its files.

Source: Delta protocol, "Add File and Remove File"; docs/spark.md, "--compact".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Set
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cordwood.durable import remove, write_whole
from cordwood.errors import Corrupt
from cordwood.spark.jobs.delta_paths import paths_of
from cordwood.spark.jobs.notes import count_of, read_note

logger = logging.getLogger(__name__)


def begin_join(note: Path, table: DeltaTable) -> None:
    """Note that a compaction begins at a table's version."""
    write_whole(note, json.dumps({"version": table.version()}).encode())


def end_join(note: Path) -> None:
    """Note that the joined files, and their commit, are on stable storage."""
    remove([note])


def files_before(note: Path, path: Path) -> set[str] | None:
    """The files from before an interrupted compaction; None if none was interrupted."""
    found = read_note(note)
    if found is None:
        return None
    return set(paths_of(DeltaTable(str(path), version=count_of(note, found, "version"))))


def settle_join(note: Path, path: Path, table: DeltaTable, before: Set[str]) -> None:
    """Restore the table to the version before an interrupted compaction, if its files are damaged.

    Args:
        before: see `files_before`.
    Raises:
        Corrupt: they are damaged, and another job has committed since.
    """
    torn = [file for file in paths_of(table) if file not in before and not _is_whole(path / file)]
    if not torn:
        return
    version = count_of(note, read_note(note) or {}, "version")
    commits = table.history(table.version() - version)
    if any(commit.get("operation") != "OPTIMIZE" for commit in commits):
        raise Corrupt(
            f"a power cut left {torn[0]} of a compaction of {path} without its bytes, and another "
            f"job has committed since. Restore the table to version {version}, whose files are "
            f"there, run that job again, and remove {note}"
        )
    logger.warning(
        "a power cut left %s of a compaction without its bytes: the table is restored to its "
        "version %d, from before it", torn[0], version,
    )  # fmt: skip
    table.restore(version)


def _is_whole(file: Path) -> bool:
    """Whether all of a file can be read: a page that was not written cannot be decompressed."""
    try:
        with pq.ParquetFile(file) as opened:
            for group in range(opened.num_row_groups):
                opened.read_row_group(group)
    except (OSError, pa.ArrowException):
        return False
    return True
