"""The collector is the process's: it is set once for all who want that, and set back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import cordwood
from cordwood.host import collector
from cordwood.host.collector import GC_THRESHOLD, rare_collections
from cordwood.settings import ClientSettings


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A count of its own: a client that another test leaves open in this process counts as well.
    monkeypatch.setattr(collector, "_wanted", type(collector._wanted)())
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def is_rare() -> bool:
    return gc.get_threshold()[0] == GC_THRESHOLD and gc.get_freeze_count() > 0


def is_usual() -> bool:
    return gc.get_threshold() == (700, 10, 10) and gc.get_freeze_count() == 0


def test_the_last_to_leave_sets_it_back() -> None:
    with rare_collections():
        with rare_collections():
            assert is_rare()
        assert is_rare()
    assert is_usual()
    with rare_collections(False):
        assert is_usual()


def test_it_is_set_back_after_an_error() -> None:
    with pytest.raises(OSError, match="gone"), rare_collections():
        raise OSError("gone")
    assert is_usual()


@pytest.mark.parametrize("threshold", [0, 100_000])
def test_a_program_that_chose_for_itself_keeps_its_choice(threshold: int) -> None:
    gc.set_threshold(threshold, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] == threshold
    assert gc.get_threshold()[0] == threshold


def test_a_client_sets_it_where_it_is_told_to(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path / "store") as store:
        store.append("log", b"1")
        assert is_usual()
    with cordwood.connect(tmp_path / "store", ClientSettings(rare_collections=True)) as store:
        store.append("log", b"2")
        assert is_rare()
    assert is_usual()
