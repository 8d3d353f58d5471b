"""The edges of the calls about places in a log, a row for each sentence of LogDevice's.

Source: docs/sources/logdevice.md 1 ("Positions"), 2.13. Where this store differs the row says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate

from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.errors import Rejected, Retryable, UnknownLog
from cordwood.lsn import OLDEST, Lsn, make_lsn
from cordwood.settings import StorageSettings

SMALL = StorageSettings(flush_age_s=0.5, partition_age_s=2, recent_bytes=0)
"""What was stored seconds ago is in LogsDB, in partitions of a few blocks each."""

LOG = "log"
LATE_US = 1 << 61
ROWS: list[tuple[str, str, Callable[..., Awaitable[None]]]] = []


def row(digest: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """A row: what the digest says, and what shows it here."""

    def add(scenario: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        ROWS.append((scenario.__name__, digest, scenario))
        return scenario

    return add


async def records_of(store: Store) -> list[Record]:
    return [item for item in await read_all(store, LOG) if isinstance(item, Record)]


async def three(store: Store) -> list[Record]:
    """Three records in blocks of their own, a second apart, with keys b, b and d."""
    for key in (b"b", b"b", b"d"):
        await store.append(LOG, key, key=key)
        await asyncio.sleep(1)
    return await records_of(store)


async def time_of(store: Store, time_us: int) -> Lsn:
    place = await store.find_time(LOG, time_us)
    assert not place.is_partial
    return place.lsn


async def node_misses_a_trim(cluster: ClusterAtHand, store: Store, lsn: Lsn) -> None:
    """A trim that a node missed; it is back, and holds what the others have let go of."""
    away = next(n for n in cluster.running if n != cluster.sequencer_of(1))
    cluster.kill(away)
    assert [*(await store.trim(LOG, lsn)).missing] == [away]
    await cluster.start(away)
    await asyncio.sleep(10)


async def next_epoch(cluster: ClusterAtHand) -> None:
    """The log's sequencer dies and its node comes back; the next question takes an epoch."""
    node = cluster.sequencer_of(1)
    cluster.kill(node)
    await cluster.start(node)
    await asyncio.sleep(5)


# The tail.


@row("getTailLSN: at least every LSN acknowledged before the call; may be no record")
async def tail_is_not_below_an_ack(cluster: ClusterAtHand, store: Store) -> None:
    for number in range(20):
        acked = await store.append(LOG, b"%d" % number)
        assert await store.tail(LOG) >= acked == make_lsn(1, number + 1)
    await next_epoch(cluster)
    assert await store.tail(LOG) == make_lsn(2, 0)


@row("getTailAttributes: the last released real LSN and its timestamp (no byte offset here)")
async def tail_attributes_are_a_records(cluster: ClusterAtHand, store: Store) -> None:
    last = (await three(store))[-1]
    for _ in range(2):
        found = await store.tail_attributes(LOG)
        assert found is not None
        assert (found.lsn, found.append_time_us) == (last.lsn, last.append_time_us)
        await next_epoch(cluster)  # its bridge and (E, 0) are no records


@row("getTailAttributes, isLogEmpty: AGAIN while recovering; here every call is Retryable then")
async def while_recovering_all_may_be_asked_again(cluster: ClusterAtHand, store: Store) -> None:
    await three(store)
    for node in [n for n in cluster.numbers if n != 1]:
        cluster.kill(node)
    if cluster.sequencer_of(1):
        cluster.kill(1)
        await cluster.start(1)
    for ask in CALLS:
        with pytest.raises(Retryable):
            await ask(store)


# The head.


@row("getHeadAttributes: the trim point, and the time of the next record (exact here)")
async def head_attributes_are_those_above_the_trim_point(
    cluster: ClusterAtHand, store: Store
) -> None:
    records = await three(store)
    for trim in (0, 1, 2):
        if trim:
            await store.trim(LOG, records[trim - 1].lsn)
        point, first = await store.head_attributes(LOG)
        assert first is not None
        assert point == (records[trim - 1].lsn if trim else 0)
        assert (first.lsn, first.append_time_us) == (
            records[trim].lsn, records[trim].append_time_us,
        )  # fmt: skip
    await store.trim(LOG, "tail")
    assert await store.head_attributes(LOG) == (records[2].lsn, None)


@row("what a node holds that missed a trim is none of the log (PARTIAL: one view here)")
async def the_head_where_a_node_missed_a_trim(cluster: ClusterAtHand, store: Store) -> None:
    """The LSN behind the trim point, where no record is, was told for sure as the first one."""
    records = await three(store)
    await next_epoch(cluster)
    late = await store.append(LOG, b"late")
    await asyncio.sleep(5)
    await node_misses_a_trim(cluster, store, records[2].lsn)
    point, first = await store.head_attributes(LOG)
    assert first is not None
    assert (point, first.lsn) == (records[2].lsn, late)
    assert first.append_time_us > records[2].append_time_us
    assert await time_of(store, 0) == records[2].lsn + 1


