"""The event log in a metadata store: one order of events, whoever says them at once."""

from __future__ import annotations

import asyncio
import random

import pytest
from metadata_play import run_patiently
from scenarios import as_scenario, awaited_by

from cordwood.errors import ChecksumMismatch, Malformed, Retryable, Unreachable
from cordwood.layout.rebuild_events import pack_set
from cordwood.metadata.event_log import StoredEventLog
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import Authority, Member, NodeId
from cordwood.protocol.event_log import Verdict, authority_of, replay
from cordwood.rebuilding import (
    Acked,
    DonorProgress,
    IsRebuilt,
    NeedsRebuild,
    RebuildingSet,
)

EVERY = (1, 2, 3, 4, 5, 6)


class TestSaying:
    @as_scenario("pair")
    async def test_an_event_is_there_for_everybody(self, one, other) -> None:
        assert await StoredEventLog(other).read() == RebuildingSet()
        after, verdict = await StoredEventLog(one).say(NeedsRebuild(3, EVERY))
        assert verdict is Verdict.TAKEN
        assert (after.through, after.version) == (1, 1)
        assert await StoredEventLog(other).read() == after

    @as_scenario("play")
    async def test_what_changes_nothing_is_not_written(self, store) -> None:
        log = StoredEventLog(store)
        assert (await log.say(Acked(3, 1))).verdict is Verdict.UNKNOWN_NODE
        assert await store.get("rebuilding/set") is None
        await log.say(NeedsRebuild(3, EVERY))
        before = await store.get("rebuilding/set")
        found, verdict = await log.say(NeedsRebuild(3, EVERY))
        assert verdict is Verdict.UNCHANGED
        assert found.through == 1
        assert await store.get("rebuilding/set") == before

    @as_scenario("pair")
    async def test_a_condition_is_judged_by_the_set_to_which_the_event_is_added(
        self, one, other
    ) -> None:
        """Also if another event comes between the judgement and the write."""
        judged = []

        class Overtaken:
            get = one.get

            async def compare_and_set(self, *args):
                await StoredEventLog(other).say(NeedsRebuild(3, EVERY))
                return await one.compare_and_set(*args)

        def holds(found: RebuildingSet) -> bool:
            judged.append(found.version)
            return not found.lost

        found, verdict = await StoredEventLog(Overtaken()).say(NeedsRebuild(4, EVERY), holds)
        assert verdict is Verdict.STALE
        assert judged == [0, 1]
        assert found == await StoredEventLog(one).read()
        assert [each.node for each in found.lost] == [3]

    @as_scenario("play")
    async def test_those_who_race_get_one_order(self, store) -> None:
        """Five donors end at once, and each word counts."""
        await StoredEventLog(store).say(NeedsRebuild(3, EVERY))
        said = await asyncio.gather(
            *(StoredEventLog(store).say(IsRebuilt(3, d, 1)) for d in EVERY if d != 3)
        )
        assert {outcome.verdict for outcome in said} == {Verdict.TAKEN}
        assert sorted(outcome.after.through for outcome in said) == [2, 3, 4, 5, 6]
        found = await StoredEventLog(store).read()
        assert authority_of(found, 3) is Authority.AUTHORITATIVE_EMPTY

    @pytest.mark.parametrize("seed", range(20))
    @as_scenario(awaited_by(run_patiently))
    async def test_nothing_counts_twice_however_answers_are_lost(self, *, seed) -> None:
        chance = random.Random(seed)
        data = MemoryMetadata(chance).data
        await StoredEventLog(MemoryMetadata(chance, data)).say(NeedsRebuild(3, EVERY))

        async def one(donor: int) -> bool:
            store = MemoryMetadata(chance, data)
            store.answer_loss = 0.4
            try:
                found, verdict = await StoredEventLog(store).say(IsRebuilt(3, donor, 1))
            except Retryable:
                return False
            assert verdict in (Verdict.TAKEN, Verdict.UNCHANGED)
            entry = found.entry(3)
            assert entry is not None
            assert entry.is_empty or donor in entry.done
            return True

        told = await asyncio.gather(*(one(donor) for donor in (1, 2, 4)))
        await asyncio.sleep(60)
        found = await StoredEventLog(MemoryMetadata(chance, data)).read()
        entry = found.entry(3)
        assert entry is not None
        said = {donor for donor, is_told in zip((1, 2, 4), told, strict=True) if is_told}
        assert said <= set(entry.done)
        assert found == replay(
            [(1, NeedsRebuild(3, EVERY))]
            + [(at, IsRebuilt(3, donor, 1)) for at, donor in enumerate(entry.done, 2)]
        )


