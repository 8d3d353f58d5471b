"""A recovery beside a node that answers pings and no question about ledgers, as with a disk that
hangs: it waits for the node once, however many entries it has to add again."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap

from cordwood.client.ledgers.ledger_recovering import ASK_S
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_ledgers import AddEntries, AskLac, ReadEntries
from cordwood.node import Node
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.wire.connection import Connection

COUNT = 400


@pytest.mark.parametrize(
    ("shape", "waits_s"),
    [
        ({"ensemble": 3, "write": 3, "ack": 3}, ASK_S),
        ({"ensemble": 3, "write": 2, "ack": 2}, ASK_S),
        ({"ensemble": 3, "write": 3, "ack": 2}, 0.0),
    ],
    ids=str,
)
@as_scenario(simulate, nodes=5)
async def test_a_recovery_waits_once_for_a_node_that_hangs(
    cluster: ClusterAtHand, *, shape: dict[str, int], waits_s: float
) -> None:
    """Deferred sync leaves all entries above the LAC: each is read and added again."""
    async with cluster.client() as writer, cluster.client(timeout_s=60) as store:
        limits = WriterLimits(defers_sync=True)
        made = await writer.ledgers.create(**shape, limits=limits)
        await made.append_many([b"%d" % number for number in range(COUNT)])
        made.abandon()
        hung = cluster.running[NodeId(made.metadata.newest.nodes[0])]
        right = Node.on_call

        async def on_call(self: Node, connection: Connection, call: Call) -> Reply:
            if self is hung and isinstance(call, AskLac | ReadEntries | AddEntries):
                await asyncio.Event().wait()
            return await right(self, connection, call)

        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.MonkeyPatch.context() as patched:
            swap(patched, Node.on_call, on_call)
            ended = await store.ledgers.recover(made.ledger_id)
        assert ended.last == COUNT - 1
        assert waits_s <= loop.time() - began_s < waits_s + 2
