"""What a node keeps of logs that it could not sequence, or that it sequences no more."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from swaps import swap_value

from cordwood.errors import CordwoodError
from cordwood.layout.message import AskTail
from cordwood.sequencer import sequencer_table


def test_the_reasons_of_failed_activations_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node kept one for each log that it was ever asked for while the metadata store was away."""
    swap_value(monkeypatch, lambda: sequencer_table.FAILURES_MIN, 8)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"1")
            role = cluster.running[cluster.sequencer_of(1)]._sequencer
            cluster.metadata.is_out = True
            for log in range(100, 200):
                with pytest.raises(CordwoodError):
                    await role.tail(AskTail(log, activate_here=True))
                assert log in role._table.failures, "the newest is kept: clients are told of it"
                await asyncio.sleep(0.1)
            assert len(role._table.failures) <= 16
            cluster.metadata.is_out = False
            assert (await store.append("log", b"2")).epoch == 1

    simulate(scenario)


def test_the_release_of_an_epoch_without_a_next_one_is_forgotten() -> None:
    """The node sent it to each node that connected, for as long as it ran."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"1")
            role = cluster.running[cluster.sequencer_of(1)]._sequencer
            assert [*role._releases._logs] == [1]
            cluster.metadata.is_out = True
            role.sequencing()[1].drain()
            await until(lambda: not role._rows)
            assert not role._releases._logs
            cluster.metadata.is_out = False
            assert (await store.append("log", b"2")).epoch == 2

    simulate(scenario)


def test_a_recovery_leaves_nothing_behind() -> None:
    """A node kept the append times and the attempts of each log that it had ever sequenced."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"1")
            cluster.kill(cluster.sequencer_of(1))
            await asyncio.sleep(5)
            await store.append("log", b"2")
            await until(lambda: cluster.sequencer_of(1) != 0)
            [appender] = [
                each
                for node in cluster.running.values()
                for each in node._sequencer.sequencing().values()
            ]
            assert appender.epoch == 2
            await until(lambda: appender.is_recovered)
            assert appender.lower is None

    simulate(scenario, nodes=4)
