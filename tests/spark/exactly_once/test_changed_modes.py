"""Queries that die and start again with another deliveryMode: each row is there once.

A batch that was begun in one mode is refused in the other, and done in its own.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from pathlib import Path

import pytest
from engine import Checkpoint, Died, Engine, at_the_sink, in_the_source
from pyspark.sql.streaming.datasource import ReadMaxRows

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import Rejected
from cordwood.sim.planted.bug import planted
from cordwood.sim.planted.spark_sink import MODE_BUGS
from cordwood.spark.options import SERVERS
from cordwood.spark.sink_options import EXACTLY_ONCE, IDEMPOTENT

pytestmark = pytest.mark.real

SEEDS = 3

STARTS = 5
"""Of one schedule that may die; then it comes through."""


class Schedule:
    """A query over one log that dies, and starts again in either mode."""

    def __init__(self, store: BlockingStore, seed: int, directory) -> None:
        self._chance = random.Random(seed)
        self._store = store
        self._log = f"/d-{uuid.uuid4().hex[:8]}"
        self._checkpoint = Checkpoint(directory=directory)
        self._count = 0
        self.refused = 0

    def run(self) -> bool:
        """Whether each row is there once, in order, and a refusal names the way out."""
        is_clear = True
        for start in range(STARTS + 1):
            self._append()
            for mode in self._chance.sample((EXACTLY_ONCE, IDEMPOTENT), 2):
                try:
                    self._start(mode, dies=start < STARTS)
                except Rejected as error:
                    self.refused += 1
                    is_clear = is_clear and "begun with another deliveryMode" in str(error)
                else:
                    break
        self._store.append(f"{self._log}-sink", b"0 0 end")
        found = at_the_sink(self._store, f"{self._log}-sink")[:-1]
        return is_clear and sorted(found) == sorted(in_the_source(self._store, [self._log]))

    def _start(self, mode: str, *, dies: bool) -> None:
        left = [self._chance.randint(1, 9)] if dies else []

        def die(point: str, _: int) -> None:
            if left:
                left[0] -= 1
                if not left[0]:
                    raise Died(point)

        source = {
            SERVERS: "h:1", "subscribe": self._log, "startingOffsets": "earliest",
            "minPartitions": "3",
        }  # fmt: skip
        sink = {
            SERVERS: "h:1", "log": f"{self._log}-sink", "deliveryMode": mode,
            "checkpointLocation": str(self._checkpoint.directory),
        }  # fmt: skip
        engine = Engine(
            source, sink, self._checkpoint, [], die, list, lambda: False,
            lambda: None, ReadMaxRows(self._chance.randint(10, 40)),
        )  # fmt: skip
        with contextlib.suppress(Died):
            engine.run()

    def _append(self) -> None:
        count = self._chance.randint(10, 40)
        values = [b"%d" % number for number in range(self._count, self._count + count)]
        self._store.append_many(self._log, values)
        self._count += count


def test_no_row_is_lost_or_doubled(store: BlockingStore, tmp_path: Path):
    refused = 0
    for seed in range(SEEDS):
        schedule = Schedule(store, seed, tmp_path / str(seed))
        assert schedule.run(), f"seed {seed}"
        refused += schedule.refused
    assert refused, "no schedule changed its mode amid a batch"


@pytest.mark.parametrize("bug", MODE_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(store: BlockingStore, tmp_path: Path, bug):
    """By one of the schedules that the right code passes."""
    with planted(bug):
        for seed in range(SEEDS):
            if not Schedule(store, seed, tmp_path / str(seed)).run():
                return
    pytest.fail(f"{bug.name} was not caught: {bug.story}")
