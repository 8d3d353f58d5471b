"""Ctrl-C amid a landing: its caller learns of it, unless the landing has no other end."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from cordwood.spark.jobs.land import Landed, Lander
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS
from cordwood.spark.pipeline import run as pipeline_run
from cordwood.spark.pipeline.spec import Pipeline

SOURCE = {SERVERS: "h:1", "subscribe": "orders"}


class Interrupted:
    """A session in which Ctrl-C comes while the query runs.

    Attributes:
        query: the mock of the query.
    """

    def __init__(self) -> None:
        self.query = MagicMock()
        self.query.awaitTermination.side_effect = KeyboardInterrupt
        self.start = MagicMock(return_value=self.query)

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def interrupted(path: Path, *, follow: bool) -> Interrupted:
    table = MagicMock(is_empty=True)
    table.last_offset.return_value = None
    landing = Landing(SOURCE, str(path), follow=follow)
    session = Interrupted()
    Lander(path, table, landing, Landed(), lambda _: None).run(session)  # type: ignore[arg-type]
    return session


def test_an_interrupted_landing_is_no_success(tmp_path: Path):
    """It ended with exit code 0, and records were missing in the table."""
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, follow=False)


def test_a_landing_that_follows_ends_by_it(tmp_path: Path):
    session = interrupted(tmp_path, follow=True)
    session.query.stop.assert_called_once()


def test_a_pipeline_ends_by_it_and_begins_no_other_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It went on with the next sink, and round after round: Ctrl-C did not stop it."""
    begun: list[str] = []

    def land(_spark: object, landing: Landing, _say: object) -> Landed:
        begun.append(landing.table)
        interrupted(tmp_path / str(len(begun)), follow=landing.follow)
        return Landed()

    monkeypatch.setattr(pipeline_run, "land", land)
    sinks = (Landing(SOURCE, "one"), Landing(SOURCE, "two"))
    pipeline = Pipeline("orders", SOURCE, "", 0.001, sinks)
    with pytest.raises(KeyboardInterrupt):
        pipeline_run.run(MagicMock(), pipeline, lambda name: name, rounds=3)
    assert begun == ["one"]
