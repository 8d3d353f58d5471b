"""The metadata tests' stores."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from metadata_play import Act, run_on_sqlite, run_on_zookeeper, run_patiently
from zookeeper_at_hand import ZooKeeperServer, want_of_zookeeper, zookeeper_server

from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.metadata.memory import MemoryMetadata
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.metadata.store import MetadataStore
from cordwood.metadata.zookeeper import ZooKeeperMetadata

PairAct = Callable[[MetadataStore, MetadataStore], Awaitable[None]]

_roots = itertools.count(1)


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ZooKeeperServer]]:
    """One server for all tests, if any of them wants it."""
    started: list[ZooKeeperServer] = []
    if want_of_zookeeper():
        yield started
        return
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield [server]


@pytest.fixture
def zookeeper(request: pytest.FixtureRequest, require: Callable[[str, str], Any]) -> str:
    """`host:port/root` of a store of this test's own, on a real server."""
    if want_of_zookeeper():
        require("zookeeper", want_of_zookeeper())
    (server,) = request.getfixturevalue("_servers")
    return f"{server.address}/tests/{next(_roots)}"


@pytest.fixture(params=["sqlite", "memory", "zookeeper"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Act[Any]], Any]:
    """`play(act)` runs `act(store)`; every play of one test is on the same data."""
    if request.param == "sqlite":
        return lambda act: run_on_sqlite(tmp_path / "metadata.sqlite", act)
    if request.param == "zookeeper":
        where = request.getfixturevalue("zookeeper")
        return lambda act: run_on_zookeeper(where, act)
    chance = random.Random(1)
    data = MemoryMetadata(chance).data
    return lambda act: run_patiently(act(MemoryMetadata(chance, data)))


@pytest.fixture(params=["sqlite", "memory", "zookeeper"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[PairAct], None]:
    """`pair(act)` runs `act(one, other)` on two stores with the same data."""
    if request.param == "sqlite":
        path = tmp_path / "metadata.sqlite"
        return lambda act: run_on_sqlite(
            path,
            lambda one: run_with_another(act, one, lambda host: SqliteMetadata(str(path), host)),
        )
    if request.param == "zookeeper":
        where = request.getfixturevalue("zookeeper")
        hosts, slash, root = where.partition("/")
        return lambda act: run_on_zookeeper(
            where,
            lambda one: run_with_another(
                act, one, lambda host: ZooKeeperMetadata(hosts, slash + root, host)
            ),
        )
    chance = random.Random(1)
    one = MemoryMetadata(chance)
    return lambda act: run_patiently(act(one, MemoryMetadata(chance, one.data)))


async def run_with_another(
    act: PairAct, one: MetadataStore, make: Callable[[Host], MetadataStore]
) -> None:
    async with real_host() as host:
        other = make(host)
        try:
            await act(one, other)
        finally:
            await other.close()


@pytest.fixture
def memory() -> MemoryMetadata:
    """A store whose faults a test can set; run it with `run_patiently`."""
    return MemoryMetadata(random.Random(1))
