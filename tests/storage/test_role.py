"""The storage role: frames in, cumulative answers out, and what a damaged node admits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from made_blocks import LOG, Made, at, packed, payload, run, turns
from scenarios import as_scenario
from stream_ends import ReaderEnd, pumped

from cordwood.errors import Malformed
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.message import AskEpoch, Clean, DoneReply, EpochReply, Seal
from cordwood.layout.reading import ReadRequest, ReadStatus, pack_read, pack_stop, pack_window
from cordwood.layout.waves import (
    Refusal,
    StoreRefusal,
    pack_pairs,
    read_stored,
    stored_space,
)
from cordwood.lsn import ESN_MAX
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.role import StorageRole

READ = ReadRequest(1, LOG, at(1), at(ESN_MAX), at(ESN_MAX), 1 << 30)
DIGEST = replace(READ, digest=True)


class Playing:
    """A role over a made engine, and a sequencer's connection to it."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.streams = ReadStreams(made.engine.reader)
        self.role = StorageRole(made.engine, self.streams)
        self.end = ReaderEnd(node=2)

    def say(self, kind: Kind, request: int, body: bytes | memoryview) -> None:
        self.role.on_frame(self.end.connection, Frame(kind, request, memoryview(body)))

    def store(self, wave: int, *blocks: bytes, seal: int = 0) -> None:
        self.say(Kind.STORE, wave, payload(*blocks, seal=seal))

    def answers(self) -> list[tuple[int, list[StoreRefusal]]]:
        return [read_stored(each.payload) for each in self.end.frames() if each.kind == Kind.STORED]


async def playing(*, by_hand: bool = False) -> Playing:
    return Playing(await Made.new(by_hand=by_hand))


class TestStored:
    @as_scenario(run)
    async def test_one_answer_settles_all_waves_that_became_durable_in_a_turn(self) -> None:
        play = await playing(by_hand=True)
        for wave in range(1, 6):
            play.store(wave, packed(at(wave)))
        await turns()
        assert play.answers() == []
        play.made.disk.file.end_all()
        await turns()
        assert play.answers() == [(5, [])]

    @as_scenario(run)
    async def test_a_refusal_waits_for_the_waves_ahead_of_it(self) -> None:
        """An answer settles all up to its number, so none may overtake an open wave."""
        play = await playing(by_hand=True)
        play.store(1, packed(at(1)))
        await turns()
        sealing = asyncio.create_task(play.role.seal(Seal(LOG, 3, 0)))
        await turns()
        play.store(2, packed(at(2)))
        play.store(3, packed(at(1), log=9))
        await turns()
        assert all(refusals == [] for _, refusals in play.answers())
        while play.made.disk.file.pending:
            play.made.disk.file.end_all()
            await turns()
        await sealing
        answers = play.answers()
        assert answers[-1][0] == 3
        assert [refusal for _, refusals in answers for refusal in refusals] == [
            StoreRefusal(2, LOG, Refusal.SEALED, 3)
        ]

    @pytest.mark.parametrize("wave", [0, 1, 3, 2**64 - 1])
    @as_scenario(run)
    async def test_a_wave_out_of_its_turn_is_refused(self, *, wave: int) -> None:
        play = await playing()
        play.store(1, packed(at(1)))
        with pytest.raises(Malformed, match="came after wave 1"):
            play.store(wave, packed(at(2)))
        await turns()
        assert len(play.made.held()) == 1

    @as_scenario(run)
    async def test_each_connection_has_its_own_numbers_and_a_lost_one_is_forgotten(self) -> None:
        play = await playing(by_hand=True)
        play.store(1, packed(at(1)))
        await turns()
        play.role.on_lost(play.end.connection)
        old, play.end = play.end, ReaderEnd(node=2)
        play.store(1, packed(at(1)), packed(at(2)))
        await turns()
        play.made.disk.file.end_all()
        await turns()
        play.made.disk.file.end_all()
        await turns()
        assert play.answers() == [(1, [])]
        assert len(play.made.held()) == 2, "the retry stored no second copy"
        old.connection.connection_lost(None)


