"""A node that stored a new copy loses it again before the donor names it in an envelope."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import copies, order, put_records
from swaps import swap, swap_value
from test_rebuilding_races import is_called_empty
from test_wal_healing import UNFLUSHED, knows_again, rot_wal

from cordwood.block import Envelope
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import NodeId
from cordwood.sim import damage
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.moves import Moves

SEED = 1
"""Of what rots: with it the record of the new copies is hit, which the scene checks."""


async def named_in_vain(cluster: ClusterAtHand, monkeypatch: pytest.MonkeyPatch) -> int:
    """A node is drained. Another one confirms its new copies, loses them with its WAL, and is
    healed, all before the donor notes the move. How many blocks have an envelope, once the node is
    drained, which names a node that lacks the block; the drained one is left out."""
    right = Moves._send
    confirmed, goes_on = asyncio.Event(), asyncio.Event()
    takers: set[int] = set()

    async def noted_late(
        self: Moves,
        node: NodeId,
        wires: Sequence[tuple[StoredBlock, Envelope]],
        *,
        amends: bool,
    ) -> str:
        if not amends:
            takers.add(node)
        elif node == self._me and not goes_on.is_set():
            confirmed.set()
            await goes_on.wait()
        return await right(self, node, wires, amends=amends)

    swap(monkeypatch, Moves._send, noted_late)
    swap_value(monkeypatch, lambda: damage.RECORDS_MAX, 100)
    await put_records(cluster, logs=1)
    drained = min(next(iter((await copies(cluster)).values())))
    await order(cluster, drained, RebuildOrder.DRAIN)
    await confirmed.wait()
    await put_records(cluster, logs=3)  # records behind the copies show that these were durable
    await asyncio.sleep(1)
    taker = min(takers)
    held = await _left_over(cluster, taker)
    assert held
    await rot_wal(cluster, taker, SEED)
    await knows_again(cluster, taker)
    assert len(await _left_over(cluster, taker)) < len(held), "no envelope names it"
    goes_on.set()
    await until(lambda: is_called_empty(cluster, drained), timeout_s=120)
    found = [{n: c for n, c in each.items() if n != drained} for each in
             (await copies(cluster)).values()]  # fmt: skip
    async with cluster.client() as store:
        assert (await values(store, "log-1"))[:20] == [b"1/%d" % number for number in range(20)]
    return sum(any(set(c) - {drained} - each.keys() for c in each.values()) for each in found)


async def _left_over(cluster: ClusterAtHand, taker: int) -> list[tuple[int, int]]:
    """The blocks that a node has, and no envelope of another node names it."""
    return [
        place
        for place, held in (await copies(cluster)).items()
        if taker in held and not any(taker in c for n, c in held.items() if n != taker)
    ]


def test_a_copy_that_is_lost_before_an_envelope_names_its_node_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: ClusterAtHand) -> int:
        return await named_in_vain(cluster, monkeypatch)

    assert simulate(scenario, nodes=5, storage=UNFLUSHED) == 0


def test_a_donor_that_does_not_ask_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ClusterAtHand) -> int:
        return await named_in_vain(cluster, monkeypatch)

    with planted(find_bug("moves-unconfirmed")):
        assert simulate(scenario, nodes=5, storage=UNFLUSHED)
