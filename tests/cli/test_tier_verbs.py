"""`cordwood tier`: a log is uploaded, merged, verified, lost, repaired, exported, collected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from verbs_at_hand import run_verb

import cordwood
from cordwood import aio
from cordwood.block import Gap, GapKind, Record
from cordwood.cli.tier_mark import mark_for_upload
from cordwood.cli.tier_options import run_on_store, store_options
from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.layout.object_names import head_name
from cordwood.lsn import Lsn
from cordwood.tier.patient_store import PatientStore
from cordwood.uploading.log_source import _before

pytestmark = pytest.mark.real

RECORDS = 3000


def run(*arguments, ends_with: int = 0) -> str:
    done = run_verb(["tier", *map(str, arguments)])
    assert done.exit_code == ends_with, done.output
    return done.output


@pytest.fixture
def data(tmp_path: Path):
    """An embedded store with a log, and another that is small."""
    path = tmp_path / "data"
    with cordwood.connect(str(path)) as store:
        for start in range(0, RECORDS, 500):
            store.append_many(
                "/orders", [b"order %d" % number for number in range(start, start + 500)]
            )
        for number in range(5):
            store.append("/clicks", b"click %d" % number, key=b"k", headers=[("h", b"v")])
    return path


@pytest.fixture
def objects(tmp_path: Path, data):
    """A directory that all of `/orders` was uploaded into."""
    path = tmp_path / "objects"
    run("upload", "/orders", "--store", path, "-c", data)
    return path


def statuses(objects) -> dict[int, dict]:
    return {row["log"]: row for row in json.loads(run("status", "--store", objects, "--json"))}


class TestUpload:
    def test_every_record_is_there_once_and_what_was_appended_since_follows(self, objects, data):
        ((log, row),) = statuses(objects).items()
        assert row["records"] == RECORDS
        with cordwood.connect(str(data)) as store:
            assert store.log("/orders").log_id == log
            store.append_many("/orders", [b"later %d" % number for number in range(10)])
        said = run("upload", "/orders", "--store", objects, "-c", data, "--json")
        assert json.loads(said)["records"] == 10
        assert (
            json.loads(run("upload", "/orders", "--store", objects, "-c", data, "--json"))[
                "objects"
            ]
            == 0
        )
        row = statuses(objects)[log]
        assert (row["records"], row["objects"], row["turn"]) == (RECORDS + 10, 2, 3)
        files = sorted(objects.rglob("*.parquet"))
        values = [value for file in files for value in pq.read_table(file)["value"].to_pylist()]
        assert values == [b"order %d" % number for number in range(RECORDS)] + [
            b"later %d" % number for number in range(10)
        ]
        assert "are sound" in run("verify", "--store", objects)

    @pytest.mark.slow
    def test_the_log_of_another_cluster_is_kept_apart(self, objects, tmp_path: Path):
        """It has the same number. What lay below the end of the first one was left out."""
        other = tmp_path / "other"
        for _ in range(8):
            with cordwood.connect(str(other)) as store:
                store.append("/payments", b"another")
        before = statuses(objects)
        said = run("upload", "/payments", "--store", objects, "-c", other, ends_with=1)
        assert "belongs to cluster" in said
        (objects / "cluster").unlink()  # a store from before there were owners
        said = run("upload", "/payments", "--store", objects, "-c", other, ends_with=1)
        assert "another log 1" in said
        assert statuses(objects) == before
        run("upload", "/payments", "--store", tmp_path / "apart", "-c", other)

    def test_history_of_before_there_were_origins_goes_on(self, objects, data):
        for origin in objects.rglob("origin"):
            origin.unlink()
        run("upload", "/orders", "--store", objects, "-c", data)
        assert len([*objects.rglob("origin")]) == 1

    @pytest.mark.parametrize("trimmed", [1, 3, 4])
    @pytest.mark.slow
    def test_a_trim_inside_of_a_block_is_not_in_the_way(self, objects, data, trimmed: int):
        """Every later upload ended with "comes next", until a trim ended where a block does."""
        with cordwood.connect(str(data)) as store:
            for part in range(2):
                store.append_many("/orders", [b"%d %d" % (part, number) for number in range(4)])
            records = [item for item in store.read("/orders") if isinstance(item, Record)]
            store.trim("/orders", records[RECORDS + trimmed - 1].lsn)
        run("upload", "/orders", "--store", objects, "-c", data)
        assert "are sound" in run("verify", "--store", objects)
        ((_, row),) = statuses(objects).items()
        assert row["records"] == RECORDS + (4 if trimmed == 4 else 8)

    def test_a_trim_with_no_block_behind_it_waits_for_the_next_upload(self):
        """The manifest would end inside of a block, and no upload could go on from there."""
        trim = Gap(Lsn(7), Lsn(9), GapKind.TRIM)
        assert _before(trim, None) is None
        assert _before(trim, Gap(Lsn(10), Lsn(12), GapKind.DATA_LOSS)) is None
        assert _before(trim, Gap(Lsn(10), Lsn(12), GapKind.BRIDGE)) == trim
        hole = Gap(Lsn(7), Lsn(9), GapKind.HOLE)
        assert _before(hole, None) == hole

    def test_large_logs_become_several_objects(self, tmp_path: Path, data):
        with cordwood.connect(str(data)) as store:
            for number in range(12):
                store.append("/large", bytes([number]) * 300_000)
        path = tmp_path / "objects"
        run("upload", "/large", "--store", path, "-c", data, "--object-mib", 1)
        ((_, row),) = statuses(path).items()
        assert (row["records"], row["objects"]) == (12, 3)

    def test_keys_headers_and_lsns_are_those_that_the_store_gives(self, tmp_path: Path, data):
        path = tmp_path / "objects"
        run("upload", "/clicks", "--store", path, "-c", data)
        (file,) = path.rglob("*.parquet")
        rows = pq.read_table(file).to_pylist()
        with cordwood.connect(str(data)) as store:
            records = [item for item in store.read("/clicks") if isinstance(item, cordwood.Record)]
        assert [(row["lsn"], row["key"], row["value"]) for row in rows] == [
            (int(each.lsn), each.key, each.value) for each in records
        ]
        assert {row["log"] for row in rows} == {"/clicks"}
        assert rows[0]["headers"] == [{"key": "h", "value": b"v"}]


class TestDisaster:
    def test_a_lost_manifest_is_repaired_from_the_objects(self, objects, data):
        before = statuses(objects)
        (log,) = before
        shutil.rmtree(data)
        for head in objects.rglob("head"):
            head.unlink()
        said = run("verify", log, "--store", objects, ends_with=1)
        assert "repair" in said
        run("repair", log, "--store", objects)
        after = statuses(objects)
        assert after[log]["records"] == RECORDS
        assert (after[log]["start"], after[log]["end"]) == (before[log]["start"],
                                                            before[log]["end"])  # fmt: skip
        assert "sound" in run("verify", "--store", objects)
        said = run("repair", log, "--store", objects, ends_with=1)
        assert "nothing to repair" in said

    def test_damage_is_found_by_verify_and_not_copied_by_export(self, objects, tmp_path: Path):
        (log,) = statuses(objects)
        (file,) = objects.rglob("*.parquet")
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 4
        file.write_bytes(content)
        said = run("verify", "--store", objects, ends_with=1)
        assert "damaged" in said
        assert "checksum" in said
        run("export", log, tmp_path / "copy", "--store", objects, ends_with=1)
        assert list((tmp_path / "copy").rglob("*.parquet")) == []

    def test_a_damaged_manifest_hides_no_other_log(self, objects, data):
        (orders,) = statuses(objects)
        run("upload", "/clicks", "--store", objects, "-c", data)
        (clicks,) = {*statuses(objects)} - {orders}
        assert orders < clicks
        head = objects / head_name(orders)
        head.chmod(0o600)
        head.write_bytes(b"damaged")
        assert f"log {orders} is passed by" in run("status", "--store", objects, ends_with=1)
        said = run("verify", "--store", objects, ends_with=1)
        assert f"log {clicks}: 1 objects with 5 records are sound" in said
        assert f"log {orders} is passed by" in run("compact", "--store", objects, ends_with=1)
        said = run("collect", "--store", objects, "--grace", 0, ends_with=1)
        assert "0 objects deleted" in said
        assert f"log {orders} is passed by" in said
        said = run("status", orders, "--store", objects, ends_with=1)
        assert "passed by" not in said

    def test_lost_objects_are_not_passed_over(self, objects, data):
        with cordwood.connect(str(data)) as store:
            store.append("/orders", b"more")
        run("upload", "/orders", "--store", objects, "-c", data)
        with cordwood.connect(str(data)) as store:
            store.append("/orders", b"and more")
        run("upload", "/orders", "--store", objects, "-c", data)
        (log,) = statuses(objects)
        next(iter(objects.rglob("head"))).unlink()
        sorted(objects.rglob("*.parquet"))[1].unlink()
        said = run("repair", log, "--store", objects, ends_with=1)
        assert "--accept-loss" in said or "accept the loss" in said
        assert "lost: " in run("repair", log, "--store", objects, "--accept-loss")
        assert "lost: " in run("verify", "--store", objects, ends_with=1)
        assert statuses(objects)[log]["records"] == RECORDS + 1

    def test_a_lost_beginning_is_not_taken_for_trimmed(self, objects, data):
        with cordwood.connect(str(data)) as store:
            lsn = store.append("/orders", b"more")
        run("upload", "/orders", "--store", objects, "-c", data)
        (log,) = statuses(objects)
        next(iter(objects.rglob("head"))).unlink()
        sorted(objects.rglob("*.parquet"))[0].unlink()
        said = " ".join(run("repair", log, "--store", objects, ends_with=1).split())
        assert "1 ranges are in no object" in said
        assert "say where the log begins" in said
        assert "lost: e1n1 to" in run("repair", log, "--store", objects, "--accept-loss")
        assert "lost: e1n1 to" in run("verify", "--store", objects, ends_with=1)
        next(iter(objects.rglob("head"))).unlink()
        said = run("repair", log, "--store", objects, "--start", str(lsn))
        assert "lost" not in said


class TestMark:
    def test_an_emptied_store_is_marked_by_an_operator_alone(self, data: Path):
        """The nodes' own store, in a directory that may be a mount point."""
        history = data / "history"
        run("upload", "/orders", "--store", history, "-c", data)
        assert (history / "cluster").exists()
        shutil.rmtree(history)
        history.mkdir()
        for address in (history, f"file://{history}", f"file://{history}/"):
            said = run("upload", "/orders", "--store", address, "-c", data, ends_with=1)
            assert "is it unmounted" in said
            assert "cordwood tier mark" in said
            assert not (history / "cluster").exists()
        assert statuses(history) == {}
        assert "is main storage of cluster" in run("mark", "--store", history, "-c", data)
        run("upload", "/orders", "--store", history, "-c", data)
        assert statuses(history)[1]["records"] == RECORDS

    def test_a_store_that_names_the_cluster_is_its_main_storage_by_any_address(
        self, objects: Path, data: Path
    ):
        """An upload by another address was not compared with what nodes let go of."""

        def is_main(address: str) -> bool:
            async def act(host: Host, opened: PatientStore) -> bool:
                async with aio.connect(str(data)) as client:
                    return await mark_for_upload(client, opened, address)

            return run_on_store(address, None, act)

        assert is_main(f"file://{objects}")
        assert not is_main(f"file://{objects.with_name('empty')}")

    def test_a_store_with_logs_of_another_cluster_is_not_marked(self, objects, tmp_path: Path):
        other = tmp_path / "other"
        with cordwood.connect(str(other)) as store:
            store.append("/payments", b"another")
        assert "belongs to cluster" in run("mark", "--store", objects, "-c", other, ends_with=1)
        (objects / "cluster").unlink()
        assert "another log 1" in run("mark", "--store", objects, "-c", other, ends_with=1)