class TestReads:
    @as_scenario(run)
    async def test_read_release_window_and_stop(self) -> None:
        play = await playing()
        play.store(1, *(packed(at(esn)) for esn in range(1, 5)))
        await turns()
        play.say(Kind.READ, 0, pack_read(replace(READ, window_high=at(3))))
        await pumped()
        assert play.end.firsts() == []
        play.say(Kind.RELEASE, 0, pack_pairs([LOG, at(4), LOG + 1, at(9)]))
        # The storage engine's owner tells the streams; see `Node`.
        play.streams.on_change(LOG)
        await pumped()
        assert play.end.firsts() == [at(1), at(2), at(3)]
        play.say(Kind.STOP, 0, pack_stop(1))
        play.say(Kind.WINDOW, 0, pack_window(1, at(9), 1 << 30))
        await pumped()
        assert play.end.firsts() == []
        assert play.made.told == [LOG, LOG + 1]

    @as_scenario(run)
    async def test_a_digest_is_read_below_a_seal_only(self) -> None:
        play = await playing()
        play.store(1, packed(at(1)), packed(at(2)))
        await turns()
        play.say(Kind.READ, 0, pack_read(DIGEST))
        await pumped()
        assert play.end.readings() == [(1, ReadStatus.NOT_SEALED, 0)]
        await play.role.seal(Seal(LOG, 1, 0))  # epoch 1 itself may still be written
        play.say(Kind.READ, 0, pack_read(DIGEST))
        await pumped()
        assert play.end.readings() == [(1, ReadStatus.NOT_SEALED, 0)]
        await play.role.seal(Seal(LOG, 2, 0))
        play.say(Kind.READ, 0, pack_read(DIGEST))
        await pumped()
        assert play.end.firsts() == [at(1), at(2)]

    @as_scenario(run)
    async def test_a_damaged_node_gives_no_digest_and_marks_what_readers_get(self) -> None:
        play = await playing()
        play.store(1, packed(at(1)))
        play.made.engine.release(LOG, at(1))
        await turns()
        await play.role.seal(Seal(LOG, 2, 0))
        play.made.engine.damage = "records at WAL offsets ((0, 1),) cannot be read any more"
        play.say(Kind.READ, 0, pack_read(DIGEST))
        await pumped()
        assert play.end.readings() == [(1, ReadStatus.DAMAGED, 0)]
        play.say(Kind.READ, 0, pack_read(READ))
        await pumped()
        frames = play.end.frames()
        assert [each.kind for each in frames] == [Kind.READING, Kind.BLOCKS]

    @as_scenario(run)
    async def test_frames_of_other_kinds_are_refused(self) -> None:
        play = await playing()
        for kind in (Kind.APPEND, Kind.STORED, Kind.BLOCKS, Kind.CALL):
            with pytest.raises(Malformed, match=f"kind {int(kind)}"):
                play.say(kind, 0, b"")


@as_scenario(run)
async def test_how_an_epoch_ended_is_told_by_who_was_told() -> None:
    play = await playing()
    assert play.role.epoch_end(AskEpoch(LOG, 2)) == EpochReply(False, 0, 0)
    await play.role.seal(Seal(LOG, 3, 0))
    await play.role.clean(Clean(LOG, 2, 3, at(7, epoch=2)))
    assert play.role.epoch_end(AskEpoch(LOG, 2)) == EpochReply(True, 3, at(7, epoch=2))
    assert play.role.epoch_end(AskEpoch(LOG, 1)) == EpochReply(False, 0, 0)
    assert play.role.epoch_end(AskEpoch(LOG + 1, 2)) == EpochReply(False, 0, 0)


@as_scenario(run)
async def test_an_answer_tells_how_much_room_is_left() -> None:
    play = await playing()
    rooms = []
    for wave in range(1, 4):
        play.store(wave, packed(at(wave), bytes(100_000)))
        await turns(30)
        (answer,) = play.end.frames()
        rooms.append(stored_space(answer.payload))
        assert 0 <= play.made.engine.free_bytes - rooms[-1] < 4096
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] - rooms[2] >= 200_000


@as_scenario(run)
async def test_clean_is_answered_when_it_is_durable() -> None:
    play = await playing(by_hand=True)
    sealing = asyncio.create_task(play.role.seal(Seal(LOG, 3, 0)))
    await turns()
    play.made.disk.file.end_all()
    await turns()
    await sealing
    cleaning = asyncio.create_task(play.role.clean(Clean(LOG, 2, 3, at(7, epoch=2))))
    await turns()
    assert not cleaning.done()
    play.made.disk.file.end_all()
    await turns()
    assert await cleaning == DoneReply()
    assert play.made.engine.cache.log(LOG).clean == 2
