"""`cordwood epochs LOG` and `cordwood sequencer LOG`: the sequencers of each epoch, and the present
sequencer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.overview import view_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.lsn import format_lsn
from cordwood.nodes import Replication

if TYPE_CHECKING:
    from cordwood.layout.message_logs import EpochsReply

EPOCHS_SHOWN = 20
"""The number of newest epochs that are shown. A log with a sequencer that moves often has
thousands; `--json` lists them all."""

LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="The log's path: orders/eu is /orders/eu.")
]


def epochs(log: LogArgument, as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show a log's epochs: their nodes and copies, and which of them are recovered."""
    with open_store(cluster) as store:
        found = store.log_tree.epochs(log)
    rows = epoch_rows(found)
    if as_json:
        document = {
            "log": found.log,
            "next_epoch": found.next_epoch,
            "clean_epoch": found.clean_epoch,
            "clean_tail": format_lsn(found.clean_tail) if found.clean_tail else None,
            "owner": found.owner or None,
            "token": found.token,
            "holder": found.holder,
            "nodesets": rows,
        }
        typer.echo(json.dumps(document))
        return
    if found.next_epoch == 1:
        typer.echo(f"{log} had no epoch yet: its first append begins one")
        return
    last = found.next_epoch - 1
    typer.echo(f"{log} is in epoch {last}, which node {found.owner or '?'} took")
    typer.echo(_clean_words(found))
    if found.token:
        holder = found.holder or "no node named"
        typer.echo(f"  appends carry fencing token {found.token}, which {holder} holds")
    show_table(
        ["epochs", "nodes", "replication"],
        [
            (
                f"{row['first_epoch']} to {row['last_epoch'] or 'now'}",
                ", ".join(map(str, row["nodes"])),
                str(Replication.across(row["replicate_across"])),
            )
            for row in rows[-EPOCHS_SHOWN:]
        ],
    )


def epoch_rows(found: EpochsReply) -> list[dict[str, Any]]:
    """The nodesets that the log had, oldest first; `last_epoch` is None for the newest."""
    ends = [each.since - 1 for each in found.history[1:]]
    return [
        {
            "first_epoch": each.since,
            "last_epoch": end,
            "nodes": each.nodes,
            "copies": each.copies,
            "racks": each.racks,
            "replicate_across": each.replication.by_scope,
        }
        for each, end in zip(found.history, [*ends, None], strict=True)
    ]


def _clean_words(found: EpochsReply) -> str:
    unclean = found.next_epoch - 2 - found.clean_epoch
    if found.clean_epoch == 0 and unclean <= 0:
        return "  nothing is before it"
    tail = f", whose records end at {format_lsn(found.clean_tail)}" if found.clean_tail else ""
    if unclean > 0:
        return f"  recovered up to epoch {found.clean_epoch}{tail}; {unclean} epochs are not yet"
    return f"  every epoch before it is recovered, up to {found.clean_epoch}{tail}"


def fence(
    log: LogArgument,
    token: Annotated[
        int, typer.Argument(metavar="TOKEN", min=1, help="A number higher than all earlier tokens.")
    ],
    holder: Annotated[
        str, typer.Option("--holder", help="Name of the new holder, for refused clients.")
    ] = "",
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Refuse appends to a log that carry a lower fencing token than this, or none."""
    with open_store(cluster) as store:
        epoch = store.fence(log, token, holder=holder)
    if as_json:
        typer.echo(json.dumps({"log": log, "token": token, "holder": holder, "epoch": epoch}))
    else:
        typer.echo(f"{log} takes appends under token {token} or higher, from epoch {epoch} on")


def sequencer(log: LogArgument, as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show the node that sequences a log now, and the node that should."""
    with open_store(cluster) as store:
        info = store.log(log)
        view = view_logs([info], store.status())[0]
        found = store.log_tree.epochs(log)
    if as_json:
        document = {
            "log": info.log_id,
            "name": info.name,
            "node": view.sequencer,
            "epoch": view.epoch if view.sequencer is not None else None,
            "released": view.released,
            "last_epoch": found.next_epoch - 1,
            "last_owner": found.owner or None,
        }
        typer.echo(json.dumps(document))
    elif view.sequencer is None:
        typer.echo(f"No node sequences {info.name} now: its next append or tail starts one")
        if found.owner:
            typer.echo(f"  node {found.owner} took its last epoch, {found.next_epoch - 1}")
    else:
        typer.echo(f"Node {view.sequencer} sequences {info.name} in epoch {view.epoch}")
        typer.echo(f"  readable up to {view.released or 'nothing yet'}")
