"""Rot in LogsDB is mended from other nodes' copies, in whole clusters and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, copies, healed, lose_disk, lost, missing, order, put_records
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.block import Envelope
from cordwood.errors import OutcomeUnknown
from cordwood.layout import logs_db
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.rebuilding import PARTS, Transfer
from cordwood.settings import MIB, StorageSettings
from cordwood.sim.damage import TABLES_PATH, damage_tables, lose_partition
from cordwood.sim.holdings import held_blocks
from cordwood.sim.memory_logs import MemoryTables, files_of_tables
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.logs_db.lost_partitions import WHY_LOST
from cordwood.storage.rebuild.donor_look import DonorLook
from cordwood.storage.rebuild.moves import Moves
from cordwood.storage.repair import copy_fetch, repairs
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.repair.sequencer_question import next_logs
from cordwood.storage.space.kept_bytes import kept_here

SCRUBBED = StorageSettings(flush_age_s=0.2, recent_bytes=0, scrub_bytes_s=MIB, scrub_every_s=2.0)
UNSCRUBBED = StorageSettings(flush_age_s=0.2, recent_bytes=0, scrub_bytes_s=0)


async def flushed(cluster: ClusterAtHand) -> None:
    await asyncio.sleep(1)
    for node in cluster.running.values():
        await node.flush()


def tables_of(cluster: ClusterAtHand, node: int) -> MemoryTables:
    tables = cluster.running[node].engine.logs.tables
    assert isinstance(tables, MemoryTables)
    return tables


def rot(cluster: ClusterAtHand, node: int, log: int, kind: bytes = b"b", most: int = 1) -> int:
    """Let rows of a log rot on a running node: bodies (`b`) or index entries (`i`)."""
    hit = 0
    for table in tables_of(cluster, node)._tables.values():
        for key in sorted(table.rows):
            is_wanted = key[:1] == kind and logs_db.read_place(key)[0] == log
            if is_wanted and key not in table.rotten and hit < most:
                table.rotten.add(key)
                hit += 1
    return hit


async def rot_at_rest(cluster: ClusterAtHand, node: int, seed: int) -> None:
    """Bits flip on the disk of a node that is stopped, as often as `damage_tables` does."""
    cluster.kill(node)
    assert damage_tables(cluster.machine(node).disk, random.Random(seed))
    await cluster.start(node)


def ranges(cluster: ClusterAtHand, node: int) -> list[DamagedRange]:
    """What a node takes for damaged, without what is mended."""
    return [each for each, _ in cluster.running[node].engine.logs.damages.all()]


def mended(cluster: ClusterAtHand, *nodes: int) -> Callable[[], bool]:
    """Whether these nodes found rot, and mended all of it."""

    def is_mended() -> bool:
        books = [cluster.running[node].engine.logs.damages for node in nodes]
        return all(book.mended and not book.all() for book in books)

    return is_mended


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_what_rots_on_all_nodes_but_one_is_mended_and_byte_equal(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await flushed(cluster)
    before = await copies(cluster)
    whole = await bodies(cluster)
    for node in (1, 2):
        await rot_at_rest(cluster, node, node)
    await until(mended(cluster, 1, 2))
    assert not await missing(cluster)
    assert (await copies(cluster)).keys() == before.keys()
    assert await bodies(cluster) == whole
    for node in (1, 2, 3):
        cluster.kill(node)
    await cluster.start()
    assert mended(cluster, 1, 2)()
    assert not await missing(cluster)
    assert await bodies(cluster) == whole


@as_scenario(simulate, nodes=5, storage=SCRUBBED)
async def test_what_rots_on_a_read_only_node_is_mended(cluster: ClusterAtHand) -> None:
    """It holds old records, and a rotten copy of these holds up each rebuilding."""
    await put_records(cluster)
    await flushed(cluster)
    async with cluster.client() as store:
        await store.set_storage(2, read_only=True)
    await until(lambda: bool(cluster.running[NodeId(2)].engine.read_only))
    rotten = rot(cluster, 2, 1, most=3)
    assert rotten == 3
    damages = cluster.running[NodeId(2)].engine.logs.damages

    def is_all_mended() -> bool:
        # A pass that is under way when the rows rot finds some of them only in the next pass.
        blocks = sum(each.last - each.first + 1 for each in damages.of_log(1))
        return blocks == rotten and not damages.all()

    await until(is_all_mended)
    assert not await missing(cluster)


async def bodies(cluster: ClusterAtHand) -> dict[tuple[int, int, int], bytes]:
    """By node, log and first LSN: header and body as stored."""
    found = {}
    for number, node in sorted(cluster.running.items()):
        for log in sorted(node.engine.cache.logs):
            for block in await held_blocks(node.engine, log):
                place = (number, log, block.header.first)
                found[place] = bytes(block.wire[:96]) + bytes(block.body)
    return found


@as_scenario(simulate, nodes=5, storage=SCRUBBED)
async def test_an_index_entry_that_rots_is_mended_by_what_an_f_majority_says(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, logs=1)
    await flushed(cluster)
    before = await copies(cluster)
    for node in (2, 4):
        rot(cluster, node, 1, b"i", most=3)
    await until(mended(cluster, *(n for n in (2, 4) if tables_of(cluster, n).rotten())))
    assert await copies(cluster) == before


@as_scenario(simulate, nodes=3, storage=UNSCRUBBED)
async def test_what_a_read_finds_is_mended_and_the_reader_is_told_of_no_loss(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, logs=1)
    await flushed(cluster)
    assert rot(cluster, 1, 1, most=5)
    async with cluster.client() as store:
        wanted = [b"1/%d" % number for number in range(20)]
        assert await values(store, "log-1") == wanted
        await held_blocks(cluster.running[1].engine, 1)
        await until(mended(cluster, 1))
        assert await values(store, "log-1") == wanted
    assert not await missing(cluster)


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_nothing_is_taken_from_a_node_whose_copy_has_rotted_too(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, logs=1, records=5)
    await flushed(cluster)
    for node in (1, 2, 3):
        rot(cluster, node, 1)
    await asyncio.sleep(30)
    assert all(ranges(cluster, node) for node in (1, 2, 3))
    assert [len(await held_blocks(cluster.running[n].engine, 1)) for n in (1, 2, 3)] == [4] * 3
    # One copy is good again, by a miracle: it is enough.
    for table in tables_of(cluster, 3)._tables.values():
        table.rotten.clear()
    for partition in cluster.running[3].engine.logs.partitions:
        cluster.running[3].engine.logs.damages.forget(partition.number)
    await until(mended(cluster, 1, 2), timeout_s=200)


@as_scenario(simulate, nodes=3, storage=UNSCRUBBED)
async def test_a_body_that_fails_its_checksum_is_not_taken(cluster: ClusterAtHand) -> None:
    await put_records(cluster, logs=1, records=5)
    await flushed(cluster)
    # Nobody has noticed: the row passes its own checksum, and the body does not.
    for table in tables_of(cluster, 2)._tables.values():
        for key in [key for key in table.rows if key[:1] == b"b"]:
            table.rows[key] = bytes(len(table.rows[key]))
    rot(cluster, 1, 1)
    await held_blocks(cluster.running[1].engine, 1)
    await until(mended(cluster, 1))
    taken = cluster.running[1]._repairs
    assert taken.blocks == 1
    found = {block.header.first: block for block in await held_blocks(taken._engine, 1)}
    assert all(repairs.is_good(block, block.header) for block in found.values())


def test_a_range_counts_as_damaged_until_its_copy_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    right = Repairs._store

    async def watched(self: Repairs, block: StoredBlock) -> None:
        seen.append(bool(self._logs.damages.all()))
        await right(self, block)
        seen.append(self._engine.cache.log(1).copy_of(block.header) is not None)
        seen.append(bool(self._logs.damages.all()))

    swap(monkeypatch, Repairs._store, watched)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1)
        await flushed(cluster)
        rot(cluster, 1, 1)
        await until(mended(cluster, 1))

    simulate(scenario, nodes=3, storage=SCRUBBED)
    assert seen == [True, True, True]


async def moves_without_end(cluster: ClusterAtHand, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A drain is taken back when new copies are stored and no envelope names them; then the copies
    of the drained node rot, and are mended. The nodes with an envelope of the first such block that
    count on its copy, that node first, and the node of its new copy."""
    right = Moves._send

    async def unanswered(
        self: Moves,
        node: NodeId,
        wires: Sequence[tuple[StoredBlock, Envelope]],
        *,
        amends: bool,
    ) -> str:
        trouble = await right(self, node, wires, amends=amends)
        return trouble if amends else "its answer was lost"

    await put_records(cluster, logs=1)
    await flushed(cluster)
    drained = min(next(iter((await copies(cluster)).values())))
    left: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
    with monkeypatch.context() as patch:
        swap(patch, Moves._send, unanswered)
        await order(cluster, drained, RebuildOrder.DRAIN)
        while not left:
            await asyncio.sleep(0.05)
            left = {at: held for at, held in (await copies(cluster)).items() if len(held) > 3}
        await order(cluster, drained, RebuildOrder.UNDRAIN)
        await asyncio.sleep(2)
    rot(cluster, drained, 1, most=20)
    await asyncio.sleep(20)  # some passes: each finds all that rotted before it
    assert mended(cluster, drained)()
    held = left[min(left)]
    new = next(node for node, copyset in held.items() if drained not in copyset)
    return [drained, *(node for node in held if node not in (drained, new)), new]


