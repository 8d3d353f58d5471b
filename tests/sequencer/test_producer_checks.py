"""The checks of producers' blocks that one epoch's sequencer makes, without a cluster."""

from __future__ import annotations

import pytest
from swaps import swap_value

from cordwood.block import Produced, ProducedBlock
from cordwood.errors import Overloaded
from cordwood.layout.waves import AppendEntry
from cordwood.protocol import producers
from cordwood.protocol.producers import Budget, ProducerTable
from cordwood.recovery.recover_log import Begins, Recovered
from cordwood.sequencer.idle_times import IdleTimes
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.settled_queries import SettledQueries

HOUR_US = 3_600_000_000
AHEAD_US = 10 * HOUR_US
"""Append times of a sequencer whose clock was hours ahead."""


def entry_of(producer: int) -> AppendEntry:
    return AppendEntry(1, 1, 1, 0, 0, 0, producer, 0, 0, 0, 1, 1, 0, 0, b"x")


def checks_of(*known: int, below_us: int = AHEAD_US, quiet_us: int = 0) -> ProducerChecks:
    """Of epoch 2, after producers that wrote into epoch 1 with a clock ahead of time."""
    table = ProducerTable()
    for place, producer in enumerate(known, 1):
        table.note(producer, 0, ProducedBlock(0, 1, (1 << 32) + place, AHEAD_US))
    idle = IdleTimes(2, 100.0, below_us, quiet_us)
    checks = ProducerChecks(2, Recovered(table, 0), SettledQueries(lambda asked: _never()), idle)
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


def test_append_time_counts_as_far_as_the_log_itself_went_on() -> None:
    checks = checks_of(1, 2, below_us=AHEAD_US + HOUR_US)
    assert checks.check(entry_of(3), 2 << 32, AHEAD_US + HOUR_US) is None


def test_the_clock_of_the_next_sequencer_does_not_count() -> None:
    """With an hour more than its predecessor's, producers that had just written were forgotten."""
    with pytest.raises(Overloaded, match="wrote 0 s ago"):
        checks_of(1, 2).check(entry_of(3), 2 << 32, AHEAD_US + 5 * HOUR_US)


def test_the_rest_of_the_log_before_its_next_sequencer_counts() -> None:
    checks = checks_of(1, 2, below_us=AHEAD_US + HOUR_US // 2, quiet_us=HOUR_US // 4)
    checks.tick(100.0 + 890)
    with pytest.raises(Overloaded, match="wrote 3590 s ago"):
        checks.check(entry_of(3), 2 << 32, AHEAD_US)
    checks.tick(100.0 + 900)
    assert checks.check(entry_of(3), 2 << 32, AHEAD_US) is None


def test_a_record_younger_than_this_nodes_clock_proves_nothing() -> None:
    """A clock stepped ahead between the producer's block and the log's last record."""
    assert Begins(AHEAD_US, is_latest=True, quiet_us=7).idle_since(HOUR_US) == (HOUR_US, 7)
    assert Begins(HOUR_US, is_latest=True, quiet_us=7).idle_since(AHEAD_US) == (HOUR_US, 7)
    assert Begins(HOUR_US, is_latest=False, quiet_us=7).idle_since(AHEAD_US) == (0, 0)


def test_the_next_epoch_of_one_process_goes_on_with_its_times() -> None:
    idle = IdleTimes(2, 100.0)
    idle.tick(200.0)
    idle.note(1, ProducerTable())
    assert idle.continued(3)
    idle.tick(260.0)
    own = Produced(1, 0, (ProducedBlock(0, 1, (2 << 32) + 1, AHEAD_US),))
    other = Produced(2, 0, (ProducedBlock(0, 1, (1 << 32) + 1, AHEAD_US),))
    assert (idle.of(own), idle.of(other)) == (60_000_000, 160_000_000)
    assert not idle.continued(5), "another process may have had epoch 4"


def test_a_producer_that_comes_back_is_idle_from_then_on() -> None:
    """The block that had it forgotten was lost with its epoch."""
    idle = IdleTimes(2, 100.0)
    back = Produced(1, 0, (ProducedBlock(0, 1, (2 << 32) + 1, AHEAD_US),))
    idle.tick(5000.0)
    assert idle.of(back) == 0
    idle.tick(5001.0)
    assert idle.of(back) == 1_000_000
