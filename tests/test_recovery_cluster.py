"""Recovery on a whole cluster in virtual time: who takes over, what is kept, who is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, at, others, read_all, simulate, until, values
from crc32c import crc32c
from scenarios import as_scenario, now
from swaps import swap_value

from cordwood.block import BlockHeader, BlockKind, Envelope, Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.errors import NoSequencer, NotOurCluster, OutcomeUnknown, Retryable
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.body import encode_body
from cordwood.layout.message import AskTail, TailReply
from cordwood.layout.waves import store_head
from cordwood.lsn import Lsn
from cordwood.metadata.epoch_store import EpochStore
from cordwood.nodes import NodeId
from cordwood.recovery import ask
from cordwood.sim.holdings import held_blocks
from cordwood.sim.stored_tree import StoredTree

LOG = 1


async def take_over(store: Store, node: int, timeout_s: float = 20) -> TailReply:
    """Have a node sequence the log, whoever does so now."""
    reply = await store._cluster.peers.call(NodeId(node), AskTail(LOG, True), timeout_s=timeout_s)
    assert isinstance(reply, TailReply)
    return reply


async def plant(cluster: ClusterAtHand, number: int, first: int, value: bytes) -> None:
    """Leave one copy of a block on one node, as a wave that went no further does."""
    body = encode_body([value], timestamps_us=0)
    header = BlockHeader(
        LOG, first, 1, 0, stored_bytes=len(body), raw_bytes=len(body),
        stored_crc=crc32c(body), raw_crc=crc32c(body),
    )  # fmt: skip
    envelope = pack_envelope(Envelope(tuple(cluster.numbers[:3])))
    payload = store_head(1) + pack_header(header) + envelope + body
    settled: list[object] = []
    cluster.running[number].engine.store(1, memoryview(payload), settled.append)
    await until(lambda: bool(settled))
    assert settled == [()]


async def reach(store: Store) -> Lsn:
    """Append `?` until the client has found who rules; where that is.

    What went to a fenced sequencer ends as unknown, so there may be a few of these.
    """
    while True:
        try:
            return await store.append("log", b"?")
        except OutcomeUnknown:
            continue


async def known(store: Store, **bounds: int) -> list[bytes]:
    """The values in the log, but for what `reach` left."""
    return [value for value in await values(store, "log", **bounds) if value != b"?"]


async def epochs(cluster: ClusterAtHand) -> tuple[int, int]:
    """The next epoch, and the last clean one."""
    record = await EpochStore(cluster.metadata).read(LOG)
    assert record is not None
    return record.next_epoch, record.clean_epoch


def epoch_ends(cluster: ClusterAtHand) -> list[int]:
    """The nodes that hold the bridge of epoch 1."""
    return [
        number
        for number in sorted(cluster.running)
        if any(each[2] == "BRIDGE" and each[0] >> 32 == 1 for each in cluster.held(number, LOG))
    ]


@asynccontextmanager
async def written(
    cluster: ClusterAtHand, count: int = 3, **settings: float
) -> AsyncIterator[Store]:
    """A client of a log with `count` records, `1` to `count`, which nodes know to be released."""
    async with cluster.client(**settings) as store:
        for number in range(1, count + 1):
            await store.append("log", b"%d" % number)
        await asyncio.sleep(0.2)
        yield store


class TestTakingOver:
    @as_scenario(simulate, nodes=5)
    async def test_a_second_sequencer_takes_a_higher_epoch_and_the_first_finishes(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store:
            old, new = cluster.sequencer_of(LOG), others(cluster)[0]
            assert await take_over(store, new, at(0, 2)) == TailReply(2, at(0, 2), new, at(0, 2))
            assert cluster.running[new]._sequencer.sequencing()[LOG].epoch == 2
            assert LOG not in cluster.running[old]._sequencer.sequencing()
            assert (await store.append("log", b"4")).epoch >= 2
            assert await values(store, "log") == [b"1", b"2", b"3", b"4"]

    @as_scenario(simulate, nodes=5)
    async def test_what_was_in_flight_at_the_old_one_is_unknown_and_what_it_had_not_numbered_is_not(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store, cluster.client() as other:
            await other.tail("log")
            old, new = cluster.sequencer_of(LOG), others(cluster)[0]
            cut = [f"node-{n}" for n in others(cluster)]
            cluster.simulation.network.partition([f"node-{old}"], cut)
            in_flight = asyncio.create_task(store.append("log", b"in flight"))
            await asyncio.sleep(0.3)
            reply = await take_over(other, new)
            assert reply.epoch == 2
            cluster.simulation.network.mend_all()
            with pytest.raises(OutcomeUnknown, match=r"fenced by \d+ while this append"):
                await in_flight
            await reach(store)
            await store.append("log", b"5")
            found = await known(store)
            assert found in ([b"1", b"2", b"3", b"5"], [b"1", b"2", b"3", b"in flight", b"5"])

    @as_scenario(simulate)
    async def test_a_node_that_is_asked_again_and_again_stays_in_its_epoch(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store:
            for _ in range(5):
                assert await store.tail("log") == at(3)
            assert await epochs(cluster) == (2, 0)

    @as_scenario(simulate, nodes=5)
    async def test_two_that_start_at_once_leave_one(self, cluster: ClusterAtHand) -> None:
        async with written(cluster) as store:
            cluster.kill(cluster.sequencer_of(LOG))
            await asyncio.sleep(0.2)
            rivals = list(cluster.running)[:3]
            await asyncio.gather(*(take_over(store, n) for n in rivals), return_exceptions=True)
            lsns = [await store.append("log", b"%d" % n) for n in range(4, 9)]
            assert lsns == sorted(lsns)
            assert await values(store, "log") == [b"%d" % n for n in range(1, 9)]
            record = await EpochStore(cluster.metadata).read(LOG)
            assert record is not None
            assert record.clean_epoch == record.next_epoch - 2

    @as_scenario(simulate)
    async def test_an_epoch_in_which_nothing_was_written_is_a_bridge(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster, 1) as store:
            for turn in range(4):
                await take_over(store, cluster.numbers[turn % 3])
            assert (await reach(store)).epoch >= 4
            items = await read_all(store, "log")
            kinds = [item.kind for item in items if isinstance(item, Gap)]
            assert set(kinds) == {GapKind.BRIDGE}
            assert await known(store) == [b"1"]


class TestMending:
    def test_what_ends_an_empty_epoch_is_no_older_than_the_records_below(self) -> None:
        """Swarm seed 13038: the last records lay on nodes that the empty epoch's nodeset had not,
        its bridge got the time of older ones, and retention trimmed all below it."""

        async def scenario(cluster: ClusterAtHand) -> None:
            epochs = EpochStore(cluster.metadata)

            async def blocks(epoch: int, kind: BlockKind) -> list[BlockHeader]:
                engines = [cluster.running[number].engine for number in cluster.numbers]
                found = [each.header for s in engines for each in await held_blocks(s, LOG)]
                return [h for h in found if (h.first >> 32, h.kind) == (epoch, kind)]

            async def next_epoch() -> int:
                """Have another node take one; it is empty so far."""
                return (await take_over(store, others(cluster)[0])).released >> 32

            async with written(cluster) as store:
                second = await next_epoch()
                record = await epochs.read(LOG)
                assert record is not None
                young = max(h.append_time_us for h in await blocks(1, BlockKind.DATA))
                assert record.clean_time_us >= young
                # As if its records were of later, and lay on other nodes.
                later_us = record.clean_time_us + 10**9
                told = msgspec.json.encode(msgspec.structs.replace(record, clean_time_us=later_us))
                await epochs._change(LOG, lambda _: told)
                await next_epoch()
                bridges = await blocks(second, BlockKind.BRIDGE)
                assert bridges
                assert all(header.append_time_us >= later_us for header in bridges)
                placed = await store.append("log", b"and on")
                (stored, *_) = await blocks(placed.epoch, BlockKind.DATA)
                assert stored.append_time_us >= later_us

        simulate(scenario)

    @as_scenario(simulate, nodes=5)
    async def test_a_record_on_one_node_only_is_kept_and_copied(
        self, cluster: ClusterAtHand
    ) -> None:
        """It was never acknowledged, and may be: once a reader could see it, it stays."""
        async with written(cluster) as store:
            witness = others(cluster)[1]
            await plant(cluster, witness, at(4), b"partial")
            cluster.kill(cluster.sequencer_of(LOG))
            new = next(n for n in cluster.running if n != witness)
            await take_over(store, new)
            cluster.kill(witness)
            assert await values(store, "log", until=at(4)) == [b"1", b"2", b"3", b"partial"]
            holders = [n for n in cluster.running if (at(4), at(4), "DATA") in cluster.held(n, LOG)]
            assert len(holders) >= 2

    @as_scenario(simulate)
    async def test_what_is_missing_below_a_kept_record_becomes_a_hole(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store:
            await plant(cluster, others(cluster)[0], at(6), b"6")
            await plant(cluster, others(cluster)[1], at(9), b"9")
            await take_over(store, others(cluster)[0])
            await reach(store)
            items = await read_all(store, "log")
            assert [item for item in items if isinstance(item, Gap)][:3] == [
                Gap(at(4), at(5), GapKind.HOLE),
                Gap(at(7), at(8), GapKind.HOLE),
                Gap(at(10), at(0, 2), GapKind.BRIDGE),
            ]
            assert await known(store) == [b"1", b"2", b"3", b"6", b"9"]

    @as_scenario(simulate)
    async def test_a_reader_that_waits_in_the_hole_goes_over_it(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store:
            stream = await store.read("log", start=at(4), until=None)
            waiting = asyncio.create_task(stream.next_items())
            await plant(cluster, others(cluster)[0], at(6), b"6")
            await asyncio.sleep(1)
            assert not waiting.done(), "it is not released"
            await take_over(store, others(cluster)[0])
            assert await waiting == [Gap(at(4), at(5), GapKind.HOLE)]

    @pytest.mark.slow
    @pytest.mark.parametrize("delay_ms", [1, 3, 5, 8, 12, 20, 110, 120])
    @as_scenario(simulate, nodes=5)
    async def test_a_recovery_that_dies_half_way_is_finished_by_the_next(
        self, cluster: ClusterAtHand, *, delay_ms: int
    ) -> None:
        async with written(cluster) as store:
            await plant(cluster, others(cluster)[0], at(5), b"5")
            first, second = (n for n in others(cluster)[2:4])
            dying = asyncio.create_task(take_over(store, first))
            await asyncio.sleep(delay_ms / 1000)
            cluster.kill(first)
            await asyncio.gather(dying, return_exceptions=True)
            await take_over(store, second)
            await reach(store)
            items = await read_all(store, "log", until=at(5))
            assert items[3] == Gap(at(4), at(4), GapKind.HOLE)
            assert await known(store) == [b"1", b"2", b"3", b"5"]
            await cluster.start(first)
            await asyncio.sleep(2)
            assert await read_all(store, "log", until=at(5)) == items

    @as_scenario(simulate, nodes=4, copies=2)
    async def test_an_epoch_of_nodes_that_take_nothing_new_is_ended_on_these(
        self, cluster: ClusterAtHand
    ) -> None:
        """All that an epoch was on are to be emptied: its end had no place, and what came
        after it was never released."""
        async with written(cluster) as store:
            cluster.add_nodes(2)
            cluster.weights.update(dict.fromkeys(range(1, 5), 0.0))
            await cluster.start(5, 6)
            for number in range(1, 5):
                cluster.kill(number)
                await cluster.start(number)
            await asyncio.sleep(1)
            lsn = await reach(store)
            assert (await store.log("log")).nodes_of(lsn.epoch) == (5, 6)
            await store.append("log", b"4")
            assert await known(store) == [b"1", b"2", b"3", b"4"]
            assert len(epoch_ends(cluster)) == 2


class TestAbsentMembers:
    @as_scenario(simulate)
    async def test_too_many_are_refused_by_name_and_no_epoch_is_used_up_by_trying(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster, timeout_s=8) as store:
            owner, absent = cluster.sequencer_of(LOG), others(cluster)[0]
            cluster.kill(absent)
            cluster.kill(owner)
            await cluster.start(owner)
            for _ in range(3):
                start = now()
                with pytest.raises(NoSequencer, match=rf"absent: node {absent}:.*again"):
                    await store.append("log", b"4")
                assert 7.5 <= now() - start < 9
            with pytest.raises(Retryable):
                await store.tail("log")
            taken, clean = await epochs(cluster)
            assert (taken <= 4, clean) == (True, 0), "one for each node that tried"
            await cluster.start(absent)
            await reach(store)
            await store.append("log", b"4")
            assert await known(store) == [b"1", b"2", b"3", b"4"]

    @as_scenario(simulate, nodes=5)
    async def test_as_many_as_copies_allow_are_done_without(self, cluster: ClusterAtHand) -> None:
        async with written(cluster) as store:
            cluster.kill(cluster.sequencer_of(LOG))
            cluster.kill(next(iter(cluster.running)))
            await asyncio.sleep(0.2)
            start = now()
            lsn = await store.append("log", b"4")
            assert lsn.epoch > 1
            assert now() - start < 10
            assert await values(store, "log", until=lsn) == [b"1", b"2", b"3", b"4"]

    @as_scenario(simulate, nodes=5)
    async def test_who_was_away_never_shows_what_recovery_did_not_count(
        self, cluster: ClusterAtHand
    ) -> None:
        """Its stale block stands where the log has a bridge; alone with it a reader waits."""
        async with written(cluster) as store:
            away = others(cluster)[0]
            await plant(cluster, away, at(4), b"stale")
            cluster.kill(away)
            await asyncio.sleep(0.2)
            await take_over(store, others(cluster)[0])
            lsn = await reach(store)
            expected = await read_all(store, "log", until=lsn)
            assert b"stale" not in [e.value for e in expected if isinstance(e, Record)]
            await cluster.start(away)
            assert (at(4), at(4), "DATA") in cluster.held(away, LOG)
            assert await read_all(store, "log", until=lsn) == expected
            await until(lambda: (at(4), at(4), "DATA") not in cluster.held(away, LOG))
            cluster.kill(away)
            await cluster.start(away)
            await asyncio.sleep(2)
            assert (at(4), at(4), "DATA") not in cluster.held(away, LOG)
            assert await read_all(store, "log", until=lsn) == expected

    @as_scenario(simulate)
    async def test_a_node_whose_memory_of_the_log_is_damaged_is_no_member_that_answered(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster, timeout_s=3) as store:
            damaged = others(cluster)[0]
            cluster.running[damaged].engine.damage = "records at WAL offsets ((0, 1),)"
            with pytest.raises(NoSequencer, match=rf"node {damaged}: it lost records"):
                await take_over(store, others(cluster)[1])

    def test_those_that_seal_first_need_not_be_those_that_can_be_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seed 5000006: two damaged members sealed as quickly as any. Only those that sealed
        first were read, so recovery failed, again and again, with enough others there."""
        swap_value(monkeypatch, lambda: ask.GRACE_S, 0.0)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with written(cluster), cluster.client() as other:
                new, *damaged, late = others(cluster)[:4]
                for number in damaged:
                    cluster.running[number].engine.damage = "records at WAL offsets ((0, 1),)"
                cluster.machine(late).pause()
                taking = asyncio.create_task(take_over(other, new))
                await asyncio.sleep(0.5)
                cluster.machine(late).resume()
                assert (await taking).epoch == 2

        simulate(scenario, nodes=7)

    @as_scenario(simulate)
    async def test_a_node_whose_disk_was_emptied_does_not_start(
        self, cluster: ClusterAtHand, *, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with written(cluster):
            cluster.kill(2)
            cluster.machine(2).disk.tree = StoredTree(None)
            starting = cluster.start_once(2)
            with pytest.raises(NotOurCluster, match="node 2 is in the cluster, but"):
                await starting


class TestRestarts:
    @pytest.mark.parametrize("how", ["kill", "power"])
    @as_scenario(simulate)
    async def test_everything_acknowledged_is_there_after_all_nodes_went_at_once(
        self, cluster: ClusterAtHand, *, how: str
    ) -> None:
        async with cluster.client(timeout_s=5) as store:
            log = await store.open_log("log")
            acked: dict[Lsn, bytes] = {}
            for turn in range(4):
                futures = [log.append_nowait(b"%d-%d" % (turn, n)) for n in range(40)]
                await asyncio.sleep(0.0004 * turn)
                await asyncio.sleep(0.002)
                for number in list(cluster.running):
                    if how == "kill":
                        cluster.kill(number)
                    else:
                        cluster.running.pop(number)
                        cluster.machine(number).cut_power()
                await cluster.start()
                for n, end in enumerate(await asyncio.gather(*futures, return_exceptions=True)):
                    if isinstance(end, Lsn):
                        acked[end] = b"%d-%d" % (turn, n)
                    else:
                        assert isinstance(end, (OutcomeUnknown, Retryable))
                acked[await reach(store)] = b"?"
            items = await read_all(store, "log")
            found = {item.lsn: item.value for item in items if isinstance(item, Record)}
            assert found.items() >= acked.items()
            assert len(acked) >= 4
            sent = [value for value in found.values() if value != b"?"]
            assert len(sent) == len(set(sent)), "nothing came twice"

    @as_scenario(simulate, nodes=1, copies=1)
    async def test_the_epochs_of_a_node_that_restarts_often_grow_by_one_each_time(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster, 1) as store:
            for turn in range(2, 7):
                cluster.kill(1)
                await cluster.start(1)
                assert (await store.append("log", b"%d" % turn)) == at(1, turn)
            await store.tail("log")
            assert await epochs(cluster) == (7, 5)
            assert await values(store, "log") == [b"%d" % n for n in range(1, 7)]

    @as_scenario(simulate)
    async def test_a_graceful_stop_answers_or_breaks_off_what_is_in_flight(
        self, cluster: ClusterAtHand
    ) -> None:
        async with written(cluster) as store:
            owner = cluster.sequencer_of(LOG)
            going = [asyncio.create_task(store.append("log", b"%d" % n)) for n in (4, 5, 6)]
            await asyncio.sleep(0.0005)
            await cluster.stop(owner)
            ends = await asyncio.gather(*going, return_exceptions=True)
            assert all(isinstance(end, (Lsn, OutcomeUnknown)) for end in ends)
            await cluster.start(owner)
            await store.append("log", b"7")
            found = await values(store, "log")
            assert found[:3] == [b"1", b"2", b"3"]
            assert found[-1] == b"7"