def test_a_copy_is_repaired_though_a_move_without_end_left_a_later_envelope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        _, *others = await moves_without_end(cluster, monkeypatch)
        assert not await missing(cluster)
        for node in reversed(others):
            lose_disk(cluster, node)
            await call_lost(cluster, node)
            cluster.keep_starting(node)
            await healed(cluster)
        async with cluster.client() as store:
            assert await values(store, "log-1") == [b"1/%d" % number for number in range(20)]

    simulate(scenario, nodes=5, storage=SCRUBBED)


def test_repair_that_goes_by_the_latest_of_all_envelopes_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: ClusterAtHand) -> bool:
        await moves_without_end(cluster, monkeypatch)
        return bool(await missing(cluster))

    with planted(find_bug("repair-believes-moves")):
        assert simulate(scenario, nodes=5, storage=SCRUBBED)


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_a_partition_that_rotted_takes_no_more_blocks(cluster: ClusterAtHand) -> None:
    await put_records(cluster, logs=1)
    await flushed(cluster)
    logs = cluster.running[1].engine.logs
    (before,) = logs.partitions
    files = before.files
    rot(cluster, 1, 1)
    await until(mended(cluster, 1))
    await put_records(cluster, logs=1)
    await flushed(cluster)
    assert before.files == files
    assert len(logs.partitions) == 2


