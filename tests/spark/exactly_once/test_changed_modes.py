"""Queries that die and start again with another deliveryMode or txnAppId: each row is there once.

A batch that was begun with one of them is refused with another, and done with its own.
"""

from __future__ import annotations

import contextlib
import itertools
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

NAMES = ("", "one", "two")
"""Of txnAppId; the schedule's log makes them its own."""

STARTS = 5
"""Of one schedule that may die; then it comes through."""


class Schedule:
    """A query over one log that dies, and starts again in either mode and under any name."""

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
            ways = list(itertools.product((EXACTLY_ONCE, IDEMPOTENT), NAMES))
            for mode, name in self._chance.sample(ways, len(ways)):
                try:
                    self._start(mode, name, dies=start < STARTS)
                except Rejected as error:
                    self.refused += 1
                    is_clear = is_clear and "begun with another deliveryMode" in str(error)
                else:
                    break
        self._store.append(f"{self._log}-sink", b"0 0 end")
        found = at_the_sink(self._store, f"{self._log}-sink")[:-1]
        return is_clear and sorted(found) == sorted(in_the_source(self._store, [self._log]))

    def _start(self, mode: str, name: str, *, dies: bool) -> None:
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
        if name:
            sink["txnAppId"] = f"{self._log}-{name}"
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
    assert refused, "no schedule changed its mode or name amid a batch"


@pytest.mark.parametrize("bug", MODE_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(store: BlockingStore, tmp_path: Path, bug):
    """By one of the schedules that the right code passes."""
    with planted(bug):
        for seed in range(SEEDS):
            if not Schedule(store, seed, tmp_path / str(seed)).run():
                return
    pytest.fail(f"{bug.name} was not caught: {bug.story}")


@pytest.mark.parametrize("names", [("", "app"), ("app", ""), ("app", "other")])
@pytest.mark.parametrize("mode", [EXACTLY_ONCE, IDEMPOTENT])
def test_a_batch_that_was_begun_under_a_name_is_refused_under_another(
    store: BlockingStore, tmp_path: Path, names: tuple[str, str], mode: str
):
    """It was written twice if the driver died between its publish and Spark's own note."""
    log = f"/n-{uuid.uuid4().hex[:8]}"
    checkpoint = Checkpoint(directory=tmp_path)
    source = {SERVERS: "h:1", "subscribe": log, "startingOffsets": "earliest"}
    sink = {SERVERS: "h:1", "log": f"{log}-sink", "checkpointLocation": str(tmp_path)}

    def start(name: str, dies: str = "") -> None:
        def die(point: str, _: int) -> None:
            if point == dies:
                raise Died(point)

        more = {"txnAppId": log + name} if name else {}
        Engine(
            source, {**sink, "deliveryMode": mode, **more}, checkpoint, [], die, list,
            lambda: False, lambda: None,
        ).run()  # fmt: skip

    store.append_many(log, [b"%d" % number for number in range(30)])
    with pytest.raises(Died):
        start(names[0], "after publish")
    with pytest.raises(Rejected, match="with another txnAppId or with none"):
        start(names[1])
    start(names[0])
    store.append(log, b"more")
    start(names[1])
    assert at_the_sink(store, f"{log}-sink") == in_the_source(store, [log])


@pytest.mark.parametrize(
    ("first", "then", "dies"),
    [
        ({"deliveryMode": IDEMPOTENT}, {}, "planned"),
        ({"deliveryMode": IDEMPOTENT, "txnAppId": "app"}, {"txnAppId": "app"}, "planned"),
        ({"txnAppId": "app"}, {}, "after publish"),
        ({"deliveryMode": IDEMPOTENT, "txnAppId": "app"}, {}, "in a task"),
    ],
)
def test_a_note_of_a_batch_is_no_published_batch_where_no_checkpoint_is_seen(
    store: BlockingStore, tmp_path: Path, first: dict[str, str], then: dict[str, str], dies: str
):
    """The checkpoint was moved to a remote file system amid the batch. Spark committed it, and its
    rows were lost."""
    log = f"/m-{uuid.uuid4().hex[:8]}"
    checkpoint = Checkpoint(directory=tmp_path)
    source = {SERVERS: "h:1", "subscribe": log, "startingOffsets": "earliest"}

    def start(options: dict[str, str], place: str, dies: str = "") -> None:
        def die(point: str, _: int) -> None:
            if point == dies:
                raise Died(point)

        if "txnAppId" in options:
            options = {**options, "txnAppId": log + options["txnAppId"]}
        sink = {SERVERS: "h:1", "log": f"{log}-sink", "checkpointLocation": place, **options}
        Engine(
            source, sink, checkpoint, [], die, list, lambda: False, lambda: None
        ).run()  # fmt: skip

    remote = "s3a://bucket/checkpoint"
    store.append_many(log, [b"%d" % number for number in range(30)])
    with pytest.raises(Died):
        start(first, str(tmp_path), dies)
    with pytest.raises(Rejected, match=r"begun with another deliveryMode.*as they were until"):
        start(then, remote)
    start(first, remote)
    store.append(log, b"more")
    start(then, remote)
    assert at_the_sink(store, f"{log}-sink") == in_the_source(store, [log])


def test_a_batch_that_was_published_unseen_is_not_begun_again_under_a_name(
    store: BlockingStore, tmp_path: Path
):
    """The sink saw no checkpoint at its publish, and sees it when the batch runs again under a
    txnAppId: it was written twice."""
    log = f"/m-{uuid.uuid4().hex[:8]}"
    checkpoint = Checkpoint(directory=tmp_path)
    source = {SERVERS: "h:1", "subscribe": log, "startingOffsets": "earliest"}

    def start(place: str, dies: str = "", **more: str) -> None:
        def die(point: str, _: int) -> None:
            if point == dies:
                raise Died(point)

        sink = {SERVERS: "h:1", "log": f"{log}-sink", "checkpointLocation": place, **more}
        Engine(
            source, sink, checkpoint, [], die, list, lambda: False, lambda: None
        ).run()  # fmt: skip

    store.append_many(log, [b"%d" % number for number in range(30)])
    with pytest.raises(Died):
        start("s3a://bucket/checkpoint", "after publish")
    for more in ({"txnAppId": log}, {"deliveryMode": IDEMPOTENT}):
        with pytest.raises(Rejected, match="would be written twice"):
            start(str(tmp_path), **more)
    start(str(tmp_path))
    store.append(log, b"more")
    start(str(tmp_path), txnAppId=log)
    assert at_the_sink(store, f"{log}-sink") == in_the_source(store, [log])
