"""`cordwood wal bench`: what fio is asked and says, how appends are timed, what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenarios import run_on_uvloop
from verbs_at_hand import Outcome, run_verb

from cordwood.bench import wal as bench_wal_module
from cordwood.bench import wal_figures, wal_start
from cordwood.bench.fio import FioJob, FioResult, read_result, run_fio
from cordwood.bench.wal import OWNER, WalProfile, bench_wal_file, run_wal
from cordwood.bench.wal_figures import MEASURES, STANDARD, WalCase, bench_wal, custom_case, sized
from cordwood.bench.wal_start import bench_start
from cordwood.block import Buffer
from cordwood.errors import BadSetting, Unreachable
from cordwood.host.real_disk import RealDisk
from cordwood.host.seams import DirectFile
from cordwood.layout.wal_block import WAL_RING_START
from cordwood.storage.wal.delta_wal import Wal
from cordwood.write_budget import GP3

MIB = 1 << 20
CAPACITY = 16 * MIB


def verb(*arguments: str) -> Outcome:
    return run_verb(["wal", "bench", *arguments])


def quiet(_: str) -> None:
    pass


@pytest.fixture
def fio(require: Callable[[str, str], None]) -> str:
    path = shutil.which("fio")
    if path is None:
        require("fio", "fio is not installed")
    return str(path)


@pytest.fixture
def no_fio(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wal_figures, wal_start):
        monkeypatch.setattr(module, "find_fio", lambda: None)


class TestFio:
    JOB = FioJob("/there", 8192, 10_000, 4096, 4, 0.25)

    def test_it_writes_directly_and_durably_inside_the_ring_only(self):
        arguments = self.JOB.arguments()
        for each in ("--direct=1", "--sync=dsync", "--ioengine=libaio", "--offset=8192",
                     "--size=8192", "--bs=4096", "--iodepth=4", "--rw=write", "--time_based",
                     "--runtime=250ms", "--allow_file_create=0"):  # fmt: skip
            assert each in arguments
        assert not any(each.startswith("--rate") for each in arguments)

    def test_a_pace_and_a_single_pass_of_reading(self):
        assert "--rate=2500" in FioJob("/f", 0, 4096, 4096, 1, 1.0, 2500.0).arguments()
        once = FioJob("/f", 0, 8192, 4096, 1, None, reads=True).arguments()
        assert "--rw=read" in once
        assert not {"--time_based", "--sync=dsync"} & set(once)

    @pytest.mark.parametrize("kind", ["write", "read"])
    def test_what_it_prints_is_read_behind_its_warnings(self, kind: str):
        done = {
            "iops": 1000.5, "bw_bytes": 4_098_048,
            "lat_ns": {"mean": 90_000.0, "max": 5_000_000},
            "clat_ns": {"percentile": {"50.000000": 80_000, "99.000000": 300_000}},
        }  # fmt: skip
        printed = b"fio: a warning\n" + json.dumps({"jobs": [{kind: done}]}).encode()
        assert read_result(printed, reads=kind == "read") == FioResult(
            1000.5, 4_098_048, 90.0, 80.0, 300.0, 5000.0
        )

    @pytest.mark.parametrize("printed", [b"", b"nothing", b"{}", b'{"jobs": []}', b'{"jobs": 1}'])
    def test_anything_else_is_an_error_that_shows_it(self, printed: bytes):
        with pytest.raises(Unreachable, match="something else"):
            read_result(printed)

    def test_it_runs(self, tmp_path: Path, fio: str):
        path = tmp_path / "file"
        path.write_bytes(bytes(MIB))
        result = run_on_uvloop(run_fio(fio, FioJob(str(path), 0, MIB, 4096, 2, 0.05)))
        assert result.bytes_per_s == pytest.approx(result.operations_per_s * 4096, rel=0.05)
        assert 0 < result.p50_us <= result.p99_us <= result.max_us * 1.1

    def test_that_it_failed_is_told_in_its_words(self, tmp_path: Path, fio: str):
        with pytest.raises(Unreachable, match=r"fio failed: .*file creation disallowed"):
            run_on_uvloop(run_fio(fio, FioJob(str(tmp_path / "none"), 0, MIB, 4096, 1, 0.05)))


class TestProfiles:
    def test_the_standard_writes_are_whole_blocks(self):
        writes = {case.name: (case.profile.write_bytes, case.profile.writes) for case in STANDARD}
        assert writes == {
            "wal_256KiB": (256 << 10, 4),
            "wal_64KiB": (64 << 10, 4),
            "wal_4KiB": (4096, 4),
            "wal_4KiB_one_at_a_time": (4096, 1),
            "wal_100B": (256 << 10, 4),
            "wal_100B_in_batches": (256 << 10, 4),
        }

    def test_at_a_pace_a_write_is_what_is_due_at_once(self):
        paced = custom_case(960, None, None, None, 1.0).profile
        assert (paced.bytes_per_s, paced.write_bytes) == (MIB, 4096)

    def test_options_decide_what_they_name(self):
        profile = custom_case(None, None, 2, None, None, budget="gp3").profile
        assert (profile.depth, profile.in_flight, profile.budget) == (2, 32, GP3)
        assert custom_case(100, 7, None, 8192, None).profile.limits.block_bytes == 8192

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(BadSetting, match="four times"):
            sized(STANDARD, seconds=1, capacity_bytes=MIB)
        for wrong in (
            {"batch": 65},
            {"record_bytes": 0},
            {"depth": 0},
            {"seconds": 0},
            {"bytes_per_s": 0.0},
        ):
            with pytest.raises(BadSetting):
                WalProfile(**wrong)


class CountingFile:
    """A file that knows how many of the ring's writes it had at a time."""

    def __init__(self, file: DirectFile) -> None:
        self._file = file
        self._in_flight = 0

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        done = self._file.write(offset, parts)
        if offset >= WAL_RING_START:
            self._in_flight += 1
            CountingDisk.most = max(CountingDisk.most, self._in_flight)
            done.add_done_callback(self._on_done)
        return done

    def _on_done(self, _: object) -> None:
        self._in_flight -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingDisk(RealDisk):
    """Its files tell the most that any had."""

    most = 0

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> Any:
        return CountingFile(await super().open_direct(path, create_bytes=create_bytes))


