"""The objects of main storage as an Iceberg table: the files themselves, without a copy.

The table names each object that all of its logs have committed. If one log of a shared object did
not commit its share, the object stays out, because those records are in another object as well. A
second run adds new objects and removes objects that manifests do not name any more. Each run is one
commit of the catalog, or none. The store notes which objects a table names (`table_notes`), and
does not delete them.

A merge may have replaced one log's share of an object that several logs share. Then the records of
that log are in two objects, and those of the other logs in one of the two. So the other shares get
objects of their own first (`part_shared`).

pyiceberg is imported inside functions; the extra `lake` brings it.

Source: docs/objects.md, "As an Iceberg table"; Apache Iceberg, "Table spec".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordwood.errors import BadSetting, Malformed, NoObject, ObjectChanged
from cordwood.host.seams import Host
from cordwood.layout.object_columns import object_schema
from cordwood.layout.object_names import (
    LOGS,
    SHARED,
    objects_prefix,
    origin_name,
    pages_prefix,
    parse_object_name,
)
from cordwood.protocol.manifest import is_merged
from cordwood.tier.compact import merge_runs
from cordwood.tier.history import GET_S
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.repair import find_logs
from cordwood.tier.verify import all_entries
from cordwood.tiered import Entry, is_lost


@dataclass(frozen=True, slots=True)
class Synced:
    """How many objects a table got, lost, and kept."""

    added: int
    removed: int
    kept: int


async def whole_objects(store: ObjectStore, host: Host) -> tuple[set[str], set[str]]:
    """The names of the objects that are committed as a whole, and of those that are not.

    Raises:
        Corrupt: a manifest or a footer differs from what was written, or a manifest is missing.
        Retryable: the store does not answer.
    """
    committed: dict[str, dict[int, Entry]] = {}
    starts: dict[int, int] = {}
    for log in await find_logs(store):
        manifest = LogManifest(store, log, host, "iceberg")
        if (head := await manifest.load()) is None:
            if await _has_history(store, log):
                # Trap: the table would lose all rows of this log, and the next run would bring them
                # back.
                raise Malformed(
                    f"log {log} has a history in main storage, and its manifest is missing: "
                    f"`cordwood tier repair {log}` writes it anew"
                )
            continue
        starts[log] = head.start
        async for entry in all_entries(manifest):
            if not is_lost(entry):
                committed.setdefault(entry.name, {})[log] = entry
    whole: set[str] = set()
    for name, entries in committed.items():
        if name.startswith(LOGS):  # of one log alone, and its one run is committed
            ((log, entry),) = entries.items()
            if not _is_cut(parse_object_name(name).first, entry, starts[log]):
                whole.add(name)
            continue
        footer = await entry_footer(store, next(iter(entries.values())), timeout_s=GET_S)
        # An object's trimmed records of one log stay while the other logs keep theirs.
        if all(
            not _is_cut(run.first, entries[run.log], starts[run.log])
            if run.log in entries
            else run.last < starts.get(run.log, 0)
            for run in footer.index.runs
        ):
            whole.add(name)
    return whole, committed.keys() - whole


async def _has_history(store: ObjectStore, log: int) -> bool:
    """Whether a log without a head has other objects; a foreign name or a marker is none."""
    for prefix in (pages_prefix(log), objects_prefix(log)):
        page = await store.list_page(prefix, limit=2, timeout_s=GET_S)
        if any(not info.name.endswith("/") for info in page):
            return True
    try:
        # A log may have only objects that it shares with other logs.
        await store.read(origin_name(log), timeout_s=GET_S)
    except NoObject:
        return False
    return True


def _is_cut(first: int, entry: Entry, start: int) -> bool:
    """Whether a repair took the beginning of an object, at `first`, from another object, which has
    the same records. Records below the log's start are in no other object."""
    return entry.first > max(first, start)


