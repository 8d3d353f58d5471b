"""`cordwood up`: a local cluster in the foreground, until Ctrl-C.

It reports a node that dies and starts it again, as an init system does. Users run this verb to see
what happens after a `kill -9`, and while a node of a log is away its sequencer may not change
hands.

Source: docs/design.md §11.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.target import DIRECTORY, cluster_option, dir_option
from cordwood.errors import Malformed

if TYPE_CHECKING:
    from cordwood.local_cluster import ClusterShape, LocalCluster, LocalNode

PORT = 4440

RESTART_FIRST_S = 1.0
RESTART_MAX_S = 30.0
"""The first and the longest pause before a dead node is restarted. The first is long enough for the
cluster to notice that the node is down. The pause grows for a node that dies at once again."""

STEADY_S = 30.0
"""A node that ran this long starts again with the first pause."""

QUIET_S = 1.0
"""A start that takes longer than this prints a message. A large WAL takes longer."""

STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""HUP too: a closed terminal must not leave nodes behind."""


def up(
    directory: Annotated[
        str, typer.Option("--dir", metavar="DIR", help="Directory of the cluster's data.")
    ] = DIRECTORY,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Storage nodes, each a process.", show_default="5"),
    ] = None,
    racks: Annotated[
        int | None,
        typer.Option(
            "--racks", min=1, help="Racks over which the nodes are spread.", show_default="3"
        ),
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", min=1, help="Copies of each record.", show_default="3")
    ] = None,
    copy_racks: Annotated[
        int | None,
        typer.Option("--copy-racks", min=1, help="Racks that the copies span.", show_default="2"),
    ] = None,
    wal_mib: Annotated[
        int | None,
        typer.Option(
            "--wal-mib",
            min=1,
            help="Size of each node's write-ahead log, in MiB.",
            show_default="128",
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="URL",
            help="Keep the metadata in zookeeper://host:port,…/path.",
            show_default="an SQLite file in DIR",
        ),
    ] = None,
    tier_store: Annotated[
        str | None,
        typer.Option(
            "--tier-store",
            metavar="STORE",
            help="Main storage, for logs with tier=on: a directory, or s3://…, gs://…, az://….",
            show_default="history in DIR",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=1, max=65535, help="The first node's port. Ports in use are skipped."
        ),
    ] = PORT,
) -> None:
    """Run a cluster on this machine until Ctrl-C; started again, it is the same cluster."""
    import uvloop

    from cordwood.settings import MIB

    wal_bytes = None if wal_mib is None else wal_mib * MIB
    shape = shape_for(
        directory, nodes, racks, copies, copy_racks, wal_bytes, metadata, _tier_store(tier_store)
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Foreground(directory, shape, port).run())


def shape_for(
    directory: str,
    nodes: int | None,
    racks: int | None,
    copies: int | None,
    copy_racks: int | None,
    wal_bytes: int | None,
    metadata: str | None = None,
    tier_store: str | None = None,
) -> ClusterShape | None:
    """The shape that the options ask for; None if no option was given.

    Unset options come from the existing cluster, or from the defaults, made to fit: `--nodes 1`
    alone gives one rack and one copy.

    Raises:
        BadSetting: no cluster can have this shape.
    """
    asked: dict[str, Any] = {
        name: value
        for name, value in (
            ("nodes", nodes), ("racks", racks), ("copies", copies),
            ("copy_racks", copy_racks), ("wal_bytes", wal_bytes), ("metadata", metadata),
            ("tier_store", tier_store),
        )
        if value is not None
    }  # fmt: skip
    if not asked:
        return None
    import msgspec

    from cordwood.layout.json_text import read_json
    from cordwood.local_cluster import CLUSTER_FILE, ClusterShape

    path = os.path.join(directory, CLUSTER_FILE)
    if os.path.exists(path):
        with open(path, "rb") as file:
            try:
                found = read_json(file.read(), ClusterShape, path)
            except Malformed:
                return None  # `local_cluster` reads it too, and reports the fault
        return msgspec.structs.replace(found, **asked)
    usual = ClusterShape()
    nodes = asked.get("nodes", usual.nodes)
    racks = asked.get("racks", min(usual.racks, nodes))
    copies = asked.get("copies", min(usual.copies, nodes))
    copy_racks = asked.get("copy_racks", min(usual.copy_racks, racks, copies))
    fitted = {"nodes": nodes, "racks": racks, "copies": copies, "copy_racks": copy_racks}
    return msgspec.structs.replace(usual, **{**asked, **fitted})


