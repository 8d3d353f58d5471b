"""Measure every figure that has an aim, and write `docs/figures.md`.

One command for the whole page (`make figures`), for a machine without other work. Each line has a
median, its reference from the same run, and its aim, met or not. The page also names failed
measurements, and aims without a figure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

COMMAND = str(Path(sys.executable).parent / "cordwood")

PAGE = ROOT / "docs" / "figures.md"

TIMEOUT_S = 1200.0

HEAD = """# Figures

What this code reaches on one machine, each figure a median beside a reference that was measured
in the same run, because the machine is never quite the same twice: trust the ratios more than the
numbers. Nodes, clients and Spark share the cores below. Where an aim is missed, it says so.

Made by `make figures`; each table by the command above it.
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A table of the page.

    Attributes:
        arguments: of `cordwood`.
        aims: by the figure's name, in words.
    """

    title: str
    arguments: tuple[str, ...]
    aims: Mapping[str, str] = field(default_factory=dict)


MEASUREMENTS = (
    Measurement(
        "Append, 5 nodes, 3 copies, durable",
        ("bench", "append"),
        {
            "append_256B_singles": "250,000 records/s",
            "append_64KiB_blocks": "250 MB/s",
            "append_256B_in_128KiB_blocks": "1,000,000 records/s",
        },
    ),
    Measurement(
        "Append to a thousand logs, beside one",
        ("bench", "append", "--logs", "1000"),
        {"append_256B_singles_1000_logs": "ratio 0.5"},
    ),
    Measurement("How a burst lies on the nodes", ("bench", "append", "--spread")),
    Measurement(
        "Read",
        ("bench", "read"),
        {
            "read_256B_records": "300,000 records/s",
            "read_256B_arrow": "2,000,000 records/s",
            "read_64KiB_blocks": "300 MB/s",
            "read_tail_lag": "p50 5 ms, p99 25 ms",
            "append_beside_100_readers": "ratio 0.5",
        },
    ),
    Measurement(
        "Read from the disk", ("bench", "read", "--cold"), {"read_64KiB_blocks_cold": "ratio 0.6"}
    ),
    Measurement(
        "Read beside a node that is a hundred times slower",
        ("bench", "read", "--slow-node"),
        {"read_beside_a_slow_node": "ratio 0.7"},
    ),
    Measurement(
        "The WAL, beside fio",
        ("wal", "bench"),
        {
            "wal_256KiB_at_the_device": "ratio 0.85",
            "wal_4KiB_iops": "ratio 0.7",
            "wal_4KiB_one_at_a_time_mean": "80 us over its reference",
            "wal_100B_at_the_device": "ratio 1",
            "wal_100B_in_batches_at_the_device": "ratio 1",
            "wal_recovery_of_1024B_records": "4 s for 1 GiB",
        },
    ),
    Measurement("A storage node alone", ("bench", "node"), {"node_64KiB_stores": "ratio 0.6"}),
    Measurement("LogsDB read back", ("bench", "logsdb"), {"logsdb_read_64KiB_blocks": "ratio 0.5"}),
    Measurement("A cold reader beside the tail", ("bench", "cold")),
    Measurement("What a log and a partition cost", ("bench", "idle")),
    Measurement(
        "Spark, `local[2]`",
        ("bench", "spark"),
        {
            "spark_batch_to_noop": "ratio 0.4",
            "spark_stream_to_noop": "ratio 0.4",
            "spark_micro_batch": "ratio 1.5 at most",
            "spark_land_parquet": "400,000 rows/s",
            "spark_sink": "300,000 rows/s",
        },
    ),
    Measurement("The simulator", ("bench", "sim"), {"simulated_seconds": "60 s/s"}),
    Measurement("Start", ("bench", "import")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page; 1 if a measurement failed or an aim has no figure."""
    parser = argparse.ArgumentParser(description="Measure, and write docs/figures.md.")
    parser.add_argument("--only", default="", help="titles that contain this; prints, no page")
    parser.add_argument("--command", default=COMMAND, help="what stands for `cordwood`")
    parser.add_argument("--page", type=Path, default=PAGE, help="to write")
    options = parser.parse_args(arguments)
    parts, failed = [HEAD, machine()], 0
    for measurement in MEASUREMENTS:
        if options.only and options.only.lower() not in measurement.title.lower():
            continue
        print(f"{measurement.title} …", file=sys.stderr, flush=True)
        figures, problem = measure(measurement, options.command)
        missing = measurement.aims.keys() - {str(each["name"]) for each in figures}
        if missing and not problem:
            problem = f"no figure {', '.join(sorted(missing))} among what it told"
        if problem:
            failed += 1
            print(f"{measurement.title}: {problem}", file=sys.stderr, flush=True)
        parts.append(section(measurement, figures, problem))
    page = "\n".join(parts)
    if options.only:
        print(page)
    else:
        options.page.write_text(page)
    return 1 if failed else 0


def measure(measurement: Measurement, program: str) -> tuple[list[dict[str, Any]], str]:
    """The figures of one command, or why there are none."""
    command = [*shlex.split(program), *measurement.arguments, "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no end within {TIMEOUT_S:g} s"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    found = json.loads(done.stdout)
    return (found if isinstance(found, list) else [found]), ""


def section(measurement: Measurement, figures: Sequence[Mapping[str, Any]], problem: str) -> str:
    """A heading, the command, and a table."""
    lines = [f"## {measurement.title}", "", f"`cordwood {' '.join(measurement.arguments)}`", ""]
    if problem:
        lines += [f"**Not measured:** {problem}", ""]
    if not figures:
        return "\n".join(lines)
    columns = ("figure", "value", "unit", "p50 ms", "p99 ms", "reference", "ratio", "aim")
    lines += [f"| {' | '.join(columns)} |", "|---|--:|---|--:|--:|--:|--:|---|"]
    for each in figures:
        name = str(each["name"])
        cells = [name, number(each["value"]), str(each["unit"])]
        cells += [number(each.get(key)) for key in ("p50_ms", "p99_ms", "reference", "ratio")]
        lines.append(f"| {' | '.join([*cells, measurement.aims.get(name, '')])} |")
    references: dict[str, list[str]] = {}
    for each in figures:
        if each.get("reference_is"):
            references.setdefault(str(each["reference_is"]), []).append(str(each["name"]))
    lines.append("")
    lines += [f"Reference of {', '.join(names)}: {what}." for what, names in references.items()]
    return "\n".join([*lines, ""])


def number(value: float | None) -> str:
    """Four digits, thousands apart; empty if there is none."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def machine() -> str:
    """The machine and the date of the measurement."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or platform.machine(),
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    ).stdout.strip()  # fmt: skip
    return (
        f"Measured on {day}, commit `{commit or 'unknown'}`: {os.cpu_count()} cores ({model}), "
        f"{gib:.0f} GiB, {platform.system()} {'.'.join(platform.release().split('.')[:2])}, "
        f"Python {platform.python_version()}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
