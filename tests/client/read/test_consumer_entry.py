"""A consumer's entry in the metadata store, as its readers meet it."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.admin.consumer_calls import FORGOTTEN_MAX
from cordwood.errors import BadSetting
from cordwood.layout.message_consumers import (
    AskConsumers,
    ConsumersReply,
    JoinConsumer,
    SaveCursors,
)
from cordwood.lsn import make_lsn
from cordwood.metadata.consumers import LOGS_MAX
from cordwood.sim.planted import find_bug, planted


@as_scenario(simulate)
async def test_logs_that_were_deleted_make_room_for_new_ones(cluster: ClusterAtHand) -> None:
    """A consumer of a log for each day could save nothing after 4,000 days."""
    async with cluster.client() as store:
        await store.append("log", b"1")
        await store.append("old", b"1")
        older = {"2": 7} | {str(number): 5 for number in range(1000, 999 + LOGS_MAX)}
        await store._ask(SaveCursors("c", "", 0, older, {}, False))
        assert await store.cursors.save("c", {"log": make_lsn(1, 2)})
        positions = (await store.cursors.by_number("c")).positions
        assert positions["1"] == make_lsn(1, 2)
        assert positions["2"] == 7, "it is there"
        assert len(positions) == LOGS_MAX + 1 - FORGOTTEN_MAX


@as_scenario(simulate)
async def test_deleted_logs_of_members_that_were_killed_make_room_too(
    cluster: ClusterAtHand,
) -> None:
    """With no member left to say that they are gone, no member could join any more, for good."""
    async with cluster.client() as store:
        await store.append("log", b"1")
        gone = [str(number) for number in range(1000, 1000 + LOGS_MAX)]
        await store._ask(JoinConsumer("c", "killed", gone, 15_000))
        await asyncio.sleep(16)
        consumer = await store.consumer("c", "log", member="next")
        async with consumer:
            assert (await consumer.read(timeout_s=5)).records
        (group,) = await store.cursors.list("c")
        assert "killed" not in group.members


async def members_join_and_save(cluster: ClusterAtHand) -> None:
    """The store's bound refused saves instead, and each call that reads raised that, for good."""
    logs = [str(number) for number in range(100_000, 100_000 + LOGS_MAX)]
    async with cluster.client() as store:
        members: list[str] = []

        async def join_all() -> None:
            for number in range(100):
                call = JoinConsumer("c", f"member-{number}", logs, 60_000)
                await store._ask(call)
                members.append(call.member)

        with pytest.raises(BadSetting, match="have fewer members"):
            await join_all()
        assert len(members) > 5
        told = await store._ask(AskConsumers("c"))
        assert isinstance(told, ConsumersReply)
        (group,) = told.groups
        most = {log: int(make_lsn(1 << 30, 5)) for log in logs}
        for name in members:
            own = {log: lsn for log, lsn in most.items() if group.owners[log] == name}
            await store._ask(SaveCursors("c", name, group.generation, own, {}, False))
        await store._ask(SaveCursors("c", "", 0, most, {}, reset=True))


@pytest.mark.slow
def test_members_join_only_while_there_is_room_for_what_they_save() -> None:
    simulate(members_join_and_save)
    with planted(find_bug("joins-without-room")), pytest.raises(BadSetting):
        simulate(members_join_and_save)


@pytest.mark.slow
@as_scenario(simulate)
async def test_calls_that_compare_and_set_keep_fewer_marks_where_there_is_no_room(
    cluster: ClusterAtHand,
) -> None:
    """All of them were refused once eight marks of each log were there, for good."""
    logs = [str(number) for number in range(1_000_000, 1_000_000 + LOGS_MAX)]
    async with cluster.client() as store:
        await store._ask(JoinConsumer("c", "former", logs, 1_000))
        await asyncio.sleep(2)
        was = dict.fromkeys(logs, 0)
        for turn in range(1, 12):
            wanted = dict.fromkeys(logs, int(make_lsn(1 << 30, turn)))
            call = SaveCursors("c", "", 0, wanted, was, reset=False, mark=f"{turn:024x}")
            await store._ask(call)
            await store._ask(call)  # its answer was lost
            was = wanted
