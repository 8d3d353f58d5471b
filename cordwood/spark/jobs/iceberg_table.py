"""An Iceberg table in a directory, with a SQLite catalog: Spark writes the files, `pyiceberg`
commits.

One commit adds a batch's files and sets two properties of the table: the query's last batch,
and the offset. Partitions are by value; Iceberg takes the value from the files, so the
columns are in them too.

Any other reader opens it by `metadata/*.metadata.json`, or by the catalog in
`_cordwood/catalog.db`, table `cordwood.NAME`.

Source: docs/sources/spark.md §5; Iceberg's spec, "Table Metadata".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from cordwood.durable import make_directories, sync_files
from cordwood.errors import BadSetting, ObjectChanged, Rejected
from cordwood.spark.jobs.notes import damaged, offset_in
from cordwood.spark.jobs.table import OURS, Compacted, StagedBatch, move_in

NAMESPACE = "cordwood"
OFFSET = "cordwood.offset"
BATCH = "cordwood.batch."
LANDED = "cordwood.landed"
"""In the summary of a snapshot: the query and the batch that it adds. As a property of the table:
the sequence number of the newest snapshot with this, and then its query and batch, since a snapshot
may expire."""

COMMIT_TRIES = 5
"""A compaction or another job may commit in between, once or twice; none commits all the time."""

_BATCH = re.compile(r"-1|[0-9]{1,18}")


class _SyncingCatalog(SqlCatalog):
    """A catalog that names no metadata before it is on stable storage.

    SQLite syncs its commit, and `pyiceberg` syncs nothing of what that names: manifests, their
    lists and the table's description.
    """

    synced: set[str]

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        """See `Catalog`.

        Race: a user rolls the table back. `pyiceberg` would repeat a commit that found the table
        changed, on top of the older snapshot. So the error that makes it do so is replaced.

        Raises:
            ObjectChanged: the table is not as it was when it was opened.
        """
        try:
            return super().commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise ObjectChanged(
                f"{'.'.join(table.name())} was changed while a batch was published: start again"
            ) from error

    def _write_metadata(  # type: ignore[override]
        self, metadata: Any, io: Any, metadata_path: str
    ) -> None:
        super()._write_metadata(metadata, io, metadata_path)
        directory = Path(metadata_path.removeprefix("file://")).parent
        new = [path for path in directory.iterdir() if path.name not in self.synced]
        sync_files(new, directory.parent)
        self.synced.update(path.name for path in new)


class IcebergTable:
    """See the module."""

    def __init__(self, path: Path, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._partition_by = partition_by
        self._name = (NAMESPACE, path.name)
        # pyiceberg does not decode the path after file://, and as_uri writes %20 for a space.
        self._location = path.as_uri() if path.as_uri() == f"file://{path}" else str(path)
        ours = path / OURS
        make_directories(ours)
        # A name with % or ? is none of a URL as it stands, and another table's catalog would be
        # opened, or none.
        uri = URL.create("sqlite", database=str(ours / "catalog.db")).render_as_string()
        self._catalog = _SyncingCatalog(NAMESPACE, uri=uri, warehouse=self._location)
        # Its own engine keeps connections until it is closed, and a table is never closed: each
        # landing left a connection, of which Python 3.13 warns. Without a pool each ends with its
        # use.
        self._catalog.close()
        self._catalog.engine = create_engine(uri, poolclass=NullPool)
        self._catalog.synced = set()
        sync_files([], ours)

    @property
    def partition_in_files(self) -> bool:
        """See the module."""
        return True

    def published(self, query: str) -> int:
        """See `table.LakeTable`."""
        table = self._open()
        if table is None:
            return -1
        found = table.properties.get(BATCH + query, "-1")
        if not _BATCH.fullmatch(found):
            raise damaged(self._path / "metadata", f"{BATCH + query} is {found!r}")
        return int(found)

    def was_published(self, query: str) -> int:
        """See `table.LakeTable`; a table that was rolled back below a batch is refused."""
        return self.published(query)

    def landed(self, queries: Sequence[str]) -> dict[str, tuple[int, int]]:
        """See `table.LakeTable`."""
        return {query: (self.published(query),) * 2 for query in queries}

    def last_offset(self) -> Mapping[str, Any] | None:
        """See `table.LakeTable`."""
        table = self._open()
        found = None if table is None else table.properties.get(OFFSET)
        return None if found is None else offset_in(self._path / "metadata", found)

    @property
    def is_empty(self) -> bool:
        """See `table.LakeTable`."""
        return self.last_offset() is None

    @property
    def was_emptied(self) -> bool:
        """See `table.LakeTable`; the offset is the table's, and stays where a snapshot is taken
        away."""
        return False

    def publish(self, batch: StagedBatch) -> None:
        """See `table.LakeTable`."""
        if batch.batch <= self.published(batch.query):
            return
        self._partition(self._open() or self._create(batch.schema))
        places = [str(place) for place in move_in(self._path, batch.files, "data")]
        for left in reversed(range(COMMIT_TRIES)):
            try:
                self._add(batch, places)
                return
            except ObjectChanged:
                if not left:
                    raise

    def _add(self, batch: StagedBatch, places: list[str]) -> None:
        """Commit a batch, on top of a table that has all batches landed before it.

        Raises:
            BadSetting: see `_open`.
            ObjectChanged: another job committed meanwhile.
        """
        table = self._open()
        assert table is not None, "it was made before files were moved in"
        try:
            self._commit(table, batch, places)
        except OverflowError:
            # A producer may set any timestamp, and pyiceberg reads the bounds of a file as Python's
            # dates, which end with the year 9999. A record of a later year would stop a landing for
            # good, so from here on the table keeps no bounds of timestamps.
            self._commit(self._without_bounds(batch.schema), batch, places)

    def _without_bounds(self, schema: pa.Schema) -> Table:
        names = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        table = self._open()
        assert table is not None, "it was made before files were added"
        with table.transaction() as change:
            change.set_properties(
                {f"write.metadata.metrics.column.{name}": "none" for name in names}
            )
        return table

    def _commit(self, table: Table, batch: StagedBatch, places: list[str]) -> None:
        with table.transaction() as change:
            with change.update_schema() as update:
                update.union_by_name(batch.schema)
            if places:
                # The files have names of this batch alone: no need to look for them in all
                # manifests first.
                note = {LANDED: f"{batch.query} {batch.batch}"}
                change.add_files(places, note, check_duplicate_files=False)
                added = change.table_metadata.current_snapshot()
                assert added is not None, "files were added"
                change.set_properties({LANDED: f"{_sequence_of(added)} {note[LANDED]}"})
            change.set_properties(
                {BATCH + batch.query: str(batch.batch), OFFSET: json.dumps(dict(batch.offset))}
            )

    def compact(self, target_bytes: int) -> Compacted:
        """Iceberg's files are joined by an engine that rewrites them.

        Raises:
            Rejected: always.
        """
        raise Rejected(
            "small files of an Iceberg table are joined by an engine's rewrite_data_files; "
            "pyiceberg has none. Larger micro-batches make larger files: --trigger 5m"
        )

    def metadata_location(self) -> str | None:
        """The table's present metadata file; None if it is not made yet."""
        table = self._open()
        return None if table is None else table.metadata_location

    def _open(self) -> Table | None:
        """The table, or None if it is not made yet.

        Raises:
            BadSetting: the directory was moved, or the table rolled back.
        """
        try:
            table = self._catalog.load_table(self._name)
            self._check_whole(table)
            return table
        except NoSuchTableError:
            others = self._tables()
            if not others:
                return None
            moved = f"its catalog has {' and '.join(others)}"
        except FileNotFoundError as error:
            moved = f"its catalog names a file that is gone ({error})"
        raise BadSetting(
            f"{self._path} was moved: {moved}. An Iceberg table has its place in all it notes; "
            "move it back, or land in another directory"
        )

    def _check_whole(self, table: Table) -> None:
        """Check that the batch that was landed last is in the table.

        Trap: a rollback leaves the table's properties, which say that it is.

        Raises:
            BadSetting: the table was rolled back to before that batch.
        """
        newest = self._newest_landed(table)
        if newest is None:
            return
        number, landed = newest
        at = table.current_snapshot()
        while at is not None and _sequence_of(at) > number:
            before = at.parent_snapshot_id
            at = None if before is None else table.snapshot_by_id(before)
            if at is None and before is not None:
                return  # an ancestor expired: nothing says that the table was rolled back
        if at is None or _sequence_of(at) != number:
            raise self._rolled_back(table, landed)

    def _newest_landed(self, table: Table) -> tuple[int, str] | None:
        """The sequence number of the newest snapshot that a landing made, with query and batch."""
        ours = [(_sequence_of(each), _landed_by(each)) for each in table.metadata.snapshots]
        number, _, landed = table.properties.get(LANDED, "").partition(" ")
        if number:
            if not _BATCH.fullmatch(number):
                raise damaged(self._path / "metadata", f"{LANDED} begins with {number!r}")
            ours.append((int(number), landed))
        return max((each for each in ours if each[1]), default=None)

    def _rolled_back(self, table: Table, landed: str) -> BadSetting:
        query, _, batch = landed.rpartition(" ")
        there = [each for each in table.metadata.snapshots if _landed_by(each) == landed]
        way_out = (
            f"Make snapshot {there[0].snapshot_id} current again, or land" if there else "Land"
        )
        return BadSetting(
            f"{self._path} was rolled back: its batch {batch} of query {query} is not in it now, "
            "and what says where the landing goes on is not rolled back with it. "
            f"{way_out} in another directory"
        )

    def _tables(self) -> list[str]:
        if not self._catalog.namespace_exists(NAMESPACE):
            return []
        return [".".join(name[1:]) for name in self._catalog.list_tables(NAMESPACE)]

    def _create(self, schema: pa.Schema) -> Table:
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        return self._catalog.create_table(self._name, schema, location=self._location)

    def _partition(self, table: Table) -> None:
        """Say how the table is partitioned, before its first file."""
        if table.spec().fields or not self._partition_by:
            return
        with table.update_spec() as update:
            for name in self._partition_by:
                update.add_field(name, IdentityTransform(), name)


def _sequence_of(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _landed_by(snapshot: Snapshot) -> str:
    """The query and the batch that it adds; "" if no landing made it."""
    summary = snapshot.summary
    return "" if summary is None else summary.additional_properties.get(LANDED, "")
