"""A reader's health: which silence is told, from when on, and when it is over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import cordwood
from cordwood.client.read.read_health import HEALTH_S, ReadHealth


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


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_the_blocking_client_tells_it_too(kind: str, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    was_told = threading.Event()

    def on_health(log: str, why: str) -> None:
        told.append((log, why))
        was_told.set()

    with cordwood.connect(tmp_path) as store:
        store.append("/log", b"1")
        if kind == "reader":
            reading = store.reader("/log", on_health=on_health)
            feeds = reading._reader._feeds
        else:
            reading = store.consumer("me", "/log", on_health=on_health)
            feeds = reading._consumer._reader._feeds
        with reading:
            assert reading.unhealthy == {}
            stream = feeds[0].stream
            stream._loop.call_soon_threadsafe(stream._on_health, "why")
            assert was_told.wait(30)
            assert told == [("/log", "why")]
            assert reading.unhealthy == {"/log": "why"}
