"""What callers claim of a log: a number that is too high ends nothing, whoever says it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from made_blocks import LOG as MADE
from made_blocks import Made, Settled, at, packed, payload, run, turns
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.store import Store
from cordwood.errors import CordwoodError, Rejected, Unreachable
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.hello import ANY_CLUSTER, Hello
from cordwood.layout.log_questions import Trim
from cordwood.layout.message import Clean, Reply, TellNodesets
from cordwood.layout.message_rebuilding import TellProducers
from cordwood.layout.waves import Refusal, pack_pairs
from cordwood.lsn import EPOCH_MAX, ESN_MAX, LSN_MAX, make_lsn
from cordwood.sim.planted import find_bug, planted
from cordwood.storage import claims as claims_module
from cordwood.storage import unheard as unheard_module
from cordwood.storage.unheard import SEAL_AHEAD_MAX, Unheard
from cordwood.wire.connection import Connection, dial

LOG = 1


class Keeping:
    """Hears nothing but answers."""

    def on_frame(self, connection: Connection, frame: Frame) -> None: ...
    def on_lost(self, connection: Connection, error: CordwoodError) -> None: ...


Scene = Callable[[ClusterAtHand, Store], Awaitable[None]]


def in_cluster(scene: Scene) -> None:
    """Play it beside a log with one record; the log takes and shows more afterwards."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"1")
            await scene(cluster, store)
            await store.append("log", b"2")
            assert await values(store, "log") == [b"1", b"2"]
            for node in list(cluster.running):
                held = cluster.running[node].engine.cache.log(LOG)
                await until(lambda held=held: held.readable >> 32 == 1 and not held.is_behind)

    simulate(scenario, nodes=3)


async def member(cluster: ClusterAtHand, at_node: int) -> Connection:
    """A connection of what says to be a node of the cluster."""
    other = next(number for number in cluster.numbers if number != at_node)
    ours = Hello(other, cluster.running[at_node]._cluster)
    network = cluster.client_host().network
    return await dial(network, cluster.addresses[at_node - 1], ours, Keeping(), timeout_s=5)


async def client(cluster: ClusterAtHand, at_node: int) -> Connection:
    ours = Hello(0, ANY_CLUSTER)
    network = cluster.client_host().network
    return await dial(network, cluster.addresses[at_node - 1], ours, Keeping(), timeout_s=5)


@pytest.mark.parametrize("lsn", [make_lsn(2, 0), make_lsn(500, 7), LSN_MAX])
def test_a_release_in_an_epoch_that_was_never_handed_out_is_not_taken(lsn: int) -> None:
    """It told readers that all is released, fenced the sequencer, and had the node purge for
    good what never was."""

    async def scene(cluster: ClusterAtHand, store: Store) -> None:
        for number in cluster.numbers:
            end = await member(cluster, number)
            end.send(Kind.RELEASE, 0, (pack_pairs([LOG, lsn]),))
        await asyncio.sleep(2)
        for node in cluster.running.values():
            held = node.engine.cache.log(LOG)
            assert held.released >> 32 == 1
            assert not held.is_behind

    in_cluster(scene)
    with planted(find_bug("releases-believed")), pytest.raises(AssertionError):
        in_cluster(scene)


@pytest.mark.parametrize("epoch", [2, 500, EPOCH_MAX])
def test_a_block_of_an_epoch_that_was_never_handed_out_is_not_stored(epoch: int) -> None:
    """Its LNG was taken past all claims: the node fenced the sequencer, and readers ended.
    Retention went by its time, and trimmed younger records."""

    async def scene(cluster: ClusterAtHand, store: Store) -> None:
        for number in cluster.numbers:
            end = await member(cluster, number)
            first = int(make_lsn(epoch, 1))
            end.send(Kind.STORE, 1, (payload(packed(first, log=LOG, lng=first)),))
        await asyncio.sleep(2)
        for node in cluster.running.values():
            held = node.engine.cache.log(LOG)
            assert (held.last >> 32, held.released >> 32) == (1, 1)
            assert node._claims.waiting == 0

    in_cluster(scene)
    with planted(find_bug("far-blocks-stored")), pytest.raises(AssertionError):
        in_cluster(scene)


class Asked:
    """A storage engine with claims, beside an epoch store that answers when told to.

    Attributes:
        newest: what the epoch store answers; an error is raised.
        asked: the logs that it was asked about.
    """

    def __init__(self, made: Made) -> None:
        self.engine = made.engine
        self.engine.unheard = Unheard()
        self.newest: int | CordwoodError = 0
        self.asked: list[int] = []
        unused: Any = None
        self.claims = claims_module.Claims(self.engine, self._answer, unused, unused)
        self._work = asyncio.ensure_future(self.claims.run())

    async def _answer(self, log: int) -> int:
        self.asked.append(log)
        if isinstance(self.newest, CordwoodError):
            raise self.newest
        return self.newest

    async def store(self, *blocks: bytes) -> list[Refusal]:
        """Store them in one frame; the reasons of the refusals."""
        settled = Settled()
        self.engine.store(1, payload(*blocks), settled)
        await until(lambda: bool(settled))
        (refusals,) = settled
        return [Refusal(each.reason) for each in refusals]

    def end(self) -> None:
        self._work.cancel()


