"""The write path on a whole cluster: waves, retries, full WALs, and frames of hostile clients."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from cluster_at_hand import ClusterAtHand, at, others, read_all, simulate, until, values
from crc32c import crc32c
from scenarios import as_scenario, now
from swaps import swap_value

from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, Overloaded, RecordTooLarge
from cordwood.layout.append_group import GroupPart
from cordwood.layout.body import encode_body
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.hello import ANY_CLUSTER, Hello
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.message import AppendFault, read_append_faults
from cordwood.layout.waves import AppendEntry, AppendFlag, append_entry, append_head, read_pairs
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId
from cordwood.sequencer import role
from cordwood.settings import MIB, SequencerSettings
from cordwood.sim.memory_logs import MemoryTables
from cordwood.storage.logs_db.tables import Row, TablesNoSpace
from cordwood.wire.connection import Connection, dial

LOG = 1


class RawClient:
    """A client's connection that sends what the test makes.

    Attributes:
        acked: first LSN by token.
        faults: by token.
    """

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}
        self.faults: dict[int, AppendFault] = {}
        self.error: CordwoodError | None = None
        self.connection: Connection

    @classmethod
    async def to_sequencer(cls, cluster: ClusterAtHand) -> RawClient:
        client = cls()
        address = cluster.addresses[cluster.sequencer_of(LOG) - 1]
        client.connection = await dial(
            cluster.client_host().network, address, Hello(0, ANY_CLUSTER), client, timeout_s=5
        )
        return client

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == Kind.APPENDED:
            self.acked.update(read_pairs(frame.payload))
        elif frame.kind == Kind.APPEND_FAULTS:
            self.faults.update({each.token: each for each in read_append_faults(frame.payload)})

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        self.error = error

    def append(self, *entries: AppendEntry) -> None:
        parts: list[bytes] = [append_head(len(entries))]
        for each in entries:
            parts += (append_entry(each), bytes(each.body))
        self.connection.send(Kind.APPEND, 0, parts)


def entry(token: int, body: bytes, *, count: int = 1, log: int = LOG, **fields: int) -> AppendEntry:
    crc = crc32c(body)
    made = AppendEntry(log, token, count, 0, 0, 0, 0, 0, 0, 0, len(body), len(body), crc, crc, body)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def body_of(*values: bytes) -> bytes:
    return encode_body(values, timestamps_us=0)


class TestWaves:
    @as_scenario(simulate, nodes=5)
    async def test_a_stopped_node_is_passed_over_by_the_next_wave(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"0")
            holders = [n for n in cluster.running if cluster.held(n, LOG)]
            victim = next(n for n in holders if n != cluster.sequencer_of(LOG))
            cluster.machine(victim).pause()
            start = now()
            await asyncio.gather(*(store.append("log", b"%d" % n) for n in range(1, 20)))
            assert now() - start < 2
            start = now()
            await store.append("log", b"20")
            assert now() - start < 0.2, "it is not picked again for a while"
            cluster.machine(victim).resume()
            assert await values(store, "log") == [b"%d" % n for n in range(21)]

    @pytest.mark.parametrize("seed", range(4))
    def test_acks_are_in_order_and_readers_see_each_record_once_whatever_is_retried(
        self, seed: int
    ) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            chance = random.Random(seed)
            async with cluster.client() as store:
                log = await store.open_log("log")
                acked: list[Lsn] = []
                futures = []
                for number in range(400):
                    future = log.append_nowait(b"%d" % number)
                    future.add_done_callback(lambda done: acked.append(done.result()))
                    futures.append(future)
                    if chance.random() < 0.05 and others(cluster):
                        pair = (
                            [f"node-{cluster.sequencer_of(LOG) or 1}"],
                            [f"node-{chance.choice(others(cluster))}"],
                        )
                        cluster.simulation.network.reset(*pair)
                    await asyncio.sleep(chance.choice((0, 0.0005, 0.005)))
                lsns = await asyncio.gather(*futures)
                assert acked == sorted(acked), "acknowledged in LSN order"
                items = [each for each in await read_all(store, "log") if isinstance(each, Record)]
                by_lsn = dict(zip(lsns, range(400), strict=True))
                assert [by_lsn[each.lsn] for each in items] == [int(each.value) for each in items]
                assert len(items) == 400

        simulate(scenario, nodes=5, seed=seed)

    @as_scenario(simulate, nodes=5)
    async def test_each_record_is_on_as_many_nodes_as_asked_when_it_is_acknowledged(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            for number in range(30):
                lsn = await store.append("log", b"%d" % number)
                holders = [
                    n
                    for n in cluster.running
                    if any(first <= lsn <= last for first, last, _ in cluster.held(n, LOG))
                ]
                assert len(holders) >= 3


class TestEpochsRunOut:
    @as_scenario(simulate, sequencer=SequencerSettings(esns=10))
    async def test_the_next_epoch_goes_on_where_the_esns_end(self, cluster: ClusterAtHand) -> None:
        async with cluster.client(block_records=4) as store:
            sent = [b"%d" % n for n in range(95)]
            lsns: list[Lsn] = []
            for at_once in range(0, 95, 19):
                lsns += await store.append_many("log", sent[at_once : at_once + 19])
            assert lsns == sorted(lsns)
            assert max(lsn.esn for lsn in lsns) <= 10
            assert 10 <= max(lsn.epoch for lsn in lsns) <= 20
            items = await read_all(store, "log")
            found = [each for each in items if isinstance(each, Record)]
            assert [each.value for each in found] == sent
            assert [each.lsn for each in found] == lsns

    @as_scenario(simulate, sequencer=SequencerSettings(esns=10))
    async def test_a_block_goes_whole_into_one_epoch(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            assert (await store.append_many("log", [b"v"] * 6))[-1] == at(6)
            assert await store.append_many("log", [b"v"] * 5) == [at(n, 2) for n in range(1, 6)]
            assert await store.append_many("log", [b"v"] * 10) == [at(n, 3) for n in range(1, 11)]
            with pytest.raises(CordwoodError, match="a block has at most"):
                await store.append_many("log", [b"v"] * 11)
            assert await store.append("log", b"v") == at(1, 4)

    @as_scenario(simulate, sequencer=SequencerSettings(esns=7))
    async def test_append_times_never_fall_even_over_epochs_and_clocks_that_jump(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            for turn in range(30):
                await store.append("log", b"%d" % turn)
                clock = cluster.machine(cluster.sequencer_of(LOG) or 1).clock
                clock.step((-1) ** turn * 3_600_000_000)
            times = [
                each.append_time_us
                for each in await read_all(store, "log")
                if isinstance(each, Record)
            ]
            assert times == sorted(times)
            assert len(times) == 30


class FullTables(MemoryTables):
    """LogsDB on a disk without space: nothing leaves the WAL."""

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        if table != META_TABLE:
            raise TablesNoSpace("no space left")
        await super().write(table, rows)


class TestFull:
    """Four MiB and more are appended to WALs of eight by fifty callers at once, and the disks
    have no space to flush them to."""

    @pytest.mark.parametrize(("nodes", "size"), [(3, 20_000), (3, 300), (5, 60_000)])
    def test_it_is_overloaded_with_what_to_do_and_nothing_is_left_unknown(
        self, nodes: int, size: int
    ) -> None:
        """Runs that were numbered found no room, were tried again for ever, and held up all
        behind them: every append after that ended as an unknown outcome."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client(timeout_s=3) as store:
                acked, outcomes = await append_until_full(store, cluster, size)
                assert set(outcomes) == {"Overloaded"}
                assert len(acked) * size > 3 * MIB
                tail = await store.tail("log")
                assert tail == max(acked.values())
                found = await read_all(store, "log")
                assert {each.lsn: each.value for each in found if isinstance(each, Record)} == {
                    lsn: value for value, lsn in acked.items()
                }
                with pytest.raises(Overloaded, match=r"no room.*disks are full"):
                    await store.append("log", bytes(500_000))

        simulate(scenario, nodes=nodes, wal_bytes=8 * MIB, make_tables=FullTables)

    @as_scenario(simulate, wal_bytes=8 * MIB, make_tables=FullTables)
    async def test_a_log_on_full_nodes_can_still_be_recovered_and_read(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=3) as store:
            acked, _ = await append_until_full(store, cluster, 20_000)
            for number in (1, 2, 3):
                cluster.kill(number)
            await cluster.start()
            assert await store.tail("log") == at(0, epoch=2)
            found = await read_all(store, "log")
            assert [each.value for each in found if isinstance(each, Record)] == sorted(
                acked, key=lambda value: acked[value]
            )
            with pytest.raises(Overloaded, match="no room"):
                await store.append("log", bytes(500_000))

    @as_scenario(simulate, wal_bytes=8 * MIB, make_tables=FullTables)
    async def test_nodes_with_room_take_over_from_full_ones(self, cluster: ClusterAtHand) -> None:
        """Node 4 and 5 join nodes that are full; a log made then lives on all of them."""
        async with cluster.client(timeout_s=5) as store:
            await append_until_full(store, cluster, 60_000)
            cluster.add_nodes(3)
            await cluster.start(4, 5, 6)
            await asyncio.sleep(6)
            made = await store.create_log("other")
            assert made.history[0].nodes == [1, 2, 3, 4, 5, 6]
            for number in range(20):
                await store.append("other", b"%d" % number)
            assert await values(store, "other") == [b"%d" % n for n in range(20)]


