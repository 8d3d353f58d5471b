"""Fuzz decoders with atheris, guided by the lines that inputs reach.

::

    python tests/fuzz/fuzz_run.py                          # all targets, a short run
    python tests/fuzz/fuzz_run.py append store --runs 1000000
    python tests/fuzz/fuzz_run.py --minutes 60 --jobs 2 --keep

Each target runs in a process of its own, from `corpus/NAME.hex` and a seed. What breaks a
target is printed as a line for that file: put there, `make test` runs it for ever. `--keep`
adds what reached new lines, the smallest inputs that reach all of them. Memory is bounded
too: one input of many is measured, and a decoder that allocates what a length in its input
claims ends as a MemoryError.

Source: docs/sources/reliability.md §1 (fuzzing by budget, a corpus that is kept).
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
PATHS = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]
NODE = "node"

CANARY = "canary"
"""A target that breaks at once: while it does not, nothing that the others say counts."""

INPUT_BYTES_MAX = 8192
"""Nearly every branch is reached far below; a number of over 4,300 digits, which Python refuses to
read, is not. Longer ones are slower and find the same."""

MEMORY_SLACK_BYTES = 512 << 20
"""Above what a process has when it begins to fuzz: an inflated body is 64 KiB, and atheris and
the allocator keep a good deal; a length field that is believed asks for gigabytes."""

FRAMES_BYTES_MAX = (72 + 8) << 20
"""What reading frames may take for an input: room for one frame of the largest kind."""

DECODED_BYTES_MAX = 16 << 20
"""What any other decoder may take: inputs have 8 KiB, and the objects that a few kilobytes of
records or YAML become take a hundred times that; no length is believed."""

MEASURED_EVERY = 64
"""Of so many inputs one has its memory measured: that takes some times as long."""

INPUT_S_MAX = 60
"""An input that takes longer hangs; none takes a hundredth, on a loaded machine either."""

SECONDS_EACH = 5.0
"""Without a budget: enough for some 50,000 inputs."""

SERVER = multiprocessing.get_context("forkserver")
"""Loads and instruments all decoders once; each target's process is a copy."""

OVERTIME_S = 120.0
"""Beyond its time, for starting up, for the input that it is at, and for a loaded machine."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One target's run: executions, new inputs, and what broke it (hexadecimal), if it did."""

    name: str
    runs: int
    seconds: float
    broke: str
    said: str


def corpus(name: str) -> list[bytes]:
    """The inputs kept for a target."""
    return [bytes.fromhex(line) for line in (CORPUS / f"{name}.hex").read_text().split()]


def names() -> list[str]:
    """All targets, in order of name."""
    return sorted(file.stem for file in CORPUS.glob("*.hex") if file.stem != CANARY)


def _canary(data: bytes) -> None:
    if data[:1] > b"b":
        raise RuntimeError("planted")


