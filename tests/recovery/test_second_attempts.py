"""A recovery that is given up half-way, and tried again with other answers under the same seal."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from crc32c import crc32c
from swaps import swap

from cordwood.block import BlockHeader, Envelope, Gap
from cordwood.client.append.producer import Producer
from cordwood.client.store import connected
from cordwood.errors import CordwoodError
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.body import encode_body
from cordwood.layout.message import AskTail
from cordwood.layout.produced import read_produced
from cordwood.layout.waves import store_head
from cordwood.lsn import make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.nodes import NodeId
from cordwood.recovery import mend_tail as mending
from cordwood.recovery import recover_log
from cordwood.sequencer.releases import Releases
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted

LOG = 1


async def store_one_copy(cluster: ClusterAtHand, number: int, first: int) -> None:
    """Producer 7's first block: its wave came no further, and its client has no answer."""
    body = encode_body([b"once"], timestamps_us=0)
    header = BlockHeader(
        LOG, first, 1, 0, producer=7, stored_bytes=len(body), raw_bytes=len(body),
        stored_crc=crc32c(body), raw_crc=crc32c(body),
    )  # fmt: skip
    payload = store_head(1) + pack_header(header) + pack_envelope(Envelope((3, 4, 5))) + body
    settled: list[Any] = []
    cluster.running[number].engine.store(1, memoryview(payload), settled.append)
    await until(lambda: bool(settled))
    assert settled == [()]


async def recovered(cluster: ClusterAtHand, store: Any, number: int) -> EpochRecord:
    """Have `number` sequence the log, and wait until epoch 1 is clean."""
    with pytest.raises(CordwoodError):
        await store._cluster.peers.call(NodeId(number), AskTail(LOG, True), timeout_s=20)
    while True:
        record = await EpochStore(cluster.metadata).read(LOG)
        assert record is not None
        if record.clean_epoch:
            return record
        await asyncio.sleep(0.1)


async def read(cluster: ClusterAtHand, late: Sequence[int] = ()) -> tuple[str, ...]:
    """What a reader gets that hears the nodes `late` two seconds after the others."""
    host, net = cluster.client_host(), cluster.simulation.network
    async with connected(cluster.addresses, host, ClientSettings(timeout_s=5.0)) as store:
        tail = await store.tail("log")
        if late:
            net.partition([host.network.name], [f"node-{number}" for number in late])
            asyncio.get_running_loop().call_later(2, net.mend_all)
        reader = await store.read("log", "oldest", tail)
        return tuple(
            [
                f"{each.kind.value} {each.first}" if isinstance(each, Gap) else f"{each.lsn}"
                async for each in reader
            ]
        )


def outcome_of(mode: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, set[tuple[str, ...]]]:
    """Where the producer's retry was acknowledged, and what ten readers saw.

    Two nodes are away during either attempt: in `keep-last` the one with the copy during the
    first, so that it plugs, and during the second those that stored the plug; in `plug-last` the
    other way round.
    """
    right_mend, right_choose = recover_log.mend_tail, mending._choose
    tries: list[int] = []
    told: list[tuple[str, set[tuple[str, ...]]]] = []

    async def scenario(cluster: ClusterAtHand) -> None:
        net = cluster.simulation.network
        async with cluster.client(timeout_s=20) as store:
            for number in range(3):
                await store.append("log", b"%d" % number)
            await asyncio.sleep(0.2)
            old = cluster.sequencer_of(LOG)
            new, lost, other, holder = [n for n in cluster.numbers if n != old]
            await store_one_copy(cluster, holder, make_lsn(1, 4))
            cluster.kill(old)
            await cluster.start(old)
            gone = (lost, old) if mode == "keep-last" else (holder, lost)
            if mode == "keep-last":
                rest = [f"node-{n}" for n in cluster.numbers if n != holder]
                net.partition([f"node-{holder}"], rest)
            await asyncio.sleep(0.1)

            def choose(job: Any, *rest: Any, **named: Any) -> Any:
                first = tuple(map(NodeId, (*gone, other)))
                return first if len(tries) == 1 else right_choose(job, *rest, **named)

            async def mend(job: Any, *rest: Any) -> None:
                tries.append(job.attempt)
                if len(tries) > 1:
                    return await right_mend(job, *rest)
                cluster.kill(other)
                try:
                    await right_mend(job, *rest)
                finally:
                    await asyncio.sleep(0.05)
                    for each in gone:
                        cluster.kill(each)
                    net.mend_all()
                    await cluster.start(other)

            swap(monkeypatch, recover_log.mend_tail, mend, within=recover_log)
            swap(monkeypatch, mending._choose, choose)
            record = await recovered(cluster, store, new)
            assert (record.clean_seal, record.clean_attempt) == (2, tries[1])
            monkeypatch.undo()
            await cluster.start(*gone)
            await asyncio.sleep(5)
            placed = await store.append("log", b"once", producer=Producer(7))
            await asyncio.sleep(2)
            # A read's first record waits 0.3 s for all nodes, so a reader that hears all of them
            # at once has both outcomes and can choose. These readers hear two nodes first.
            late = itertools.combinations(cluster.numbers, 3)
            told.append((str(placed), {await read(cluster, each) for each in late}))

    # Attempts are counted, and those of the event log's recovery would count too.
    simulate(scenario, nodes=5, replicated_events=False)
    assert tries[0] < tries[1]
    return told[0]


