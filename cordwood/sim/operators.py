"""Simulated operators: the first makes nodes read-only now and then, and lets them store again; the
second gives up nodes that are down; the third has nodes give old data to other nodes; the fourth
switches repairs of ledgers off and on.

The operators name only nodes that the other nodes can do without, sometimes all of these at once.
So all promises to clients hold beside read-only nodes too, before and after the healing.

Source: docs/sources/logdevice.md 2.9 (storage states); `cordwood nodes storage`.
"""

from __future__ import annotations

import asyncio

from cordwood.errors import CordwoodError, Rejected
from cordwood.host.seams import Host
from cordwood.nodes import Authority
from cordwood.rebuilding import PARTS, Transfer
from cordwood.sim.operator_events import (
    OrderAsked,
    OrderSeen,
    OrderTold,
    StorageAsked,
    StorageTold,
)
from cordwood.sim.workload import RECONNECT_S, Clients

STORAGE_S = 3.0
"""Mean time between two reports: long enough that nodes hear of most of them, and epochs change in
between. A run sees about ten reports."""

GIVE_UP_S = 1.5
"""Mean time between two tries: a node that crashed is down for some seconds."""

REBALANCE_S = 2.0
"""Mean time between two tries: most find the last rebalance under way, and a run sees a few
begin."""

STOP_SHARE = 0.2
"""Share of the tries that end the rebalance under way instead."""


AUTORECOVERY = "autorecovery"
"""The matter of the orders of `switch_repairs`."""

SWITCH_S = 0.3
"""Mean time between an order and the question what holds. A stopped node carries out its orders
some seconds late, so an order and a question often lie around that."""


async def keep_storage(name: str, clients: Clients, host: Host) -> None:
    """Make one node after another read-only or writable, until told to stop."""
    _, chance = clients.next_life(name)
    recorder, nodes = clients.recorder, clients.options.read_only
    said: dict[int, bool] = {}
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    node = chance.choice(nodes)
                    read_only = not said.get(node, False)
                    recorder.add(StorageAsked(recorder.now_us, name, node, read_only))
                    await store.set_storage(node, read_only=read_only)
                    recorder.add(StorageTold(recorder.now_us, name, node, read_only))
                    said[node] = read_only
                    await asyncio.sleep(chance.expovariate(1 / STORAGE_S))
        except CordwoodError as error:
            clients.told(name, "set_storage", error)
            await asyncio.sleep(RECONNECT_S)


async def give_up(name: str, clients: Clients, host: Host) -> None:
    """Report the data of nodes that are down as gone, until told to stop.

    The operator names only nodes that the other nodes can do without: other nodes hold the same
    records, so no loss may be reported. The report is refused for a node that is up, and a node
    that starts takes it back. Now and then the operator reports that the data is there after all,
    and only for a node that is down: for a node that is up, other nodes would take its logs and
    fail its appends in flight (seed 6001205). The operator never reports that data was rebuilt
    elsewhere, as that would be false.
    """
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await asyncio.sleep(chance.expovariate(1 / GIVE_UP_S))
                    node = chance.choice(clients.options.given_up)
                    is_found = chance.random() < 0.5
                    try:
                        await store.set_authority(node, Authority.UNDER_REPLICATED)
                        if is_found:
                            await store.set_authority(node, Authority.UNAVAILABLE)
                    except Rejected as error:  # it is up
                        clients.told(name, "set_authority", error)
        except CordwoodError as error:
            clients.told(name, "set_authority", error)
            await asyncio.sleep(RECONNECT_S)


async def rebalance(name: str, clients: Clients, host: Host) -> None:
    """Have some nodes give copies to other nodes, planned or by chance, until told to stop."""
    _, chance = clients.next_life(name)
    nodes = clients.options.rebalanced
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await asyncio.sleep(chance.expovariate(1 / REBALANCE_S))
                    shares: tuple[Transfer, ...] = ()
                    if chance.random() >= STOP_SHARE:
                        plan = await store.rebalance_plan()
                        source, *targets = chance.sample(nodes, 3)
                        drawn = (
                            Transfer(source, to, chance.randint(1, PARTS // 2)) for to in targets
                        )
                        # Disks are emptied and filled all the time, and some runs lose none.
                        shares = plan.shares if chance.random() < 0.5 else tuple(drawn)
                    try:
                        await store.rebalance(shares)
                    except Rejected as error:  # another is under way, or a node is being rebuilt
                        clients.told(name, "rebalance", error)
        except CordwoodError as error:
            clients.told(name, "rebalance", error)
            await asyncio.sleep(RECONNECT_S)


async def switch_repairs(name: str, clients: Clients, host: Host) -> None:
    """Switch repairs of ledgers off and on, and ask what holds, until told to stop. Then repairs
    are on."""
    _, chance = clients.next_life(name)
    recorder = clients.recorder
    is_on: bool | None = None
    while not (clients.stopping and is_on):
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not (clients.stopping and is_on):
                    wanted = clients.stopping or not is_on
                    value, is_on = _switched(wanted), None
                    recorder.add(OrderAsked(recorder.now_us, name, AUTORECOVERY, value))
                    await store.ledgers.switch_autorecovery(on=wanted)
                    recorder.add(OrderTold(recorder.now_us, name, AUTORECOVERY, value))
                    is_on = wanted
                    await clients.pause(chance.expovariate(1 / SWITCH_S))
                    seen = _switched((await store.ledgers.autorecovery()).on)
                    recorder.add(OrderSeen(recorder.now_us, name, AUTORECOVERY, seen))
        except CordwoodError as error:
            clients.told(name, "switch_autorecovery", error)
            await asyncio.sleep(RECONNECT_S)


def _switched(is_on: bool) -> str:
    return "on" if is_on else "off"