class TestReading:
    @as_scenario(awaited_by(run_patiently))
    async def test_news_are_told_and_what_is_known_is_waited_for(
        self, *, memory: MemoryMetadata
    ) -> None:
        log = StoredEventLog(memory)
        loop = asyncio.get_running_loop()
        empty = await log.news(None, 1000)
        assert empty == RebuildingSet()
        waits = asyncio.ensure_future(log.news(empty, 1000))
        await asyncio.sleep(5)
        assert not waits.done()
        after = (await StoredEventLog(memory).say(NeedsRebuild(3, EVERY))).after
        assert await waits == after
        assert loop.time() < 100
        began = loop.time()
        assert await log.news(after, 50) is after
        assert loop.time() - began >= 50

    @as_scenario(awaited_by(run_patiently))
    async def test_what_came_before_the_first_wait_is_told_at_once(
        self, *, memory: MemoryMetadata
    ) -> None:
        log = StoredEventLog(memory)
        known = await log.read()
        after = (await StoredEventLog(memory).say(NeedsRebuild(3, EVERY))).after
        told = (await StoredEventLog(memory).say(DonorProgress(1, 1, 5))).after
        assert told != after
        began = asyncio.get_running_loop().time()
        assert await log.news(known, 1000) == told
        assert asyncio.get_running_loop().time() - began < 100

    @as_scenario(awaited_by(run_patiently))
    async def test_an_outage_is_unreachable(self, *, memory: MemoryMetadata) -> None:
        memory.is_out = True
        for call in (
            StoredEventLog(memory).read(),
            StoredEventLog(memory).say(NeedsRebuild(3, EVERY)),
            StoredEventLog(memory).news(None, 5),
        ):
            with pytest.raises(Unreachable):
                await call

    def test_one_that_cannot_be_read(self, memory: MemoryMetadata):
        packed = pack_set(RebuildingSet(7))

        async def main() -> None:
            version = 0
            for value in (b"", b"noise", packed[:-1], packed[:-1] + b"\x08"):
                version = await memory.compare_and_set("rebuilding/set", value, version)
                with pytest.raises((Malformed, ChecksumMismatch)):
                    await StoredEventLog(memory).read()
                with pytest.raises((Malformed, ChecksumMismatch)):
                    await StoredEventLog(memory).say(NeedsRebuild(3, EVERY))
            found = await memory.get("rebuilding/set")
            assert found.value == packed[:-1] + b"\x08", "what cannot be read is left as it is"

        run_patiently(main())


class TestFollowers:
    @as_scenario("pair")
    async def test_a_start_that_said_nothing_does_not_follow(self, one, other) -> None:
        members = [Member(NodeId(n), "", incarnation=n) for n in (1, 2, 12)]
        log = StoredEventLog(one)
        assert await log.not_following(members) == (1, 2, 12)
        await log.note_follower(NodeId(1), 1)
        await log.note_follower(NodeId(12), 12)
        await log.note_follower(NodeId(3), 3)
        assert await StoredEventLog(other).not_following(members) == (2,)
        await log.note_follower(NodeId(2), 1)
        assert await log.not_following(members) == (2,), "of an earlier start"
        await log.note_follower(NodeId(2), 2)
        await log.note_follower(NodeId(2), 2)
        assert await log.not_following(members) == ()

    def test_what_a_later_version_said_counts_and_noise_does_not(self, memory: MemoryMetadata):
        members = [Member(NodeId(1), "", incarnation=3)]

        async def main() -> None:
            log = StoredEventLog(memory)
            key = "event-log-followers/1"
            version = await memory.compare_and_set(key, b'{"incarnation":3,"more":1}', 0)
            assert await log.not_following(members) == ()
            for value in (b"", b"[]", b'{"incarnation":0}', b"{}"):
                version = await memory.compare_and_set(key, value, version)
                with pytest.raises(Malformed):
                    await log.not_following(members)

        run_patiently(main())
