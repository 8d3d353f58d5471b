"""`cordwood status`: nodes, how full they are, and logs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cli.logs import show_logs
from cordwood.cli.overview import AS_EVER, NodeView, view_logs, view_nodes
from cordwood.cli.readable_logs import readable_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, duration_words

LOGS_SHOWN = 20
"""The most logs that are shown. More logs would push the nodes off the screen; `logs list` shows
all."""


def status(
    as_json: JsonOption = False,
    all_logs: Annotated[bool, typer.Option("--all", "-a", help="Show every log.")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Show the nodes of a cluster, how full they are, and its logs."""
    with open_store(cluster) as store:
        answers = store.status()
        nodes = view_nodes(answers, store.members)
        logs = view_logs(readable_logs(store), answers)
    if as_json:
        document = {
            "nodes": [dataclasses.asdict(node) for node in nodes],
            "logs": [dataclasses.asdict(log) for log in logs],
        }
        typer.echo(json.dumps(document))
        return
    show_nodes(nodes)
    if logs:
        show_logs(logs if all_logs else logs[:LOGS_SHOWN])
    if len(logs) > LOGS_SHOWN and not all_logs:
        typer.echo(f"… and {len(logs) - LOGS_SHOWN} logs more: `cordwood status --all`")


def show_nodes(nodes: Sequence[NodeView]) -> None:
    """A table of nodes, and a line for each node with a problem."""
    show_table(
        ["node>", "address", "location", "state", "up for>", "WAL used>", "of>", "cache>",
         "sequences>", "appended>"],
        [_node_row(node) for node in nodes],
    )  # fmt: skip
    for node in nodes:
        if node.problem:
            typer.secho(f"node {node.node}: {node.problem}", fg=typer.colors.RED)


def _node_row(node: NodeView) -> Sequence[object]:
    if not node.up:
        said = "" if node.authority == AS_EVER else f", {node.authority}"
        return (node.node, node.address, node.location or "?", f"down{said}", *["-"] * 6)
    fill = node.wal_used_bytes / node.wal_capacity_bytes if node.wal_capacity_bytes else 0.0
    return (
        node.node,
        node.address,
        node.location,
        "failed" if node.problem else "up",
        duration_words(node.uptime_s),
        f"{fill:.0%}",
        bytes_words(node.wal_capacity_bytes),
        bytes_words(node.cache_bytes),
        node.sequencing,
        node.appended_records,
    )
