"""`cordwood logs create | list | show | set | rename | delete`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.overview import LogView, view_logs
from cordwood.cli.readable_logs import readable_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.times import time_of
from cordwood.cli.wording import attribute_words, bytes_words, utc_words
from cordwood.nodes import Replication

if TYPE_CHECKING:
    from cordwood.client.cluster import LogInfo
    from cordwood.layout.message_logs import DirectoryReply
    from cordwood.log_attributes import LogAttributes

BAR_CELLS = 24
"""The length of the bar of the node that holds most of a log. With it, a line stays within 80
columns."""

app = typer.Typer(help="Create, list, show, change and trim logs.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="The log's path: orders/eu is /orders/eu.")
]


PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A log, or with a slash at its end a directory: orders/, or /."
    ),
]

SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE]...",
        help="backlog_s=7d, replicate_across=node:3,rack:2, nodeset_size=8, scd_enabled=off …",
        show_default=False,
    ),
]


def _attributes(settings: Sequence[str] | None) -> LogAttributes:
    """Attributes from `NAME=VALUE`. The value of a token names the place of the token.

    Raises:
        BadSetting: an option is wrong, or a token itself stands on the command line.
    """
    from cordwood.errors import BadSetting
    from cordwood.log_attributes import TOKENS, parse_attributes
    from cordwood.spark.secrets import tokens_at

    read: list[str] = []
    for setting in settings or ():
        name, equals, place = setting.partition("=")
        if name.strip() in TOKENS and place:
            token = tokens_at(name.strip(), place.strip())
            if "," in token:
                raise BadSetting(f"{name.strip()}: a log asks for one token, and there are several")
            setting = f"{name}{equals}{token}"
        read.append(setting)
    return parse_attributes(read)


@app.command()
def create(
    name: NameArgument,
    settings: SettingsArgument = None,
    copies: Annotated[
        int,
        typer.Option("--copies", min=0, help="Copies of each record; 0 is the cluster's default."),
    ] = 0,
    racks: Annotated[
        int,
        typer.Option(
            "--racks", min=0, help="Racks that the copies span; 0 is the cluster's default."
        ),
    ] = 0,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make a log. It inherits unset attributes from its directory."""
    attributes = _attributes(settings)
    with open_store(cluster) as store:
        log = store.create_log(name, copies=copies, racks=racks, attributes=attributes)
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
        logs = view_logs(readable_logs(store, path), store.status())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(log) for log in logs]))
    elif logs:
        show_logs(logs)
    else:
        typer.echo("There are no logs yet: the first `cordwood append LOG VALUE` makes one.")


