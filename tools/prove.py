"""Spend minutes on attempts to break Cordwood's promises, and report the broken ones.

`make prove MINUTES=n` runs this. The minutes go to sweeps, one after another, each over all cores:

- the swarm (every seed has another cluster, other clients, other faults), the demo's cluster, logs
  that are tiered into an object store that misbehaves, and faults beyond what the copies survive
  (then every loss must be reported exactly);
- the crash states of disks, kill -9 of a real store under load, kill -9 and SIGSTOP of a real
  cluster's nodes under load, and all faults that this machine can produce in such a cluster;
- small random changes of the code that tests and simulator must notice (`mutate.py`), and fuzzed
  input for every decoder;
- a reader beside a node that is a hundred times slower (`prove_reads.py`), every scene that `make
  test` leaves out as too slow (`prove_scenes.py`), and every model's world that is too large for
  `make test`.

`--parts` chooses among them. The scenes, the models' worlds and Spark's parts (`prove_spark.py`)
are a fixed number of tests and take time beside the minutes; Spark's half an hour is added only in
a proof of 15 minutes or more. The first four sweeps are `cordwood sim run`. It runs one seed of
fifty twice. It fails a sweep if too many runs did not count. It also fails a full sweep of the
swarm that never reached one of the rare branches.

The first seed follows from the commit, and the number of seeds from the minutes and cores. So one
commit proves the same every time, on a quick machine no more than on a slow one, and the next
commit tries other seeds. Each failure is shown with the command that runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from prove_reads import run_reads
from prove_scenes import WORLDS as WORLD_TESTS
from prove_scenes import run_scenes
from prove_shown import kept
from prove_spark import run_spark, run_spark42

ROOT = Path(__file__).resolve().parent.parent

COMMAND = str(Path(sys.executable).parent / "cordwood")
"""The `cordwood` command of the environment in which this runs."""

SLACK_S = 300.0
"""A sweep starts no seed after its time, and ends a seed after three minutes: a longer seed hangs,
which is a failure."""

MINUTES_MIN = 0.001
"""The least number of seeds for `cordwood sim run`: one for each core."""

CRASH_SEEDS_APART = 1_000_000
"""Each core's crash states begin this many seeds after the last core's."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sweep.

    Attributes:
        weight: its share of the minutes, in relation to the other parts.
        options: of `cordwood sim run`, if it is a sweep of the simulator.
    """

    name: str
    weight: float
    options: tuple[str, ...] = ()


CRASH = "crash"
KILLS = "kills"

KILLS_MAX = 100
"""Rounds of kill -9 in one proof; one takes a second or two, most of it a start."""

KILLS_A_MINUTE = 30

FLOOR_KILLS_MINUTES = 30.0
"""Time limit of KILLS_MAX rounds on a busy machine, with a wide margin."""

FUZZ = "fuzz"

FUZZ_RUNS_A_MINUTE = 4000
"""Inputs for each decoder; a decoder takes four seconds of a core for them, including its start."""

FAILOVER = "failover"

FAULTS_MAX = 50
"""Kills and stops of a cluster's nodes in one proof; one takes three to ten seconds."""

CHAOS = "chaos"

CHAOS_MINUTES_MIN = 0.1
"""Shortest time: enough for one fault; the start and the end of a cluster take longer."""

WORLDS = "worlds"

WORLDS_TIMEOUT_MIN = 15.0
"""Time limits of the tests, which take some two minutes of a core, and of the largest walk, which
takes some four, independent of the minutes."""

LARGEST_WORLD = ("--blocks", "3", "--recoveries", "2", "--waves", "2")
"""A walk of blocks that may go to a second copyset, while two nodes recover at once. It reports its
progress."""

SCENES, READS = "scenes", "reads"

MUTANTS = "mutants"

MUTANT_MIN = 10.0
"""Time limit of the last mutant: its tests and seeds, and the tests without the mutant."""

SPARK, SPARK42 = "spark", "spark42"

