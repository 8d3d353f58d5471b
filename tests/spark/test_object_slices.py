"""Slices that main storage holds: read from objects without a node, and from nodes if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from made_objects import NOW_US, Made

import cordwood
from cordwood.block import Gap, GapKind
from cordwood.client.values import Tiered
from cordwood.host.real import real_host
from cordwood.layout.body import encode_body
from cordwood.lsn import OLDEST, Lsn
from cordwood.sim.planted.bug import planted
from cordwood.sim.planted.spark_sink import OBJECT_BUGS
from cordwood.spark.offsets import DataLoss
from cordwood.spark.slice_reader import read_slices
from cordwood.spark.splitting import Slice, mark_objects
from cordwood.tier.addresses import open_object_store
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log
from cordwood.tier.uploader import Item, LogUploader

LOG = 7
COUNT = 60


def history(first: int = OLDEST) -> Made:
    """A log of 60 records in blocks of 20, with a hole behind the first block."""
    made = Made(LOG, "/orders", first)
    for number in range(3):
        made.block(encode_body([b"%d" % n for n in range(20 * number, 20 * number + 20)],
                               timestamps_us=NOW_US))  # fmt: skip
        if number == 0:
            made.gap(2, GapKind.HOLE)
    return made


def upload(made: Made, directory: Path, made_us: int = 0) -> str:
    """Put a log's history into a directory; its address."""

    async def items() -> AsyncIterator[Item]:
        for item in made.items:
            yield item

    async def main() -> None:
        async with real_host() as host:
            store = await open_object_store(host, str(directory))
            manifest = LogManifest(store, LOG, host, "test")
            uploader = LogUploader(
                store, manifest, host, LOG, "/orders", created_us=made_us, object_bytes=100
            )
            await uploader.run(items(), made.first)
            await store.close()

    asyncio.run(main())
    return str(directory)


def nobody():
    raise AssertionError("a node was asked")


def values(connect, *slices: Slice, fails: bool = True) -> list[bytes]:
    batches = read_slices(connect, slices, ["lsn", "value"], fail_on_data_loss=fails)
    return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.mark.parametrize(("low", "high"), [(0, 62), (5, 21), (20, 22), (30, 31)])
def test_objects_give_a_slice_and_no_node_is_asked(tmp_path: Path, low: int, high: int) -> None:
    made = history()
    address = upload(made, tmp_path / "history")
    asked = Slice(LOG, "/orders", made.first + low, made.first + high, address)
    lsns = [*range(20), *range(22, 62)]  # of the records, from the first on
    expected = [b"%d" % n for n, lsn in enumerate(lsns) if low <= lsn < high]
    assert values(nobody, asked) == expected


def test_what_objects_do_not_give_nodes_do(tmp_path: Path) -> None:
    """The store's address means another directory where the task runs, or an object is damaged."""
    with cordwood.connect(tmp_path / "cluster") as store:
        log = store.create_log("/orders").log_id
        first = store.append_many("/orders", [b"%d" % n for n in range(COUNT)])[0]
        asked = Slice(log, "/orders", first, first + COUNT, str(tmp_path / "elsewhere"))
        assert values(lambda: store, asked) == [b"%d" % n for n in range(COUNT)]


def test_a_damaged_object_is_read_from_nodes_from_there_on(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path / "cluster") as store:
        log = store.create_log("/orders").log_id
        assert log < LOG
        while log < LOG:
            log = store.create_log(f"/orders-{log}").log_id
        name = store.log(log).name
        first = store.append_many(name, [b"%d" % n for n in range(COUNT)])[0]
        made = Made(LOG, "/orders", int(first))
        for at in (0, 20, 40):
            body = encode_body([b"%d" % n for n in range(at, at + 20)], timestamps_us=NOW_US)
            made.block(body)
        address = upload(made, tmp_path / "history")
        objects = sorted((tmp_path / "history").rglob("*.parquet"))
        assert len(objects) > 1
        content = bytearray(objects[1].read_bytes())
        content[40] ^= 1
        objects[1].chmod(0o600)
        objects[1].write_bytes(content)
        asked = Slice(log, name, first, first + COUNT, address)
        calls: list[int] = []

        def connect():
            calls.append(1)
            return store

        assert values(connect, asked) == [b"%d" % n for n in range(COUNT)]
        assert calls == [1]


def lose_an_object(directory: Path, number: int) -> None:
    """Delete it and the manifest; the operator accepts the loss."""
    sorted(directory.rglob("*.parquet"))[number].unlink()
    repair_without_manifest(directory)


def repair_without_manifest(directory: Path, start: int = 0) -> None:
    next(directory.rglob("head")).unlink()

    async def repair() -> None:
        async with real_host() as host:
            store = await open_object_store(host, str(directory))
            manifest = LogManifest(store, LOG, host, "test")
            await repair_log(store, manifest, LOG, start=start, accept=True)
            await store.close()

    asyncio.run(repair())


