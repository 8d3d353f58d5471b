"""What retention may trim, by time and by size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.retention import (
    CANDIDATES_MAX,
    Part,
    even_share,
    expiry_us,
    fitting_trim,
    trim_candidates,
)


def test_a_part_goes_when_its_newest_record_is_too_old():
    assert expiry_us(Part(9, 100, 5_000_000), 7.5) == 12_500_000
    assert expiry_us(Part(9, 100, 5_000_000), 0.0) is None


@pytest.mark.parametrize(
    ("lasts", "lsns"),
    [
        ((), []),
        ((9,), []),  # the newest is never trimmed
        ((9, 19, 29), [9, 19]),
        ((29, 9, 19, 9), [9, 19]),
        (range(2 * CANDIDATES_MAX + 1), list(range(0, 2 * CANDIDATES_MAX, 2))),
    ],
)
def test_where_a_log_may_be_trimmed(lasts, lsns):
    assert trim_candidates(lasts) == lsns


@given(st.lists(st.integers(0, 1000)))
def test_nodes_are_asked_about_few_places_and_the_oldest_is_one(lasts):
    found = trim_candidates(lasts)
    assert len(found) <= CANDIDATES_MAX
    assert found[:1] == sorted(set(lasts))[:-1][:1]


@pytest.mark.parametrize(
    ("kept", "bytes_max", "trim"),
    [
        ((15, 10, 5), 0, 0),  # no bound
        ((15, 10, 5), 16, 0),
        ((15, 10, 5), 15, 9),
        ((15, 10, 5), 10, 19),
        ((15, 10, 5), 6, 19),
        ((15, 10, 5), 5, 29),
    ],
)
def test_what_is_left_of_the_whole_log_has_so_many_bytes(kept, bytes_max: int, trim: int):
    assert fitting_trim((9, 19, 29), kept, bytes_max) == trim


def test_an_even_share_of_a_logs_bytes():
    assert even_share(1000, 3, 5) == 600
    assert even_share(1000, 3, 3) == even_share(1000, 3, 2) == 1000
    assert even_share(0, 3, 5) == 0
    assert even_share(1, 1, 9) == 1, "0 is for a log without a bound"
