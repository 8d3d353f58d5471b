"""Reads beside NATS: the raw reader on a made-up server, and a tiny run against a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenarios import as_scenario, awaited_by, run_on_uvloop

from cordwood.bench import read_beside
from cordwood.bench.nats import find_nats
from cordwood.bench.nats_reading import PULL, NatsReader
from cordwood.bench.read_tail import TailProfile
from cordwood.errors import Unreachable


class FakeServer(asyncio.Transport):
    """Makes every consumer, and answers a pull with as many messages, in pieces of any size."""

    def __init__(self, piece: int, body: bytes = b"x" * 100) -> None:
        super().__init__()
        self.piece = piece
        self.body = body
        self.pulls = 0
        self.reader = NatsReader()
        self.reader.connection_made(self)

    def write(self, data: Any) -> None:
        text = bytes(data)
        if b"CONSUMER.CREATE" in text:
            answer = json.dumps({"name": "c1"}).encode()
            self.later(b"MSG _INBOX.x 1 %d\r\n%s\r\n" % (len(answer), answer))
        pulls = text.count(b"CONSUMER.MSG.NEXT")
        self.pulls += pulls
        if pulls:
            message = b"MSG s 2 $JS.ACK.x %d\r\n%s\r\n" % (len(self.body), self.body)
            self.later(b"PING\r\n" + message * (pulls * PULL))

    def later(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.tell, data)

    def tell(self, data: bytes) -> None:
        for at in range(0, len(data), self.piece):
            self.reader.data_received(data[at : at + self.piece])

    def close(self) -> None:
        pass


@pytest.mark.parametrize("piece", [17, 1000, 1 << 20])
@as_scenario(awaited_by(run_on_uvloop))
async def test_messages_are_pulled_until_there_are_enough_however_they_arrive(
    *, piece: int
) -> None:
    server = FakeServer(piece)
    assert await server.reader.catch_up(1, 3 * PULL + 5) > 0
    assert server.pulls == 4


@as_scenario(awaited_by(run_on_uvloop))
async def test_a_body_that_looks_like_the_protocol_is_a_body() -> None:
    server = FakeServer(1000, b"\r\nMSG s 2 9\r\n-ERR\r\n")
    assert await server.reader.catch_up(1, 2 * PULL) > 0


@pytest.mark.parametrize("answer", [b"-ERR 'slow consumer'\r\n", b"HMSG s 2 9 9\r\n"])
@as_scenario(awaited_by(run_on_uvloop))
async def test_what_is_no_message_ends_the_run_with_its_words(*, answer: bytes) -> None:
    server = FakeServer(1000)
    server.later = lambda data: asyncio.get_running_loop().call_soon(  # type: ignore[method-assign]
        server.tell, answer if b"PING" in data else data
    )
    with pytest.raises(Unreachable, match="NATS: "):
        await server.reader.catch_up(1, PULL)


@pytest.mark.slow
@pytest.mark.real
def test_a_tiny_run(tmp_path: Path, require: Callable[[str, str], None]) -> None:
    program = find_nats()
    if program is None:
        require("nats", "nats-server is not installed")
    read, lag = run_on_uvloop(
        read_beside.bench_read_beside_nats(
            program, directory=str(tmp_path), nodes=1, repeats=1, say=print,
            tail=TailProfile(rate=1000, seconds=0.5), records=5000,
        )
    )  # fmt: skip
    assert read.name == "read_256B_records_beside_nats"
    assert min(read.value, read.reference, lag.value, lag.reference) > 0
    assert lag.reference < 1000
    assert lag.p99_ms >= lag.value
    assert list(tmp_path.iterdir()) == []
