"""Amends: a new envelope for a block that is held, its body never stored twice and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from made_blocks import (
    LOG,
    Made,
    Settled,
    at,
    flushing,
    packed,
    restart,
    run,
    turns,
)
from scenarios import as_scenario

from cordwood.block import BlockHeader, Envelope, EnvelopeFlag
from cordwood.layout import logs_db
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import Refusal, StoredBlock, is_amend, store_head
from cordwood.lsn import LSN_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.holdings import held_blocks
from cordwood.storage import amends
from cordwood.storage.log_cache import EpochEnd
from cordwood.storage.logs_db.tables import scan_all

BODY = bytes(range(256)) * 256
"""64 KiB."""

SPREAD = StorageSettings(recent_bytes=0, partition_files=1)
"""Each flush has a partition of its own."""


def head(
    block: bytes, copyset: tuple[int, ...] = (4, 5, 6), *, wave: int = 1, seal: int = 0
) -> bytes:
    """What amends a block: its header, and an envelope."""
    flags = EnvelopeFlag.BY_RECOVERY if seal else 0
    return block[:HEADER_BYTES] + pack_envelope(Envelope(copyset, wave, seal, 0, flags))


def amend(made: Made, *heads: bytes, wave: int = 9, seal: int = 0) -> Settled:
    settled = Settled()
    payload = memoryview(store_head(len(heads), seal, amends=True) + b"".join(heads))
    assert is_amend(payload)
    made.engine.store(wave, payload, settled)
    return settled


def refusals(settled: Settled) -> list[Refusal]:
    assert len(settled) == 1, "settled once"
    return [refusal.reason for refusal in settled[0]]


async def settle(made: Made, settled: Settled) -> None:
    """Let LogsDB be looked into, as a node does beside its other work."""
    looking = asyncio.create_task(made.engine.amends.run())
    for _ in range(1000):
        if settled:
            break
        await asyncio.sleep(0.01)
    looking.cancel()


async def flush(made: Made) -> None:
    """Flush by a flusher, which also writes amends whose bodies are in LogsDB."""
    async with flushing(made) as flusher:
        await flusher.flush()


async def rows(made: Made, first: bytes) -> list[tuple[str, bytes]]:
    """Table and key of every row of that kind in all partitions."""
    tables = made.engine.logs.tables
    return [
        (partition.table, key)
        for partition in made.engine.logs.partitions
        for key, _ in await scan_all(tables, partition.table, first, first + b"\xff" * 40)
    ]


async def held(made: Made) -> list[tuple[tuple[int, ...], bytes]]:
    """Copyset and body of all that is read."""
    blocks = await held_blocks(made.engine, LOG)
    return [(block.envelope.copyset, bytes(block.body)) for block in blocks]


AMENDED = ((4, 5, 6), BODY)


class TestHeld:
    @as_scenario(run)
    async def test_the_envelope_is_new_and_the_body_that_of_old_and_the_wal_has_it_once(
        self,
    ) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        used = made.engine.wal.used_bytes
        settled = amend(made, head(block, wave=2))
        await turns()
        assert settled == [()]
        assert made.engine.wal.used_bytes - used == 4096, "a block of the ring, and no body"
        assert await held(made) == [AMENDED]

    @as_scenario(run)
    async def test_it_is_visible_when_it_is_durable_and_not_before(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        made.disk.by_hand = made.disk.file.by_hand = True
        settled = amend(made, head(block, wave=2))
        await turns()
        assert (settled, await held(made)) == ([], [((1, 2, 3), BODY)])
        made.disk.file.end_all()
        await turns()
        assert (settled, await held(made)) == ([()], [AMENDED])

    @as_scenario(run)
    async def test_one_that_counts_less_changes_nothing(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY, wave=3)
        made.store(block)
        await turns()
        settled = amend(made, head(block, wave=2))
        await turns()
        assert (settled, await held(made)) == ([()], [((1, 2, 3), BODY)])

    @as_scenario(run)
    async def test_several_blocks_and_logs_come_in_one_frame(self) -> None:
        made = await Made.new()
        blocks = [packed(at(n), BODY[n:], log=log) for log in (LOG, 8) for n in (1, 2)]
        made.store(*blocks)
        await turns()
        settled = amend(made, *(head(each, wave=2) for each in blocks))
        await turns()
        assert settled == [()]
        for log in (LOG, 8):
            found = await held_blocks(made.engine, log)
            assert [b.envelope.copyset for b in found] == [(4, 5, 6)] * 2


class TestHavingRead:
    @as_scenario(run)
    async def test_a_block_that_was_just_read_is_amended_without_another_read(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        with made.engine.amends.having_read(await held_blocks(made.engine, LOG)):
            settled = amend(made, head(block, wave=2))
            await turns()
            assert settled == [()]
        assert await held(made) == [AMENDED]
        await restart(made)
        assert await held(made) == [AMENDED]
        await flush(made)
        later = amend(made, head(packed(at(2), BODY), wave=2))
        await turns()
        assert later == [], "it waits for LogsDB"

    @pytest.mark.parametrize("what", ["rotten", "damaged"])
    @as_scenario(run)
    async def test_what_is_not_whole_any_more_is_looked_for_in_logs_db(self, *, what: str) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        (read,) = await held_blocks(made.engine, LOG)
        if what == "rotten":
            read.body = BODY[::-1]
        else:
            number = made.engine.logs.partitions[0].number
            await made.engine.logs.note_damage(DamagedRange(number, LOG, at(1), at(1)), "rot")
        with made.engine.amends.having_read([read]):
            settled = amend(made, head(block, wave=2))
            await turns()
            assert settled == [], "it waits for LogsDB"
            await settle(made, settled)
        assert settled == [()] if what == "rotten" else refusals(settled) == [Refusal.NOT_HELD]


class TestRefused:
    @as_scenario(run)
    async def test_what_is_not_held_is_refused_by_name_and_nothing_is_stored(self) -> None:
        made = await Made.new()
        there, other = packed(at(1), BODY), packed(at(2), BODY)
        made.store(there)
        await turns()
        used = made.engine.wal.used_bytes
        settled = amend(made, head(there, wave=2), head(other, wave=2))
        await settle(made, settled)
        assert refusals(settled) == [Refusal.NOT_HELD]
        assert await held(made) == [((1, 2, 3), BODY)]
        assert made.engine.wal.used_bytes == used
        await restart(made)
        assert await held(made) == [((1, 2, 3), BODY)]

    @pytest.mark.parametrize("is_flushed", [False, True])
    @as_scenario(run)
    async def test_another_block_at_the_same_place_is_not_it(self, *, is_flushed: bool) -> None:
        made = await Made.new()
        made.store(packed(at(1), BODY))
        await turns()
        if is_flushed:
            await flush(made)
        for other in (packed(at(1), BODY[::-1]), packed(at(1), BODY, time_us=1)):
            settled = amend(made, head(other, wave=2))
            await settle(made, settled)
            assert refusals(settled) == [Refusal.NOT_HELD]
        assert await held(made) == [((1, 2, 3), BODY)]

    @as_scenario(run)
    async def test_a_seal_is_obeyed_as_by_a_store(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await made.engine.seal(LOG, 4, 0)
        for seal in (0, 3):
            settled = amend(made, head(block, wave=2, seal=seal), seal=seal)
            await turns()
            assert refusals(settled) == [Refusal.SEALED]
        settled = amend(made, head(block, seal=4), seal=4)
        await turns()
        assert (settled, await held(made)) == ([()], [AMENDED])

    @as_scenario(run)
    async def test_a_seal_that_comes_while_logs_db_is_looked_into_is_obeyed(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        settled = amend(made, head(block, wave=2))
        await made.engine.seal(LOG, 2, 0)
        await settle(made, settled)
        assert refusals(settled) == [Refusal.SEALED]

    @as_scenario(run)
    async def test_what_is_trimmed_succeeds_and_stores_nothing(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await made.engine.trim(LOG, at(1), at(1))
        used = made.engine.wal.used_bytes
        settled = amend(made, head(block, wave=2))
        await turns()
        assert (settled, await held(made)) == ([()], [])
        assert made.engine.wal.used_bytes == used

    @as_scenario(run)
    async def test_a_nearly_full_disk_takes_those_of_recoveries_alone(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        made.engine.low_space = "the disk is nearly full"
        settled = amend(made, head(block, wave=2))
        await turns()
        assert refusals(settled) == [Refusal.NO_SPACE]
        await made.engine.seal(LOG, 4, 0)
        settled = amend(made, head(block, seal=4), seal=4)
        await turns()
        assert settled == [()]

    @as_scenario(run)
    async def test_its_body_counts_in_the_cache(self) -> None:
        small = StorageSettings(cache_bytes=100_000, flush_bytes=4096, recent_bytes=0)
        made = await Made.new(storage=small)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        settled = amend(made, head(block, wave=2))
        await turns()
        assert refusals(settled) == [Refusal.FULL]
        assert made.engine.cache.bytes <= made.engine.cache_bytes_max

    @as_scenario(run)
    async def test_more_than_may_wait_for_logs_db_are_asked_for_bodies(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        waiting = [amend(made, head(block, wave=2)) for _ in range(amends.WAITING_MAX)]
        assert refusals(amend(made, head(block, wave=2))) == [Refusal.NOT_HELD]
        await settle(made, waiting[-1])
        await turns()
        assert waiting == [[()]] * amends.WAITING_MAX

    @as_scenario(run)
    async def test_a_copy_that_is_known_to_be_damaged_is_not_held(self) -> None:
        made = await Made.new()
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        number = made.engine.logs.partitions[0].number
        await made.engine.logs.note_damage(DamagedRange(number, LOG, at(1), at(1)), "rot")
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        assert refusals(settled) == [Refusal.NOT_HELD]


Step = Callable[[Made], Awaitable[None]]


async def _nothing(made: Made) -> None:
    return


async def _filled(made: Made) -> None:
    """Later blocks are flushed into partitions of their own."""
    await flush(made)
    for esn in range(10, 14):
        made.store(packed(at(esn), b"later", time_us=esn * 1_000_000))
        await turns()
        await flush(made)


class TestOneBody:
    @pytest.mark.parametrize(
        "between", [_nothing, flush, _filled, restart], ids=lambda f: f.__name__
    )
    @pytest.mark.parametrize("after", [_nothing, flush, restart], ids=lambda f: f.__name__)
    @as_scenario(run)
    async def test_wherever_the_old_copy_is(self, *, between: Step, after: Step) -> None:
        """In the cache, in LogsDB, in an old partition, in what a start replayed; and then in
        memory still, flushed, or replayed itself."""
        made = await Made.new(storage=SPREAD)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await between(made)
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        assert settled == [()]
        await after(made)
        assert (await held(made))[0] == AMENDED
        for _ in range(2):
            await flush(made)
            assert (await held(made))[0] == AMENDED
            mine = logs_db.body_key(LOG, at(1), at(1))
            bodies = [each for each in await rows(made, b"b") if each[1] == mine]
            entries = await rows(made, b"i")
            ours = [t for t, key in entries if logs_db.read_index_key(key).last == at(1)]
            assert len(bodies) == 1, "one body"
            assert ours == [bodies[0][0]] * 2, "both entries beside it"
            await restart(made)
            assert (await held(made))[0] == AMENDED

    @as_scenario(run)
    async def test_the_wal_may_let_go_of_the_first_copy(self) -> None:
        made = await Made.new(storage=SPREAD)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await flush(made)
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        assert made.engine.wal.used_bytes <= 3 * 4096, "its record is trimmed"
        await restart(made)
        assert await held(made) == [AMENDED]

    @as_scenario(run)
    async def test_an_epochs_end_between_the_two_records_takes_no_body(self) -> None:
        """The copy goes from the cache, for it does not count; its amend does."""
        made = await Made.new()
        block = packed(at(7), BODY)
        made.store(block)
        await made.engine.seal(LOG, 4, 0)
        made.disk.by_hand = made.disk.file.by_hand = True
        ending = asyncio.create_task(made.engine.clean(LOG, 1, EpochEnd(4, at(3))))
        await turns()
        settled = amend(made, head(block, seal=4), seal=4)
        await turns()
        for _ in range(3):
            made.disk.file.end_all()
            await turns()
        await ending
        made.disk.by_hand = made.disk.file.by_hand = False
        assert (settled, await held(made)) == ([()], [AMENDED])
        await restart(made)
        assert await held(made) == [AMENDED]
        await flush(made)
        await restart(made)
        assert await held(made) == [AMENDED]

    @as_scenario(run)
    async def test_where_the_old_body_is_damaged_by_then_it_is_written_anew(self) -> None:
        made = await Made.new(storage=SPREAD)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await _filled(made)
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        old = made.engine.logs.partitions[0]
        await made.engine.logs.note_damage(DamagedRange(old.number, LOG, at(1), at(1)), "rot")
        await flush(made)
        mine = logs_db.body_key(LOG, at(1), at(1))
        assert len([key for _, key in await rows(made, b"b") if key == mine]) == 2
        assert (await held(made))[0] == AMENDED

    @as_scenario(run)
    async def test_a_partition_is_not_dropped_under_an_amend_and_is_when_it_is_trimmed(
        self,
    ) -> None:
        made = await Made.new(storage=SPREAD)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await _filled(made)
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        await flush(made)
        before = [partition.number for partition in made.engine.logs.partitions]
        assert not await made.engine.logs.drop_trimmed(made.engine.trim_of)
        await made.engine.trim(LOG, at(1), at(1))
        dropped = await made.engine.logs.drop_trimmed(made.engine.trim_of)
        assert [partition.number for partition in dropped] == before[:1]
        assert [body for _, body in await held(made)] == [b"later"] * 4

    @as_scenario(run)
    async def test_a_trim_that_drops_the_partition_lets_a_start_pass_over_the_amend(self) -> None:
        made = await Made.new(storage=SPREAD)
        block = packed(at(1), BODY)
        made.store(block)
        await turns()
        await _filled(made)
        settled = amend(made, head(block, wave=2))
        await settle(made, settled)
        await made.engine.trim(LOG, at(1), at(1))
        assert await made.engine.logs.drop_trimmed(made.engine.trim_of)
        await restart(made)
        assert [body for _, body in await held(made)] == [b"later"] * 4


@as_scenario(run)
async def test_a_nearly_full_disk_flushes_envelopes_whose_bodies_it_could_not_write_again() -> None:
    """The flush waited for space for the bodies too, so the node took nothing any more."""
    made = await Made.new(ring=8 << 20)
    blocks = [packed(at(esn), BODY) for esn in range(1, 49)]
    for block in blocks:
        made.store(block)
        await turns()
    await flush(made)
    engine = made.engine
    engine.disk.on_free(1 << 20, 8 << 20)
    engine.low_space = "nearly full"
    moved = Envelope((4, 5, 6), 2, 0, 0, EnvelopeFlag.REBUILT)
    for block in blocks:
        settled = amend(made, block[:HEADER_BYTES] + pack_envelope(moved))
        await settle(made, settled)
        assert settled == [()]
    async with flushing(made) as flusher, asyncio.timeout(20):
        await flusher.flush()
    assert not engine.is_out_of_space
    assert engine.unflushed_bytes == 0
    assert await held(made) == [AMENDED] * len(blocks)


@as_scenario(run)
async def test_directory_and_sizes_count_the_envelope_alone() -> None:
    made = await Made.new(storage=SPREAD)
    block = packed(at(1), BODY)
    made.store(block)
    await turns()
    await flush(made)
    size = made.engine.logs.stored_bytes
    settled = amend(made, head(block, wave=2))
    await settle(made, settled)
    await flush(made)
    assert made.engine.logs.stored_bytes == size + len(head(block))
    assert len(made.engine.logs.partitions) == 1, "no partition for an envelope"


def test_a_block_is_found_by_all_of_its_header() -> None:
    async def scenario() -> Sequence[StoredBlock | None]:
        made = await Made.new()
        made.store(packed(at(1), BODY), packed(at(2), b"two"))
        await turns()
        cached = made.engine.cache.log(LOG)
        headers: list[BlockHeader] = [block.header for block in cached.blocks]
        return [cached.copy_of(header) for header in (*headers, _moved(headers[0]))]

    one, two, none = run(scenario)
    assert one is not None
    assert two is not None
    assert (bytes(one.body), bytes(two.body), none) == (BODY, b"two", None)


def _moved(header: BlockHeader) -> BlockHeader:
    return BlockHeader(LOG, header.first, LSN_MAX & 3, 0)
