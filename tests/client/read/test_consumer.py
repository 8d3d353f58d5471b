"""Consumers: positions that outlive their reader, members that share, and fencing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.block import Record
from cordwood.client.find.log_info import AnyLog
from cordwood.client.read.consumer import BEGIN_AGAIN_S, MEMBER_TTL_S, Consumer
from cordwood.client.read.cursors import Lag
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Closed, Fenced, Rejected, UnknownLog, Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_consumers import JoinConsumer, LeaveConsumer, SaveCursors
from cordwood.lsn import make_lsn
from cordwood.sim.planted import find_bug, planted


async def fill(store: Store, log: str, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        await store.append(log, b"%d" % number)


async def drained(consumer: Consumer, timeout_s: float = 2.0) -> dict[str, list[int]]:
    """All that comes, by log."""
    found: dict[str, list[int]] = {}
    while portion := await consumer.read(timeout_s=timeout_s):
        found.setdefault(portion.log, []).extend(int(each.value) for each in portion.records)
    return found


async def two_programs_claim_the_same_records(cluster: ClusterAtHand) -> None:
    """Both were told that they had moved the position from 1 to 6. Each call is done twice: no
    client hears of its first try."""
    async with cluster.client() as one, cluster.client() as two:
        await fill(one, "log", 9)
        await one.cursors.save("job", {"log": make_lsn(1, 1)})
        for store in (one, two):
            right = store._cluster.call_any

            async def twice(
                call: Call, *, timeout_s: float, right: Callable[..., Any] = right
            ) -> Reply:
                if isinstance(call, SaveCursors):
                    await right(call, timeout_s=timeout_s)
                return await right(call, timeout_s=timeout_s)

            store._cluster.call_any = twice
        claim = {"log": make_lsn(1, 6)}, {"log": make_lsn(1, 1)}
        assert await one.cursors.save("job", *claim) == {"/log": make_lsn(1, 6)}
        with pytest.raises(Fenced, match="another save came in between"):
            await two.cursors.save("job", *claim)


async def another_goes_on_before_a_second_try(cluster: ClusterAtHand) -> None:
    """The first program's second try was refused: nobody had the records that it had claimed."""
    async with cluster.client() as one, cluster.client() as two:
        await fill(one, "log", 9)
        await one.cursors.save("job", {"log": make_lsn(1, 1)})
        right = one._cluster.call_any

        async def twice(call: Call, *, timeout_s: float) -> Reply:
            if isinstance(call, SaveCursors):
                await right(call, timeout_s=timeout_s)
                behind = {"log": make_lsn(1, 8)}, {"log": make_lsn(1, 6)}
                assert await two.cursors.save("job", *behind) == {"/log": make_lsn(1, 8)}
            return await right(call, timeout_s=timeout_s)

        one._cluster.call_any = twice
        claim = {"log": make_lsn(1, 6)}, {"log": make_lsn(1, 1)}
        assert await one.cursors.save("job", *claim) == {"/log": make_lsn(1, 8)}


async def a_claim_is_made_again_that_was_not_answered(cluster: ClusterAtHand) -> None:
    """It had moved the position, and was refused when it was made again."""
    async with cluster.client() as one, cluster.client() as two:
        await fill(one, "log", 9)
        await one.cursors.save("job", {"log": make_lsn(1, 1)})
        right = one._cluster.call_any

        async def unanswered(call: Call, *, timeout_s: float) -> Reply:
            await right(call, timeout_s=timeout_s)
            raise Unreachable("the answer was lost")

        async def never(call: Call, *, timeout_s: float) -> Reply:
            await right(call, timeout_s=timeout_s)
            return await asyncio.Event().wait()

        claim = {"log": make_lsn(1, 6)}, {"log": make_lsn(1, 1)}
        for lost, error in ((unanswered, Unreachable), (never, TimeoutError)):
            lost_calls = patched_for_saves(one, right, lost)
            with pytest.raises(error):
                async with asyncio.timeout(5.0):
                    await one.cursors.save("job", *claim)
            lost_calls.clear()
        with pytest.raises(Fenced, match="another save came in between"):
            await two.cursors.save("job", *claim)
        assert await one.cursors.save("job", *claim) == {"/log": make_lsn(1, 6)}
        with pytest.raises(Fenced, match="another save came in between"):
            await one.cursors.save("job", *claim)


def patched_for_saves(store: Any, right: Callable[..., Any], lost: Callable[..., Any]) -> list[Any]:
    """The store's saves go to `lost` while this list has something in it."""
    here = [lost]

    async def ask(call: Call, *, timeout_s: float) -> Reply:
        wanted = lost if here and isinstance(call, SaveCursors) else right
        return await wanted(call, timeout_s=timeout_s)

    store._cluster.call_any = ask
    return here