async def append_until_full(
    store: Store, cluster: ClusterAtHand, size: int
) -> tuple[dict[bytes, Lsn], Counter[str]]:
    """Fifty callers append until each was refused twice: LSN by value, errors by name."""
    acked: dict[bytes, Lsn] = {}
    outcomes: Counter[str] = Counter()

    async def call(number: int) -> None:
        refused = 0
        for turn in range(10_000):
            value = b"%d-%d " % (number, turn) + bytes(size)
            try:
                acked[value] = await store.append("log", value)
            except CordwoodError as error:
                outcomes[type(error).__name__] += 1
                refused += 1
                if refused == 2:
                    return

    await asyncio.gather(*(call(number) for number in range(50)))
    assert cluster.running
    return acked, outcomes


class TestReplaced:
    @as_scenario(simulate, nodes=5)
    async def test_a_sequencer_hears_of_the_next_one_and_takes_nothing_more(
        self, cluster: ClusterAtHand
    ) -> None:
        """Seeds 685867048 and 685867094: it heard only when a store of its was refused. The
        append that found this out, long after, ended as an unknown outcome."""
        async with cluster.client() as store:
            await store.append("log", b"0")
            old, new = cluster.sequencer_of(LOG), others(cluster)[0]
            successor = cluster.running[new]
            cluster.simulation.network.partition([f"node-{old}"], [f"node-{new}"])
            await until(lambda: successor._peers.get(NodeId(old)) is None)
            successor._sequencer._table.start(LOG)
            await until(lambda: LOG in successor._sequencer.sequencing())
            cluster.simulation.network.mend_all()
            await until(lambda: LOG not in cluster.running[old]._sequencer.sequencing())
            assert (await store.append("log", b"1")) > at(0, epoch=2)


