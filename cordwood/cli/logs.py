"""`cordwood logs create | list | show`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.overview import LogView, view_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, utc_words

if TYPE_CHECKING:
    from cordwood.client.cluster import LogInfo

app = typer.Typer(help="Create, list and show logs.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="The log's path: orders/eu is /orders/eu.")
]


@app.command()
def create(
    name: NameArgument,
    copies: Annotated[
        int,
        typer.Option("--copies", min=0, help="Copies of each record; 0 is the cluster's default."),
    ] = 0,
    racks: Annotated[
        int,
        typer.Option("--racks", min=0, help="Racks they span; 0 is the cluster's default."),
    ] = 0,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make a log."""
    with open_store(cluster) as store:
        log = store.create_log(name, copies=copies, racks=racks)
        made = view_logs([log], store.status())[0]
    if as_json:
        typer.echo(_log_json(log, made))
    else:
        typer.echo(f"{made.name} is made, with {log.replication}")


@app.command(name="list")
def list_logs(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Only logs below this path.")] = "/",
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """List logs by name."""
    with open_store(cluster) as store:
        logs = view_logs(store.logs(path), store.status())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(log) for log in logs]))
    elif logs:
        show_logs(logs)
    else:
        typer.echo("There are no logs yet: the first `cordwood append LOG VALUE` makes one.")


@app.command()
def show(name: NameArgument, as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show one log: where it ends, who sequences it, and which nodes may hold it."""
    with open_store(cluster) as store:
        log = store.log(name)
        view = view_logs([log], store.status())[0]
    if as_json:
        typer.echo(_log_json(log, view))
        return
    typer.echo(f"{view.name} is log {view.id}, made {utc_words(view.created_us)}")
    typer.echo(f"  {log.replication}")
    typer.echo(f"  readable up to {view.released or 'nothing yet'}; {_sequencer(view)}")
    typer.echo(f"  {bytes_words(view.stored_bytes)} on its nodes, every copy counted")
    for each in log.history:
        nodes = ", ".join(str(node) for node in each.nodes)
        typer.echo(f"  from epoch {each.since} on: nodes {nodes}")


def show_logs(logs: Sequence[LogView]) -> None:
    """A table of logs."""
    show_table(
        ["log", "copies", "racks", "epoch>", "readable up to", "sequencer", "stored>"],
        [
            (
                log.name,
                log.copies,
                log.racks,
                log.epoch or "-",
                log.released or "-",
                "-" if log.sequencer is None else f"node {log.sequencer}",
                bytes_words(log.stored_bytes),
            )
            for log in logs
        ],
    )


def _log_json(log: LogInfo, view: LogView) -> str:
    """A log, its state, and which nodes may hold its records from which epoch on."""
    history = [
        {"since_epoch": each.since, "nodes": each.nodes, "copies": each.copies, "racks": each.racks}
        for each in log.history
    ]
    return json.dumps({**dataclasses.asdict(view), "history": history})


def _sequencer(log: LogView) -> str:
    if log.sequencer is None:
        return "no sequencer until it is used"
    return f"node {log.sequencer} sequences it in epoch {log.epoch}"