async def trimmed_without(cluster: ClusterAtHand, node: int) -> int:
    """Rows rot on a node that is away while all others but one trim the log; the tail."""
    await put_records(cluster, logs=1)
    await flushed(cluster)
    cluster.kill(node)
    assert damage_tables(cluster.machine(node).disk, random.Random(1))
    async with cluster.client() as store:
        tail = int(await store.tail("log-1"))
    await cluster.running[2].engine.trim(1, tail, tail)
    await cluster.start(node)
    await asyncio.sleep(30)
    return tail


def test_repair_that_does_not_ask_who_trimmed_is_seen() -> None:
    async def scenario(cluster: ClusterAtHand) -> int:
        await trimmed_without(cluster, 1)
        return cluster.running[1]._repairs.blocks

    with planted(find_bug("repair-untrims")):
        assert simulate(scenario, nodes=3, storage=SCRUBBED)


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_what_was_trimmed_is_not_brought_back_and_its_range_goes(
    cluster: ClusterAtHand,
) -> None:
    tail = await trimmed_without(cluster, 1)
    node = cluster.running[1]
    assert node._repairs.blocks == 0
    assert ranges(cluster, 1), "it was found, and waits for the trim"
    await node.engine.trim(1, tail, tail)
    await asyncio.sleep(70)
    assert node._repairs.waits == ""
    assert await held_blocks(node.engine, 1) == []


