"""The checks of producers' blocks that one epoch's sequencer makes, without a cluster."""

from __future__ import annotations

import pytest
from swaps import swap_value

from cordwood.block import ProducedBlock
from cordwood.errors import Overloaded
from cordwood.layout.waves import AppendEntry
from cordwood.protocol import producers
from cordwood.protocol.producers import Budget, ProducerTable
from cordwood.recovery.recover_log import Recovered
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.settled_queries import SettledQueries

HOUR_US = 3_600_000_000
AHEAD_US = 10 * HOUR_US
"""Append times of a sequencer whose clock was hours ahead."""


def entry_of(producer: int) -> AppendEntry:
    return AppendEntry(1, 1, 1, 0, 0, 0, producer, 0, 0, 0, 1, 1, 0, 0, b"x")


def checks_of(*known: int) -> ProducerChecks:
    """Of epoch 2, after producers that wrote into epoch 1 with a clock ahead of time."""
    table = ProducerTable()
    for place, producer in enumerate(known, 1):
        table.note(producer, 0, ProducedBlock(0, 1, (1 << 32) + place, AHEAD_US))
    checks = ProducerChecks(2, Recovered(table, 0), SettledQueries(lambda asked: _never()))
    checks.tick(100.0)
    return checks


async def _never() -> dict[int, int]:
    raise AssertionError("no query is asked for")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: producers.USERS, Budget(2, HOUR_US))


def test_a_clock_that_was_ahead_keeps_no_new_producer_out_for_longer_than_the_idle_time() -> None:
    """Seed 38000375: append time stood still, and no producer seemed idle for as long."""
    checks = checks_of(1, 2)
    checks.tick(100.0 + 3599)
    with pytest.raises(Overloaded, match="wrote 3599 s ago"):
        checks.check(entry_of(3), 2 << 32, AHEAD_US)
    checks.tick(100.0 + 3601)
    assert checks.check(entry_of(3), 2 << 32, AHEAD_US) is None


def test_a_producer_that_wrote_since_is_idle_from_then_on() -> None:
    checks = checks_of(1, 2)
    checks.tick(100.0 + 3000)
    for place, producer in enumerate((1, 2), 1):
        entry = entry_of(producer)
        entry.producer_sequence = 1
        assert checks.check(entry, 2 << 32, AHEAD_US) is None
        checks.note(entry, (2 << 32) + place, AHEAD_US)
    checks.tick(100.0 + 3601)
    with pytest.raises(Overloaded, match="wrote 601 s ago"):
        checks.check(entry_of(3), 2 << 32, AHEAD_US)


def test_append_time_counts_where_it_goes_on() -> None:
    checks = checks_of(1, 2)
    assert checks.check(entry_of(3), 2 << 32, AHEAD_US + HOUR_US) is None
