"""The driver of `cordwood spark compact`, and tasks that die at any step: 0 lost, 0 twice."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from compaction import ROUNDS, collect_all, digest, made_store, objects

from cordwood.client.blocking.blocking_merges import BlockingMerges
from cordwood.errors import Corrupt
from cordwood.host.real import real_host
from cordwood.layout.object_names import head_name
from cordwood.spark.jobs import compact as job
from cordwood.tier.addresses import open_object_store
from cordwood.tier.local_store import LocalStore
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import find_logs


class Died(Exception):
    """The process is gone: nothing that it asks for happens any more."""


class Steps:
    """Counts what a process asks of the store, and has it die at one of them.

    Attributes:
        taken: calls that came through.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.dies_at = 0
        self.after = False

    def revive(self) -> None:
        self.taken = self.dies_at = 0

    def wrap(self, method):
        async def call(store, *args, **named):
            self.taken += 1
            if self.dies_at and self.taken >= self.dies_at + self.after:
                raise Died
            result = await method(store, *args, **named)
            if self.taken == self.dies_at and self.after:
                raise Died
            return result

        return call


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch):
    counted = Steps()
    for name in ("put", "put_if", "read", "get", "list_page", "head", "delete"):
        monkeypatch.setattr(LocalStore, name, counted.wrap(getattr(LocalStore, name)))
    return counted


def run(directory: Path) -> job.CompactedObjects:
    def merge_all(tasks):
        merges = BlockingMerges(str(directory))
        try:
            return [job.merge_one(merges, task) for task in tasks]
        finally:
            merges.close()

    return job.run(str(directory), (), 64, merge_all, lambda _: None)


def turns(directory: Path) -> list[str]:
    """Who has the turn at merging each log; nobody is ""."""
    found: list[str] = []

    async def main() -> None:
        async with real_host() as host:
            store = await open_object_store(host, str(directory))
            for log in await find_logs(store):
                head = await LogManifest(store, log, host, "test").load()
                assert head is not None
                found.append(head.merging.holder)
            await store.close()

    asyncio.run(main())
    return found


def test_shared_objects_become_one_of_each_log(tmp_path: Path, steps):
    made_store(tmp_path)
    before = digest(tmp_path)
    assert objects(tmp_path) == ROUNDS
    done = run(tmp_path)
    assert (done.merged, done.replaced, done.left) == (2, 2 * ROUNDS, [])
    assert digest(tmp_path) == before
    collect_all(tmp_path)
    assert objects(tmp_path) == 2
    assert digest(tmp_path) == before
    assert run(tmp_path).merged == 0


def test_a_manifest_that_cannot_be_read_stops_no_other_log(tmp_path: Path):
    """It ended each run before the first merge, and each round of a pipeline with `objects`."""
    made_store(tmp_path)
    (tmp_path / head_name(3)).write_bytes(b"damaged")
    done = run(tmp_path)
    assert (done.merged, done.replaced) == (1, ROUNDS)
    (why,) = done.left
    assert why.startswith("log 3: its objects stay as they are: ")
    for logs in ((), (3,)):
        with pytest.raises(Corrupt):
            job.plan(str(tmp_path), logs)


def test_no_turn_is_taken_for_objects_that_are_gone(tmp_path: Path):
    """The turn would let the objects of earlier turns be deleted, which may be the only copies."""
    made_store(tmp_path)
    heads = {path: path.read_bytes() for path in tmp_path.rglob("head")}
    assert len(heads) == 2
    next(path for path in sorted(tmp_path.rglob("*.parquet"))).unlink()
    done = run(tmp_path)
    assert done.merged == 0
    assert len(done.left) == 2
    assert all(why.endswith("objects stay as they are: some are gone") for why in done.left)
    assert {path: path.read_bytes() for path in heads} == heads


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_step_loses_nothing_and_repeats_nothing(
    tmp_path: Path, steps, after: bool
):
    """The crash matrix: each call to the store is a step, and the run dies before or after it."""
    made_store(tmp_path / "whole")
    before = digest(tmp_path / "whole")
    steps.revive()
    run(tmp_path / "whole")
    total = steps.taken
    assert total > 40
    for step in range(1, total + 1):
        directory = tmp_path / f"{step}"
        steps.revive()
        made_store(directory)
        steps.revive()
        steps.dies_at, steps.after = step, after
        with contextlib.suppress(Died):
            run(directory)
        steps.revive()
        assert digest(directory) == before, f"after a death at step {step}"
        done = run(directory)
        assert done.left == []
        collect_all(directory)
        assert digest(directory) == before, f"the run after a death at step {step}"
        assert objects(directory) == 2, f"orphans are left of step {step}"


def test_a_run_that_fails_ends_its_turns(tmp_path: Path, steps):
    """Nodes leave a log alone while its turn is in force, and this one is for a day."""
    made_store(tmp_path)

    def fails(tasks):
        raise RuntimeError("an executor failed")

    with pytest.raises(RuntimeError, match="an executor failed"):
        job.run(str(tmp_path), (), 64, fails, lambda _: None)
    assert set(turns(tmp_path)) == {""}


def test_two_drivers_at_once_make_each_object_once(tmp_path: Path, steps):
    made_store(tmp_path)
    before = digest(tmp_path)
    one, two = BlockingMerges(str(tmp_path)), BlockingMerges(str(tmp_path))
    try:
        planned = one.plan(3, 64 << 20), two.plan(3, 64 << 20)
        (first,), (second,) = one.begin(planned[0], 60), two.begin(planned[1], 60)
        made = one.merge(first.task), two.merge(second.task)
        assert not one.commit(first.task, made[0]), "its turn is over"
        assert two.commit(second.task, made[1])
        assert two.commit(second.task, made[1]), "asked again, it is there"
        one.end()
        assert two.commit(second.task, made[1])
        two.end()
    finally:
        one.close()
        two.close()
    assert digest(tmp_path) == before


def test_a_run_that_is_longer_than_its_turn_takes_another(tmp_path: Path, steps):
    """A run over a large store took one turn at each log. After a day it merged on, and could
    commit nothing."""
    made_store(tmp_path)
    before = digest(tmp_path)
    merges = BlockingMerges(str(tmp_path))
    try:
        planned = merges.plan(3, 64 << 20)
        merges.begin(planned, turn_s=0)
        collect_all(tmp_path)  # which ends the turn of a driver that seems to have died
        (step,) = merges.begin(planned, turn_s=60)
        assert merges.commit(step.task, merges.merge(step.task))
        (same,) = merges.begin(planned, turn_s=60)
        assert same.task == step.task, "this turn goes on"
        merges.end()
    finally:
        merges.close()
    assert digest(tmp_path) == before
    assert "" in turns(tmp_path)
