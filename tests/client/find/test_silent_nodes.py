"""Names that are looked up while one node, or the metadata store, does not answer."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.client.find.log_finding import CHECK_NAME_S
from cordwood.client.store import Store
from cordwood.errors import Retryable, TooFewNodes, UnknownLog
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted


async def renamed_long_ago(store: Store, operator: Store, ago_s: float = 600) -> None:
    """`store` remembers a name that moved ten minutes ago."""
    await store.append("a", b"old")
    await operator.log_tree.rename("a", "archive")
    await operator.create_log("a")
    await operator.append("a", b"new")
    await asyncio.sleep(ago_s)


def bug(name: str) -> AbstractContextManager[object]:
    return planted(find_bug(name)) if name else nullcontext()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug_name", "is_busy"),
    [("", False), ("names-of-one-node", False), ("", True), ("names-of-one-node-thrice", True)],
)
@pytest.mark.parametrize("fault", ["stopped", "cut off", "no way to the metadata store"])
def test_one_node_that_does_not_answer_does_not_stand_for_all(
    fault: str, *, bug_name: str, is_busy: bool
) -> None:
    """The record went to the log that had the name ten minutes before. With calls that wait at the
    other nodes, as of a client that follows ledgers, the one node was asked three times."""

    async def scenario(cluster: ClusterAtHand) -> None:
        own = await cluster.start_with_own_way(1)
        loop = asyncio.get_running_loop()
        async with cluster.client() as store, cluster.client() as operator:
            await renamed_long_ago(store, operator, 20 if is_busy else 600)
            if is_busy:
                for number in (2, 3, 4, 5):
                    connection = store._cluster.peers.get(NodeId(number))
                    assert connection is not None
                    connection._waiting += 4
            # With equal load, the node of the lowest number is asked.
            assert cluster.sequencer_of(1) != 1 != cluster.sequencer_of(2)
            if fault == "stopped":
                cluster.machine(1).pause()
                loop.call_later(2.5, cluster.machine(1).resume)
            elif fault == "cut off":
                cluster.simulation.network.cut([cluster.machine(1).name], ["client-1"])
            else:
                own.is_out = True
            began = loop.time()
            await store.append("a", b"more")
            assert loop.time() - began < CHECK_NAME_S
            assert await values(operator, "a", until="tail") == [b"new", b"more"]
            assert await values(operator, "archive", until="tail") == [b"old"]
            cluster.simulation.network.mend_all()

    failure = pytest.raises(AssertionError) if bug_name else nullcontext()
    with bug(bug_name), failure:
        simulate(scenario, nodes=5, copies=3)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_a_consumer_waits_for_its_names(names: tuple[str, ...], *, is_planted: bool) -> None:
    """It began in the log that had the name ten minutes before, and stayed there."""

    async def scenario(cluster: ClusterAtHand) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store, cluster.client() as operator:
            await store.append("b", b"other")
            await renamed_long_ago(store, operator)
            cluster.metadata.is_out = True
            loop.call_later(3.0, setattr, cluster.metadata, "is_out", False)
            async with await store.consumer("c", *names) as consumer:
                found: dict[str, list[bytes]] = {}
                while portion := await consumer.read(timeout_s=20):
                    read = [each.value for each in portion.records]
                    found.setdefault(portion.log, []).extend(read)
            assert found["/a"] == [b"new"]

    failure = pytest.raises(AssertionError) if is_planted else nullcontext()
    with bug("consumer-from-memory" if is_planted else ""), failure:
        simulate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_cursors_are_not_moved_in_remembered_logs(names: tuple[str, ...]) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=2.0) as store, cluster.client() as operator:
            at = await store.append("b", b"other")
            await renamed_long_ago(store, operator)
            cluster.metadata.is_out = True
            with pytest.raises(Retryable):
                await store.cursors.save("c", dict.fromkeys(names, at))
            cluster.metadata.is_out = False
            await store.cursors.save("c", dict.fromkeys(names, at))
            numbers = {str((await operator.log(name)).log_id) for name in names}
            assert set((await operator.cursors.by_number("c")).positions) == numbers

    simulate(scenario)


async def using(store: Store, what: str) -> None:
    if what == "append":
        await store.append("gone", b"lost")
    elif what == "read":
        await store._find_now("gone", create=True)
    else:
        await store.reader("gone", "a")


@pytest.mark.parametrize("bug_name", ["", "answers-as-silence"])
@pytest.mark.parametrize("what", ["append", "read", "read both"])
def test_an_answer_that_may_be_retried_is_no_silence(what: str, bug_name: str) -> None:
    """Too few nodes were up to make the name anew. The client went on with the renamed log for
    good, although each node answered, and took the other name for that of the log before."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            await operator.create_log("gone", copies=2)
            await operator.append("gone", b"old")
            await store.log("gone")
            await renamed_long_ago(store, operator, 0)
            await operator.log_tree.rename("gone", "moved")
            await operator.set_storage(3, read_only=True)
            await asyncio.sleep(70)
            for _ in range(2):
                with pytest.raises(TooFewNodes):
                    await using(store, what)
                assert (await store._find("a")).log_id == 3
            # It is no memory for an outage either: it was told that no log has the name.
            cluster.metadata.is_out = True
            with pytest.raises(Retryable):
                await store.append("gone", b"lost")
            cluster.metadata.is_out = False
            with pytest.raises(UnknownLog):
                await store.log("gone")
            assert await values(operator, "moved", until="tail") == [b"old"]
            assert await values(operator, "archive", until="tail") == [b"old"]

    failure = pytest.raises(pytest.fail.Exception) if bug_name else nullcontext()
    with bug(bug_name), failure:
        simulate(scenario)
