"""An epoch that is recovered once more, after its last records were trimmed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from scenarios import as_scenario
from swaps import swap

from cordwood.errors import CordwoodError, Fenced, NoSequencer
from cordwood.layout.log_questions import Trim, TrimReply
from cordwood.lsn import ESN_MAX, LogId, make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.recovery import recover_log
from cordwood.recovery.recover_log import Begins, LowerEpochs, Recovered
from cordwood.sequencer.activation import Activation

NOTHING = Begins(0, is_latest=True)


async def record_of(cluster: ClusterAtHand) -> EpochRecord:
    record = await EpochStore(cluster.metadata).read(1)
    assert record is not None
    return record


def test_the_tail_that_was_recorded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 14000029. The end of epoch 1 was recorded, epoch 2 could not be mended, and when both
    were recovered anew the records above epoch 1's LNG were trimmed: its tail seemed to be lower,
    epoch 2 was refused for that, again and again, and nobody could read on."""
    held = {1, 2}
    check_absent = recover_log._check_absent

    async def check(unclean: int, job: Any, tools: Any) -> None:
        if unclean in held:
            raise NoSequencer("held up")
        await check_absent(unclean, job, tools)

    swap(monkeypatch, recover_log._check_absent, check)

    async def restart_all(cluster: ClusterAtHand) -> None:
        for number in cluster.numbers:
            cluster.kill(number)
        await cluster.start(*cluster.numbers)

    async def main(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=2.0) as store:
            for number in range(3):
                last = await store.append("log", b"%d" % number)
            # Before its nodes hear that the last record is released: it is above their LNG.
            await restart_all(cluster)
        for epochs in (2, 3):
            async with cluster.client(timeout_s=2.0) as store:
                with pytest.raises(CordwoodError):
                    await store.tail("log")
            await until(lambda n=epochs: cluster.sequencer_of(1) != 0)
            if epochs == 2:
                await restart_all(cluster)
        held.remove(1)
        async with cluster.client(timeout_s=20.0) as store:
            while (await record_of(cluster)).clean_epoch < 1:  # noqa: ASYNC110 - another's doing
                await asyncio.sleep(0.1)
            found = await record_of(cluster)
            assert (found.next_epoch, found.clean_epoch, found.clean_tail) == (4, 1, last)
            # As retention does it on each node, whatever readers may see: with the bridge.
            end = make_lsn(1, ESN_MAX - 1)
            trim = Trim(1, int(end), int(end))
            await store._positions._ask_nodes(await store.log("log"), trim, TrimReply)
            held.clear()
            await asyncio.sleep(5)
            found = await record_of(cluster)
            assert (found.next_epoch, found.clean_epoch, found.clean_tail) == (4, 2, last)
            assert (await store.append("log", b"after")).epoch == 3
            assert await values(store, "log", start=make_lsn(3, 1)) == [b"after"]

    simulate(main)


@as_scenario(simulate, nodes=4)
async def test_an_epoch_that_is_over_recovers_nothing(cluster: ClusterAtHand) -> None:
    """Its log may be gone too; whoever sequences it steps down either way."""
    async with cluster.client(timeout_s=20.0) as store:
        await store.append("log", b"1")
        cluster.kill(cluster.sequencer_of(1))
        await asyncio.sleep(5)
        await store.append("log", b"2")
        await until(lambda: cluster.sequencer_of(1) != 0)
        activation = cluster.running[cluster.sequencer_of(1)]._sequencer._activation
        while (await record_of(cluster)).clean_epoch < 1:  # noqa: ASYNC110 - another's doing
            await asyncio.sleep(0.1)
        with pytest.raises(Fenced, match="epoch 1 is over") as over:
            await activation.recover(LowerEpochs(LogId(1), 1, NOTHING))
        assert over.value.epoch == 2
        with pytest.raises(Fenced, match="the log is gone"):
            await activation.recover(LowerEpochs(LogId(99), 1, NOTHING))


def test_who_learns_at_the_end_that_its_own_epoch_is_recovered_steps_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A higher epoch recovered all of it meanwhile: nothing is released by the one that is late."""
    recovered: list[tuple[int, Fenced | None]] = []
    right, set_clean = Activation.recover, EpochStore.set_clean

    async def recover(self: Activation, lower: LowerEpochs) -> Recovered:
        try:
            done = await right(self, lower)
        except Fenced as error:
            recovered.append((lower.epoch, error))
            raise
        recovered.append((lower.epoch, None))
        return done

    async def late(self: EpochStore, log: int, epoch: int, *how: int) -> EpochRecord:
        found = await set_clean(self, log, epoch, *how)
        return found if recovered else msgspec.structs.replace(found, clean_epoch=epoch + 1)

    swap(monkeypatch, Activation.recover, recover)
    swap(monkeypatch, EpochStore.set_clean, late)

    async def main(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20.0) as store:
            await store.append("log", b"1")
            cluster.kill(cluster.sequencer_of(1))
            await asyncio.sleep(5)
            await store.append("log", b"2")
            await until(lambda: bool(recovered))
            assert await values(store, "log") == [b"1", b"2"]
            (epoch, error), (later, nothing) = recovered[:2]
            assert (epoch, later, nothing) == (2, 3, None)
            assert error is not None
            assert "epoch 2 is recovered" in str(error)

    simulate(main, nodes=4)
