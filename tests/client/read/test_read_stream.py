"""Reading a log: positions, clips, gaps, copies that differ, windows, and readers that wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, at, numbers, read_all, simulate, until, values
from scenarios import as_scenario, now
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_grace import GRACE_S
from cordwood.client.store import Store
from cordwood.errors import AccessDenied, BadSetting, Closed, Retryable, UnknownLog
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.single_copy import CopyFilter, Shuffle, shuffled
from cordwood.sequencer import role
from cordwood.settings import MIB

LOG = 1


async def fill(store: Store, *sizes: int) -> None:
    """Blocks of so many records each; the records' values count up from 1."""
    number = 0
    for size in sizes:
        await store.append_many("log", [b"%d" % (number + n) for n in range(1, size + 1)])
        number += size


def tiles(items: list[Record | Gap], start: int, stop: int) -> bool:
    """Whether records and gaps follow one another from `start` to `stop`, both included."""
    expected = start
    for item in items:
        first, last = (item.lsn, item.lsn) if isinstance(item, Record) else (item.first, item.last)
        if first != expected:
            return False
        expected = last + 1
    return expected == stop + 1


class TestPositions:
    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({}, range(1, 13)),
            ({"start": "oldest", "until": "tail"}, range(1, 13)),
            ({"start": at(1), "until": at(12)}, range(1, 13)),
            ({"start": "e1n3"}, range(3, 13)),  # inside the first block of five
            ({"start": int(at(5))}, range(5, 13)),
            ({"start": at(6)}, range(6, 13)),
            ({"until": at(8)}, range(1, 9)),  # inside the last block
            ({"start": "e1n4", "until": "e1n4"}, [4]),
            ({"start": at(2), "until": at(10)}, range(2, 11)),
            ({"start": "tail"}, []),
            ({"start": at(13)}, []),
            ({"start": at(4), "until": at(3)}, []),
        ],
    )
    @as_scenario(simulate)
    async def test_both_ends_are_included_and_cut_blocks(
        self, cluster: ClusterAtHand, *, bounds, expected
    ) -> None:
        """Blocks of 5, 1 and 6 records."""
        async with cluster.client() as store:
            await fill(store, 5, 1, 6)
            items = await read_all(store, "log", **bounds)
            assert numbers(items) == list(expected)
            assert [each.lsn for each in items if isinstance(each, Record)] == [
                at(n) for n in expected
            ]

    @pytest.mark.parametrize("wrong", ["soon", "e1", -1, LSN_MAX + 1, "", "e1n99999999999"])
    @as_scenario(simulate)
    async def test_what_is_no_position_is_refused(self, cluster: ClusterAtHand, *, wrong) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            for bounds in ({"start": wrong}, {"until": wrong}):
                with pytest.raises(BadSetting, match="no LSN"):
                    await store.read("log", **bounds)

    @as_scenario(simulate, create_logs=False)
    async def test_a_log_that_is_not_there(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            with pytest.raises(UnknownLog):
                await store.read("nothing")

    @as_scenario(simulate)
    async def test_an_empty_log_ends_at_once_and_its_tail_is_esn_0(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("log")
            assert await store.tail("log") == at(0)
            assert await read_all(store, "log") == []

    @as_scenario(simulate)
    async def test_from_before_the_first_lsn_there_is_a_bridge(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, 2)
            gap, *found = await read_all(store, "log", start=0)
            assert gap == Gap(Lsn(0), at(0), GapKind.BRIDGE)
            assert numbers(found) == [1, 2]


class TestFollowing:
    @as_scenario(simulate)
    async def test_records_come_as_they_are_released(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as writer, cluster.client() as reader:
            await fill(writer, 3)
            stream = await reader.read("log", until=None)
            seen: list[int] = []

            async def follow() -> None:
                async for item in stream:
                    seen.append(int(item.value))

            following = asyncio.create_task(follow())
            await until(lambda: len(seen) == 3)
            for number in range(4, 30):
                start = now()
                await writer.append("log", b"%d" % number)
                await until(lambda number=number: seen[-1] == number)
                assert now() - start < 0.1
            assert seen == [*range(1, 30)]
            stream.close()
            with pytest.raises(Closed, match="read stream was closed"):
                await following

    @as_scenario(simulate)
    async def test_tail_is_what_comes_after_now(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 3)
            stream = await store.read("log", start="tail", until=None)
            await fill(store, 2)
            assert [item.lsn for item in await stream.next_items()] == [at(4), at(5)]

    @as_scenario(simulate)
    async def test_until_in_the_future_is_waited_for(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            reading = asyncio.create_task(read_all(store, "log", until=at(6)))
            await fill(store, 4)
            await asyncio.sleep(5)
            assert not reading.done()
            await fill(store, 4)
            assert numbers(await reading) == [1, 2, 3, 4, 1, 2]

    @as_scenario(simulate)
    async def test_a_reader_that_was_there_before_the_log_s_first_record(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            stream = await store.read("log", until=None)
            reading = asyncio.create_task(stream.next_items())
            await asyncio.sleep(20)
            await fill(store, 1)
            async with asyncio.timeout(1):
                assert numbers(await reading) == [1]


class TestEpochs:
    @as_scenario(simulate)
    async def test_a_restarted_sequencer_leaves_a_bridge_and_everything_tiles(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, 3)
            victim = cluster.sequencer_of(LOG)
            cluster.kill(victim)
            await cluster.start(victim)
            await store.append("log", b"4")
            items = await read_all(store, "log")
            assert numbers(items) == [1, 2, 3, 4]
            assert items[3] == Gap(at(4), at(0, epoch=2), GapKind.BRIDGE)
            assert tiles(items, at(1), at(1, epoch=2))
            inside = await read_all(store, "log", start=at(500), until=at(1, epoch=2))
            assert inside == [Gap(at(500), at(0, epoch=2), GapKind.BRIDGE), items[-1]]
            ends_inside = await read_all(store, "log", start=at(3), until=at(77))
            assert ends_inside[1:] == [Gap(at(4), at(77), GapKind.BRIDGE)]

    @as_scenario(simulate)
    async def test_a_reader_that_follows_goes_over_the_bridge(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            stream = await store.read("log", until=None)
            assert numbers(await stream.next_items()) == [1]
            victim = cluster.sequencer_of(LOG)
            cluster.kill(victim)
            await cluster.start(victim)
            await store.append("log", b"2")
            gap, record = await stream.next_items() + await stream.next_items()
            assert gap == Gap(at(2), at(0, epoch=2), GapKind.BRIDGE)
            assert numbers([record]) == [2]


class TestCopies:
    @as_scenario(simulate)
    async def test_each_record_comes_once_although_every_node_sends_it(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, *[7] * 40)
            items = await read_all(store, "log")
            assert numbers(items) == [*range(1, 281)]
            assert tiles(items, at(1), at(280))

    @pytest.mark.parametrize("down", [[1], [2, 3]])
    @as_scenario(simulate)
    async def test_nodes_that_are_down_are_done_without(
        self, cluster: ClusterAtHand, *, down
    ) -> None:
        async with cluster.client() as store:
            await fill(store, 5, 5)
            await asyncio.sleep(1)
            for number in down:
                cluster.kill(number)
            items = await read_all(store, "log", until=at(10))
            assert numbers(items) == [*range(1, 11)]

    @as_scenario(simulate)
    async def test_a_node_that_goes_and_comes_while_it_is_read(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(read_bytes=4096) as store:
            await fill(store, *[20] * 60)
            await asyncio.sleep(1)
            stream = await store.read("log", until=at(1200))
            seen: list[Record | Gap] = []
            for turn in range(12):
                while len(seen) < 90 * (turn + 1):
                    seen += await stream.next_items()
                if turn % 2 == 0:
                    cluster.kill(turn // 2 % 3 + 1)
                else:
                    await cluster.start(turn // 2 % 3 + 1)
                await asyncio.sleep(0.3)
            while items := await stream.next_items():
                seen += items
            assert numbers(seen) == [*range(1, 1201)]
            assert tiles(seen, at(1), at(1200))

    @pytest.mark.parametrize("single", [False, True])
    def test_a_damaged_copy_is_passed_over_and_told(
        self, caplog: pytest.LogCaptureFixture, single: bool
    ) -> None:
        """Only one copy is intact. Where all are sent, it may come first: not each time."""

        def scenario_with(intact: int) -> Callable[[ClusterAtHand], Awaitable[None]]:
            async def scenario(cluster: ClusterAtHand) -> None:
                async with cluster.client(scd_enabled=single) as store:
                    await fill(store, 3, 3, 3)
                    senders = order_of(cluster, 1)
                    for number in senders[:intact] + senders[intact + 1 :]:
                        damage(cluster, number, 1)
                    items = await read_all(store, "log")
                    assert numbers(items) == [*range(1, 10)]

            return scenario

        with caplog.at_level(logging.WARNING):
            for intact in (2,) if single else range(3):
                simulate(scenario_with(intact))
        assert "has a damaged copy at e1n4" in caplog.text

    @as_scenario(simulate)
    async def test_where_all_copies_are_damaged_nothing_is_said_that_is_not_known(
        self, cluster: ClusterAtHand
    ) -> None:
        """No record, no gap: a loss is concluded from intact views only."""
        async with cluster.client() as store:
            await fill(store, 3, 3, 3)
            for number in (1, 2, 3):
                damage(cluster, number, 1)
            stream = await store.read("log")
            assert numbers(await stream.next_items()) == [1, 2, 3]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20):
                    await stream.next_items()

    @as_scenario(simulate)
    async def test_a_record_that_no_node_has_any_more_is_a_loss_once_all_have_spoken(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, 3, 3, 3)
            for number in (1, 2, 3):
                forget(cluster, number, 1)
            start = now()
            items = await read_all(store, "log")
            assert numbers(items) == [1, 2, 3, 7, 8, 9]
            assert items[3] == Gap(at(4), at(6), GapKind.DATA_LOSS)
            assert now() - start < 1, "nobody is left who could be waited for"

    @as_scenario(simulate)
    async def test_a_loss_that_an_absent_node_may_deny_waits_for_it_a_while(
        self, cluster: ClusterAtHand
    ) -> None:
        """Two nodes of three are enough to say that nothing was ever stored there. But it was
        released, so one of them has lost it: whoever is away is given time to come back."""
        async with cluster.client() as store:
            await fill(store, 3, 3, 3)
            for number in (1, 3):
                forget(cluster, number, 1)
            cluster.kill(2)
            stream = await store.read("log", until=at(9))
            assert numbers(await stream.next_items()) == [1, 2, 3]
            await asyncio.sleep(GRACE_S / 2)
            await cluster.start(2)
            async with asyncio.timeout(5):
                assert numbers(await stream.next_items()) == [4, 5, 6], "its disk had them"
            cluster.kill(2)
            stream = await store.read("log", until=at(9))
            await stream.next_items()
            start = now()
            assert await stream.next_items() == [Gap(at(4), at(6), GapKind.DATA_LOSS)]
            assert GRACE_S <= now() - start < GRACE_S + 1


def order_of(cluster: ClusterAtHand, index: int) -> list[int]:
    """The nodes of a block's copyset, in the order in which they send it."""
    block = cluster.running[1].engine.cache.log(LOG)._blocks[index]
    return shuffled(block.envelope.copyset, CopyFilter(Shuffle.FIXED))


def damage(cluster: ClusterAtHand, number: int, index: int) -> None:
    """Flip a bit in the body of a block that a node holds in memory."""
    held = cluster.running[number].engine.cache.log(LOG)
    block = held._blocks[index]
    body = bytearray(block.body)
    body[-1] ^= 1
    held._blocks[index] = StoredBlock(block.header, block.envelope, block.wire, bytes(body))


def forget(cluster: ClusterAtHand, number: int, index: int) -> None:
    """Let a node lose a block that it holds in memory."""
    held = cluster.running[number].engine.cache.log(LOG)
    del held._blocks[index]
    del held._lasts[index]


class TestOver:
    @as_scenario(simulate)
    async def test_a_reader_of_a_deleted_log_gets_what_it_held_and_is_told_that_it_is_gone(
        self, cluster: ClusterAtHand
    ) -> None:
        """It used to follow for ever; and asking for the tail by name might make the log anew."""
        async with cluster.client() as store:
            await fill(store, 3)
            stream = await store.read("log", until=None)
            assert numbers(await stream.next_items()) == [1, 2, 3]
            await store.log_tree.delete("log")
            async with asyncio.timeout(30):
                items = await stream.next_items()
            assert items[-1] == Gap(items[-1].first, Lsn(LSN_MAX), GapKind.NOT_IN_CONFIG)
            assert items[0].first == at(4)
            assert await stream.next_items() == []
            assert stream.is_done
            assert [each.name for each in await store.logs()] == []

    @as_scenario(simulate)
    async def test_a_reader_that_may_not_read_gets_what_is_here_and_one_gap(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Here the sequencer says so; of what storage nodes ask see test_read_rights.py."""
        async with cluster.client() as store:
            await fill(store, 3)
            stream = await store.read("log", until=None)
            assert numbers(await stream.next_items()) == [1, 2, 3]

            async def refuse(*_: object) -> None:
                raise AccessDenied("this client may not read it")

            swap(monkeypatch, role.SequencerRole.tail, refuse)
            async with asyncio.timeout(30):
                items = await stream.next_items()
            assert items == [Gap(at(4), Lsn(LSN_MAX), GapKind.ACCESS)]
            assert await stream.next_items() == []

    @as_scenario(simulate)
    async def test_a_reader_goes_on_when_its_log_is_renamed(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            stream = await store.read("log", until=None)
            await stream.next_items()
            await store.log_tree.rename("log", "new")
            await asyncio.sleep(10)
            await store.append("new", b"2")
            async with asyncio.timeout(30):
                assert numbers(await stream.next_items()) == [2]

    @as_scenario(simulate, copies=2)
    async def test_connections_are_enough_while_they_meet_every_copyset(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            await store.log("log")
            stream = await store.read("log", until=None)
            await stream.next_items()
            assert stream.is_connected
            cluster.kill(2)
            await until(lambda: len(stream.senders.sources) == 2)
            assert stream.is_connected, "two of three meet every copyset of two"
            cluster.kill(3)
            await until(lambda: len(stream.senders.sources) == 1)
            assert not stream.is_connected


class TestWindows:
    @pytest.mark.parametrize("read_bytes", [4096, 70_000, MIB])
    @as_scenario(simulate, wal_bytes=16 * MIB)
    async def test_a_small_credit_reads_many_large_blocks(
        self, cluster: ClusterAtHand, *, read_bytes: int
    ) -> None:
        async with cluster.client(read_bytes=read_bytes) as store:
            sent = [bytes([n]) * 50_000 for n in range(40)]
            for value in sent:
                await store.append("log", value)
            assert await values(store, "log") == sent

    @as_scenario(simulate, wal_bytes=16 * MIB)
    async def test_what_nodes_send_ahead_of_a_reader_that_does_not_read_is_bounded(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(read_bytes=100_000) as store:
            for _ in range(60):
                await store.append("log", bytes(20_000))
            stream = await store.read("log")
            await asyncio.sleep(5)
            sources = stream.senders.sources.values()
            assert len(sources) == 3
            for source in sources:
                assert (
                    source.credit.held
                    <= source.credit.received
                    <= 150_000 + source.credit.received * 2 // 3
                )
            held = sum(each.stored.wire_bytes for *_, each in stream._buffer._heap)
            assert 50_000 < held < 400_000
            count = 0
            while items := await stream.next_items():
                count += len(items)
            assert count == 60

    @as_scenario(simulate)
    async def test_many_more_lsns_than_a_window(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            sent = [b"%d" % n for n in range(1, 40_001)]
            await store.append_many("log", sent)
            assert await values(store, "log") == sent

    @as_scenario(simulate)
    async def test_two_readers_do_not_disturb_one_another(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(read_bytes=4096) as store:
            await fill(store, *[10] * 50)
            idle = await store.read("log")
            first, second = await asyncio.gather(
                read_all(store, "log"), read_all(store, "log", start=at(100))
            )
            assert (numbers(first), numbers(second)) == ([*range(1, 501)], [*range(100, 501)])
            rest: list[int] = []
            while items := await idle.next_items():
                rest += numbers(items)
            assert rest == [*range(1, 501)]

    @as_scenario(simulate)
    async def test_whole_blocks_for_those_who_want_them(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 5, 5, 5)
            stream = await store.read("log", start=at(3), until=at(12))
            found = []
            while (taken := await stream.next()) is not None:
                assert isinstance(taken, Delivery)
                found.append((taken.first, taken.last, taken.block.header.count))
            assert found == [(at(3), at(5), 5), (at(6), at(10), 5), (at(11), at(12), 5)]


class TestLife:
    @as_scenario(simulate)
    async def test_a_reader_that_ends_stops_the_nodes_sending(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 5)
            async for _ in await store.read("log", until=None):
                break
            stream = await store.read("log")
            assert len(await stream.next_items()) == 5
            stream.close()
            await asyncio.sleep(1)
            for node in cluster.running.values():
                assert not any(node._streams._by_connection.values())
                assert node._streams._by_log == {}
            assert store._streams.by_number == {}

    @as_scenario(simulate)
    async def test_closing_the_client_ends_its_readers(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            stream = await store.read("log", until=None)
            await stream.next_items()
            reading = asyncio.create_task(stream.next_items())
            await asyncio.sleep(0.1)
            start = now()
            await store.close()
            with pytest.raises(Closed, match="this client was closed"):
                await reading
            assert now() - start < 0.5
            with pytest.raises(Closed):
                await store.read("log")

    @as_scenario(simulate)
    async def test_a_cancelled_wait_loses_nothing(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 1)
            stream = await store.read("log", until=None)
            assert numbers(await stream.next_items()) == [1]
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.7):
                        await stream.next_items()
            await store.append("log", b"2")
            assert numbers(await stream.next_items()) == [2]


class TestNudges:
    @as_scenario(simulate)
    async def test_a_lost_release_is_asked_for(self, cluster: ClusterAtHand) -> None:
        """The node forgets what was released, as a restart does; no sequencer runs."""
        async with cluster.client() as store:
            await fill(store, 3)
            for number in (1, 2, 3):
                cluster.kill(number)
            await cluster.start()
            start = now()
            items = await read_all(store, "log", until=at(3))
            assert numbers(items) == [1, 2, 3]
            assert now() - start < 0.5, "it knows of an LSN to come to"

    @as_scenario(simulate)
    async def test_what_arrives_while_the_tail_is_asked_for_is_given_at_once(
        self, cluster: ClusterAtHand
    ) -> None:
        """The question has the client's whole timeout to be answered; the reader used to
        wait with it, for half a minute, over records that lay in its buffer."""
        async with cluster.client() as writer, cluster.client(scd_enabled=False) as reader:
            await fill(writer, 1)
            stream = await reader.read("log", until=None)
            await stream.next_items()
            owner = cluster.sequencer_of(LOG)
            for number in (1, 2, 3):
                if number == owner:
                    cluster.simulation.network.partition(["client-2"], [f"node-{number}"])
            reading = asyncio.create_task(stream.next_items())
            await asyncio.sleep(3.5)  # it asks the owner, which does not hear it
            start = now()
            await writer.append("log", b"2")
            assert numbers(await reading) == [2]
            assert now() - start < 0.2


class TestTail:
    @as_scenario(simulate)
    async def test_it_is_the_last_lsn_that_was_acknowledged(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as other:
            for size in (1, 4, 2):
                await fill(store, size)
                assert await store.tail("log") == await other.tail("log")
            assert await other.tail("log") == at(7)

    @as_scenario(simulate)
    async def test_it_starts_a_sequencer_where_none_runs(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, 2)
            victim = cluster.sequencer_of(LOG)
            cluster.kill(victim)
            await cluster.start(victim)
            assert await store.tail("log") == at(0, epoch=2)
            assert cluster.sequencer_of(LOG) == victim

    @as_scenario(simulate)
    async def test_without_a_cluster_it_is_retryable_at_the_deadline(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            await fill(store, 2)
            for number in (1, 2, 3):
                cluster.kill(number)
            start = now()
            with pytest.raises(Retryable):
                await store.tail("log")
            assert 3 <= now() - start < 4.5
