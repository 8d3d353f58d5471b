"""`cordwood nodes restart --rolling`: restart nodes one after the other, each when it is safe."""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.ending import terminated
from cordwood.cli.target import ClusterOption, find_target
from cordwood.errors import BadSetting, OutcomeUnknown, Rejected

if TYPE_CHECKING:
    from cordwood.nodes import NodeId

LOCKS = "/proc/locks"


def restart(
    nodes: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[NODE]...",
            help="Numbers of the nodes; the default is all nodes, but those that were taken out.",
        ),
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="One after the other, each when it is safe.")
    ] = False,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            help="Command that restarts a node: 'ssh node-{node} systemctl restart cordwood'.",
            show_default="of a cluster on this machine: SIGTERM, and `cordwood up` starts it again",
        ),
    ] = "",
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            help="Seconds to wait for each node: until its restart is safe, and until it is back.",
        ),
    ] = 300,
    cluster: ClusterOption = None,
) -> None:
    """Restart nodes one after the other; each restart waits until it is safe."""
    from cordwood import aio
    from cordwood.client.admin.rolling_restart import nodes_in_service, rolling_restart

    if not rolling:
        raise BadSetting("only `--rolling` is there: all nodes at once would stop the cluster")
    target = find_target(cluster)
    if not command and not target.directory:
        raise BadSetting(f"say what restarts a node of {target.url} (--command)")

    async def again(node: NodeId) -> None:
        if command:
            await run_command(command.replace("{node}", str(node)))
        else:
            os.kill(pid_of(os.path.join(target.directory, f"node-{node}", "lock")), signal.SIGTERM)

    async def main() -> None:
        async with aio.connect(target.url) as store:
            await rolling_restart(
                store, nodes or await nodes_in_service(store, typer.echo), again,
                user=getpass.getuser(), timeout_s=timeout_s, say=typer.echo,
            )  # fmt: skip

    with terminated():  # the command takes its request back, if it can
        asyncio.run(main())


async def run_command(command: str) -> None:
    """Run it.

    Raises:
        OutcomeUnknown: it failed, so the node may be away.
    """
    process = await asyncio.create_subprocess_exec(*shlex.split(command))
    if code := await process.wait():
        raise OutcomeUnknown(
            f"{command!r} ended with {code}: no node behind it was restarted. Its own request for "
            "maintenance stays, as the node may be away (`cordwood maintenance show`)"
        )


def pid_of(path: str) -> int:
    """The process that holds the lock of a node's directory.

    Raises:
        Rejected: none does.
    """
    try:
        there = os.stat(path)
        with open(LOCKS, encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError as error:
        raise Rejected(
            f"the node that runs on {os.path.dirname(path)} is not known: {error}"
        ) from None
    place = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    # `1: FLOCK ADVISORY WRITE 4711 08:01:131 0 EOF`; a waiter has `->` after its number.
    for line in lines:
        if line[1] == "FLOCK" and line[5] == place:
            return int(line[4])
    raise Rejected(f"no process runs on {os.path.dirname(path)}: is that node's machine another?")
