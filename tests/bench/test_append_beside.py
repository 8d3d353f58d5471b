"""Appends beside NATS and beside one log: the raw client, and tiny runs of both verbs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenarios import as_scenario, awaited_by, run_on_uvloop
from swaps import swap_value
from verbs_at_hand import run_verb

from cordwood.bench import append_spread
from cordwood.bench.nats import NatsClient, find_nats
from cordwood.errors import Unreachable


class FakeServer(asyncio.Transport):
    """What a client writes, and a way to answer it in pieces of any size."""

    def __init__(self, piece: int) -> None:
        super().__init__()
        self.piece = piece
        self.client = NatsClient()
        self.published = 0
        self.client.connection_made(self)

    def write(self, data: Any) -> None:
        self.published += bytes(data).count(b"PUB cordwood-bench ")
        acks = bytes(data).count(b"PUB cordwood-bench ")
        if acks:
            asyncio.get_running_loop().call_soon(self.tell, self.ack() * acks)

    def ack(self) -> bytes:
        body = b'{"stream":"cordwood-bench","seq":7}'
        return b"PING\r\nMSG _INBOX.x 1 %d\r\n%s\r\n" % (len(body), body)

    def tell(self, data: bytes) -> None:
        for at in range(0, len(data), self.piece):
            self.client.data_received(data[at : at + self.piece])

    def close(self) -> None:
        self.client.connection_lost(None)


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@as_scenario(awaited_by(run_on_uvloop))
async def test_every_ack_counts_once_however_it_arrives(*, piece: int) -> None:
    server = FakeServer(piece)
    rate = await server.client.publish(10, 5, 0.02)
    assert rate > 0
    assert server.published == server.client._acked >= 5
    server.client.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'MSG x 1 20\r\n{"error":{"code":5}}\r\n', "refused a message"),
        (b"-ERR 'Maximum Payload Violation'\r\n", "Maximum Payload"),
    ],
)
@as_scenario(awaited_by(run_on_uvloop))
async def test_a_refusal_ends_the_run_with_its_words(*, answer: bytes, why: str) -> None:
    server = FakeServer(1000)
    server.ack = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match=why):
        await server.client.publish(10, 2, 5)


def figures(*arguments: str) -> list[dict[str, Any]]:
    outcome = run_verb(["bench", "append", *arguments, "--json"])
    assert outcome.exit_code == 0, outcome.output
    made: list[dict[str, Any]] = json.loads(outcome.stdout)
    return made


@pytest.mark.real
class TestVerb:
    TINY = ("--size", "100", "--in-flight", "64", "--records", "2000", "--repeat", "1")

    @pytest.mark.slow
    def test_beside_nats(self, tmp_path: Path, require: Callable[[str, str], None]) -> None:
        if find_nats() is None:
            require("nats", "nats-server is not installed")
        (figure,) = figures(*self.TINY, "--nats", "--nodes", "1", "--dir", str(tmp_path))
        assert figure["name"] == "append_100B_singles_64_in_flight_beside_nats"
        assert figure["reference"] > 0
        assert figure["reference_is"].startswith("NATS JetStream")
        assert list(tmp_path.iterdir()) == []

    def test_many_logs_beside_one(self, tmp_path: Path) -> None:
        (figure,) = figures(*self.TINY, "--logs", "7", "--nodes", "1", "--dir", str(tmp_path))
        assert figure["parameters"]["logs"] == 7
        assert figure["ratio"] > 0
        assert list(tmp_path.iterdir()) == []

    def test_how_a_burst_lies_on_the_nodes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: append_spread.BURST_RECORDS, 640)
        where = {"directory": str(tmp_path), "nodes": 3, "repeats": 1, "say": print}
        figure = run_on_uvloop(append_spread.bench_spread(**where))
        # As many nodes as copies: each of them holds all of it.
        assert figure.ratio == pytest.approx(1, abs=0.01)

    def test_a_cluster_that_runs_is_not_for_comparing(self) -> None:
        outcome = run_verb(["bench", "append", "--nats", "--cluster", "cordwood://127.0.0.1:1"])
        assert outcome.exit_code == 1
        assert "a cluster of their own" in outcome.stderr