def test_a_node_without_free_space_repairs_once_it_has_some() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1)
        await flushed(cluster)
        engine = cluster.running[1].engine
        engine.low_space = "the disk is nearly full"
        rot(cluster, 1, 1)
        await asyncio.sleep(20)
        assert ranges(cluster, 1)
        assert "free space" in cluster.running[1]._repairs.waits
        engine.low_space = ""
        await until(mended(cluster, 1), timeout_s=100)

    # The watch over the disk would say at once that there is space.
    simulate(scenario, nodes=3, storage=StorageSettings(
        flush_age_s=0.2, recent_bytes=0, scrub_bytes_s=MIB, scrub_every_s=2.0, disk_look_s=3600.0,
    ))  # fmt: skip


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_the_drops_of_a_mended_partition_forget_what_was_mended(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, logs=1)
    await flushed(cluster)
    rot(cluster, 1, 1)
    await until(mended(cluster, 1))
    await put_records(cluster, logs=1, records=2)
    await flushed(cluster)
    logs = cluster.running[1].engine.logs
    async with cluster.client() as store:
        await store.trim("log-1", await store.tail("log-1"))
    await logs.drop_trimmed(cluster.running[1].engine.gone_of)
    assert logs.damages.of_log(1) == []
    assert logs.damages.mended == 0


@as_scenario(simulate, nodes=3, copies=2, storage=SCRUBBED)
async def test_a_copy_that_the_end_of_its_epoch_removed_does_not_stay_damaged(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, logs=1)
    alone = cluster.sequencer_of(1)
    rest = [f"node-{number}" for number in cluster.numbers if number != alone]
    cluster.simulation.network.partition([f"node-{alone}"], rest)
    async with cluster.client(timeout_s=3) as store:
        with pytest.raises(OutcomeUnknown):
            await store.append("log-1", b"stored by its sequencer alone")
        await asyncio.sleep(1)
        await cluster.running[alone].flush()
        await asyncio.sleep(20)
        await store.append("log-1", b"of the next epoch")
        cluster.simulation.network.mend_all()
        held = cluster.running[alone].engine.cache.log(1)
        await until(lambda: 1 in held.ends)
    removed = held.ends[1].lng + 1
    for table in tables_of(cluster, alone)._tables.values():
        bodies = (key for key in table.rows if key[:1] == b"b")
        table.rotten |= {key for key in bodies if logs_db.read_place(key)[1] == removed}
    await until(mended(cluster, alone))


