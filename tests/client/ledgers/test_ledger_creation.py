"""The creation of a ledger whose answer is lost, or comes late: one ledger, which its client knows.

A creation that also allots the id cannot be repeated: each call that a node did makes a ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from swaps import swap

from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.store import Store
from cordwood.errors import LedgerExists, Unreachable
from cordwood.layout.message import DoneReply
from cordwood.layout.message_ledgers import (
    AllotLedgerId,
    CreateLedger,
    LedgerIdReply,
    LedgerMetadataCall,
    LedgerReply,
    LedgersReply,
)
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.sim.planted import find_bug, planted

Answer = LedgerReply | LedgerIdReply | LedgersReply | DoneReply


def lose_answers(
    patched: pytest.MonkeyPatch, is_lost: Callable[[LedgerMetadataCall], bool]
) -> None:
    """Nodes do some calls, and their answers do not arrive."""
    right = LedgerMetadataStore.answer

    async def lossy(self: LedgerMetadataStore, call: LedgerMetadataCall) -> Answer:
        told = await right(self, call)
        if is_lost(call):
            raise Unreachable("the connection broke before the answer came")
        return told

    swap(patched, LedgerMetadataStore.answer, lossy)


async def answers_of_creations_are_lost(cluster: ClusterAtHand) -> None:
    """Each answer is lost three times: on three nodes, and in the second round."""
    lost: list[LedgerMetadataCall] = []

    def is_lost(call: LedgerMetadataCall) -> bool:
        lost.append(call)
        return isinstance(call, CreateLedger) and len(lost) % 4 != 0

    async with cluster.client() as store:
        with pytest.MonkeyPatch.context() as patched:
            lose_answers(patched, is_lost)
            made = [await store.ledgers.create() for _ in range(3)]
        for each in made:
            await each.append(b"one")
            await each.close()
        known = sorted(each.ledger_id for each in made)
        listed = [each async for each in store.ledgers.list()]
        assert listed == known, "a ledger stays open, and no client knows it"
        assert any(isinstance(call, CreateLedger) for call in lost)


def test_a_creation_whose_answer_is_lost_makes_one_ledger() -> None:
    simulate(answers_of_creations_are_lost)


def test_a_creation_that_allots_the_id_is_caught() -> None:
    bug = find_bug("ledger-made-with-its-id")
    with planted(bug), pytest.raises(AssertionError, match="no client knows"):
        simulate(answers_of_creations_are_lost)


async def ids_are_allotted_once(cluster: ClusterAtHand) -> None:
    stores = [LedgerMetadataStore(cluster.metadata) for _ in range(3)]
    told = await asyncio.gather(*(each.allot() for each in stores * 150))
    assert len({*told}) == len(told) == 450


def test_no_id_is_allotted_twice() -> None:
    """Three nodes hand out ids at once, over the ends of their hundreds."""
    simulate(ids_are_allotted_once)


async def the_next_ids_are_taken(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        first = (await store.ledgers.create()).ledger_id
        for each in range(first + 1, first + 200):
            await store.ledgers.create(ledger=each, ensemble=1, write=1, ack=1)
        made = await store.ledgers.create()
        assert made.ledger_id not in range(first, first + 200)


def test_an_id_that_a_client_chose_is_passed_over() -> None:
    simulate(the_next_ids_are_taken)


async def no_answer_comes(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=2) as store:
        with pytest.MonkeyPatch.context() as patched:
            lose_answers(patched, lambda call: isinstance(call, CreateLedger))
            with pytest.raises(Unreachable, match=r"ledger (\d+) may be made all the same") as told:
                await store.ledgers.create()
        (ledger,) = [each async for each in store.ledgers.list()]
        assert f"ledger {ledger} may" in str(told.value)


def test_a_creation_that_is_given_up_names_its_ledger() -> None:
    simulate(no_answer_comes)


async def ids_come_late_and_then_no_answer(cluster: ClusterAtHand) -> None:
    right = LedgerMetadataStore.answer
    loop = asyncio.get_running_loop()

    async def late(self: LedgerMetadataStore, call: LedgerMetadataCall) -> Answer:
        told = await right(self, call)
        if isinstance(call, AllotLedgerId):
            await asyncio.sleep(0.9)
        elif isinstance(call, CreateLedger):
            raise Unreachable("the connection broke before the answer came")
        return told

    async with cluster.client(timeout_s=1) as store:
        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataStore.answer, late)
            began = loop.time()
            with pytest.raises(Unreachable, match="ledger 0 may be made all the same"):
                await store.ledgers.create()
            assert loop.time() - began < 1.5


def test_all_of_a_creation_has_one_deadline() -> None:
    """The id and the creation had a whole timeout each. A caller without a loop gave up before the
    end, and was not told which ledger may be made."""
    simulate(ids_come_late_and_then_no_answer)


async def it_is_recovered_before_its_creator_hears_of_it(
    cluster: ClusterAtHand, chosen: int | None
) -> int:
    """Create a ledger; the first one that is made is recovered by another client, and the answer is
    lost. Returns the id of the second one, of a client that chose no id."""
    ended: list[int] = []
    right = LedgerMetadataStore.answer
    async with cluster.client() as store:

        async def ends(self: LedgerMetadataStore, call: LedgerMetadataCall) -> Answer:
            told = await right(self, call)
            if isinstance(call, CreateLedger) and not ended:
                ended.append(call.ledger)
                found = await store.ledgers.recover(call.ledger)
                assert found.state is LedgerState.CLOSED
                raise Unreachable("the connection broke before the answer came")
            return told

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataStore.answer, ends)
            made = await store.ledgers.create(ledger=chosen)
        assert await made.append(b"one") == 0
        assert ended == [0]
        return made.ledger_id


def test_a_ledger_that_was_ended_before_its_creator_heard_of_it_is_not_written() -> None:
    """Its creator got an AssertionError of its writer."""

    async def scenario(cluster: ClusterAtHand) -> None:
        assert await it_is_recovered_before_its_creator_hears_of_it(cluster, None) == 1

    simulate(scenario)


def test_a_creator_is_told_that_the_ledger_of_its_id_was_ended() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        with pytest.raises(LedgerExists, match="another client ended ledger 0"):
            await it_is_recovered_before_its_creator_hears_of_it(cluster, 0)

    simulate(scenario)


def slow_creations(patched: pytest.MonkeyPatch, pause_s: float) -> None:
    """Nodes make ledgers, and their answers are late."""
    right = LedgerMetadataStore.answer

    async def slow(self: LedgerMetadataStore, call: LedgerMetadataCall) -> Answer:
        told = await right(self, call)
        if isinstance(call, CreateLedger):
            await asyncio.sleep(pause_s)
        return told

    swap(patched, LedgerMetadataStore.answer, slow)


async def create_in_vain(store: Store, ledger: int | None = None) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.ledgers.create(ledger=ledger), 0.5)


def test_a_cancelled_creation_leaves_no_ledger_that_no_client_knows() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        with pytest.MonkeyPatch.context() as patched:
            slow_creations(patched, 1.5)
            async with cluster.client() as store:
                await create_in_vain(store)
                # Its caller knows this one.
                await create_in_vain(store, 2**40)
                await asyncio.sleep(3)
                assert [each async for each in store.ledgers.list()] == [2**40]
                # A client that closes waits for its deletion.
                await create_in_vain(store)
        async with cluster.client() as store:
            assert [each async for each in store.ledgers.list()] == [2**40]

    simulate(scenario)


def test_a_cancelled_creation_deletes_no_ledger_of_another_client() -> None:
    """Another client had chosen the id that was allotted, and no creation has told so yet."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as other:
            first = await other.ledgers.create()
            chosen = await other.ledgers.create(ledger=first.ledger_id + 1)
            await chosen.append(b"one")
            with pytest.MonkeyPatch.context() as patched:

                async def allot(self: LedgerMetadataCalls, *, timeout_s: float) -> int:
                    return chosen.ledger_id

                async def never(
                    self: LedgerMetadataCalls,
                    ledger: int,
                    metadata: LedgerMetadata,
                    *,
                    timeout_s: float,
                ) -> Versioned:
                    await asyncio.Event().wait()
                    raise AssertionError

                swap(patched, LedgerMetadataCalls.allot, allot)
                swap(patched, LedgerMetadataCalls.create, never)
                await create_in_vain(store)
            await asyncio.sleep(10)
            assert await chosen.append(b"two") == 1
            assert chosen.ledger_id in [each async for each in store.ledgers.list()]

    simulate(scenario)