def bounded(
    name: str, run: Callable[[bytes], object], every: int = MEASURED_EVERY
) -> Callable[[bytes], None]:
    """`run`, an AssertionError for an input that takes more memory than it may."""
    most = FRAMES_BYTES_MAX if name in ("frames", "framed", "pieces") else DECODED_BYTES_MAX
    count = itertools.count(1)

    def measured(data: bytes) -> None:
        if next(count) % every:
            run(data)
            return
        tracemalloc.start()
        try:
            run(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= most, f"{name} took {peak:,} bytes for {len(data):,}; it may take {most:,}"

    return measured


def fuzz(name: str, flags: Sequence[str]) -> None:
    """Fuzz one target in this process, which does not return from it."""
    import atheris

    run: Callable[[bytes], object]
    if name == CANARY:
        run = _canary
    else:
        sys.path[:0] = [path for path in PATHS if path not in sys.path]
        import fuzz_loaded

        if name == NODE:
            run = fuzz_loaded.NODE().run
        else:
            run = bounded(name, fuzz_loaded.TARGETS[name])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + MEMORY_SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    atheris.Setup([sys.argv[0], *flags], run)
    atheris.Fuzz()


def run_target(name: str, runs: int, seconds: float, seed: int, keep: bool) -> Ran:
    """Fuzz one target in a process of its own, from its corpus."""
    with tempfile.TemporaryDirectory(prefix="cordwood-fuzz-") as scratch:
        inputs, least = Path(scratch, "inputs"), Path(scratch, "least")
        for folder in (inputs, least):
            folder.mkdir()
        for number, data in enumerate(corpus(name)):
            (inputs / str(number)).write_bytes(data)
        artifacts = f"-artifact_prefix={scratch}/broke-"
        common = [f"-max_len={INPUT_BYTES_MAX}", artifacts, f"-timeout={INPUT_S_MAX}"]
        flags = [*common, f"-seed={seed}", f"-runs={runs or -1}", f"-max_total_time={seconds:.0f}"]
        started = time.monotonic()
        done = _start(name, [*flags, str(inputs)], seconds, scratch)
        took = time.monotonic() - started
        broke = next((file.read_bytes().hex() for file in Path(scratch).glob("broke-*")), "")
        if done.returncode == 0 and keep:
            _merge(name, [*common, "-merge=1", str(least), str(inputs)], seconds, scratch)
            _keep(name, least)
        said = done.stdout.decode(errors="replace")
    executed = re.findall(r"(?:Done (\d+) runs|^#(\d+)\t)", said, re.MULTILINE)
    count = max((int(a or b) for a, b in executed), default=0)
    if done.returncode and not broke:
        broke = "an input that was not kept"
    return Ran(name, count, took, broke, said)


@dataclass(frozen=True, slots=True)
class _Ended:
    returncode: int
    stdout: bytes


def _start(name: str, flags: Sequence[str], seconds: float, scratch: str) -> _Ended:
    """Fuzz one target in a copy of the process that has loaded all of them."""
    said = Path(scratch, "said")
    process = SERVER.Process(target=_in_copy, args=(name, list(flags), str(said), scratch))
    process.start()
    process.join(seconds + OVERTIME_S)
    hangs = process.exitcode is None
    if hangs:
        process.kill()
        process.join()
    text = said.read_bytes() if said.exists() else b""
    code = 1 if process.exitcode is None else process.exitcode
    return _Ended(code, text + b"\nno end\n" * hangs)


def _in_copy(name: str, flags: Sequence[str], said: str, scratch: str) -> None:
    os.environ["TMPDIR"] = scratch  # a fuzzer ends without cleaning up
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        fuzz(name, flags)
    finally:
        # The fuzzer keeps the input of a target that breaks when the process ends as a C program
        # does; the copy of a process would end without that.
        sys.stdout.flush()
        ctypes.CDLL(None).exit(1)


def _merge(name: str, flags: Sequence[str], seconds: float, scratch: str) -> None:
    """Find the fewest inputs that reach all lines; the fuzzer starts more processes for it."""
    subprocess.run(
        [sys.executable, str(Path(__file__)), "--target", name, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": scratch},
        timeout=seconds + OVERTIME_S,
        check=False,
    )


def _keep(name: str, folder: Path) -> None:
    """Add what is new, shortest first, to a target's corpus."""
    found = {file.read_bytes() for file in folder.iterdir()}
    known = corpus(name)
    fresh = sorted(found - set(known), key=lambda data: (len(data), data))
    text = "".join(data.hex() + "\n" for data in [*known, *fresh] if data)
    (CORPUS / f"{name}.hex").write_text(text)


def run_all(
    chosen: Sequence[str], runs: int, seconds: float, seed: int, keep: bool, jobs: int
) -> Iterator[Ran]:
    """Fuzz targets, so many at a time, and tell of each as it ends, in order."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda name: run_target(name, runs, seconds, seed, keep), chosen)


def main() -> int:
    """0 if nothing broke."""
    if sys.argv[1:2] == ["--target"]:
        fuzz(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *names()], help="targets; all if none")
    parser.add_argument("--runs", type=int, default=0, help="inputs for each target; 0: by time")
    parser.add_argument("--minutes", type=float, default=0.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", action="store_true", help="add what reached new lines")
    given = parser.parse_args()
    chosen = list(given.names) or names()
    seconds = SECONDS_EACH
    if given.minutes:
        seconds = max(1.0, 60 * given.minutes * given.jobs / len(chosen))
    elif given.runs:
        seconds = 3600.0
    os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
    SERVER.set_forkserver_preload(["fuzz_loaded"])
    if not run_target(CANARY, 100_000, SECONDS_EACH, given.seed, keep=False).broke:
        print("the canary lives: no target that breaks would be told of")
        return 1
    broken = 0
    for ran in run_all(chosen, given.runs, seconds, given.seed, given.keep, given.jobs):
        print(f"{ran.name:16} {ran.runs:>9,} inputs in {ran.seconds:6.1f} s", flush=True)
        if ran.broke:
            broken += 1
            print(f"{ran.said[-6000:]}\n{ran.name} BROKE; for corpus/{ran.name}.hex:\n{ran.broke}")
    print(f"{len(chosen)} targets, {broken} broken, seed {given.seed}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