@as_scenario(simulate, nodes=3, storage=SCRUBBED)
async def test_a_repaired_block_is_not_counted_again_by_retention_by_size(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        await store.create_log("log-1", attributes=LogAttributes(backlog_bytes=1 << 20))
        for number in range(20):
            await store.append("log-1", b"%04d" % number * 250)
    await flushed(cluster)
    for node in (1, 2):
        assert rot(cluster, node, 1, most=20)
    await until(mended(cluster, 1, 2))
    async with cluster.client() as store:
        await store.append("log-1", b"last")
    await flushed(cluster)
    engines = [node.engine for node in cluster.running.values()]
    kept = [(await kept_here(engine, 1, [0]))[0] for engine in engines]
    assert 0 < sum(kept) <= 20 * 1000 + 4


def test_a_read_that_begins_before_a_repair_does_not_tell_its_block_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drop of another partition has the read begin anew amid the repair."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=2)
        await flushed(cluster)
        node = cluster.running[1]
        logs, tables = node.engine.logs, tables_of(cluster, 1)
        assert rot(cluster, 1, 1) == 1
        ((_, rotten),) = tables.rotten()
        _, last, first = logs_db.read_place(rotten)
        begun, go_on = asyncio.Event(), asyncio.Event()
        right = MemoryTables.scan

        async def slow(self: MemoryTables, *args: Any, **named: Any) -> Any:
            if self is tables and asyncio.current_task() is reading:
                begun.set()
                await go_on.wait()
            return await right(self, *args, **named)

        swap(monkeypatch, MemoryTables.scan, slow)
        reading = asyncio.create_task(
            node.engine.reader.read(1, first, last, bytes_max=MIB, blocks_max=10)
        )
        await begun.wait()
        damaged = DamagedRange(logs.partitions[0].number, 1, first, last)
        assert await logs.note_damage(damaged, "it rotted")
        await until(mended(cluster, 1))
        logs.forgotten += 1  # as any drop of a trimmed partition
        go_on.set()
        run = await reading
        assert run.damaged or [block.header.first for block in run.blocks] == [first]

    simulate(scenario, nodes=3, storage=StorageSettings(
        flush_age_s=3600.0, recent_bytes=0, scrub_bytes_s=0,
    ))  # fmt: skip


@pytest.mark.parametrize("kind", [b"b", b"i"])
@as_scenario(simulate, nodes=3, copies=3, storage=SCRUBBED)
async def test_a_block_for_which_recovery_waits_is_mended_before_it_is_released(
    cluster: ClusterAtHand, *, kind: bytes
) -> None:
    """Recovery needs all three nodes, and one does not know what it holds of the epoch's end."""
    async with cluster.client() as store:
        await store.create_log("log")
        await asyncio.gather(*(store.append("log", b"%d" % number) for number in range(5)))
        for node in cluster.numbers:
            cluster.kill(node)
    await cluster.start(1)
    await asyncio.sleep(2)
    assert cluster.running[1].engine.cache.log(1).readable == 1 << 32, "nothing is released"
    assert rot(cluster, 1, 1, kind) == 1
    for node in cluster.numbers[1:]:
        await cluster.start(node)
    async with cluster.client() as store, asyncio.timeout(60):
        await store.append("log", b"more")
        assert sorted(await values(store, "log")) == [b"0", b"1", b"2", b"3", b"4", b"more"]
    await until(mended(cluster, 1))


@as_scenario(simulate, nodes=4, storage=replace(UNSCRUBBED, partition_files=1))
async def test_a_node_that_lost_a_partition_starts_and_fetches_it(cluster: ClusterAtHand) -> None:
    await put_records(cluster, logs=3, records=10)
    await flushed(cluster)
    await put_records(cluster, logs=3, records=10)
    held = {log: await held_blocks(cluster.running[1].engine, log) for log in (1, 2, 3)}
    await cluster.running[1].flush()
    cluster.kill(1)
    assert lose_partition(cluster.machine(1).disk, random.Random(1))
    await cluster.start(1)
    damages = cluster.running[1].engine.logs.damages
    lost = damages.all()
    assert lost
    assert {why for _, why in lost} == {WHY_LOST}
    await until(lambda: not damages.all(), timeout_s=60)
    assert damages.mended == len(lost)
    for log, blocks in held.items():
        again = await held_blocks(cluster.running[1].engine, log)
        assert {(b.header, bytes(b.body)) for b in again} >= {
            (b.header, bytes(b.body)) for b in blocks
        }


async def with_a_rotten_end(cluster: ClusterAtHand) -> tuple[int, int]:
    """A log whose last block has rotted on a node, and of which nobody has heard that the block is
    released; the node, and the one whose copy it has to move once that is lost. No node sequences
    the log."""
    async with cluster.client() as store:
        await store.append("end", b"last words")
    await asyncio.sleep(12)  # until releases are not said again
    await flushed(cluster)
    sequencer = cluster.sequencer_of(1)
    cluster.kill(sequencer)
    await cluster.start(sequencer)
    for node in cluster.running.values():
        held = node.engine.cache.log(1)
        held.released, held.lngs = 0, {}
    (holders,) = (await copies(cluster)).values()
    first, node, *_ = next(iter(holders.values()))
    assert rot(cluster, node, 1)
    await until(lambda: bool(ranges(cluster, node)))
    return node, first


@pytest.mark.parametrize("is_deleted", [False, True])
@as_scenario(simulate, nodes=5, storage=SCRUBBED)
async def test_a_copy_that_rotted_before_its_release_holds_no_rebuilding_up(
    cluster: ClusterAtHand, *, is_deleted: bool
) -> None:
    """Nothing is repaired before it is released, and a deleted log never is: its donor waited for a
    repair until the log was trimmed, a day later."""
    rotten, other = await with_a_rotten_end(cluster)
    if is_deleted:
        async with cluster.client() as store:
            await store.log_tree.delete("end")
    lose_disk(cluster, other)
    await call_lost(cluster, other)
    cluster.keep_starting(other)
    await healed(cluster, timeout_s=60)
    if not is_deleted:
        await until(lambda: not ranges(cluster, rotten))


@as_scenario(simulate, nodes=5, storage=SCRUBBED)
async def test_a_copy_is_mended_on_a_log_that_nobody_uses(cluster: ClusterAtHand) -> None:
    """Seed 64001376. A node sends nothing above the last release that it knows. No sequencer ran
    that repeated the release, so the copy stayed rotten until a client used the log."""
    rotten, _ = await with_a_rotten_end(cluster)
    await until(lambda: not ranges(cluster, rotten))


def test_a_sequencer_that_does_not_answer_delays_no_other_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One was asked after the other, and repairs waited for the last: for minutes, with sixteen."""
    asked: dict[int, float] = {}

    async def mend(self: Repairs, damaged: DamagedRange) -> str:
        return "it is not released yet"

    async def stir(self: Repairs, log: int) -> None:
        asked.setdefault(log, asyncio.get_running_loop().time())
        await asyncio.sleep(12)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        await flushed(cluster)
        logs = cluster.running[1].engine.logs
        number = logs.partitions[-1].number
        ranges = [DamagedRange(number, log, 1 << 32, 2 << 32) for log in (1, 2, 3)]
        await logs.note_all_damage(ranges, "a test says so")
        await until(lambda: len(asked) == 3)
        assert max(asked.values()) < min(asked.values()) + 2

    swap(monkeypatch, Repairs._mend, mend)
    swap(monkeypatch, Repairs._stir, stir)
    simulate(scenario, storage=UNSCRUBBED)


def test_each_log_has_its_turn_to_be_stirred() -> None:
    logs = {3, 5, 8}
    assert next_logs(logs, 0, 2) == [3, 5]
    assert next_logs(logs, 5, 2) == [8, 3]
    assert next_logs(logs, 9, 9) == [3, 5, 8]
    assert next_logs(set(), 5, 2) == []


def test_a_repair_that_stirs_no_log_is_caught() -> None:
    with planted(find_bug("repair-unstirred")), pytest.raises(TimeoutError):
        test_a_copy_is_mended_on_a_log_that_nobody_uses()


@pytest.mark.slow
def test_a_donor_that_stirs_no_log_with_rotten_copies_is_caught() -> None:
    with planted(find_bug("rotten-end-unstirred")), pytest.raises(TimeoutError):
        test_a_copy_that_rotted_before_its_release_holds_no_rebuilding_up(is_deleted=False)


@pytest.mark.parametrize("kind", [b"b", b"i"], ids=["body", "index"])
@pytest.mark.parametrize("is_drained", [False, True])
@as_scenario(simulate, nodes=5, storage=SCRUBBED)
async def test_the_only_copy_of_a_block_holds_no_rebuilding_up_once_it_has_rotted(
    cluster: ClusterAtHand, *, kind: bytes, is_drained: bool
) -> None:
    """No node has a good one, so it is never repaired. It names no other node, and yet its node
    was not done as a donor for as long as the log kept the block."""
    async with cluster.client(timeout_s=30) as store:
        once = LogAttributes(replicate_across={"node": 1})
        await store.create_log("once", attributes=once)
        await store.append("once", b"1")
        await store.create_log("log-2")
        await store.append("log-2", b"2")
    await asyncio.sleep(2)
    await flushed(cluster)
    ((holder,),) = [tuple(nodes) for (log, _), nodes in (await copies(cluster)).items() if log == 1]
    assert rot(cluster, holder, 1, kind)
    await until(lambda: bool(ranges(cluster, holder)))
    other = next(n for n in cluster.numbers if n != holder)
    if is_drained:
        await order(cluster, other, RebuildOrder.DRAIN)
        await until(lambda: cluster.running[holder]._rebuild.set.lost[0].is_empty)
        return
    lose_disk(cluster, other)
    await call_lost(cluster, other)
    # It may have held blocks of that log that nobody has.
    await order(cluster, other, RebuildOrder.GONE)
    cluster.keep_starting(other)
    await healed(cluster, timeout_s=60)
    assert ranges(cluster, holder)


@pytest.mark.slow
def test_a_donor_waits_for_its_rotten_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others count on it for new copies of them."""
    right = Repairs._round
    begun = asyncio.Event()

    async def when_told(self: Repairs) -> None:
        if begun.is_set():
            await right(self)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1)
        await flushed(cluster)
        blocks = (await copies(cluster)).values()
        lost_one, donor, *_ = next(c for nodes in blocks for c in nodes.values() if len(c) == 3)
        assert rot(cluster, donor, 1, most=100)
        await until(lambda: bool(ranges(cluster, donor)))
        lose_disk(cluster, lost_one)
        await call_lost(cluster, lost_one)
        cluster.keep_starting(lost_one)
        await asyncio.sleep(20)
        assert lost(cluster) == {lost_one}, "the donor is not done"
        begun.set()
        await healed(cluster)
        assert not await missing(cluster)

    swap(monkeypatch, Repairs._round, when_told)
    simulate(scenario, nodes=5, storage=SCRUBBED)


