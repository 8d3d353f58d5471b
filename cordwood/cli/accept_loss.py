"""`cordwood nodes accept-loss`: a node that lost records goes on without them.

It works on the node's directory, whether the node runs or not, and takes effect at the next start.
A start finds the loss, so the operator should have seen the node report it first.

An older copy of a node's directory starts only after this command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cordwood.errors import BadSetting

EMBEDDED = "node-1"
"""The directory in which an embedded store keeps its one node."""


def accept_loss(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The node's directory, or an embedded store's.")
    ],
    older: Annotated[
        bool,
        typer.Option(
            "--older",
            help="Only let an older copy of the directory start; its silence proves nothing.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Accept the records that a node lost as gone, from its next start on.

    A node that finds its own records unreadable reports so. From then on its silence proves
    nothing: recovery and readers wait for other nodes with copies. If no other node has copies (an
    embedded store, or too many nodes damaged at once), they would wait forever. After this verb
    they do not wait, and readers get DATA_LOSS gaps for records without a copy.

    First have all other nodes up and every log recovered (`cordwood epochs LOG`). Then records of
    unfinished epochs that this node lost and other nodes have are safe. Afterwards a record that
    this node does not have counts as absent again. So a recovery that does not reach the other
    nodes may end an unfinished epoch without those records.

    An older copy of a node's directory (a snapshot put back) does not start by itself. With --older
    the node starts as a node that lost records: it serves the records that it has, takes new ones,
    and readers ask other nodes for the rest. Without --older its missing records are accepted as
    lost at once.
    """
    from cordwood.durable import sync_directory
    from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED, GO_ON_OLDER

    node = next(
        (each for each in (directory, directory / EMBEDDED) if (each / "identity").is_file()), None
    )
    if node is None:
        raise BadSetting(
            f"{directory} is no node's directory (there is no file `identity`): give the one that "
            "holds its `wal` and `logsdb`"
        )
    if not yes:
        what = (
            f"{node} starts although a newer copy of it ran elsewhere, which then is the older one."
            if older
            else f"Records that only {node} had are lost for good."
        )
        typer.confirm(f"{what} Go on?", abort=True)
    path = node / ACCEPT_LOSS
    with open(path, "wb") as file:
        file.write(GO_ON_OLDER if older else ACCEPTED)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(node)  # a power cut must not take its name away
    if older:
        typer.echo(f"{node}: it may start, and its silence proves nothing.")
    else:
        typer.echo(f"{node}: the records that it lost count as gone from its next start on.")
