"""An embedded store that source and sink use in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine import Context
from swaps import swap, swap_value

from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.embedded import embedded_store
from cordwood.settings import MIB, ClientSettings
from cordwood.spark import catalog, delivery, sink, sink_rows, source
from cordwood.spark.shared_store import shared_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingStore]:
    settings = ClientSettings(timeout_s=20.0)
    directory = str(tmp_path_factory.mktemp("store"))
    with open_blocking(
        lambda: open_store(embedded_store(directory, settings, 32 * MIB)), settings
    ) as opened:
        yield opened


@pytest.fixture(autouse=True)
def in_this_process(store: BlockingStore, monkeypatch: pytest.MonkeyPatch):
    """Source and sink use this store; there is no other process to connect from."""
    for room in (source, catalog, sink):
        swap(monkeypatch, shared_store, lambda *_: store, within=room)
    swap_value(monkeypatch, lambda: sink.TaskContext, Context)
    swap_value(monkeypatch, lambda: delivery.PUBLISH_PAUSE_S, 0.0)
    # Tasks are tiny here, and have several row blocks all the same.
    swap_value(monkeypatch, lambda: sink_rows.ROW_BLOCK_RECORDS, 5)