@as_scenario(run)
async def test_a_node_that_slept_through_an_epochs_beginning_asks_once_and_stores() -> None:
    asked = Asked(await Made.new())
    asked.newest = 4
    held = asked.engine.cache.log(MADE)
    for esn in (1, 2):
        last = at(esn, epoch=4)
        assert await asked.store(packed(last, lng=last)) == []
        assert (held.last, held.released) == (last, last)
    assert await asked.store(packed(at(1, epoch=3))) == []
    assert asked.asked == [MADE]
    asked.end()


@as_scenario(run)
async def test_a_far_store_is_refused_as_by_a_full_node_where_the_epoch_store_does_not_answer() -> (
    None
):
    """Its sender comes again, and other nodes have its copies meanwhile."""
    asked = Asked(await Made.new())
    asked.newest = Unreachable("away")
    far = SEAL_AHEAD_MAX + 1
    assert await asked.store(packed(at(1, far)), packed(at(1), log=9)) == [Refusal.FULL] * 2
    asked.newest = far - 1
    assert await asked.store(packed(at(1, far))) == [Refusal.CORRUPT]
    asked.newest = far
    assert await asked.store(packed(at(1, far)), packed(at(1, far), log=9)) == []
    assert asked.claims.waiting == 0
    asked.end()


@as_scenario(run)
async def test_a_near_store_is_taken_where_the_epoch_store_does_not_answer() -> None:
    """As a seal is. It is asked about once, and again as soon as something else is."""
    asked = Asked(await Made.new())
    asked.newest = Unreachable("away")
    assert await asked.store(packed(at(1, epoch=4))) == []
    assert await asked.store(packed(at(2, epoch=4))) == []
    assert asked.asked == [MADE]
    asked.newest = 3
    assert await asked.store(packed(at(1, epoch=5))) == [Refusal.CORRUPT]
    assert await asked.store(packed(at(3, epoch=4))) == [Refusal.CORRUPT]
    asked.end()


@as_scenario(simulate, nodes=4, copies=3)
async def test_a_node_that_missed_an_epoch_takes_its_stores_without_the_metadata_store(
    cluster: ClusterAtHand,
) -> None:
    """Appends stood still for as long as the metadata store was away, where one more node was."""
    async with cluster.client(timeout_s=10) as store:
        await store.append("log", b"1")
        sequencer = cluster.sequencer_of(LOG)
        *_, dead, missed = (n for n in cluster.numbers if n != sequencer)
        others = [f"node-{n}" for n in cluster.numbers if n != missed]
        network = cluster.simulation.network
        network.cut([f"node-{missed}"], others)
        network.cut(others, [f"node-{missed}"])
        await asyncio.sleep(5)
        await store.fence("log", 1)
        await store.append("log", b"2")
        await asyncio.sleep(1)
        cluster.metadata.is_out = True
        network.mend([f"node-{missed}"], others)
        await asyncio.sleep(4)
        cluster.kill(dead)
        await asyncio.sleep(4)
        assert sequencer == cluster.sequencer_of(LOG)
        for number in range(5):
            await store.append("log", b"%d" % number)
        cluster.metadata.is_out = False


