"""Bytes that a node may send ahead come back to it, whatever becomes of the block."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from swaps import swap_value

from cordwood.block import Record
from cordwood.protocol import read_window

EPOCHS = 6


@pytest.mark.parametrize("scd_enabled", [True, False])
def test_ends_of_epochs_use_up_no_credit(
    monkeypatch: pytest.MonkeyPatch, scd_enabled: bool
) -> None:
    """Seed 90000019: a reader got a bridge as a gap, and its bytes never came back to the node.

    After some hundred epochs the node could send nothing more, and the reader stood still for
    good. Here a node may send one byte ahead, so the first bridge is enough.
    """
    swap_value(monkeypatch, lambda: read_window.CREDIT_BYTES_MIN, 1)
    swap_value(monkeypatch, lambda: read_window.CREDIT_BYTES_FIRST, 1)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(scd_enabled=scd_enabled) as store:
            for token in range(1, EPOCHS):
                await store.fence("log", token)
                await store.append("log", b"%d" % token)
            async with asyncio.timeout(5):
                items = [item async for item in store.read("log")]
            assert [item.value for item in items if isinstance(item, Record)] == [
                b"%d" % token for token in range(1, EPOCHS)
            ]

    simulate(scenario)
