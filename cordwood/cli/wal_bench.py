"""`cordwood wal bench`: measures the WAL on a path, and fio on the same path in the same minute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.measuring import number_words, run_measurement, say
from cordwood.cli.tables import show_table
from cordwood.cli.target import JsonOption

if TYPE_CHECKING:
    from cordwood.bench.figure import Figure
    from cordwood.bench.wal_figures import WalCase

MIB = 1 << 20


def bench(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A directory, a file to make, or a device: where to write."
        ),
    ] = ".",
    record_size: Annotated[
        int | None,
        typer.Option("--record-size", min=1, help="Bytes of a record.", show_default="65496"),
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option("--in-flight", min=1, help="Records not yet durable.", show_default="64"),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Records of one append_many.", show_default="1"),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", min=1, help="Writes at the device at the same time.", show_default="4"
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size", min=4096, help="Bytes that one write gathers.", show_default="256 KiB"
        ),
    ] = None,
    throughput: Annotated[
        float | None,
        typer.Option(
            "--throughput",
            min=0.001,
            help="MiB/s of records, at an even pace.",
            show_default="as fast as it goes",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="The WAL's write limit: gp3, or IOPS,MIB_PER_S.")
    ] = "",
    duration: Annotated[
        float, typer.Option("--duration", min=0.01, help="Seconds of each run.")
    ] = 1.0,
    capacity: Annotated[
        int, typer.Option("--capacity", min=1, help="Size of the WAL, in MiB.")
    ] = 1152,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repeats; the median counts.")] = 5,
    destroy: Annotated[
        bool, typer.Option("--destroy", help="Write although PATH holds data, which is lost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write to a fresh WAL as fast as possible, in turns with fio (if installed).

    Without options it makes the standard measurements; the last is the time of a start that finds a
    WAL full of records. With options of a run, it makes only that run. A PATH that is not empty is
    refused without --destroy. Created files are removed afterwards.
    """
    from cordwood.bench.wal_figures import STANDARD, custom_case, sized

    options = (record_size, in_flight, depth, block_size, throughput)
    is_custom = bool(budget or batch) or any(option is not None for option in options)
    custom = custom_case(*options, batch=batch or 1, budget=budget) if is_custom else None
    cases = [custom] if custom else list(STANDARD)
    cases = sized(cases, seconds=duration, capacity_bytes=capacity * MIB)
    groups = run_measurement(
        _measure(path, cases, capacity * MIB, repeat, destroy, with_starts=not is_custom)
    )
    if as_json:
        flat = [dataclasses.asdict(figure) for group in groups for figure in group]
        typer.echo(json.dumps(flat))
    else:
        for group in groups:
            _show(group)


async def _measure(
    path: str,
    cases: Sequence[WalCase],
    capacity_bytes: int,
    repeats: int,
    destroy: bool,
    *,
    with_starts: bool,
) -> list[list[Figure]]:
    from cordwood.bench.wal import bench_wal_file
    from cordwood.bench.wal_figures import bench_wal
    from cordwood.bench.wal_start import RECORD_BYTES, bench_start

    groups = []
    async with bench_wal_file(path, capacity_bytes, destroy=destroy) as name:
        for case in cases:
            groups.append(await bench_wal(name, case, repeats=repeats, say=say))
        if with_starts:
            groups.append([
                await bench_start(name, capacity_bytes, size, repeats=repeats, say=say)
                for size in RECORD_BYTES
            ])  # fmt: skip
    return groups


def _show(figures: Sequence[Figure]) -> None:
    """One case: its measurements beside their reference."""
    show_table(
        ["figure", "WAL>", "unit", "reference>", "ratio>"],
        [
            (
                figure.name, number_words(figure.value), figure.unit,
                number_words(figure.reference), number_words(figure.ratio),
            )
            for figure in figures
        ],
    )  # fmt: skip
    for text in dict.fromkeys(figure.reference_is for figure in figures):
        typer.echo(f"reference: {text}")