class TestBounds:
    def test_what_does_not_fit_beside_what_is_in_flight_is_refused(self) -> None:
        """The window is one of bytes, and the block that would go over it counts."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append("log", b"0")
                raw = await RawClient.to_sequencer(cluster)
                for number in others(cluster):
                    cluster.machine(number).pause()
                body = body_of(bytes(600 << 10))
                raw.append(entry(1, body))
                raw.append(entry(2, body))
                await until(lambda: 2 in raw.faults)
                assert raw.faults[2].fault.error == "Overloaded"
                assert 1 not in raw.faults
                for number in others(cluster):
                    cluster.machine(number).resume()
                await until(lambda: 1 in raw.acked)

        settings = SequencerSettings(window_bytes=1 << 20)
        simulate(scenario, nodes=3, wal_bytes=64 << 20, sequencer=settings)

    @pytest.mark.parametrize(("over", "refused"), [(0, False), (1, True)])
    def test_a_group_of_as_many_bytes_as_are_allowed_is_taken(
        self, over: int, refused: bool
    ) -> None:
        settings = SequencerSettings()
        group = entry(1, b"")
        group.stored_bytes = settings.group_bytes_max + over
        group.parts = (GroupPart(1, 0, 0, 0, crc32c(b""), 0, b""),)
        assert isinstance(role._fault(group, settings), RecordTooLarge) == refused


class TestOrder:
    def test_nothing_passes_what_was_sent_back_until_the_client_begins_afresh(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log's blocks that a client sent before it heard of a refusal went on, and those
        of one call were numbered in another order than they were given in."""
        swap_value(monkeypatch, lambda: role.ACTIVATING_BYTES_MAX, 1000)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append("log", b"0")
                raw = await RawClient.to_sequencer(cluster)
                cluster.running[cluster.sequencer_of(LOG)]._sequencer.on_fenced(LOG, 0)
                small, large = body_of(b"1"), body_of(bytes(2000))
                raw.append(entry(1, small), entry(2, large), entry(3, small))
                await until(lambda: {2, 3} <= raw.faults.keys())
                raw.append(entry(4, small))
                await until(lambda: {1} == raw.acked.keys() and 4 in raw.faults)
                assert {fault.fault.error for fault in raw.faults.values()} == {"Overloaded"}
                raw.append(entry(5, small, flags=AppendFlag.AFRESH), entry(6, small))
                await until(lambda: {1, 5, 6} <= raw.acked.keys())
                assert raw.acked[1] < raw.acked[5] < raw.acked[6]

        simulate(scenario, nodes=3)


