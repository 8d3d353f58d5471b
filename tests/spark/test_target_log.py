"""The log of the option `log` is made only where an append would make it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from swaps import swap

from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.client.find.log_finding import LogFinding
from cordwood.embedded import embedded_store
from cordwood.errors import BadSetting, UnknownLog
from cordwood.settings import MIB, ClientSettings
from cordwood.spark.jobs import backfill as job
from cordwood.spark.jobs.backfill import target_number
from cordwood.spark.options import SERVERS
from cordwood.spark.target_log import known_number, number_to_append

SINK = {SERVERS: "h:1", "log": "a"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
    settings = ClientSettings(timeout_s=10.0)
    with open_blocking(
        lambda: open_store(embedded_store(str(tmp_path), settings, 16 * MIB)), settings
    ) as opened:
        yield opened


def test_a_log_is_made_only_where_appends_make_logs(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A backfill and a replay into a misspelled log made it, whatever the cluster said."""
    swap(monkeypatch, job.shared_store, lambda *_: store, within=job)
    note = tmp_path / "done.json"
    ask = LogFinding.ask_log
    with monkeypatch.context() as here:

        async def never_made(self, key, create, timeout_s):
            return await ask(self, key, False, timeout_s)

        swap(here, LogFinding.ask_log, never_made, within=LogFinding)
        for find in (lambda: number_to_append(store, "/a"), lambda: target_number(note, SINK)):
            with pytest.raises(UnknownLog):
                find()
    assert known_number(store, "/a") is None
    made = target_number(note, SINK)
    assert made == number_to_append(store, "/a") == known_number(store, "/a")
    with pytest.raises(BadSetting, match="leave logId out"):
        target_number(note, {**SINK, "logId": "1"})
