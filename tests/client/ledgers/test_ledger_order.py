"""Calls that wait for room have their order: the scene holds, and not with its bug planted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.errors import Closed, LedgerFenced, OutcomeUnknown, Overloaded
from cordwood.protocol.ledger_writer import Acked, Effect, WriterLimits
from cordwood.sim.planted import find_bug, planted


async def a_call_comes_as_another_is_about_to_be_let_in(cluster: ClusterAtHand) -> None:
    """Its task begins before the one that waits is told of the room, and took its place."""
    right = WritableLedger._act
    late: list[asyncio.Future[int]] = []

    def act(self: WritableLedger, effects: Sequence[Effect]) -> None:
        if not late and any(isinstance(each, Acked) for each in effects):
            late.append(asyncio.ensure_future(self.append(b"late")))
        right(self, effects)

    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=1)
        )
        with pytest.MonkeyPatch.context() as patched:
            swap_value(patched, lambda: WritableLedger._act, act)
            calls = [asyncio.ensure_future(made.append(b"%d" % number)) for number in range(5)]
            assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]
            assert await asyncio.gather(*late) == [5]
        await made.close()
        opened = await store.ledgers.open(made.ledger_id)
        assert [each.payload async for each in opened] == [b"0", b"1", b"2", b"3", b"4", b"late"]


async def one_that_waits_gives_up(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=1)
        )
        calls = [asyncio.ensure_future(made.append(b"%d" % number)) for number in range(5)]
        await asyncio.sleep(0)
        calls[1].cancel()
        calls[2].cancel()
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert [each for each in told if isinstance(each, int)] == [0, 1, 2]


async def a_writer_is_given_up_while_calls_wait(cluster: ClusterAtHand) -> None:
    """They waited for room until their time was over, and were told to try again."""
    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=1)
        )
        cluster.machine(3).pause()
        first, *waiting = [asyncio.ensure_future(made.append(b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            made.abandon()
            with pytest.raises(OutcomeUnknown):
                await first
            for each in waiting:
                with pytest.raises(LedgerFenced):
                    await each
            with pytest.raises(LedgerFenced):
                await made.append(b"late")
        assert made.is_closed
        cluster.machine(3).resume()


def test_calls_that_wait_for_room_have_their_order() -> None:
    simulate(a_call_comes_as_another_is_about_to_be_let_in)


def test_one_that_gives_up_lets_the_next_one_in() -> None:
    simulate(one_that_waits_gives_up)


def test_calls_that_wait_for_room_are_told_that_their_writer_was_given_up() -> None:
    simulate(a_writer_is_given_up_while_calls_wait)


def test_without_a_look_at_its_end_they_wait() -> None:
    bug = find_bug("ledger-full-after-its-end")
    with planted(bug), pytest.raises((TimeoutError, Overloaded)):
        simulate(a_writer_is_given_up_while_calls_wait)


def test_the_scene_catches_the_bug() -> None:
    with planted(find_bug("ledger-jumps-the-queue")), pytest.raises(AssertionError):
        simulate(a_call_comes_as_another_is_about_to_be_let_in)


@pytest.mark.parametrize(
    "limits", [WriterLimits(entries_max=1), WriterLimits(entries_max=3), WriterLimits(bytes_max=2)]
)
def test_a_close_lets_calls_in_that_waited_before_it(limits: WriterLimits) -> None:
    """All that were under way could be acknowledged at once, and the others were refused."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=3, limits=limits)
            calls = [asyncio.ensure_future(made.append(b"%d" % number)) for number in range(9)]
            await asyncio.sleep(0)
            calls[8].cancel()
            await made.close()
            assert await asyncio.gather(*calls[:8]) == [*range(8)]
            assert made.metadata.last == 7

    simulate(scenario)


def test_a_close_does_not_wait_for_calls_that_give_up() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            made = await store.ledgers.create(
                ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=1)
            )
            calls = [asyncio.ensure_future(made.append(b"%d" % number)) for number in range(5)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(made.close())
            for call in calls[1:]:
                call.cancel()
            async with asyncio.timeout(5):
                await closing
            assert await calls[0] == 0
            assert made.metadata.last == 0

    simulate(scenario)


@as_scenario(simulate, nodes=3)
async def test_a_close_lets_a_write_in_that_waits_for_room(cluster: ClusterAtHand) -> None:
    """Its turn has come: all lower entries are acknowledged, and a slow node still lacks the last.
    The write was refused. Entry 3 has no turn, because nobody writes entry 2."""
    async with cluster.client(timeout_s=20) as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=2, limits=WriterLimits(entries_max=1)
        )
        cluster.machine(3).pause()
        assert await made.write(0, b"0") == 0
        waiting, beyond = [asyncio.ensure_future(made.write(n, b"%d" % n)) for n in (1, 3)]
        closing = asyncio.ensure_future(made.close())
        await asyncio.sleep(0.2)
        assert not closing.done()
        cluster.machine(3).resume()
        assert await waiting == 1
        with pytest.raises(Closed, match="ended below this entry"):
            await beyond
        await closing
        assert made.metadata.last == 1
