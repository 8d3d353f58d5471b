"""What only the ZooKeeper store has: connections that break, sessions that end, servers that stop.

On a real server, behind a proxy that loses what it is told to.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import CutProxy, cut_proxy
from metadata_play import run_on_zookeeper
from zookeeper_at_hand import want_of_zookeeper, zookeeper_server

from cordwood.errors import BadSetting, Malformed, OutcomeUnknown, Unreachable
from cordwood.metadata import zookeeper as zookeeper_module
from cordwood.metadata.change import change
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.store import MetadataStore, Versioned
from cordwood.metadata.where import open_metadata
from cordwood.metadata.zookeeper import ZooKeeperMetadata
from cordwood.nodes import NodeId, Replication

SESSION_S = 0.6
"""The least that the tests' server grants is 0.4 s."""

LATENCY_S = 0.05
"""Of answers, where round trips are counted: a client sends two requests in far less."""


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[CutProxy]:
    port = int(zookeeper.partition("/")[0].rpartition(":")[2])
    with cut_proxy(port) as made:
        yield made


@pytest.fixture
def behind(zookeeper: str, proxy: CutProxy) -> str:
    """The store of `zookeeper`, by way of the proxy."""
    return f"{proxy.address}/{zookeeper.partition('/')[2]}"


def beside(act: Callable[[MetadataStore], Any], where: str) -> Any:
    """Run `act` on a store of its own, in a thread, from inside another's."""
    return asyncio.to_thread(run_on_zookeeper, where, act)


async def patient_take(store: MetadataStore) -> None:
    """Take the lease `a` when its holder has let it go."""
    until = time.monotonic() + 10
    while not await store.take_lease("a", b"theirs", 60):
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    await store.drop_lease("a")


async def lose(proxy: CutProxy, seconds: float = 0.1) -> None:
    """Let the loss go on for a moment, then cut the connections and heal."""
    await asyncio.sleep(seconds)
    proxy.cut()
    proxy.heal()


class TestLostWrites:
    def test_one_whose_answer_is_lost_is_found_to_be_done(
        self, zookeeper: str, behind: str, proxy: CutProxy
    ):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            proxy.loses_answers = True
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(store.compare_and_set("a", b"2", first))
                tasks.create_task(lose(proxy))
            assert await store.get("a") == Versioned(b"2", writing.result())

        run_on_zookeeper(behind, act)

    def test_one_that_never_arrived_is_made_again_and_done_once(self, behind: str, proxy: CutProxy):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            proxy.loses_requests = True
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(store.compare_and_set("a", b"2", first))
                tasks.create_task(lose(proxy))
            second = writing.result()
            assert second
            assert await store.get("a") == Versioned(b"2", second)
            # Had it been done twice, this one's data version would be behind.
            assert await store.compare_and_set("a", b"3", second)

        run_on_zookeeper(behind, act)

    @pytest.mark.parametrize("is_done", [True, False])
    def test_one_that_others_wrote_over_is_unknown_only_if_that_cannot_be_told(
        self, zookeeper: str, behind: str, proxy: CutProxy, is_done: bool
    ):
        async def write_over(store: MetadataStore) -> None:
            found = await store.get("a")
            assert await store.compare_and_set("a", b"theirs", found.version if found else 0)

        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            proxy.loses_answers, proxy.loses_requests = is_done, not is_done
            writing = asyncio.ensure_future(store.compare_and_set("a", b"2", first))
            await asyncio.sleep(0.1)
            proxy.is_shut = True
            proxy.cut()
            await beside(write_over, zookeeper)
            proxy.heal()
            if is_done:
                with pytest.raises(OutcomeUnknown):
                    await writing
            else:
                assert await writing is None
            found = await store.get("a")
            assert found
            assert found.value == b"theirs"

        run_on_zookeeper(behind, act)

    def test_a_delete_whose_answer_is_lost(self, behind: str, proxy: CutProxy):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            proxy.loses_answers = True
            async with asyncio.TaskGroup() as tasks:
                deleting = tasks.create_task(store.compare_and_set("a", None, first))
                tasks.create_task(lose(proxy))
            assert deleting.result()
            assert await store.get("a") is None
            assert await store.compare_and_set("a", b"2", 0)

        run_on_zookeeper(behind, act)

    def test_without_a_server_a_write_in_flight_is_unknown_and_others_are_not(
        self, behind: str, proxy: CutProxy
    ):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            proxy.loses_answers = proxy.is_shut = True
            writing = asyncio.ensure_future(store.compare_and_set("a", b"2", first))
            await asyncio.sleep(0.1)
            proxy.cut()
            with pytest.raises(OutcomeUnknown, match="did not say"):
                await writing
            with pytest.raises(Unreachable):
                await store.compare_and_set("a", b"3", first)
            with pytest.raises(Unreachable, match="did not answer within"):
                await store.get("a")
            with pytest.raises(Unreachable):
                await store.changed("a/", None, 60)
            proxy.heal()
            while True:
                try:
                    assert await store.get("a")
                    break
                except Unreachable:
                    continue

        run_on_zookeeper(behind, act, deadline_s=0.5)

    def test_a_change_meets_cuts_at_any_moment_and_is_made_once(self, behind: str, proxy: CutProxy):
        """Fifty increments while connections break: none lost, none done twice."""

        def decide(found: bytes | None) -> bytes:
            return b"%d" % (int(found or b"0") + 1)

        async def cut_on() -> None:
            for turn in range(100):
                await asyncio.sleep(0.02 + 0.013 * (turn % 5))
                proxy.loses_answers = turn % 2 == 0
                proxy.loses_requests = turn % 3 == 0
                try:
                    await asyncio.sleep(0.01)
                finally:
                    # Cancelled here too: a proxy that goes on losing answers nobody.
                    proxy.cut()
                    proxy.heal()

        async def act(store: MetadataStore) -> None:
            cutting = asyncio.ensure_future(cut_on())
            for _ in range(50):
                await change(store, "a", decide)
            cutting.cancel()
            await asyncio.wait([cutting])
            found = await store.get("a")
            assert found
            assert found.value == b"50"

        run_on_zookeeper(behind, act)


