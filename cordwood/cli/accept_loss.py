"""`cordwood nodes accept-loss`: a node that lost records goes on without them.

Works on the node's directory, whether it runs or not, and counts at its next start: what it
lost was found at a start, and whoever accepts it should have seen the node say so.

It is also the word without which an older copy of a node's directory does not start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cordwood.errors import BadSetting

EMBEDDED = "node-1"
"""Where an embedded store keeps its one node."""


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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take what a node lost as gone, from its next start on.

    A node that finds records of its own unreadable says so, and its silence proves nothing
    from then on: recovery and readers wait for others who have them. Where nobody else has (an
    embedded store, or too many nodes damaged at once) they would wait for ever. After this
    they do not, and readers get DATA_LOSS gaps for what nobody has.

    First have all other nodes up and every log recovered (`cordwood epochs LOG`): what of an
    unfinished epoch they have and this node lost is then safe. Once its silence counts again, a
    recovery that does not hear them may end such an epoch without it.

    An older copy of a node's directory (a snapshot put back) does not start by itself. With
    --older it does, as a node that lost records: it serves what it has and takes new records,
    and others are asked for the rest. Without --older what it lacks is accepted as lost at once.
    """
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
    if older:
        typer.echo(f"{node}: it may start, and its silence proves nothing.")
    else:
        typer.echo(f"{node}: what it lost counts as gone from its next start on.")
