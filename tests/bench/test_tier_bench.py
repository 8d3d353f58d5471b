"""Main storage's figures: a tiny run of each, and what counts the gets of a first record."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scenarios import run_on_uvloop
from swaps import swap_value

from cordwood.bench import tier_first as tier_first_module
from cordwood.bench.tier import TierProfile, bench_tier
from cordwood.bench.tier_first import AwayStore
from cordwood.bench.tier_spark import bench_tier_spark
from cordwood.errors import BadSetting
from cordwood.host.real import real_host
from cordwood.settings import MIB
from cordwood.tier.addresses import open_object_store


def test_a_log_goes_to_main_storage_and_back(tmp_path: Path) -> None:
    work = bench_tier(
        TierProfile(total_bytes=8 * MIB), store="", directory=str(tmp_path), repeats=1,
        say=lambda text: None,
    )  # fmt: skip
    made = {figure.name: figure for figure in run_on_uvloop(work)}
    assert list(made) == [
        "tier_upload", "tier_upload_unsynced_puts", "tier_upload_own_puts", "tier_read",
        "tier_read_own_gets", "tier_read_records", "tier_first_record", "tier_first_record_gets",
        "tier_puts", "tier_merge",
    ]  # fmt: skip
    for name, figure in made.items():
        assert figure.value > 0
        assert name == "tier_merge" or figure.ratio == pytest.approx(
            figure.value / figure.reference, rel=0.01
        )
    gets = made["tier_first_record_gets"]
    # Origin and head at the same time, then footer and row group.
    assert (gets.value, gets.reference) == (2, 4)
    away_ms = float(made["tier_first_record"].parameters["away_ms"])
    assert made["tier_first_record"].value >= gets.value * away_ms
    # One object: put, and a turn and a commit beside it.
    assert made["tier_puts"].ratio >= 3
    assert list(tmp_path.iterdir()) == []


def test_gets_at_the_same_time_are_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: tier_first_module.AWAY_S, 0.0)

    async def measure() -> tuple[int, int]:
        async with real_host() as host:
            away = AwayStore(await open_object_store(host, str(tmp_path)))
            await away.put("a", [b"12"], timeout_s=5)
            await asyncio.gather(*(away.read("a", timeout_s=5) for _ in range(2)))
            assert await away.get("a", 1, 2, timeout_s=5) == b"2"
            return away.gets, away.turns

    assert run_on_uvloop(measure()) == (3, 2)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_objects_beside_its_own_reader(tmp_path: Path) -> None:
    work = bench_tier_spark(
        TierProfile(total_bytes=8 * MIB), store="", directory=str(tmp_path), repeats=1,
        say=lambda text: None,
    )  # fmt: skip
    made = {figure.name: figure for figure in run_on_uvloop(work)}
    assert list(made) == [
        "tier_spark_read", "tier_spark_scan_read", "tier_spark_sum", "tier_spark_scan_sum",
    ]  # fmt: skip
    for figure in made.values():
        assert figure.value > 0
        assert figure.ratio == pytest.approx(figure.value / figure.reference, rel=0.01)
        assert figure.parameters["records"] == 8 * MIB // 256
    assert list(tmp_path.iterdir()) == []


def test_spark_is_measured_on_a_directory_alone(tmp_path: Path) -> None:
    work = bench_tier_spark(
        TierProfile(), store="s3://bucket", directory=str(tmp_path), repeats=1, say=print
    )
    with pytest.raises(BadSetting, match="on a directory alone"):
        run_on_uvloop(work)
