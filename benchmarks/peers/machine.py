"""The machine, its other load, and its speed just before each peer.

The probe does the same small work before every peer. If its figure changes, the machine's speed
changed, and the rates measured beside it are less certain by as much.
"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

BUSY_LOAD = 0.5
"""The load before the run: processes that wanted a core. A quiet machine has almost none."""

PROBE_S = 0.5
PROBE_BYTES = 4096
SPIN = 200_000


@dataclass(frozen=True, slots=True)
class Probe:
    """One reading.

    Attributes:
        syncs_per_s: writes of 4 KiB, each followed by fdatasync.
        spin_ms: the time of a fixed loop of Python.
        stolen: the share of that time in which this process did not run.
    """

    syncs_per_s: float
    spin_ms: float
    stolen: float


def probe(directory: str) -> Probe:
    """Read the machine, in about a second."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        page, descriptor = os.urandom(PROBE_BYTES), file.fileno()
        began, writes = perf_counter(), 0
        while perf_counter() - began < PROBE_S:
            os.pwrite(descriptor, page, writes % 256 * PROBE_BYTES)
            os.fdatasync(descriptor)
            writes += 1
        rate = writes / (perf_counter() - began)
    wall, processor, total = perf_counter(), process_time(), 0
    for number in range(SPIN):
        total += number
    spent = perf_counter() - wall
    stolen = max(0.0, 1 - (process_time() - processor) / spent)
    return Probe(round(rate), round(spent * 1000, 2), round(stolen, 3))


def describe(directory: str) -> dict[str, str | float]:
    """Cores, memory, kernel, file system and load, for the head of the page."""
    load = os.getloadavg()[0]
    return {
        "cores": os.cpu_count() or 0,
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor() or "?",
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "load_before": round(load, 2),
    }


def file_system(directory: str) -> str:
    """The type of a directory's file system, by the longest mount point above it."""
    path = os.path.realpath(directory)
    best, kind = "", "?"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, type_, *_ = line.split(" ")
        above = path == mount or path.startswith(mount.rstrip("/") + "/")
        if above and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def _first(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