def _tier_store(given: str | None) -> str | None:
    """The address of main storage. A directory gets its full path, because clients run in other
    directories."""
    if not given:
        return given
    return given if "://" in given else os.path.abspath(given)


class _Foreground:
    """One run of `up`, from the first line to the last."""

    def __init__(self, directory: str, shape: ClusterShape | None, port: int) -> None:
        self._directory = directory
        self._shape = shape
        self._port = port
        self._cluster: LocalCluster | None = None
        self._stopping = False

    async def run(self) -> None:
        """Start, watch, and stop when told to."""
        from cordwood.local_cluster import local_cluster

        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None, "a runner runs this in a task"
        for number in STOPPED_BY:
            loop.add_signal_handler(number, self._on_signal, main)
        began = loop.time()
        slow = loop.call_later(QUIET_S, _say, f"Starting a cluster in {self._directory} …")
        try:
            # Without a node whose disk is lost, or whose data lies elsewhere, the others serve; and
            # only a cluster that runs takes the order to make its data anew.
            async with local_cluster(
                self._directory, self._shape, port=self._port, without_failed=True
            ) as cluster:
                self._cluster = cluster
                slow.cancel()
                _say(welcome(cluster, self._directory, loop.time() - began))
                for error in cluster.failed.values():
                    _say(f"{error}. The others run without it, and it is tried again")
                async with asyncio.TaskGroup() as watchers:
                    for node in cluster.nodes.values():
                        watchers.create_task(self._keep_up(cluster, node))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            main.uncancel()
        _say(
            "Stopped: every node is gone. The data stays; start it again with "
            f"`cordwood up{dir_option(self._directory)}`."
        )

    def _on_signal(self, main: asyncio.Task[None]) -> None:
        """The first signal stops the nodes; a second signal does not wait for them."""
        if not self._stopping:
            self._stopping = True
            main.cancel()  # before any output: the reader of our output may be gone
            _say("\nStopping …")
        elif self._cluster is not None:
            for number in self._cluster.nodes:
                self._cluster.kill(number)

    async def _keep_up(self, cluster: LocalCluster, node: LocalNode) -> None:
        """Start a node again whenever it dies."""
        from cordwood.errors import Unreachable

        loop = asyncio.get_running_loop()
        pause = RESTART_FIRST_S
        while True:
            if node.process is not None:
                began = loop.time()
                code = await node.process.wait()
                if loop.time() - began > STEADY_S:
                    pause = RESTART_FIRST_S
                _say(f"node {node.node} ended ({ending_words(code)}), starts again in {pause:g} s")
            while not node.is_running:
                await asyncio.sleep(pause)
                pause = min(RESTART_MAX_S, pause * 2)
                try:
                    await cluster.start_node(node.node)
                except Unreachable as error:
                    _say(f"{error}; next try in {pause:g} s")
            _say(f"node {node.node} is back (pid {_pid(node)})")


def welcome(cluster: LocalCluster, directory: str, seconds: float) -> str:
    """The ready line, the nodes, and what to try."""
    from cordwood.nodes import Replication

    shape = cluster.shape
    where = cluster_option(directory)
    nodes = "\n".join(
        f"  node {node.node}  {node.address}  {node.location}  "
        + (f"pid {_pid(node)}" if node.process is not None else "does not run")
        for node in cluster.nodes.values()
    )
    first = next(node for node in cluster.nodes.values() if node.process is not None)
    return (
        f"Ready in {seconds:.1f} s: {cluster.url}\n"
        f"{nodes}\n"
        f"  each record in {Replication(shape.copies, shape.copy_racks)}; "
        f"WAL {shape.wal_bytes >> 20} MiB a node; metadata in {shape.metadata or 'SQLite'}\n"
        "Try, in another shell:\n"
        f"  cordwood append demo hello{where}\n"
        f"  cordwood tail demo --follow{where}\n"
        f"  cordwood status{where}\n"
        f"  kill -9 {_pid(first)}     (a node: appends go on, and it comes back)\n"
        "Ctrl-C stops it."
    )


def ending_words(code: int) -> str:
    """An exit status as people say it."""
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name


def _pid(node: LocalNode) -> int:
    assert node.process is not None, "a ready node has a process"
    return node.process.pid


def _say(text: str) -> None:
    # Flushed, because the reader may be a pipe.
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader went (`cordwood up | head`, or Ctrl-C ended `tee` first). The nodes run on
        # without it. The buffer's rest would fail again at the exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
