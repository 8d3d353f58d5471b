"""`cordwood bench rebuild`: two nodes are lost for good, and healed alone and beside appends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cordwood.bench.rebuild import RebuildProfile, bench_rebuild
from cordwood.bench.rebuild_plan import bench_plan
from cordwood.errors import BadSetting
from cordwood.settings import MIB


def test_four_nodes_have_no_place_for_the_copies_of_two_lost_ones() -> None:
    with pytest.raises(BadSetting, match="five nodes"):
        asyncio.run(
            bench_rebuild(RebuildProfile(nodes=4), directory=".", repeats=1, say=lambda _: None)
        )


@pytest.mark.slow
def test_a_lost_node_is_healed_and_all_figures_are_told(tmp_path: Path) -> None:
    profile = RebuildProfile(nodes=5, total_bytes=16 * MIB, seconds=1.0)
    work = bench_rebuild(profile, directory=str(tmp_path), repeats=1, say=lambda _: None)
    figures = {each.name: each for each in asyncio.run(work)}
    assert list(figures) == [
        "rebuild_moved", "rebuild_beside", "rebuild_beside_p99", "rebuild_moved_beside",
        "rebuild_largest_share", "rebuild_wal_range",
    ]  # fmt: skip
    assert all(each.value > 0 and each.ratio for each in figures.values())
    assert 1 <= (figures["rebuild_largest_share"].ratio or 0) < 3


def test_a_plan_has_every_block_of_the_lost_node(tmp_path: Path) -> None:
    said: list[str] = []
    work = bench_plan(700, directory=str(tmp_path), repeats=1, say=said.append)
    figures = {each.name: each for each in asyncio.run(work)}
    assert list(figures) == ["rebuild_plan", "rebuild_plan_cpu", "rebuild_plan_memory"]
    assert said[1].startswith("rebuild: 700 blocks planned")
    assert figures["rebuild_plan"].reference == pytest.approx(0.07)
    assert list(tmp_path.iterdir()) == []
