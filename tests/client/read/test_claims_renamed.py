"""A compare-and-set that got no answer means the same logs when it is made again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.find.log_info import AnyLog
from cordwood.client.read import cursors
from cordwood.client.store import Store
from cordwood.errors import Fenced, Overloaded, Retryable, Unreachable
from cordwood.layout.message_consumers import ConsumerReply, SaveCursors
from cordwood.sim.planted import find_bug, planted


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_claim_goes_to_its_log_when_it_is_made_again(is_planted: bool, is_stored: bool) -> None:
    """It moved the position in the log that had taken the name, past records that nobody read."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3.0) as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")
            old = (await store.log("tasks")).log_id
            nodes = [cluster.machine(number).name for number in cluster.numbers]
            right = store.cursors._save

            async def cut_off(call):
                if is_stored:
                    cluster.simulation.network.cut(nodes, ["client-1"])
                else:
                    cluster.simulation.network.partition(["client-1"], nodes)
                return await right(call)

            store.cursors._save = cut_off
            with pytest.raises(Retryable):
                await store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})
            store.cursors._save = right
            await operator.log_tree.rename("tasks", "old")
            new = (await operator.create_log("tasks")).log_id
            await operator.append("tasks", b"new")
            cluster.simulation.network.mend_all()
            await asyncio.sleep(7)
            await store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})
            assert (await operator.cursors.by_number("c")).positions == {str(old): last + 1}
            # The next call is another one: it means the log that has the name now.
            with pytest.raises(Fenced):
                await store.cursors.save("c", {"tasks": last + 2}, {"tasks": last + 1})
            await store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})
            kept = (await operator.cursors.by_number("c")).positions
            assert kept == {str(old): last + 1, str(new): last + 1}

    bug = planted(find_bug("claims-by-new-name")) if is_planted else nullcontext()
    with bug, pytest.raises(AssertionError) if is_planted else nullcontext():
        simulate(scenario)


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("done", [0, 1])
def test_one_of_two_equal_claims_has_the_records(done: int, *, is_planted: bool) -> None:
    """The store remembered the mark of the claim that ended last. If the other one was done, both
    were refused when they were made again."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            first, second = await store.append("tasks", b"1"), await store.append("tasks", b"2")
            await store.cursors.save("c", {"tasks": first})
            right = store.cursors._save
            calls: list[SaveCursors] = []

            async def unanswered(call: SaveCursors) -> ConsumerReply:
                number = len(calls)
                calls.append(call)
                if number == done:
                    await right(call)
                await asyncio.sleep(1 if number == done else 2)
                raise Unreachable("the answer was lost")

            async def claim_twice() -> list[object]:
                save = store.cursors.save
                claims = (save("c", {"tasks": second}, {"tasks": first}) for _ in range(2))
                return list(await asyncio.gather(*claims, return_exceptions=True))

            store.cursors._save = unanswered  # type: ignore[method-assign]
            assert {*map(type, await claim_twice())} == {Unreachable}
            assert len({call.mark for call in calls}) == 2
            store.cursors._save = right  # type: ignore[method-assign]
            ended = await claim_twice()
            assert sorted(type(each).__name__ for each in ended) == ["Fenced", "dict"]

    bug = planted(find_bug("claims-last-mark")) if is_planted else nullcontext()
    with bug, pytest.raises(AssertionError) if is_planted else nullcontext():
        simulate(scenario)


def bug(name: str) -> AbstractContextManager[object]:
    return planted(find_bug(name)) if name else nullcontext()


def wrong(name: str) -> AbstractContextManager[object]:
    return pytest.raises(pytest.fail.Exception) if name else nullcontext()


def ways_of_saves(store: Store) -> tuple[Any, Callable[[SaveCursors], Awaitable[ConsumerReply]]]:
    """The way as it is, and one on which each answer is lost."""
    right = store.cursors._save

    async def unanswered(call: SaveCursors) -> ConsumerReply:
        with suppress(Fenced):
            await right(call)
        raise Unreachable("the answer was lost")

    return right, unanswered


@pytest.mark.parametrize("bug_name", ["", "claims-of-one"])
@pytest.mark.parametrize("at_once", [False, True])
def test_each_of_equal_claims_means_its_log_when_it_is_made_again(
    bug_name: str, *, at_once: bool
) -> None:
    """The second repeat moved the position in the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")
            old = (await store.log("tasks")).log_id
            right, unanswered = ways_of_saves(store)
            go_on = asyncio.Event()

            async def late(call: SaveCursors) -> ConsumerReply:
                store.cursors._save = right  # type: ignore[method-assign]
                await go_on.wait()
                return await right(call)  # type: ignore[no-any-return]

            def claim() -> Awaitable[object]:
                return store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})

            store.cursors._save = unanswered  # type: ignore[method-assign]
            ended = await asyncio.gather(claim(), claim(), return_exceptions=True)
            assert [*map(type, ended)] == [Unreachable, Unreachable]
            store.cursors._save = late  # type: ignore[method-assign]
            await operator.log_tree.rename("tasks", "old")
            await operator.create_log("tasks")
            await operator.append("tasks", b"new")
            first = asyncio.ensure_future(claim())
            await asyncio.sleep(0.5)
            if not at_once:
                go_on.set()
                await first
            with pytest.raises(Fenced):
                await claim()
            go_on.set()
            await first
            assert (await operator.cursors.by_number("c")).positions == {str(old): last + 1}

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.parametrize(
    ("second", "bug_name"),
    [("/tasks", ""), ("/tasks", "claims-as-spelt"), (1, ""), (1, "claims-of-one-text")],
)
def test_equal_claims_mean_their_log_however_they_name_it(second: AnyLog, bug_name: str) -> None:
    """The repeat in the first spelling moved the position in the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")

            def claim(log: AnyLog) -> Awaitable[object]:
                return store.cursors.save("c", {log: last + 1}, {log: 0})  # type: ignore[misc, dict-item]

            right, unanswered = ways_of_saves(store)
            calls: list[SaveCursors] = []

            async def first_comes_last(call: SaveCursors) -> ConsumerReply:
                calls.append(call)
                await asyncio.sleep(3 - len(calls))
                return await unanswered(call)

            store.cursors._save = first_comes_last  # type: ignore[method-assign]
            logs: list[AnyLog] = ["tasks", second]
            ended = await asyncio.gather(*map(claim, logs), return_exceptions=True)
            assert {*map(type, ended)} == {Unreachable}
            store.cursors._save = right  # type: ignore[method-assign]
            await operator.log_tree.rename("tasks", "old")
            await operator.append("tasks", b"new")
            for log in logs:
                with suppress(Fenced):
                    await claim(log)
            if (await operator.cursors.by_number("c")).positions != {"1": last + 1}:
                pytest.fail("a claim moved the position in another log")
            # All repeats were made: the next call is a new one.
            await claim("tasks")
            assert len((await operator.cursors.by_number("c")).positions) == 2

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.parametrize(
    ("second", "bug_name"),
    [
        ("tasks", ""),
        (1, ""),
        ("tasks", "claims-of-two-callers"),
        (1, "claims-of-two-callers"),
        (1, "claims-taken-away"),
    ],
)
def test_equal_claims_one_after_another_without_an_answer_each_mean_their_log(
    second: AnyLog, bug_name: str
) -> None:
    """The second claim was taken for the repeat of the first. Of their repeats, the last one moved
    the position in the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")

            def claim(log: AnyLog) -> Awaitable[object]:
                return store.cursors.save("c", {log: last + 1}, {log: 0})  # type: ignore[misc, dict-item]

            right, unanswered = ways_of_saves(store)
            store.cursors._save = unanswered  # type: ignore[method-assign]
            logs: list[AnyLog] = ["tasks", second]
            for log in logs:
                with pytest.raises(Unreachable):
                    await claim(log)
            store.cursors._save = right  # type: ignore[method-assign]
            await operator.log_tree.rename("tasks", "old")
            await operator.append("tasks", b"new")
            for log in reversed(logs):
                with suppress(Fenced):
                    await claim(log)
            if (await operator.cursors.by_number("c")).positions != {"1": last + 1}:
                pytest.fail("a claim moved the position in another log")
            # All repeats were made: the next call is a new one.
            assert not store.cursors._unanswered
            await claim("tasks")
            assert len((await operator.cursors.by_number("c")).positions) == 2

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.parametrize("bug_name", ["", "claims-taken-away"])
def test_a_claim_is_made_again_while_an_equal_one_is_under_way(bug_name: str) -> None:
    """The other claim had taken what the store remembered: the repeat went by the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")

            def claim() -> Awaitable[object]:
                return store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})

            right, unanswered = ways_of_saves(store)
            go_on = asyncio.Event()

            async def late(call: SaveCursors) -> ConsumerReply:
                store.cursors._save = right  # type: ignore[method-assign]
                await go_on.wait()
                return await right(call)  # type: ignore[no-any-return]

            store.cursors._save = unanswered  # type: ignore[method-assign]
            with pytest.raises(Unreachable):
                await claim()
            store.cursors._save = late  # type: ignore[method-assign]
            first = asyncio.ensure_future(claim())
            await asyncio.sleep(0.5)
            await operator.log_tree.rename("tasks", "old")
            await operator.append("tasks", b"new")
            with pytest.raises(Fenced):
                await claim()
            go_on.set()
            await first
            assert (await operator.cursors.by_number("c")).positions == {"1": last + 1}
            assert not store.cursors._unanswered

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


def test_claims_of_which_it_is_not_known_that_there_are_any_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else consumers that tried twice in an outage would leave no room for new claims for good."""
    monkeypatch.setattr(cursors, "UNANSWERED_MAX", 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            last = await store.append("tasks", b"old")
            right, unanswered = ways_of_saves(store)

            def claim(consumer: str) -> Awaitable[object]:
                return store.cursors.save(consumer, {"tasks": last + 1}, {"tasks": 0})

            for consumer in "abcd":
                store.cursors._save = unanswered  # type: ignore[method-assign]
                for _ in range(3):
                    with pytest.raises(Unreachable):
                        await claim(consumer)
                store.cursors._save = right  # type: ignore[method-assign]
                await claim(consumer)
            assert len(store.cursors._unanswered) == 2

    simulate(scenario)


@pytest.mark.parametrize("bug_name", ["", "claims-evicted"])
def test_no_claim_is_forgotten_if_many_have_no_answer(
    bug_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest were forgotten: their repeats were refused, and nobody had their records."""
    monkeypatch.setattr(cursors, "UNANSWERED_MAX", 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            last = await store.append("tasks", b"old")
            right, unanswered = ways_of_saves(store)

            def claim(consumer: str) -> Awaitable[object]:
                return store.cursors.save(consumer, {"tasks": last + 1}, {"tasks": 0})

            async def claim_all() -> list[object]:
                return list(await asyncio.gather(*map(claim, "abc"), return_exceptions=True))

            store.cursors._save = unanswered  # type: ignore[method-assign]
            assert {*map(type, await claim_all())} == {Unreachable}
            if not bug_name:
                with pytest.raises(Overloaded, match="3 claims of this store"):
                    await claim("d")
                assert len(store.cursors._unanswered) == 3
            store.cursors._save = right  # type: ignore[method-assign]
            if Fenced in map(type, await claim_all()):
                pytest.fail("a claim that was done is refused")
            # Those whose callers looked at positions make room.
            store.cursors._save = unanswered  # type: ignore[method-assign]
            for consumer in "efg":
                with pytest.raises(Unreachable):
                    await claim(consumer)
                await store.cursors.by_number(consumer)

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.parametrize("bug_name", ["", "claims-under-way-evicted"])
def test_no_claim_is_forgotten_for_room_while_it_is_made_again(
    bug_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its repeat was counted for a later, equal claim, which stayed for good: every
    further one meant the log that had had the name."""
    monkeypatch.setattr(cursors, "UNANSWERED_MAX", 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            last = await store.append("tasks", b"old")
            await store.append("others", b"1")
            right, unanswered = ways_of_saves(store)
            go_on = asyncio.Event()

            async def late(call: SaveCursors) -> ConsumerReply:
                store.cursors._save = unanswered  # type: ignore[method-assign]
                await go_on.wait()
                return await right(call)  # type: ignore[no-any-return]

            def claim() -> Awaitable[object]:
                return store.cursors.save("c", {"tasks": last + 1}, {"tasks": 0})

            store.cursors._save = unanswered  # type: ignore[method-assign]
            with pytest.raises(Unreachable):
                await claim()
            store.cursors._save = late  # type: ignore[method-assign]
            repeat = asyncio.ensure_future(claim())
            await asyncio.sleep(0.5)
            await store.cursors.by_number("c")
            for consumer in "de":
                with suppress(Unreachable, Overloaded):
                    await store.cursors.save(consumer, {"others": last + 1}, {"others": 0})
            await store.cursors.by_number("d")
            with pytest.raises(Unreachable):
                await claim()
            store.cursors._save = right  # type: ignore[method-assign]
            go_on.set()
            for ended in (repeat, claim()):
                with suppress(Fenced):
                    await ended
            # All repeats were made: the next call is a new one.
            await operator.log_tree.rename("tasks", "old")
            new = (await operator.create_log("tasks")).log_id
            await operator.append("tasks", b"new")
            with suppress(Fenced):
                await claim()
            if str(new) not in (await operator.cursors.by_number("c")).positions:
                pytest.fail("a claim meant a log that has lost its name")

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("looks", ["by_number", "list", "lag", "save"])
def test_after_a_look_the_same_claim_is_a_new_one(
    looks: str, *, is_deleted: bool, is_planted: bool
) -> None:
    """A later claim of the same record, in a log that was made under the name since, was answered
    with the outcome of the old one. So two callers won one claim."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3.0) as store, cluster.client() as other:
            first, second = await store.append("tasks", b"1"), await store.append("tasks", b"2")
            nodes = [cluster.machine(number).name for number in cluster.numbers]
            await store.cursors.save("c", {"tasks": first})
            right = store.cursors._save

            async def cut_off(call):
                cluster.simulation.network.cut(nodes, ["client-1"])
                return await right(call)

            store.cursors._save = cut_off
            with pytest.raises(Retryable):
                await store.cursors.save("c", {"tasks": second}, {"tasks": first})
            store.cursors._save = right
            cluster.simulation.network.mend_all()
            await asyncio.sleep(20)
            if looks == "save":
                await store.cursors.save("c", {"tasks": second + 1})
            elif looks == "list":
                await store.cursors.list()
            else:
                await getattr(store.cursors, looks)("c")
            if is_deleted:
                await other.log_tree.delete("tasks")
            else:
                await other.log_tree.rename("tasks", "old")
            new = (await other.create_log("tasks")).log_id
            assert [await other.append(new, b"1"), await other.append(new, b"2")] == [first, second]
            await asyncio.sleep(20)
            await other.cursors.save("c", {"tasks": first})
            await other.cursors.save("c", {"tasks": second}, {"tasks": first})
            with pytest.raises(Fenced):
                await store.cursors.save("c", {"tasks": second}, {"tasks": first})

    bug = planted(find_bug("claims-for-good")) if is_planted else nullcontext()
    failure = pytest.raises(pytest.fail.Exception) if is_planted else nullcontext()
    with bug, failure:
        simulate(scenario)
