"""Changes of the log tree that two nodes do: the first did not answer, and the second was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.client.store import Store
from cordwood.errors import Fenced, UnknownLog
from cordwood.layout.message import AskConsumers, Call, JoinConsumer, Reply
from cordwood.layout.message_rights import DeleteLog, RaiseToken, RenameLog, SetAttributes
from cordwood.log_attributes import LogAttributes

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


class TestLate:
    @pytest.mark.parametrize("change", [delete, rename, set_then_delete, fence_then_delete])
    def test_a_node_that_was_stopped_changes_no_log_made_since(self, change: Change) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario, nodes=5)

    def test_a_reset_that_is_done_late_takes_no_position_back(self) -> None:
        """The consumer went on behind records that it had not read."""

        async def scenario(cluster: ClusterAtHand) -> None:
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
                with pytest.raises(Fenced, match="somebody saved in between"):
                    await ask(late)
                assert (await store.cursors.by_number("group")).positions == {number: acks[0]}

        simulate(scenario)

    def test_a_reset_goes_on_over_a_member_that_saves_meanwhile(self) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario)

    def test_a_member_that_a_stopped_node_joins_late_stays_as_it_is(self) -> None:
        """It was replaced by itself: its next beat said that it was no member any more."""

        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario, nodes=5)

    def test_a_change_whose_answer_was_lost_is_done_at_the_second_node(self) -> None:
        """The second node said that there was no such log."""

        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario)

    def test_a_late_call_leaves_alone_a_log_that_has_the_name_since(self) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario)

    def test_what_stopped_half_way_is_finished_and_a_log_made_since_is_left_alone(self) -> None:
        """The client found no log, and asks for what a stopped change left: the number 0."""

        async def scenario(cluster: ClusterAtHand) -> None:
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

        simulate(scenario)
