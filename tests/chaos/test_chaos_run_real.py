"""A few seconds of a chaos run, and of the load on a cluster of one's own.

`make prove` plays the run, here and for minutes; `make test` has the load."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.chaos.capabilities import kinds_without, lacking
from cordwood.chaos.chaos_run import Progress, play_chaos
from cordwood.chaos.clocked_node import SteppedClock, clock_path, step_clock
from cordwood.chaos.outcome import OF_TIME, outcome_of
from cordwood.chaos.own_cluster import run_against
from cordwood.cli.app import run as cordwood
from cordwood.errors import BadSetting
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.settings import MIB
from cordwood.sim.history import (
    AppendInvoked,
    AppendOk,
    Event,
    FaultStruck,
    ReadStarted,
    RecordDelivered,
)
from cordwood.sim.verify import show

QUICK = ("kill", "clock-step", "proxy-corrupt", "power-cut")
"""One each of processes, clocks, frames and disks, none of which lasts long."""

SECONDS = 16.0
"""Two faults at the least, also on a machine that lacks what most kinds need."""


@pytest.mark.real
@pytest.mark.slow
def test_a_chaos_run_breaks_no_promise_and_leaves_a_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = lacking(str(tmp_path))
    progress = Progress(SECONDS)
    ran = asyncio.run(
        play_chaos(
            str(tmp_path / "run"), seed=15, seconds=SECONDS, lacks=lacks, kinds=QUICK,
            progress=progress,
        )
    )  # fmt: skip
    assert ran.problems == ()
    assert ran.outcome.verdict.acked > 100
    assert ran.outcome.lost == ()
    assert ran.outcome.false_losses == 0
    struck = [event.kind for event in ran.history if isinstance(event, FaultStruck)]
    assert len(struck) >= 2
    assert {*struck} <= {*QUICK} & {*kinds_without(lacks)}
    assert progress.played.total() == len(struck)
    _forget_one(ran.history)
    _pass_one_over(ran.history)
    ran.save(str(tmp_path / "history.jsonl"))
    show(str(tmp_path / "history.jsonl"), as_json=True)
    told = json.loads(capsys.readouterr().out)["violations"]
    assert [each for each in told if each["invariant"] not in OF_TIME] == []


def _forget_one(history: Sequence[Event]) -> None:
    """The same history, had the store forgotten one record that it acknowledged: that is told."""
    lsn = next(event.lsns[0] for event in history if isinstance(event, AppendOk))
    kept = [e for e in history if not (isinstance(e, RecordDelivered) and e.lsn == lsn)]
    outcome = outcome_of(kept)
    assert lsn in [each for _, each in outcome.lost]
    assert {"S2", "S6"} <= {*outcome.verdict.broken}


def _pass_one_over(history: Sequence[Event]) -> None:
    """The same history, had no member of the consumer been given one acknowledged record."""
    logs = {e.log for e in history if isinstance(e, ReadStarted) and e.consumer}
    ops = {e.op for e in history if isinstance(e, AppendInvoked) and e.log in logs}
    assert len(logs) == 2
    lsn = next(e.lsns[0] for e in history if isinstance(e, AppendOk) and e.op in ops)
    kept = [
        event
        for event in history
        if not (
            isinstance(event, RecordDelivered)
            and event.lsn == lsn
            and event.reader.startswith("member-")
        )
    ]
    assert "S24" in outcome_of(history).verdict.checked
    assert "S24" in outcome_of(kept).verdict.broken
    assert outcome_of(kept).lost == (), "the others were given it"


@pytest.mark.real
@pytest.mark.slow
def test_a_cluster_of_one_s_own_is_loaded_struck_and_left_as_it_was(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    script = tmp_path / "strike.py"
    script.write_text(f"import sys; open({str(noted)!r}, 'a').write(' '.join(sys.argv[1:]) + '|')")

    async def play() -> tuple[int, list[str]]:
        shape = ClusterShape(nodes=3, racks=3, wal_bytes=16 * MIB)
        async with local_cluster(str(tmp_path / "own"), shape) as cluster:
            ran = await run_against(
                cluster.url, seed=4, seconds=4.0, command=f"{sys.executable} {script}"
            )
            # Once more: a cluster remembers its queries.
            again = await run_against(cluster.url, seed=4, seconds=0.5)
        return ran.outcome.verdict.acked, [*ran.problems, *again.problems]

    acked, problems = asyncio.run(play())
    assert problems == []
    assert acked > 100
    calls = noted.read_text().split("|")[:-1]
    assert calls
    assert all(call.split()[0] in ("strike", "ease") for call in calls)
    assert sum(call.startswith("strike") for call in calls) * 2 == len(calls)


def test_only_a_cluster_of_one_s_own_is_struck_by_a_command() -> None:
    with pytest.raises(BadSetting, match="name a cluster"):
        asyncio.run(run_against("somewhere", seed=1, seconds=1))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kinds", "kill,earthquake"], "earthquake"),
        (["--strike", "true"], "name it with --cluster"),
    ],
)
def test_what_cannot_be_is_refused_and_the_way_out_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cordwood(["chaos", *arguments]) != 0
    assert told in capsys.readouterr().err


def test_a_clock_is_stepped_from_outside(tmp_path: Path) -> None:
    directory = str(tmp_path / "node-1")
    clock = SteppedClock(clock_path(directory))
    before_us = clock.now_us()
    step_clock(directory, -3_600_000_000)
    assert -3_600_000_000 <= clock.now_us() - before_us < -3_590_000_000
    step_clock(directory, 0)
    assert 0 <= clock.now_us() - before_us < 60_000_000