class TestSessions:
    def test_a_connection_that_comes_back_keeps_session_and_leases(
        self, behind: str, proxy: CutProxy
    ):
        async def act(store: MetadataStore) -> None:
            assert await store.take_lease("a", b"1", 60)
            proxy.cut()
            assert await store.take_lease("a", b"1", 60)
            assert await store.leases("") == [("a", b"1")]

        run_on_zookeeper(behind, act)

    def test_a_session_that_ended_loses_its_leases_and_another_begins(
        self, zookeeper: str, behind: str, proxy: CutProxy
    ):
        async def other(store: MetadataStore) -> None:
            until = time.monotonic() + 20
            while not await store.take_lease("a", b"theirs", 60):
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
            await store.drop_lease("a")

        async def act(store: MetadataStore) -> None:
            version = await store.compare_and_set("a", b"1", 0)
            assert await store.take_lease("a", b"ours", 60)
            proxy.is_shut = True
            proxy.cut()
            await beside(other, zookeeper)
            proxy.heal()
            assert await store.get("a") == Versioned(b"1", version)
            assert await store.take_lease("a", b"ours again", 60)

        run_on_zookeeper(behind, act, session_s=SESSION_S)

    def test_an_error_that_ends_kazoos_thread_does_not_end_the_session(
        self, behind: str, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
    ):
        """A process without free descriptors cannot look up a name. No call was answered again."""
        look_up = socket.getaddrinfo
        failed: list[object] = []

        def fail(*values: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread() or failed:
                return look_up(*values, **named)
            failed.append(values)
            raise OSError(errno.EMFILE, "Too many open files")

        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            assert await store.take_lease("a", b"ours", 60)
            monkeypatch.setattr(socket, "getaddrinfo", fail)
            # kazoo tries the same connection anew once, and then looks up its servers again.
            proxy.is_shut = True
            proxy.cut()
            until = time.monotonic() + 10
            while not failed:
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
            proxy.heal()
            assert await store.get("a") == Versioned(b"1", first)
            assert await store.compare_and_set("a", b"2", first)
            assert await store.leases("") == [("a", b"ours")]
            assert await store.take_lease("a", b"ours", 60)

        run_on_zookeeper(behind, act, session_s=20)

    def test_a_lease_that_could_not_be_dropped_is_dropped_later(
        self, zookeeper: str, behind: str, proxy: CutProxy
    ):
        """It was held for as long as the process lived, and nobody did its work."""

        async def act(store: MetadataStore) -> None:
            assert await store.take_lease("a", b"ours", 60)
            proxy.is_shut = True
            proxy.cut()
            with pytest.raises(Unreachable):
                await store.drop_lease("a")
            proxy.heal()
            await beside(patient_take, zookeeper)

        run_on_zookeeper(behind, act, deadline_s=0.5, session_s=20)

    def test_a_lease_that_is_not_renewed_ends_although_its_session_lives(self, zookeeper: str):
        async def act(store: MetadataStore) -> None:
            assert await store.take_lease("a", b"ours", 0.2)
            assert await store.take_lease("b", b"ours", 60)
            await beside(patient_take, zookeeper)
            assert await store.leases("") == [("b", b"ours")]

        run_on_zookeeper(zookeeper, act, session_s=20)

    def test_a_lease_that_is_renewed_is_kept(self, zookeeper: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(zookeeper_module, "LEASE_CHECK_S", 0.01)

        async def act(store: MetadataStore) -> None:
            for _ in range(30):
                assert await store.take_lease("a", b"ours", 0.5)
                await asyncio.sleep(0.05)
            assert await store.leases("") == [("a", b"ours")]

        run_on_zookeeper(zookeeper, act)

    def test_who_watches_is_told_of_what_changed_while_it_was_cut_off(
        self, zookeeper: str, behind: str, proxy: CutProxy
    ):
        async def write(store: MetadataStore) -> None:
            assert await store.compare_and_set("a/b", b"1", 0)

        async def act(store: MetadataStore) -> None:
            mark = await store.changed("a/", None, 5)
            waiting = asyncio.ensure_future(store.changed("a/", mark, 30))
            await asyncio.sleep(0.05)
            proxy.is_shut = True
            proxy.cut()
            await beside(write, zookeeper)
            proxy.heal()
            async with asyncio.timeout(5):
                assert await waiting != mark

        run_on_zookeeper(behind, act)


class TestServers:
    @pytest.fixture
    def server(self, tmp_path: Path, require):
        if want_of_zookeeper():
            require("zookeeper", want_of_zookeeper())
        with zookeeper_server(tmp_path) as made:
            yield made

    @pytest.mark.slow
    def test_stopped_killed_and_started_again(self, server):
        async def act(store: MetadataStore) -> None:
            first = await store.compare_and_set("a", b"1", 0)
            assert first
            server.stop()
            with pytest.raises(OutcomeUnknown):
                await store.compare_and_set("a", b"2", first)
            with pytest.raises(Unreachable):
                await store.get("a")
            server.go_on()
            found = await self._patient_get(store)
            assert found.value in (b"1", b"2")
            server.kill()
            # Unknown, where it was under way before the end of the connection was heard of.
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await store.compare_and_set("a", b"3", found.version)
            await asyncio.to_thread(server.start)
            found = await self._patient_get(store)
            assert await store.compare_and_set("a", b"4", found.version)

        run_on_zookeeper(f"{server.address}/x", act, deadline_s=1)

    async def _patient_get(self, store: MetadataStore) -> Versioned:
        for _ in range(30):
            try:
                found = await store.get("a")
            except Unreachable:
                continue
            assert found
            return found
        raise AssertionError("the server is back and does not answer")

    def test_where_there_is_none_that_is_said(self):
        async def act(store: MetadataStore) -> None:
            with pytest.raises(Unreachable, match=r"ZooKeeper at 127\.0\.0\.1:1 did not answer"):
                await store.get("a")

        run_on_zookeeper("127.0.0.1:1/x", act, deadline_s=0.2)


class TestListings:
    KEYS = tuple(f"many/{number:03}" for number in range(300))

    def test_a_listing_ends_beside_steady_writes_and_is_of_one_moment(self, zookeeper: str):
        is_over = threading.Event()

        async def write(store: MetadataStore) -> None:
            # One key after another gets the next number, so each moment has one step at most.
            versions = dict.fromkeys(self.KEYS, 0)
            for number in itertools.count():
                for key in self.KEYS:
                    version = await store.compare_and_set(key, b"%d" % number, versions[key])
                    assert version
                    versions[key] = version
                    if is_over.is_set():
                        return

        async def act(store: MetadataStore) -> None:
            writing = asyncio.create_task(beside(write, zookeeper))
            try:
                moments = set()
                async with asyncio.timeout(60):
                    while len(moments) < 5:
                        listed = await store.list("many/")
                        numbers = [int(each.value) for _, each in listed]
                        if len(numbers) == len(self.KEYS):
                            assert numbers == sorted(numbers, reverse=True)
                            assert numbers[0] - numbers[-1] <= 1
                            moments.add(sum(numbers))
            finally:
                is_over.set()
                await writing

        run_on_zookeeper(zookeeper, act)

    def test_a_page_passes_deleted_keys_many_at_a_time(
        self, zookeeper: str, behind: str, proxy: CutProxy
    ):
        async def fill(store: MetadataStore) -> None:
            for key in self.KEYS:
                version = await store.compare_and_set(key, b"", 0)
                assert version
                if key != self.KEYS[-1]:
                    await store.compare_and_set(key, None, version)

        async def act(store: MetadataStore) -> None:
            await beside(fill, zookeeper)
            await store.get("a")
            proxy.latency_s = LATENCY_S
            before = proxy.round_trips
            assert await store.keys_after("many/", "", 10) == [self.KEYS[-1]]
            assert proxy.round_trips - before < 20

        run_on_zookeeper(behind, act, session_s=10)


class TestPaths:
    def test_what_others_wrote_below_our_root_is_told(self, zookeeper: str):
        async def act(store: ZooKeeperMetadata) -> None:
            assert await store.compare_and_set("a/b", b"1", 0)
            await store._session.make(f"/{zookeeper.partition('/')[2]}/a/c", b"hello")
            with pytest.raises(Malformed, match="a/c"):
                await store.get("a/c")

        run_on_zookeeper(zookeeper, act)

    def test_an_address_opens_it(self):
        store = open_metadata("zookeeper://127.0.0.1:1/x", host=None)  # type: ignore[arg-type]
        assert isinstance(store, ZooKeeperMetadata)
        with pytest.raises(BadSetting):
            open_metadata("zookeeper://", host=None)  # type: ignore[arg-type]


def test_taking_an_epoch_costs_two_round_trips(behind: str, proxy: CutProxy):
    async def act(store: MetadataStore) -> None:
        epochs = EpochStore(store)
        await epochs.create(1, (NodeId(1), NodeId(2), NodeId(3)), Replication(3))
        proxy.latency_s = LATENCY_S
        for _ in range(3):
            before = proxy.round_trips
            await epochs.take_epoch(1)
            assert proxy.round_trips - before == 2

    run_on_zookeeper(behind, act, session_s=10)
