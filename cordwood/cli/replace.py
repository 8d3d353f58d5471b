"""`cordwood nodes replace`: a node gets a new directory, such as one on a new disk.

On a cluster of this machine the new directory takes the place of the old by a link, and `cordwood
up` starts the node on it. Elsewhere a command of the operator does both.

Source: docs/protocol/maintenance.md (replacing a node).
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.restart import pid_of, run_command
from cordwood.cli.target import ClusterOption, find_target
from cordwood.durable import PARTIAL, write_whole
from cordwood.errors import BadSetting, Rejected

MARKER = "replaces"
"""In the new directory: the number of the node that it is for; `placing` once the command begins,
`placed` once it has run, and `done` once the node runs there."""

PLACING = "placing"
PLACED = "placed"
DONE = "done"

IDENTITY = "identity"
"""In a directory that a node ran on."""

OLD = ".replaced"
"""The end of the name of the old directory, which is never removed."""

END_S = 10.0


def replace(
    node: Annotated[int, typer.Argument(metavar="OLD", help="The node's number.")],
    directory: Annotated[
        Path, typer.Argument(metavar="NEW-DIR", help="The new directory: empty, or not made yet.")
    ],
    command: Annotated[
        str,
        typer.Option(
            "--command",
            help="The command that starts a node on the new directory, such as "
            "'ssh node-{node} replace-disk {directory}'.",
            show_default="of a cluster on this machine: a link, and `cordwood up` starts the node",
        ),
    ] = "",
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            help="Seconds for the whole replacement. After them, the same command goes on.",
        ),
    ] = 86_400,
    cluster: ClusterOption = None,
) -> None:
    """Move a node to a new directory: others take its data, and it joins again, empty.

    The node keeps its number, so old logs may have copies on it. A command that was stopped may be
    given again, and goes on.
    """
    from cordwood import aio
    from cordwood.client.admin.replace_node import replace_node

    target = find_target(cluster)
    if not command and not target.directory:
        raise BadSetting(
            f"say what has the node run on a new directory of {target.url} (--command)"
        )
    new = os.path.abspath(directory)
    old = os.path.join(target.directory or "", f"node-{node}")

    def is_linked() -> bool:
        return os.path.realpath(old) == os.path.realpath(new)

    claim(new, node, is_linked=None if command else is_linked())

    def is_placed() -> bool:
        return says(new, PLACED) if command else is_linked()

    def is_begun() -> bool:
        return bool(command) and says(new, PLACING)

    async def place() -> None:
        if command:
            write_marker(new, node, PLACING)
            await run_command(command.replace("{node}", str(node)).replace("{directory}", new))
            write_marker(new, node, PLACED)
        else:
            await swap_directory(old, new)

    async def main() -> None:
        async with aio.connect(target.url) as store:
            await replace_node(
                store, node, place, is_placed, timeout_s=timeout_s, say=typer.echo,
                is_begun=is_begun,
            )  # fmt: skip
        write_marker(new, node, DONE)

    asyncio.run(main())


def claim(new: str, node: int, *, is_linked: bool | None = None) -> None:
    """Mark a directory as the new directory of a node.

    Args:
        is_linked: whether the name of the node's directory leads to it; None if a command places
            it, because that cannot be checked here.
    Raises:
        BadSetting: it is in use: for something else, for another node, or for an earlier
            replacement of this node.
    """
    path = os.path.join(new, MARKER)
    os.makedirs(new, mode=0o700, exist_ok=True)
    # A run that was killed may have left a part of the marker.
    found = [name for name in os.listdir(new) if name != f".{MARKER}{PARTIAL}"]
    if MARKER in found:
        with open(path, encoding="ascii") as file:
            who, *state = file.read().split() or [""]
        if who != str(node):
            raise BadSetting(f"{new} is for another node: take a new directory")
        # Trap: a later replacement may have led the node away from here. Then nothing would be
        # done, or the node would come to data of long ago, which it does not start with.
        was_here = DONE in state if is_linked is None else IDENTITY in found
        if was_here and not is_linked:
            raise BadSetting(
                f"node {node} was brought to {new} before. If it does not run there any more, "
                "empty it or take another directory"
            )
    elif found:
        raise BadSetting(f"{new} is used ({sorted(found)[0]} is there): take a new directory")
    else:
        write_marker(new, node)


def write_marker(new: str, node: int, state: str = "") -> None:
    """See MARKER. A kill leaves the marker as it was, or as it is to be."""
    write_whole(os.path.join(new, MARKER), f"{node} {state}\n".encode("ascii"))


def says(new: str, state: str) -> bool:
    """Whether the marker has this state, see MARKER."""
    with open(os.path.join(new, MARKER), encoding="ascii") as file:
        return file.read().split()[1:] == [state]


async def swap_directory(old: str, new: str) -> None:
    """End the node that runs on the old directory, and have its name lead to the new directory.

    Raises:
        Rejected: the node does not end.
    """
    await _end(old)
    put_in_place(old, new)


def put_in_place(old: str, new: str) -> None:
    """Rename the old directory, which stays beside the new, and link its old name to the new."""
    if os.path.lexists(old):
        aside = old + OLD
        while os.path.lexists(aside):
            aside += "-"
        os.rename(old, aside)
    os.symlink(new, old)


async def _end(old: str) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + END_S
    while True:
        try:
            pid = pid_of(os.path.join(old, "lock"))
        except Rejected:
            return
        if loop.time() > ends_s:
            raise Rejected(f"process {pid} does not end, and runs on {old}")
        os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(0.5)
