"""Logs whose attributes change, that get other names and that go, on a whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from scenarios import as_scenario
from swaps import swap_value

from cordwood.block import Record
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    LogExists,
    OutcomeUnknown,
    TooFewNodes,
    UnknownLog,
)
from cordwood.log_attributes import LogAttributes, parse_attributes
from cordwood.lsn import Lsn
from cordwood.metadata import epoch_store
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Replication

LOG = 1


class Busy:
    """Appends without a pause, and what was acknowledged."""

    def __init__(self, store, log: str = "log") -> None:
        self.acked: dict[Lsn, bytes] = {}
        self._tasks = [asyncio.ensure_future(self._append(store, log, lane)) for lane in range(4)]

    async def _append(self, store, log: str, lane: int) -> None:
        for number in range(10**6):
            value = b"%d/%d" % (lane, number)
            self.acked[await store.append(log, value)] = value
            await asyncio.sleep(0.003)

    async def stop(self) -> None:
        """No append failed, and none is of unknown outcome."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    async def all_there(self, store, log: str = "log") -> None:
        found = {i.lsn: i.value for i in await read_all(store, log) if isinstance(i, Record)}
        assert self.acked.items() <= found.items()


class TestNewEpochs:
    @as_scenario(simulate, copies=3, nodes=3)
    async def test_another_replication_takes_a_new_epoch_and_no_append_notices(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log", copies=2)
            busy = Busy(store)
            await asyncio.sleep(1)
            (before,) = (await store.log("log")).history
            assert before.copies == 2
            await store.log_tree.set_attributes("log", LogAttributes(replicate_across={"node": 3}))
            await asyncio.sleep(2)
            await busy.stop()
            log = await store.log("log")
            assert log.replication == Replication(3, 1)
            assert [each.copies for each in log.history] == [2, 3]
            assert max(busy.acked) >> 32 == log.history[1].since == 2
            held = [cluster.held(node, LOG) for node in cluster.numbers]
            newest = [{h[:2] for h in node if h[0] >> 32 == 2} for node in held]
            assert len(newest[0] & newest[1] & newest[2]) > 10
            await busy.all_there(store)

    @as_scenario(simulate, nodes=6)
    async def test_a_smaller_nodeset_and_all_nodes_again(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"")
            busy = Busy(store)
            for words in (["nodeset_size=4"], ["nodeset_size=3"], ["nodeset_size=0"]):
                await store.log_tree.set_attributes("/", parse_attributes(words))
                await asyncio.sleep(1)
            await busy.stop()
            log = await store.log("log")
            assert [len(each.nodes) for each in log.history] == [6, 4, 3, 6]
            await busy.all_there(store)

    @as_scenario(simulate, nodes=3, copies=3)
    async def test_an_epoch_that_cannot_finish_is_ended_after_a_while(
        self, cluster: ClusterAtHand
    ) -> None:
        """What is numbered waits for a node that hangs; its end is not waited for long."""
        async with cluster.client() as store:
            await store.append("log", b"first")
            sequencer = cluster.sequencer_of(LOG)
            away = next(n for n in cluster.numbers if n != sequencer)
            cluster.machine(away).pause()
            waiting = asyncio.ensure_future(store.append("log", b"second"))
            await asyncio.sleep(0.1)
            await store.log_tree.set_attributes("log", LogAttributes(replicate_across={"node": 2}))
            began = asyncio.get_running_loop().time()
            with pytest.raises(OutcomeUnknown):
                await waiting
            assert 1.5 < asyncio.get_running_loop().time() - began < 4.0
            cluster.machine(away).resume()
            await store.append("log", b"third")
            assert (await store.log("log")).history[-1].copies == 2

    def test_a_log_that_has_had_all_its_nodesets_goes_on_with_the_last(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """Another was refused, and with it the epoch: the log took nothing any more."""
        swap_value(monkeypatch, lambda: epoch_store.HISTORY_MAX, 2)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("log", copies=2)
                for size in (3, 2, 3):
                    await store.append("log", b"v")
                    wanted = LogAttributes(nodeset_size=size)
                    await store.log_tree.set_attributes("log", wanted)
                    await asyncio.sleep(1)
                cluster.kill(cluster.sequencer_of(LOG))
                await store.append("log", b"w")
                history = (await store.log("log")).history
                assert [len(each.nodes) for each in history] == [4, 3]

        simulate(scenario, nodes=4)

    @as_scenario(simulate)
    async def test_what_needs_no_new_epoch_takes_none(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            before = await store.append("log", b"1")
            words = ["max_writes_in_flight=1", "sticky_copysets=off", "backlog_s=1d"]
            await store.log_tree.set_attributes("log", parse_attributes(words))
            node = cluster.running[cluster.sequencer_of(LOG)]
            appender = node._sequencer.sequencing()[LOG]
            await until(lambda: appender.attributes.max_writes_in_flight == 1)
            lsns = await asyncio.gather(*(store.append("log", b"x") for _ in range(50)))
            assert {lsn >> 32 for lsn in lsns} == {before >> 32}


class TestWindow:
    @pytest.mark.parametrize("limit", [1, 3])
    @as_scenario(simulate)
    async def test_no_more_blocks_are_in_flight_than_may_be(
        self, cluster: ClusterAtHand, *, limit: int
    ) -> None:
        async with cluster.client() as one, cluster.client() as other:
            await one.create_log("log", attributes=LogAttributes(max_writes_in_flight=limit))
            await one.append("log", b"first")
            node = cluster.running[cluster.sequencer_of(LOG)]
            appender = node._sequencer.sequencing()[LOG]
            most = 0

            async def append(store, number: int) -> None:
                nonlocal most
                await asyncio.sleep(0.0001 * number)
                future = asyncio.ensure_future(store.append("log", b"%d" % number))
                while not future.done():
                    most = max(most, appender._blocks_in_flight)
                    await asyncio.sleep(0.0002)
                await future

            stores = [one, other]
            await asyncio.gather(*(append(stores[n % 2], n) for n in range(60)))
            assert most == limit


class TestNames:
    @as_scenario(simulate)
    async def test_a_deleted_log_takes_nothing_and_another_of_its_name_does(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"old")
            await store.log_tree.delete("log")
            with pytest.raises(UnknownLog):
                await store.log("log")
            await until(lambda: not cluster.sequencer_of(LOG))
            await store.append("log", b"new")
            assert (await store.log("log")).log_id != LOG
            items = await read_all(store, "log")
            assert [item.value for item in items if isinstance(item, Record)] == [b"new"]

    @as_scenario(simulate)
    async def test_who_still_knows_its_number_is_told_once(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await store.append("log", b"old")
            await other.append("log", b"old")
            await store.log_tree.delete("log")
            await until(lambda: not cluster.sequencer_of(LOG))
            with pytest.raises(UnknownLog, match="deleted"):
                await other.append("log", b"late")
            await other.append("log", b"new")

    @pytest.mark.parametrize("create_logs", [True, False])
    def test_who_only_asks_makes_no_log(self, create_logs: bool):
        """To ask for the tail of a deleted log brought it back, empty."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                asks: list[Callable[[str], Awaitable[object]]] = [
                    store.tail, store.extent, store.head_attributes, store.tail_attributes,
                    store.is_empty, store.data_size, store.log, store.read,
                    lambda log: store.read(log, "tail", "tail"),
                    lambda log: store.reader(log, until="tail"),
                    lambda log: store.tails([log]),
                    lambda log: store.released([log]),
                    lambda log: store.epoch_end(log, 1),
                    lambda log: store.trim(log, "tail"),
                    lambda log: store.find_time(log, 0),
                    lambda log: store.find_key(log, b"key"),
                    lambda log: store.cursors.save("me", {log: 1}),
                ]  # fmt: skip
                for ask in asks:
                    with pytest.raises(UnknownLog):
                        await ask("/gone")
                assert await store.logs() == []

        simulate(scenario, create_logs=create_logs)

    @pytest.mark.parametrize("kind", ["read", "reader", "consumer"])
    @as_scenario(simulate)
    async def test_who_waits_for_records_of_a_log_that_is_not_there_gets_them(
        self, cluster: ClusterAtHand, *, kind: str
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            if kind == "read":
                stream = await store.read("/log", until=None)
                reading = asyncio.ensure_future(stream.next_items())
            elif kind == "reader":
                reading = asyncio.ensure_future((await store.reader("/log")).read())
            else:
                consumer = await store.consumer("me", "/log")
                await consumer.start()
                reading = asyncio.ensure_future(consumer.read())
            await asyncio.sleep(5)
            await other.append("/log", b"1")
            async with asyncio.timeout(5):
                assert [item.value for item in await reading] == [b"1"]

    @as_scenario(simulate)
    async def test_a_renamed_log_goes_on(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            before = await store.append("log", b"1")
            renamed = await store.log_tree.rename("log", "a/b")
            assert (renamed.log_id, renamed.name) == (LOG, "/a/b")
            assert await store.append("a/b", b"2") == before + 1
            await store.append("c", b"")
            with pytest.raises(LogExists):
                await store.log_tree.rename("a/b", "c")


class TestRefusals:
    @as_scenario(simulate, nodes=3)
    async def test_what_this_cluster_cannot_keep_is_not_made(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=2) as store:
            with pytest.raises(TooFewNodes):
                await store.create_log(
                    "log", attributes=parse_attributes(["replicate_across=node:4"])
                )
            with pytest.raises(BadSetting, match="nodeset_size"):
                await store.create_log("log", attributes=parse_attributes(["nodeset_size=2"]))
            assert await store.logs() == []
            with pytest.raises(UnknownLog):
                await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=4))
            with pytest.raises(BadSetting):
                await store.log_tree.directory("log")

    @as_scenario(simulate, nodes=3)
    async def test_a_log_that_asks_for_more_than_there_is_goes_on_as_it_was(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            # Written past the nodes: they refuse it, but members may leave afterwards.
            before = await store.append("log", b"1")
            asked = LogAttributes(replicate_across={"node": 5})
            await LogTree(cluster.metadata).set_attributes("log", asked)
            await asyncio.sleep(2)
            assert await store.append("log", b"2") == before + 1

    @pytest.mark.parametrize("path", ["log", "/"])
    @as_scenario(simulate, nodes=3)
    async def test_more_than_there_is_may_not_be_asked_for(
        self, cluster: ClusterAtHand, *, path: str
    ) -> None:
        async with cluster.client() as store:
            before = await store.append("log", b"1")
            with pytest.raises(TooFewNodes, match=r"wants 5 copies.*has 3 nodes"):
                await store.log_tree.set_attributes(
                    path, LogAttributes(replicate_across={"node": 5})
                )
            assert (await store.log("log")).attributes.replicate_across != {"node": 5}
            assert await store.append("log", b"2") == before + 1

    @as_scenario(simulate)
    async def test_a_write_token_keeps_out_who_does_not_have_it(
        self, cluster: ClusterAtHand
    ) -> None:
        words = ["write_token=secret"]
        async with cluster.client(write_tokens=("x", "secret")) as store:
            await store.create_log("log", attributes=parse_attributes(words))
            await store.append("log", b"1")
        async with cluster.client(write_tokens=("x",)) as store:
            with pytest.raises(AccessDenied, match="write_token"):
                await store.append("log", b"2")
            with pytest.raises(AccessDenied):
                await store.open_log("log")
            assert len(await read_all(store, "log")) == 1


class TestRoundTrips:
    def test_a_sequencer_costs_two_to_the_metadata_store_and_an_append_none(self):
        """Each call takes a second here, so seconds are round trips one after another."""

        async def scenario(cluster: ClusterAtHand) -> tuple[float, float]:
            loop = asyncio.get_running_loop()
            async with cluster.client() as store:
                await store.create_log("log")
                await store.log("log")
                # The log's own node knows the members, as every node does after a moment.
                await asyncio.sleep(2)
                appending = await store.open_log("log")
                cluster.metadata.delay_s = (1.0, 1.0)
                began = loop.time()
                await appending.append_nowait(b"first")
                first_s = loop.time() - began
                began = loop.time()
                for _ in range(10):
                    await appending.append_nowait(b"more")
                return first_s, loop.time() - began

        first_s, more_s = simulate(scenario)
        assert 2.0 <= first_s < 2.5
        assert more_s < 0.5
