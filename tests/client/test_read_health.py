"""A reader's health: which silence is told, from when on, and when it is over."""

from __future__ import annotations

import pytest

from cordwood.client.read_health import HEALTH_S, ReadHealth


def behind(health: ReadHealth) -> None:
    health.on_behind(1.0)


def alone(health: ReadHealth) -> None:
    health.on_connected(False, 1.0)


def unanswered(health: ReadHealth) -> None:
    health.on_no_tail(1.0)


@pytest.mark.parametrize("event", [behind, alone, unanswered])
class TestClocks:
    def test_each_starts_once_and_is_due_after_a_while(self, event) -> None:
        health = ReadHealth()
        assert health.due is None
        event(health)
        assert health.due == 1.0 + HEALTH_S
        health.on_behind(5.0)
        health.on_connected(False, 5.0)
        health.on_no_tail(5.0)
        assert health.due == 1.0 + HEALTH_S, "the earliest counts"

    def test_what_was_told_is_not_due_again_and_is_over_once_something_comes(self, event) -> None:
        health = ReadHealth()
        event(health)
        health.trouble = "why"
        assert health.due is None
        assert not health.is_over
        health.on_taken()
        assert health.is_over


def test_one_who_is_connected_and_knows_the_tail_is_well_unless_behind() -> None:
    health = ReadHealth()
    health.on_connected(False, 1.0)
    health.on_no_tail(2.0)
    health.on_connected(True, 3.0)
    assert health.due == 2.0 + HEALTH_S
    health.on_tail()
    assert health.due is None
    health.on_behind(4.0)
    health.on_connected(True, 5.0)
    health.on_tail()
    assert health.due == 4.0 + HEALTH_S
    assert health.is_behind