def nodes_have_what_main_storage_lost(tmp_path: Path) -> bool:
    """One node let go of a range, another one has it, and an object of it is lost."""
    with cordwood.connect(tmp_path / "cluster") as store:
        name = [store.create_log(f"/orders-{n}").name for n in range(LOG)][-1]
        log = store.log(name).log_id
        assert log == LOG
        first = store.append_many(name, [b"%d" % n for n in range(COUNT)])[0]
        made = Made(LOG, "/orders", int(first))
        for at in (0, 20, 40):
            body = encode_body([b"%d" % n for n in range(at, at + 20)], timestamps_us=NOW_US)
            made.block(body)
        address = upload(made, tmp_path / "history")
        lose_an_object(tmp_path / "history", 1)
        asked = Slice(LOG, name, int(first), int(first) + COUNT, address)
        wanted = [b"%d" % n for n in range(COUNT)]
        return all(values(lambda: store, asked, fails=fails) == wanted for fails in (True, False))


def test_what_main_storage_lost_nodes_may_have(tmp_path: Path) -> None:
    assert nodes_have_what_main_storage_lost(tmp_path)


def test_a_loss_of_objects_that_is_believed_shows(tmp_path: Path) -> None:
    bug, *_ = OBJECT_BUGS
    with planted(bug), pytest.raises(DataLoss, match="DATA_LOSS"):
        nodes_have_what_main_storage_lost(tmp_path)


def records_before_a_start_that_is_too_high(tmp_path: Path) -> bool:
    """A repair was given too high a first LSN. One node let go of all, another keeps the records
    before it, and no node tells a trim."""
    with cordwood.connect(tmp_path / "cluster") as store:
        name = [store.create_log(f"/orders-{n}").name for n in range(LOG)][-1]
        assert store.log(name).log_id == LOG
        first = int(store.append_many(name, [b"%d" % n for n in range(COUNT)])[0])
        made = Made(LOG, "/orders", first)
        for at in (0, 20, 40):
            body = encode_body([b"%d" % n for n in range(at, at + 20)], timestamps_us=NOW_US)
            made.block(body)
        address = upload(made, tmp_path / "history")
        repair_without_manifest(tmp_path / "history", first + 20)
        told = Tiered(address, Lsn(first + COUNT - 1), 0, store.extent(name).trim)
        # The second range is what `scan_logs` leaves to the source.
        for count in (COUNT, 20):
            whole = Slice(LOG, name, first, first + count)
            ((*marked,),) = mark_objects([(whole,)], {LOG: told})
            assert all(each.objects for each in marked)
            wanted = [b"%d" % n for n in range(count)]
            if values(lambda: store, *marked, fails=False) != wanted:
                return False
            assert values(lambda: store, *marked) == wanted
            columns = ["lsn", "record_type", "gap_type", "gap_end_lsn"]
            rows = [
                row
                for batch in read_slices(
                    lambda: store, marked, columns, fail_on_data_loss=True, with_gaps=True
                )
                for row in batch["record_type"].to_pylist()
            ]
            assert rows == ["record"] * count, "stats count these"
        return True


def test_nodes_decide_what_is_before_a_manifest(tmp_path: Path) -> None:
    assert records_before_a_start_that_is_too_high(tmp_path)


def test_a_start_of_a_manifest_that_is_believed_shows(tmp_path: Path) -> None:
    *_, bug = OBJECT_BUGS
    with planted(bug):
        assert not records_before_a_start_that_is_too_high(tmp_path)


def trimmed_records_are_left_out(tmp_path: Path) -> bool:
    """Nodes have heard of a trim, and main storage has not. Its objects still have all of it."""
    with cordwood.connect(tmp_path / "cluster") as store:
        name = [store.create_log(f"/orders-{n}").name for n in range(LOG)][-1]
        assert store.log(name).log_id == LOG
        first = store.append_many(name, [b"%d" % n for n in range(COUNT)])[0]
        made = Made(LOG, "/orders", int(first))
        for at in (0, 20, 40):
            body = encode_body([b"%d" % n for n in range(at, at + 20)], timestamps_us=NOW_US)
            made.block(body)
        address = upload(made, tmp_path / "history")
        store.trim(name, Lsn(first + 29))
        told = Tiered(address, Lsn(first + 49), 0, Lsn(first + 29))
        whole = Slice(LOG, name, int(first), int(first) + COUNT)
        ((*marked,),) = mark_objects([(whole,)], {LOG: told})
        wanted = [b"%d" % n for n in range(30, COUNT)]
        if values(lambda: store, *marked, fails=False) != wanted:
            return False
        with pytest.raises(DataLoss, match="TRIM"):
            values(lambda: store, *marked)
        return True


