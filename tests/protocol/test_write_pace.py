"""Writes held to a budget, against the sums that a volume's owner would check."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import BadSetting
from cordwood.protocol.write_pace import BURST_S, WritePace
from cordwood.write_budget import (
    GP3,
    OPERATION_BYTES_MAX,
    UNLIMITED,
    WriteBudget,
    parse_budget,
)

MIB = 1 << 20


def write_all(pace: WritePace, lengths: list[int], now: float = 0.0) -> list[float]:
    """When each write starts, if each starts as soon as it may."""
    starts = []
    for length in lengths:
        now += pace.wait_s(now)
        pace.on_write(now, length)
        starts.append(now)
    return starts


def test_no_budget_never_waits() -> None:
    assert write_all(WritePace(UNLIMITED, 0.0), [16 * MIB] * 1000) == [0.0] * 1000
    assert not UNLIMITED.is_limited


def test_a_burst_goes_at_once_and_then_writes_come_at_the_rate() -> None:
    starts = write_all(WritePace(WriteBudget(operations_per_s=100), 0.0), [4096] * 111)
    assert starts[:11] == [0.0] * 11  # ten tokens, and one write into debt
    steps = [after - before for before, after in itertools.pairwise(starts[10:])]
    assert steps == [pytest.approx(0.01)] * 100


def test_a_quiet_time_is_made_up_for_by_one_burst_at_most() -> None:
    pace = WritePace(WriteBudget(operations_per_s=100), 0.0)
    write_all(pace, [4096] * 50)
    starts = write_all(pace, [4096] * 12, now=1000.0)
    assert starts == [1000.0] * 11 + [pytest.approx(1000.01)]


def test_a_large_write_counts_as_several_and_may_exceed_a_burst() -> None:
    pace = WritePace(WriteBudget(operations_per_s=10), 0.0)  # a burst is one operation
    assert pace.wait_s(0.0) == 0.0
    pace.on_write(0.0, 4 * OPERATION_BYTES_MAX + 1)
    assert pace.wait_s(0.0) == pytest.approx(0.4)
    assert pace.wait_s(0.3) == pytest.approx(0.1)
    assert pace.wait_s(0.4001) == 0.0


def test_what_could_not_wait_is_paid_for_later() -> None:
    pace = WritePace(WriteBudget(operations_per_s=10), 0.0)
    for _ in range(6):
        pace.on_write(0.0, 4096)
    assert pace.wait_s(0.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("length", "operations", "mib"), [(4096, 3000, 11.7), (256 << 10, 500, 125), (MIB, 500, 125)]
)
def test_gp3_is_limited_by_operations_or_by_bytes(
    length: int, operations: float, mib: float
) -> None:
    starts = write_all(WritePace(GP3, 0.0), [length] * 4000)
    settled = [at for at in starts if at >= 1.0]
    rate = (len(settled) - 1) / (settled[-1] - settled[0])
    assert rate * length / MIB == pytest.approx(mib, rel=0.01)
    assert rate * -(-length // OPERATION_BYTES_MAX) == pytest.approx(operations, rel=0.01)


@given(
    st.floats(1, 5000),
    st.floats(4096, 500 * MIB),
    st.lists(st.tuples(st.integers(1, 16 * MIB), st.floats(0, 0.3)), min_size=1, max_size=60),
)
def test_any_stretch_of_time_costs_its_budget_and_one_burst(
    operations_per_s: float, bytes_per_s: float, writes: list[tuple[int, float]]
) -> None:
    pace = WritePace(WriteBudget(operations_per_s, bytes_per_s), 0.0)
    now = 0.0
    started: list[tuple[float, int]] = []
    for length, idle in writes:
        now += idle
        now += pace.wait_s(now)
        pace.on_write(now, length)
        started.append((now, length))
    for first, (begin, _) in enumerate(started):
        lengths = [length for _, length in started[first:-1]]  # the last may run into debt
        operations = sum(-(-length // OPERATION_BYTES_MAX) for length in lengths)
        span = started[-1][0] - begin
        assert operations <= operations_per_s * span + max(1, operations_per_s * BURST_S) + 1e-3
        assert sum(lengths) <= bytes_per_s * (span + BURST_S) * (1 + 1e-9) + 1


def test_budgets_by_name_and_by_numbers() -> None:
    assert parse_budget("") == UNLIMITED
    assert parse_budget("gp3") is GP3
    assert parse_budget("3000,125") == GP3
    assert parse_budget("100,0.5") == WriteBudget(100, MIB / 2)
    for text in ("gp2", "3000", "3000,", "0,125", "nan,1", "3000,125,1", "-1,5"):
        with pytest.raises(BadSetting):
            parse_budget(text)