PARTS = {
    part.name: part
    for part in (
        Part("swarm", 0.55),
        Part("demo", 0.2, ("--demo",)),
        Part("tier", 0.2, ("--tier",)),
        Part("beyond", 0.1, ("--beyond",)),
        Part(CRASH, 0.15),
        Part(KILLS, 0.1),
        Part(FUZZ, 0.1),
        Part(FAILOVER, 0.25),
        Part(CHAOS, 0.15),
        Part(MUTANTS, 0.1),
        # A fixed number of tests, which take the time that they need.
        Part(SCENES, 0.0),
        Part(WORLDS, 0.0),
        Part(READS, 0.0),
        Part(SPARK, 0.0),
        Part(SPARK42, 0.0),
    )
}
"""Most of the time goes to the swarm, whose draws include the cases of the other sweeps."""

SEEDS_A_MINUTE = 8
"""Seeds a minute on each core. A seed takes four to six seconds of a slow core, so a sweep mostly
ends with its seeds and not with its minutes. So a proof gives the same result on another
machine."""


def budgets(parts: Sequence[Part], minutes: float) -> list[float]:
    """The time of each part, together no more than these minutes.

    A part without weight is a fixed number of tests, and takes its own time beside the minutes.
    """
    whole = sum(part.weight for part in parts) or 1
    return [minutes * part.weight / whole for part in parts]


def sweep_arguments(part: Part, seed: int, minutes: float, workers: int) -> list[str]:
    """The arguments of `cordwood` that run a part, and run it again."""
    seeds = max(workers, round(SEEDS_A_MINUTE * minutes * workers))
    least = max(minutes, MINUTES_MIN)
    return [
        "sim", "run", *part.options, "--seed", str(seed), "--seeds", str(seeds),
        "--minutes", f"{least:g}", "--jobs", str(workers),
    ]  # fmt: skip