@row("a trim may fall inside a block: the head is the record above it (design §2)")
async def trim_inside_a_block(cluster: ClusterAtHand, store: Store) -> None:
    lsns = await store.append_many(LOG, [b"%d" % number for number in range(5)])
    await store.trim(LOG, lsns[1])
    point, first = await store.head_attributes(LOG)
    assert first is not None
    assert (point, first.lsn) == (lsns[1], lsns[2])
    assert await time_of(store, 0) == lsns[2]
    assert [record.lsn for record in await records_of(store)] == lsns[2:]
    await store.trim(LOG, lsns[4])
    assert await store.is_empty(LOG)
    assert (await store.data_size(LOG)).bytes == 0


# Times.


@row("findTime: the first LSN with timestamp >= ts")
async def time_of_each_record(cluster: ClusterAtHand, store: Store) -> None:
    for record in await three(store):
        assert await time_of(store, record.append_time_us) == record.lsn
        assert await time_of(store, record.append_time_us + 1) == record.lsn + 1


@row("findTime: records of one timestamp, the first of them; a block has one append time")
async def time_of_a_block(cluster: ClusterAtHand, store: Store) -> None:
    before = await store.append(LOG, b"")
    await asyncio.sleep(1)
    lsns = await store.append_many(LOG, [b"x"] * 5)
    time_us = (await records_of(store))[-1].append_time_us
    assert await time_of(store, time_us) == lsns[0] == before + 1
    assert await time_of(store, time_us + 1) == lsns[4] + 1


