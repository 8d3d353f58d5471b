"""A Delta table, written without a JVM's Delta: Spark writes the files, `deltalake` commits.

One commit adds a batch's files, and notes the batch as an application transaction (query id,
batch), which Delta made for this. The offset goes along as the commit's own metadata.

Source: docs/sources/spark.md §5; Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from cordwood.durable import make_directories, publish, sync_files, write_whole
from cordwood.errors import BadSetting
from cordwood.spark.jobs.delta_join import begin_join, end_join, files_before, settle_join
from cordwood.spark.jobs.delta_paths import paths_of
from cordwood.spark.jobs.notes import offset_in, read_note
from cordwood.spark.jobs.table import OURS, Compacted, StagedBatch, check_types, move_in

logger = logging.getLogger(__name__)

OFFSET = "cordwood.offset"

HISTORY_MAX = 100
"""The number of commits that are searched first for the newest offset. Commits of compactions have
none, and are fewer than this."""


_NO_NULLS = re.compile(r'("(?:nullable|containsNull|valueContainsNull)"):false')


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest batch in a table.

    Attributes:
        version: of the table, with it; -1 for none.
        offset: where it ends.
        is_restored: whether the table was restored since some batch was landed.
    """

    version: int
    offset: Mapping[str, Any] | None
    is_restored: bool


