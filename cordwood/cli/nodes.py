"""`cordwood nodes list | show | status | storage | scrub | if-lost | accept-loss | restart | …`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from cordwood.cli.accept_loss import accept_loss
from cordwood.cli.if_lost import if_lost
from cordwood.cli.keep_ledgers import keep_ledgers
from cordwood.cli.node_status import node_status, node_storage
from cordwood.cli.overview import view_nodes
from cordwood.cli.readable_logs import readable_logs
from cordwood.cli.rebalance import rebalance
from cordwood.cli.rebuild import drain, undrain
from cordwood.cli.replace import replace
from cordwood.cli.restart import restart
from cordwood.cli.scrub import scrub
from cordwood.cli.status import show_nodes
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words
from cordwood.errors import BadSetting, CordwoodError
from cordwood.lsn import format_lsn

app = typer.Typer(help="Show nodes, and change their state.", no_args_is_help=True)
app.command()(scrub)
app.command(name="if-lost")(if_lost)
app.command(name="accept-loss")(accept_loss)
app.command(name="keep-ledgers")(keep_ledgers)
app.command(name="status")(node_status)
app.command(name="storage")(node_storage)
app.command()(drain)
app.command()(undrain)
app.command()(rebalance)
app.command()(restart)
app.command()(replace)


@app.command(name="list")
def list_nodes(as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """List every node, whether it is up, and how full it is."""
    with open_store(cluster) as store:
        nodes = view_nodes(store.status(), store.members)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(node) for node in nodes]))
    else:
        show_nodes(nodes)


@app.command()
def show(
    node: Annotated[int, typer.Argument(metavar="NODE", help="The node's number.")],
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show one node and the logs that it holds."""
    with open_store(cluster) as store:
        answers = store.status()
        found = [each for each in view_nodes(answers, store.members) if each.node == node]
        names: dict[int, str] = {log.log_id: log.name for log in readable_logs(store)}
    if not found:
        known = ", ".join(str(number) for number in sorted(answers))
        raise BadSetting(f"there is no node {node}; there are {known}")
    answer = next(answers[number] for number in answers if number == node)
    logs = [] if isinstance(answer, CordwoodError) else answer.logs
    rows = [
        {
            "log": names.get(each.log),
            "id": each.log,
            "sequencing": each.sequencing,
            "epoch": each.epoch,
            "released": format_lsn(each.released) if each.released else None,
            "sealed": each.sealed,
            "bytes": each.bytes,
        }
        for each in logs
    ]
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found[0]), "logs": rows}))
        return
    show_nodes(found)
    show_table(
        ["log", "epoch>", "released", "sealed by>", "sequences", "holds>"],
        [
            (
                row["log"] or f"number {row['id']}",
                row["epoch"],
                row["released"] or "-",
                row["sealed"] or "-",
                "yes" if row["sequencing"] else "",
                bytes_words(each.bytes),
            )
            for row, each in zip(rows, logs, strict=True)
        ],
    )
