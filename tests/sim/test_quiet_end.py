"""How a run comes to its end: nobody is waited for, and what is lost was read before."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest

from cordwood.nodes import Replication
from cordwood.sim.aftermath import COPIES
from cordwood.sim.buggify import Buggify
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.links import LinkSettings
from cordwood.sim.loop import SimLoop
from cordwood.sim.options import RunOptions
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import run_seed
from cordwood.sim.workload import Clients, WorkloadOptions, records_a_second

HALF_TIME = WorkloadOptions(
    producers=2, lanes=3, pause_s=0.5, burst=20, rush_s=4.0, lull_s=4.0, idempotent=0.0
)


def clients() -> Clients:
    recorder = HistoryRecorder(lambda: 0)
    return Clients(
        (), HALF_TIME, recorder, 1, OpenCalls(recorder), Buggify(1, is_on=False)
    )  # fmt: skip


def in_virtual_time(main):
    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        return runner.run(main)


def test_who_pauses_ends_with_the_producers():
    """Seed 12062 slept through the end: its lanes paused for longer than all had to drain."""

    async def main() -> tuple[float, float]:
        told, loop = clients(), asyncio.get_running_loop()
        pausing = asyncio.create_task(told.pause(20.0))
        await told.pause(3.0)
        full_s = loop.time()
        told.stop()
        await pausing
        early_s = loop.time()
        await told.pause(1.0)  # of one that has a batch to bring to its end
        assert loop.time() == pytest.approx(early_s + 1.0)
        return full_s, early_s

    assert in_virtual_time(main()) == (3.0, 3.0)


def test_a_reader_that_waits_is_told_of_the_tails():
    async def main() -> float:
        told = clients()
        asyncio.get_running_loop().call_later(2.0, told.know_tails, {1: 7})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(100.0) as told.looks["reader-1"]:
                await asyncio.Event().wait()
        assert told.tails == {1: 7}
        return asyncio.get_running_loop().time()

    assert in_virtual_time(main()) == 2.0


def test_what_producers_append_in_a_second():
    # Six lanes, two turns a second, half of the time, of 0.75 + 20 / 4 records.
    assert records_a_second(HALF_TIME, 20) == pytest.approx(6 * 2 / 2 * 5.75)


def test_settling_producers_make_large_calls_where_they_have_the_time():
    options = RunOptions(workload=HALF_TIME)
    assert options.settle_burst == 100
    far = replace(options, link=LinkSettings(delay_min_s=0.002))
    assert far.settle_burst == HALF_TIME.burst


def test_a_run_counts_that_loses_what_its_logs_need_to_go_on():
    """Seed 1000013. One node of three was left, which holds no two copies: nobody came to what
    the last writer was told is stored, as its log stood still, and the run did not count."""
    options = RunOptions(
        length_s=8.0,
        cluster=ClusterOptions(nodes=3, racks=1, replication=Replication(2)),
        workload=WorkloadOptions(producers=2, readers=1, lanes=2, pause_s=0.2, burst=60),
        loses=COPIES,
    )
    with quiet_run():
        outcome = run_seed(1, options)
    assert outcome.violations == ()
    assert outcome.invalid == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 10])
def test_a_member_without_a_log_hears_of_the_end_of_the_run(seed: int):
    """Seed 4400109. One log and three members: a member looped over the items of no log, forty
    times 2.5 s, and the run was taken for stuck."""
    options = RunOptions(
        plan=(),
        length_s=5.0,
        workload=WorkloadOptions(producers=1, readers=0, members=3, lanes=1, pause_s=0.3),
        must_count=False,
    )
    with quiet_run():
        outcome = run_seed(seed, options)
    assert outcome.violations == ()
    assert outcome.simulated_s < 40
