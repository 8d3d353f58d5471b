"""An epoch that is recovered once more, after its last records were trimmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values

from cordwood.errors import CordwoodError, NoSequencer
from cordwood.layout.log_questions import Trim, TrimReply
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.recovery import recover_log


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

    monkeypatch.setattr(recover_log, "_check_absent", check)

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
            end = make_lsn(1, ESN_MAX)
            trim = Trim(1, int(end), int(end))
            await store._positions._ask_nodes(await store.log("log"), trim, TrimReply)
            held.clear()
            await asyncio.sleep(5)
            found = await record_of(cluster)
            assert (found.next_epoch, found.clean_epoch, found.clean_tail) == (4, 2, last)
            assert (await store.append("log", b"after")).epoch == 3
            assert await values(store, "log", start=make_lsn(3, 1)) == [b"after"]

    simulate(main)
