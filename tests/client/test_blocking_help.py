"""`help(store.append)` of a blocking store tells what the call does, and not where that stands."""

from __future__ import annotations

import inspect

from cordwood.client.blocking.blocking_store import BlockingLogTree, BlockingStore
from cordwood.client.store import Store


def test_calls_of_the_blocking_store_have_the_words_of_their_twins() -> None:
    told = inspect.getdoc(BlockingStore.append)
    assert told == inspect.getdoc(Store.append)
    assert told
    assert "Raises:" in told
    assert "trim point never falls" in (inspect.getdoc(BlockingStore.trim) or "")


def test_no_call_only_points_elsewhere_where_its_twin_has_words() -> None:
    for name, call in inspect.getmembers(BlockingStore, inspect.isfunction):
        if hasattr(Store, name) and not name.startswith("_"):
            assert "`store.Store." not in (call.__doc__ or ""), name
    assert "See `" not in (inspect.getdoc(BlockingLogTree.rename) or "")