def test_a_donor_that_does_not_wait_for_its_rotten_copies_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with planted(find_bug("rot-not-waited-for")), pytest.raises(AssertionError):
        test_a_donor_waits_for_its_rotten_copies(monkeypatch)


@pytest.mark.slow
def test_a_copy_that_is_mended_while_its_donor_looks_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The donor had read past it by then: it found nothing to move, nothing that was rotten any
    more, and was done. The block kept one copy less."""
    mends, looks = Repairs._round, DonorLook.waits_for_rot
    begun = asyncio.Event()

    async def when_told(self: Repairs) -> None:
        if begun.is_set():
            await mends(self)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1)
        await flushed(cluster)
        blocks = (await copies(cluster)).values()
        lost_one, donor, *_ = next(c for nodes in blocks for c in nodes.values() if len(c) == 3)

        async def after_the_mending(self: DonorLook, *seen: Any) -> bool:
            if self._me == donor:
                begun.set()
                await until(lambda: not ranges(cluster, donor))
            return await looks(self, *seen)

        swap(monkeypatch, DonorLook.waits_for_rot, after_the_mending)
        assert rot(cluster, donor, 1, most=100)
        await until(lambda: bool(ranges(cluster, donor)))
        lose_disk(cluster, lost_one)
        await call_lost(cluster, lost_one)
        cluster.keep_starting(lost_one)
        await healed(cluster)
        assert begun.is_set()
        assert not await missing(cluster)
        # The next loss finds all copies: nobody looks for those again.
        lose_disk(cluster, donor)
        await call_lost(cluster, donor)
        cluster.keep_starting(donor)
        await healed(cluster)
        assert not await missing(cluster)

    swap(monkeypatch, Repairs._round, when_told)
    simulate(scenario, nodes=5, storage=SCRUBBED)


@as_scenario(simulate, nodes=5, storage=UNSCRUBBED)
async def test_a_copy_that_a_donor_finds_rotten_as_it_moves_it_is_moved_once_it_is_mended(
    cluster: ClusterAtHand,
) -> None:
    """Looking reads heads only, so that the move is the first to read a body. What it could not
    read was passed over, and the donor was done."""
    await put_records(cluster, logs=1)
    await flushed(cluster)
    blocks = (await copies(cluster)).values()
    lost_one, donor, *_ = next(c for nodes in blocks for c in nodes.values() if len(c) == 3)
    assert rot(cluster, donor, 1, most=100)
    lose_disk(cluster, lost_one)
    await call_lost(cluster, lost_one)
    cluster.keep_starting(lost_one)
    await healed(cluster)
    await until(mended(cluster, donor))
    assert not await missing(cluster)


ONE_FLUSH = replace(UNSCRUBBED, partition_files=1)
"""Each flush fills a partition."""


async def rebalanced(cluster: ClusterAtHand, source: int, target: int) -> None:
    """All blocks of a node that may go to another one are there."""
    before = cluster.running[source]._rebuild.set.version
    async with cluster.client() as store:
        await store.rebalance([Transfer(source, target, PARTS)])

    def is_over() -> bool:
        sets = [node._rebuild.set for node in cluster.running.values()]
        return all(
            each.version > before and each.rebalancing is not None and not each.rebalancing.left
            for each in sets
        )

    await until(is_over)
    await flushed(cluster)


@pytest.mark.slow
def test_a_copy_that_was_given_away_before_does_not_fill_a_lost_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its envelope is old: by it the node is no donor, although others count on it."""
    right = Repairs._mend
    begun = asyncio.Event()

    async def when_told(self: Repairs, damaged: DamagedRange) -> str:
        is_due = damaged.log != 1 or begun.is_set()
        return await right(self, damaged) if is_due else "its turn comes later"

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1, records=1)
        await flushed(cluster)
        ((place, nodes),) = (await copies(cluster)).items()
        donor = next(iter(nodes.values()))[0]
        await rebalanced(cluster, donor, next(n for n in cluster.numbers if n not in nodes))
        for _ in range(3):
            async with cluster.client() as store:
                for number in range(6):
                    await store.append(f"other-{number}", b"value")
            await flushed(cluster)
        (other,) = (await copies(cluster))[place].keys() - nodes.keys()
        await rebalanced(cluster, other, donor)
        held = await cluster.running[donor].engine.logs.directory(1)
        first, *_, last = [partition for partition, _ in held]
        assert first.number < last.number
        cluster.kill(donor)
        tree = cluster.machine(donor).disk.tree
        for name in files_of_tables(tree.names(TABLES_PATH))[last.table]:
            tree.lose(f"{TABLES_PATH}/{name}")
        await cluster.start(donor)
        lost_one = (await copies(cluster))[place].keys() - {donor}
        lose_disk(cluster, min(lost_one))
        await call_lost(cluster, min(lost_one))
        cluster.keep_starting(min(lost_one))
        await asyncio.sleep(30)
        begun.set()
        await healed(cluster)
        await until(lambda: not ranges(cluster, donor))
        assert not await missing(cluster)

    swap(monkeypatch, Repairs._mend, when_told)
    simulate(scenario, nodes=5, storage=ONE_FLUSH)