@as_scenario(run)
async def test_the_bytes_of_stores_that_wait_are_bounded(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(await Made.new())
    block = packed(at(1, epoch=4))
    swap_value(monkeypatch, lambda: unheard_module.HELD_BYTES_MAX, len(block) * 3 // 2)
    asked.newest = 4
    first, second = Settled(), Settled()
    asked.engine.store(1, payload(block), first)
    asked.engine.store(2, payload(packed(at(2, epoch=4))), second)
    assert [each.reason for each in second[0]] == [Refusal.FULL]
    await turns()
    assert first == [()]
    assert await asked.store(packed(at(1, epoch=4), log=9)) == []
    asked.end()


@as_scenario(simulate, nodes=4, copies=2)
async def test_the_last_number_of_an_epoch_is_never_released(cluster: ClusterAtHand) -> None:
    """It is the bridge's. Where nodes took all of an epoch for settled, each recovery read what
    lies above that, of the next epoch, and waited for an answer: the log was never read again."""
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        last = int(make_lsn(1, ESN_MAX))
        for number in cluster.numbers:
            end = await member(cluster, number)
            end.send(Kind.RELEASE, 0, (pack_pairs([LOG, last]),))
            with pytest.raises(Rejected, match="no sequencer releases e1n4294967295"):
                await end.call(Trim(LOG, 1 << 32, last), timeout_s=5)
            with pytest.raises(Rejected, match="cannot end at e1n4294967295"):
                await end.call(Clean(LOG, 1, 2, last), timeout_s=5)
        await asyncio.sleep(1)
        cluster.kill(cluster.sequencer_of(LOG))
        await asyncio.sleep(3)
        await store.append("log", b"2")
        assert await values(store, "log") == [b"1", b"2"]


@as_scenario(simulate, nodes=3, copies=2)
async def test_a_release_that_a_node_could_not_know_of_is_taken_once_it_was_asked_about(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        cluster.kill(3)
        cluster.kill(cluster.sequencer_of(LOG) or 1)
        await cluster.start(*(n for n in cluster.numbers if n not in cluster.running))
        await store.append("log", b"2")
        await until(
            lambda: all(
                node.engine.cache.log(LOG).readable >> 32 == 2 for node in cluster.running.values()
            )
        )
        assert await values(store, "log") == [b"1", b"2"]


@as_scenario(in_cluster)
async def test_releases_of_logs_that_are_not_there_leave_nothing_behind(
    cluster: ClusterAtHand, store: Store
) -> None:
    node = cluster.running[1]
    end = await member(cluster, 1)
    known = len(node.engine.cache.logs)
    pairs = [each for log in range(100, 40_100) for each in (log, make_lsn(1, 1))]
    end.send(Kind.RELEASE, 0, (pack_pairs(pairs),))
    await asyncio.sleep(0)
    await asyncio.sleep(5)
    assert node._claims.waiting == 0
    assert len(node.engine.cache.logs) == known


def test_releases_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: unheard_module.WAITING_MAX, 3)

    async def scenario() -> int:
        made = await Made.new()

        async def newest(log: int) -> int:
            return 1

        unused: Any = None
        claims = claims_module.Claims(made.engine, newest, unused, unused)
        for log in range(1, 10):
            claims.release(log, make_lsn(1, 1))
        waited = claims.waiting
        work = asyncio.ensure_future(claims.run())
        await turns()
        work.cancel()
        assert claims.waiting == 0
        assert made.engine.cache.log(1).released == make_lsn(1, 1)
        return waited

    assert run(scenario) == 3


async def told(end: Connection, call: Any) -> Reply:
    return await end.call(call, timeout_s=10)


@pytest.mark.parametrize(
    "lsn",
    [make_lsn(1, 2), make_lsn(1, ESN_MAX - 1), make_lsn(1, ESN_MAX), make_lsn(2, 0), LSN_MAX],
)
def test_a_client_trims_nothing_that_no_sequencer_released(lsn: int) -> None:
    """`until` came from the client alone, and records that were appended later were gone."""

    async def scene(cluster: ClusterAtHand, store: Store) -> None:
        for number in cluster.numbers:
            end = await client(cluster, number)
            with pytest.raises((Rejected, Unreachable), match=r"handed out none|no sequencer"):
                await told(end, Trim(LOG, int(lsn), int(lsn)))
            with pytest.raises((Rejected, Unreachable), match=r"handed out none|no sequencer"):
                await told(end, Trim(LOG, 0, int(lsn)))

    in_cluster(scene)
    if lsn >> 32 == 1 and lsn & ESN_MAX < ESN_MAX:  # the last is nobody's to release
        with planted(find_bug("client-says-released")), pytest.raises(pytest.fail.Exception):
            in_cluster(scene)


@as_scenario(simulate, nodes=3)
async def test_a_trim_that_comes_before_the_release_asks_the_sequencer(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        for value in (b"1", b"2"):
            await store.append("log", value)
        tail = await store.tail("log")
        for number in cluster.numbers:
            held = cluster.running[number].engine.cache.log(LOG)
            held.released = make_lsn(1, 0)  # as if it had heard of nothing yet
            await told(await client(cluster, number), Trim(LOG, int(make_lsn(1, 1)), int(tail)))
        assert await values(store, "log") == [b"2"]


@pytest.mark.parametrize(
    "call",
    [
        Clean(LOG, 5, EPOCH_MAX, 5 << 32),
        Clean(LOG, EPOCH_MAX - 1, EPOCH_MAX, 0),
        Clean(LOG, 1, 2, 1 << 32),
        Clean(LOG, 1, 1, 1 << 32),
        Clean(LOG, 1, 2, LSN_MAX),
        TellNodesets(LOG, EPOCH_MAX, []),
        TellNodesets(LOG, 2, []),
        TellProducers(LOG, 5, b"", EPOCH_MAX, 5 << 32),
        TellProducers(LOG, 1, b"", 1, 1 << 32),
        TellProducers(LOG, 2, b""),
        Trim(LOG, LSN_MAX, LSN_MAX),
    ],
    ids=str,
)
@as_scenario(in_cluster)
async def test_what_a_node_says_of_epochs_that_never_were_is_refused(
    cluster: ClusterAtHand, store: Store, *, call: Any
) -> None:
    """A Clean of a far epoch had the node drop all later stores, and say that it kept them."""
    for number in cluster.numbers:
        with pytest.raises(Rejected, match=r"handed out none|cannot end"):
            await told(await member(cluster, number), call)


@as_scenario(run)
async def test_a_block_that_releases_what_is_above_it_is_refused() -> None:
    made = await Made.new()
    found: list[Any] = []
    block = packed(at(1), lng=at(2))
    made.engine.store(1, memoryview(payload(block)), found.extend)
    await turns()
    assert [each.reason for each in found] == [Refusal.CORRUPT]
    assert made.engine.cache.log(MADE).released == 0
