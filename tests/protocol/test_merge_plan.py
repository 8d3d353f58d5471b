"""Which objects are merged: small ones, in runs, and no record over and over."""

from __future__ import annotations

import pytest
from grown_manifest import FIRST, entry

from cordwood.protocol.manifest import ref_of
from cordwood.protocol.merge_plan import MergePolicy, plan_merges, worn_pages
from cordwood.tiered import Entry, Head, Page

MIB = 1 << 20
POLICY = MergePolicy(object_bytes=64 * MIB, entries_min=4)


def entries(*mib: float | str) -> list[Entry]:
    """Objects of so many MiB; `s3` is a share of an object of several logs, `lost` is none."""
    made = []
    for number, size in enumerate(mib):
        first = FIRST + 10 * number
        one = entry(first, first + 9)
        if size == "lost":
            made.append(one._replace(name="lost", bytes=0, size=0))
        elif isinstance(size, str):
            made.append(one._replace(name=f"shared/{number}", bytes=round(float(size[1:]) * MIB)))
        else:
            made.append(one._replace(bytes=round(size * MIB)))
    return made


def places(found: list[tuple[Entry, ...]]) -> list[tuple[int, int]]:
    """First and last index of each run."""
    return [((run[0].first - FIRST) // 10, (run[-1].first - FIRST) // 10) for run in found]


class TestPlanning:
    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ((), []),
            ((1,), []),
            ((1, 1, 1), []),  # fewer than four, and they fill no half
            ((1, 1, 1, 1), [(0, 3)]),
            ((20, 20), [(0, 1)]),  # more than half of an object
            ((64, 1, 1, 1, 1, 64), [(1, 4)]),
            ((64, 64, 64), []),
            ((1, 1, "lost", 1, 1), []),
            ((1, 1, 1, 1, "lost", 1, 1, 1, 1), [(0, 3), (5, 8)]),
            ((30, 30, 30, 30), [(0, 1), (2, 3)]),  # 64 MiB at most
            ((33, 33), []),
            ((32, 32), [(0, 1)]),
            ((20, 1, 1, 1), []),  # one object would be written anew for little
            ((20, 1, 1, 1, 1), [(1, 4)]),
            ((10, 4, 2, 1, 3), [(0, 4)]),
            ((16, *[1] * 16), [(0, 16)]),
            ((0, 0, 0, 0), [(0, 3)]),  # gaps alone
            (("s.1", "s.1", "s.1", "s.1"), []),  # an object of its own for less than a megabyte
            (("s.3", "s.3", "s.3", "s.3"), [(0, 3)]),
            (("s.1", 0.1, 0.1, "s.1"), [(0, 3)]),  # two objects become one
            (("s.1", 0.1, "s.1", "s.1"), []),
        ],
    )
    def test_runs(self, sizes, expected):
        assert places(plan_merges(entries(*sizes), POLICY)) == expected

    def test_two_are_enough_by_hand(self):
        assert places(plan_merges(entries(1, 1), MergePolicy(64 * MIB))) == [(0, 1)]
        assert places(plan_merges(entries(2, 1), MergePolicy(64 * MIB))) == []

    def test_a_record_is_written_anew_a_few_times_however_long_its_log_lives(self):
        log: list[float] = []
        written = 0.0
        for _ in range(3000):
            log.append(1)
            for run in plan_merges(entries(*log), POLICY):
                first, last = places([run])[0]
                log[first : last + 1] = [sum(log[first : last + 1])]
                written += log[first]
        assert written / 3000 < 5
        assert len(log) < 3000 / 32 + 10


class TestPages:
    def test_worn_pages_are_the_young_ones_of_small_objects(self):
        def page(count: int, mib: float):
            items = tuple(entries(*[mib] * count))
            return ref_of(Page(0, items), 1, 7, 100)

        worn = page(64, 0.1)
        refs = (page(64, 0.1), page(64, 30), page(3, 0.1), page(64, 0.01), worn)
        head = Head(7, 1, 1, "a", FIRST, FIRST + 9, ((), refs), ())
        assert worn_pages(head, POLICY) == [worn]
        assert worn_pages(head._replace(levels=((),)), POLICY) == []
