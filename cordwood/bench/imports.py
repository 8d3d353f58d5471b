"""The cost of importing Cordwood, in a fresh interpreter.

Source: docs/design.md §11 (pyarrow is a core dependency, imported lazily).
"""

from __future__ import annotations

import asyncio
import sys

from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.errors import Unreachable

HEAVY = ("pyarrow", "pyspark", "rocksdict")
"""Modules that `import cordwood` must never load."""

REFERENCE = "asyncio"
"""A module that every program with a client loads anyway."""

TIMEOUT_S = 60.0

_TIMED = (
    "import sys, time; start = time.perf_counter(); {statement}; "
    "print(time.perf_counter() - start, *sorted(set({heavy!r}) & set(sys.modules)))"
)

FIGURES = (
    ("import_cordwood", "import cordwood"),
    # Names load at their first use, so this is the cost of the first use.
    ("import_cordwood_connect", "from cordwood import connect"),
)


async def bench_imports(*, repeats: int) -> list[Figure]:
    """Time `import cordwood`, and its first use.

    Raises:
        Unreachable: the interpreter did not run the import.
    """
    return [await _bench_import(name, text, repeats) for name, text in FIGURES]


async def _bench_import(name: str, statement: str, repeats: int) -> Figure:
    await _import(statement)  # compiles all modules, and warms the page cache
    samples: list[Sample] = []
    heavy: set[str] = set()
    for _ in range(repeats):
        reference_s, _ = await _import(f"import {REFERENCE}")
        seconds, loaded = await _import(statement)
        heavy.update(loaded)
        samples.append(Sample(seconds, reference_s))
    return make_figure(
        name, "s", samples,
        reference_is=f"`import {REFERENCE}` in a fresh interpreter",
        parameters={"statement": statement, "heavy_modules_loaded": " ".join(sorted(heavy))},
    )  # fmt: skip


async def _import(statement: str) -> tuple[float, list[str]]:
    """Seconds of a statement in a fresh interpreter, and the modules of HEAVY that it loaded."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TIMED.format(statement=statement, heavy=HEAVY),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TIMEOUT_S):
            printed, problem = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Unreachable(f"`{statement}` took over {TIMEOUT_S:g} s") from None
    if process.returncode != 0:
        raise Unreachable(f"`{statement}` failed: {problem.decode(errors='replace')[-400:]}")
    seconds, *loaded = printed.decode().split()
    return float(seconds), loaded
