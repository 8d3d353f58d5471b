"""When a node is read-only for want of disk."""

from __future__ import annotations

import pytest

from cordwood.protocol.disk_space import DiskFill, DiskSpace

MIB = 1 << 20
LARGE = 1 << 40


def watched(*free: int, total: int = LARGE) -> list[bool]:
    space = DiskSpace(1024 * MIB, 2048 * MIB)
    said = []
    for each in free:
        before = space.is_low
        assert space.on_free(each * MIB, total) == (space.is_low != before)
        said.append(space.is_low)
    return said


def test_it_goes_below_the_low_mark_and_comes_back_above_the_high_one():
    assert watched(5000, 1024, 1023, 1500, 2047, 2048, 1500, 1023) == [
        False, False, True, True, True, False, False, True,
    ]  # fmt: skip


def test_a_small_disk_has_its_share():
    assert watched(60, 49, 99, 100, total=1000 * MIB) == [False, True, True, False]


@pytest.mark.parametrize("free", [0, 1, 10**6])
def test_no_mark_no_refusal(free):
    assert not DiskSpace(0, 0).on_free(free, LARGE)


@pytest.mark.parametrize(
    ("free", "levels"),
    [
        ((100, 50, 49, 54, 55), (0, 0, 1, 1, 0)),
        ((100, 24, 29, 30, 54, 55), (0, 2, 2, 1, 1, 0)),
        ((9, 14, 16, 100), (3, 3, 2, 0)),
        ((0, 100, 0), (3, 0, 3)),
    ],
)
def test_levels_of_fill_do_not_flutter(free: tuple[int, ...], levels: tuple[int, ...]) -> None:
    fill, before = DiskFill(), 0
    for each, level in zip(free, levels, strict=True):
        assert fill.on_free(each, 100) is (level != before)
        assert fill.level == level
        before = level


def test_a_disk_of_no_size_is_not_full() -> None:
    fill = DiskFill()
    assert not fill.on_free(0, 0)
