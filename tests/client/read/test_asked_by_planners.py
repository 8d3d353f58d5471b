"""What jobs that plan reads ask of a client: many tails, where epochs end, blocks in runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from calls_counted import counted_calls
from cluster_at_hand import ClusterAtHand, simulate
from embedded_at_hand import open_at
from scenarios import as_scenario

from cordwood.block import Gap, GapKind
from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import connect, open_blocking
from cordwood.embedded import embedded_store
from cordwood.errors import AccessDenied, BadSetting, Closed, Unreachable
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import Lsn, make_lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.settings import MIB, ClientSettings


class TestTails:
    def test_are_in_the_order_asked(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            one = store.append("one", b"1")
            last = store.append_many("two", [b"1", b"2", b"3"])[-1]
            assert store.tails(["two", "one", "two"]) == [last, one, last]

    def test_of_no_log_are_none(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            assert store.tails([]) == []


class TestReleased:
    def test_is_the_tail_where_the_sequencer_runs(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            one = store.append("one", b"1")
            last = store.append_many("two", [b"1", b"2", b"3"])[-1]
            assert store.released(["two", "one", "two"]) == [last, one, last]
            assert store.released([]) == []

    def test_is_the_same_by_number(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            tails = [store.append(log, b"1") for log in ("one", "two")]
            numbers = {store.log(log).log_id: log for log in ("one", "two")}
            assert store.released_by_number(numbers) == dict(zip(numbers, tails, strict=True))
            assert store.log_names_soon().result(10) == {
                number: f"/{log}" for number, log in numbers.items()
            }

    @pytest.mark.parametrize("number", [-1, 1 << 62, 1 << 70, "one", None, 1.5])
    def test_a_number_of_no_log_is_refused_before_it_is_sent(self, tmp_path: Path, number: Any):
        """The node closed the connection, and appends on it ended as unknown."""
        with open_at(tmp_path) as store:
            last = store.append("log", b"1")
            with pytest.raises(BadSetting):
                store.released_by_number([number])
            with pytest.raises(BadSetting):
                store.save_cursors("c", {"log": "x"})
            assert store.released(["log"]) == [last]

    def test_starts_the_sequencer_of_a_log_that_has_none(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            last = store.append("log", b"1")
        with open_at(tmp_path) as store:
            assert store.released(["log"]) == [make_lsn(last.epoch + 1, 0)]

    @as_scenario(simulate)
    async def test_costs_a_call_for_each_node_however_many_logs(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            logs = [f"log-{number}" for number in range(20)]
            tails = [await store.append(log, b"x") for log in logs]
            with counted_calls() as calls:
                assert await store.released(logs) == tails
            assert calls == {"AskReleased": 3}

    @as_scenario(simulate, nodes=5)
    async def test_a_node_that_is_gone_is_done_without(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=10) as store:
            logs = [f"log-{number}" for number in range(6)]
            tails = [await store.append(log, b"x") for log in logs]
            assert await store.released(logs) == tails  # and who sequences them is known
            cluster.kill(2)
            again = await store.released(logs)
            assert all(new >= old for new, old in zip(again, tails, strict=True))
            for log, tail in zip(logs, again, strict=True):
                assert tail <= await store.tail(log)


class TestEpochEnd:
    def test_is_where_the_bridge_begins(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            first = store.append_many("log", [b"x"] * 7)[-1]
        with open_at(tmp_path) as store:
            second = store.append("log", b"y")
            assert second.epoch > first.epoch
            assert store.epoch_end("log", first.epoch) == first + 1

    def test_of_an_epoch_without_records_is_its_first_lsn(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            store.create_log("log")
            empty = store.tail("log").epoch
        with open_at(tmp_path) as store:
            store.append("log", b"y")
            assert store.epoch_end("log", empty) == make_lsn(empty, 1)

    def test_of_an_open_epoch_is_waited_for_no_longer_than_the_timeout(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            store.append("log", b"x")
        settings = ClientSettings(timeout_s=0.2)
        with open_blocking(
            lambda: open_store(embedded_store(str(tmp_path), settings, 8 * MIB)), settings
        ) as store:
            open_epoch = store.tail("log").epoch
            with pytest.raises(Unreachable, match=f"epoch {open_epoch} of log ends"):
                store.epoch_end("log", open_epoch)

    def test_is_told_to_readers_alone(self, tmp_path: Path):
        """Refused, the question had the answer of an epoch whose end nobody knows any more."""
        with open_at(tmp_path) as store:
            first = store.append("log", b"x")
        with open_at(tmp_path) as store:
            store.append("log", b"y")
            store.log_tree.set_attributes("log", LogAttributes(read_token=token_digest("sesame")))
            address = store.serve()
            settings = ClientSettings(read_tokens=("sesame",))
            with connect(address, settings) as reader:
                assert reader.epoch_end("log", first.epoch) == first + 1
            with connect(address, ClientSettings(timeout_s=5)) as stranger:

                def ask_until_refused() -> None:
                    for _ in range(200):  # nodes hear of the right within a second
                        stranger.epoch_end("log", first.epoch)
                        time.sleep(0.1)

                with pytest.raises(AccessDenied, match="read token"):
                    ask_until_refused()


class TestBlockRuns:
    def test_tile_the_range_with_what_blocks_gives(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            for number in range(50):
                store.append_many("log", [b"%d" % number] * (1 + number % 3))
            last = store.append("log", b"end")
            with store.read("log", until=last) as reader:
                one_by_one = [place(each) for each in reader.blocks()]
            with store.read("log", until=last) as reader:
                runs = list(reader.block_runs(bytes_max=200))
            assert [place(each) for run in runs for each in run] == one_by_one
            assert all(runs)
            assert 1 < len(runs) < len(one_by_one)

    def test_end_in_an_error_once_nothing_came_in_time(self, tmp_path: Path):
        with open_at(tmp_path) as store:
            last = store.append("log", b"x")
            with store.read("log", until=Lsn(last + 1)) as reader:
                runs = reader.block_runs(timeout_s=0.1)
                assert [place(each) for each in next(runs)][-1][1] == last
                with pytest.raises(Unreachable):
                    next(runs)


class TestIdentity:
    def test_is_the_clusters_own_and_stays(self, tmp_path: Path):
        with open_at(tmp_path / "a") as store:
            first = store.cluster_id
        with open_at(tmp_path / "a") as store, open_at(tmp_path / "b") as other:
            assert len(first) == 32
            assert store.cluster_id == first != other.cluster_id

    def test_a_closed_store_says_so(self, tmp_path: Path):
        store = open_at(tmp_path)
        assert not store.is_closed
        store.close()
        assert store.is_closed
        with pytest.raises(Closed):
            store.tails(["log"])


def place(taken: Delivery | Gap) -> tuple[int, int, GapKind | None]:
    """Where a block or gap lies."""
    return taken.first, taken.last, taken.kind if isinstance(taken, Gap) else None
