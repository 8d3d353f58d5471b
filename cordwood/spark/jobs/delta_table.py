"""A Delta table, written without a JVM's Delta: Spark writes the files, `deltalake` commits.

One commit adds a batch's files, and notes the batch as an application transaction (query id,
batch), which Delta made for this. The offset goes along as the commit's own metadata.

Source: research digest on PySpark 4.3, §5; Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from cordwood.spark.jobs.notes import offset_in
from cordwood.spark.jobs.table import Compacted, StagedBatch, move_in

OFFSET = "cordwood.offset"

HISTORY_MAX = 100
"""Commits looked through for the newest offset: compactions have none, and are fewer."""


class DeltaLake:
    """See the module."""

    def __init__(self, path: Path, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._partition_by = partition_by

    @property
    def partition_in_files(self) -> bool:
        """The log says it."""
        return False

    def published(self, query: str) -> int:
        """See `table.LakeTable`."""
        table = self._open()
        found = None if table is None else table.transaction_version(query)
        return -1 if found is None else found

    def last_offset(self) -> Mapping[str, Any] | None:
        """See `table.LakeTable`."""
        table = self._open()
        for commit in [] if table is None else table.history(HISTORY_MAX):
            if OFFSET in commit:
                return offset_in(self._path / "_delta_log", commit[OFFSET])
        return None

    def publish(self, batch: StagedBatch) -> None:
        """See `table.LakeTable`."""
        if batch.batch <= self.published(batch.query):
            return
        table = self._open() or self._create(batch.schema)
        self._add_columns(table, batch.schema)
        places = move_in(self._path, batch.files)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                str(place.relative_to(self._path)),
                file.bytes,
                dict(file.partition),
                int(os.stat(place).st_mtime * 1000),
                True,
                json.dumps({"numRecords": file.rows}),
            )
            for place, file in zip(places, batch.files, strict=True)
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

    def compact(self, target_bytes: int) -> Compacted:
        """See `table.LakeTable`."""
        table = self._open()
        if table is None:
            return Compacted()
        done = table.optimize.compact(target_size=target_bytes)
        return Compacted(done["numFilesRemoved"], done["numFilesAdded"])

    def _open(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(str(self._path)):
            return None
        return DeltaTable(str(self._path))

    def _create(self, schema: pa.Schema) -> DeltaTable:
        return DeltaTable.create(
            str(self._path), schema, mode="ignore", partition_by=list(self._partition_by)
        )

    def _add_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        known = {field.name for field in table.schema().fields}
        new = [field for field in schema if field.name not in known]
        if new:
            fields: list[Field] = list(Schema.from_arrow(pa.schema(new)).fields)
            table.alter.add_columns(fields)
            table.update_incremental()