@row("findTime: before everything, the LSN after the trim point")
async def time_before_everything(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    assert await time_of(store, -LATE_US) == await time_of(store, 0) == OLDEST
    await store.trim(LOG, records[0].lsn)
    assert await time_of(store, 0) == records[0].lsn + 1


@row("findTime: after everything, the next LSN to be issued")
async def time_after_everything(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    assert await time_of(store, LATE_US) == records[-1].lsn + 1
    await next_epoch(cluster)
    assert await time_of(store, LATE_US) == make_lsn(2, 1)
    assert await store.append(LOG, b"next") == make_lsn(2, 1)


@row("findTime: in an empty log OLDEST, whatever the time")
async def time_in_an_empty_log(cluster: ClusterAtHand, store: Store) -> None:
    await store.create_log(LOG)
    for time_us in (0, LATE_US):
        assert await time_of(store, time_us) == OLDEST
    await next_epoch(cluster)
    for time_us in (0, LATE_US):
        assert await time_of(store, time_us) == OLDEST


@row("findTime: of a log that is trimmed whole, the next LSN")
async def time_in_a_trimmed_log(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    await store.trim(LOG, "tail")
    for time_us in (0, records[1].append_time_us, LATE_US):
        assert await time_of(store, time_us) == records[-1].lsn + 1


@row("findTime APPROXIMATE: stops at the directory, and errs to the early side only")
async def time_approximate(cluster: ClusterAtHand, store: Store) -> None:
    for record in await three(store):
        about = await store.find_time(LOG, record.append_time_us, approximate=True)
        assert OLDEST <= about.lsn <= record.lsn


@row("findTime: across epochs, between the last record of one and the first of the next")
async def time_between_epochs(cluster: ClusterAtHand, store: Store) -> None:
    last = (await three(store))[-1]
    await next_epoch(cluster)
    first = await store.append(LOG, b"next")
    assert last.lsn < await time_of(store, last.append_time_us + 1) <= first


# Keys.


@row("findKey: lo is the last record below the key, hi the first that is not")
async def keys_of_equal_records(cluster: ClusterAtHand, store: Store) -> None:
    one, two, three_ = [record.lsn for record in await three(store)]
    for key, before, at in (
        (b"a", None, one),
        (b"b", None, one),
        (b"c", two, three_),
        (b"d", two, three_),
        (b"e", three_, None),
    ):
        found = await store.find_key(LOG, key)
        assert (found.before, found.at, found.is_partial) == (before, at, False)


@row("findKey: what is trimmed is not there; in an empty log nothing is (None, not OLDEST)")
async def keys_that_are_trimmed(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    await store.trim(LOG, records[0].lsn)
    found = await store.find_key(LOG, b"b")
    assert (found.before, found.at) == (None, records[1].lsn)
    await store.trim(LOG, "tail")
    found = await store.find_key(LOG, b"b")
    assert (found.before, found.at) == (None, None)
    await store.create_log("empty")
    found = await store.find_key("empty", b"b")
    assert (found.before, found.at) == (None, None)


# Whether there is anything, and how much.


@row("isLogEmpty: a log of bridges only is empty, and one that is trimmed whole")
async def bridges_are_nothing(cluster: ClusterAtHand, store: Store) -> None:
    await store.create_log(LOG)
    assert await store.is_empty(LOG)
    await next_epoch(cluster)
    assert (await store.tail(LOG)).epoch >= 1
    assert await store.is_empty(LOG)
    assert await store.tail_attributes(LOG) is None
    assert await store.head_attributes(LOG) == (0, None)
    assert (await store.data_size(LOG)).bytes < 200  # its bridge
    await store.append(LOG, b"one")
    assert not await store.is_empty(LOG)
    await store.trim(LOG, "tail")
    assert await store.is_empty(LOG)
    await store.append(LOG, b"two")
    assert not await store.is_empty(LOG)


@row("dataSize: of [start, end), each record once; nothing outside of it")
async def sizes(cluster: ClusterAtHand, store: Store) -> None:
    for _ in range(4):
        await store.append(LOG, b"x" * 10_000)
        await asyncio.sleep(5)
    records = await records_of(store)
    whole = (await store.data_size(LOG)).bytes
    assert 40_000 <= whole <= 44_000
    start, stop = records[0].append_time_us, records[-1].append_time_us
    assert (await store.data_size(LOG, 0, start)).bytes == 0
    assert (await store.data_size(LOG, stop + 1, LATE_US)).bytes == 0
    assert (await store.data_size(LOG, start, stop)).bytes < whole


# Trimming.


@row("trim: inclusive")
async def trim_is_inclusive(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    assert not (await store.trim(LOG, records[1].lsn)).is_partial
    assert [record.lsn for record in await records_of(store)] == [records[2].lsn]


@row("trim: TOOBIG past the tail (Rejected); up to it is fine, also where it is no record")
async def trim_past_the_tail(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    with pytest.raises(Rejected, match="past"):
        await store.trim(LOG, records[-1].lsn + 1)
    await next_epoch(cluster)
    with pytest.raises(Rejected, match="past"):
        await store.trim(LOG, make_lsn(2, 1))
    await store.trim(LOG, make_lsn(2, 0))
    assert await store.is_empty(LOG)
    assert await store.append(LOG, b"next") == make_lsn(2, 1)
    assert [record.value for record in await records_of(store)] == [b"next"]


@row("trim: a trim point never falls; one that is lower changes nothing")
async def trim_below_the_trim_point(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    await store.trim(LOG, records[1].lsn)
    for lower in (0, records[0].lsn):
        assert not (await store.trim(LOG, lower)).is_partial
        assert (await store.head_attributes(LOG))[0] == records[1].lsn


@row("trim: PARTIAL where some nodes did not; the trimmed view is what readers get (one view here)")
async def trim_with_a_node_away(cluster: ClusterAtHand, store: Store) -> None:
    records = await three(store)
    away = next(n for n in cluster.numbers if n != cluster.sequencer_of(1))
    cluster.kill(away)
    done = await store.trim(LOG, records[1].lsn)
    assert done.is_partial
    assert set(done.missing) == {away}
    assert [record.lsn for record in await records_of(store)] == [records[2].lsn]
    await cluster.start(away)
    assert not (await store.trim(LOG, records[1].lsn)).is_partial


CALLS = (
    lambda store: store.tail(LOG),
    lambda store: store.tail_attributes(LOG),
    lambda store: store.head_attributes(LOG),
    lambda store: store.find_time(LOG, 0),
    lambda store: store.find_key(LOG, b"b"),
    lambda store: store.is_empty(LOG),
    lambda store: store.data_size(LOG),
    lambda store: store.trim(LOG, 1),
)


@row("NOTFOUND for a log that is not there; no question makes one")
async def a_log_that_is_not_there(cluster: ClusterAtHand, store: Store) -> None:
    for ask in CALLS:
        with pytest.raises(UnknownLog):
            await ask(store)
    assert await store.logs() == []


@pytest.mark.parametrize("storage", [StorageSettings(), SMALL], ids=["cache", "partitions"])
@pytest.mark.parametrize(("name", "digest", "scenario"), ROWS, ids=[name for name, _, _ in ROWS])
def test_edge(name: str, digest: str, scenario, storage: StorageSettings) -> None:
    async def main(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5.0) as store:
            await scenario(cluster, store)

    simulate(main, nodes=3, copies=2, storage=storage)