class TestPositions:
    @as_scenario(simulate)
    async def test_a_consumer_goes_on_where_it_was(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 5)
            async with await store.consumer("billing", "log") as consumer:
                assert await drained(consumer) == {"/log": [1, 2, 3, 4, 5]}
            await fill(store, "log", 2, 6)
        async with (
            cluster.client() as store,
            await store.consumer("billing", "log") as consumer,
        ):
            assert await drained(consumer) == {"/log": [6, 7]}
        async with cluster.client() as store:
            (group,) = await store.cursors.list("billing")
            assert group.positions == {"/log": make_lsn(1, 8)}
            assert [each.consumer for each in await store.cursors.list()] == ["billing"]

    @as_scenario(simulate)
    async def test_what_was_not_dealt_with_comes_again(self, cluster: ClusterAtHand) -> None:
        """What a crash interrupts was given out, and not dealt with."""
        async with cluster.client() as store:
            await fill(store, "log", 5)
            first = await store.consumer("billing", "log", save_every_s=0)
            await first.start()
            assert [int(e.value) for e in (await first.read(2)).records] == [1]
            assert [int(e.value) for e in (await first.read(2)).records] == [2]
            # It dies here: 1 was dealt with, for the next was asked for; 2 was not.
            await asyncio.sleep(1)
            async with await store.consumer("billing", "log") as consumer:
                assert await drained(consumer) == {"/log": [2, 3, 4, 5]}

    @as_scenario(simulate)
    async def test_positions_are_saved_now_and_then_or_only_when_told(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 9)
            often = await store.consumer("often", "log", save_every_s=2)
            never = await store.consumer("never", "log", save_every_s=None)
            for consumer in (often, never):
                await consumer.start()
                await consumer.read()
                await asyncio.sleep(3)
                await consumer.read()
            assert (await store.cursors.list("often"))[0].positions == {"/log": make_lsn(1, 2)}
            assert (await store.cursors.list("never"))[0].positions == {}
            assert await never.save() == {"/log": make_lsn(1, 3)}
            assert (await store.cursors.list("never"))[0].positions == {"/log": make_lsn(1, 3)}
            await never.read()
            await never.close(save=False)
            assert (await store.cursors.list("never"))[0].positions == {"/log": make_lsn(1, 3)}

    def test_of_two_programs_that_claim_the_same_records_one_gets_them(self) -> None:
        simulate(two_programs_claim_the_same_records)
        with planted(find_bug("claims-are-repeats")), pytest.raises(pytest.fail.Exception):
            simulate(two_programs_claim_the_same_records)

    def test_a_claim_is_told_though_others_went_on_before_its_second_try(self) -> None:
        simulate(another_goes_on_before_a_second_try)
        with planted(find_bug("claims-are-forgotten")), pytest.raises(Fenced):
            simulate(another_goes_on_before_a_second_try)

    def test_a_claim_that_was_not_answered_is_told_when_it_is_made_again(self) -> None:
        simulate(a_claim_is_made_again_that_was_not_answered)
        with planted(find_bug("claims-begin-anew")), pytest.raises(Fenced):
            simulate(a_claim_is_made_again_that_was_not_answered)

    @as_scenario(simulate)
    async def test_cursors_without_a_reader(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 9)
            at = [make_lsn(1, n) for n in range(10)]
            assert await store.cursors.save("job", {"log": at[4]}) == {"/log": at[4]}
            with pytest.raises(Rejected, match="takes a reset"):
                await store.cursors.save("job", {"log": at[3]})
            with pytest.raises(Fenced, match="another save came in between"):
                await store.cursors.save("job", {"log": at[6]}, {"log": at[3]})
            await store.cursors.save("job", {"log": at[6]}, {"log": at[4]})
            await store.cursors.save("job", {"log": at[2]}, reset=True)
            async with await store.consumer("job", "log") as consumer:
                assert await drained(consumer) == {"/log": [*range(2, 10)]}
            with pytest.raises(BadSetting, match="names no consumer"):
                await store.cursors.save("a/b", {"log": at[1]})


