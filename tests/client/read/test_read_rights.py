"""Logs that ask their readers for a token: who has it reads, who has not gets one ACCESS gap."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.client.admin import positions
from cordwood.client.read.replica_scan import scan_copies
from cordwood.errors import AccessDenied, BadSetting, Malformed
from cordwood.layout.reading import ReadStatus
from cordwood.log_attributes import TOKEN_BYTES_MAX, LogAttributes, parse_attributes, token_digest
from cordwood.lsn import LSN_MAX, Lsn, make_lsn
from cordwood.metadata.log_entries import id_key
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import NodeId
from cordwood.sequencer.log_watch import WATCH_S
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.push.read_rights import LIST_FROM, ReadRights

SECRET = "a secret"
OTHER = "another secret"
ALL = make_lsn(1, 0)


def guarded(token: str = SECRET) -> LogAttributes:
    return LogAttributes(read_token=token_digest(token))


async def fill(store, count: int = 3, log: str = "log") -> None:
    for number in range(count):
        await store.append(log, b"%d" % number)


def values(items) -> list[bytes]:
    return [item.value for item in items if isinstance(item, Record)]


async def until_read(stream, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [item for item in await stream.next_items() if isinstance(item, Record)]
    return found


async def last_of(stream, seconds: float = 30) -> Gap:
    """The gap that a stream ends with."""
    async with asyncio.timeout(seconds):
        while items := await stream.next_items():
            last = items[-1]
    assert isinstance(last, Gap)
    return last


class TestReading:
    @pytest.mark.parametrize("scd", [True, False])
    @as_scenario(simulate)
    async def test_who_has_the_token_reads_and_who_has_not_gets_one_gap(
        self, cluster: ClusterAtHand, *, scd: bool
    ) -> None:
        tokens = {"read_tokens": ("x", SECRET), "scd_enabled": scd}
        async with cluster.client(**tokens) as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            assert values(await read_all(store, "log")) == [b"0", b"1", b"2"]
        for wrong in ((), ("x",), (token_digest(SECRET),)):
            async with cluster.client(read_tokens=wrong, scd_enabled=scd) as store:
                stream = await store.read("log", ALL, until=None)
                async with asyncio.timeout(5):
                    assert (
                        await stream.next_items() == [Gap(Lsn(ALL), Lsn(ALL), GapKind.BRIDGE)]
                        or stream.is_done
                    )
                    assert await last_of(stream) == Gap(Lsn(ALL + 1), Lsn(LSN_MAX), GapKind.ACCESS)
                assert stream.is_done
                bounded = await store.read("log", ALL + 1, ALL + 2)
                assert await bounded.next_items() == [
                    Gap(Lsn(ALL + 1), Lsn(ALL + 2), GapKind.ACCESS)
                ]

    @as_scenario(simulate)
    async def test_a_log_below_a_directory_inherits_it(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.log_tree.set_attributes("/x/", parse_attributes([f"read_token={SECRET}"]))
            await fill(store, log="x/log")
            assert len(values(await read_all(store, "x/log"))) == 3
        async with cluster.client() as store:
            stream = await store.read("x/log", ALL + 1)
            assert (await last_of(stream)).kind is GapKind.ACCESS

    @as_scenario(simulate)
    async def test_a_right_that_is_taken_back_ends_the_stream_where_it_is(
        self, cluster: ClusterAtHand
    ) -> None:
        """What was sent is delivered, then one gap; who has the new token reads on."""
        async with (
            cluster.client(read_tokens=(SECRET, OTHER)) as both,
            cluster.client(read_tokens=(SECRET,)) as one,
        ):
            await both.create_log("log", attributes=guarded())
            await fill(both)
            going, ending = [await each.read("log", ALL + 1, None) for each in (both, one)]
            assert len(await until_read(going, 3)) == len(await until_read(ending, 3)) == 3
            await both.log_tree.set_attributes("log", guarded(OTHER))
            await asyncio.sleep(3)
            await fill(both, 2)
            assert await last_of(ending) == Gap(Lsn(ALL + 4), Lsn(LSN_MAX), GapKind.ACCESS)
            assert values(await until_read(going, 2)) == [b"0", b"1"]
            # The right comes back, and a new read with it.
            await both.log_tree.set_attributes("log", guarded(SECRET))
            await asyncio.sleep(3)
            again = await one.read("log", ALL + 4, None)
            assert values(await until_read(again, 2)) == [b"0", b"1"]

    @as_scenario(simulate)
    async def test_a_node_that_has_not_heard_yet_is_asked_again(
        self, cluster: ClusterAtHand
    ) -> None:
        """It refuses a reader that has the right by now, and is not believed."""
        async with cluster.client(read_tokens=(SECRET, OTHER)) as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            await read_all(store, "log")
            await store.log_tree.set_attributes("log", guarded(OTHER))
            began = asyncio.get_running_loop().time()
            stream = await store.read("log", ALL + 1)
            assert len(await until_read(stream, 3)) == 3
            assert asyncio.get_running_loop().time() - began < 5

    @as_scenario(simulate)
    async def test_nobody_is_sent_anything_before_the_rights_are_known(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store)
            info = await store.log("log")
            for node in cluster.running.values():
                node._rights._current.clear()
            learn, may = ReadRights._learn, asyncio.Event()

            async def later(self, logs):
                await may.wait()
                return await learn(self, logs)

            for node in cluster.running.values():
                node._rights._learn = later.__get__(node._rights)
            stream = await store.read("log", ALL + 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await stream.next_items()
            sent = [node._streams.sent_blocks for node in cluster.running.values()]
            assert sum(sent) == 0
            assert info.attributes.read_token == ""
            may.set()
            assert len(await until_read(stream, 3)) == 3

    @as_scenario(simulate, nodes=4)
    async def test_recovery_and_purging_need_no_token(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            cluster.kill(cluster.sequencer_of(1))
            await asyncio.sleep(5)
            await fill(store, 2)
            assert (await store.tail("log")).epoch == 2
            assert len(values(await read_all(store, "log"))) == 5


class TestReaders:
    @as_scenario(simulate)
    async def test_of_several_logs_the_others_go_on(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("shut", attributes=guarded())
            for log in ("open", "shut"):
                await fill(store, log=log)
            async with await store.reader("shut", "open", start=ALL + 1, gaps=False) as reader:
                told: dict[str, list] = {"open": [], "shut": []}
                while len(told["open"]) < 3 or not told["shut"]:
                    portion = await reader.read(10, 5)
                    told[portion.log] += list(portion)
                assert values(told["open"]) == [b"0", b"1", b"2"]
                (gap,) = told["shut"]
                assert gap == Gap(Lsn(ALL + 1), Lsn(LSN_MAX), GapKind.ACCESS)
                assert reader.position("shut") == ALL + 1

    @as_scenario(simulate)
    async def test_a_consumer_keeps_its_place_until_it_may_read_again(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            async with await store.consumer("c", "log") as consumer:
                while not values(await consumer.read(1, 5)):
                    pass
                place = (await consumer.save())["/log"]
                assert ALL < place <= ALL + 3
        async with cluster.client() as store, await store.consumer("c", "log") as consumer:
            portion = await consumer.read(10, 10)
            assert portion.gap == Gap(place, Lsn(LSN_MAX), GapKind.ACCESS)
            assert (await consumer.save())["/log"] == place
        async with (
            cluster.client(read_tokens=(SECRET,)) as store,
            await store.consumer("c", "log") as consumer,
        ):
            first = next(iter(await consumer.read(1, 5)))
            assert isinstance(first, Record)
            assert first.lsn == place

    @as_scenario(simulate)
    async def test_batches(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            stream = await store.read("log", ALL + 1, None)
            given = [each async for each in stream.arrow()]
            assert given == [Gap(Lsn(ALL + 1), Lsn(LSN_MAX), GapKind.ACCESS)]


QUESTIONS = (
    lambda store: store.find_time("log", 0),
    lambda store: store.find_key("log", b"k"),
    lambda store: store.extent("log"),
    lambda store: store.head_attributes("log"),
    lambda store: store.tail_attributes("log"),
    lambda store: store.is_empty("log"),
    lambda store: store.data_size("log"),
    lambda store: scan_copies(store, "log", NodeId(1), ALL, ALL + 3),
)


class TestQuestions:
    @pytest.mark.parametrize("ask", QUESTIONS)
    @as_scenario(simulate)
    async def test_about_places_need_the_token_too(self, cluster: ClusterAtHand, *, ask) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=guarded())
            for number in range(3):
                await store.append("log", b"%d" % number, key=b"k%d" % number)
            await ask(store)
        async with cluster.client(read_tokens=(OTHER,)) as store:
            with pytest.raises(AccessDenied, match="read token"):
                await ask(store)
            assert await store.tail("log") == ALL + 3

    def test_a_client_that_says_it_may_is_asked_by_the_nodes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap(monkeypatch, positions.check_read_token, lambda *_: "", within=positions)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.create_log("log", attributes=guarded())
                await fill(store)
                for ask in (store.find_time("log", 0), store.extent("log"), store.data_size("log")):
                    with pytest.raises(Exception, match="wants a read token"):
                        await ask

        simulate(scenario)


class TestTokens:
    def test_are_shown_and_logged_nowhere(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(read_tokens=(SECRET,)) as store:
                await store.create_log("log", attributes=guarded())
                await fill(store)
                await read_all(store, "log")
                await store.extent("log")

        simulate(scenario)
        assert SECRET not in caplog.text
        assert SECRET not in repr(ClientSettings(read_tokens=(SECRET,), write_tokens=(SECRET,)))

    def test_have_a_longest_length(self) -> None:
        for make in (
            lambda token: ClientSettings(read_tokens=(token,)),
            lambda token: parse_attributes([f"read_token={token}"]),
        ):
            make("x" * TOKEN_BYTES_MAX)
            with pytest.raises(BadSetting, match="256 bytes"):
                make("é" * (TOKEN_BYTES_MAX // 2 + 1))

    def test_the_status_is_what_old_readers_refuse(self) -> None:
        assert max(ReadStatus) is ReadStatus.FULL
        assert ReadStatus.ACCESS == 3


class TestLearning:
    def test_what_many_logs_ask_is_learnt_by_one_listing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a change of the tree, and of the logs that are read alone."""
        count = LIST_FROM + 5

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                streams = []
                for number in range(count):
                    await store.append(f"log-{number}", b"x")
                    streams.append(await store.read(f"log-{number}", ALL + 1, None))
                for stream in streams:
                    await until_read(stream, 1)
                gets = 0
                get = MemoryMetadata.get

                async def counted(self, key):
                    nonlocal gets
                    gets += key.startswith("log_ids/")
                    return await get(self, key)

                swap(monkeypatch, MemoryMetadata.get, counted)
                streams.pop().close()
                await store.log_tree.set_attributes("log-0", guarded())
                gets = 0
                await asyncio.sleep(3)
                assert gets <= 4 * len(cluster.running)
                assert (await last_of(streams[0])).kind is GapKind.ACCESS
                for node in cluster.running.values():
                    assert len(node._rights._current) == count - 1
                    assert len(node._rights._digests) == count, "also of the log without readers"

        simulate(scenario)

    @as_scenario(simulate)
    async def test_a_token_that_was_withdrawn_while_nobody_read_opens_nothing(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(read_tokens=(SECRET,)) as store:
            await store.create_log("log", attributes=guarded())
            await fill(store)
            assert len(values(await read_all(store, "log"))) == 3
            await store.log_tree.set_attributes("log", guarded(OTHER))
            await asyncio.sleep(3)
        rights = [node._rights for node in cluster.running.values()]
        assert all(1 in each._digests for each in rights)
        for each in rights:
            assert each.may_read(1, SECRET) is not True
            with pytest.raises(AccessDenied):
                await each.check(1, SECRET)

    @pytest.mark.parametrize("is_planted", [False, True])
    def test_a_read_begins_in_an_outage_of_the_store_although_nobody_read_the_log_just_before(
        self, is_planted: bool
    ) -> None:
        """Nodes learn the rights anew each minute. They forgot those of logs without readers, and
        the next read waited until the metadata store was back."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(read_tokens=(SECRET,)) as store:
                await store.create_log("log", attributes=guarded())
                await fill(store)
                assert len(values(await read_all(store, "log"))) == 3
                await asyncio.sleep(2 * WATCH_S)
                cluster.metadata.is_out = True
                stream = await store.read("log", ALL + 1, None)
                with pytest.raises(TimeoutError) if is_planted else nullcontext():
                    assert len(await until_read(stream, 3)) == 3
                cluster.metadata.is_out = False
                if is_planted:
                    assert len(await until_read(stream, 3)) == 3
                    await asyncio.sleep(1)  # the reader has its records; other nodes still learn
            for node in cluster.running.values():
                assert node._rights.may_read(1, OTHER) is False

        with planted(find_bug("idle-rights-forgotten")) if is_planted else nullcontext():
            simulate(scenario)

    @pytest.mark.parametrize("is_planted", [False, True])
    def test_a_log_that_a_newer_version_wrote_holds_up_no_read_of_another(
        self, is_planted: bool
    ) -> None:
        """A node could not read the log's entry, and learnt what no other log asks of its readers
        any more: their reads got no block and no error."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(read_tokens=(SECRET,)) as store:
                newer = (await store.create_log("newer")).log_id
                await store.create_log("log", attributes=guarded())
                for log in ("newer", "log"):
                    await fill(store, log=log)
                written = await cluster.metadata.get(id_key(newer))
                unknown = written.value.replace(b'"attributes":{', b'"attributes":{"x":1')
                await cluster.metadata.compare_and_set(id_key(newer), unknown, written.version)
                rights = [node._rights for node in cluster.running.values()]
                for each in rights:
                    each.want(newer)
                    each.want(2)
                waiting = await store.read("newer", ALL + 1, None)
                await asyncio.sleep(5)
                known = [each.may_read(2, SECRET) for each in rights]
                assert known == [None if is_planted else True] * 3
                for each in rights:
                    with pytest.raises(Malformed):
                        await each.check(newer, SECRET)
                version = (await cluster.metadata.get(id_key(newer))).version
                await cluster.metadata.compare_and_set(id_key(newer), written.value, version)
                assert values(await until_read(waiting, 3)) == [b"0", b"1", b"2"]

        with planted(find_bug("one-unread-fails-all")) if is_planted else nullcontext():
            simulate(scenario)
