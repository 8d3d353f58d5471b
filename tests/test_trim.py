"""Trimming on a whole cluster: what readers, late nodes, restarts and recovery make of it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.senders import TRIMS_S
from cordwood.errors import Rejected, UnknownLog
from cordwood.lsn import Lsn, make_lsn
from cordwood.sim.planted import find_bug, planted

LOG = 1


def shape(items: list[Record | Gap]) -> list[str]:
    """Records by their LSN, gaps by kind and range, but for what ends epochs."""
    return [
        str(item.lsn)
        if isinstance(item, Record)
        else f"{item.kind.value} {item.first}..{item.last}"
        for item in items
        if isinstance(item, Record) or item.kind is not GapKind.BRIDGE
    ]


def resume(cluster: ClusterAtHand, numbers: list[int]) -> None:
    for number in numbers:
        cluster.machine(number).resume()


class TestTrim:
    @as_scenario(simulate, copies=3, nodes=3)
    async def test_a_reader_gets_one_gap_and_then_the_rest(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % n for n in range(10)])
            done = await store.trim("log", Lsn(make_lsn(1, 7)))
            assert (done.lsn, done.nodes, done.is_partial) == (make_lsn(1, 7), (1, 2, 3), False)
            found = await read_all(store, "log")
            assert shape(found) == ["trim e1n1..e1n7", "e1n8", "e1n9", "e1n10"]
            # Not below what was trimmed already, and from a place in the middle of it.
            await store.trim("log", make_lsn(1, 2))
            middle = [item async for item in await store.read("log", make_lsn(1, 5), "tail")]
            assert shape(middle) == ["trim e1n5..e1n7", "e1n8", "e1n9", "e1n10"]

    @as_scenario(simulate, copies=3, nodes=3)
    async def test_past_the_tail_is_refused_and_up_to_it_is_not(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"1", b"2"])
            with pytest.raises(Rejected, match="ends at e1n2, and e1n3 is past that"):
                await store.trim("log", make_lsn(1, 3))
            with pytest.raises(UnknownLog):
                await store.trim("nowhere", make_lsn(1, 3))
            assert (await store.trim("log", "tail")).lsn == make_lsn(1, 2)
            assert shape(await read_all(store, "log")) == ["trim e1n1..e1n2"]
            assert await store.append("log", b"3") == make_lsn(1, 3)

    @as_scenario(simulate, copies=3, nodes=3)
    async def test_a_node_that_was_away_is_told_of_as_missing_and_readers_skip_it_all_the_same(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % n for n in range(4)])
            away = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
            cluster.kill(away)
            done = await store.trim("log", make_lsn(1, 3))
            assert done.is_partial
            assert list(done.missing) == [away]
            await cluster.start(away)
            assert shape(await read_all(store, "log")) == ["trim e1n1..e1n3", "e1n4"]
            again = await store.trim("log", make_lsn(1, 3))
            assert not again.is_partial
            assert {cluster.running[n].engine.cache.log(LOG).trim for n in cluster.numbers} == {
                make_lsn(1, 3)
            }

    @pytest.mark.parametrize("silent_s", [0.1, 5.0])
    @as_scenario(simulate, copies=3, nodes=3)
    async def test_the_first_record_waits_for_the_trim_points_of_all_connected_nodes(
        self, cluster: ClusterAtHand, *, silent_s: float
    ) -> None:
        """The node that missed a trim answered first, and a reader got what was trimmed. A node
        that is silent is waited for a moment only."""
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % n for n in range(4)])
            away = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
            cluster.kill(away)
            await store.trim("log", make_lsn(1, 3))
            await cluster.start(away)
            others = [n for n in cluster.numbers if n != away]
            async with cluster.client() as other:
                assert (await other.log("log")).log_id == LOG
                await asyncio.sleep(1)
                for number in others:
                    cluster.machine(number).pause()
                stream = await other.read("log", until=make_lsn(1, 4))
                loop = asyncio.get_running_loop()
                loop.call_later(silent_s, resume, cluster, others)
                found = [item async for item in stream]
        trimmed = ["trim e1n1..e1n3", "e1n4"]
        if silent_s < TRIMS_S:
            assert shape(found) == trimmed
        else:
            assert shape(found) == ["e1n1", "e1n2", "e1n3", "e1n4"]

    @as_scenario(simulate, copies=2, nodes=4)
    async def test_a_recovery_knows_that_what_was_trimmed_was_stored(
        self, cluster: ClusterAtHand
    ) -> None:
        """The nodes had heard no release of their own when the sequencer died."""
        async with cluster.client() as store:
            last = (await store.append_many("log", [b"%d" % n for n in range(6)]))[-1]
            await store.trim("log", last)
            cluster.kill(cluster.sequencer_of(LOG))
            await asyncio.sleep(1)
            assert (await store.append("log", b"later")).epoch == 2
            await asyncio.sleep(1)
            assert (await store.log_tree.epochs("log")).clean_tail == last
            found = await read_all(store, "log")
            assert shape(found) == [f"trim e1n1..{last}", "e2n1"]


@as_scenario(simulate)
async def test_a_tail_is_no_position_in_the_log_that_gets_its_name_meanwhile(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store, cluster.client() as other:
        await store.append_many("log", [b"0", b"1"])
        await other.append_many("next", [b"2", b"3", b"4", b"5"])
        sequencer = cluster.machine(cluster.sequencer_of(1))
        trim = asyncio.ensure_future(store.trim("log", "tail"))
        await asyncio.sleep(0.0006)
        sequencer.pause()  # the tail is asked of it
        await other.log_tree.rename("log", "old")
        await other.log_tree.rename("next", "log")
        sequencer.resume()
        await trim
        assert await values(other, "log") == [b"2", b"3", b"4", b"5"]
        assert await values(other, "old") == []


@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=5, copies=2)
async def test_a_log_that_gets_the_name_while_the_tails_sequencer_begins_is_not_trimmed(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """The new sequencer's epoch has other nodes, so the log is looked up a second time."""
    async with cluster.client() as store, cluster.client() as other:
        await store.append_many("log", [b"0", b"1"])
        kept = [b"2", b"3", b"4", b"5", b"6"]
        await other.append_many("next", kept[:4])
        sequencer = cluster.sequencer_of(2)
        cluster.kill(sequencer)
        await asyncio.sleep(1)
        assert (await other.append("next", kept[4])).epoch == 2  # as "log" will be in
        await cluster.start(sequencer)
        await asyncio.sleep(3)
        sequencer = cluster.sequencer_of(LOG)
        with planted(find_bug("second-by-name")) if is_planted else nullcontext():
            trim = asyncio.ensure_future(store.trim("log", make_lsn(1, 2)))
            await asyncio.sleep(0.0006)
            cluster.kill(sequencer)  # the tail is asked of it
            await asyncio.sleep(0.2)
            assert not trim.done()
            await other.log_tree.rename("log", "old")
            await other.log_tree.rename("next", "log")
            done = await trim
        assert done.lsn == make_lsn(1, 2)
        await cluster.start(sequencer)
        if is_planted:
            assert await values(other, "old") == [b"0", b"1"]
            assert await values(other, "log") == kept[2:]
        else:
            assert await values(other, "log") == kept
            assert await values(other, "old") == []