class TestMembers:
    @as_scenario(simulate)
    async def test_two_members_share_and_one_takes_over(self, cluster: ClusterAtHand) -> None:
        logs = ["a", "b", "c", "d"]
        async with cluster.client() as one, cluster.client() as two:
            for log in logs:
                await fill(one, log, 3)
            first = await one.consumer("group", *logs, member="m1")
            await first.start()
            assert len(first.logs) == 4
            seen = await drained(first)
            assert seen == {f"/{log}": [1, 2, 3] for log in logs}
            second = await two.consumer("group", *logs, member="m2")
            await second.start()
            assert second.logs == (), "the other one has not let go of any"
            seen_twice = asyncio.create_task(drained(second, MEMBER_TTL_S))
            await drained(first, MEMBER_TTL_S)
            assert await seen_twice == {}
            assert {*first.logs, *second.logs} == {f"/{log}" for log in logs}
            assert len(first.logs) == 2
            for log in logs:
                await fill(one, log, 1, 4)
            got = {**await drained(first), **await drained(second)}
            assert all(numbers[-1] == 4 for numbers in got.values())
            assert len(got) == 4
            await second.close()
            for log in logs:
                await fill(one, log, 1, 5)
            assert await drained(first, MEMBER_TTL_S) == {f"/{log}": [5] for log in logs}
            await first.close()
            (group,) = await one.cursors.list("group")
            assert (group.members, group.owners) == ({}, {})
            assert set(group.positions.values()) == {make_lsn(1, 6)}

    @as_scenario(simulate)
    async def test_a_member_that_was_away_too_long_is_fenced(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as one, cluster.client() as two:
            await fill(one, "log", 3)
            first = await one.consumer("group", "log", member="m1")
            await first.start()
            await first.read(1)
            first._beating.cancel()  # its process stands still
            await asyncio.sleep(MEMBER_TTL_S + 1)
            second = await two.consumer("group", "log", member="m2")
            await second.start()
            assert await drained(second) == {"/log": [1, 2, 3]}
            await second.save()
            with pytest.raises(Fenced, match="is read by m2"):
                await first.save()
            await first.close()
            assert (await two.cursors.list("group"))[0].positions == {"/log": make_lsn(1, 4)}
            await second.close()

    @as_scenario(simulate)
    async def test_a_join_gives_nothing_out_twice(self, cluster: ClusterAtHand) -> None:
        """One reads and saves nothing by itself; another joins, one leaves, one comes back."""
        logs = ["a", "b", "c"]
        found: dict[str, list[int]] = {}
        async with cluster.client() as store:

            async def take_part(member: str, from_s: float, until_s: float) -> None:
                loop = asyncio.get_running_loop()
                await asyncio.sleep(from_s)
                consumer = await store.consumer("group", *logs, member=member, save_every_s=None)
                async with consumer:
                    while loop.time() < until_s:
                        portion = await consumer.read(timeout_s=0.3)
                        if portion:
                            found.setdefault(portion.log, []).extend(
                                int(each.value) for each in portion.records
                            )

            async def append() -> None:
                for number in range(1, 121):
                    for log in logs:
                        await store.append(log, b"%d" % number)
                    await asyncio.sleep(0.5)

            now = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(append())
                tasks.create_task(take_part("m1", 0, now + 90))
                tasks.create_task(take_part("m2", 1, now + 30))
                tasks.create_task(take_part("m3", 12, now + 50))
                tasks.create_task(take_part("m2", 40, now + 90))
            assert found == {f"/{log}": [*range(1, 121)] for log in logs}

    @as_scenario(simulate)
    async def test_a_slow_loop_lets_go_of_a_log_in_the_middle_of_a_block(
        self, cluster: ClusterAtHand
    ) -> None:
        """It came to its members only behind the last record of a block: after a minute here. Both
        members got the rest of the block."""
        found: dict[str, list[int]] = {"/a": [], "/b": []}
        by: dict[str, set[str]] = {"m1": set(), "m2": set()}
        async with cluster.client() as store:
            for log in ("a", "b"):
                await store.append_many(log, [b"%d" % number for number in range(60)])

            async def take_part(member: str, from_s: float) -> None:
                await asyncio.sleep(from_s)
                consumer = await store.consumer("group", "a", "b", member=member)
                async with consumer:
                    async for log, item in consumer:
                        if isinstance(item, Record):
                            found[log].append(int(item.value))
                            by[member].add(log)
                            await asyncio.sleep(1.0)

            members = [
                asyncio.create_task(take_part("m1", 0)),
                asyncio.create_task(take_part("m2", 5)),
            ]
            await asyncio.sleep(150)
            for member in members:
                member.cancel()
            await asyncio.wait(members)
        assert found == {"/a": [*range(60)], "/b": [*range(60)]}
        assert len(by["m2"]) == 1

    @as_scenario(simulate)
    async def test_a_log_that_came_back_is_begun_anew(self, cluster: ClusterAtHand) -> None:
        """It went to another member and back between two beats of this one."""
        async with cluster.client() as one, cluster.client() as two:
            await fill(one, "log", 9)
            first = await one.consumer("group", "log", member="m1", save_every_s=None)
            await first.start()
            assert [int(e.value) for e in (await first.read()).records] == [1]
            first._beating.cancel()  # it stands still for a while
            await asyncio.sleep(MEMBER_TTL_S + 1)
            async with await two.consumer("group", "log", member="m2") as second:
                for _ in range(5):
                    await second.read()
            reply = await one._ask(JoinConsumer("group", "m3", ["1"], 1000))
            await one._ask(LeaveConsumer("group", "m3", reply.generation))
            again = await first._ask(JoinConsumer("group", "m1", ["/log"], 15000))
            first._learn(again)
            assert await drained(first) == {"/log": [6, 7, 8, 9]}
            assert await first.save() == {"/log": make_lsn(1, 10)}
            await first.close()

    @as_scenario(simulate)
    async def test_a_consumer_without_members_goes_on_where_the_last_member_was_killed(
        self, cluster: ClusterAtHand
    ) -> None:
        """Its saves were refused for good, as those of a stranger."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            await store._ask(JoinConsumer("group", "killed", ["1"], round(MEMBER_TTL_S * 1000)))
            async with store.consumer("group", "log", save_every_s=None) as early:
                assert await drained(early) == {"/log": [1, 2, 3]}
                with pytest.raises(Fenced, match="is read by killed"):
                    await early.save()
                await asyncio.sleep(MEMBER_TTL_S)
                assert await early.save() == {"/log": make_lsn(1, 4)}

    @as_scenario(simulate)
    async def test_two_consumers_of_one_name_without_members(self, cluster: ClusterAtHand) -> None:
        """The slower one is fenced where the other one is further, and saves its other logs."""
        async with cluster.client() as store:
            await fill(store, "a", 5)
            await fill(store, "b", 5)
            slow = await store.consumer("c", "a", "b", save_every_s=0)
            quick = await store.consumer("c", "a", save_every_s=None)
            async with slow, quick:
                await drained(quick)
                await quick.save()
                for _ in range(4):
                    await slow.read(timeout_s=1)
                with pytest.raises(Fenced, match="another consumer c is further"):
                    await slow.save()
                (group,) = await store.cursors.list("c")
                assert group.positions["/a"] == make_lsn(1, 6)
                assert make_lsn(1, 1) < group.positions["/b"] < make_lsn(1, 6)
                await slow.read(timeout_s=1)

    @as_scenario(simulate)
    async def test_a_reset_to_0_is_to_the_oldest_record(self, cluster: ClusterAtHand) -> None:
        """A consumer that starts at the tail took it for no position, and passed over the log."""
        async with cluster.client() as store:
            await fill(store, "log", 9)
            await store.cursors.save("billing", {"log": make_lsn(1, 10)})
            await store.cursors.save("billing", {"log": 0}, reset=True)
            async with await store.consumer("billing", "log", start="tail") as consumer:
                assert await drained(consumer) == {"/log": [*range(1, 10)]}
            (group,) = await store.cursors.list("billing")
            assert group.positions["/log"] == make_lsn(1, 10)

    @as_scenario(simulate)
    async def test_a_reset_has_a_member_begin_again_from_there(
        self, cluster: ClusterAtHand
    ) -> None:
        """It read on, and its next save undid the reset."""
        async with cluster.client() as store:
            await fill(store, "log", 9)
            consumer = await store.consumer("billing", "log", "log2", member="one")
            async with consumer:
                assert await drained(consumer) == {"/log": [*range(1, 10)]}
                await consumer.save()
                await store.cursors.save("billing", {"log": make_lsn(1, 8)}, reset=True)
                await fill(store, "log", 1, 10)
                await consumer.read(timeout_s=1)
                with pytest.raises(Fenced):
                    await consumer.save()
                assert await drained(consumer, MEMBER_TTL_S) == {"/log": [8, 9, 10]}
            (group,) = await store.cursors.list("billing")
            assert group.positions["/log"] == make_lsn(1, 11)

    @as_scenario(simulate)
    async def test_a_slow_loop_saves_and_hears_of_a_reset_in_the_middle_of_a_block(
        self, cluster: ClusterAtHand
    ) -> None:
        """It did neither before the end of the block, a minute later."""
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % number for number in range(60)])
            for name, member in (("alone", ""), ("group", "m1")):
                seen: list[int] = []
                async with await store.consumer(name, "log", member=member) as consumer:
                    async for _, item in consumer:
                        assert isinstance(item, Record)
                        seen.append(int(item.value))
                        if len(seen) == 20:
                            (group,) = await store.cursors.list(name)
                            assert group.positions["/log"] >= make_lsn(1, 13)
                            await store.cursors.save(name, {"log": make_lsn(1, 5)}, reset=True)
                        if len(seen) == 32:
                            break
                        await asyncio.sleep(1.0)
                again = seen.index(4, 5)
                assert seen == [*range(again), *range(4, 36 - again)]
                assert again <= 27

    @pytest.mark.parametrize("member", ["one", ""])
    @as_scenario(simulate)
    async def test_a_reset_to_where_it_was_saved_takes_back_what_was_read_since(
        self, cluster: ClusterAtHand, *, member: str
    ) -> None:
        """It was answered as done, and the consumer's next save passed what it had read."""
        async with cluster.client() as store:
            await fill(store, "log", 9)
            for at, first in ((0, 1), (make_lsn(1, 3), 3)):
                async with await store.consumer("billing", "log", member=member) as consumer:
                    assert await consumer.read(timeout_s=1)
                    await store.cursors.save("billing", {"log": at}, reset=True)
                    with pytest.raises(Fenced):
                        await consumer.save()
                    found = (await drained(consumer, MEMBER_TTL_S))["/log"]
                    assert found[-(10 - first) :] == [*range(first, 10)]
                await store.cursors.save("billing", {"log": make_lsn(1, 3)}, reset=True)


class TestWithoutMembers:
    """Nobody tells a consumer without members of a reset: it finds it out when it saves."""

    def test_a_reset_is_not_undone_and_it_begins_again_from_there(self) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await fill(store, "log", 9)
                await fill(store, "log2", 3)
                async with await store.consumer("billing", "log", "log2") as consumer:
                    first = await drained(consumer)
                    assert first == {"/log": [*range(1, 10)], "/log2": [1, 2, 3]}
                    await consumer.save()
                    await store.cursors.save("billing", {"log": make_lsn(1, 8)}, reset=True)
                    await fill(store, "log", 1, 10)
                    await fill(store, "log2", 1, 4)
                    await consumer.read(timeout_s=1)
                    await consumer.read(timeout_s=1)
                    with pytest.raises(Fenced, match="was reset since"):
                        await consumer.save()
                    assert await drained(consumer) == {"/log": [8, 9, 10]}
                (group,) = await store.cursors.list("billing")
                assert group.positions == {"/log": make_lsn(1, 11), "/log2": make_lsn(1, 5)}

        simulate(scenario)
        with planted(find_bug("resets-unseen")), pytest.raises(pytest.fail.Exception):
            simulate(scenario)

    @as_scenario(simulate)
    async def test_one_that_has_nothing_to_save_finds_it_out_too(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "log", 9)
            async with await store.consumer("billing", "log", save_every_s=5.0) as consumer:
                assert await drained(consumer) == {"/log": [*range(1, 10)]}
                await consumer.save()
                await store.cursors.save("billing", {"log": make_lsn(1, 8)}, reset=True)
                assert await drained(consumer, 12.0) == {"/log": [8, 9]}

    @as_scenario(simulate)
    async def test_a_save_that_is_done_late_undoes_no_reset(self, cluster: ClusterAtHand) -> None:
        """Also where the position stands as it did before the save, so that it looks expected."""
        async with cluster.client() as store:
            await fill(store, "log", 9)
            cursors, ask = store.cursors, store._ask
            asked: list[Call] = []

            async def noting(message: Call) -> Reply:
                asked.append(message)
                return await ask(message)

            cursors._ask = noting
            two, nine = make_lsn(1, 2), make_lsn(1, 9)
            await cursors.save("billing", {"log": two})
            late = []
            await cursors.save("billing", {"log": nine}, {"log": two})
            late.append(asked[-1])
            await cursors.save("billing", {"log": two}, reset=True)
            late.append(asked[-1])
            await cursors.save("billing", {"log": nine}, reset=True)
            late.append(asked[-1])
            assert await ask(late[-1]) is not None, "its second try"
            await cursors.save("billing", {"log": two}, reset=True)
            for each in late:
                with pytest.raises(Fenced, match=r"was reset since|came in between"):
                    await ask(each)
            (group,) = await cursors.list("billing")
            assert group.positions == {"/log": two}


class TestDealtWith:
    """What an application has asked on from is dealt with, and nothing else."""

    def run(self, how) -> list[int]:
        """What the next run is given, of 100 records in one block, after `how` with the first."""
        found: list[int] = []

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append_many("log", [b"%d" % n for n in range(1, 101)])
                await how(store)
                async with await store.consumer("c", "log") as consumer:
                    found.extend((await drained(consumer)).get("/log", ()))

        simulate(scenario)
        return found

    def test_leaving_the_loop(self) -> None:
        async def how(store: Store) -> None:
            async with await store.consumer("c", "log") as consumer:
                async for _, item in consumer:
                    if int(item.value) == 5:
                        break

        assert self.run(how) == [*range(5, 101)]

    def test_saving_in_the_loop_and_a_kill(self) -> None:
        async def how(store: Store) -> None:
            consumer = await store.consumer("c", "log", save_every_s=None)
            await consumer.start()
            async for _, item in consumer:
                await consumer.save()
                if int(item.value) == 5:
                    return  # it is killed here

        assert self.run(how) == [*range(5, 101)]

    def test_an_exception_in_the_loop(self) -> None:
        async def how(store: Store) -> None:
            with contextlib.suppress(ZeroDivisionError):
                async with await store.consumer("c", "log", save_every_s=0) as consumer:
                    async for _, item in consumer:
                        if int(item.value) == 50:
                            raise ZeroDivisionError

        assert self.run(how) == [*range(1, 101)], "the position as it was saved last"

    def test_portions(self) -> None:
        async def how(store: Store) -> None:
            async with await store.consumer("c", "log") as consumer:
                await consumer.read(30)
                await consumer.read(30)

        assert self.run(how) == [*range(61, 101)]

    def test_a_loop_behind_a_loop(self) -> None:
        async def how(store: Store) -> None:
            async with await store.consumer("c", "log") as consumer:
                async for _, item in consumer:
                    if int(item.value) == 5:
                        break
                async for _, item in consumer:
                    if int(item.value) == 8:
                        break
                assert [int(e.value) for e in (await consumer.read(2)).records] == [9, 10]

        assert self.run(how) == [*range(11, 101)]


class TestLag:
    @as_scenario(simulate)
    async def test_by_consumer_and_log(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "a", 5)
            await fill(store, "b", 2)
            await store.cursors.save("billing", {"a": make_lsn(1, 4)})
            (behind,) = (await store.cursors.lag("billing")).values()
            assert isinstance(behind, Lag)
            assert (behind.records, behind.tail) == (2, make_lsn(1, 5))
            found = await store.cursors.lag("billing", "a", "/b", "gone")
            assert [*found] == ["/a", "/b", "gone"]
            assert str(found["/b"]) == "2", "it stands at the oldest record"
            assert isinstance(found["gone"], UnknownLog)
            assert await store.cursors.lag("nobody") == {}


async def two_members(
    store: Store, other: Store, logs: Sequence[str]
) -> tuple[Consumer, Consumer, list[str]]:
    """Members that share `logs`, all of them read, and those of the second one."""
    for log in logs:
        await fill(store, log, 3)
    first = await store.consumer("group", *logs, member="m1", save_every_s=None)
    second = await other.consumer("group", *logs, member="m2", save_every_s=None)
    await first.start()
    await second.start()
    while len(second.logs) < len(logs) // 2:
        await first.read(timeout_s=0.5)
        await second.read(timeout_s=0.5)
    await drained(first)
    await drained(second)
    return first, second, [*second.logs]


class TestInherited:
    @as_scenario(simulate)
    async def test_one_that_was_deleted_is_told_once_and_holds_up_no_other(
        self, cluster: ClusterAtHand
    ) -> None:
        """Every read raised it, and the other logs that fell to the member were never read."""
        async with cluster.client() as store, cluster.client() as other:
            first, second, theirs = await two_members(store, other, ["a", "b", "c", "d"])
            await second.close()
            await store.log_tree.delete(theirs[0])
            await fill(store, theirs[1], 2, 4)
            with pytest.raises(UnknownLog, match=theirs[0]):
                await drained(first, 2 * MEMBER_TTL_S)
            assert await drained(first) == {theirs[1]: [4, 5]}
            positions = await first.save()
            assert positions[theirs[1]] == make_lsn(1, 6)
            assert theirs[0] not in positions
            await first.close()

    @as_scenario(simulate)
    async def test_one_that_cannot_be_begun_is_begun_later_and_the_others_are_saved(
        self, cluster: ClusterAtHand
    ) -> None:
        """Saves of the others were refused, as of a generation before that of the change."""
        async with cluster.client() as store, cluster.client() as other:
            first, second, theirs = await two_members(store, other, ["a", "b", "c", "d"])
            reading = first._reader._open

            async def refuse(log: AnyLog, *where: Any) -> Any:
                if log == theirs[0]:
                    raise Unreachable("no sequencer")
                return await reading(log, *where)

            first._reader._open = refuse
            await second.close()
            for log in theirs:
                await fill(store, log, 2, 4)
            assert await drained(first, 2 * MEMBER_TTL_S) == {theirs[1]: [4, 5]}
            assert first.unhealthy == {theirs[0]: "no sequencer"}
            await first.save()
            (group,) = await store.cursors.list("group")
            assert group.positions[theirs[1]] == make_lsn(1, 6)
            first._reader._open = reading
            assert await drained(first, 2 * BEGIN_AGAIN_S) == {theirs[0]: [4, 5]}
            assert first.unhealthy == {}
            await first.close()

    @as_scenario(simulate)
    async def test_two_calls_at_once_begin_it_once(self, cluster: ClusterAtHand) -> None:
        """The second one began it again where it was saved, behind what the first had given."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "log", 9)
            first = await other.consumer("billing", "log", member="first")
            await first.start()
            consumer = await store.consumer("billing", "log", member="second")
            async with consumer:
                right, delays_s = consumer._reader._open, [3.0, 0.2]

                async def late(*asked: Any) -> ReadStream:
                    await asyncio.sleep(delays_s.pop())
                    return await right(*asked)

                consumer._reader._open = late
                found: list[int] = []

                async def work() -> None:
                    while portion := await consumer.read(1, timeout_s=10):
                        found.extend(int(each.value) for each in portion.records)
                        await asyncio.sleep(0.5)

                working = [asyncio.create_task(work()) for _ in range(2)]
                await asyncio.sleep(1)
                await first.close()
                await asyncio.gather(*working)
                assert found == [*range(1, 10)]


class TestSaves:
    @as_scenario(simulate)
    async def test_one_that_a_later_one_of_the_same_consumer_passes_is_no_fence(
        self, cluster: ClusterAtHand
    ) -> None:
        """It was told that another consumer of its name is further."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            async with store.consumer("c", "log", save_every_s=None) as consumer:
                ask = consumer._ask
                pauses = iter([1.0, 0.0])

                async def late(message: Call) -> Reply:
                    # The first frame is on its way for longer than the second.
                    await asyncio.sleep(next(pauses))
                    return await ask(message)

                consumer._ask = late
                await consumer.read(1)
                first = asyncio.create_task(consumer.save())
                await asyncio.sleep(0.1)
                await consumer.read(1)
                assert await consumer.save() == {"/log": make_lsn(1, 3)}
                assert await first == {"/log": make_lsn(1, 2)}
                consumer._ask = ask


class TestStart:
    @as_scenario(simulate)
    async def test_one_that_cannot_begin_a_log_says_so_and_may_be_started_anew(
        self, cluster: ClusterAtHand
    ) -> None:
        """Its other log was read, and this one never, with no error."""
        async with cluster.client(timeout_s=2.0) as store:
            for member in ("", "m1"):
                await fill(store, "a", 1)
                await fill(store, "b", 1)
                consumer = await store.consumer(f"c{member}", "a", "b", member=member, start="tail")
                reading = consumer._reader._open

                async def refuse(log: str, *where: Any) -> Any:
                    if log == "/b":
                        raise Unreachable("no sequencer")
                    return await reading(log, *where)  # noqa: B023 — used up in this turn

                consumer._reader._open = refuse
                with pytest.raises(Unreachable, match="no sequencer"):
                    await consumer.start()
                assert consumer.logs == ()
                assert (await store.cursors.list(f"c{member}"))[0].members == {}
                consumer._reader._open = reading
                async with consumer:
                    assert consumer.logs == ("/a", "/b")
                    await fill(store, "b", 1, 2)
                    assert await drained(consumer) == {"/b": [2]}

    @as_scenario(simulate)
    async def test_one_that_was_not_started_says_so(self, cluster: ClusterAtHand) -> None:
        """Its reads waited for ever."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            consumer = await store.consumer("c", "log")
            with pytest.raises(Rejected, match="was not started"):
                await consumer.read()
            async with consumer:
                assert await drained(consumer) == {"/log": [1, 2, 3]}

    @as_scenario(simulate)
    async def test_one_that_began_at_the_tail_goes_on_there_after_a_crash(
        self, cluster: ClusterAtHand
    ) -> None:
        """It crashes before its first save; the next one does not begin at a later tail."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            for name, member in (("alone", ""), ("group", "m1")):
                first = await store.consumer(name, "log", member=member, start="tail")
                await first.start()
            for number in range(10, 20):
                await store.append("log", b"%d" % number)
            await asyncio.sleep(MEMBER_TTL_S + 1)
            for name, member in (("alone", ""), ("group", "m1")):
                again = await store.consumer(name, "log", member=member, start="tail")
                async with again:
                    assert await drained(again) == {"/log": [*range(10, 20)]}
                del again
            first.name  # noqa: B018 — it is kept until here


class TestEnds:
    @as_scenario(simulate)
    async def test_a_close_that_is_cancelled_ends_at_once_and_the_member_leaves(
        self, cluster: ClusterAtHand
    ) -> None:
        """It waited for the answer to its leave, for up to the client's timeout."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            consumer = await store.consumer("job", "log", member="m1")
            await consumer.start()
            await consumer.read()
            right, leaves = consumer._ask, asyncio.Event()

            async def unanswered(call: Call) -> Reply:
                await leaves.wait()
                return await right(call)

            consumer._ask = unanswered
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await consumer.close()
            assert asyncio.get_running_loop().time() < began + 1
            leaves.set()
            await asyncio.sleep(1)
            (group,) = await store.cursors.list("job")
            assert not group.members

    @as_scenario(simulate)
    async def test_one_that_was_closed_saves_nothing_and_says_so(
        self, cluster: ClusterAtHand
    ) -> None:
        """`save` told of no positions, as if all was saved."""
        async with cluster.client() as store:
            await fill(store, "log", 3)
            consumer = await store.consumer("job", "log")
            await consumer.start()
            await consumer.read()
            await consumer.close(save=False)
            with pytest.raises(Closed, match="this consumer was closed"):
                await consumer.save()

    @as_scenario(simulate)
    async def test_a_read_that_waits_ends_when_the_consumer_or_the_store_is_closed(
        self, cluster: ClusterAtHand
    ) -> None:
        """Whether it has logs to read or not; a later one is refused."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "log", 1)
            first = await other.consumer("group", "log", member="m1")
            await first.start()
            for ended in ("consumer", "store"):
                one = await store.consumer("alone", "log", start="tail")
                successor = await store.consumer("group", "log", member=f"m-{ended}")
                none = await store.consumer("none")
                consumers = [one, successor, none]
                for consumer in consumers:
                    await consumer.start()
                assert successor.logs == ()
                reads = [asyncio.create_task(each.read()) for each in consumers]
                await asyncio.sleep(0.5)
                if ended == "store":
                    await store.close()
                else:
                    for consumer in consumers:
                        await consumer.close()
                done, _ = await asyncio.wait(reads, timeout=0.5)
                assert [type(each.exception()) for each in done] == [Closed] * 3
                with pytest.raises(Closed):
                    await successor.read()

    @as_scenario(simulate)
    async def test_a_member_that_was_let_go_of_leaves(self, cluster: ClusterAtHand) -> None:
        """Nothing refers to it: its logs go to the others, and its streams are closed."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "log", 3)
            first = await store.consumer("group", "log", member="m1")
            await first.start()
            await first.read()
            second = await other.consumer("group", "log", member="m2")
            await second.start()
            assert second.logs == ()
            del first
            gc.collect()
            within_s = MEMBER_TTL_S / 2  # it hears of it by its next beat
            assert await drained(second, within_s) == {"/log": [1, 2, 3]}
            assert not store._streams.by_number
            await second.close()

    @as_scenario(simulate)
    async def test_a_store_with_a_member_closes_at_once(self, cluster: ClusterAtHand) -> None:
        """It waited for the member's next beat."""
        loop = asyncio.get_running_loop()
        async with cluster.client() as store:
            await fill(store, "log", 1)
            consumer = await store.consumer("group", "log", member="m1")
            await consumer.start()
            closes = loop.time()
        assert loop.time() - closes < 0.5
        assert consumer.logs == ()


def test_a_save_beside_a_read_does_not_undo_a_reset() -> None:
    """Its positions were looked at before the read began the log anew."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as admin:
            await fill(store, "a", 5)
            await fill(store, "b", 5)
            async with store.consumer("billing", "a", "b", save_every_s=None) as consumer:
                await drained(consumer)
                await admin.cursors.save("billing", {"b": make_lsn(1, 1)}, reset=True)
                right, goes_on, slow = consumer._ask, asyncio.Event(), asyncio.Event()

                async def ask(call: Call) -> Reply:
                    assert isinstance(call, SaveCursors)
                    if len(call.positions) == 1 and not slow.is_set():
                        slow.set()  # `a` alone, after both were refused
                        await goes_on.wait()
                    elif not call.positions and slow.is_set() and not goes_on.is_set():
                        raise Unreachable("the read does not hear where the consumer stands")
                    return await right(call)

                consumer._ask = ask
                saving = asyncio.create_task(consumer.save())
                await slow.wait()
                portion = await consumer.read()
                assert [each.value for each in portion.records] == [b"1"]
                goes_on.set()
                with pytest.raises(Fenced, match="was reset since"):
                    await saving
                (group,) = await admin.cursors.list("billing")
                assert group.positions == {"/a": make_lsn(1, 6), "/b": make_lsn(1, 1)}
                assert (await consumer.save())["/b"] == make_lsn(1, 2)

    simulate(scenario)
    with planted(find_bug("saves-other-reading")), pytest.raises(pytest.fail.Exception):
        simulate(scenario)
