"""A ledger's runs in memory give what LogsDB and the memory of single entries give, and no more."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from made_blocks import Made, flush, run
from scenarios import as_scenario

from cordwood.layout.answers import check_answer
from cordwood.layout.entry_run import bodies_of, heads_of
from cordwood.layout.ledger_records import KeptEntry, LedgerEntries
from cordwood.layout.message import read_reply
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    EntryItem,
    ReadRun,
    RunReply,
    pack_items,
)
from cordwood.layout.reply_parts import pack_reply
from cordwood.storage.ledgers.held_runs import HeldRun, HeldRuns
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.storage.recent_room import RECENT_COST, RecentRoom

KEY = bytes(range(20))
LEDGER = 7


def body_of(entry: int) -> bytes:
    return b"%d" % entry * (1 + entry % 5)


def items_of(entries: list[int]) -> memoryview:
    return pack_items([EntryItem(each, each - 1, each + 9, body_of(each)) for each in entries])


def run_with(*entries: int) -> HeldRun | None:
    kept = tuple(KeptEntry(each, each - 1, each + 9, body_of(each)) for each in entries)
    return HeldRun.of(LedgerEntries(LEDGER, KEY, kept, items_of([*entries])))


def made(*entries: int) -> HeldRun:
    found = run_with(*entries)
    assert found is not None
    return found


def test_numbers_that_do_not_rise_are_no_run() -> None:
    assert run_with(3, 2) is run_with(1, 1, 3) is run_with(1, 5, 4, 9) is None
    kept = KeptEntry(0, -1, 1, b"x")
    assert HeldRun.of(LedgerEntries(LEDGER, KEY, (kept,))) is None, "nobody has it packed"


def test_a_cut_ends_at_a_gap_and_before_what_does_not_fit() -> None:
    whole = made(5, 6, 7)
    sizes = [len(body_of(each)) for each in (5, 6, 7)]
    for taken, size in ((3, sum(sizes)), (2, sum(sizes) - 1), (1, sizes[0]), (0, sizes[0] - 1)):
        cut = whole.cut(5, 99, 1, size)
        assert cut is not None
        assert (cut.taken, cut.size) == (taken, sum(sizes[:taken]))
    gaps = made(0, 2, 3, 5, 8)
    for step, first, taken in ((1, 2, 2), (3, 2, 3), (2, 0, 2), (5, 3, 2), (1, 8, 1)):
        cut = gaps.cut(first, 99, step, 99)
        assert cut is not None
        assert cut.taken == taken
        assert b"".join(cut.bodies) == b"".join(body_of(first + step * n) for n in range(taken))
    assert gaps.cut(1, 99, 1, 99) is None, "it is not here"


def test_what_comes_again_takes_the_earlier_run_away() -> None:
    runs = HeldRuns()
    for first in (0, 4, 8, 12):
        runs.replace(first, first + 2, made(first, first + 1, first + 2))
    runs.replace(3, 3, made(3))
    assert len(runs) == 5
    again = made(5, 6, 7, 8)
    runs.replace(5, 8, again)
    assert [runs.at(each) is again for each in (4, 5, 8, 9)] == [False, True, True, False]
    runs.replace(0, 0, None)
    assert runs.at(0) is runs.at(2) is None
    assert runs.has(again)
    runs.drop(again)
    runs.drop(again)
    assert runs.at(5) is None
    assert runs.at(12) is not None
    runs.clear()
    assert runs.at(12) is None


def test_the_oldest_goes_whatever_it_is() -> None:
    gone: list[str] = []
    room = RecentRoom(3 * (RECENT_COST + 10))
    for item in ("a", "b", "c", "d"):
        room.add(gone.append, item, 10)
    room.trim()
    assert (gone, room.bytes) == (["a"], 3 * (RECENT_COST + 10))


@as_scenario(run)
async def test_a_small_run_does_not_keep_what_arrived_together_with_it() -> None:
    """A socket's read of 64 KiB stayed in memory for each run of some bytes in it, uncounted."""
    node = await Made.new()
    node.engine.ledgers.recent_room.bytes_max = 1 << 20
    store = LedgerStore(node.engine)
    packed = bytes(items_of([5, 6]))
    arrived = packed + bytes(60_000)
    refers = sys.getrefcount(arrived)
    view = memoryview(arrived)[: len(packed)]
    await store.add(AddEntries(LEDGER, KEY, 2, view))
    del view
    await flush(node)
    assert sys.getrefcount(arrived) == refers
    assert await read_of(store, ReadRun(LEDGER, KEY, 5, 2, 999, 1)) == [5, 6]
    # A run with most of what arrived is not copied.
    whole = items_of([7, 8])
    await store.add(AddEntries(LEDGER, KEY, 2, whole))
    run_of_whole = node.engine.ledgers.held[LEDGER].runs.at(7)
    assert run_of_whole is not None
    assert run_of_whole.packed.obj is whole.obj


records = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), max_size=8)


@given(records, st.booleans(), st.sampled_from([0, 3 * RECENT_COST, 1 << 20]))
@settings(max_examples=60)
def test_a_reader_gets_what_was_added_wherever_it_is(added, is_sorted, room) -> None:
    @as_scenario(run)
    async def scene() -> None:
        node = await Made.new()
        node.engine.ledgers.recent_room.bytes_max = room
        store, here = LedgerStore(node.engine), set[int]()
        for number, entries in enumerate(added):
            some = sorted(entries) if is_sorted else entries
            call = AddEntries(LEDGER, KEY, len(some), items_of(some))
            assert (await store.add(call)).refusal is AddRefusal.NONE
            here.update(some)
            if number % 3 == 1:
                await flush(node)
        for step in (1, 2, 3):
            for first in range(31):
                wanted = []
                for entry in range(first, first + 6 * step, step):
                    if entry not in here:
                        break
                    wanted.append(entry)
                assert await read_of(store, ReadRun(LEDGER, KEY, first, 6, 999, step)) == wanted

    scene()


async def read_of(store: LedgerStore, call: ReadRun) -> list[int]:
    """The entries of an answer, as its caller reads it."""
    reply = read_reply(b"".join(pack_reply(await store.read_run(call))))
    assert isinstance(reply, RunReply)
    check_answer(call, reply)
    found = [each[0] for each in heads_of(reply.packed, reply.count)]
    assert bytes(bodies_of(reply.packed, reply.count)) == b"".join(map(body_of, found))
    return found


@as_scenario(run)
async def test_a_flushed_run_is_read_from_memory_until_room_is_wanted() -> None:
    node = await Made.new()
    room = node.engine.ledgers.recent_room
    room.bytes_max = 2 * RECENT_COST
    store = LedgerStore(node.engine)
    held = None
    for first in (0, 3, 6):
        await store.add(AddEntries(LEDGER, KEY, 3, items_of([first, first + 1, first + 2])))
        held = node.engine.ledgers.held[LEDGER]
        await flush(node)
        assert not held.entries
    assert held is not None
    assert [held.runs.at(each) is not None for each in (0, 3, 6)] == [False, False, True]
    assert room.bytes <= room.bytes_max
    assert await read_of(store, ReadRun(LEDGER, KEY, 0, 9, 999)) == list(range(9))
    await store.forget([LEDGER])
    assert held.runs.at(6) is None
    assert await read_of(store, ReadRun(LEDGER, KEY, 6, 3, 999)) == []