def run_part(command: str, part: Part, seed: int, minutes: float, workers: int) -> bool:
    """Run a sweep to its end, and pass its output on. Returns whether it was clean."""
    arguments = sweep_arguments(part, seed, minutes, workers)
    say(f"\n{part.name}: cordwood {shlex.join(arguments)}")
    try:
        done = subprocess.run(
            [*shlex.split(command), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            timeout=60 * minutes + SLACK_S,
            check=False,
        )
        problem = "" if done.returncode == 0 else f"exit {done.returncode}"
    except subprocess.TimeoutExpired:
        problem = "no end"
    if problem:
        say(f"{part.name}: FAILED ({problem})")
        say(f"{part.name}: the whole sweep again: cordwood {shlex.join(arguments)}")
    return not problem


@dataclass(frozen=True, slots=True)
class CrashSweep:
    """The result of one core's sweep of crash states: the number of states, the rare events that it
    met, and the seed that broke a promise."""

    report: str
    states: int
    hit: frozenset[str]
    failed: int | None


def run_crash_states(seed: int, minutes: float, workers: int, states: int | None = None) -> bool:
    """Start from crash states until the time is over. Returns whether no promise broke.

    If all cores together went through enough states for a full sweep, it also fails for each rare
    event that none of them met.

    Args:
        states: go on until this many states, over all cores, however long that takes.
    """
    goal = f"{minutes:g} min" if states is None else f"{states:,} states"
    say(f"\ncrash states: from seed {seed}, {goal} on {workers} cores")
    firsts = [seed + CRASH_SEEDS_APART * worker for worker in range(workers)]
    seconds = 60 * minutes if states is None else math.inf
    share = None if states is None else math.ceil(states / workers)
    with ProcessPoolExecutor(workers) as pool:
        swept = list(pool.map(_sweep_crash_states, firsts, [seconds] * workers, [share] * workers))
    for each in swept:
        say(each.report)
        if each.failed is not None:
            say(f"crash states: FAILED\n  again: python tools/prove.py --crash-seed {each.failed}")
    missed = missed_crash_probes(swept)
    if missed:
        say(f"crash states: FAILED, a full sweep never met: {', '.join(missed)}")
    return not missed and all(each.failed is None for each in swept)


def missed_crash_probes(swept: Sequence[CrashSweep]) -> list[str]:
    """Rare events that a full sweep should have met and did not; none if the sweep was not full."""
    from cordwood.sim.crash_states.prove import FULL_STATES, PROBES

    if sum(each.states for each in swept) < FULL_STATES:
        return []
    hit = frozenset[str]().union(*(each.hit for each in swept))
    return [name for name in PROBES if name not in hit]


def run_kills(seed: int, minutes: float, rounds: int | None = None) -> bool:
    """Kill a real store under load again and again. Returns whether all acknowledged records
    stayed.

    Args:
        rounds: number of rounds, independent of the minutes.
    """
    if rounds is None:
        rounds = max(1, min(KILLS_MAX, round(KILLS_A_MINUTE * minutes)))
    arguments = ["-m", "cordwood.chaos.kill_rounds", "--rounds", str(rounds), "--seed", str(seed)]
    return run_program(KILLS, [sys.executable, *arguments], minutes)


def run_failover(command: str, seed: int, minutes: float) -> bool:
    """Kill and stop a real cluster's nodes under load. Returns whether its clients saw no broken
    promise.

    The time for which appends stood still is reported and not judged: the machine may be busy.
    """
    arguments = [
        "chaos", "--rounds", str(FAULTS_MAX), "--minutes", f"{minutes:g}",
        "--seed", str(seed), "--no-bounds",
    ]  # fmt: skip
    return run_program(FAILOVER, [*shlex.split(command), *arguments], minutes)


def play_chaos(command: str, seed: int, minutes: float) -> bool:
    """Strike a real cluster with all possible faults. Returns whether its clients saw no broken
    promise.

    Durations are reported and not judged: the machine may be busy. The history and the nodes'
    output of a failed run stay at the printed path.
    """
    below = tempfile.mkdtemp(prefix="cordwood-chaos-")
    least = max(minutes, CHAOS_MINUTES_MIN)
    arguments = ["chaos", "--minutes", f"{least:g}", "--seed", str(seed), "--no-bounds"]
    arguments += ["--dir", below]
    is_clean = run_program(CHAOS, [*shlex.split(command), *arguments], least)
    if is_clean:
        shutil.rmtree(below, ignore_errors=True)
    return is_clean


def run_fuzz(seed: int, minutes: float, workers: int) -> bool:
    """Fuzz every decoder. Returns whether each raised only allowed errors."""
    if importlib.util.find_spec("atheris") is None:
        say("\nfuzz: skipped, there is no atheris for this machine (Linux on x86-64 has one)")
        return True
    runs = max(1000, round(FUZZ_RUNS_A_MINUTE * minutes))
    arguments = [sys.executable, "tests/fuzz/fuzz_run.py", "--runs", str(runs), "--seed", str(seed)]
    return run_program(FUZZ, [*arguments, "--jobs", str(workers)], minutes)


def run_mutants(seed: int, minutes: float) -> bool:
    """Change the code at random, and report changes that the proof does not notice.

    A few mutants show little, so only a sample of `mutate.ENOUGH` or more may fail a proof.
    """
    arguments = ["tools/mutate.py", "--count", "1000", "--minutes", f"{minutes:g}"]
    command = [sys.executable, *arguments, "--seed", str(seed)]
    return run_program(MUTANTS, command, minutes + MUTANT_MIN)


def run_worlds() -> bool:
    """Walk worlds that are too large for `make test`: models of seal and recovery, power cuts of
    tables."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", *WORLD_TESTS]
    is_clean = run_program(WORLDS, arguments, WORLDS_TIMEOUT_MIN)
    walk = [sys.executable, "tests/protocol/folded_scope.py", *LARGEST_WORLD]
    return run_program(WORLDS, walk, WORLDS_TIMEOUT_MIN) and is_clean


def run_program(name: str, arguments: Sequence[str], minutes: float) -> bool:
    """Run a part that is a separate program, and pass its output on. Returns whether it was
    clean."""
    say(f"\n{name}: {shlex.join(arguments)}")
    try:
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            timeout=60 * minutes + SLACK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"{name}: FAILED (no end)")
        return False
    if done.returncode:
        say(f"{name}: FAILED (exit {done.returncode})")
    return done.returncode == 0


def run_floors(seed: int, workers: int) -> bool:
    """Run the full number of kills and crash states of the storage node, however long that
    takes."""
    from cordwood.sim.crash_states.prove import FULL_STATES

    survived = run_kills(seed, FLOOR_KILLS_MINUTES, KILLS_MAX)
    return run_crash_states(seed, 0, workers, FULL_STATES) and survived


def _sweep_crash_states(first: int, seconds: float, states: int | None) -> CrashSweep:
    """One core's sweep."""
    from cordwood.sim.crash_states import prove

    quiet()
    swept = prove.sweep(seconds, first, states_max=states)
    return CrashSweep(swept.report(), swept.states, frozenset(swept.hit), swept.failed)


def run_crash_seed(seed: int) -> int:
    """One seed of the crash states, again; 1 if it breaks a promise."""
    from cordwood.sim.crash_states import prove
    from cordwood.sim.crash_states.explorer import PromiseBroken

    quiet()
    try:
        found = prove.run_seed(seed)
    except PromiseBroken as error:
        say(f"seed {seed}: {error}")
        return 1
    say(f"seed {seed}: {found.states:,} states, nothing broken")
    return 0


def quiet() -> None:
    """Switch off log lines: nodes that start from damaged disks log this, and the verdict is
    enough."""
    import logging

    logging.disable(logging.CRITICAL)


def say(text: str) -> None:
    """Print a line before the next output of a child process."""
    print(text, flush=True)


def seed_of_commit() -> int:
    """A number that follows from the commit; 1 outside a git checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode != 0:
        return 1
    return int.from_bytes(hashlib.sha256(done.stdout.encode()).digest()[:4], "big") >> 1


def prove_part(part: Part, seed: int, minutes: float, options: argparse.Namespace) -> bool:
    """Run one part to its end; whether it was clean."""
    command, workers = options.command, options.workers
    runs: dict[str, Callable[[], bool]] = {
        CRASH: lambda: run_crash_states(seed, minutes, workers),
        KILLS: lambda: run_kills(seed, minutes),
        FUZZ: lambda: run_fuzz(seed, minutes, workers),
        FAILOVER: lambda: run_failover(command, seed, minutes),
        CHAOS: lambda: play_chaos(command, seed, minutes),
        MUTANTS: lambda: run_mutants(seed, minutes),
        SCENES: lambda: run_scenes(workers, say),
        WORLDS: run_worlds,
        READS: lambda: run_reads(command, say),
        SPARK: lambda: run_spark(options.minutes, say),
        SPARK42: lambda: run_spark42(options.minutes, say),
    }
    run = runs.get(part.name, lambda: run_part(command, part, seed, minutes, workers))
    return run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep for this many minutes; 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Try to break what Cordwood promises.")
    parser.add_argument(
        "--minutes", type=float, default=5, help="of real time, beside scenes, worlds and Spark"
    )
    parser.add_argument("--first-seed", type=int, help="by default it follows from the commit")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--command", default=COMMAND, help="what stands for `cordwood`")
    parser.add_argument("--crash-seed", type=int, help="only this seed of the crash states")
    parser.add_argument(
        "--crash-states", type=int, metavar="N", help="only crash states, until there were N"
    )
    parser.add_argument(
        "--floors",
        action="store_true",
        help=f"only {KILLS_MAX} kills and the crash states of a full sweep",
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    options = parser.parse_args(arguments)
    if options.crash_seed is not None:
        return run_crash_seed(options.crash_seed)
    names = options.parts.split(",")
    if not set(names) <= PARTS.keys():
        parser.error(f"--parts takes some of {','.join(PARTS)}")
    parts = [PARTS[name] for name in names]
    first = seed_of_commit() if options.first_seed is None else options.first_seed
    if options.floors:
        return 0 if run_floors(first, options.workers) else 1
    if options.crash_states is not None:
        clean = run_crash_states(first, 0, options.workers, options.crash_states)
        return 0 if clean else 1
    say(f"prove: seeds from {first}, {options.workers} at a time, {options.minutes:g} min")
    began = time.monotonic()
    failed: dict[str, list[str]] = {}
    for part, minutes in zip(parts, budgets(parts, options.minutes), strict=True):
        lines: list[str] = []
        with kept(lines):
            is_clean = prove_part(part, first, minutes, options)
        if not is_clean:
            failed[part.name] = lines
    for name, lines in failed.items():
        say("\n".join((f"\n{name} failed; its last lines again:", *lines)))
    took_min = (time.monotonic() - began) / 60
    say(f"\nprove: {', '.join(failed) + ' FAILED' if failed else 'clean'}, {took_min:.1f} min")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
