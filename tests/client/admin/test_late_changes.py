"""Changes of the log tree, and of nodes, that two nodes do: the first did not answer, and
the second was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import Fenced, LogExists, UnknownLog, Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_consumers import AskConsumers, JoinConsumer
from cordwood.layout.message_logs import LogReply
from cordwood.layout.message_nodes import AskMembers, MembersReply, SetAuthority, SetStorage
from cordwood.layout.message_rights import DeleteLog, RaiseToken, RenameLog, SetAttributes
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import Authority, NodeId
from cordwood.sim.planted import find_bug, planted
from cordwood.wire.connection import Connection

LATE_S = 20.0
"""Longer than a node works on a call."""

Change = Callable[[Store], Awaitable[object]]


async def delete(store: Store) -> None:
    await store.log_tree.delete("/a")


async def rename(store: Store) -> None:
    await store.log_tree.rename("/a", "/b")
    await store.log_tree.delete("/b")


async def set_then_delete(store: Store) -> None:
    await store.log_tree.set_attributes("/a", LogAttributes(backlog_s=1.0))
    await store.log_tree.delete("/a")


async def fence_then_delete(store: Store) -> None:
    await store.log_tree.raise_token("/a", 7, "the earlier holder")
    await store.log_tree.delete("/a")


async def backlog(store: Store) -> float | None:
    store._cluster.forget_log("/a")
    return (await store.log("/a")).attributes.backlog_s


async def nothing(message: Call) -> None:
    return


def noted(store: Store, first: Callable[[Call], Awaitable[None]] = nothing) -> list[Call]:
    """The client's calls to any node, from now on; `first` is done before each."""
    calls: list[Call] = []
    ask_any = store._cluster.ask_any

    async def note(message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
        calls.append(message)
        await first(message)
        return await ask_any(message, timeout_s=timeout_s, asked=asked)

    store._cluster.ask_any = note  # type: ignore[method-assign]
    return calls


class TestLate:
    @pytest.mark.parametrize("change", [delete, rename, set_then_delete, fence_then_delete])
    @as_scenario(simulate, nodes=5)
    async def test_a_node_that_was_stopped_changes_no_log_made_since(
        self, cluster: ClusterAtHand, *, change: Change
    ) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.append("/a", b"old")
            cluster.machine(1).pause()
            await change(store)
            await store.create_log("/a")
            await store.append("/a", b"new")
            made = await store.log("/a")
            cluster.machine(1).resume()
            await asyncio.sleep(LATE_S)
            async with cluster.client() as other:
                assert await values(other, "/a") == [b"new"]
                assert await other.log("/a") == made
                assert (await other.log_tree.epochs("/a")).token == 0
                with pytest.raises(UnknownLog):
                    await other.log("/b")

    @pytest.mark.parametrize("path", ["/a", "/"])
    @as_scenario(simulate, nodes=5)
    async def test_a_node_that_was_stopped_sets_no_attributes_over_a_later_change(
        self, cluster: ClusterAtHand, *, path: str
    ) -> None:
        async with cluster.client(timeout_s=30) as store, cluster.client() as other:
            await store.append("/a", b"0")
            await other.log("/a")
            cluster.machine(1).pause()
            await store.log_tree.set_attributes(path, LogAttributes(backlog_s=1.0))
            await other.log_tree.set_attributes(path, LogAttributes(backlog_s=3600.0))
            cluster.machine(1).resume()
            await asyncio.sleep(LATE_S)
            assert await backlog(other) == 3600.0

    @pytest.mark.parametrize("path", ["/a", "/"])
    @as_scenario(simulate)
    async def test_attributes_that_are_set_late_undo_no_later_change_not_even_back(
        self, cluster: ClusterAtHand, *, path: str
    ) -> None:
        """What was set back looks like what the late call's client saw."""
        async with cluster.client() as store:
            await store.append("/a", b"0")
            tree, calls = store.log_tree, noted(store)
            await tree.set_attributes(path, LogAttributes(backlog_s=60.0))
            await tree.set_attributes(path, LogAttributes(backlog_s=1.0))
            late = calls[-1]
            await tree.set_attributes(path, LogAttributes(backlog_s=60.0))
            with pytest.raises(Fenced, match="was changed since it was looked at"):
                await store._cluster.call_any(late, timeout_s=5)
            assert await backlog(store) == 60.0
            with planted(find_bug("any-version")):
                await store._cluster.call_any(late, timeout_s=5)
            assert await backlog(store) == 1.0, "what the late call sets is not what is there"

    @pytest.mark.parametrize("path", ["/a", "/"])
    @as_scenario(simulate)
    async def test_attributes_are_set_over_a_change_that_came_first(
        self, cluster: ClusterAtHand, *, path: str
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await store.append("/a", b"0")
            others = iter([2.0, 3.0])

            async def change_first(message: Call) -> None:
                if isinstance(message, SetAttributes) and (next_s := next(others, 0.0)):
                    change = LogAttributes(backlog_s=next_s, nodeset_size=3)
                    await other.log_tree.set_attributes(path, change)

            noted(store, change_first)
            await store.log_tree.set_attributes(path, LogAttributes(backlog_s=60.0))
            attributes = (await store.log("/a")).attributes
            assert (attributes.backlog_s, attributes.nodeset_size) == (60.0, 3)

    @as_scenario(simulate, nodes=5)
    async def test_a_rename_that_was_stopped_undoes_no_later_rename_back(
        self, cluster: ClusterAtHand
    ) -> None:
        """The next append by the name made another log."""
        async with cluster.client(timeout_s=30) as store, cluster.client() as other:
            await other.append("/a", b"1")

            stops = iter([True])

            async def stop_once(message: Call) -> None:
                if isinstance(message, RenameLog) and next(stops, False):
                    # The call reaches the node, which stops before it answers.
                    asyncio.get_running_loop().call_later(0.004, cluster.machine(1).pause)

            noted(store, stop_once)
            await store.log_tree.rename("/a", "/b")
            await other.log_tree.rename("/b", "/a")
            cluster.machine(1).resume()
            await asyncio.sleep(LATE_S)
            await other.append("/a", b"2")
            assert await values(other, "/a") == [b"1", b"2"]
            await other.create_log("/b")  # The late call gave its claim on the name back.

    @as_scenario(simulate)
    async def test_a_late_rename_moves_no_log_that_was_renamed_back(
        self, cluster: ClusterAtHand
    ) -> None:
        """What was renamed back looks like what the late call's client saw."""
        async with cluster.client() as store:
            await store.append("/a", b"0")
            tree, calls = store.log_tree, noted(store)
            await tree.rename("/a", "/b")
            late = calls[-1]
            again = await store._cluster.call_any(late, timeout_s=5)
            assert isinstance(again, LogReply)
            assert again.name == "/b", "it is there already"
            await tree.rename("/b", "/a")
            with pytest.raises(Fenced, match="was changed since it was looked at"):
                await store._cluster.call_any(late, timeout_s=5)
            assert set((await tree.names()).values()) == {"/a"}
            with planted(find_bug("rename-any-version")):
                await store._cluster.call_any(late, timeout_s=5)
            assert set((await tree.names()).values()) == {"/b"}

    @pytest.mark.parametrize("is_planted", [False, True])
    def test_one_rename_is_not_done_twice(self, is_planted: bool) -> None:
        """Its answer was lost, another client renamed the log back, and the same call renamed it
        again. The next append by the name made another log."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(timeout_s=30) as store, cluster.client() as other:
                await other.append("/a", b"1")
                cuts = iter([True])

                async def cut_once(message: Call) -> None:
                    if isinstance(message, RenameLog) and next(cuts, False):
                        # Only the answer is lost.
                        cluster.simulation.network.cut([cluster.machine(1).name], ["client-1"])

                noted(store, cut_once)
                renaming = asyncio.ensure_future(store.log_tree.rename("/a", "/b"))
                await asyncio.sleep(1.5)
                await other.log_tree.rename("/b", "/a")
                with pytest.raises(Fenced, match="may have been renamed, and renamed back"):
                    await renaming
                assert set((await other.log_tree.names()).values()) == {"/a"}
                await store.log_tree.rename("/a", "/b")

        failure = pytest.raises(pytest.fail.Exception) if is_planted else nullcontext()
        with planted(find_bug("rename-twice")) if is_planted else nullcontext(), failure:
            simulate(scenario, nodes=5)

    @as_scenario(simulate)
    async def test_a_log_that_was_changed_meanwhile_is_renamed_all_the_same(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await store.append("/a", b"0")
            others = iter([2.0, 3.0])

            async def change_first(message: Call) -> None:
                if isinstance(message, RenameLog) and (next_s := next(others, 0.0)):
                    await other.log_tree.set_attributes("/a", LogAttributes(backlog_s=next_s))

            noted(store, change_first)
            renamed = await store.log_tree.rename("/a", "/b")
            assert (renamed.name, renamed.attributes.backlog_s) == ("/b", 3.0)

    @as_scenario(simulate)
    async def test_a_second_try_of_a_creation_finds_the_log_of_the_first(
        self, cluster: ClusterAtHand
    ) -> None:
        """The first one's answer was lost, and the second said `LogExists`."""
        async with cluster.client() as store, cluster.client() as other:
            calls = noted(store)
            made = await store.create_log("/a", attributes=LogAttributes(backlog_s=60.0))
            again = await store._cluster.call_any(calls[-1], timeout_s=5)
            assert isinstance(again, LogReply)
            assert (again.log, again.own) == (made.log_id, made.own)
            for each in (store, other):
                with pytest.raises(LogExists):
                    await each.create_log("/a")
            await store.log_tree.delete("/a")
            new = await other.create_log("/a")
            with pytest.raises(LogExists):
                await store._cluster.call_any(calls[0], timeout_s=5)
            assert (await store.log("/a")).log_id == new.log_id

    @as_scenario(simulate, nodes=5)
    async def test_a_creation_that_two_nodes_do_makes_one_log(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.append("/a", b"0")
            cluster.machine(1).pause()
            made = await store.create_log("/b")
            cluster.machine(1).resume()
            await asyncio.sleep(LATE_S)
            assert (await store.log("/b")).log_id == made.log_id

    @as_scenario(simulate)
    async def test_a_reset_that_is_done_late_takes_no_position_back(
        self, cluster: ClusterAtHand
    ) -> None:
        """The consumer went on behind records that it had not read."""
        async with cluster.client() as store:
            acks = [await store.append("/a", b"%d" % n) for n in range(10)]
            number = str((await store.log("/a")).log_id)
            await store.cursors.save("group", {"/a": acks[1]}, reset=True)
            cursors, ask = store.cursors, store._ask
            asked: list[Call] = []

            async def ask_and_note(message: Call) -> Reply:
                asked.append(message)
                return await ask(message)

            cursors._ask = ask_and_note
            await cursors.save("group", {"/a": acks[9]}, reset=True)
            late = asked[-1]
            await cursors.save("group", {"/a": acks[0]}, reset=True)
            with pytest.raises(Fenced, match="another save came in between"):
                await ask(late)
            assert (await store.cursors.by_number("group")).positions == {number: acks[0]}

    @as_scenario(simulate)
    async def test_a_reset_goes_on_over_a_member_that_saves_meanwhile(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            acks = [await store.append("/a", b"%d" % n) for n in range(4)]
            number = str((await store.log("/a")).log_id)
            cursors, ask = store.cursors, store._ask
            saved = iter(acks[1:])

            async def ask_and_save(message: Call) -> Reply:
                reply = await ask(message)
                if isinstance(message, AskConsumers) and (lsn := next(saved, 0)):
                    await other.cursors.save("group", {"/a": lsn})
                return reply

            cursors._ask = ask_and_save
            await cursors.save("group", {"/a": acks[0]}, reset=True)
            assert (await store.cursors.by_number("group")).positions == {number: acks[0]}

    @as_scenario(simulate, nodes=5)
    async def test_a_member_that_a_stopped_node_joins_late_stays_as_it_is(
        self, cluster: ClusterAtHand
    ) -> None:
        """It was replaced by itself: its next beat said that it was no member any more."""
        async with cluster.client(timeout_s=30) as store:
            await store.append("/a", b"0")
            consumer = await store.consumer("group", "/a", member="m")
            ask, stopped = consumer._ask, cluster.machine(1)

            async def ask_a_node_that_stops(message: Call) -> Reply:
                if isinstance(message, JoinConsumer):
                    stopped.pause()
                return await ask(message)

            consumer._ask = ask_a_node_that_stops
            async with consumer:
                joined = consumer.generation
                stopped.resume()
                assert len((await consumer.read(timeout_s=5)).records) == 1
                await consumer.read(timeout_s=LATE_S)
                await consumer.save()
                (group,) = await store.cursors.list("group")
                assert (group.generation, group.owners) == (joined, {"/a": "m"})

    @as_scenario(simulate)
    async def test_a_change_whose_answer_was_lost_is_done_at_the_second_node(
        self, cluster: ClusterAtHand
    ) -> None:
        """The second node said that there was no such log."""
        async with cluster.client() as store:
            await store.append("/a", b"0")
            number = (await store.log("/a")).log_id
            asked = store._cluster
            for call in (RenameLog("/a", "/b", number), DeleteLog("/b", number)):
                first = await asked.call_any(call, timeout_s=5)
                assert await asked.call_any(call, timeout_s=5) == first
            assert await store.logs() == []
            with pytest.raises(UnknownLog):
                await store.log_tree.delete("/b")

    @as_scenario(simulate)
    async def test_a_late_call_leaves_alone_a_log_that_has_the_name_since(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            number = (await store.create_log("/a")).log_id
            await store.log_tree.delete("/a")
            await store.append("/a", b"new")
            made = await store.log("/a")
            for call in (
                SetAttributes("/a", LogAttributes(backlog_s=1.0), log=number),
                RaiseToken("/a", 7, "holder", number),
                RenameLog("/a", "/b", number),
            ):
                with pytest.raises(UnknownLog):
                    await store._cluster.call_any(call, timeout_s=5)
            await store._cluster.call_any(DeleteLog("/a", number), timeout_s=5)
            assert await store.log("/a") == made
            assert await values(store, "/a") == [b"new"]

    @as_scenario(simulate)
    async def test_what_stopped_half_way_is_finished_and_a_log_made_since_is_left_alone(
        self, cluster: ClusterAtHand
    ) -> None:
        """The client found no log, and asks for what a stopped change left: the number 0."""
        async with cluster.client() as store:
            await store.append("/a", b"0")
            for call in (
                DeleteLog("/a", 0),
                RenameLog("/a", "/b", 0),
                RaiseToken("/a", 7, "holder", 0),
                SetAttributes("/a", LogAttributes(backlog_s=1.0), log=0),
            ):
                with pytest.raises(UnknownLog):
                    await store._cluster.call_any(call, timeout_s=5)
            assert await values(store, "/a") == [b"0"]


async def cut_off(cluster: ClusterAtHand, call: Call) -> None:
    """The first node that is asked gets an order about a node only when the network is mended."""
    if isinstance(call, SetAuthority | SetStorage):
        cluster.simulation.network.partition(["client-1"], [cluster.machine(1).name])


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_late_order_sets_no_status_that_came_and_went(*, is_planted: bool) -> None:
    """A node was cut off with the order. Another node carried it out, and the reported node came
    back with its data. Then it was down again, and the first node called its data gone."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=60) as operator, cluster.client() as store:
            await store.append("/a", b"0")
            cluster.kill(3)
            await asyncio.sleep(LATE_S)
            noted(operator, lambda call: cut_off(cluster, call))
            await operator.set_authority(3, Authority.UNDER_REPLICATED)
            await cluster.start(3)
            await asyncio.sleep(LATE_S)
            assert (await store.authorities())[NodeId(3)] is Authority.FULLY_AUTHORITATIVE
            cluster.kill(3)
            await asyncio.sleep(LATE_S)
            cluster.simulation.network.mend_all()
            await asyncio.sleep(LATE_S)
            is_gone = (await store.authorities())[NodeId(3)] is Authority.UNDER_REPLICATED
            assert is_gone is is_planted

    with planted(find_bug("late-status-again")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_late_order_makes_no_node_read_only_again(*, is_planted: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=60) as operator, cluster.client() as store:
            await store.append("/a", b"0")
            noted(operator, lambda call: cut_off(cluster, call))
            await operator.set_storage(3, read_only=True)
            await asyncio.sleep(LATE_S)
            assert (await store.read_only())[NodeId(3)]
            await store.set_storage(3, read_only=False)
            cluster.simulation.network.mend_all()
            await asyncio.sleep(LATE_S)
            assert (await store.read_only())[NodeId(3)] is is_planted

    with planted(find_bug("late-status-again")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_order_that_changes_nothing_shuts_earlier_orders_out(*, is_planted: bool) -> None:
    """An order got no answer, and nothing was changed when the contrary was acknowledged."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=2) as operator, cluster.client() as store:
            await operator.authorities()
            seen = await store._cluster.call_any(AskMembers(3), timeout_s=5)
            assert isinstance(seen, MembersReply)
            nodes = [cluster.machine(node).name for node in cluster.running]
            cluster.simulation.network.partition(["client-1"], nodes)
            with pytest.raises(Unreachable):
                await operator._cluster.call_any(
                    SetStorage(3, read_only=True, if_version=seen.version), timeout_s=2
                )
            await store.set_storage(3, read_only=False)
            cluster.simulation.network.mend_all()
            await asyncio.sleep(LATE_S)
            assert (await store.read_only())[NodeId(3)] is is_planted

    with planted(find_bug("status-unwritten")) if is_planted else nullcontext():
        simulate(scenario, nodes=4)


@as_scenario(simulate)
async def test_an_order_about_a_node_is_done_once_and_may_be_repeated(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        calls = noted(store)
        await store.set_storage(3, read_only=True)
        order = next(each for each in calls if isinstance(each, SetStorage))
        assert order.if_version
        await store._cluster.call_any(order, timeout_s=5)  # it is so already
        await store.set_storage(3, read_only=False)
        with pytest.raises(Fenced, match="was changed since this order was given"):
            await store._cluster.call_any(order, timeout_s=5)
        older = SetStorage(3, read_only=True)
        await store._cluster.call_any(older, timeout_s=5)
        await store._cluster.refresh_members(timeout_s=5)
        assert (await store.read_only())[NodeId(3)]