@app.command()
def show(name: PathArgument, as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show a log: its end, its sequencer and its attributes; or show a directory."""
    with open_store(cluster) as store:
        if name.endswith("/"):
            _show_directory(store.log_tree.directory(name), as_json)
            return
        log = store.log(name)
        view = view_logs([log], store.status())[0]
    if as_json:
        typer.echo(_log_json(log, view))
        return
    typer.echo(f"{view.name} is log {view.id}, made {utc_words(view.created_us)}")
    typer.echo(f"  {log.replication}")
    typer.echo(f"  readable up to {view.released or 'nothing yet'}; {_sequencer(view)}")
    typer.echo(f"  {bytes_words(view.stored_bytes)} on its nodes, every copy counted")
    _show_spread(view)
    for each in log.history:
        nodes = ", ".join(str(node) for node in each.nodes)
        typer.echo(f"  from epoch {each.since} on: nodes {nodes}")
    show_attributes(log.own, log.attributes)


@app.command(name="set")
def set_attributes(
    path: PathArgument,
    settings: SettingsArgument = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="NAME", help="An attribute to inherit again; may be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Set attributes of a log or a directory. Nodes know within a second.

    A change of replication or nodeset begins a new epoch; stored records stay as they are. A token
    is taken from a variable or a file: write_token=env:NAME, read_token=file:PATH.
    """
    from cordwood.errors import BadSetting

    if not settings and not unset:
        raise BadSetting("nothing to set: write NAME=VALUE, or --unset NAME")
    attributes = _attributes(settings)
    with open_store(cluster) as store:
        store.log_tree.set_attributes(path, attributes, tuple(unset or ()))
        if path.endswith("/"):
            _show_directory(store.log_tree.directory(path), as_json)
            return
        log = store.log(path)
        if as_json:
            typer.echo(_log_json(log, view_logs([log], store.status())[0]))
            return
        typer.echo(log.name)
        show_attributes(log.own, log.attributes)


@app.command()
def rename(
    name: NameArgument,
    new_name: NameArgument,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Rename a log; it inherits from its new directory."""
    with open_store(cluster) as store:
        log = store.log_tree.rename(name, new_name)
    if as_json:
        typer.echo(json.dumps({"id": log.log_id, "name": log.name}))
    else:
        typer.echo(f"{name} is {log.name} now")


@app.command()
def delete(
    name: NameArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask first. Deleted records cannot be recovered.")
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Delete a log and its records."""
    with open_store(cluster) as store:
        log = store.log(name)
        if not yes:
            typer.confirm(f"Delete {log.name} and all its records?", abort=True)
        # Race: the name may have moved to another log while the operator thought.
        store.log_tree.delete(name, log.log_id)
    if as_json:
        typer.echo(json.dumps({"id": log.log_id, "name": log.name, "deleted": True}))
    else:
        typer.echo(f"{log.name} is deleted")


@app.command()
def trim(
    name: NameArgument,
    lsn: Annotated[
        str,
        typer.Argument(
            metavar="LSN", help="The last LSN to delete, such as e7n123; or tail, for all records."
        ),
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask first. Deleted records cannot be recovered.")
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Delete a log's records up to an LSN; readers get a TRIM gap for them.

    The exit code is 2 if some nodes did not answer: they may still hold some of the records.
    """
    with open_store(cluster) as store:
        log = store.log(name)
        if not yes:
            typer.confirm(f"Delete the records of {log.name} up to {lsn}?", abort=True)
        # Race: the name may have moved to another log while the operator thought.
        done = store.trim(log.log_id, lsn)
    if as_json:
        document = {"lsn": str(done.lsn), "nodes": done.nodes, "missing": dict(done.missing)}
        typer.echo(json.dumps(document))
    else:
        nodes = ", ".join(map(str, done.nodes))
        typer.echo(f"{name} is trimmed up to {done.lsn} on nodes {nodes}")
        for node, why in done.missing.items():
            typer.echo(f"  not on node {node}: {why}")
    if done.is_partial:
        raise typer.Exit(2)


@app.command()
def find(
    name: NameArgument,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="2026-01-31T12:00Z, or 90min for 90 minutes ago."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="A key, in a log whose keys never decrease.")
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option("--approximate", help="Quick, but the LSN may be some minutes too early."),
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Find where a time, or a key, lies in a log: the LSN to read from."""
    from cordwood.errors import BadSetting

    time_us = time_of(time) if time is not None else None
    if (time_us is None) == (key is None):
        raise BadSetting("say what to find: --time 2026-01-31T12:00Z, or --key KEY")
    with open_store(cluster) as store:
        if time_us is not None:
            place = store.find_time(name, time_us, approximate=approximate)
            document: dict[str, Any] = {
                "lsn": str(place.lsn), "tail": str(place.tail), "is_partial": place.is_partial,
            }  # fmt: skip
        else:
            found = store.find_key(name, os.fsencode(key or ""))
            document = {
                "before": str(found.before) if found.before else None,
                "lsn": str(found.at) if found.at else None,
                "tail": str(found.tail),
                "is_partial": found.is_partial,
            }
    if as_json:
        typer.echo(json.dumps(document))
        return
    typer.echo(document["lsn"] or f"nothing up to {document['tail']}")
    if document.get("is_partial"):
        why = "records are lost beside it" if key is not None else "too few nodes answered"
        typer.echo(f"  {why}: it may lie elsewhere", err=True)


@app.command()
def extent(name: NameArgument, as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show where a log's records begin and end, since when, and about how many bytes they are."""
    with open_store(cluster) as store:
        # Race: by number, since the name may move to another log between the two.
        log_id = store.log(name).log_id
        found, size = store.extent(log_id), store.data_size(log_id)
    ends = {"first": found.first, "last": found.last}
    if as_json:
        document = {
            "trim": str(found.trim) if found.trim else None,
            "tail": str(found.tail),
            "bytes": size.bytes,
            "is_partial": found.is_partial or size.is_partial,
        } | {
            word: {"lsn": str(point.lsn), "append_time_us": point.append_time_us} if point else None
            for word, point in ends.items()
        }
        typer.echo(json.dumps(document))
        return
    if found.trim:
        typer.echo(f"trimmed up to {found.trim}")
    for word, point in ends.items():
        if point is not None:
            typer.echo(f"{word} record {point.lsn}, appended {utc_words(point.append_time_us)}")
    if found.is_empty:
        typer.echo("no records")
    typer.echo(f"tail {found.tail}; about {bytes_words(size.bytes)}, each record counted once")
    if found.is_partial or size.is_partial:
        typer.echo("  too few nodes answered: there may be more", err=True)


def _show_directory(found: DirectoryReply, as_json: bool) -> None:
    if as_json:
        document = {
            "path": found.path,
            "own": found.own.as_set(),
            "attributes": found.attributes.as_set(),
        }
        typer.echo(json.dumps(document))
        return
    typer.echo(f"{found.path} is a directory; logs below it inherit")
    show_attributes(found.own, found.attributes)


def show_attributes(own: LogAttributes, whole: LogAttributes) -> None:
    """A table of attributes, and which of them are inherited."""
    set_here = own.as_set()
    show_table(
        ["attribute", "value", "from"],
        [
            (name, attribute_words(name, value), "here" if name in set_here else "above")
            for name, value in whole.as_set().items()
        ],
    )


def show_logs(logs: Sequence[LogView]) -> None:
    """A table of logs."""
    show_table(
        ["log", "replication", "epoch>", "readable up to", "sequencer", "stored>"],
        [
            (
                log.name,
                str(Replication.across(log.replicate_across)),
                log.epoch or "-",
                log.released or "-",
                "-" if log.sequencer is None else f"node {log.sequencer}",
                bytes_words(log.stored_bytes),
            )
            for log in logs
        ],
    )


def _show_spread(view: LogView) -> None:
    """Print a bar for each node that holds a part of the log, as long as its share."""
    most = max(view.bytes_by_node.values(), default=0)
    if not most:
        return
    for node, stored in view.bytes_by_node.items():
        bar = "█" * max(1, round(BAR_CELLS * stored / most)) if stored else ""
        share = stored / view.stored_bytes
        typer.echo(f"    node {node:<4} {bar:<{BAR_CELLS}} {bytes_words(stored):>10} {share:>5.0%}")


def _log_json(log: LogInfo, view: LogView) -> str:
    """A log, its state, and which nodes may hold its records from which epoch on."""
    history = [
        {
            "since_epoch": each.since,
            "nodes": each.nodes,
            "copies": each.copies,
            "racks": each.racks,
            "replicate_across": each.replication.by_scope,
        }
        for each in log.history
    ]
    return json.dumps(
        {
            **dataclasses.asdict(view),
            "history": history,
            "own": log.own.as_set(),
            "attributes": log.attributes.as_set(),
        }
    )


def _sequencer(log: LogView) -> str:
    if log.sequencer is None:
        return "no sequencer until it is used"
    return f"node {log.sequencer} sequences it in epoch {log.epoch}"
