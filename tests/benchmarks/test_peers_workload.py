"""The closed loop and the raw clients, on made-up servers: every answer counts once."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from scenarios import as_scenario, awaited_by

from benchmarks.peers import light_client
from benchmarks.peers.amqp import AmqpConnection
from benchmarks.peers.light_client import LightClient
from benchmarks.peers.nats_peer import NatsConnection
from benchmarks.peers.rabbit_stream import StreamConnection
from benchmarks.peers.redis_peer import RedisConnection, RedisReader
from benchmarks.peers.workload import AppendLoad, TailLoad, Window, lag_of, percentile
from cordwood.errors import Unreachable

PIECES = [1, 7, 1 << 20]


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class Pipe(asyncio.Transport):
    """What a client writes, and a way to answer it in pieces of any size."""

    def __init__(self, client: LightClient, piece: int = 1 << 20) -> None:
        super().__init__()
        self.client = client
        self.piece = piece
        self.written = bytearray()
        client.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def tell(self, data: bytes) -> None:
        for at in range(0, len(data), self.piece):
            self.client.data_received(data[at : at + self.piece])

    def close(self) -> None:
        pass


def load(size: int = 10, in_flight: int = 5, records: int = 20) -> AppendLoad:
    return AppendLoad(size, in_flight, seconds=60, bytes_max=size * records)


class TestWindow:
    def test_it_keeps_so_many_in_flight_until_its_bytes_are_used_up(self) -> None:
        window = Window(load(in_flight=5, records=22))
        assert window.begin(0.0) == 5
        sent, now = 5, 0.0
        while not window.is_done:
            now += 1.0
            sent += window.on_answered(min(3, window.unanswered), now)
            assert window.unanswered <= 5
        assert sent == window.answered == 22
        assert window.run(now).records == 22

    def test_after_its_seconds_it_only_waits_for_what_is_in_flight(self) -> None:
        window = Window(AppendLoad(10, 4, seconds=1.0, bytes_max=1 << 20))
        window.begin(0.0)
        assert window.on_answered(4, 0.5) == 4
        assert window.on_answered(1, 1.0) == 0
        assert not window.is_done
        assert window.on_answered(3, 3.0) == 0
        assert window.run(3.0) == window.run(3.0)
        assert (window.run(3.0).records, window.run(3.0).seconds) == (8, 3.0)

    def test_latencies_are_those_of_the_oldest_first(self) -> None:
        window = Window(AppendLoad(10, 2, seconds=1.5, bytes_max=1 << 20))
        window.begin(0.0)
        window.on_answered(1, 1.0)  # sent at 0; another is sent at 1
        window.on_answered(1, 2.0)  # sent at 0
        window.on_answered(1, 4.0)  # sent at 1
        assert window.run(4.0).p50_ms == 2000
        assert window.run(4.0).p99_ms == 3000

    def test_a_percentile_counts_each_value_by_its_weight(self) -> None:
        assert percentile([(3.0, 1), (1.0, 98), (2.0, 1)], 0.98) == 1.0
        assert percentile([(3.0, 1), (1.0, 98), (2.0, 1)], 0.99) == 2.0
        assert percentile([(3.0, 1)], 0.5) == 3.0
        assert lag_of([0.001, 0.003, 0.002]).p50_ms == 2.0

    def test_the_warm_up_of_a_tail_leaves_something_to_count(self) -> None:
        usual = TailLoad(100, 2000, seconds=2.0, warm_up_s=0.5)
        assert (usual.batch, usual.ticks, usual.ticks_not_counted) == (10, 400, 100)
        assert TailLoad(100, 1, 0.001, 5.0).ticks_not_counted == 0


def nats_acks(client: NatsConnection, count: int) -> bytes:
    body = b'{"stream":"s","seq":7}'
    return b"PING\r\nMSG _INBOX.x 1 %d\r\n%s\r\n" % (len(body), body) * count


def amqp_confirm(tag: int, multiple: bool) -> bytes:
    payload = struct.pack(">HHQB", 60, 80, tag, multiple)
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def stream_confirm(count: int) -> bytes:
    body = struct.pack(">BI", 1, count) + bytes(8 * count)
    return struct.pack(">IHH", 4 + len(body), 3, 1) + body


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("kind", ["nats", "redis", "amqp", "stream"])
@as_scenario(awaited_by(run))
async def test_every_answer_counts_once_however_it_arrives(
    *, kind: str, size: int, piece: int
) -> None:
    client: LightClient
    if kind == "nats":
        client, made = (nats := NatsConnection()), lambda count, _: nats_acks(nats, count)
    elif kind == "redis":
        client, made = RedisConnection(), lambda count, _: b"$3\r\n1-0\r\n" * count
    elif kind == "amqp":
        client, made = AmqpConnection(), lambda _, total: amqp_confirm(total, True)
    else:
        client, made = StreamConnection(), lambda count, _: stream_confirm(count)
    pipe = Pipe(client, piece)
    asked = load(size=size, in_flight=5, records=20)
    appending = asyncio.ensure_future(client.append(asked))
    answered = 0
    while not appending.done():
        await asyncio.sleep(0)
        count = min(3, asked.records_max - answered)
        if count:
            answered += count
            pipe.tell(made(count, answered))
    assert (await appending).records == asked.records_max == 20
    assert pipe.written.count(client._value) == 20


class TestAmqp:
    @as_scenario(awaited_by(run))
    async def test_confirms_out_of_order_and_of_many_count_once_each(self) -> None:
        client = AmqpConnection()
        confirm = client._on_confirm
        assert [confirm(3, 0), confirm(1, 0), confirm(4, 1), confirm(6, 0)] == [1, 1, 2, 1]
        assert [confirm(5, 0), confirm(9, 1)] == [1, 3]

    @pytest.mark.parametrize("piece", PIECES)
    @as_scenario(awaited_by(run))
    async def test_a_body_in_two_frames_is_one_record(self, *, piece: int) -> None:
        client, taken = AmqpConnection(), []
        pipe = Pipe(client, piece)
        header = struct.pack(">HHQH", 60, 0, 8, 0)
        parts = [struct.pack(">HH", 60, 60) + b"x", header, b"abcd", b"efgh"]
        frames = b"".join(
            struct.pack(">BHI", kind, 1, len(part)) + part + b"\xce"
            for kind, part in zip((1, 2, 3, 3), parts, strict=True)
        )
        await client.take(taken.append, 2, lambda: pipe.tell(frames * 2), 5)
        assert taken == [b"abcdefgh"] * 2


@pytest.mark.parametrize("piece", PIECES)
@as_scenario(awaited_by(run))
async def test_a_chunk_of_a_stream_is_its_records_and_gives_its_credit_back(*, piece: int) -> None:
    client, taken = StreamConnection(), []
    pipe = Pipe(client, piece)
    values = [b"a" * 5, b"", b"c" * 300]
    entries = b"".join(struct.pack(">I", len(value)) + value for value in values)
    chunk = b"\x50\x00" + struct.pack(">H", len(values)) + bytes(44) + entries
    frame = struct.pack(">IHHB", 5 + len(chunk), 8, 1, 1) + chunk
    await client.take(taken.append, 6, lambda: pipe.tell(frame * 2), 5)
    assert taken == values * 2
    assert pipe.written.count(struct.pack(">HHBH", 9, 1, 1, 1)) == 2


@pytest.mark.parametrize("piece", PIECES)
@as_scenario(awaited_by(run))
async def test_redis_entries_are_read_on_from_the_last(*, piece: int) -> None:
    client, taken = RedisReader(), []
    pipe = Pipe(client, piece)
    client.key = b"s"
    body = b"$1\r\nx\r\n"

    def answer(*ids: bytes) -> bytes:
        entries = b"".join(
            b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nv\r\n%s" % (len(i), i, body) for i in ids
        )
        return b"*1\r\n*2\r\n$1\r\ns\r\n*%d\r\n" % len(ids) + entries

    def begin() -> None:
        client.begin(b"0-0", 2, 3, block=False)
        pipe.tell(answer(b"1-1", b"1-2"))
        assert pipe.written.endswith(b"$3\r\n1-2\r\n")
        pipe.tell(answer(b"1-3"))

    await client.take(taken.append, 3, begin, 5)
    assert taken == [b"x"] * 3
    assert pipe.written.count(b"XREAD") == 2


@pytest.mark.parametrize("piece", PIECES)
@as_scenario(awaited_by(run))
async def test_nats_is_pulled_from_until_enough_was_asked_for(*, piece: int) -> None:
    client, taken = NatsConnection(), []
    pipe = Pipe(client, piece)
    client.pull_from("next", 2, 5)
    message = b"MSG s 3 $JS.ACK.x 4\r\n\r\nM \r\n"
    await client.take(taken.append, 5, lambda: (client.pull(), pipe.tell(message * 5)), 5)
    assert taken == [b"\r\nM "] * 5
    request = json.dumps({"batch": 2}).encode()
    assert pipe.written.count(request) == 3, "two at first, and one more for the fifth"


def test_a_record_that_is_delivered_at_once_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on the same machine answers within the tick that offered it."""
    monkeypatch.setattr(light_client, "TAIL_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        client = NatsConnection()
        pipe, offered = Pipe(client), 0

        def offer(values: list[bytes]) -> None:
            nonlocal offered
            offered += len(values)
            pipe.tell(b"".join(b"MSG d 3 %d\r\n%s\r\n" % (len(v), v) for v in values))

        tail = TailLoad(20, rate=2000, seconds=0.05, warm_up_s=0.01)
        lag = await light_client.follow(client, offer, tail)
        assert offered == tail.ticks * tail.batch
        assert 0 <= lag.p50_ms <= lag.p99_ms

    run(scenario())


@pytest.mark.parametrize(
    ("client", "answer"),
    [
        (NatsConnection, b"MSG x 1 12\r\n{\"error\":{}} \r\n"),
        (NatsConnection, b"-ERR 'Maximum Payload Violation'\r\n"),
        (RedisConnection, b"-OOM command not allowed\r\n"),
        (AmqpConnection, struct.pack(">BHI", 1, 1, 4) + struct.pack(">HH", 20, 40) + b"\xce"),
        (StreamConnection, struct.pack(">IHH", 4, 4, 1)),
    ],
)  # fmt: skip
@as_scenario(awaited_by(run))
async def test_a_refusal_ends_a_run(*, client: type[LightClient], answer: bytes) -> None:
    made = client()
    pipe = Pipe(made)
    appending = asyncio.ensure_future(made.append(load()))
    await asyncio.sleep(0)
    pipe.tell(answer)
    with pytest.raises(Unreachable):
        await appending
    with pytest.raises(Unreachable):
        await made.append(load())
