"""`cordwood nodes accept-loss`: a node that lost records goes on without them.

Works on the node's directory, whether it runs or not, and counts at its next start: what it
lost was found at a start, and whoever accepts it should have seen the node say so.
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take what a node lost as gone, from its next start on.

    A node that finds records of its own unreadable says so, and its silence proves nothing
    from then on: recovery and readers wait for others who have them. Where nobody else has (an
    embedded store, or too many nodes damaged at once) they would wait for ever. After this
    they do not, and readers get DATA_LOSS gaps for what nobody has.
    """
    from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED

    node = next(
        (each for each in (directory, directory / EMBEDDED) if (each / "identity").is_file()), None
    )
    if node is None:
        raise BadSetting(
            f"{directory} is no node's directory (there is no file `identity`): give the one that "
            "holds its `wal` and `logsdb`"
        )
    if not yes:
        typer.confirm(f"Records that only {node} had are lost for good. Go on?", abort=True)
    path = node / ACCEPT_LOSS
    with open(path, "wb") as file:
        file.write(ACCEPTED)
        file.flush()
        os.fsync(file.fileno())
    typer.echo(f"{node}: what it lost counts as gone from its next start on.")
