"""What retention may trim, by time and by size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.retention import Part, expiry_us, fitting_trim, share_bytes


def parts(*sizes: int) -> list[Part]:
    return [Part(10 * at + 9, size, at) for at, size in enumerate(sizes)]


def test_a_part_goes_when_its_newest_record_is_too_old():
    assert expiry_us(Part(9, 100, 5_000_000), 7.5) == 12_500_000
    assert expiry_us(Part(9, 100, 5_000_000), 0.0) is None


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "trim"),
    [
        ((), 10, 0),
        ((5,), 1, 0),  # the newest is never trimmed: it alone has what is to be kept
        ((5, 5, 5), 0, 0),  # no bound
        ((5, 5, 5), 16, 0),
        ((5, 5, 5), 15, 0),
        ((5, 5, 5), 10, 9),
        ((5, 5, 5), 6, 9),
        ((5, 5, 5), 5, 19),
        ((5, 5, 5), 1, 19),
    ],
)
def test_what_is_left_has_still_so_many_bytes(sizes, bytes_max, trim):
    assert fitting_trim(parts(*sizes), bytes_max) == trim


@given(st.lists(st.integers(1, 100)), st.integers(1, 400))
def test_the_newest_that_fit_stay_and_nothing_more_than_one_part(sizes, bytes_max):
    held = parts(*sizes)
    trim = fitting_trim(held, bytes_max)
    left = [part.bytes for part in held if part.last > trim]
    if trim:
        assert sum(left) >= bytes_max > sum(left[1:])
    else:
        assert sum(left[1:]) < bytes_max


def test_a_nodes_share_of_a_logs_bytes():
    assert share_bytes(1000, 3, 5) == 600
    assert share_bytes(1000, 3, 3) == share_bytes(1000, 3, 2) == 1000
    assert share_bytes(0, 3, 5) == 0