def test_what_the_first_attempt_plugged_and_the_second_kept_every_reader_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The retry was acknowledged where it stood, and half of the readers were told of a bridge."""
    placed, seen = outcome_of("keep-last", monkeypatch)
    records = ("e1n1", "e1n2", "e1n3", "e1n4")
    assert placed == "e1n4"
    assert seen == {(*records, "bridge e1n5", "bridge e2n1")}


def test_what_the_first_attempt_kept_and_the_second_plugged_no_reader_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed, seen = outcome_of("plug-last", monkeypatch)
    assert placed == "e3n1"
    assert seen == {("e1n1", "e1n2", "e1n3", "bridge e1n4", "bridge e2n1", "e3n1")}


@pytest.mark.parametrize("bug", ["attempts-alike", "failed-attempt-counts"])
def test_attempts_that_count_alike_are_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        test_what_the_first_attempt_plugged_and_the_second_kept_every_reader_gets(monkeypatch)


def known_producers(cluster: ClusterAtHand) -> dict[int, list[int]]:
    """By node, the producers that it knows as of the end of epoch 1."""
    ends = {n: node.engine.cache.log(LOG).ends.get(1) for n, node in cluster.running.items()}
    return {n: [p.producer for p in read_produced(e.produced)] for n, e in ends.items() if e}


def test_what_a_second_clean_tells_takes_no_producer_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second attempt stored was noted beside the end that was there already; a restart
    took that for all that the end told, and acknowledged blocks were stored twice."""
    right = recover_log._check_absent
    tries: list[int] = []

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            for producer in range(1, 7):
                await store.append("log", b"%d" % producer, producer=Producer(producer))
            await asyncio.sleep(0.5)
            with monkeypatch.context() as patched:
                patched.setattr(Releases, "send", lambda self: None)
                await store.append("log", b"last", producer=Producer(7))
                cluster.kill(cluster.sequencer_of(LOG))
            await asyncio.sleep(0)
            new = next(iter(cluster.running))

            async def check(unclean: int, job: Any, tools: Any) -> None:
                tries.append(job.attempt)
                if len(tries) == 1:  # between mending and Clean
                    cluster.kill(next(n for n in reversed(job.nodes) if n != new))
                await right(unclean, job, tools)

            with monkeypatch.context() as patched:
                patched.setattr(recover_log, "_check_absent", check)
                await recovered(cluster, store, new)
            assert len(tries) == 2
            await cluster.start(*(n for n in cluster.numbers if n not in cluster.running))
            await asyncio.sleep(2)
            for node in cluster.running.values():
                await node.flush()
            for number in cluster.numbers:
                cluster.kill(number)
            await cluster.start()
            await asyncio.sleep(3)
            known = known_producers(cluster)
            assert len(known) >= 3
            assert all(told == list(range(1, 8)) for told in known.values())
        async with cluster.client(timeout_s=20) as store:
            for producer, place in ((3, make_lsn(1, 3)), (7, make_lsn(1, 7))):
                again = await store.append("log", b"again", producer=Producer(producer))
                assert again == place
            goes_on = Producer(4, sequences={LOG: 1})
            assert await store.append("log", b"more", producer=goes_on) == make_lsn(3, 1)

    simulate(scenario, nodes=5)


def test_producers_that_an_end_replaces_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(find_bug("second-clean-forgets")), pytest.raises(AssertionError):
        test_what_a_second_clean_tells_takes_no_producer_away(monkeypatch)
