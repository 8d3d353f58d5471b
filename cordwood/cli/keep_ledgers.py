"""`cordwood nodes keep-ledgers`: a node that was rebuilt while it was away joins with its ledgers.

It works on the node's directory, whether the node runs or not, and takes effect at the next start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cordwood.errors import BadSetting


def keep_ledgers(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The node's old directory.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Let a node that was rebuilt while it was away start with the ledgers of its old directory.

    The blocks of its logs lie on other nodes by then, so the node refuses its old directory. But
    ledgers may have their only copies there. After this verb the next start drops the blocks of
    logs from the directory, keeps all entries of ledgers, and the node joins.

    It has no effect on a node that was not rebuilt, or on a directory that was replaced by another
    one since: give the word before the node starts with an empty directory.
    """
    from cordwood.durable import sync_directory
    from cordwood.storage.identity import ACCEPTED, KEEP_LEDGERS

    if not (directory / "identity").is_file():
        raise BadSetting(
            f"{directory} is no node's directory (there is no file `identity`): give the one that "
            "holds its `wal` and `logsdb`"
        )
    if not yes:
        what = f"If the node was rebuilt, the blocks of logs in {directory} are dropped."
        typer.confirm(f"{what} Go on?", abort=True)
    with open(directory / KEEP_LEDGERS, "wb") as file:
        file.write(ACCEPTED)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)  # a power cut must not take its name away
    typer.echo(f"{directory}: start the node. If it was rebuilt, it joins with its ledgers.")
