"""S29 on many schedules: drivers and tasks die anywhere, rows come in other partitions."""

from __future__ import annotations

import contextlib
import random
import uuid

import pytest
from engine import POINTS, Checkpoint, Died, Engine, at_the_sink, by_chance, in_the_source
from pyspark.sql.streaming.datasource import ReadMaxRows
from swaps import swap

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import OutcomeUnknown
from cordwood.sim.checkers.spark_sink import BatchTry, Violation, check_sink
from cordwood.sim.planted.bug import planted
from cordwood.sim.planted.spark_sink import BUGS
from cordwood.spark.options import SERVERS

pytestmark = pytest.mark.real

SEEDS = 8

DEATHS = 3
"""Of one schedule; then it comes through."""

STARTS_MAX = 20
"""Until it has died so often; a few of each seed's do without."""


class Schedule:
    """A query over a few logs that dies again and again, and the records that come meanwhile."""

    def __init__(self, store: BlockingStore, seed: int, **sink: str) -> None:
        self._chance = random.Random(seed)
        self._store = store
        self._name = f"/s-{uuid.uuid4().hex[:8]}"
        self._logs = [f"{self._name}/{number}" for number in range(self._chance.randint(1, 3))]
        self._sink = f"{self._name}-sink"
        self._count = 0
        starts = self._chance.choice(("earliest", "latest"))
        self._options = {
            SERVERS: "h:1", "subscribePattern": f"{self._name}/.*", "startingOffsets": starts,
            "minPartitions": str(self._chance.randint(1, 4)),
        }  # fmt: skip
        self._written = {SERVERS: "h:1", "log": self._sink, **sink}
        self._keeps_parts = "deliveryMode" in sink
        self.history: list[BatchTry] = []
        self.deaths: list[tuple[str, int]] = []

    def run(self) -> list[Violation]:
        """Die and start again until a run comes through; what of S29 was broken."""
        checkpoint = Checkpoint()
        self._append()
        for _ in range(STARTS_MAX):
            if len(self.deaths) == DEATHS:
                break
            with contextlib.suppress(Died):
                self._engine(checkpoint).run()
            self._append()
        self._engine(checkpoint).run()
        # Nothing at all may have been written: a log is made by its first record.
        self._store.append(self._sink, b"0 0 end")
        found = at_the_sink(self._store, self._sink)[:-1]
        return check_sink(self.history, in_the_source(self._store, self._logs), found)

    def _append(self) -> None:
        for log in self._logs:
            values = [b"%d" % number for number in range(self._count, self._count + 30)]
            self._count += len(values)
            self._store.append_many(log, values[: self._chance.randint(1, 30)])

    def _engine(self, checkpoint: Checkpoint) -> Engine:
        chance = self._chance

        def dies(point: str, batch: int) -> None:
            if len(self.deaths) < DEATHS and chance.random() < 0.2:
                self.deaths.append((point, batch))
                raise Died(point)

        return Engine(
            self._options, self._written, checkpoint, self.history, dies,
            list if self._keeps_parts else by_chance(chance), lambda: chance.random() < 0.15,
            self._append, ReadMaxRows(chance.randint(10, 40)),
        )  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> dict[int, tuple[Schedule, list[Violation]]]:
    """Schedules of the right code that were run, by seed."""
    return {}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_once(
    store: BlockingStore, outcomes: dict[int, tuple[Schedule, list[Violation]]], seed
):
    schedule = Schedule(store, seed)
    outcomes[seed] = (schedule, schedule.run())
    assert [str(each) for each in outcomes[seed][1]] == []
    assert sum(len(each.rows or ()) for each in schedule.history) > 50


def test_the_schedules_die_everywhere(outcomes: dict[int, tuple[Schedule, list[Violation]]]):
    """Over these seeds every point is met, in batch 0 too."""
    assert len(outcomes) == SEEDS
    deaths = {each for schedule, _ in outcomes.values() for each in schedule.deaths}
    assert {point for point, _ in deaths} == set(POINTS)
    assert {point for point, batch in deaths if batch == 0} >= {"planned", "after publish"}


def test_a_publish_whose_answer_is_lost(store: BlockingStore, monkeypatch: pytest.MonkeyPatch):
    """It is asked again, and was done: nothing is doubled."""
    publish, lost = BlockingStore.publish, []

    def forgetful(self, query, batch, refs, *more, **how):
        told = publish(self, query, batch, refs, *more, **how)
        if len(lost) < batch + 1:
            lost.append(batch)
            raise OutcomeUnknown("the answer was lost")
        return told

    swap(monkeypatch, BlockingStore.publish, forgetful, within=BlockingStore)
    schedule = Schedule(store, 1)
    assert schedule.run() == []
    assert lost


@pytest.mark.parametrize("seed", range(3))
def test_idempotent_where_tasks_get_the_same_rows_again(store: BlockingStore, seed):
    schedule = Schedule(store, seed, deliveryMode="idempotent")
    assert [str(each) for each in schedule.run()] == []
    assert schedule.deaths


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.slow
def test_a_planted_bug_is_caught(store: BlockingStore, bug):
    """By one of the seeds that the right code passes."""
    with planted(bug):
        for seed in range(SEEDS):
            if Schedule(store, seed).run():
                return
    pytest.fail(f"{bug.name} was not caught: {bug.story}")
