"""One call of several names: each leads to a log of its own, and none is left out."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.block import Record
from cordwood.client.find.log_finding import CHECK_NAME_S, LogFinding
from cordwood.client.find.log_info import LogInfo
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Retryable
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.planted.bug import at

NAMES = [("orders", "orders-2025"), ("orders-2025", "orders")]


async def rotate(store: Store, operator: Store) -> None:
    """Rename a log and make it again; `store` remembers where its name led before."""
    await store.append("orders", b"old")
    await operator.log_tree.rename("orders", "orders-2025")
    await operator.create_log("orders")


async def all_of(reading) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    while portion := await reading.read(timeout_s=10):
        values = [record.value for record in portion.records]
        found.setdefault(portion.log.strip("/"), []).extend(values)
    return found


def bug(is_planted: bool) -> AbstractContextManager[object]:
    return planted(find_bug("names-from-memory")) if is_planted else nullcontext()


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("member", ["", "m1"])
@as_scenario(simulate)
async def test_a_consumer_reads_a_renamed_log_and_the_log_that_took_its_name(
    cluster: ClusterAtHand, *, names, member: str
) -> None:
    """Both names led to the renamed log, and the new log was never read."""
    async with cluster.client() as store, cluster.client() as operator:
        await rotate(store, operator)
        async with await store.consumer("c", *names, member=member) as consumer:
            assert sorted(consumer.logs) == ["/orders", "/orders-2025"]
            await operator.append("orders", b"new")
            assert await all_of(consumer) == {"orders": [b"new"], "orders-2025": [b"old"]}


@pytest.mark.parametrize("names", NAMES)
@as_scenario(simulate)
async def test_a_reader_reads_a_renamed_log_and_the_log_that_took_its_name(
    cluster: ClusterAtHand, *, names
) -> None:
    """The second name stopped the log of the first one."""
    async with cluster.client() as store, cluster.client() as operator:
        await rotate(store, operator)
        async with store.reader(*names) as reader:
            await operator.append("orders", b"new")
            assert await all_of(reader) == {"orders": [b"new"], "orders-2025": [b"old"]}


@as_scenario(simulate)
async def test_a_log_that_a_reader_reads_is_not_begun_under_a_second_name(
    cluster: ClusterAtHand,
) -> None:
    """The second name took the place of the first one without a word."""
    async with cluster.client() as store, cluster.client() as operator:
        await rotate(store, operator)
        async with store.reader("orders") as reader:  # from memory: the renamed log
            with pytest.raises(BadSetting, match=r"orders and orders-2025 lead to one log, num"):
                await reader.start("orders-2025")
            assert reader.logs == ("orders",)
            await reader.start("orders")  # anew, and as the name leads now
            await reader.start("orders-2025")
            await operator.append("orders", b"new")
            assert await all_of(reader) == {"orders": [b"new"], "orders-2025": [b"old"]}


@pytest.mark.parametrize("is_planted", [False, True])
def test_cursors_of_two_logs_are_moved_both(is_planted: bool) -> None:
    """Two names of one number were one position, and only one of two was stored."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            await rotate(store, operator)
            old, new = await store.log("orders-2025"), await operator.log("orders")
            last = await operator.append("orders", b"new")
            with bug(is_planted):
                await store.cursors.save("c", {"orders": last + 1, "orders-2025": last})
            kept = (await operator.cursors.by_number("c")).positions
            assert kept == {str(new.log_id): last + 1, str(old.log_id): last}

    # The planted bug is refused: of two names of one number only one could be stored.
    with pytest.raises(BadSetting) if is_planted else nullcontext():
        simulate(scenario)


def test_the_planted_bug_leaves_a_log_out() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            await rotate(store, operator)
            async with await store.consumer("c", "orders", "orders-2025") as consumer:
                assert len(consumer.logs) == 2

    with planted(find_bug("names-from-memory")), pytest.raises(AssertionError):
        simulate(scenario)


