"""Objects of main storage as an Iceberg table: each record once, whatever comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from made_objects import NOW_US, Made
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from cordwood.errors import BadSetting, Corrupt, Fenced, Malformed, ObjectChanged
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.object_names import head_name
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import collect_log, collect_shared
from cordwood.tier.compact import compact_log
from cordwood.tier.iceberg import (
    Synced,
    named_objects,
    part_shared,
    sync_table,
    table_uuid,
    whole_objects,
)
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.repair import repair_log
from cordwood.tier.shared_upload import LogItems, upload_shared
from cordwood.tier.table_notes import forget_table, note_present, note_table
from cordwood.tier.uploader import LogUploader

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = "lake.history"


class Lake:
    """An object store in a directory, and a catalog beside it."""

    def __init__(self, path: Path) -> None:
        self.address = str(path / "history")
        uri = f"sqlite:///{path / 'catalog.db'}"
        self.catalog = SqlCatalog("lake", uri=uri, warehouse=f"file://{path / 'warehouse'}")
        self.catalog.close()
        self.catalog.engine = create_engine(uri, poolclass=NullPool)

    def do(self, act: Callable[[PatientStore, Host], Awaitable[object]]) -> None:
        async def main() -> None:
            async with real_host() as host:
                store = await open_object_store(host, self.address)
                await act(store, host)
                await store.close()

        asyncio.run(main())

    def upload(self, made: Made, object_bytes: int = 100) -> None:
        async def act(store: PatientStore, host: Host) -> None:
            manifest = LogManifest(store, made.log, host, "test")
            uploader = LogUploader(
                store, manifest, host, made.log, made.name, object_bytes=object_bytes
            )
            first = await uploader.next_lsn() or made.first

            async def items():
                for item in made.items:
                    if item[0].first >= first:
                        yield item

            await uploader.run(items(), first)

        self.do(act)

    def sync(self) -> tuple[Synced, set[str]]:
        whole, left_out = self.begin()
        done = sync_table(self.catalog, TABLE, self.address, whole)
        self.end()
        return done, left_out

    def begin(self) -> tuple[set[str], set[str]]:
        """What a run has the table name, noted, and what stays out."""
        found: list[tuple[set[str], set[str]]] = []
        uuid = table_uuid(self.catalog, TABLE)

        async def before(store: PatientStore, host: Host) -> None:
            await part_shared(store, host)
            found.append(await whole_objects(store, host))
            await note_table(store, host, uuid, TABLE, found[0][0])

        self.do(before)
        return found[0]

    def end(self) -> None:
        """The end of a run."""
        uuid = table_uuid(self.catalog, TABLE)
        self.do(lambda store, host: note_present(store, host, uuid, TABLE, self.present))

    def present(self) -> set[str]:
        return named_objects(self.catalog, TABLE, self.address)

    def compact(self, log: int) -> None:
        async def act(store: PatientStore, host: Host) -> None:
            manifest = LogManifest(store, log, host, "test")
            await compact_log(store, manifest, host, log, MergePolicy(shared_bytes_min=1))

        self.do(act)

    def collect(self, log: int, later_s: float, grace_s: float) -> int:
        """Objects that a collection deletes so much later."""
        deleted: list[int] = []

        async def act(store: PatientStore, host: Host) -> None:
            def manifest_of(number: int) -> LogManifest:
                return LogManifest(store, number, host, "test")

            at_us = host.clock.now_us() + round(later_s * 1e6)
            done = await collect_log(store, manifest_of(log), log, at_us, grace_s)
            shared = await collect_shared(store, manifest_of, at_us, grace_s)
            deleted.append(done.deleted + shared.deleted)

        self.do(act)
        return deleted[0]

    def rows(self, where: str | None = None) -> list[tuple[int, int, bytes]]:
        """Log, LSN and value of all that the table has."""
        table = self.catalog.load_table(TABLE)
        scan = table.scan() if where is None else table.scan(row_filter=where)
        found = scan.to_arrow()
        return sorted(zip(*(found[name].to_pylist() for name in ("log_id", "lsn", "value")),
                          strict=True))  # fmt: skip


def blocks(made: Made, count: int) -> Made:
    for _ in range(count):
        values = [b"%d" % (made.next + at) for at in range(20)]
        made.block(encode_body(values, timestamps_us=NOW_US))
    return made


def rows_of(*logs: Made) -> list[tuple[int, int, bytes]]:
    return sorted(
        (made.log, int(header.first) + at, b"%d" % (header.first + at))
        for made in logs
        for header, _ in made.items
        for at in range(header.count)
    )


def test_a_table_has_each_record_once_and_follows(tmp_path: Path) -> None:
    lake, made, other = Lake(tmp_path), blocks(Made(7), 3), blocks(Made(8), 1)
    lake.upload(made)
    lake.upload(other)
    assert lake.sync() == (Synced(4, 0, 0), set())
    assert lake.rows() == rows_of(made, other)
    assert lake.sync() == (Synced(0, 0, 4), set())
    lake.upload(blocks(made, 2))
    assert lake.sync() == (Synced(2, 0, 4), set())
    assert lake.rows() == rows_of(made, other)
    narrow = lake.rows(f"log_id = 7 AND lsn >= {made.next - 5}")
    assert narrow == rows_of(made)[-5:]


@pytest.mark.parametrize("name", ["a%20b", "a b", "a?b", "a#b", "é"])
def test_the_store_may_be_in_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    lake = Lake(tmp_path)
    lake.address = str(tmp_path / name)
    made = blocks(Made(7), 3)
    lake.upload(made)
    assert lake.sync()[0].added == 3
    assert lake.rows() == rows_of(made)
    assert len(lake.present()) == 3
    assert lake.sync()[0] == Synced(0, 0, 3)


def test_a_log_without_its_manifest_does_not_leave_the_table(tmp_path: Path) -> None:
    """Its rows left the table, and nothing named the log."""
    lake, made, other = Lake(tmp_path), blocks(Made(7), 3), blocks(Made(8), 1)
    lake.upload(made)
    lake.upload(other)
    lake.sync()
    (Path(lake.address) / head_name(8)).unlink()
    with pytest.raises(Malformed, match="cordwood tier repair 8"):
        lake.sync()
    assert lake.rows() == rows_of(made, other)


def test_what_is_trimmed_leaves_the_table_before_its_object_goes(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), blocks(Made(7), 3)
    lake.upload(made)
    lake.sync()

    async def trim(store: PatientStore, host: Host) -> None:
        manifest = LogManifest(store, 7, host, "test")
        await manifest.load()
        await manifest.trim(made.first + 20)

    async def collect(store: PatientStore, host: Host) -> None:
        manifest = LogManifest(store, 7, host, "test")
        await manifest.load()
        await collect_log(store, manifest, 7, host.clock.now_us() + 10**12, 0)

    lake.do(trim)
    assert lake.sync() == (Synced(0, 1, 2), set())
    lake.do(collect)
    assert lake.rows() == rows_of(made)[20:]


def share(lake: Lake, *logs: Made, committed: int) -> None:
    """Upload logs into one object; the first ones of them are committed."""

    async def act(store: PatientStore, host: Host) -> None:
        shares = [
            LogItems(each.log, each.name, 0, LogManifest(store, each.log, host, "test"),
                     each.first, list(each.items))
            for each in logs
        ]  # fmt: skip
        for each in shares[committed:]:
            each.manifest.commit = overtaken  # type: ignore[method-assign]
        await upload_shared(store, host, shares)

    lake.do(act)


async def overtaken(entry):
    """Another uploader took a turn between the put and the commit."""
    raise Fenced("another uploader has begun")


def test_an_object_of_which_a_share_is_not_committed_stays_out(tmp_path: Path) -> None:
    lake, one, two = Lake(tmp_path), blocks(Made(7), 1), blocks(Made(8, "/b"), 1)
    share(lake, one, two, committed=1)
    lake.upload(two)  # by the other uploader, into an object of its own
    done, left_out = lake.sync()
    assert (done, len(left_out)) == (Synced(1, 0, 0), 1)
    assert lake.rows() == rows_of(two)


def test_a_shared_object_stays_while_one_of_its_logs_is_wanted(tmp_path: Path) -> None:
    lake, one, two = Lake(tmp_path), blocks(Made(7), 1), blocks(Made(8, "/b"), 1)
    share(lake, one, two, committed=2)
    assert lake.sync() == (Synced(1, 0, 0), set())
    assert lake.rows() == rows_of(one, two)
    for each in (two, one):

        async def trim(store: PatientStore, host: Host, each: Made = each) -> None:
            manifest = LogManifest(store, each.log, host, "test")
            await manifest.load()
            await manifest.trim(each.next)

        lake.do(trim)
        gone = 1 if each is one else 0
        assert lake.sync() == (Synced(0, gone, 1 - gone), set())


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_manifest_that_was_repaired_from_overlapping_objects_doubles_nothing(
    tmp_path: Path, is_gone: bool
):
    """The larger one of an uploader that was overtaken was taken, and the next one cut."""
    lake, made = Lake(tmp_path), blocks(Made(7), 3)

    async def overtaken_upload(store: PatientStore, host: Host) -> None:
        manifest = LogManifest(store, 7, host, "test")
        manifest.commit = overtaken  # type: ignore[method-assign]

        async def items():
            for item in made.items:
                yield item

        with pytest.raises(Fenced):
            await LogUploader(store, manifest, host, 7, made.name).run(items(), made.first)

    lake.do(overtaken_upload)
    later, made.items = made.items[2:], made.items[:2]
    lake.upload(made, 1 << 20)
    made.items += later
    lake.upload(blocks(made, 2), 1 << 20)
    lake.upload(blocks(made, 1), 1 << 20)
    assert lake.sync() == (Synced(3, 0, 0), set())
    assert lake.rows() == rows_of(made)

    async def repair(store: PatientStore, host: Host) -> None:
        await store.delete([head_name(7)], timeout_s=60)
        found = await repair_log(store, LogManifest(store, 7, host, "test"), 7)
        assert not found.holes

    if is_gone:  # of the objects that were committed, so the other one has to be taken
        (first,) = (tmp_path / "history").rglob(f"{made.first:016x}-{made.first + 39:016x}-*")
        first.unlink()
    lake.do(repair)
    synced, left_out = lake.sync()
    # Half of the object behind the one that was taken is in that one.
    assert (synced.removed, len(left_out)) == ((2, 1) if is_gone else (0, 0))
    wanted = rows_of(made)
    assert lake.rows() == (wanted[:60] + wanted[100:] if is_gone else wanted)


def test_an_object_that_a_repair_cut_at_the_start_of_the_log_stays(tmp_path: Path):
    lake, made = Lake(tmp_path), blocks(Made(7), 2)
    lake.upload(made)

    async def repair(store: PatientStore, host: Host) -> None:
        await store.delete([head_name(7)], timeout_s=60)
        await repair_log(store, LogManifest(store, 7, host, "test"), 7, start=made.first + 5)

    lake.do(repair)
    assert lake.sync() == (Synced(2, 0, 0), set())
    assert lake.rows() == rows_of(made)


def test_what_was_merged_stays_while_a_table_names_it_and_for_its_grace_after(
    tmp_path: Path,
) -> None:
    lake, made = Lake(tmp_path), blocks(Made(7), 3)
    lake.upload(made)
    lake.sync()
    lake.compact(7)
    assert lake.collect(7, 10**6, 100) == 0
    assert lake.rows() == rows_of(made)
    assert lake.sync() == (Synced(1, 3, 0), set())
    assert lake.rows() == rows_of(made)
    assert lake.collect(7, 90, 100) == 0
    assert lake.collect(7, 110, 100) == 3
    assert lake.rows() == rows_of(made)
    assert lake.sync() == (Synced(0, 0, 1), set())


def test_of_two_runs_at_once_the_one_that_ends_last_may_have_begun_first(tmp_path: Path) -> None:
    """Its note named what it had found, and the collection took what the table named."""
    lake, made = Lake(tmp_path), blocks(Made(7), 3)
    lake.upload(made)
    first, _ = lake.begin()
    lake.compact(7)
    second, _ = lake.begin()
    assert len(first) == 3
    assert len(second) == 1
    sync_table(lake.catalog, TABLE, lake.address, first)
    sync_table(lake.catalog, TABLE, lake.address, second)
    assert lake.present() == second
    lake.end()
    lake.end()
    blocks(made, 3)
    lake.upload(made)
    lake.compact(7)
    assert lake.collect(7, 10**6, 100) == 6, "three were merged first, and three now"
    assert len(lake.rows()) == 60


def test_a_note_that_changes_while_the_table_is_asked_is_not_replaced(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upload(blocks(Made(7), 3))
    lake.begin()
    uuid = table_uuid(lake.catalog, TABLE)

    async def end(store: PatientStore, host: Host) -> None:
        def meanwhile() -> set[str]:
            note = next(tmp_path.rglob("tables/*"))
            note.write_bytes(note.read_bytes() + b" ")
            return set()

        await note_present(store, host, uuid, TABLE, meanwhile)

    with pytest.raises(ObjectChanged):
        lake.do(end)


def test_a_table_that_is_gone_holds_nothing_once_it_is_forgotten(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upload(blocks(Made(7), 3))
    lake.sync()
    lake.compact(7)
    assert lake.collect(7, 10**6, 0) == 0
    lake.do(lambda store, host: forget_table(store, TABLE))
    assert lake.collect(7, 10**6, 0) == 3


def test_a_name_that_tables_of_two_catalogs_have_is_not_forgotten(tmp_path: Path) -> None:
    """Objects that the other catalog's table named were deleted."""
    lake = Lake(tmp_path)
    lake.upload(blocks(Made(7), 3))
    lake.sync()
    other = "22222222-2222-2222-2222-222222222222"
    lake.do(lambda store, host: note_table(store, host, other, TABLE, lake.present()))
    lake.compact(7)
    with pytest.raises(BadSetting, match=f"2 tables are called {TABLE}.*{other}"):
        lake.do(lambda store, host: forget_table(store, TABLE))
    assert lake.collect(7, 10**6, 0) == 0
    lake.do(lambda store, host: forget_table(store, other))
    assert lake.collect(7, 10**6, 0) == 0, "the table of this catalog names them"
    lake.do(lambda store, host: forget_table(store, TABLE))
    assert lake.collect(7, 10**6, 0) == 3


