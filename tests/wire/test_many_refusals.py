"""Refusals of many blocks in one turn reach their client, whatever their texts are."""

from __future__ import annotations

import asyncio

from wire_ends import ADDRESS, CLIENT, NODE_1, Keeping, Offering, memory_ends, run

from cordwood.errors import CordwoodError, TooFewNodes
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.message import read_append_faults
from cordwood.sequencer.answers import Answers
from cordwood.wire.connection import Connection, dial
from cordwood.wire.server import Server

BLOCKS = 20_000


class Refused(Keeping):
    """A client that keeps the tokens of blocks that were refused."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        assert frame.kind == Kind.APPEND_FAULTS
        self.tokens += [each.token for each in read_append_faults(frame.payload)]


def test_each_of_many_refusals_reaches_the_client() -> None:
    """They were one frame, longer than any client takes: it closed the connection, and blocks that
    nobody had stored ended as unknown."""

    async def scenario() -> None:
        ends, service, refused = memory_ends(), Offering(), Refused()
        async with asyncio.TaskGroup() as tasks:
            server = Server(ends.server, NODE_1, service, tasks)
            await server.listen(ADDRESS)
            client = await dial(ends.client, ADDRESS, CLIENT, refused, timeout_s=1)
            (connection,) = server._connections
            answers = Answers()
            why: CordwoodError = TooFewNodes("log 1 has too few nodes " + "now " * 50)
            for token in range(BLOCKS):
                answers.fault(connection, token, why)
            await asyncio.sleep(0.1)
            assert refused.tokens == [*range(BLOCKS)]
            assert client.is_open
            await server.close()

    run(scenario)
