"""`python -m benchmarks.peers`: measure, save, write the page and draw the chart."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import shlex
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.peers.bookkeeper_peer import BookkeeperPeer
from benchmarks.peers.cordwood_peer import CordwoodPeer
from benchmarks.peers.drawing import draw_charts
from benchmarks.peers.java_driver import KEPT, ROOT
from benchmarks.peers.kafka_peer import KafkaPeer
from benchmarks.peers.ledgers_peer import LedgersPeer
from benchmarks.peers.machine import describe
from benchmarks.peers.nats_peer import R1, R3, NatsPeer
from benchmarks.peers.page import page
from benchmarks.peers.peer import Peer
from benchmarks.peers.rabbitmq_peer import RabbitmqPeer
from benchmarks.peers.redis_peer import RedisPeer
from benchmarks.peers.results import CORDWOOD, LEDGERS, Results, figures, load_results
from benchmarks.peers.runner import MIB, Plan, free_bytes, measure
from cordwood.errors import BadSetting, CordwoodError

PEERS: tuple[Peer, ...] = (
    CordwoodPeer(), NatsPeer(R1), NatsPeer(R3), RedisPeer(), RabbitmqPeer(), KafkaPeer(),
    BookkeeperPeer(), LedgersPeer(),
)  # fmt: skip
"""The systems in the order of the run. Every turn begins with Cordwood."""

QUICK = Plan(
    repeats=1, turns=1, seconds=0.3, bytes_max=64 * MIB,
    fill_bytes=32 * MIB, fill_seconds=0.5, tail_seconds=0.5,
)  # fmt: skip

UNFINISHED = KEPT / "unfinished.json"
"""The file with the results so far, written after each peer. `--draw` reads it under its usual
name."""

FREE_BYTES_MIN = 12_000_000_000
"""A turn of the fastest system writes three copies of each append's `bytes_max`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 if a setting was wrong or an installed system failed."""
    options = _parser().parse_args(arguments)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_ended_by_signals(_work(options)))
    except (CordwoodError, OSError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        print(f"peers: ended before it was done; what there is: {UNFINISHED}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    usual = Plan()
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repeat of each cell")
    parser.add_argument("--only", metavar="A,B", help=f"of {', '.join(p.name for p in PEERS)}")
    parser.add_argument("--seconds", type=float, help=f"of each append ({usual.seconds:g})")
    parser.add_argument("--repeat", type=int, help=f"the median counts ({usual.repeats})")
    parser.add_argument("--turns", type=int, help=f"how often each starts ({usual.turns})")
    parser.add_argument("--minutes", type=float, help=f"it may take ({usual.minutes:g})")
    parser.add_argument(
        "--dir",
        type=os.path.abspath,
        default=str(ROOT),
        help="whose disk is measured (the clone's)",
    )
    parser.add_argument(
        "--out", type=lambda text: Path(text).resolve(),
        help="where page, chart and results go (docs, or .peers with --quick or --only)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print figures, an object each")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured anew")
    return parser


async def _ended_by_signals(work: Coroutine[None, None, int]) -> int:
    """Have SIGTERM end the run as Ctrl-C does, so that no server is left behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a runner runs a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


async def _work(options: argparse.Namespace) -> int:
    in_part = options.quick or options.only
    out = options.out or (KEPT if in_part else ROOT / "docs")
    path = out / "benchmarks.json"
    if options.draw:
        results = load_results(path)
    else:
        results = await _measure(options)
        results.save(path)
    chart = "benchmarks.svg"
    try:
        await draw_charts(path, out)
    except CordwoodError as error:
        _say(f"no chart: {error}")
        chart = chart if (out / chart).exists() and options.draw else ""
    (out / "benchmarks.md").write_text(page(results, chart))
    _say(f"wrote {out / 'benchmarks.md'}")
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures(results)], indent=2))
    return 1 if any(each.skipped and each.version for each in results.systems) else 0


async def _measure(options: argparse.Namespace) -> Results:
    plan = _plan(options)
    peers = _chosen(options.only)
    free = free_bytes(options.dir)
    if free < FREE_BYTES_MIN and not options.quick:
        raise BadSetting(
            f"{free / 1e9:.1f} GB are free below {options.dir}, and a run may take "
            f"{FREE_BYTES_MIN / 1e9:.0f}: free some, or give another --dir, or --quick"
        )
    results = Results(
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        command=_command(options),
        machine=describe(options.dir),
        repeats=plan.repeats, seconds=plan.seconds, bytes_max=plan.bytes_max,
    )  # fmt: skip
    began = perf_counter()
    await measure(
        peers, plan, results, options.dir,
        lambda text: _say(f"{perf_counter() - began:5.0f} s  {text}"),
        lambda: results.save(UNFINISHED),
    )  # fmt: skip
    UNFINISHED.unlink(missing_ok=True)
    results.machine["load_after"] = round(os.getloadavg()[0], 2)
    results.machine["run_minutes"] = round((perf_counter() - began) / 60, 1)
    return results


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan()
    told = {
        "seconds": options.seconds, "repeats": options.repeat, "turns": options.turns,
        "minutes": options.minutes,
    }  # fmt: skip
    plan = replace(plan, **{name: value for name, value in told.items() if value is not None})
    if min(plan.seconds, plan.minutes) <= 0 or min(plan.repeats, plan.turns) < 1:
        raise BadSetting("--seconds and --minutes are above 0, --repeat and --turns at least 1")
    return replace(plan, turns=min(plan.turns, plan.repeats))


def _chosen(only: str | None) -> list[Peer]:
    """The wanted systems. Cordwood is always the first, because all others are compared with it;
    its ledgers are compared with BookKeeper."""
    if not only:
        return list(PEERS)
    names = {name.strip() for name in only.split(",")} | {CORDWOOD}
    if BookkeeperPeer.name in names:
        names.add(LEDGERS)
    if unknown := names - {peer.name for peer in PEERS}:
        raise BadSetting(
            f"no peer is called {', '.join(sorted(unknown))}; there are "
            f"{', '.join(peer.name for peer in PEERS)}"
        )
    return [peer for peer in PEERS if peer.name in names]


def _command(options: argparse.Namespace) -> str:
    """The command of this run, without the paths of one machine."""
    words = ["python", "-m", "benchmarks.peers"]
    for name in ("only", "seconds", "repeat", "turns", "minutes"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words + (["--quick"] if options.quick else []))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
