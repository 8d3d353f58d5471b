"""What only the memory store has: faults on demand, and one run for one seed."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random

import pytest
from metadata_play import run_patiently
from scenarios import as_scenario, awaited_by

from cordwood.errors import OutcomeUnknown, Unreachable
from cordwood.metadata.memory import (
    DELAY_S,
    LATE_S_MAX,
    LATE_WRITES_MAX,
    OUTAGE_S,
    LateWrite,
    MemoryData,
    MemoryMetadata,
)
from cordwood.metadata.store import Versioned


def now_s() -> float:
    return asyncio.get_running_loop().time()


class TestTime:
    @as_scenario(awaited_by(run_patiently))
    async def test_a_call_takes_as_long_as_was_set(self, *, memory: MemoryMetadata) -> None:
        for shortest_s, longest_s in (DELAY_S, (0.0, 0.0), (2.0, 2.5)):
            memory.delay_s = (shortest_s, longest_s)
            start_s = now_s()
            await memory.get("a")
            assert shortest_s - 1e-9 <= now_s() - start_s <= longest_s + 1e-9

    @as_scenario(awaited_by(run_patiently))
    async def test_calls_overlap(self, *, memory: MemoryMetadata) -> None:
        memory.delay_s = (1.0, 1.0)
        await asyncio.gather(*(memory.get("a") for _ in range(10)))
        assert now_s() == pytest.approx(1.0)


class TestOutage:
    @as_scenario(awaited_by(run_patiently))
    async def test_reads_end_at_the_deadline(self, *, memory: MemoryMetadata) -> None:
        memory.is_out = True
        for call in (memory.get("a"), memory.list("")):
            start_s = now_s()
            with pytest.raises(Unreachable):
                await call
            assert now_s() - start_s == pytest.approx(OUTAGE_S)

    def test_writes_that_are_unreachable_were_not_done_and_never_are(self):
        async def end(seed: int) -> tuple[str, bool]:
            memory = MemoryMetadata(random.Random(seed))
            memory.is_out = True
            try:
                await memory.compare_and_set("a", b"", 0)
            except (Unreachable, OutcomeUnknown) as error:
                told = type(error).__name__
            memory.is_out = False
            await asyncio.sleep(LATE_S_MAX + 1)
            return told, await memory.get("a") is not None

        async def main() -> set[tuple[str, bool]]:
            return {await end(seed) for seed in range(20)}

        assert run_patiently(main()) == {
            ("Unreachable", False),
            ("OutcomeUnknown", False),
            ("OutcomeUnknown", True),
        }

    @as_scenario(awaited_by(run_patiently))
    async def test_one_way_may_be_out_while_another_is_not(self) -> None:
        near = MemoryMetadata(random.Random(1))
        far = MemoryMetadata(random.Random(2), near.data)
        far.is_out = True
        version = await near.compare_and_set("a", b"", 0)
        with pytest.raises(Unreachable):
            await far.get("a")
        await near.close()
        far.is_out = False
        assert await far.get("a") == Versioned(b"", version or 0)


class TestLostAnswers:
    def test_a_lost_write_was_done_is_done_later_or_never(self):
        """All three, and a caller cannot tell them apart when it is told."""

        async def fate(seed: int) -> str:
            memory = MemoryMetadata(random.Random(seed))
            memory.answer_loss = 1.0
            start_s = now_s()
            with pytest.raises(OutcomeUnknown):
                await memory.compare_and_set("a", b"1", 0)
            assert now_s() - start_s == pytest.approx(OUTAGE_S, abs=DELAY_S[1])
            if await memory.get("a"):
                return "now"
            await asyncio.sleep(LATE_S_MAX + 1)
            return "later" if await memory.get("a") else "never"

        async def main() -> set[str]:
            return {await fate(seed) for seed in range(20)}

        assert run_patiently(main()) == {"now", "later", "never"}

    @as_scenario(awaited_by(run_patiently))
    async def test_a_late_write_loses_to_what_came_before_it(self) -> None:
        memory = MemoryMetadata(random.Random(1))
        memory.data.put_off(LateWrite(5.0, "a", b"late", 0))
        assert await memory.get("a") is None
        assert await memory.compare_and_set("a", b"early", 0) == 1
        await asyncio.sleep(5.0)
        assert await memory.get("a") == Versioned(b"early", 1)

    def test_late_writes_come_once_and_in_the_order_of_their_times(self):
        data = MemoryData()
        writes = {due_s: LateWrite(due_s, "a", b"", 0) for due_s in (6.0, 5.0, 7.0)}
        for write in writes.values():
            data.put_off(write)
        assert data.take_due(4.9) == []
        assert data.take_due(6.0) == [writes[5.0], writes[6.0]]
        assert data.take_due(8.0) == [writes[7.0]]
        assert data.take_due(8.0) == []

    def test_a_late_write_is_still_its_writers(self):
        """Who writes is read from the context where a write takes effect."""
        who = contextvars.ContextVar("who", default="nobody")
        seen: list[str] = []

        class Asking(MemoryMetadata):
            def _set(self, key: str, value: bytes | None, expected: int) -> int | None:
                seen.append(who.get())
                return super()._set(key, value, expected)

        async def main() -> None:
            memory = Asking(random.Random(1))
            who.set("writer")
            memory.data.put_off(LateWrite(1.0, "a", b"", 0))
            who.set("reader")
            await asyncio.sleep(1.0)
            await memory.get("a")

        run_patiently(main())
        assert seen == ["writer"]

    def test_no_more_than_a_bounded_number_are_under_way(self):
        data = MemoryData()
        for number in range(LATE_WRITES_MAX + 5):
            data.put_off(LateWrite(1.0, f"k/{number}", b"", 0))
        assert len(data.take_due(1.0)) == LATE_WRITES_MAX

    @as_scenario(awaited_by(run_patiently))
    async def test_reads_are_never_lost(self, *, memory: MemoryMetadata) -> None:
        memory.answer_loss = 1.0
        assert await memory.get("a") is None
        assert await memory.list("") == []


@as_scenario(awaited_by(run_patiently))
async def test_a_copy_holds_what_was_stored_and_no_watches() -> None:
    """A crash leaves what the store held, while a watch of the life before still waits."""
    memory = MemoryMetadata(random.Random(1))
    assert await memory.compare_and_set("a", b"1", 0) == 1
    waiting = asyncio.create_task(memory.data.wait_news(math.inf))
    await asyncio.sleep(1.0)
    twin = memory.data.copy()
    assert twin.compare_and_set("a", b"2", 1) == 2
    assert memory.data.listed("") == [("a", Versioned(b"1", 1))]
    assert not waiting.done()
    twin.put_off(LateWrite(5.0, "b", b"", 0))
    assert memory.data.take_due(9.0) == []
    memory.data.tell_watches()
    await waiting


def test_one_seed_gives_one_run():
    async def story(seed: int) -> list[object]:
        memory = MemoryMetadata(random.Random(seed))
        memory.answer_loss = 0.3
        told: list[object] = []

        async def one(number: int) -> None:
            try:
                found = await memory.get("a")
                version = found.version if found else 0
                told.append((number, await memory.compare_and_set("a", b"%d" % number, version)))
            except OutcomeUnknown:
                told.append((number, "unknown"))
            told.append(now_s())

        for _ in range(5):
            await asyncio.gather(*(one(number) for number in range(8)))
        return [*told, memory.data.listed("")]

    assert run_patiently(story(1)) == run_patiently(story(1))
    assert run_patiently(story(1)) != run_patiently(story(2))
