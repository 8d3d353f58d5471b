"""A log's number is its identity: names that change under readers, clients and their memory."""

from __future__ import annotations

import asyncio
import json

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.client.append.buffered_writer import WriteMode, WriterOptions
from cordwood.client.cluster import REFRESH_S
from cordwood.client.find import log_finding
from cordwood.client.find.known_logs import BELIEVED_S
from cordwood.client.find.log_finding import CHECK_NAME_S
from cordwood.client.read.consumer import Consumer
from cordwood.client.store import Store
from cordwood.errors import Rejected, UnknownLog
from cordwood.layout.message_consumers import JoinConsumer, SaveCursors
from cordwood.metadata.log_tree import LogTree

BOUND_S = REFRESH_S + 1
"""How long a name may lead a client to the log that had it: the member list, and a node's watch."""


async def fill(store: Store, log: str, *records: bytes) -> None:
    for record in records:
        await store.append(log, record)


async def made_again(store: Store, log: str, *records: bytes) -> None:
    await store.log_tree.delete(log)
    await store.create_log(log)
    await fill(store, log, *records)


class TestRenamed:
    @as_scenario(simulate, nodes=5)
    async def test_a_running_read_goes_on_over_the_epochs_that_follow(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/old", b"0")
            stream = await other.read("/old", until=None)
            reader = await other.reader("/old")
            await store.log_tree.rename("/old", "/new")
            await store.create_log("/old")
            await fill(store, "/old", b"a stranger's")
            number = (await store.log("/new")).log_id
            await cluster.stop(cluster.sequencer_of(number))
            await asyncio.sleep(1)  # the client hears that its connection is closed
            await fill(store, "/new", b"1", b"2")
            found: list[bytes] = []
            given: list[bytes] = []
            async with asyncio.timeout(30):
                while len(found) < 3:
                    items = await stream.next_items()
                    assert all(isinstance(i, Record) or i.kind is GapKind.BRIDGE for i in items)
                    found += [item.value for item in items if isinstance(item, Record)]
                while len(given) < 3:
                    given += [record.value for record in (await reader.read()).records]
            assert found == given == [b"0", b"1", b"2"]
            assert reader.logs == ("/old",)
            stream.close()
            reader.close()

    @as_scenario(simulate)
    async def test_a_number_is_the_same_log_whatever_it_is_called(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "/old", b"0")
            number = (await store.log("/old")).log_id
            await store.log_tree.rename("/old", "/new")
            await fill(store, "/old", b"a stranger's")
            async with cluster.client() as other:
                assert await values(other, number) == [b"0"]
                assert (await other.log(number)).name == "/new"
                tail = await other.tail(number)
                assert await other.tails([number, "/new"]) == [tail, tail]
                assert await other.released([number]) == [tail]
                assert (await other.find_time(number, 0)).tail == tail
                assert (await other.extent(number)).tail == tail

    @as_scenario(simulate)
    async def test_a_remembered_name_leads_to_the_log_that_has_it_within_the_bound(
        self, cluster: ClusterAtHand
    ) -> None:
        """A client that knew the name went on with the log that had it, for as long as it ran."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"0")
            assert await values(other, "/a") == [b"0"]
            await other.append("/a", b"1")
            await store.log_tree.rename("/a", "/b")
            await fill(store, "/a", b"new")
            await asyncio.sleep(BOUND_S)
            assert await values(other, "/a") == [b"new"]
            await other.append("/a", b"more")
            assert await values(store, "/a") == [b"new", b"more"]
            assert await values(store, "/b") == [b"0", b"1"]

    @pytest.mark.parametrize("by", ["create", "rename"])
    @as_scenario(simulate)
    async def test_a_client_knows_a_name_that_it_gave_itself(
        self, cluster: ClusterAtHand, *, by: str
    ) -> None:
        """It went on with the log that had the name before, within the bound."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"0")
            await other.log_tree.rename("/a", "/b")
            if by == "create":
                await store.create_log("/a")
            else:
                await store.create_log("/c")
                await store.log_tree.rename("/c", "/a")
            await fill(store, "/a", b"new")
            assert await values(store, "/a") == await values(other, "/a") == [b"new"]
            assert await values(other, "/b") == [b"0"]

    @pytest.mark.parametrize("is_shared", [False, True])
    @as_scenario(simulate)
    async def test_an_answer_that_is_older_than_a_change_is_not_remembered(
        self, cluster: ClusterAtHand, *, is_shared: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Only node 1 is asked: another node would give a newer answer.
        monkeypatch.setattr(log_finding, "NEXT_NODE_S", 60.0)
        network = cluster.simulation.network
        async with cluster.client() as store, cluster.client() as other:
            number = (await other.create_log("/a")).log_id
            await other.append("/a", b"0")
            network.cut(["node-1"], ["client-1"])
            asking = asyncio.create_task(store._find("/a"))
            await asyncio.sleep(0.5)  # node 1 has found the log
            await store.log_tree.rename("/a", "/b")
            made = (await store.create_log("/a")).log_id
            network.mend(["node-1"], ["client-1"])
            if not is_shared:
                await asyncio.wait([asking])
            await fill(store, "/a", b"new")
            assert (await asking).log_id == number
            assert await values(store, "/a") == await values(other, made) == [b"new"]
            assert await values(other, number) == [b"0"]

    @as_scenario(simulate)
    async def test_a_change_that_nobody_counted_is_found_by_age(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The node that made the change died before it could count it."""
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"0")
            assert await values(other, "/a") == [b"0"]

            async def died(self: LogTree) -> None:
                pass

            swap(monkeypatch, LogTree.note_change, died)
            await store.log_tree.rename("/a", "/b")
            await fill(store, "/a", b"new")
            await asyncio.sleep(BELIEVED_S + BOUND_S)
            await other.tail("/a")
            await asyncio.sleep(CHECK_NAME_S)
            assert await values(other, "/a") == [b"new"]


class TestMadeAgain:
    @as_scenario(simulate)
    async def test_a_remembered_name_gives_no_record_of_the_deleted_log(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"old")
            tail = await other.tail("/a")
            assert await values(other, "/a") == [b"old"]
            await made_again(store, "/a", b"new")
            await asyncio.sleep(1)  # the sequencer's node hears of it
            assert await values(other, "/a") == [b"new"]
            # Without a question for the tail nobody says so; the count does.
            async with cluster.client() as third:
                assert await values(third, "/a", until=tail) == [b"new"]
                await made_again(store, "/a", b"newest")
                await asyncio.sleep(BOUND_S)
                assert await values(third, "/a", until=tail) == [b"newest"]

    @as_scenario(simulate)
    async def test_a_running_read_is_told_once_that_its_log_is_gone(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"old")
            stream = await other.read("/a", until=None)
            await made_again(store, "/a", b"new")
            found: list[Record | Gap] = []
            async with asyncio.timeout(60):
                while items := await stream.next_items():
                    found += items
            assert [each.value for each in found if isinstance(each, Record)] == [b"old"]
            assert isinstance(found[-1], Gap)
            assert found[-1].kind is GapKind.NOT_IN_CONFIG

    @as_scenario(simulate)
    async def test_the_number_of_a_deleted_log_is_no_log(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "/a", b"old")
            number = (await store.log("/a")).log_id
            await made_again(store, "/a")
            async with cluster.client() as other:
                for wrong in (number, 99):
                    with pytest.raises(UnknownLog, match=f"log number {wrong} was deleted"):
                        await other.read(wrong)


class TestCutOff:
    @pytest.mark.parametrize("has_changed", [False, True])
    @as_scenario(simulate, create_logs=False)
    async def test_it_reads_and_appends_by_what_it_remembers(
        self, cluster: ClusterAtHand, *, has_changed: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store, cluster.client() as other:
            await store.create_log("/a")
            await fill(store, "/a", b"0")
            await other.append("/a", b"1")
            # Nodes know who may read what is read; else they would have to ask too.
            follower = await store.read("/a", until=None)
            await follower.next_items()
            if has_changed:
                await store.log_tree.rename("/a", "/b")
                # The news comes, and then nobody says what it was.
                await until(lambda: other._cluster._known.has_changed("/a"))
            cluster.metadata.is_out = True
            began = loop.time()
            lsn = await other.append("/a", b"2")
            assert await values(other, "/a", until=lsn) == [b"0", b"1", b"2"]
            assert loop.time() - began <= CHECK_NAME_S + 0.1
            cluster.metadata.is_out = False
            await asyncio.sleep(BOUND_S)
            if has_changed:
                with pytest.raises(UnknownLog):
                    await other.read("/a", until=lsn)
            else:
                assert await values(other, "/a", until=lsn) == [b"0", b"1", b"2"]
            follower.close()


class TestSpelling:
    @as_scenario(simulate)
    async def test_two_spellings_are_one_log_in_memory_and_in_a_reader(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await asyncio.gather(store.append("x", b"0"), store.append("/x", b"1"))
            reader = await store.reader("x", "/x", until="tail")
            given = [item.value async for _, item in reader if isinstance(item, Record)]
            assert sorted(given) == [b"0", b"1"]
            follower = await store.reader("x")
            follower.stop("/x")
            assert follower.logs == ()
            await store.log_tree.delete("x")
            with pytest.raises(UnknownLog):
                await store.tail("/x")


class TestWriters:
    @pytest.mark.parametrize("mode", [WriteMode.STREAM, WriteMode.INDEPENDENT])
    @as_scenario(simulate)
    async def test_a_writer_goes_on_over_a_rename_and_is_told_of_a_deletion(
        self, cluster: ClusterAtHand, *, mode
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            writer = other.buffered_writer(WriterOptions(mode=mode))
            await writer.append("/a", b"0")
            await store.log_tree.rename("/a", "/b")
            await asyncio.sleep(BOUND_S)
            await writer.append("/a", b"1")
            assert await values(store, "/b") == [b"0", b"1"]
            await store.log_tree.delete("/b")
            await asyncio.sleep(BOUND_S)
            with pytest.raises(UnknownLog):
                await writer.append("/a", b"lost with it")
            await writer.append("/a", b"2")
            assert await values(store, "/a") == [b"2"]
            await writer.close()

    @as_scenario(simulate)
    async def test_two_spellings_are_one_stream(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            writer = store.buffered_writer(WriterOptions(mode=WriteMode.STREAM))
            told = [
                writer.append_nowait("x" if number % 2 else "/x", b"%d" % number)
                for number in range(6)
            ]
            await asyncio.gather(*told)
            assert await values(store, "/x") == [b"%d" % number for number in range(6)]
            await writer.close()


async def drained(consumer: Consumer, timeout_s: float = 2.0) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    while portion := await consumer.read(timeout_s=timeout_s):
        found.setdefault(portion.log, []).extend(each.value for each in portion.records)
    return found


class TestConsumers:
    @pytest.mark.parametrize("member", ["", "m1"])
    @as_scenario(simulate)
    async def test_a_rename_keeps_the_position_and_a_log_made_again_has_none(
        self, cluster: ClusterAtHand, *, member: str
    ) -> None:
        """The position was kept by name: a log made again was passed over up to it, and one that
        was renamed was read anew."""
        async with cluster.client() as store:
            await fill(store, "/a", b"0", b"1", b"2")
            async with await store.consumer("c", "/a", member=member) as consumer:
                assert await drained(consumer) == {"/a": [b"0", b"1", b"2"]}
            await store.log_tree.rename("/a", "/b")
            await fill(store, "/b", b"3")
            await fill(store, "/a", b"new", b"newer")
        async with cluster.client() as store:
            async with await store.consumer("c", "/b", "/a", member=member) as consumer:
                found = await drained(consumer)
            assert found == {"/b": [b"3"], "/a": [b"new", b"newer"]}
            (group,) = await store.cursors.list("c")
            assert set(group.positions) == {"/a", "/b"}
            await store.log_tree.delete("/a")
            (group,) = await store.cursors.list("c")
            (gone,) = {*group.positions} - {"/b"}
            lag = await store.cursors.lag("c")
            assert [lag["/b"].records, type(lag[gone])] == [0, UnknownLog]

    @as_scenario(simulate)
    async def test_a_running_consumer_goes_on_over_a_rename_and_is_told_of_a_deletion(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store, cluster.client() as other:
            await fill(store, "/a", b"0")
            async with await other.consumer("c", "a") as consumer:
                assert await drained(consumer) == {"/a": [b"0"]}
                await store.log_tree.rename("/a", "/b")
                await fill(store, "/b", b"1")
                await fill(store, "/a", b"a stranger's")
                await asyncio.sleep(BOUND_S)
                assert await drained(consumer) == {"/a": [b"1"]}
                await consumer.save()
                assert consumer.logs == ("/a",)
                (group,) = await store.cursors.list("c")
                assert list(group.positions) == ["/b"]
                await store.log_tree.delete("/b")
                await asyncio.sleep(1)
                async with asyncio.timeout(60):
                    portion = await consumer.read()
                assert portion.gap is not None
                assert portion.gap.kind is GapKind.NOT_IN_CONFIG

    @as_scenario(simulate)
    async def test_what_an_older_version_kept_by_names_is_read_once_by_them(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await fill(store, "/a", b"0", b"1")
            lsn = await store.append("/a", b"2")
            old = json.dumps({
                "generation": 4,
                "members": {"m": {"logs": ["/a"], "expires_us": 9, "joined": 1}},
                "owners": {"/a": {"member": "m", "since": 1}},
                "positions": {"/a": lsn, "/gone": 77},
            })  # fmt: skip
            await cluster.metadata.compare_and_set("consumers/c", old.encode(), 0)
            (group,) = await store.cursors.list("c")
            assert (group.positions, group.owners, group.members) == ({"/a": lsn}, {}, {})
            async with await store.consumer("c", "/a") as consumer:
                assert await drained(consumer) == {"/a": [b"2"]}
            # From here on it is a number's: a log made again has none.
            kept = await cluster.metadata.get("consumers/c")
            assert kept is not None
            assert list(json.loads(kept.value)["positions"]) == ["1"]
            await made_again(store, "/a", b"new")
        async with cluster.client() as store:
            async with await store.consumer("c", "/a") as consumer:
                assert await drained(consumer) == {"/a": [b"new"]}
            with pytest.raises(Rejected, match="install the cluster's version"):
                await store._ask(SaveCursors("c", "", 0, {"/a": 5}, {}, False))
            with pytest.raises(Rejected, match="install the cluster's version"):
                await store._ask(JoinConsumer("c", "m", ["/a"], 1000))

    @as_scenario(simulate)
    async def test_cursors_are_saved_by_name_or_number(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await fill(store, "/a", b"0")
            await fill(store, "/b", b"0")
            numbers = {info.name: info.log_id for info in await store.logs()}
            assert await store.cursors.save("c", {"a": 7}) == {"/a": 7}
            saved = await store.cursors.save("c", {numbers["/b"]: 8})
            assert saved == {"/b": 8, str(numbers["/a"]): 7}
            group = await store.cursors.by_number("c")
            assert group.positions == {str(numbers["/a"]): 7, str(numbers["/b"]): 8}
