"""Ledgers on one node: what is answered is durable, fenced writers are refused, loss is told."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from made_blocks import Made, flush, run, turns
from msgspec.structs import replace
from scenarios import as_scenario

from cordwood.errors import AccessDenied, Malformed, Retryable
from cordwood.layout.answers import check_answer
from cordwood.layout.entry_run import bodies_of, heads_of
from cordwood.layout.ledger_records import (
    LEDGERS_TABLE,
    LedgerChange,
    LedgerFlag,
    entry_row_key,
)
from cordwood.layout.message import read_reply
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    AskLac,
    EntryItem,
    ForceEntries,
    Found,
    ReadEntries,
    ReadRun,
    RunReply,
    TellLac,
    pack_items,
)
from cordwood.layout.reply_parts import pack_reply
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.ledgers.ledger_store import LedgerStore

KEY = bytes(range(20))
LEDGER = 7


def add(*entries: int, recovery: bool = False, body: bytes = b"body", key: bytes = KEY):
    items = [EntryItem(entry, entry - 1, 4 * entry + 4, body) for entry in entries]
    return AddEntries(LEDGER, key, len(items), pack_items(items), recovery)


async def run_of(
    store: LedgerStore, first: int, count: int = 9, bytes_max: int = 999, step: int = 1
) -> list[int]:
    """The entries that one call for a run gets."""
    call = ReadRun(LEDGER, KEY, first, count, bytes_max, step)
    sent = await store.read_run(call)
    reply = read_reply(b"".join(pack_reply(sent)))
    assert isinstance(reply, RunReply), "as its caller sees it"
    check_answer(call, reply)
    told = [(head[0], head[1], head[2]) for head in heads_of(reply.packed, reply.count)]
    assert told == [(entry, entry - 1, 4 * entry + 4) for entry, _, _ in told]
    assert bytes(bodies_of(reply.packed, reply.count)) == b"body" * reply.count
    return [entry for entry, _, _ in told]


async def found_of(store: LedgerStore, *entries: int, fence: bool = False) -> list[Found]:
    reply = await store.read(ReadEntries(LEDGER, KEY, [*entries], fence))
    return [each.found for each in reply.entries]


@as_scenario(run)
async def test_entries_are_kept_read_and_told_of() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    assert (await store.lac(AskLac(LEDGER, KEY))).found is Found.NO_LEDGER
    assert await found_of(store, 0) == [Found.NO_LEDGER]
    assert (await store.add(add(0, 1, 3))).refusal is AddRefusal.NONE
    assert await found_of(store, 0, 1, 2, 3) == [
        Found.YES, Found.YES, Found.NO_ENTRY, Found.YES
    ]  # fmt: skip
    told = await store.lac(AskLac(LEDGER, KEY))
    assert (told.found, told.lac, told.last, told.is_fenced) == (Found.YES, 2, 3, False)
    await store.tell_lac(TellLac(LEDGER, KEY, 3))
    assert (await store.lac(AskLac(LEDGER, KEY))).lac == 3
    with pytest.raises(AccessDenied):
        await store.add(add(4, key=bytes(20)))
    with pytest.raises(AccessDenied):
        await store.read(ReadEntries(LEDGER, bytes(20), [0]))


@as_scenario(run)
async def test_a_node_that_was_given_away_takes_re_adds_of_known_ledgers_alone() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    made.engine.is_given_away = True
    assert (await store.add(add(0, recovery=True))).refusal is AddRefusal.READ_ONLY
    assert made.engine.ledgers.get(LEDGER) is None
    await store.fence(LEDGER, KEY)  # it is a member of the ensemble
    assert (await store.add(add(0, recovery=True))).refusal is AddRefusal.NONE
    assert (await store.add(add(1))).refusal is AddRefusal.FENCED


@as_scenario(run)
async def test_what_is_no_run_of_entries_is_refused() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    whole = add(0, 1)
    for wrong in (
        replace(whole, count=1), replace(whole, count=3), replace(whole, packed=whole.packed[:-1]),
        replace(whole, packed=memoryview(b"")),
    ):  # fmt: skip
        with pytest.raises(Malformed):
            await store.add(wrong)
    assert await found_of(store, 0) == [Found.NO_LEDGER]


@as_scenario(run)
async def test_a_run_ends_before_the_first_entry_that_is_not_here() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    assert await run_of(store, 0) == []
    await store.add(add(0, 1, 2, 4, 5))
    assert await run_of(store, 0) == [0, 1, 2]
    assert await run_of(store, 4) == [4, 5]
    assert await run_of(store, 3) == await run_of(store, 6) == []
    assert await run_of(store, 0, count=2) == [0, 1]
    assert await run_of(store, 0, bytes_max=8) == [0, 1]
    assert await run_of(store, 0, bytes_max=11) == [0, 1]
    assert await run_of(store, 0, bytes_max=1) == [0], "one at least"
    with pytest.raises(AccessDenied):
        await store.read_run(ReadRun(LEDGER, bytes(20), 0, 9, 999))
    await store.forget([LEDGER])
    assert await run_of(store, 0) == []


@as_scenario(run)
async def test_a_run_goes_on_from_logs_db_to_memory_and_back() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0, 1, 2, 6, 7))
    await flush(made)
    await store.add(add(3, 4, 5))
    assert await run_of(store, 0) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert await run_of(store, 1, count=3) == [1, 2, 3]
    assert await run_of(store, 0, bytes_max=17) == [0, 1, 2, 3]


@as_scenario(run)
async def test_a_run_ends_before_a_part_of_logs_db_that_is_damaged() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0, 1, 2))
    await flush(made)
    await store.add(add(3))
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    tables._tables[LEDGERS_TABLE].rotten.add(entry_row_key(LEDGER, 1))
    assert await run_of(store, 0) == []
    assert await run_of(store, 2) == [2, 3]
    assert await found_of(store, 0, 1) == [Found.YES, Found.DAMAGED]


@as_scenario(run)
async def test_a_repeat_is_taken_and_another_entry_is_not() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0))
    assert (await store.add(add(0))).refusal is AddRefusal.NONE
    assert (await store.add(add(0, body=b"othr"))).refusal is AddRefusal.OTHER
    assert (await store.add(add(0, body=b"othr", recovery=True))).refusal is AddRefusal.OTHER


@pytest.mark.parametrize("how", ["lac", "read"])
@as_scenario(run)
async def test_a_fence_holds_after_a_crash_also_of_a_ledger_never_seen(*, how: str) -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    if how == "lac":
        assert (await store.lac(AskLac(LEDGER, KEY, fence=True))).is_fenced
    else:
        assert await found_of(store, 5, fence=True) == [Found.NO_ENTRY]
    await made.crash(random.Random(1))
    store = LedgerStore(made.engine)
    assert (await store.add(add(0))).refusal is AddRefusal.FENCED
    assert (await store.add(add(0, recovery=True))).refusal is AddRefusal.NONE


@as_scenario(run)
async def test_a_fence_is_answered_once_durable_and_refuses_at_once() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    made.disk.by_hand = made.disk.file.by_hand = True
    before = asyncio.ensure_future(store.add(add(0)))
    await turns()
    fencing = asyncio.ensure_future(store.lac(AskLac(LEDGER, KEY, fence=True)))
    await turns()
    after = asyncio.ensure_future(store.add(add(1)))
    await turns()
    assert not before.done()
    assert not fencing.done()
    assert (await after).refusal is AddRefusal.FENCED
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    told = await fencing
    assert (told.is_fenced, told.last) == (True, 0), "what came before it is visible"
    assert (await before).refusal is AddRefusal.NONE


@as_scenario(run)
async def test_entries_outlive_a_crash() -> None:
    made = await Made.new()
    await LedgerStore(made.engine).add(add(*range(50)))
    await made.crash(random.Random(1))
    store = LedgerStore(made.engine)
    assert await found_of(store, *range(51)) == [Found.YES] * 50 + [Found.NO_ENTRY]
    assert (await store.lac(AskLac(LEDGER, KEY))).last == 49


@as_scenario(run)
async def test_a_node_that_lost_records_does_not_deny() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0))
    flags = LedgerFlag.FENCED | LedgerFlag.LIMBO
    await store.note_loss([LedgerChange(LEDGER, KEY, flags)])
    assert await found_of(store, 0, 1) == [Found.YES, Found.UNKNOWN]
    assert (await store.lac(AskLac(LEDGER, KEY, fence=True))).found is Found.UNKNOWN
    assert (await store.add(add(1))).refusal is AddRefusal.FENCED


@as_scenario(run)
async def test_a_deleted_ledger_leaves_a_tombstone() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0, 1))
    await store.forget([LEDGER, 99])
    await made.crash(random.Random(1))
    store = LedgerStore(made.engine)
    assert await found_of(store, 0) == [Found.NO_ENTRY]
    assert (await store.add(add(0))).refusal is AddRefusal.GONE
    assert (await store.add(add(0, recovery=True))).refusal is AddRefusal.GONE
    assert 99 not in store.index.held


@as_scenario(run)
async def test_what_a_node_left_of_a_deleted_ledger_when_it_stopped_goes_after_its_start() -> None:
    """Its tombstone was durable, so no sweep looked at it again, and the space never came back."""
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0, 1))
    table = made.engine.logs.ledgers
    await table.flush(made.engine.ledgers.cut())
    assert None not in await table.entries(LEDGER, [0, 1])
    await store.note_loss([LedgerChange(LEDGER, KEY, LedgerFlag.GONE | LedgerFlag.FENCED)])
    await made.crash(random.Random(1))
    store = LedgerStore(made.engine)
    assert store.not_dropped() == [LEDGER]
    await store.drop(store.not_dropped())
    assert await made.engine.logs.ledgers.entries(LEDGER, [0, 1]) == [None, None]
    assert store.not_dropped() == []
    await made.engine.logs.ledgers.flush(made.engine.ledgers.cut())
    await made.crash(random.Random(2))
    assert LedgerStore(made.engine).not_dropped() == []


@as_scenario(run)
async def test_who_waits_for_a_lac_is_woken_by_an_entry_and_by_a_fence() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0))
    waits = asyncio.ensure_future(store.lac(AskLac(LEDGER, KEY, above=-1, wait_ms=5000)))
    await turns()
    assert not waits.done()
    await store.add(add(1))
    assert (await waits).lac == 0
    waits = asyncio.ensure_future(store.lac(AskLac(LEDGER, KEY, above=0, wait_ms=5000)))
    await turns()
    await store.lac(AskLac(LEDGER, KEY, fence=True))
    assert (await waits).is_fenced
    told = await store.lac(AskLac(LEDGER, KEY, above=9, wait_ms=1))
    assert told.lac == 0
    await store.lac(AskLac(LEDGER + 1, KEY, wait_ms=1))
    assert store._polls == {}, "nobody waits any more, and most ledgers get no more news"


@as_scenario(run)
async def test_a_reply_holds_what_fits_a_frame() -> None:
    made = await Made.new(ring=16 << 20)
    store = LedgerStore(made.engine)
    for entry in range(5):
        assert (await store.add(add(entry, body=bytes(1 << 20)))).refusal is AddRefusal.NONE
    reply = await store.read(ReadEntries(LEDGER, KEY, [*range(5)]))
    assert [each.entry for each in reply.entries] == [0, 1, 2]


def deferred(*entries: int) -> AddEntries:
    return replace(add(*entries), deferred=True)


FORCE = ForceEntries(LEDGER, KEY)


@as_scenario(run)
async def test_a_deferred_entry_is_answered_at_once_and_a_force_waits_for_the_disk() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine, lambda: 3)
    made.disk.by_hand = made.disk.file.by_hand = True
    reply = await store.add(deferred(0))
    assert (reply.refusal, reply.run) == (AddRefusal.NONE, 3)
    force = asyncio.ensure_future(store.force(FORCE))
    await turns()
    assert not force.done()
    assert made.engine.unflushed_bytes, "it counts against what there is room for"
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    assert (await force).run == reply.run
    assert await found_of(store, 0) == [Found.YES]


@as_scenario(run)
async def test_a_fence_comes_after_the_deferred_entries_before_it() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    made.disk.by_hand = made.disk.file.by_hand = True
    await store.add(deferred(0))
    reading = asyncio.ensure_future(found_of(store, 0, 1, fence=True))
    await turns()
    assert (await store.add(deferred(1))).refusal is AddRefusal.FENCED
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    assert await reading == [Found.YES, Found.NO_ENTRY]
    assert (await store.force(FORCE)).refusal is AddRefusal.FENCED


@as_scenario(run)
async def test_a_force_of_what_a_node_never_saw_succeeds_and_of_what_is_gone_does_not() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(deferred(0))
    await store.force(FORCE)
    assert (await store.force(ForceEntries(99, KEY))).refusal is AddRefusal.NONE
    await store.forget([LEDGER])
    assert (await store.force(FORCE)).refusal is AddRefusal.GONE


@as_scenario(run)
async def test_a_force_fails_where_the_wal_failed_after_the_answer() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    made.disk.by_hand = made.disk.file.by_hand = True
    await store.add(deferred(0))
    force = asyncio.ensure_future(store.force(FORCE))
    await turns()
    for write in list(made.disk.file.pending):
        made.disk.file.end(write, OSError(errno.EIO, "the disk is broken"))
    with pytest.raises(Retryable):
        await force
    with pytest.raises(Retryable):
        await store.force(FORCE)


@as_scenario(run)
async def test_a_flush_takes_what_was_there_and_leaves_what_came_since_or_again() -> None:
    made = await Made.new()
    store = LedgerStore(made.engine)
    await store.add(add(0, 1, 2))
    first = made.engine.ledgers.cut()
    again = [*first]
    await store.add(add(2, 3))
    table = made.engine.logs.ledgers
    await table.flush(first)
    assert [*first] == again, "a flush that failed is done again"
    made.engine.ledgers.evict(first)
    assert sorted(made.engine.ledgers.held[LEDGER].entries) == [2, 3]
    assert await found_of(store, 0, 1, 2, 3) == [Found.YES] * 4
    second = made.engine.ledgers.cut()
    assert second
    await table.flush(second)
    made.engine.ledgers.evict(second)
    assert made.engine.ledgers.held[LEDGER].entries == {}
    assert not made.engine.ledgers.cut()
    assert await found_of(store, 0, 1, 2, 3) == [Found.YES] * 4


async def a_flush_waits_while_its_ledger_is_deleted() -> None:
    """On a full disk a flush is tried again and again, and the sweep of deleted ledgers goes on."""
    made = await Made.new()
    store = LedgerStore(made.engine)
    table = made.engine.logs.ledgers
    await store.add(add(0, 1))
    await table.flush(made.engine.ledgers.cut())
    await store.add(add(2, 3))
    waiting = made.engine.ledgers.cut()
    await store.forget([LEDGER])
    await table.flush(waiting)
    made.engine.ledgers.evict(waiting)
    assert await table.entries(LEDGER, [0, 1, 2, 3]) == [None] * 4
    await made.crash(random.Random(1))
    store = LedgerStore(made.engine)
    assert (await store.add(add(2))).refusal is AddRefusal.GONE


def test_a_flush_that_waited_brings_nothing_of_a_deleted_ledger_back() -> None:
    run(a_flush_waits_while_its_ledger_is_deleted)


def test_the_scene_catches_the_bug() -> None:
    with planted(find_bug("ledger-flush-refills")), pytest.raises(AssertionError):
        run(a_flush_waits_while_its_ledger_is_deleted)


@as_scenario(run)
async def test_a_node_that_may_be_a_lost_one_takes_no_entries() -> None:
    """It ends once it hears that its data lies elsewhere, and is emptied: the entry had one copy
    less than its writer was told."""
    made = await Made.new()
    store = LedgerStore(made.engine)
    made.engine.unsure = True
    for recovery in (False, True):
        assert (await store.add(add(0, recovery=recovery))).refusal is AddRefusal.FULL
    made.engine.unsure = False
    assert (await store.add(add(0))).refusal is AddRefusal.NONE