class TestOthers:
    def test_an_export_is_a_directory_of_parquet(self, objects, tmp_path: Path):
        (log,) = statuses(objects)
        assert f"{RECORDS} records" in run("export", log, tmp_path / "copy", "--store", objects)
        (file,) = (tmp_path / "copy").glob("*.parquet")
        assert pq.read_table(file).num_rows == RECORDS

    def test_an_export_beside_an_older_one_doubles_nothing(self, objects, data, tmp_path: Path):
        """Objects were merged meanwhile: their records would be in two files of the directory."""
        (log,) = statuses(objects)
        copy = tmp_path / "copy"
        for number in range(3):
            with cordwood.connect(str(data)) as store:
                store.append_many("/orders", [b"later %d-%d" % (number, at) for at in range(1200)])
            run("upload", "/orders", "--store", objects, "-c", data)
        for _ in range(2):
            assert "4 files" in run("export", log, copy, "--store", objects)
        assert "4 objects are now 1" in run("compact", "--store", objects)
        (copy / "notes.parquet").write_bytes(b"somebody's")
        said = run("export", log, copy, "--store", objects, ends_with=1)
        assert "is there from an earlier export" in said
        assert len(list(copy.glob("0*.parquet"))) == 4
        assert "1 files" in run("export", log, tmp_path / "other", "--store", objects)

    def test_collect_takes_orphans_and_leaves_what_is_committed(self, objects):
        (file,) = objects.rglob("*.parquet")
        # The same range, of a turn that never was in force.
        orphan = file.with_name(
            "-".join([*file.name.split("-")[:2], "0" * 16, "0" * 8]) + ".parquet"
        )
        orphan.write_bytes(b"half")
        assert "0 objects deleted" in run("collect", "--store", objects)
        assert "1 objects deleted" in run("collect", "--store", objects, "--grace", 0)
        assert (orphan.exists(), file.exists()) == (False, True)

    def test_small_objects_are_merged(self, objects, data):
        for number in range(3):
            with cordwood.connect(str(data)) as store:
                store.append_many("/orders", [b"later %d-%d" % (number, at) for at in range(1200)])
            run("upload", "/orders", "--store", objects, "-c", data)
        assert "4 objects would become 1" in run("compact", "--store", objects, "--dry-run")
        ((_, before),) = statuses(objects).items()
        assert before["objects"] == 4
        (row,) = json.loads(run("compact", "--store", objects, "--json"))
        assert (row["merged"], row["replaced"], row["records"]) == (1, 4, RECORDS + 3600)
        ((_, after),) = statuses(objects).items()
        assert (after["objects"], after["records"]) == (1, before["records"])
        assert "nothing to merge" in run("compact", "--store", objects)
        assert "0 objects deleted" in run("collect", "--store", objects)
        assert "4 objects deleted" in run("collect", "--store", objects, "--grace", 0)
        (file,) = objects.glob("logs/*/objects/*.parquet")
        assert pq.read_table(file).num_rows == RECORDS + 3600
        run("verify", "--store", objects)

    def test_what_is_not_there_is_told(self, tmp_path: Path):
        assert run("status", "--store", tmp_path / "new", "--json") == "[]\n"
        said = run("export", 7, tmp_path / "copy", "--store", tmp_path / "new", ends_with=1)
        assert "tier status" in said
        run("status", "--store", "nowhere://x", ends_with=1)

    @pytest.mark.parametrize(
        "option", ["aws_secret_access_key=x", "access_key_id=x", "TOKEN=x", "region", "=x"]
    )
    def test_credentials_stay_off_the_command_line(self, option: str):
        with pytest.raises(BadSetting) as caught:
            store_options([option])
        assert "=x" not in str(caught.value)
        assert store_options(["region=eu", "endpoint=http://h:1/?a=b"]) == {
            "region": "eu", "endpoint": "http://h:1/?a=b",
        }  # fmt: skip


class TestIceberg:
    @pytest.mark.filterwarnings("ignore")
    def test_a_table_names_the_objects(self, objects, tmp_path: Path):
        catalog = ["--catalog", "lake", "--property", "type=sql",
                   "--property", f"uri=sqlite:///{tmp_path / 'catalog.db'}",
                   "--property", f"warehouse=file://{tmp_path / 'warehouse'}"]  # fmt: skip
        for added, kept in ((1, 0), (0, 1)):
            shown = json.loads(run("iceberg", "lake.h", "--store", objects, *catalog, "--json"))
            assert (shown["added"], shown["kept"], shown["left_out"]) == (added, kept, [])
        assert "1 kept" in run("iceberg", "lake.h", "--store", objects, *catalog)
        assert "namespace" in run("iceberg", "h", "--store", objects, *catalog, ends_with=1)
