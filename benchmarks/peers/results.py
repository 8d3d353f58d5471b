"""The saved results of a run, and the figures that follow from them. Only the file is not pure.

All repeats of all cells are saved, so page and charts can be drawn again without a measurement.
A figure is Cordwood beside one peer: its reference is the peer's median, and the ratio is the
median over the repeats of Cordwood's value over the peer's in the same repeat.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import IN_FLIGHT, SIZES
from cordwood.errors import Malformed

CORDWOOD = "cordwood"

LEDGERS = "cordwood_ledgers"
"""Cordwood's ledgers, for the comparison with BookKeeper. A log promises more, and is stored in
another way."""

LEDGER_PEER = "bookkeeper_qa2"
"""BookKeeper with the quorums of `LEDGERS`."""

FORMAT = 1


@dataclass(slots=True)
class Cell:
    """The repeats of one measurement of one system.

    Attributes:
        name: `append_100B_16_in_flight`, `catch_up_1KiB` or `tail_lag_1KiB`.
        unit: records/s, or ms for a lag.
        values: one for each repeat, in their order.
        p50_ms, p99_ms: latencies of each repeat, empty where there are none.
    """

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def p50(self) -> float | None:
        """Median of the repeats' medians."""
        return statistics.median(self.p50_ms) if self.p50_ms else None

    @property
    def p99(self) -> float | None:
        """Median of the repeats' 99th percentiles."""
        return statistics.median(self.p99_ms) if self.p99_ms else None


@dataclass(slots=True)
class System:
    """One line of the page; the words are those of `Variant`.

    Attributes:
        skipped: the reason for missing cells; "" if there are all.
        probes: of the machine, before each of its turns.
    """

    name: str
    title: str
    version: str
    servers: int
    copies: int
    synced: bool
    durability: str
    client: str
    notes: str
    skipped: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    probes: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    """One run.

    Attributes:
        made: date and time of its begin, in UTC.
        command: the command line of the run.
        machine: see `machine.describe`, with the load after the run.
        repeats: the wanted number; a system that failed has fewer.
        seconds: of each append.
        bytes_max: of each append.
    """

    made: str
    command: str
    machine: dict[str, Any]
    repeats: int
    seconds: float
    bytes_max: int
    systems: list[System] = field(default_factory=list)

    def system(self, name: str) -> System | None:
        """The system of this name, None if there is none."""
        return next((each for each in self.systems if each.name == name), None)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def load_results(path: Path) -> Results:
    """Read what `save` wrote.

    Raises:
        Malformed: the file has another content.
    """
    try:
        told = json.loads(path.read_text())
        if told.pop("format") != FORMAT:
            raise Malformed(f"{path} has another format: measure anew")
        systems = [
            System(**{**each, "cells": {n: Cell(**cell) for n, cell in each["cells"].items()}})
            for each in told.pop("systems")
        ]
        return Results(**told, systems=systems)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"{path} holds no results of a run ({error}): measure anew") from None


@dataclass(frozen=True, slots=True)
class PeerFigure:
    """Cordwood beside one peer, as `--json` prints it.

    Attributes:
        name: of the measurement.
        value, unit: Cordwood's median.
        reference: the peer's median, in the same unit.
        reference_is: which peer, and what its ack means.
        ratio: see the module. Below 1 the peer has the higher value, which for a lag is worse for
            the peer.
        p50_ms, p99_ms, reference_p50_ms, reference_p99_ms: latencies of appends.
        repeats: the number that both have.
    """

    name: str
    value: float
    unit: str
    reference: float
    reference_is: str
    ratio: float
    p50_ms: float | None
    p99_ms: float | None
    reference_p50_ms: float | None
    reference_p99_ms: float | None
    repeats: int


def figures(results: Results) -> list[PeerFigure]:
    """A figure for each cell that a peer and Cordwood have, in the order of the run.

    Ledgers have figures of their own beside BookKeeper, `ledgers_append_…`.
    """
    ours, ledgers = results.system(CORDWOOD), results.system(LEDGERS)
    made = []
    for peer in results.systems:
        if ours is not None and peer not in (ours, ledgers):
            made += _beside(ours, peer, "")
    theirs = results.system(LEDGER_PEER)
    if ledgers is not None and theirs is not None:
        made += _beside(ledgers, theirs, "ledgers_")
    return made


def _beside(ours: System, peer: System, prefix: str) -> list[PeerFigure]:
    return [
        _figure(mine, theirs, peer, prefix)
        for name, theirs in peer.cells.items()
        if (mine := ours.cells.get(name)) is not None and theirs.values and mine.values
    ]


def _figure(mine: Cell, theirs: Cell, peer: System, prefix: str) -> PeerFigure:
    pairs = list(zip(mine.values, theirs.values, strict=False))
    return PeerFigure(
        f"{prefix}{mine.name}_beside_{peer.name}",
        _round(mine.value), mine.unit, _round(theirs.value),
        f"{peer.title} {peer.version}: {peer.durability}",
        _round(statistics.median(a / b for a, b in pairs)),
        mine.p50, mine.p99, theirs.p50, theirs.p99, len(pairs),
    )  # fmt: skip


def ratio_to_cordwood(results: Results, peer: str, cell: str, ours: str = CORDWOOD) -> float | None:
    """Cordwood's value over the peer's, None where either has none.

    Args:
        ours: CORDWOOD or LEDGERS.
    """
    mine, other = _cell_of(results, ours, cell), _cell_of(results, peer, cell)
    if mine is None or other is None:
        return None
    return statistics.median(a / b for a, b in zip(mine.values, other.values, strict=False))


def p99_ratio(results: Results, peer: str, cell: str, ours: str) -> float | None:
    """As `ratio_to_cordwood`, of the 99th percentiles of latencies."""
    mine, other = _cell_of(results, ours, cell), _cell_of(results, peer, cell)
    if mine is None or other is None or not mine.p99_ms or not other.p99_ms:
        return None
    return statistics.median(a / b for a, b in zip(mine.p99_ms, other.p99_ms, strict=False))


def _cell_of(results: Results, system: str, cell: str) -> Cell | None:
    found = results.system(system)
    measured = found.cells.get(cell) if found is not None else None
    return measured if measured is not None and measured.values else None


def size_words(size: int) -> str:
    """100 B, 1 KiB, 64 KiB."""
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def append_name(size: int, in_flight: int) -> str:
    """The name of a cell of appends."""
    return f"append_{size_words(size).replace(' ', '')}_{in_flight}_in_flight"


def catch_up_name(size: int) -> str:
    """The name of a cell of reads."""
    return f"catch_up_{size_words(size).replace(' ', '')}"


TAIL_NAME = "tail_lag"

NAMES = (
    *(append_name(size, in_flight) for size in SIZES for in_flight in IN_FLIGHT),
    *(catch_up_name(size) for size in SIZES),
    TAIL_NAME,
)
"""The names of all cells, in the order of the measurement."""


def _round(value: float) -> float:
    """Round to four digits: more digits would be noise."""
    return float(f"{value:.4g}")
