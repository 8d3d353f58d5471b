"""How often a pattern's query asks for the list of logs: a tenth of the time at most."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from swaps import swap, swap_value

from cordwood.spark import catalog
from cordwood.spark.catalog import DISCOVER_EVERY_S, Catalog
from cordwood.spark.options import SERVERS, parse_options

pytestmark = pytest.mark.spark


class FakeStore:
    """Gives lists when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Future[dict[int, str]]] = []

    def logs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(log_id=1, name="/a")]

    def log_names_soon(self) -> Future[dict[int, str]]:
        self.asked.append(Future())
        return self.asked[-1]

    def answer(self, *names: str) -> None:
        self.asked[-1].set_result(dict(enumerate(names, 1)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Seconds that pass when the test says so."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(catalog, "time", SimpleNamespace(monotonic=lambda: now.s))
    swap_value(monkeypatch, lambda: catalog.DISCOVER_WAIT_S, 0.0)
    return now


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch):
    fake = FakeStore()
    swap(monkeypatch, catalog.shared_store, lambda *_: fake, within=catalog)
    return fake


@pytest.fixture
def watched(clock, store):
    found = Catalog(parse_options({SERVERS: "h:1", "subscribePattern": "/.*"}))
    assert list(found.selected().values()) == ["/a"]
    return found


def test_a_list_that_is_quick_is_asked_for_once_a_second(clock, store, watched):
    for _ in range(100):
        clock.s += DISCOVER_EVERY_S / 10
        watched.selected()
        if store.asked and not store.asked[-1].done():
            store.answer("/a")
    assert 9 <= len(store.asked) <= 10


def test_one_that_takes_long_takes_a_tenth_of_the_time(clock, store, watched):
    """However often it is asked for, and there is never more than one under way."""
    under_way_s = 0.0
    for _ in range(1000):
        clock.s += 0.5
        watched.selected()
        assert sum(not each.done() for each in store.asked) <= 1
        if store.asked and not store.asked[-1].done():
            under_way_s += 0.5
            if under_way_s / 4 >= len(store.asked):  # each takes four seconds
                clock.s += 0.5
                under_way_s += 0.5
                store.answer("/a")
    assert under_way_s > 0
    assert len(store.asked) == pytest.approx(500 / (4 * catalog.DISCOVER_SHARE), rel=0.3)


def test_a_trigger_of_a_minute_does_not_make_a_quick_list_a_slow_one(clock, store, watched):
    """It came in 30 ms, and was looked at a minute later: the next is asked for at once."""
    for batch in range(1, 6):
        clock.s += 60
        known = watched.selected()
        assert len(store.asked) == batch
        assert list(known.values()) == ["/a", "/b"][: 1 if batch == 1 else 2]
        clock.s += 0.03
        store.answer("/a", "/b")
        assert list(watched.selected().values()) == ["/a", "/b"]


def test_a_list_that_came_between_two_batches_is_taken_by_the_next(clock, store, watched):
    clock.s += 60
    watched.selected()
    clock.s += 0.03
    store.answer("/a", "/b")
    clock.s += 59
    assert list(watched.selected().values()) == ["/a", "/b"]
    clock.s += 60
    watched.selected()
    assert len(store.asked) == 2, "it took 30 ms, whenever it was looked at"