async def part_shared(store: ObjectStore, host: Host) -> int:
    """Give each share of a partly merged object an object of its own; the number of these shares.

    Raises:
        Corrupt, Fenced, OutcomeUnknown, Retryable: see `tier.compact.compact_log`.
    """
    heads = {}
    named: dict[str, dict[int, Entry]] = {}
    for log in await find_logs(store):
        manifest = LogManifest(store, log, host, "iceberg")
        heads[log] = manifest
        async for entry in all_entries(manifest):
            if entry.name.startswith(SHARED):
                named.setdefault(entry.name, {})[log] = entry
    parted: dict[int, list[tuple[Entry, ...]]] = {}
    for entries in named.values():
        footer = await entry_footer(store, next(iter(entries.values())), timeout_s=GET_S)
        gone = [run for run in footer.index.runs if run.log not in entries and run.log in heads]
        found = [await heads[run.log].find(run.last) for run in gone]
        if any(entry is not None and is_merged(entry.fence) for entry in found):
            for log, entry in entries.items():
                parted.setdefault(log, []).append((entry,))
    for log, runs in parted.items():
        await merge_runs(store, heads[log], host, log, sorted(runs))
    return sum(map(len, parted.values()))


def table_uuid(catalog: Any, name: str) -> str:
    """The id by which the store knows a table; the table is made if it does not exist.

    Raises:
        BadSetting: the table has other columns than objects, or the name has no namespace.
    """
    return str(_opened(catalog, name).metadata.table_uuid)


def sync_table(catalog: Any, name: str, address: str, whole: Collection[str]) -> Synced:
    """Make a table name exactly these objects.

    Args:
        catalog: pyiceberg's.
        name: of the table, as `cordwood.history`; made if it does not exist.
        address: of the object store.
    Raises:
        BadSetting: the table has other columns than objects, or the name has no namespace.
        ObjectChanged: another process changed the table meanwhile; run it again.
    """
    from pyiceberg.exceptions import CommitFailedException

    table = _opened(catalog, name)
    wanted = {_uri(address, each) for each in whole}
    there = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone = [file for path, file in there.items() if path not in wanted]
    new = sorted(wanted - there.keys())
    if gone or new:
        try:
            with table.transaction() as change:
                if gone:
                    with change.update_snapshot().overwrite() as snapshot:
                        for file in gone:
                            snapshot.delete_data_file(file)
                if new:
                    change.add_files(new)
        except CommitFailedException as error:
            raise ObjectChanged(f"the table {name} changed meanwhile: run it again") from error
    return Synced(len(new), len(gone), len(there) - len(gone))


def named_objects(catalog: Any, name: str, address: str) -> set[str]:
    """The objects of a store that a table names now.

    Raises:
        BadSetting: the table is another one, or the name is none.
    """
    below = _uri(address, "")
    below = below if below.endswith("/") else f"{below}/"
    files = (task.file.file_path for task in _opened(catalog, name).scan().plan_files())
    return {path.removeprefix(below) for path in files if path.startswith(below)}


def _opened(catalog: Any, name: str) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    namespace, dot, _ = name.rpartition(".")
    if not dot:
        raise BadSetting(f"{name!r} is not a table's name: write namespace.table")
    try:
        table = catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        catalog.create_namespace_if_not_exists(namespace)
        return catalog.create_table(name, schema=object_schema())
    ours = list(object_schema().names)
    if [field.name for field in table.schema().fields] != ours:
        raise BadSetting(f"the table {name} has other columns than objects: {', '.join(ours)}")
    return table


def open_catalog(name: str, properties: Mapping[str, str]) -> Any:
    """A catalog of pyiceberg's, by its name in `.pyiceberg.yaml` or by properties.

    Raises:
        BadSetting: pyiceberg is not installed, or does not know the catalog.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise BadSetting("Iceberg tables need pyiceberg: pip install 'cordwood[lake]'") from None
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        raise BadSetting(f"the catalog {name} cannot be opened: {type(error).__name__}") from error


def _uri(address: str, name: str) -> str:
    scheme, separator, _ = address.partition("://")
    if separator and scheme != "file":
        return f"{address.rstrip('/')}/{name}"
    path = Path(address.removeprefix("file://")).absolute()
    # pyiceberg does not decode the path after file://, and ends it at `#` and `?`.
    return f"{path}/{name}" if {*"#?"} & {*str(path)} else f"file://{path}/{name}"
