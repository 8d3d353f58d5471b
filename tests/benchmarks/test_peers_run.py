"""The whole of it, on real servers: a tiny run of Cordwood and of NATS, and what it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from benchmarks.peers import __main__ as command
from benchmarks.peers.cordwood_peer import CORDWOOD
from benchmarks.peers.ledgers_peer import LedgersPeer
from benchmarks.peers.nats_peer import R1, NatsPeer
from benchmarks.peers.peer import Peer, RunningPeer
from benchmarks.peers.results import NAMES, TAIL_NAME, Results, load_results
from benchmarks.peers.runner import Plan, measure
from cordwood.bench.nats import find_nats
from cordwood.errors import BadSetting, Unreachable

TINY = Plan(
    repeats=2,
    turns=1,
    minutes=0.001,
    seconds=0.05,
    bytes_max=1 << 20,
    fill_bytes=1 << 19,
    fill_seconds=0.05,
    tail_seconds=0.1,
)


def empty() -> Results:
    return Results("now", "a test", {}, TINY.repeats, TINY.seconds, TINY.bytes_max)


def run(results: Results, directory: Path, *peers: Peer) -> list[str]:
    said: list[str] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(peers, TINY, results, str(directory), said.append))
    return said


@pytest.mark.real
@pytest.mark.slow
def test_a_tiny_run_that_has_no_time_for_a_second_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if find_nats() is None:
        require("nats", "nats-server is not installed")

    async def no_chart(results: Path, out: Path) -> None:
        raise Unreachable("charts are for another day")

    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command, "draw_charts", no_chart)
    out, disk = tmp_path / "out", tmp_path / "disk"
    disk.mkdir()
    words = ["--quick", "--only", "nats_r1", "--json", "--out", str(out), "--dir", str(disk)]
    assert command.main(words) == 0
    assert list(disk.iterdir()) == []
    results = load_results(out / "benchmarks.json")
    assert [system.name for system in results.systems] == ["cordwood", "nats_r1"]
    for system in results.systems:
        assert list(system.cells) == list(NAMES)
        assert all(len(cell.values) == 1 and cell.value > 0 for cell in system.cells.values())
        assert system.cells[TAIL_NAME].value < 5000
        assert len(system.probes) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told] == [f"{name}_beside_nats_r1" for name in NAMES]
    assert all(each["ratio"] > 0 for each in told)
    page = (out / "benchmarks.md").read_text()
    assert "a short run" in page
    assert "Cordwood was too slow for its share of the run: medians of 1 where" in page
    assert "NATS JetStream R1" in page
    assert "benchmarks.svg" not in page, "there is no chart to show"


@pytest.mark.slow
@pytest.mark.real
def test_ledgers_go_through_all_cells(tmp_path: Path) -> None:
    results = empty()
    run(results, tmp_path, LedgersPeer())
    (system,) = results.systems
    assert (system.name, system.skipped) == ("cordwood_ledgers", "")
    assert list(system.cells) == list(NAMES)
    assert all(cell.value > 0 for cell in system.cells.values())
    assert list(tmp_path.iterdir()) == []


class NoServer(NatsPeer):
    """Never there, or there and never up."""

    def __init__(self, why: str | None) -> None:
        super().__init__(R1)
        self.why = why

    def missing(self) -> str | None:
        return self.why

    def version(self) -> str:
        return "0"

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        raise Unreachable("the port is taken")
        yield


def test_what_is_not_installed_is_skipped_and_says_so(tmp_path: Path) -> None:
    results = empty()
    said = run(results, tmp_path, NoServer("not installed"))
    assert said == ["nats_r1: skipped: not installed"]
    (system,) = results.systems
    assert (system.skipped, system.version, system.cells) == ("not installed", "", {})


def test_what_does_not_start_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    results = empty()
    said = run(results, tmp_path, NoServer(None))
    assert said[-1] == "nats_r1: the port is taken"
    assert results.systems[0].skipped == "the port is taken"
    assert list(tmp_path.iterdir()) == []


def test_repeats_are_shared_out_over_the_turns() -> None:
    plan = Plan(repeats=5, turns=2)
    assert [plan.repeats_of(turn) for turn in range(plan.turns)] == [3, 2]
    assert Plan(repeats=1, turns=1).repeats_of(0) == 1


def test_cordwood_is_always_among_those_measured() -> None:
    assert [peer.name for peer in command._chosen("redis")] == ["cordwood", "redis"]
    names = [peer.name for peer in command._chosen("bookkeeper")]
    assert names == ["cordwood", "bookkeeper", "cordwood_ledgers"]
    assert len({v.name for peer in command.PEERS for v in peer.variants}) == 11
    with pytest.raises(BadSetting, match="no peer is called kafak"):
        command._chosen("kafak")


def test_cordwood_says_what_its_ack_means() -> None:
    assert CORDWOOD.synced
    assert CORDWOOD.copies == CORDWOOD.servers == 3


@pytest.mark.parametrize(
    "words", [["--repeat", "0"], ["--seconds", "0"], ["--minutes", "0"], ["--only", "x"]]
)
def test_a_wrong_setting_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 1
    assert "peers: " in capsys.readouterr().err
