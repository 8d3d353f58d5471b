"""The driver of `cordwood spark compact`, and tasks that die at any step: 0 lost, 0 twice."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path

import pytest
from made_objects import NOW_US, Made

from cordwood.block import Gap
from cordwood.client.blocking.blocking_merges import BlockingMerges
from cordwood.host.real import real_host
from cordwood.layout.body import encode_body
from cordwood.spark.jobs import compact as job
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import collect_log, collect_shared
from cordwood.tier.history import HistoryReader
from cordwood.tier.local_store import LocalStore
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.shared_upload import LogItems, upload_shared
from cordwood.tier.verify import verify_log

LOGS = (3, 7)
ROUNDS = 4


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
def steps(monkeypatch):
    counted = Steps()
    for name in ("put", "put_if", "read", "get", "list_page", "head", "delete"):
        monkeypatch.setattr(LocalStore, name, counted.wrap(getattr(LocalStore, name)))
    return counted


def with_store(directory: Path, act):
    async def main():
        async with real_host() as host:
            store = await open_object_store(host, str(directory))
            try:
                return await act(store, host)
            finally:
                await store.close()

    return asyncio.run(main())


def made_store(directory: Path) -> None:
    """Two logs in four objects that they share, with a megabyte each, so that they part."""

    async def act(store, host) -> None:
        logs = {log: Made(log) for log in LOGS}
        for number in range(ROUNDS):
            shares = []
            for log, made in logs.items():
                at = len(made.items)
                values = [b"%d-%d " % (number, each) * 2000 for each in range(40)]
                made.block(encode_body(values, timestamps_us=NOW_US + number))
                manifest = LogManifest(store, log, host, "node")
                head = await manifest.load()
                first = head.end if head is not None else made.first
                shares.append(LogItems(log, f"/{log}", 0, manifest, first, made.items[at:]))
            await upload_shared(store, host, shares)

    with_store(directory, act)


def digest(directory: Path) -> str:
    """Of all records of all logs, with their places."""

    async def act(store, host) -> str:
        summed = hashlib.sha256()
        for log in LOGS:
            manifest = LogManifest(store, log, host, "reader")
            await manifest.load()
            async with HistoryReader(store, manifest, host, log, 1) as reader:
                async for item in reader:
                    body = b"" if isinstance(item, Gap) else bytes(item.raw)
                    summed.update(b"%d %d %d " % (log, item.first, item.last) + body)
        return summed.hexdigest()

    return with_store(directory, act)


def objects(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("*.parquet"))


def run(directory: Path) -> job.CompactedObjects:
    def merge_all(tasks):
        merges = BlockingMerges(str(directory))
        try:
            return [job.merge_one(merges, task) for task in tasks]
        finally:
            merges.close()

    return job.run(str(directory), (), 64, merge_all, lambda _: None)


def collect_all(directory: Path) -> None:
    async def act(store, host) -> None:
        def manifest_of(log: int) -> LogManifest:
            return LogManifest(store, log, host, "collect")

        later_us = host.clock.now_us() + 10_000_000
        for log in LOGS:
            await collect_log(store, manifest_of(log), log, later_us, 1)
            verified = await verify_log(store, manifest_of(log), host, log)
            assert (verified.faults, verified.lost) == ([], [])
        await collect_shared(store, manifest_of, later_us, 1)

    with_store(directory, act)


def test_shared_objects_become_one_of_each_log(tmp_path, steps):
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


@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_step_loses_nothing_and_repeats_nothing(tmp_path, steps, after):
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


def test_two_drivers_at_once_make_each_object_once(tmp_path, steps):
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