class TestRuns:
    def run_on(self, directory: Path, profile: WalProfile) -> Any:
        async def measure() -> Any:
            async with bench_wal_file(str(directory), profile.capacity_bytes) as path:
                return await run_wal(path, profile)

        return run_on_uvloop(measure())

    def test_as_fast_as_it_goes(self, tmp_path: Path):
        profile = WalProfile(10_000, 16, seconds=0.1, capacity_bytes=MIB)
        result = self.run_on(tmp_path, profile)
        assert result.body_bytes == result.records * 10_000
        assert result.written_bytes > result.body_bytes > 0
        assert 0 < result.p50_us <= result.p99_us <= result.max_us
        assert result.mean_us <= result.max_us
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("case", STANDARD, ids=lambda case: case.name)
    def test_as_many_writes_are_at_the_device_as_fio_has_there(
        self, case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """The kernel had the blocks ahead as well: eight of the WAL's beside four of fio's."""
        monkeypatch.setattr(bench_wal_module, "RealDisk", CountingDisk)
        monkeypatch.setattr(CountingDisk, "most", 0)
        # As long as it takes until the queue was full: a busy machine's first turn is slow.
        self.run_on(tmp_path, replace(case.profile, seconds=0.3, capacity_bytes=64 * MIB))
        assert CountingDisk.most == case.profile.depth == case.profile.writes

    def test_many_at_a_time(self, tmp_path: Path):
        profile = WalProfile(100, 400, batch=100, seconds=0.1, capacity_bytes=MIB)
        result = self.run_on(tmp_path, profile)
        assert result.records % 100 == 0
        assert result.body_bytes == result.records * 100
        assert result.written_bytes > result.body_bytes > 0

    def test_at_a_pace_it_appends_no_more_than_is_due(self, tmp_path: Path):
        result = self.run_on(
            tmp_path, WalProfile(1000, 64, bytes_per_s=200_000, seconds=0.3, capacity_bytes=MIB)
        )
        assert 1 <= result.records <= 0.3 * 200 + 1

    def test_a_start_reads_all_that_is_live(self, tmp_path: Path, no_fio: None):
        async def measure() -> Any:
            async with bench_wal_file(str(tmp_path), MIB) as path:
                return await bench_start(path, MIB, 1000, repeats=2, say=quiet)

        figure = run_on_uvloop(measure())
        assert (figure.unit, figure.reference, figure.repeats) == ("s", None, 2)
        assert figure.parameters["ring_bytes"] > 0.9 * MIB


class TestPlaces:
    def test_what_stands_there_is_refused_and_blanked_with_leave(self, tmp_path: Path):
        path = tmp_path / "precious"
        path.write_bytes(b"x" * MIB)

        async def use(destroy: bool) -> None:
            async with bench_wal_file(str(path), MIB, destroy=destroy) as name:
                assert name == str(path)
                disk = RealDisk()
                wal = await Wal.open(disk, name, owner=OWNER)
                await wal.close()
                await disk.close()

        with pytest.raises(BadSetting, match="holds data"):
            run_on_uvloop(use(False))
        assert path.read_bytes() == b"x" * MIB
        run_on_uvloop(use(True))
        assert path.read_bytes() == bytes(MIB)

    def test_a_file_that_was_there_blank_stays(self, tmp_path: Path):
        path = tmp_path / "blank"
        path.write_bytes(bytes(2 * MIB))

        async def use() -> None:
            async with bench_wal_file(str(path), MIB):
                pass

        run_on_uvloop(use())
        assert path.read_bytes() == bytes(2 * MIB)


class TestFigures:
    def test_without_fio_there_is_no_reference(self, tmp_path: Path, no_fio: None):
        async def measure() -> Any:
            profile = WalProfile(4000, 4, seconds=0.02, capacity_bytes=MIB)
            async with bench_wal_file(str(tmp_path), MIB) as path:
                return await bench_wal(path, WalCase("w", profile), repeats=1, say=quiet)

        figures = run_on_uvloop(measure())
        assert [each.name for each in figures] == [f"w_{each.name}" for each in MEASURES]
        assert {(each.reference, each.ratio) for each in figures} == {(None, None)}
        assert figures[0].reference_is == "fio is not installed"

    @pytest.mark.usefixtures("fio")
    def test_the_verb_beside_fio(self, tmp_path: Path):
        outcome = verb(
            str(tmp_path), "--record-size", "4000", "--in-flight", "8", "--depth", "2",
            "--duration", "0.05", "--repeat", "2", "--capacity", "4", "--json",
        )  # fmt: skip
        assert outcome.exit_code == 0, outcome.output
        made = {each["name"]: each for each in json.loads(outcome.stdout)}
        assert "wal_4000B_records, run 2 of 2: " in outcome.stderr
        for measure in ("throughput", "iops", "mean", "p50", "p99", "max"):
            figure = made[f"wal_4000B_records_{measure}"]
            assert figure["value"] > 0
            assert figure["ratio"] > 0
        assert made["wal_4000B_records_records"]["reference"] is None
        assert os.listdir(tmp_path) == []

    def test_the_standard_ones_as_tables(self, tmp_path: Path, no_fio: None):
        outcome = verb(str(tmp_path), "--duration", "0.02", "--repeat", "1", "--capacity", "40")
        assert outcome.exit_code == 0, outcome.output
        for case in STANDARD:
            assert f"{case.name}_throughput" in outcome.stdout
        assert "wal_recovery_of_1024B_records" in outcome.stdout
        assert os.listdir(tmp_path) == []

    def test_a_file_that_holds_something_is_one_line(self, tmp_path: Path):
        path = tmp_path / "wal"
        path.write_bytes(b"x" * MIB)
        outcome = verb(str(path), "--capacity", "1", "--record-size", "100")
        assert outcome.exit_code == 1
        assert "remove it first" in outcome.stderr
        assert path.read_bytes() == b"x" * MIB