def test_a_note_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upload(blocks(Made(7), 3))
    lake.sync()
    lake.compact(7)
    (note,) = (tmp_path / "history" / "tables").iterdir()
    note.write_bytes(note.read_bytes()[:-1])
    with pytest.raises(Corrupt):
        lake.collect(7, 10**6, 0)


def test_an_object_that_is_merged_in_part_is_parted(tmp_path: Path) -> None:
    """Else the table has one log's records twice, or the other's never."""
    lake, one, two = Lake(tmp_path), blocks(Made(7), 1), blocks(Made(8, "/b"), 1)
    share(lake, one, two, committed=2)
    lake.upload(blocks(one, 1))
    lake.sync()
    lake.compact(7)
    done, left_out = lake.sync()
    assert (done, left_out) == (Synced(2, 2, 0), set())
    assert lake.rows() == rows_of(one, two)
    assert lake.collect(8, 10**6, 0) == 1
    assert lake.rows() == rows_of(one, two)


def test_another_table_is_not_touched(tmp_path: Path) -> None:
    import pyarrow as pa

    lake = Lake(tmp_path)
    lake.upload(blocks(Made(7), 1))
    lake.catalog.create_namespace_if_not_exists("lake")
    lake.catalog.create_table(TABLE, schema=pa.schema([pa.field("x", pa.int64())]))
    with pytest.raises(BadSetting, match="other columns"):
        lake.sync()
    with pytest.raises(BadSetting, match="namespace"):
        sync_table(lake.catalog, "history", lake.address, set())
