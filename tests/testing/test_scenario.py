"""Scenarios on a simulated cluster: what can be done to it, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import pytest
from scenarios import as_scenario
from swaps import swap

from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import BadSetting, Corrupt, OutcomeUnknown, Retryable
from cordwood.settings import ClientSettings
from cordwood.sim.fault_plan import Damage
from cordwood.sim.history import (
    EpochTaken,
    FaultsHealed,
    FaultStruck,
    NodeDumped,
    ReadStarted,
    RecordDelivered,
)
from cordwood.testing import (
    CLIENT_KINDS,
    BrokenPromise,
    EndlessScenario,
    Fault,
    FaultOptions,
    ScenarioRun,
    simulate,
)


def run(scenario, **options):
    """Run a scenario; its run, and what it returned."""
    made = ScenarioRun(scenario, **options)
    return made, made.run()


async def put(store, value):
    """Append until it is acknowledged; it may be there more than once."""
    while True:
        with contextlib.suppress(OutcomeUnknown, Retryable):
            return await store.append("orders", value)


async def forever(application):
    """Append as long as it lives."""
    store = await application.connect()
    for number in range(10**6):
        with contextlib.suppress(Retryable, OutcomeUnknown):
            await store.append("work", b"%d" % number)
        await asyncio.sleep(0.05)


class TestOneRun:
    def test_it_returns_what_the_scenario_does_and_takes_no_real_time(self):
        async def scenario(cluster):
            store = await cluster.connect()
            lsn = await store.append("orders", b"1")
            await asyncio.sleep(300)
            return lsn, cluster.now_s

        started = time.process_time()
        made, (lsn, now_s) = run(scenario)
        assert str(lsn) == "e1n1"
        assert now_s > 300
        assert time.process_time() - started < 10
        assert made.violations == ()

    def test_one_seed_is_one_run_and_another_is_another(self):
        async def scenario(cluster):
            cluster.start("worker", forever)
            await asyncio.sleep(random.random())
            return random.random(), cluster.random.random()

        drawn = [run(scenario, seed=seed) for seed in (5, 5, 6)]
        assert drawn[0][1] == drawn[1][1] != drawn[2][1]
        hashes = [made.trace_hash for made, _ in drawn]
        assert hashes[0] == hashes[1] != hashes[2]

    def test_chance_outside_is_left_as_it_was(self):
        async def scenario(cluster):
            random.random()

        random.seed(3)
        before = random.getstate()
        simulate(scenario)
        assert random.getstate() == before

    def test_every_log_is_read_and_every_disk_looked_at_in_the_end(self):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append_many("a", [b"1"] * 5)
            await store.append_many("b", [b"2"] * 7)

        made, _ = run(scenario)
        records = [e for e in made.history if isinstance(e, RecordDelivered)]
        assert len(records) == 12
        assert all(record.payload.id is not None for record in records)
        dumps = [e for e in made.history if isinstance(e, NodeDumped)]
        assert sum(len(slots.payloads) for dump in dumps for slots in dump.slots) == 36

    @pytest.mark.parametrize("nodes", [1, 2, 3])
    def test_small_clusters(self, nodes: int):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append("orders", b"1")
            return cluster.nodes

        assert run(scenario, nodes=nodes)[1] == tuple(range(1, nodes + 1))


class TestFaults:
    def test_a_crash_takes_an_epoch_and_a_restart_brings_the_node_back(self):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append("orders", b"1")
            (victim,) = cluster.sequencers()
            cluster.crash(victim)
            assert victim not in cluster.running
            assert (await put(store, b"2")).epoch == 2
            cluster.restart(victim)
            await asyncio.sleep(1)
            assert cluster.running == cluster.nodes

        made, _ = run(scenario)
        assert [e.kind for e in made.history if isinstance(e, FaultStruck)] == ["crash"]

    @as_scenario(run)
    async def test_a_node_that_is_cut_off_is_missed_until_the_cuts_are_mended(
        self, cluster
    ) -> None:
        store = await cluster.connect(ClientSettings(timeout_s=3.0))
        await store.append("orders", b"1")
        cluster.partition(cluster.nodes, "test")
        with pytest.raises((OutcomeUnknown, Retryable)):
            await store.append("orders", b"2")
        cluster.mend()
        await put(store, b"3")

    def test_everything_that_can_happen_is_taken_back_by_heal(self):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append("orders", b"1")
            cluster.pause(1)
            cluster.power_cut(2)
            cluster.cut(3, [4, 5])
            cluster.reset(4)
            cluster.metadata_outage()
            cluster.clock_step(5, -60.0)
            cluster.strike("slow_disk", 5)
            ease = cluster.strike("lossy_links")
            await asyncio.sleep(3)
            ease()
            await cluster.heal()
            assert cluster.running == cluster.nodes
            await put(store, b"2")

        made, _ = run(scenario)
        struck = {e.kind for e in made.history if isinstance(e, FaultStruck)}
        assert struck == {
            "pause", "power_cut", "one_way_partition", "reset", "metadata_outage",
            "clock_step", "slow_disk", "lossy_links",
        }  # fmt: skip
        told = [text for _, text in made.story]
        assert "power cut node 2" in told
        assert "one way partition between node-3 and node-4, node-5" in told
        assert told.count("everything healed") == 2

    def test_each_can_be_taken_back_alone(self):
        async def scenario(cluster):
            store = await cluster.connect()
            cluster.pause(*cluster.nodes)
            cluster.resume(*cluster.nodes)
            cluster.metadata_outage()
            cluster.metadata_back()
            return await store.append("orders", b"1")

        made, _ = run(scenario)
        assert "metadata store back" in [text for _, text in made.story]

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda cluster: cluster.crash(9),
            lambda cluster: cluster.crash("nobody"),
            lambda cluster: cluster.restart(1),
            lambda cluster: cluster.strike("rain"),
            lambda cluster: cluster.strike("rot", 1),
            lambda cluster: cluster.strike("slow_disk"),
            lambda cluster: cluster.strike("lossy_links", 1),
            lambda cluster: cluster.partition([1], "nobody"),
            lambda cluster: cluster.start("node-7", forever),
            lambda cluster: cluster.start("a b", forever),
            lambda cluster: [cluster.start("twice", forever) for _ in range(2)],
        ],
    )
    @as_scenario(simulate)
    async def test_what_there_is_not_is_refused(self, cluster, *, wrong) -> None:
        with pytest.raises(BadSetting):
            wrong(cluster)

    def test_a_drawn_plan_strikes_and_heals_while_the_scenario_runs(self):
        async def scenario(cluster):
            cluster.start("worker", forever)
            await cluster.calm()
            return cluster.now_s

        made, now_s = run(scenario, seed=2, faults=True, faults_s=20.0)
        assert now_s > 10
        assert any(isinstance(e, FaultStruck) for e in made.history)
        assert any(isinstance(e, FaultsHealed) for e in made.history)
        epochs = [e.epoch for e in made.history if isinstance(e, EpochTaken)]
        assert max(epochs) >= 2

    def test_a_plan_is_played_as_it_is(self):
        plan = (Fault("crash", (2,), 1.0, 1.0), Fault("pause", (3,), 1.5, 0.5))

        async def scenario(cluster):
            await cluster.calm()

        made, _ = run(scenario, faults=plan)
        struck = [(e.kind, e.nodes) for e in made.history if isinstance(e, FaultStruck)]
        assert struck == [("crash", (2,)), ("pause", (3,))]

    def test_options_say_what_is_drawn(self):
        async def scenario(cluster):
            cluster.start("worker", forever)
            await cluster.calm()

        options = FaultOptions(kinds=("pause",), pause_s=1.0)
        made, _ = run(scenario, faults=options, faults_s=10.0)
        assert {e.kind for e in made.history if isinstance(e, FaultStruck)} == {"pause"}

    @pytest.mark.parametrize(
        "faults",
        [
            (Fault("rain", (), 1.0, 1.0),),
            (Fault("rot", (1,), 1.0, 1.0),),
            FaultOptions(damage=Damage.WITHIN),
        ],
    )
    def test_a_plan_that_no_scenario_can_stand_is_refused(self, faults):
        async def scenario(cluster):
            await cluster.calm()

        with pytest.raises(BadSetting, match="cannot have faults"):
            simulate(scenario, faults=faults)

    def test_a_plan_may_kill_the_application(self):
        async def scenario(cluster):
            worker = cluster.start("worker", forever)
            await cluster.calm()
            assert worker.is_up
            return worker.starts

        kinds = tuple(kind for kind in CLIENT_KINDS if kind == "client_crash")
        options = FaultOptions(kinds=kinds, pause_s=2.0)
        made, starts = run(scenario, faults=options, faults_s=15.0)
        assert starts > 2
        assert [text for _, text in made.story].count("client crash worker") == starts - 1

    def test_a_scenario_may_end_before_its_plan(self):
        async def scenario(cluster):
            await asyncio.sleep(4)

        made, _ = run(scenario, faults=True)
        assert made.violations == ()


class TestApplications:
    def test_one_is_killed_without_a_word_and_starts_again(self):
        lives, last_words = [], []

        async def main(application):
            lives.append(application.starts)
            try:
                await forever(application)
            finally:
                last_words.append(application.starts)

        async def scenario(cluster):
            worker = cluster.start("worker", main)
            await asyncio.sleep(2)
            cluster.crash("worker")
            assert not worker.is_up
            assert last_words == []
            cluster.restart("worker")
            with pytest.raises(BadSetting):
                cluster.restart("worker")
            await asyncio.sleep(2)

        made, _ = run(scenario)
        assert lives == [1, 2]
        assert "restarted worker" in [text for _, text in made.story]

    def test_what_it_returns_is_waited_for_over_crashes(self):
        async def main(application):
            await asyncio.sleep(5)
            return application.starts

        async def scenario(cluster):
            worker = cluster.start("worker", main)
            await asyncio.sleep(1)
            cluster.crash("worker")
            cluster.restart("worker")
            first = await worker.wait()
            assert not worker.is_up
            cluster.restart("worker")
            return first, await worker.wait()

        assert run(scenario)[1] == (2, 3)

    def test_what_it_raises_ends_the_scenario(self):
        async def main(application):
            await asyncio.sleep(1)
            raise ValueError("a bug of mine")

        async def scenario(cluster):
            cluster.start("worker", main)
            await asyncio.sleep(100)

        with pytest.raises(ValueError, match="a bug of mine"):
            simulate(scenario)

    @as_scenario(run)
    async def test_a_paused_one_is_owed_nothing_and_goes_on(self, cluster) -> None:
        cluster.start("worker", forever)
        for _ in range(3):
            await asyncio.sleep(1)
            cluster.pause("worker")
            await asyncio.sleep(60)
            cluster.resume("worker")

    @as_scenario(run)
    async def test_one_that_loses_its_power_leaves_the_cluster_waiting(self, cluster) -> None:
        cluster.start("worker", forever)
        await asyncio.sleep(1)
        cluster.power_cut("worker")
        await asyncio.sleep(30)
        cluster.restart("worker")
        await asyncio.sleep(5)

    def test_a_reader_that_is_away_is_owed_nothing(self):
        """Its read stops while it works on what it got, and goes on where it stood."""

        async def scenario(cluster):
            store = await cluster.connect()
            for number in range(3):
                await store.append("orders", b"%d" % number)
            stream = await store.read("orders", "oldest", None)
            for _ in range(3):
                await stream.next_items()
                await asyncio.sleep(60)
                await store.append("orders", b"later")

        made, _ = run(scenario)
        starts = [e.start for e in made.history if isinstance(e, ReadStarted) and e.until is None]
        given = [e.lsn for e in made.history if isinstance(e, RecordDelivered)]
        assert starts == given[:3]


class TestEndings:
    def test_a_failure_has_the_seed_and_the_story(self):
        async def scenario(cluster):
            cluster.crash(3)
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            simulate(scenario, seed=77)
        (note,) = caught.value.__notes__
        assert "seed 77" in note
        assert "crash node 3" in note
        assert "promise" not in note

    def test_its_traceback_begins_in_the_scenario(self):
        async def scenario(cluster):
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            simulate(scenario)
        names = [entry.name for entry in caught.traceback]
        assert names[-1] == "scenario"
        assert "run_until_complete" not in names

    def test_one_that_does_not_end_is_ended(self):
        async def scenario(cluster):
            await asyncio.Event().wait()

        with pytest.raises(EndlessScenario, match="20 simulated seconds"):
            simulate(scenario, limit_s=20.0)

    def test_its_own_timeouts_are_its_own(self):
        async def scenario(cluster):
            async with asyncio.timeout(1.0):
                await asyncio.sleep(2.0)

        with pytest.raises(TimeoutError) as caught:
            simulate(scenario)
        assert type(caught.value) is TimeoutError

    def test_a_broken_promise_fails_a_scenario_that_saw_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async def scenario(cluster):
            store = await cluster.connect()
            for number in range(9):
                await store.append("orders", b"%d" % number)

        take = ReadStream.take

        def skipping(self):
            taken = take(self)
            return take(self) if taken is not None and taken.first & 0xFF == 5 else taken

        swap(monkeypatch, ReadStream.take, skipping)
        with pytest.raises(BrokenPromise, match="passed without delivering test/4") as caught:
            simulate(scenario)
        assert {each.invariant for each in caught.value.violations} == {"S2", "S6"}
        assert "record reader=last-look" in str(caught.value)

    def test_a_scenario_that_fails_says_if_the_cluster_did_so_first(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append_many("orders", [b"%d" % n for n in range(3)])
            await store.append("orders", b"3")
            swap(monkeypatch, ReadStream.take, skipping)
            read = [item async for item in await store.read("orders")]
            assert len(read) == 4

        take = ReadStream.take

        def skipping(self):
            taken = take(self)
            return take(self) if taken is not None and taken.first & 0xFF == 1 else taken

        with pytest.raises(AssertionError) as caught:
            simulate(scenario)
        assert not isinstance(caught.value, BrokenPromise)
        assert "S2 log 1 e1n1: reader test.log1 passed" in caught.value.__notes__[0]

    def test_a_log_that_cannot_be_read_in_the_end_is_a_broken_promise(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async def scenario(cluster):
            store = await cluster.connect()
            await store.append("orders", b"1")
            swap(monkeypatch, ReadStream.take, failing)

        def failing(self):
            raise Corrupt("nothing can be read")

        with pytest.raises(BrokenPromise, match=r"/orders \(log 1\) cannot be read"):
            simulate(scenario)

    def test_a_task_that_nobody_awaits_is_heard(self):
        async def scenario(cluster):
            async def bad():
                raise ValueError("unheard")

            task = asyncio.ensure_future(bad())
            await asyncio.sleep(1)
            del task
            await asyncio.sleep(1)

        with pytest.raises(BrokenPromise, match="unheard"):
            simulate(scenario)

    def test_it_is_not_run_inside_a_loop(self):
        async def inside():
            async def scenario(cluster):
                pass

            simulate(scenario)

        with pytest.raises(BadSetting, match="plain `def`"), asyncio.Runner() as runner:
            runner.run(inside())
