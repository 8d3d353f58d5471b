"""The search for a time: equal to looking at every block, and quick."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from cordwood.lsn import make_lsn
from cordwood.spark.find_time import Seen, find_time
from cordwood.spark.runs import LsnRun


class Log:
    """Blocks in order, with holes between them, and a count of what was looked at."""

    def __init__(self, blocks: list[Seen], runs: list[LsnRun]) -> None:
        self.blocks = blocks
        self.runs = runs
        self.looks = 0

    def look(self, lsn: int, stop: int) -> Seen | None:
        self.looks += 1
        at = bisect_left(self.blocks, lsn, key=lambda block: block.last)
        found = self.blocks[at] if at < len(self.blocks) else None
        return found if found is not None and found.first < stop else None

    def slow(self, time_us: int) -> int | None:
        """What the search should find."""
        return next((b.first for b in self.blocks if b.append_time_us >= time_us), None)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    blocks: list[Seen] = []
    runs: list[LsnRun] = []
    time_us = 0
    for epoch in draw(st.lists(st.integers(1, 9), unique=True, max_size=5).map(sorted)):
        at = first = make_lsn(epoch, 1)
        for hole, count, later in draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), max_size=6)
        ):
            time_us += later
            blocks.append(Seen(at + hole, at + hole + count - 1, time_us))
            at += hole + count
        stop = at + draw(st.integers(0, 2))
        if stop > first:
            runs.append(LsnRun(first, stop))
    return Log(blocks, runs)


@given(logs(), st.integers(-1, 30))
def test_finds_what_a_walk_over_every_block_finds(log: Log, time_us: int):
    assert find_time(time_us, log.runs, log.look) == log.slow(time_us)


def test_looks_at_few_blocks_of_a_long_log():
    runs = [LsnRun(make_lsn(epoch, 1), make_lsn(epoch, 1_000_001)) for epoch in range(1, 33)]
    blocks = [
        Seen(first, first + 999, epoch * 1000 + at)
        for epoch in range(1, 33)
        for at, first in enumerate(range(make_lsn(epoch, 1), make_lsn(epoch, 1_000_001), 1000))
    ]
    log = Log(blocks, runs)
    for time_us in (0, 1500, 16_321, 99_999):
        log.looks = 0
        assert find_time(time_us, runs, log.look) == log.slow(time_us)
        assert log.looks <= 5 + 20 + 1


def test_of_an_empty_log_is_nowhere():
    assert find_time(0, [], Log([], []).look) is None