@as_scenario(simulate)
async def test_a_lag_is_told_of_each_log(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client() as operator:
        await rotate(store, operator)
        numbers = [(await operator.log(name)).log_id for name in ("orders", "orders-2025")]
        await operator.cursors.save("c", dict.fromkeys(numbers, 0))
        assert set(await store.cursors.lag("c", "orders", "orders-2025")) == {
            "/orders", "/orders-2025",
        }  # fmt: skip
        async with cluster.client() as third:
            await third._find(numbers[1])
            await operator.log_tree.rename("orders", "other")
            await operator.log_tree.rename("orders-2025", "orders")
            await operator.log_tree.rename("other", "orders-2025")
            assert set(await third.cursors.lag("c")) == {"/orders", "/orders-2025"}


@as_scenario(simulate)
async def test_a_lag_of_several_names_is_told_of_the_logs_that_have_them(
    cluster: ClusterAtHand,
) -> None:
    """Each of two logs that changed names was told the lag of the other one."""
    async with cluster.client() as store, cluster.client() as operator:
        for name, count in (("a", 1), ("b", 6)):
            for _ in range(count):
                await store.append(name, b"0")
        for name, new in (("a", "c"), ("b", "a"), ("c", "b")):
            await operator.log_tree.rename(name, new)
        told = await store.cursors.lag("c", "a", "b")
        assert {name: getattr(lag, "records", lag) for name, lag in told.items()} == {
            "/a": 6, "/b": 1,
        }  # fmt: skip


@as_scenario(simulate)
async def test_a_save_by_numbers_tells_each_position(cluster: ClusterAtHand) -> None:
    """A position was not told if two logs had one name in the client's memory."""
    async with cluster.client() as store, cluster.client() as operator:
        at = [await store.append(name, b"0") for name in ("a", "b")]
        one, two = [(await store.log(name)).log_id for name in ("a", "b")]
        await operator.log_tree.rename("a", "z")
        await operator.log_tree.rename("b", "a")
        await store.log(two)
        told = await store.cursors.save("c", {one: at[0], two: at[1]})
        assert told == {str(one): at[0], str(two): at[1]}


@as_scenario(simulate)
async def test_a_log_has_one_position_in_a_call(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        last = await store.append("a", b"0")
        number = (await store.log("a")).log_id
        for twice in ({"a": last, number: last + 1}, {"a": last, "/a": last + 1}):
            with pytest.raises(BadSetting, match="lead to one log"):
                await store.cursors.save("c", twice)
        assert await store.cursors.save("c", {"a": last}, {number: 0}) == {"/a": last}
        # A log that is named twice is one log to a reader and a consumer.
        async with store.reader("a", "/a", "a") as reader:
            assert len(reader.logs) == 1
        async with await store.consumer("d", "a", "/a") as consumer:
            assert consumer.logs == ("/a",)


@pytest.mark.parametrize("renames", [1, 9])
@as_scenario(simulate)
async def test_a_log_that_is_renamed_between_two_look_ups_is_looked_up_again(
    cluster: ClusterAtHand, *, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as store, cluster.client() as operator:
        await operator.append("a", b"1")
        await operator.append("b", b"2")
        left = renames
        right = LogFinding.find_log

        async def find_log(self: LogFinding, log, **options) -> LogInfo:
            nonlocal left
            found = await right(self, log, **options)
            if self is store._cluster and log == "a" and left:
                left -= 1
                for name, new in (("a", "c"), ("b", "a"), ("c", "b")):
                    await operator.log_tree.rename(name, new)
            return found

        for owner, name, made in at(LogFinding.find_log).instead(find_log)():  # type: ignore[arg-type]
            monkeypatch.setattr(owner, name, made)
        opening = store.consumer("c", "a", "b")
        if renames == 1:
            async with await opening as consumer:
                assert await all_of(consumer) == {"a": [b"2"], "b": [b"1"]}
        else:
            with pytest.raises(BadSetting, match="a and b lead to one log"):
                await opening


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("what", ["consumer", "reader"])
def test_no_log_is_left_out_if_logs_are_rotated_between_two_look_ups(
    what: str, *, is_planted: bool
) -> None:
    """The log of the second day had one of the names all the time, and was not read."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            await operator.append("orders-1", b"day 1")
            await operator.append("orders", b"day 2")
            right, tree = store._cluster.find_log, operator.log_tree
            is_rotated = False

            async def find_log(log, **options) -> LogInfo:
                nonlocal is_rotated
                if log == "orders" and not is_rotated:
                    is_rotated = True
                    await tree.rename("orders-1", "orders-2")
                    await tree.rename("orders", "orders-1")
                    await operator.create_log("orders")
                    await operator.append("orders", b"day 3")
                return await right(log, **options)

            store._cluster.find_log = find_log  # type: ignore[method-assign]
            names = "orders-1", "orders"
            opening = store.consumer("c", *names) if what == "consumer" else store.reader(*names)
            async with await opening as reading:
                assert await all_of(reading) == {"orders-1": [b"day 2"], "orders": [b"day 3"]}

    bug = planted(find_bug("names-of-two-moments")) if is_planted else nullcontext()
    with bug, pytest.raises(AssertionError) if is_planted else nullcontext():
        simulate(scenario)


@as_scenario(simulate)
async def test_names_that_move_all_the_time_are_refused(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client() as operator:
        await operator.append("a", b"1")
        await operator.append("b", b"2")
        right, tree = store._cluster.find_log, operator.log_tree

        async def find_log(log, **options) -> LogInfo:
            if log == "a":
                await tree.rename("a", f"a-{asyncio.get_running_loop().time()}")
                await operator.create_log("a")
            return await right(log, **options)

        store._cluster.find_log = find_log  # type: ignore[method-assign]
        with pytest.raises(Retryable, match=r"a led to log \d+ and then to log \d+\): call again"):
            await store.consumer("c", "a", "b")


@as_scenario(simulate)
async def test_a_reader_takes_names_from_memory_while_no_node_can_look_them_up(
    cluster: ClusterAtHand,
) -> None:
    loop = asyncio.get_running_loop()
    async with cluster.client() as store, cluster.client() as operator:
        lsns = [await store.append(name, name.encode()) for name in ("a", "b")]
        for name in ("a", "b"):
            assert [item async for item in store.read(name) if isinstance(item, Record)]
        await operator.log_tree.rename("b", "c")
        cluster.metadata.is_out = True
        began = loop.time()
        async with store.reader("a", "b", until=lsns[0]) as reader:
            assert loop.time() - began <= CHECK_NAME_S + 0.5
            assert await all_of(reader) == {"a": [b"a"], "b": [b"b"]}
        cluster.metadata.is_out = False
        await operator.log_tree.rename("c", "d")
        await store.log("d")
        store._cluster._known._names["/a"] = store._cluster._known._names["/d"]
        cluster.metadata.is_out = True
        with pytest.raises(Retryable):  # two names lead to one log from memory
            await store.reader("a", "d", until=lsns[0])
        cluster.metadata.is_out = False