@pytest.mark.slow
def test_a_range_that_any_copy_fills_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(find_bug("rot-filled-by-any-copy")), pytest.raises(AssertionError):
        test_a_copy_that_was_given_away_before_does_not_fill_a_lost_partition(monkeypatch)


@pytest.mark.slow
def test_a_range_with_more_heads_than_one_fetch_takes_is_mended_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = 150

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=1, records=records)
        await flushed(cluster)
        held = [node for nodes in (await copies(cluster)).values() for node in nodes]
        node, other = sorted(set(held), key=held.count)[-2:]
        assert held.count(node) > records // 2
        cluster.kill(node)
        assert lose_partition(cluster.machine(node).disk, random.Random(1))
        await cluster.start(node)
        damages = cluster.running[node].engine.logs.damages
        assert len(ranges(cluster, node)) == 1
        await until(lambda: not damages.all(), timeout_s=60)
        assert damages.mended == 1, "its parts are one mended range"
        assert not await missing(cluster)
        lose_disk(cluster, other)
        await call_lost(cluster, other)
        cluster.keep_starting(other)
        await healed(cluster)
        assert not await missing(cluster)

    swap_value(monkeypatch, lambda: copy_fetch.HEADS_BYTES, 4000)
    swap_value(monkeypatch, lambda: copy_fetch.CREDIT_BYTES, 3000)
    unflushed = replace(UNSCRUBBED, flush_age_s=3600.0, flush_quiet_s=60.0)
    simulate(scenario, nodes=5, storage=unflushed)


@pytest.mark.slow
def test_a_part_of_a_range_that_passes_for_all_of_it_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with planted(find_bug("repair-part-is-all")), pytest.raises(AssertionError):
        test_a_range_with_more_heads_than_one_fetch_takes_is_mended_part_by_part(monkeypatch)
