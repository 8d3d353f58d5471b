"""What a flush took and is in memory still: served as LogsDB would, and never more than that."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from made_blocks import LOG, Made, at, block, flush, packed, run, turns
from scenarios import as_scenario

from cordwood.lsn import LSN_MAX
from cordwood.storage.logs_db.recent_blocks import RecentBlocks
from cordwood.storage.recent_room import RECENT_COST, RecentRoom

SIZE = block(at(1)).wire_bytes + RECENT_COST


def lasts(recent: RecentBlocks, lsn: int, log: int = LOG) -> list[int]:
    return [each.header.last for each in recent.from_lsn(log, lsn)]


def test_it_is_complete_from_where_logs_db_ended() -> None:
    recent = RecentBlocks(RecentRoom(1 << 20))
    assert recent.complete_from(LOG) is None
    recent.begin([(LOG, at(3))])
    recent.add([block(at(4)), block(at(6)), block(at(5))], [LOG])
    assert recent.complete_from(LOG) == at(4)
    assert lasts(recent, at(5)) == [at(5), at(6)]


def test_the_oldest_goes_and_with_it_what_is_below() -> None:
    room = RecentRoom(2 * SIZE)
    recent = RecentBlocks(room)
    recent.begin([(LOG, 0)])
    recent.add([block(at(esn)) for esn in (1, 2)], [LOG])
    assert recent.complete_from(LOG) == 1
    recent.begin([(LOG, at(2))])
    recent.add([block(at(3))], [LOG])
    assert (recent.complete_from(LOG), lasts(recent, 0)) == (at(1) + 1, [at(2), at(3)])
    assert room.bytes == 2 * SIZE


def test_a_log_without_blocks_is_forgotten() -> None:
    recent = RecentBlocks(RecentRoom(SIZE))
    recent.begin([(LOG, 0), (7, 0)])
    recent.add([block(at(1))], [LOG, 7])
    assert recent.complete_from(7) is None
    recent.begin([(7, at(1))])
    recent.add([block(at(2), log=7)], [7])
    assert recent.complete_from(LOG) is None
    assert recent.complete_from(7) == at(1) + 1


def test_none_is_kept_without_room() -> None:
    room = RecentRoom(0)
    recent = RecentBlocks(room)
    recent.begin([(LOG, 0)])
    recent.add([block(at(1))], [LOG])
    assert recent.complete_from(LOG) is None
    assert room.bytes == 0


@given(st.lists(st.lists(st.integers(1, 40), max_size=6), max_size=12), st.integers(0, 8))
@settings(max_examples=60)
def test_above_where_it_is_complete_nothing_of_a_flush_is_missing(flushes, blocks) -> None:
    room = RecentRoom(blocks * SIZE)
    recent = RecentBlocks(room)
    logs_db: list[int] = []
    for esns in flushes:
        recent.begin([(LOG, max(logs_db, default=0))])
        recent.add([block(at(esn)) for esn in esns], [LOG])
        logs_db += [at(esn) for esn in esns]
        kept_from = recent.complete_from(LOG)
        if kept_from is not None:
            assert lasts(recent, kept_from) == sorted(each for each in logs_db if each >= kept_from)
        assert room.bytes <= blocks * SIZE
        assert len(lasts(recent, 0)) * SIZE <= room.bytes, "all that is kept is counted"


@as_scenario(run)
async def test_a_reader_gets_from_memory_what_it_gets_from_logs_db() -> None:
    """Two flushes, copies that lost, a purge and a trim: each read is the same both ways."""
    made = await Made.new()
    made.engine._recent._room.bytes_max = 1 << 20
    chance = random.Random(7)
    for _ in range(3):
        for _ in range(30):
            esn, wave = chance.randint(1, 60), chance.randint(1, 3)
            made.store(packed(at(esn), b"record %d" % esn, wave=wave))
        await turns(60)
        await flush(made, now_us=1)
    made.engine.cache.log(LOG).trim_to(at(9))
    reader = made.engine.reader
    assert reader.is_at_hand(LOG, at(10))
    for start in (10, 11, 25, 59):
        limits = {"bytes_max": 1 << 20, "blocks_max": 1000}
        kept = reader.read_cached(LOG, at(start), LSN_MAX, **limits)
        stored = await reader.read(LOG, at(start), LSN_MAX, **limits)
        assert [bytes(each.wire) + bytes(each.body) for each in kept.blocks] == [
            bytes(each.wire) + bytes(each.body) for each in stored.blocks
        ]
        assert kept.next == stored.next == LSN_MAX + 1