def test_trimmed_records_are_not_read_from_objects(tmp_path: Path) -> None:
    assert trimmed_records_are_left_out(tmp_path)


def test_trimmed_records_that_are_read_show(tmp_path: Path) -> None:
    _, bug, _ = OBJECT_BUGS
    with planted(bug):
        assert not trimmed_records_are_left_out(tmp_path)


def test_a_trim_after_the_plan_fails_the_task(tmp_path: Path) -> None:
    """Main storage and the nodes tell of it."""
    with cordwood.connect(tmp_path / "cluster") as store:
        name = [store.create_log(f"/orders-{n}").name for n in range(LOG)][-1]
        assert store.log(name).log_id == LOG
        first = int(store.append_many(name, [b"%d" % n for n in range(COUNT)])[0])
        made = Made(LOG, "/orders", first)
        for at in (0, 20, 40):
            body = encode_body([b"%d" % n for n in range(at, at + 20)], timestamps_us=NOW_US)
            made.block(body)
        address = upload(made, tmp_path / "history")

        async def trim() -> None:
            async with real_host() as host:
                objects = await open_object_store(host, address)
                manifest = LogManifest(objects, LOG, host, "test")
                await manifest.load()
                await manifest.trim(first + 30)
                await objects.close()

        asyncio.run(trim())
        store.trim(name, Lsn(first + 29))
        asked = Slice(LOG, name, first, first + COUNT, address)
        with pytest.raises(DataLoss, match="TRIM"):
            values(lambda: store, asked)
        wanted = [b"%d" % n for n in range(30, COUNT)]
        assert values(lambda: store, asked, fails=False) == wanted


def test_a_store_of_another_cluster_gives_nothing(tmp_path: Path) -> None:
    """The same path on the task's machine is another cluster's, which has a log of this number."""
    with cordwood.connect(tmp_path / "cluster") as store:
        while store.create_log(f"/orders-{len(store.logs())}").log_id < LOG:
            pass
        (info,) = (each for each in store.logs() if each.log_id == LOG)
        first = store.append_many(info.name, [b"%d" % n for n in range(COUNT)])[0]
        other = Made(LOG, "/orders", int(first))
        other.block(encode_body([b"other"] * COUNT, timestamps_us=NOW_US))
        address = upload(other, tmp_path / "history", info.created_us + 1)
        asked = Slice(LOG, info.name, first, first + COUNT, address, info.created_us)
        assert values(lambda: store, asked) == [b"%d" % n for n in range(COUNT)]
    ours = upload(other, tmp_path / "ours", info.created_us)
    asked = Slice(LOG, info.name, first, first + COUNT, ours, info.created_us)
    assert values(nobody, asked) == [b"other"] * COUNT


def held(upto: int, trim: int = 0) -> Tiered:
    return Tiered("s3://x", Lsn(upto), 5, Lsn(trim))


def test_marks_move_no_cut() -> None:
    cuts = [(Slice(1, "/a", 1, 10), Slice(2, "/b", 1, 5)), (Slice(1, "/a", 10, 30),)]
    assert mark_objects(cuts, {}) == cuts
    marked = mark_objects(cuts, {1: held(14)})
    assert marked == [
        (Slice(1, "/a", 1, 10, "s3://x", 5), Slice(2, "/b", 1, 5)),
        (Slice(1, "/a", 10, 15, "s3://x", 5), Slice(1, "/a", 15, 30)),
    ]
    assert mark_objects(cuts, {2: held(0)}) == cuts
    assert mark_objects(cuts, {1: held(14, trim=11)})[1] == (
        Slice(1, "/a", 10, 12), Slice(1, "/a", 12, 15, "s3://x", 5), Slice(1, "/a", 15, 30)
    )  # fmt: skip
    assert mark_objects(cuts, {1: held(14, trim=20)}) == cuts
    assert mark_objects(cuts, {1: held(99, trim=29)}) == cuts
    assert mark_objects(cuts, {1: held(9)})[1] == cuts[1]
    assert mark_objects(cuts, {1: held(99)})[1] == (Slice(1, "/a", 10, 30, "s3://x", 5),)


def test_gaps_are_told_from_objects(tmp_path: Path) -> None:
    made = history()
    address = upload(made, tmp_path / "history")
    asked = Slice(LOG, "/orders", made.first, made.next, address)
    columns = ["lsn", "record_type", "gap_type", "gap_end_lsn"]
    batches = read_slices(nobody, [asked], columns, fail_on_data_loss=True, with_gaps=True)
    gaps = [kind for batch in batches for kind in batch["gap_type"].to_pylist() if kind]
    assert len(gaps) == 1
    assert any(isinstance(item, Gap) for item in made.items)
