"""Queries whose checkpoint goes back a step, or loses what nobody synced: each row is there once.

A checkpoint that went back is refused, unless what it plans anew is what was published. A power cut
is never refused: what a publication rests on was synced before it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine import Checkpoint, Died, Engine, at_the_sink, by_chance, in_the_source
from pyspark.sql.streaming.datasource import ReadMaxRows
from swaps import swap_value

from cordwood import durable
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import Rejected
from cordwood.sim.planted.bug import planted
from cordwood.sim.planted.spark_sink import CHECKPOINT_BUGS
from cordwood.spark.options import SERVERS
from cordwood.spark.sink_options import EXACTLY_ONCE, IDEMPOTENT

pytestmark = pytest.mark.real

SEEDS = 6

MODES = (EXACTLY_ONCE, IDEMPOTENT)

SYNC_FILE = durable.sync_file
"""As it is: each schedule of a test puts its own in its place."""

EVENTS = 3
"""Of one schedule: the checkpoint goes back, or power fails."""


@dataclass
class Outcome:
    """What a schedule came to.

    Attributes:
        lost, twice: rows of the source.
        cuts_refused: starts after a power cut that were refused.
        unclear: refusals that do not say what to do.
        refused: that the checkpoint was refused after it went back.
    """

    lost: int = 0
    twice: int = 0
    cuts_refused: int = 0
    unclear: int = 0
    refused: bool = False

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.twice or self.cuts_refused or self.unclear)


class Schedule:
    """A query over one log; more comes and its checkpoint suffers between its starts."""

    def __init__(
        self,
        store: BlockingStore,
        seed: int,
        event: str,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        mode: str = EXACTLY_ONCE,
    ) -> None:
        self._chance = random.Random(seed)
        self._mode = mode
        self._store = store
        self._event = event
        self._log = f"/c-{uuid.uuid4().hex[:8]}"
        self._checkpoint = Checkpoint(directory=directory)
        self._count = 0

        def sync_file(path) -> None:
            SYNC_FILE(path)
            if path.parent == directory / "offsets":
                self._checkpoint.synced.add(path.name)

        swap_value(monkeypatch, lambda: durable.sync_file, sync_file)

    def run(self) -> Outcome:
        outcome, suffers = Outcome(), False
        for step in range(EVENTS + 1):
            self._append()
            try:
                self._start(dies=step < EVENTS and self._chance.random() < 0.5)
            except Rejected as error:
                outcome.cuts_refused += self._event == "power cut"
                outcome.unclear += "Put the newest checkpoint back" not in str(error)
                outcome.refused = True
                break
            if step < EVENTS:
                suffers = self._suffer() or suffers
        self._compare(outcome)
        return outcome

    def _suffer(self) -> bool:
        if self._event == "power cut":
            self._checkpoint.power_cut()
        elif len(self._checkpoint.offsets) > 1:
            self._checkpoint.go_back(1)
        return True

    def _start(self, *, dies: bool) -> None:
        left = [self._chance.randint(1, 6)] if dies else []

        def die(point: str, _: int) -> None:
            if left:
                left[0] -= 1
                if not left[0]:
                    raise Died(point)

        source = {
            SERVERS: "h:1", "subscribe": self._log, "startingOffsets": "earliest",
            "minPartitions": "3",
        }  # fmt: skip
        where = str(self._checkpoint.directory)
        sink = {
            SERVERS: "h:1", "log": f"{self._log}-sink", "checkpointLocation": where,
            "deliveryMode": self._mode,
        }  # fmt: skip
        # What is counted by (batch, partition) needs the rows of a task to be the same again.
        spread = by_chance(self._chance) if self._mode == EXACTLY_ONCE else list
        engine = Engine(
            source, sink, self._checkpoint, [], die, spread, lambda: False,
            lambda: None, ReadMaxRows(self._chance.randint(10, 40)),
        )  # fmt: skip
        with contextlib.suppress(Died):
            engine.run()

    def _append(self) -> None:
        count = self._chance.randint(1, 40)
        values = [b"%d" % number for number in range(self._count, self._count + count)]
        self._store.append_many(self._log, values)
        self._count += count

    def _compare(self, outcome: Outcome) -> None:
        self._store.append(f"{self._log}-sink", b"0 0 end")
        found = Counter(at_the_sink(self._store, f"{self._log}-sink")[:-1])
        wanted = in_the_source(self._store, [self._log])
        outcome.twice = sum(count - 1 for count in found.values())
        # A refused query stands where it stood: what it has is the beginning, without holes.
        if outcome.refused and self._mode == EXACTLY_ONCE:
            wanted = wanted[: len(found)]
        elif outcome.refused:  # and tasks of a batch that died appended what they did
            wanted = []
        outcome.lost = sum(row not in found for row in wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("event", ["goes back", "power cut"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_row_is_lost_or_doubled(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed, event: str, mode
):
    outcome = Schedule(store, seed, event, tmp_path, monkeypatch, mode).run()
    assert outcome.is_right, outcome


@pytest.mark.parametrize("mode", MODES)
def test_some_schedule_is_refused(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode
):
    """Else the others show nothing of the refusal."""
    outcomes = []
    for seed in range(SEEDS):
        directory = tmp_path / str(seed)
        outcomes.append(Schedule(store, seed, "goes back", directory, monkeypatch, mode).run())
    assert any(each.refused for each in outcomes)


@pytest.mark.parametrize("bug", CHECKPOINT_BUGS, ids=lambda bug: bug.name)
@pytest.mark.slow
def test_a_planted_bug_is_caught(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bug
):
    """By one of the schedules that the right code passes."""
    with planted(bug):
        for mode, event, seed in itertools.product(MODES, ("goes back", "power cut"), range(SEEDS)):
            directory = tmp_path / f"{mode}-{event}-{seed}"
            if not Schedule(store, seed, event, directory, monkeypatch, mode).run().is_right:
                return
    pytest.fail(f"{bug.name} was not caught: {bug.story}")
