"""Deletions and renames of logs that had no answer, and are made again: the log may have lost its
name to another one since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.admin import changes_again
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, Fenced, Overloaded, UnknownLog, Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_rights import DeleteLog, RenameLog
from cordwood.sim.planted import find_bug, planted
from cordwood.wire.connection import Connection

CHANGES = ["delete", "rename"]


async def make(store: Store, change: str, log_id: int | None = None, name: str = "a") -> None:
    if change == "delete":
        await store.log_tree.delete(name, log_id)
    else:
        await store.log_tree.rename(f"/{name}", "b", log_id)


async def make_unanswered(
    cluster: ClusterAtHand,
    store: Store,
    change: str,
    *,
    count: int = 1,
    names: Sequence[str] = "a",
    error: type[CordwoodError] = Unreachable,
) -> None:
    """The changes are done, and their answers are lost."""
    nodes = [cluster.machine(n).name for n in cluster.numbers]
    ask_any = store._cluster.ask_any
    here, are_here = 0, asyncio.Event()

    async def cut_first(message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
        nonlocal here
        if isinstance(message, DeleteLog | RenameLog):
            here += 1
            if here == count * len(names):
                cluster.simulation.network.cut(nodes, ["client-1"])
                are_here.set()
            await are_here.wait()
        return await ask_any(message, timeout_s=timeout_s, asked=asked)

    store._cluster.ask_any = cut_first  # type: ignore[method-assign]
    made = [make(store, change, name=name) for name in names for _ in range(count)]
    assert {*map(type, await asyncio.gather(*made, return_exceptions=True))} == {error}
    store._cluster.ask_any = ask_any  # type: ignore[method-assign]
    cluster.simulation.network.mend_all()
    await asyncio.sleep(10)


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_made_again_leaves_alone_a_log_that_took_the_name(
    change: str, *, is_planted: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            await make_unanswered(cluster, store, change)
            if change == "rename":
                await other.log_tree.rename("b", "c")
            made = await other.create_log("a")
            await other.append("a", b"new")
            if is_planted:
                await make(store, change)
                with pytest.raises(UnknownLog):
                    await other.log("a")
                return
            with pytest.raises(UnknownLog, match="a is not log 1 any more: nothing was"):
                await make(store, change)
            assert (await other.log("a")).log_id == made.log_id
            assert await values(other, "a") == [b"new"]
            await make(store, change)  # The caller was told, and means the log that is there.
            with pytest.raises(UnknownLog):
                await other.log("a")

    with planted(find_bug("repeat-by-new-name")) if is_planted else nullcontext():
        simulate(scenario)


@pytest.mark.parametrize("change", CHANGES)
@as_scenario(simulate)
async def test_a_change_that_was_done_is_done_when_it_is_made_again(
    cluster: ClusterAtHand, *, change: str
) -> None:
    async with cluster.client(timeout_s=3) as store, cluster.client() as other:
        await other.append("a", b"old")
        await make_unanswered(cluster, store, change)
        await make(store, change)
        await make(other, change, log_id=1)
        assert [each.name for each in await other.logs()] == ["/b"] * (change == "rename")
        with pytest.raises(UnknownLog):
            await make(store, change)


@pytest.mark.parametrize("bug", ["", "repeat-made-here"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_the_store_made_since_is_meant_by_its_number(change: str, bug: str) -> None:
    """Another task of the store may have made it: the repeat of the first task deleted it."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            await make_unanswered(cluster, store, change)
            if change == "rename":
                await other.log_tree.rename("b", "c")
            made = await store.create_log("a")
            if not bug:
                with pytest.raises(UnknownLog, match="the log that has the name now, 2, to chang"):
                    await make(store, change)
            else:
                await make(store, change)
            assert ((await other.log_tree.names()).get(made.log_id) == "/a") is not bool(bug)
            if not bug:
                await make(store, change, made.log_id)
                after = {"rename": "/b"}.get(change)
                assert (await other.log_tree.names()).get(made.log_id) == after

    with planted(find_bug(bug)) if bug else nullcontext():
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "repeat-of-one"])
@pytest.mark.parametrize("change", CHANGES)
def test_each_of_equal_changes_without_an_answer_means_its_log(change: str, bug: str) -> None:
    """The second repeat deleted, or renamed, the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            await make_unanswered(cluster, store, change, count=3)
            if change == "rename":
                await other.log_tree.rename("b", "c")
            made = await other.create_log("a")
            # A call by number, of whichever task, uses up no repeat of the others.
            with pytest.raises(UnknownLog, match="nothing was"):
                await make(store, change, log_id=1)
            for _ in range(3):
                with pytest.raises(UnknownLog, match="a is not log 1 any more: nothing was"):
                    await make(store, change)
            assert (await other.log("a")).log_id == made.log_id
            await make(store, change)
            with pytest.raises(UnknownLog):
                await other.log("a")

    failure = pytest.raises(pytest.fail.Exception) if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), failure:
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "repeat-of-two-callers"])
@pytest.mark.parametrize("change", CHANGES)
def test_equal_changes_one_after_another_without_an_answer_each_mean_their_log(
    change: str, bug: str
) -> None:
    """The second call was taken for the repeat of the first. Its own repeat deleted, or renamed,
    the log that had taken the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            for _ in range(2):
                await make_unanswered(cluster, store, change)
            if change == "rename":
                await other.log_tree.rename("b", "c")
            made = await other.create_log("a")
            for _ in range(2):
                with pytest.raises(UnknownLog, match="a is not log 1 any more: nothing was"):
                    await make(store, change)
            assert (await other.log("a")).log_id == made.log_id
            await make(store, change)
            with pytest.raises(UnknownLog):
                await other.log("a")

    failure = pytest.raises(pytest.fail.Exception) if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), failure:
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "repeat-beside-another"])
def test_a_change_is_made_again_while_an_equal_one_is_under_way(bug: str) -> None:
    """The other call had taken what the store remembered: the repeat went by the name."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            await make_unanswered(cluster, store, "delete")
            ask_any, go_on = store._cluster.ask_any, asyncio.Event()

            async def late(message: Call, **options: Any) -> Reply:
                store._cluster.ask_any = ask_any  # type: ignore[method-assign]
                await go_on.wait()
                return await ask_any(message, **options)

            store._cluster.ask_any = late  # type: ignore[method-assign]
            first = asyncio.ensure_future(make(store, "delete"))
            await asyncio.sleep(0.1)
            made = await other.create_log("a")
            with pytest.raises(UnknownLog, match="nothing was deleted"):
                await make(store, "delete")
            go_on.set()
            with pytest.raises(UnknownLog, match="nothing was deleted"):
                await first
            assert (await other.log("a")).log_id == made.log_id
            assert not len(store._cluster.unanswered)

    failure = pytest.raises(pytest.fail.Exception) if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), failure:
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "repeat-evicted", "repeat-untold"])
def test_no_repeat_is_forgotten_if_many_changes_have_no_answer(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest were forgotten: their repeats deleted the logs that had taken their names."""
    monkeypatch.setattr(changes_again, "UNANSWERED_MAX", 2)

    untold = Unreachable if bug else Fenced  # Without an entry, the caller is told the number.

    async def scenario(cluster: ClusterAtHand) -> None:
        names = ["a", "b", "c"]
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            for name in names:
                await other.create_log(name)
            await make_unanswered(cluster, store, "delete", names="ab")
            await make_unanswered(cluster, store, "delete", names="c", error=untold)
            made = {(await other.create_log(name)).log_id for name in names}
            for name in names:
                log_id = 3 if name == "c" and not bug else None
                with pytest.raises(UnknownLog, match="any more: nothing was deleted"):
                    await store.log_tree.delete(name, log_id)
            assert made == {*await other.log_tree.names()}
            await store.log_tree.delete("a")

    failure = pytest.raises(pytest.fail.Exception) if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), failure:
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "changes-refused-for-good"])
def test_new_changes_are_taken_if_many_have_no_answer_and_are_never_made_again(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All new ones were refused for good: the names of the others led nowhere any more."""
    monkeypatch.setattr(changes_again, "UNANSWERED_MAX", 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            for name in "abxy":
                await other.create_log(name)
            await make_unanswered(cluster, store, "delete", names="ab")
            await store.log_tree.delete("x")
            await store.log_tree.rename("y", "z")
            assert [*(await other.log_tree.names()).values()] == ["/z"]
            # Repeats are put back, however full the memory is: they may be others' first calls.
            for _ in range(3):
                await make_unanswered(cluster, store, "delete", names="ab")
                assert len(store._cluster.unanswered) == 4

    failure = pytest.raises(Overloaded) if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), failure:
        simulate(scenario)


def test_changes_of_which_it_is_not_known_that_there_are_any_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes_again, "UNANSWERED_MAX", 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            for name in "abc":
                await other.create_log(name)
                for _ in range(2):
                    await make_unanswered(cluster, store, "delete", names=name)
                await store.log_tree.delete(name)
            assert len(store._cluster.unanswered) == 2

    simulate(scenario)


def test_a_cancelled_change_is_remembered_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller cannot be told of the number."""
    monkeypatch.setattr(changes_again, "UNANSWERED_MAX", 0)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("a")
            call_any = store._cluster.call_any

            async def late(message: Call, *, timeout_s: float) -> Reply:
                reply = await call_any(message, timeout_s=timeout_s)
                await asyncio.sleep(60)
                return reply

            store._cluster.call_any = late  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await store.log_tree.delete("a")
            store._cluster.call_any = call_any  # type: ignore[method-assign]
            await store.create_log("a")
            with pytest.raises(UnknownLog, match="a is not log 1 any more: nothing was deleted"):
                await store.log_tree.delete("a")

    simulate(scenario)


@as_scenario(simulate)
async def test_a_rename_by_number_leaves_another_log_alone(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        first = await store.create_log("a")
        await store.log_tree.rename("a", "c", first.log_id)
        await store.create_log("a")
        with pytest.raises(UnknownLog, match="nothing was renamed"):
            await store.log_tree.rename("a", "d", first.log_id)
        assert sorted((await store.log_tree.names()).values()) == ["/a", "/c"]
