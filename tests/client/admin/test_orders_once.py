"""An order about the cluster is not carried out again after the contrary was acknowledged, although
its client did not hear that it was carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.store import Store
from cordwood.errors import Fenced
from cordwood.sim.planted import find_bug, planted

Give = Callable[[Store, bool], Awaitable[None]]
Look = Callable[[bytes], bool]


async def switch(store: Store, is_on: bool) -> None:
    await store.ledgers.switch_autorecovery(on=is_on)


def is_switched(value: bytes) -> bool:
    return value == b"on"


async def drain(store: Store, is_on: bool) -> None:
    await store.say_rebuild(3, "drain" if is_on else "undrain")


def is_drained(value: bytes) -> bool:
    return b"drain" in value


async def make_read_only(store: Store, is_on: bool) -> None:
    await store.set_storage(3, read_only=is_on)


def is_read_only(value: bytes) -> bool:
    return b'"read_only":true' in value


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize(
    ("give", "is_given", "entry"),
    [
        (switch, is_switched, "ledger-autorecovery"),
        (drain, is_drained, "rebuilding/set"),
        (make_read_only, is_read_only, "nodes/0000000003"),
    ],
)
def test_an_order_undoes_no_contrary_one_that_was_acknowledged(
    give: Give, is_given: Look, entry: str, *, is_planted: bool
) -> None:
    """The node that had carried it out died before it answered. Another node refused it within
    milliseconds, and the client gave it anew."""

    async def scenario(cluster: ClusterAtHand) -> None:
        network, first = cluster.simulation.network, cluster.machine(1)
        async with cluster.client(timeout_s=20) as store, cluster.client(timeout_s=20) as other:
            if give is switch:
                await other.ledgers.switch_autorecovery(on=False)
            # The other client asks other nodes.
            network.partition(["client-2"], [first.name])
            network.reset(["client-2"], [first.name])
            await asyncio.sleep(3)
            values = cluster.metadata.data.values

            def is_in_effect() -> bool:
                return entry in values and is_given(values[entry].value)

            assert not is_in_effect()
            order = asyncio.ensure_future(give(store, True))
            while not is_in_effect():  # noqa: ASYNC110 - an entry has no event
                await asyncio.sleep(0.0001)
            first.pause()
            await give(other, False)
            assert not is_in_effect()
            first.kill()
            cluster.running.pop(1, None)
            if is_planted:
                await order
            else:
                with pytest.raises(Fenced, match="may have carried this order out"):
                    await order
            assert is_in_effect() is is_planted

    with planted(find_bug("order-given-twice")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, create_logs=False)