class TestHostileClients:
    @as_scenario(simulate, wal_bytes=8 * MIB)
    async def test_tens_of_thousands_of_tiny_blocks_in_one_tick_are_stored(
        self, cluster: ClusterAtHand
    ) -> None:
        """Only bodies were counted into a run, so their headers made it larger than any WAL
        record, and the nodes that it was sent to failed."""
        async with cluster.client() as store:
            await store.append("log", b"first")
            client = await RawClient.to_sequencer(cluster)
            body = body_of(b"")
            client.append(*(entry(token, body) for token in range(20_000)))
            await until(lambda: len(client.acked) + len(client.faults) == 20_000)
            assert client.faults == {}
            assert sorted(client.acked.values()) == [at(n) for n in range(2, 20_002)]
            assert all(not node.engine.failed for node in cluster.running.values())

    @pytest.mark.parametrize(
        "wrong",
        [
            entry(1, b"body", count=65_537),
            entry(1, b"body", count=2**32 - 1),
            entry(1, b"body", raw_bytes=2**32 - 1),
            entry(1, b"body", codec=9),
            entry(1, b"body", log=0),
        ],
    )
    def test_an_entry_that_no_header_may_describe_closes_its_connection_only(
        self, wrong: AppendEntry, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append("log", b"v")
                client = await RawClient.to_sequencer(cluster)
                client.append(wrong)
                await until(lambda: client.error is not None)
                start = now()
                assert await store.append("log", b"w") == at(2)
                assert now() - start < 0.1

        simulate(scenario)
        assert "closing the connection to a client" in caplog.text

    @as_scenario(simulate)
    async def test_damaged_and_unknown_are_refused_one_by_one(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            client = await RawClient.to_sequencer(cluster)
            good = body_of(b"good")
            client.append(
                entry(1, good),
                entry(2, b"damaged", stored_crc=1),
                entry(3, good, log=77, flags=1),
                entry(4, good),
            )
            await until(lambda: len(client.acked) + len(client.faults) == 4)
            assert client.acked == {1: at(2), 4: at(3)}
            assert client.faults[2].fault.error == "ChecksumMismatch"
            assert client.faults[3].fault.error == "UnknownLog"
            assert await values(store, "log") == [b"v", b"good", b"good"]

    @as_scenario(simulate)
    async def test_stores_seals_and_releases_are_not_for_clients(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"v")
            for kind in (Kind.STORE, Kind.RELEASE):
                client = await RawClient.to_sequencer(cluster)
                client.connection.send(kind, 1, (b"",))
                await until(lambda client=client: client.error is not None)
            assert await store.append("log", b"w") == at(2)