class DeltaLake:
    """See the module."""

    def __init__(self, path: Path, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._partition_by = partition_by
        self._log = path / "_delta_log"
        self._newest_note = path / OURS / "newest.json"
        self._compacting = path / OURS / "compacting.json"
        self._synced: set[str] = set()
        self._put_torn_aside()
        self._settle_join()

    @property
    def partition_in_files(self) -> bool:
        """The log says it."""
        return False

    def published(self, query: str) -> int:
        """See `table.LakeTable`."""
        table = self._open()
        if table is None:
            return -1
        newest = self._newest(table)
        if newest.is_restored:
            # Trap: Delta restores files, and leaves the newest transaction of each application.
            if newest.version < 0:
                return -1
            table = DeltaTable(str(self._path), version=newest.version)
        found = table.transaction_version(query)
        if found is not None and newest.version < 0:
            self._check_cleaned(table, query, found)
        return -1 if found is None else found

    def _check_cleaned(self, table: DeltaTable, query: str, batch: int) -> None:
        """Check that a batch is in the table after its commit, and later commits, were cleaned up.

        A restore among those commits leaves the transaction of the batch and takes its files.

        Raises:
            BadSetting: none of its files is there; it was restored away, or they were joined.
        """
        note = read_note(self._newest_note) or {}
        files = note.get("files")
        if (note.get("query"), note.get("batch")) != (query, batch) or not isinstance(files, list):
            return
        if files and not set(files).intersection(paths_of(table)):
            raise BadSetting(
                f"Delta's log of {self._path} is cleaned of what came since the last landing, and "
                f"none of the files of batch {batch} of query {query} is in the table now. Either "
                "the table was restored to an older version: then land in another directory. Or "
                f"another job joined or rewrote these files: then remove {self._newest_note}, and "
                "the landing goes on"
            )

    def was_published(self, query: str) -> int:
        """See `table.LakeTable`."""
        table = self._open()
        return -1 if table is None else max(_last_of(table, query), self.published(query))

    def landed(self, queries: Sequence[str]) -> dict[str, tuple[int, int]]:
        """See `table.LakeTable`."""
        table = self._open()
        if table is None or self.is_empty:
            return dict.fromkeys(queries, (-1, -1))
        found: dict[str, int] = {}
        oldest = table.version()
        for commit, _ in self._effective(table, None):
            oldest = commit["version"]
            if OFFSET in commit:
                for query, batch in self._transactions(oldest):
                    found.setdefault(query, batch)
            if found.keys() >= set(queries):
                break
        bounds = {query: (batch, batch) for query, batch in found.items()}
        if oldest > 0 and (left := set(queries) - found.keys()):
            # Of cleaned commits, the log has at most the last batch of each query, which may have
            # been restored away.
            before = DeltaTable(str(self._path), version=oldest)
            bounds.update({query: (-1, _last_of(before, query)) for query in left})
        return {query: bounds.get(query, (-1, -1)) for query in queries}

    def _transactions(self, version: int) -> Iterator[tuple[str, int]]:
        """The query and the batch that a commit notes."""
        for line in (self._log / f"{version:020}.json").read_bytes().splitlines():
            if note := json.loads(line).get("txn"):
                yield note["appId"], note["version"]

    def last_offset(self) -> Mapping[str, Any] | None:
        """See `table.LakeTable`."""
        table = self._open()
        return None if table is None else self._newest(table).offset

    def _newest(self, table: DeltaTable) -> _Newest:
        """The newest batch with files in the table.

        Raises:
            BadSetting: the table was restored to a time, and its log does not say to which version.
        """
        # Other jobs may have committed any number since: then all that the log has is looked at.
        for most in (HISTORY_MAX, None):
            is_restored = False
            for commit, is_restored in self._effective(table, most):
                if OFFSET in commit:
                    offset = offset_in(self._log, commit[OFFSET])
                    return _Newest(commit["version"], offset, is_restored)
        return _Newest(-1, None, is_restored)

    def _effective(
        self, table: DeltaTable, most: int | None
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        """Commits whose files are in the table, from the newest on, and whether the table was
        restored since each; those that a restore took away are left out.

        Raises:
            BadSetting: see `_newest`.
        """
        upto, is_restored = table.version(), False
        for commit in table.history(most):
            if commit["version"] > upto:
                continue
            if commit.get("operation") == "RESTORE":
                upto, is_restored = self._restored_to(commit), True
            yield commit, is_restored

    def _restored_to(self, commit: Mapping[str, Any]) -> int:
        version = str(commit.get("operationParameters", {}).get("version"))
        if not version.isdigit():
            raise BadSetting(
                f"{self._path} was restored to a time in its version {commit['version']}, and its "
                "log does not say which batches that took away. Restore it once more, to the "
                "number of a version (DeltaTable.history tells them)"
            )
        return int(version)

    @property
    def is_empty(self) -> bool:
        """See `table.LakeTable`; a cleanup of Delta's log removes commits, and no files."""
        table = self._open()
        return table is None or not table.file_uris()

    @property
    def was_emptied(self) -> bool:
        """See `table.LakeTable`."""
        table = self._open()
        newest = None if table is None else self._newest(table)
        return newest is not None and newest.version < 0 and newest.is_restored

    def publish(self, batch: StagedBatch) -> None:
        """See `table.LakeTable`."""
        if batch.batch <= self.published(batch.query):
            return
        table = self._open() or self._create(batch.schema)
        self._add_columns(table, batch.schema)
        # A commit counts only after the commits before it, which created the table or a column.
        self._sync_log()
        places = move_in(self._path, batch.files)
        names = [str(place.relative_to(self._path)) for place in places]
        note = {"query": batch.query, "batch": batch.batch, "files": names}
        write_whole(self._newest_note, json.dumps(note).encode())
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                name,
                file.bytes,
                dict(file.partition),
                int(os.stat(place).st_mtime * 1000),
                True,
                json.dumps({"numRecords": file.rows}),
            )
            for name, place, file in zip(names, places, batch.files, strict=True)
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(self._partition_by),
            commit_properties=CommitProperties(
                custom_metadata={OFFSET: json.dumps(dict(batch.offset))},
                app_transactions=[Transaction(batch.query, batch.batch)],
            ),
        )
        self._sync_log()

    def compact(self, target_bytes: int) -> Compacted:
        """See `table.LakeTable`."""
        table = self._open()
        if table is None:
            return Compacted()
        # It writes the joined files and commits in one call, so their bytes are synced after it.
        # The small files stay in place, for a vacuum of days later.
        before = set(paths_of(table))
        begin_join(self._compacting, table)
        done = table.optimize.compact(target_size=target_bytes)
        self._end_join(table, before)
        return Compacted(done["numFilesRemoved"], done["numFilesAdded"])

    def _end_join(self, table: DeltaTable, before: Set[str]) -> None:
        after = paths_of(table)
        sync_files([self._path / file for file in after], self._path)
        self._sync_log()
        note = read_note(self._newest_note)
        if note and (new := [file for file in after if file not in {*before, *note["files"]}]):
            write_whole(
                self._newest_note, json.dumps({**note, "files": [*note["files"], *new]}).encode()
            )
        end_join(self._compacting)

    def _settle_join(self) -> None:
        """End a compaction that a crash interrupted; see `delta_join`."""
        table = self._open()
        if table is None or (before := files_before(self._compacting, self._path)) is None:
            return
        settle_join(self._compacting, self._path, table, before)
        self._end_join(table, before)

    def _sync_log(self) -> None:
        """Put every commit on stable storage: `deltalake` syncs nothing.

        Without this a power cut takes commits that Spark's checkpoint says are done.
        """
        new = [path for path in self._log.iterdir() if path.name not in self._synced]
        files = [path for path in new if path.is_file()]
        sync_files(files, self._path)
        self._synced.update(path.name for path in files)
        self._synced.discard("_last_checkpoint")  # the only commit that is written again

    def _put_torn_aside(self) -> None:
        """Move the newest commit away if a power cut tore it.

        It was not synced, so no commit was reported: the batch runs again. A torn commit that is
        not the newest is damage; Delta will refuse it.
        """
        commits = sorted(self._log.glob("[0-9]*.json"))
        if not commits or _is_whole(commits[-1]):
            return
        aside = self._path / OURS / "torn"
        make_directories(aside)
        logger.warning("a power cut tore the commit %s: it lies in %s now", commits[-1], aside)
        publish([(commits[-1], aside / commits[-1].name)])
        sync_files([], self._log)

    def _open(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(str(self._path)):
            return None
        return DeltaTable(str(self._path))

    def _create(self, schema: pa.Schema) -> DeltaTable:
        return DeltaTable.create(
            str(self._path), schema, mode="ignore", partition_by=list(self._partition_by)
        )

    def _add_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        known, given = _types(table.schema()), _types(Schema.from_arrow(schema))
        check_types(self._path, known, given)
        new = [field for field in schema if field.name not in known]
        if new:
            fields: list[Field] = list(Schema.from_arrow(pa.schema(new)).fields)
            table.alter.add_columns(fields)
            table.update_incremental()


def _types(schema: Schema) -> dict[str, str]:
    """Types by column, without regard to nulls; a primitive type is given by its name."""
    return {
        field.name: field.type.type
        if isinstance(field.type, PrimitiveType)
        else _NO_NULLS.sub(r"\1:true", field.type.to_json())
        for field in schema.fields
    }


def _last_of(table: DeltaTable, query: str) -> int:
    found = table.transaction_version(query)
    return -1 if found is None else found


def _is_whole(commit: Path) -> bool:
    lines = commit.read_bytes().splitlines()
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False
