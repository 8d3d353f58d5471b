"""A donor's pace: it gives way to foreground work, always ends, and takes all where it is alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.rebuild_pace import FLOOR_BYTES_S, TOLERATED, YieldingPace

MAX = 32 * 1024 * 1024.0


def learned(base_s: float = 0.002, bytes_s_max: float = MAX) -> YieldingPace:
    """A pace that has one base, and is a step above the floor."""
    pace = YieldingPace(bytes_s_max)
    pace.on_look(10, 9.0)  # queues drain
    pace.on_look(10, base_s)
    assert pace.bytes_s > FLOOR_BYTES_S
    return pace


class TestLooks:
    def test_a_donor_begins_at_the_floor(self) -> None:
        assert YieldingPace(MAX).bytes_s == FLOOR_BYTES_S

    @pytest.mark.parametrize("most", [MAX, 0.0])
    def test_without_foreground_work_it_takes_all(self, most: float) -> None:
        pace = YieldingPace(most)
        pace.on_look(0, 0.0)
        assert (pace.bytes_s, pace.is_yielding) == (most, False)

    def test_foreground_work_of_which_nothing_is_known_has_it_give_way(self) -> None:
        pace = YieldingPace(MAX)
        pace.on_look(0, 0.0)
        pace.on_look(1, 0.001)
        assert (pace.bytes_s, pace.is_yielding) == (FLOOR_BYTES_S, True)

    def test_while_nothing_suffers_it_goes_faster_up_to_its_most(self) -> None:
        pace = learned()
        for _ in range(40):
            pace.on_look(10, 0.002)
        assert (pace.bytes_s, pace.is_yielding) == (MAX, False)

    @pytest.mark.parametrize(
        ("wait_s", "gives_way"),
        [(0.010 * TOLERATED - 1e-9, False), (0.010 * TOLERATED + 1e-9, True), (1.0, True)],
    )
    def test_it_gives_way_at_once_where_the_wait_is_longer(
        self, wait_s: float, gives_way: bool
    ) -> None:
        pace = learned(base_s=0.010)
        pace.on_look(10, wait_s)
        assert (pace.bytes_s == FLOOR_BYTES_S) is gives_way

    def test_a_wait_of_a_timers_grain_counts_for_nothing(self) -> None:
        pace = learned(base_s=0.0001)
        pace.on_look(10, 0.0003)
        assert pace.bytes_s > FLOOR_BYTES_S

    def test_the_first_look_at_the_floor_is_of_queues_that_drain(self) -> None:
        pace = learned()
        pace.on_look(10, 1.0)
        pace.on_look(10, 0.5)
        pace.on_look(10, 0.002)
        assert pace.bytes_s > FLOOR_BYTES_S
        pace.on_look(10, 0.4)
        assert pace.bytes_s == FLOOR_BYTES_S, "the half second was no base"

    def test_the_base_is_the_least_of_the_last_few_looks(self) -> None:
        pace = learned(base_s=0.002)
        pace.on_look(10, 1.0)
        pace.on_look(10, 1.0)
        looks = 0
        while pace.bytes_s == FLOOR_BYTES_S:  # other work is there to stay
            pace.on_look(10, 0.008)
            looks += 1
        assert looks == 8

    def test_a_shorter_wait_at_any_pace_is_a_base(self) -> None:
        pace = learned(base_s=0.010)
        pace.on_look(10, 0.002)
        assert pace.bytes_s > FLOOR_BYTES_S
        pace.on_look(10, 0.009)
        assert pace.bytes_s == FLOOR_BYTES_S

    def test_a_bound_below_the_floor_is_kept(self) -> None:
        pace = YieldingPace(1000.0)
        for wait_s in (0.001, 0.001, 9.0, 9.0):
            pace.on_look(10, wait_s)
            assert pace.bytes_s == 1000.0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10)), max_size=60))
def test_it_never_leaves_its_bounds(looks: list[tuple[int, float]]) -> None:
    pace = YieldingPace(MAX)
    for stores, wait_s in looks:
        pace.on_look(stores, wait_s)
        assert FLOOR_BYTES_S <= pace.bytes_s <= MAX


@given(
    whole=st.floats(4e6, 1e8), donors=st.integers(1, 8), noise=st.lists(
        st.floats(0.95, 1.1), min_size=16, max_size=16)
)  # fmt: skip
def test_a_closed_loop_beside_many_donors_keeps_four_fifths(
    whole: float, donors: int, noise: list[float]
) -> None:
    """A machine that moves `whole` bytes a second, or serves the loop, or a part of both: the loop
    has what donors leave, and waits in proportion. Above ten donors at the floor it is asked of."""
    paces = [YieldingPace(MAX) for _ in range(donors)]
    shares = []
    for turn in range(200):
        taken = min(0.95, sum(pace.bytes_s for pace in paces) / whole)
        shares.append(1 - taken)
        for index, pace in enumerate(paces):
            pace.on_look(10, 0.005 / (1 - taken) * noise[(turn + 3 * index) % 16])
    at_floor = 1 - donors * FLOOR_BYTES_S / whole
    if at_floor >= 0.9:
        kept = sum(shares[20:]) / len(shares[20:])
        assert kept >= 0.8
