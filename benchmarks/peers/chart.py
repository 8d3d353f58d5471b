"""Draws the chart of a run's results as SVG and PNG, with matplotlib alone.

It runs in an environment of its own (`.peers/venv`), so it imports only pure modules of the
package. Solid lines and filled bars belong to systems that sync before the ack, dashed lines and
hatched bars to systems that do not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.ticker import EngFormatter

from benchmarks.peers.results import (
    CORDWOOD,
    TAIL_NAME,
    Results,
    System,
    append_name,
    catch_up_name,
    load_results,
    size_words,
)
from benchmarks.peers.workload import IN_FLIGHT, SIZES, TAIL_RATE, TAIL_SIZE

COLOURS = {
    CORDWOOD: "#b5531c", "nats_r1": "#7fb3d5", "nats_r3": "#1f618d", "redis": "#922b21",
    "rabbitmq_quorum": "#d4ac0d", "rabbitmq_stream": "#f39c12", "kafka": "#7d8a8c",
    "kafka_flush": "#1c2833", "bookkeeper_qa2": "#52be80", "bookkeeper_qa3": "#196f3d",
}  # fmt: skip

OTHER = "#8e44ad"
SIZE_INCHES = (14.0, 9.5)
PNG_DPI = 110


def draw(results: Results, out: Path) -> list[Path]:
    """Write `benchmarks.svg` and `benchmarks.png` into a directory; their paths."""
    matplotlib.use("agg")
    # The same results give the same bytes, so a chart that is drawn again shows no change.
    matplotlib.rcParams.update(
        {"svg.hashsalt": "cordwood", "svg.fonttype": "none", "font.size": 9, "hatch.linewidth": 0.6}
    )
    from matplotlib import pyplot

    measured = [system for system in results.systems if system.cells]
    figure, axes = pyplot.subplots(2, 3, figsize=SIZE_INCHES, layout="constrained")
    for axis, size in zip(axes[0], SIZES, strict=True):
        _appends(axis, measured, size)
    _catch_up(axes[1][0], measured, SIZES[1])
    _catch_up(axes[1][1], measured, SIZES[2])
    _lag(axes[1][2], measured)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    machine = results.machine
    figure.suptitle(
        f"Cordwood beside its peers: {machine['cores']} cores, medians of {results.repeats}, "
        f"{results.made}, load before it {machine['load_before']}. Solid: synced before the ack."
    )
    paths = [out / "benchmarks.svg", out / "benchmarks.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=PNG_DPI, metadata={"Software": None})
    pyplot.close(figure)
    return paths


def _appends(axis: Any, measured: list[System], size: int) -> None:
    for system in measured:
        points = [
            (in_flight, system.cells[name].value)
            for in_flight in IN_FLIGHT
            if (name := append_name(size, in_flight)) in system.cells
        ]
        if points:
            axis.plot(
                *zip(*points, strict=True),
                "o-" if system.synced else "o--",
                color=COLOURS.get(system.name, OTHER), label=system.title, markersize=4,
                linewidth=2.6 if system.name == CORDWOOD else 1.3,
                zorder=3 if system.name == CORDWOOD else 2,
            )  # fmt: skip
    axis.set(
        title=f"Appends of {size_words(size)}", xlabel="records in flight", ylabel="records/s",
        xscale="log", yscale="log",
    )  # fmt: skip
    axis.set_xticks(IN_FLIGHT, [str(each) for each in IN_FLIGHT])
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def _catch_up(axis: Any, measured: list[System], size: int) -> None:
    name = catch_up_name(size)
    _bars(axis, [(each, each.cells[name].value) for each in measured if name in each.cells])
    axis.set(title=f"Catching up, {size_words(size)}", xlabel="records/s")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.locator_params(axis="x", nbins=5)


def _lag(axis: Any, measured: list[System]) -> None:
    shown = [
        (each, p99)
        for each in measured
        if TAIL_NAME in each.cells and (p99 := each.cells[TAIL_NAME].p99) is not None
    ]
    _bars(axis, shown)
    for at, (system, _) in enumerate(shown):
        axis.plot([system.cells[TAIL_NAME].value], [at], "k|", markersize=9)
    axis.set(
        title=f"Lag at the tail, {size_words(TAIL_SIZE)}, {TAIL_RATE:,}/s",
        xlabel="ms at p99 (mark: p50)", xscale="log",
    )  # fmt: skip


def _bars(axis: Any, shown: list[tuple[System, float]]) -> None:
    for at, (system, value) in enumerate(shown):
        axis.barh(
            at, value, color=COLOURS.get(system.name, OTHER), height=0.7,
            hatch="" if system.synced else "///", edgecolor="white",
        )  # fmt: skip
    axis.set_yticks(range(len(shown)), [system.title for system, _ in shown])
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")


def main(arguments: list[str]) -> int:
    """`python -m benchmarks.peers.chart RESULTS DIRECTORY`."""
    for path in draw(load_results(Path(arguments[0])), Path(arguments[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
