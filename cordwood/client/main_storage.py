"""The nodes' main storage, as uploads and commands of operators ask about it; programs do not."""

from __future__ import annotations

from cordwood.client.store import Store
from cordwood.lsn import Lsn


def nodes_address(store: Store) -> str:
    """The address of main storage, as nodes report it; "" for none."""
    return store._cluster.tier_store


async def open_at_nodes(store: Store) -> None:
    """Let a node open main storage; see `LedgerMetadataCalls.open_main_storage`."""
    await store.ledgers._calls.open_main_storage()


async def let_go(store: Store, log: int) -> tuple[Lsn, Lsn]:
    """A log's trim point and its tier point; see `Positions.let_go`."""
    return await store._positions.let_go(log)
