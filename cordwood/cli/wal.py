"""`cordwood wal dump | verify | bench`: shows, checks and measures a node's WAL.

These verbs never write, and work on the WAL of a running node or of a crashed node. Measuring
(`wal_bench`) makes a WAL of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.target import JsonOption
from cordwood.cli.wal_bench import bench
from cordwood.cli.wording import bytes_words

if TYPE_CHECKING:
    from cordwood.host.read_only_file import ReadOnlyFile
    from cordwood.storage.wal.wal_inspect import WalVerdict

app = typer.Typer(help="Look at a node's WAL, or measure one.", no_args_is_help=True)
app.command()(bench)

PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A WAL: a file, a device, or a node's directory."),
]


@app.command()
def dump(
    path: PathArgument,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            help="The logical offset to begin at; trimmed records may still be there.",
            show_default="where recovery would",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a WAL's header slots and every record: its place and its contents."""
    from cordwood.cli.wal_dump import dump_wal

    with _opened(path) as (file, name):
        asyncio.run(dump_wal(file, name, start, as_json))


@app.command()
def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read and check all live records of a WAL. The exit code is 1 if something is lost."""
    from cordwood.storage.wal.wal_inspect import WalView

    async def check(file: ReadOnlyFile, name: str) -> WalVerdict:
        return await (await WalView.open(file, name)).check()

    with _opened(path) as (file, name):
        verdict = asyncio.run(check(file, name))
        unreadable = len(file.unreadable)
    if as_json:
        typer.echo(json.dumps(_verdict_json(verdict, unreadable)))
    else:
        _show_verdict(name, verdict, unreadable)
    raise typer.Exit(0 if verdict.is_well else 1)


@contextmanager
def _opened(path: str) -> Iterator[tuple[ReadOnlyFile, str]]:
    """The WAL that `path` names, read-only, and its path."""
    from cordwood.host.read_only_file import ReadOnlyFile

    inside = os.path.join(path, "wal")
    name = inside if os.path.isdir(path) and os.path.exists(inside) else path
    file = ReadOnlyFile(name)
    try:
        yield file, name
    finally:
        file.close()


def _show_verdict(name: str, verdict: WalVerdict, unreadable: int) -> None:
    from cordwood.cli.wal_dump import unreadable_words

    header = verdict.header
    closed = "it was closed" if header.graceful else "it was not closed: in use, or cut off"
    typer.echo(
        f"{name}: node {header.owner}'s WAL of {bytes_words(header.capacity)}; {closed}\n"
        f"  {verdict.records:,} live records, {bytes_words(verdict.bytes)} in bodies, "
        f"in [{verdict.start}, {verdict.stop})"
    )
    for number, why in verdict.bad_slots:
        typer.echo(f"  header slot {number} cannot be read ({why}); the other one counts")
    for start, stop in verdict.holes:
        typer.echo(f"  hole [{start}, {stop}): nothing was acknowledged there")
    for start, stop in verdict.damage:
        typer.echo(f"  DAMAGED [{start}, {stop}): durable records there cannot be read")
    if verdict.missing_bytes:
        typer.echo(f"  MISSING: the file lacks the ring's last {verdict.missing_bytes} bytes")
    typer.echo(
        f"  {'well: every live record is intact' if verdict.is_well else 'NOT well'}"
        f"{unreadable_words(unreadable)}"
    )


def _verdict_json(verdict: WalVerdict, unreadable: int) -> dict[str, Any]:
    from cordwood.cli.wal_dump import header_json

    fields = dataclasses.asdict(verdict) | {"header": header_json(verdict.header)}
    return {"is_well": verdict.is_well, **fields, "unreadable_blocks": unreadable}
