"""Changing an entry: races, lost answers, late writes, and when to stop."""

from __future__ import annotations

import asyncio
import random

import pytest
from metadata_play import run_patiently
from scenarios import as_scenario, awaited_by

from cordwood.errors import OutcomeUnknown, Overloaded, Unreachable
from cordwood.metadata.change import RACES_MAX, UNKNOWN_MAX, change, change_repeatably
from cordwood.metadata.memory import OUTAGE_S, MemoryMetadata


def one_more(found: bytes | None) -> bytes:
    return b"%d" % (int(found or b"0") + 1)


class TestChange:
    @as_scenario("play")
    async def test_makes_and_changes_and_leaves(self, store) -> None:
        assert await change(store, "n", lambda found: None) is None
        assert await change(store, "n", one_more) == b"1"
        assert await change(store, "n", one_more) == b"2"
        assert await change(store, "n", lambda found: None) == b"2"
        found = await store.get("n")
        assert found is not None
        assert found.value == b"2"

    @as_scenario("play")
    async def test_racers_all_get_their_turn(self, store) -> None:
        turns = await asyncio.gather(*(change(store, "n", one_more) for _ in range(10)))
        assert sorted(map(int, turns)) == list(range(1, 11))

    def test_what_decide_raises_ends_it_with_nothing_written(self, memory: MemoryMetadata):
        def refuse(found: bytes | None) -> bytes | None:
            raise ValueError

        async def main() -> None:
            with pytest.raises(ValueError):  # noqa: PT011
                await change(memory, "n", refuse)
            assert await memory.get("n") is None

        run_patiently(main())

    def test_two_round_trips_when_nobody_races(self, memory: MemoryMetadata):
        async def main() -> float:
            memory.delay_s = (1.0, 1.0)
            await change(memory, "n", one_more)
            return asyncio.get_running_loop().time()

        assert run_patiently(main()) == pytest.approx(2.0)

    def test_gives_up_when_others_always_come_first(self, memory: MemoryMetadata):
        tries = 0

        def overtaken(found: bytes | None) -> bytes:
            nonlocal tries
            tries += 1
            there = memory.data.values.get("n")
            memory.data.compare_and_set("n", b"other", there.version if there else 0)
            return b"ours"

        async def main() -> None:
            with pytest.raises(Overloaded, match="other writers"):
                await change(memory, "n", overtaken)

        run_patiently(main())
        assert tries == RACES_MAX

    @as_scenario(awaited_by(run_patiently))
    async def test_an_outage_is_unreachable(self, *, memory: MemoryMetadata) -> None:
        memory.is_out = True
        with pytest.raises(Unreachable):
            await change(memory, "n", one_more)


class TestUnknownOutcomes:
    @as_scenario(awaited_by(run_patiently))
    async def test_gives_up_after_a_few_and_says_what_is_known(
        self, *, memory: MemoryMetadata
    ) -> None:
        memory.answer_loss = 1.0
        start_s = asyncio.get_running_loop().time()
        with pytest.raises(OutcomeUnknown):
            await change(memory, "n", one_more)
        assert asyncio.get_running_loop().time() - start_s < 1.1 * UNKNOWN_MAX * OUTAGE_S
        with pytest.raises(Unreachable, match="asked again"):
            await change_repeatably(memory, "n", one_more)

    def test_an_outage_after_an_unknown_write_stays_unknown(self, memory: MemoryMetadata):
        """To say Unreachable then would be to say that nothing was written."""

        def fail_after_first(found: bytes | None) -> bytes:
            memory.answer_loss = 1.0
            asyncio.get_running_loop().call_later(0.5, setattr, memory, "is_out", True)
            return b"1"

        async def main() -> None:
            with pytest.raises(OutcomeUnknown):
                await change(memory, "n", fail_after_first)

        run_patiently(main())

    @pytest.mark.parametrize("seed", range(30))
    def test_every_success_is_counted_once_however_answers_are_lost(self, seed):
        """What is returned is unique, and the counter is at least the highest returned."""

        async def main() -> tuple[list[int], int]:
            memory = MemoryMetadata(random.Random(seed))
            memory.answer_loss = 0.3

            async def some() -> list[int]:
                got = []
                for _ in range(5):
                    try:
                        got.append(int(await change(memory, "n", one_more) or b"0"))
                    except OutcomeUnknown:
                        continue
                return got

            got = [n for each in await asyncio.gather(*(some() for _ in range(4))) for n in each]
            found = await memory.get("n")
            return got, int(found.value) if found else 0

        got, last = run_patiently(main())
        assert len(got) == len(set(got))
        assert max(got) <= last
