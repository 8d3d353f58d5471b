"""What nodes said by an order that is not in force any more, or not for long, proves no loss."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.layout.reading import BlocksHead
from cordwood.lsn import make_lsn
from cordwood.quorum.f_majority import QuorumVerdict

LOG = 1

LOST = Gap(make_lsn(1, 2), make_lsn(1, 2), GapKind.DATA_LOSS)


async def told_of_nothing(cluster: ClusterAtHand, store: Store) -> ReadStream:
    """All nodes have lost the second of three records, and have told a reader that took the first
    how far they are."""
    for value in (b"1", b"2", b"3"):
        await store.append("log", value)
    for node in cluster.running.values():
        held = node.engine.cache.log(LOG)
        held._keep([block for block in held.blocks if block.header.first != LOST.first])
    stream = await store.read("log", until=make_lsn(1, 3))
    assert [each.value for each in await stream.next_items() if isinstance(each, Record)] == [b"1"]
    await asyncio.sleep(1)
    sending = stream.senders.sending()
    assert len(sending) == 3
    assert all(stream._buffer.marker(node) > LOST.last for node in sending)
    assert stream._judge(sending) is QuorumVerdict.COMPLETE, "a take would tell a loss"
    return stream


@as_scenario(simulate)
async def test_silence_says_nothing_once_nodes_have_to_be_asked_anew(
    cluster: ClusterAtHand,
) -> None:
    """A node's data lies on others by now, so what these came past before proves nothing; the
    application takes before they were asked again."""
    async with cluster.client(scd_enabled=False) as store:
        stream = await told_of_nothing(cluster, store)
        stream.on_statuses(is_moved=True)
        assert stream.take() is None
        await asyncio.sleep(1)
        assert stream.take() == LOST, "asked again, they have all spoken"


@as_scenario(simulate)
async def test_what_comes_by_an_older_order_does_not_count(cluster: ClusterAtHand) -> None:
    """The nodes were asked anew. What they had sent before arrives, and says that they are past
    the record; it may be on its way from the node that is to send it now."""
    async with cluster.client(scd_enabled=False) as store:
        stream = await told_of_nothing(cluster, store)
        stream.on_statuses(is_moved=True)
        await asyncio.sleep(0)  # they are asked at the end of this tick
        sources = stream.senders.sources
        assert all(each.version != each.asked for each in sources.values())
        head = BlocksHead(0, 0, make_lsn(1, 4), make_lsn(1, 3))
        for node, source in list(sources.items()):
            stream.on_blocks(node, source.connection, head, [])
            assert stream._buffer.marker(node) == 0
        assert stream.take() is None
        async with asyncio.timeout(30):
            assert (await stream.next_items())[0] == LOST
