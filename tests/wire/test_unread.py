"""Peers that do not read their answers: a node keeps a bounded number of bytes for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from swaps import swap_value
from wire_ends import CLIENT, NODE_1, Ends, Keeping, Offering, until

from cordwood.host.real_network import RealNetwork
from cordwood.layout.message import Call, DeleteLog, DoneReply, Reply, Seal, SealReply
from cordwood.wire import unread as unread_module
from cordwood.wire.connection import Connection, dial
from cordwood.wire.server import Server
from cordwood.wire.unread import Unread

MIB = 1 << 20


def test_the_peer_with_the_most_goes_by_what_waits_now(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: unread_module.UNREAD_BYTES_MAX, 100)
    now = {"a": 60, "b": 30, "c": 50}
    unread: Unread[str] = Unread(now.__getitem__)
    unread.note("a", 60)
    unread.note("b", 30)
    assert unread.excess() is None
    unread.note("c", 50)
    assert (unread.excess(), unread.bytes) == ("a", 140)
    now["a"] = 0
    assert (unread.excess(), unread.bytes) == (None, 80)
    unread.note("b", 0)
    unread.note("b", 0)
    assert unread.bytes == 50


def test_many_peers_that_do_not_read_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had a bound of its own, of 256 MiB: a crowd of them took all memory of a node."""
    swap_value(monkeypatch, lambda: unread_module.UNREAD_BYTES_MAX, 8 * MIB)

    async def answer(call: Call) -> Reply:
        if call == DeleteLog("small"):
            return DoneReply()
        return SealReply({}, 0, {1: bytes(MIB)})

    async def scenario() -> None:
        def dial_in() -> Awaitable[Connection]:
            return dial(ends.client, server.address, CLIENT, Keeping(), timeout_s=5)

        ends, service = Ends(RealNetwork(), RealNetwork()), Offering()
        service.answer = answer
        async with asyncio.TaskGroup() as tasks:
            server = Server(ends.server, NODE_1, service, tasks)
            await server.listen("127.0.0.1:0")
            reads = await dial_in()
            crowd = [await dial_in() for _ in range(6)]
            asked = []
            for each in crowd:
                each.pause_reading()
                for _ in range(7):
                    call = each.call(Seal(1, 1, 0), timeout_s=20)
                    asked.append(asyncio.create_task(call))
                    await asyncio.sleep(0.01)
            await until(lambda: server.connections < 7)
            assert server.unread_bytes <= 8 * MIB
            assert await reads.call(DeleteLog("small"), timeout_s=5) == DoneReply()
            assert isinstance(await reads.call(Seal(1, 1, 0), timeout_s=5), SealReply)
            for each in crowd:
                each.close()
            await asyncio.gather(*asked, return_exceptions=True)
            await server.close()

    asyncio.run(scenario())
