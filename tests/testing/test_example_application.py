"""An example for users: an application tested on a simulated cluster (docs/simulator.md).

The application bills orders: it reads one log, and writes one bill for each order to
another, together with the order's position. When it is started (again), it reads its
own output first, and goes on after the last position there. A bill whose fate nobody
knows is looked up in the same way. Two lives may still overlap, since a bill of the one
that was killed can arrive late; so whoever reads the bills drops those whose position
is not above the last one. Together that is each order billed once.

Everything above the line is what an application would have in its own package; it
knows nothing of the simulator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.errors import OutcomeUnknown, Retryable
from cordwood.testing import FaultOptions

ORDERS, BILLS = "shop/orders", "shop/bills"


@dataclass(frozen=True)
class Bill:
    """What an order costs, and where the order is."""

    order: str
    total: int
    position: int

    def to_bytes(self) -> bytes:
        return json.dumps([self.order, self.total, self.position]).encode()


async def bills(store: Store) -> AsyncIterator[Bill]:
    """The bills that count, to the end of the log."""
    last = 0
    async for item in await store.read(BILLS):
        if isinstance(item, Record):
            bill = Bill(*json.loads(item.value))
            if bill.position > last:
                last = bill.position
                yield bill


async def last_position(store: Store) -> int:
    """Of the last order that was billed; 0 before the first."""
    last = 0
    async for bill in bills(store):
        last = bill.position
    return last


async def bill_orders(store: Store) -> None:
    """Bill every order, for ever. Raises what the store raises; start it again then."""
    done = await last_position(store)
    async for item in await store.read(ORDERS, done + 1 if done else "oldest", None):
        if isinstance(item, Record):
            name, count, price = json.loads(item.value)
            await store.append(BILLS, Bill(name, count * price, int(item.lsn)).to_bytes())


# ---------------------------------------------------------------------------------------


async def biller(application):
    """The application as a process: what it cannot handle, it starts over."""
    while True:
        try:
            async with await application.connect() as store:
                await bill_orders(store)
        except (OutcomeUnknown, Retryable):
            await asyncio.sleep(0.1)


async def place_orders(store: Store, count: int) -> None:
    """Orders 0, 1, …, each placed until it is acknowledged."""
    for number in range(count):
        while True:
            try:
                await store.append(ORDERS, json.dumps([f"order-{number}", number, 3]).encode())
                break
            except (OutcomeUnknown, Retryable):
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)


async def read_orders(store: Store) -> list[tuple[str, int]]:
    """Every order in the log: its name (one of unknown outcome may be there twice), its cost."""
    orders = [json.loads(i.value) async for i in await store.read(ORDERS) if isinstance(i, Record)]
    return [(name, count * price) for name, count, price in orders]


async def wait_for_bills(store: Store, count: int) -> list[tuple[str, int]]:
    """Wait until `count` orders are billed, a minute at most; their names and costs."""
    async with asyncio.timeout(60):
        while True:
            found = [(bill.order, bill.total) async for bill in bills(store)]
            if len(found) >= count:
                return found
            await asyncio.sleep(1)


@pytest.mark.slow
@pytest.mark.cordwood(seeds=3)
def test_every_order_is_billed_once_whatever_dies(cordwood_sim):
    """Nodes and the application are killed, stopped and lose their power, now and then."""

    async def scenario(cluster):
        store = await cluster.connect()
        cluster.start("biller", biller)
        await place_orders(store, 60)
        await cluster.calm()
        orders = await read_orders(store)
        assert len({name for name, _ in orders}) == 60
        assert await wait_for_bills(store, len(orders)) == orders

    faults = FaultOptions(kinds=("crash", "power_cut", "pause", "client_crash"), pause_s=2.0)
    cordwood_sim.run(scenario, faults=faults, faults_s=15.0)


def test_a_biller_that_forgets_where_it_was_is_caught(cordwood_sim):
    """What the test above is worth: this is the mistake that it is there for."""

    async def forgetful(application):
        store = await application.connect()
        async for item in await store.read(ORDERS, "tail", None):
            if isinstance(item, Record):
                name, count, price = json.loads(item.value)
                bill = Bill(name, count * price, int(item.lsn))
                await store.append(BILLS, bill.to_bytes())

    async def scenario(cluster):
        store = await cluster.connect()
        cluster.start("biller", forgetful)
        await place_orders(store, 5)
        cluster.crash("biller")
        await place_orders(store, 5)
        cluster.restart("biller")
        await wait_for_bills(store, 10)

    with pytest.raises(TimeoutError):
        cordwood_sim.run(scenario)
